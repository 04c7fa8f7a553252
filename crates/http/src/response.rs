//! The client's side: parses answers from bytes as they arrive.

use std::mem::MaybeUninit;

use crate::chunked::ChunkDecoder;
use crate::lenient_head::{self, MOST_BYTES};
use crate::{MAX_HEADERS, ProtocolError, content_length, has_token};

#[derive(Debug)]
enum State {
    Head,
    /// A body of known length; holds the bytes still to come.
    Length(u64),
    Chunked(ChunkDecoder),
    /// A body that ends with the connection.
    UntilClose,
    Done,
}

/// Receives an answer while it arrives.
pub trait Sink {
    /// A field of the head of the final answer; called for each, in order, once the head is complete.
    fn field(&mut self, _name: &str, _value: &[u8]) {}

    /// A piece of the body, without its transfer coding.
    fn body(&mut self, _bytes: &[u8]) {}
}

/// A sink that drops everything.
#[derive(Debug, Clone, Copy)]
pub struct NullSink;

impl Sink for NullSink {}

/// Passes bodies to a closure.
impl<F: FnMut(&[u8])> Sink for F {
    fn body(&mut self, bytes: &[u8]) {
        self(bytes);
    }
}

/// The result of feeding a piece of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feed {
    /// Bytes that belong to this answer; fewer than given only if it is complete.
    pub consumed: usize,
    pub complete: bool,
}

/// Parses one answer at a time; [`ResponseParser::start`] prepares it for the next.
#[derive(Debug)]
pub struct ResponseParser {
    state: State,
    /// The part of a head received so far, if it did not arrive in one piece.
    head: Vec<u8>,
    head_request: bool,
    status: u16,
    /// The answer is HTTP/1.0.
    http10: bool,
    keep_alive: bool,
    started: bool,
    /// A `100 Continue` arrived.
    continued: bool,
    /// Length of the final answer's head; 0 until that is complete.
    head_bytes: u64,
    body_bytes: u64,
    /// The head stated the length of the body.
    known_length: bool,
}

impl Default for ResponseParser {
    fn default() -> Self {
        ResponseParser {
            state: State::Head,
            head: Vec::new(),
            head_request: false,
            status: 0,
            http10: false,
            keep_alive: false,
            started: false,
            continued: false,
            head_bytes: 0,
            body_bytes: 0,
            known_length: false,
        }
    }
}

/// The parsed head of the last answer. Servers repeat the same head, except for the date once per second; comparing
/// costs a tenth of parsing.
#[derive(Debug, Default)]
pub struct HeadMemory {
    bytes: Vec<u8>,
    head_request: bool,
    status: u16,
    http10: bool,
    keep_alive: bool,
    /// Length of the body.
    length: u64,
}

/// What a head says about the rest of the answer.
struct Head {
    len: usize,
    status: u16,
    http10: bool,
    keep_alive: bool,
    framing: State,
}

impl ResponseParser {
    /// Prepares for the answer to a new request. `head_request`: the request was a HEAD, so the answer has no body.
    pub fn start(&mut self, head_request: bool) {
        self.state = State::Head;
        self.head.clear();
        self.head_request = head_request;
        self.started = false;
        self.continued = false;
        self.head_bytes = 0;
        self.body_bytes = 0;
    }

    /// Whether any byte of the answer has arrived.
    #[must_use]
    pub fn started(&self) -> bool {
        self.started
    }

    /// Whether the server has sent `100 Continue`.
    #[must_use]
    pub fn continued(&self) -> bool {
        self.continued
    }

    /// Whether the head is complete.
    #[must_use]
    pub fn has_head(&self) -> bool {
        !matches!(self.state, State::Head)
    }

    /// Status code of the answer; valid once the head is complete.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the answer is HTTP/1.0; valid once the head is complete.
    #[must_use]
    pub fn http10(&self) -> bool {
        self.http10
    }

    /// Whether the connection may carry another request.
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Bytes of the head with the empty line that ends it; 0 until it is complete.
    #[must_use]
    pub fn head_bytes(&self) -> u64 {
        self.head_bytes
    }

    /// Bytes of body so far, without its framing.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Takes input; fields and pieces of the body go to `sink`.
    ///
    /// # Errors
    /// The bytes are not an HTTP/1 answer. The connection is unusable afterwards.
    #[inline]
    pub fn feed(&mut self, data: &[u8], sink: &mut impl Sink) -> Result<Feed, ProtocolError> {
        let mut at = 0;
        if matches!(self.state, State::Head) {
            self.started |= !data.is_empty();
            while matches!(self.state, State::Head) {
                match self.feed_head(&data[at..], sink)? {
                    Some(used) => at += used,
                    None => return Ok(Feed { consumed: data.len(), complete: false }),
                }
            }
        }
        let rest = &data[at..];
        let used = match &mut self.state {
            State::Length(remaining) => {
                let take = usize::try_from(*remaining).unwrap_or(usize::MAX).min(rest.len());
                sink.body(&rest[..take]);
                self.body_bytes += take as u64;
                *remaining -= take as u64;
                if *remaining == 0 {
                    self.state = State::Done;
                }
                take
            }
            State::Chunked(decoder) => {
                let body_bytes = &mut self.body_bytes;
                let (used, done) = decoder.feed(rest, |b| {
                    *body_bytes += b.len() as u64;
                    sink.body(b);
                })?;
                if done {
                    self.state = State::Done;
                }
                used
            }
            State::UntilClose => {
                sink.body(rest);
                self.body_bytes += rest.len() as u64;
                rest.len()
            }
            State::Head | State::Done => 0,
        };
        Ok(Feed { consumed: at + used, complete: matches!(self.state, State::Done) })
    }

    /// Like [`ResponseParser::feed`], for answers that are only counted, with a memory that many connections share.
    ///
    /// # Errors
    /// As [`ResponseParser::feed`].
    #[inline]
    pub fn feed_remembering(&mut self, data: &[u8], memory: &mut HeadMemory) -> Result<Feed, ProtocolError> {
        if !matches!(self.state, State::Head) || !self.head.is_empty() {
            return self.feed(data, &mut NullSink);
        }
        if !memory.bytes.is_empty() && memory.head_request == self.head_request && data.starts_with(&memory.bytes) {
            self.started = true;
            self.status = memory.status;
            self.http10 = memory.http10;
            self.keep_alive = memory.keep_alive;
            self.head_bytes = memory.bytes.len() as u64;
            let rest = data.len() - memory.bytes.len();
            if memory.length <= rest as u64 {
                self.body_bytes = memory.length;
                self.state = State::Done;
                return Ok(Feed { consumed: memory.bytes.len() + memory.length as usize, complete: true });
            }
            self.state = State::Length(memory.length);
            let feed = self.feed(&data[memory.bytes.len()..], &mut NullSink)?;
            return Ok(Feed { consumed: memory.bytes.len() + feed.consumed, complete: feed.complete });
        }
        let feed = self.feed(data, &mut NullSink)?;
        let length = self.body_bytes;
        // Remember only whole answers of known length in one piece: those of small pages, for which parsing is a large
        // part of the cost.
        if feed.complete
            && self.known_length
            && let Some(head) = feed.consumed.checked_sub(length as usize)
        {
            memory.bytes.clear();
            memory.bytes.extend_from_slice(&data[..head]);
            memory.head_request = self.head_request;
            memory.status = self.status;
            memory.http10 = self.http10;
            memory.keep_alive = self.keep_alive;
            memory.length = length;
        }
        Ok(feed)
    }

    /// Ends the connection. Returns true if that completes the answer.
    pub fn close(&mut self) -> bool {
        // RFC 9112 section 8: a chunked body is complete once its last chunk has arrived, with or without the empty
        // line.
        let whole = match &self.state {
            State::UntilClose => true,
            State::Chunked(decoder) => decoder.has_last_chunk(),
            _ => false,
        };
        if whole {
            self.state = State::Done;
        }
        matches!(self.state, State::Done)
    }

    /// Parses a head from `data`, or stores it until the rest arrives (`None`).
    fn feed_head(&mut self, data: &[u8], sink: &mut impl Sink) -> Result<Option<usize>, ProtocolError> {
        let (parsed, before) = if self.head.is_empty() {
            (parse_head(data, self.head_request, sink)?, 0)
        } else {
            let before = self.head.len();
            self.head.extend_from_slice(data);
            // Only a line feed can complete a head; trying at each byte would cost the square of its length.
            let parsed = if data.contains(&b'\n') { parse_head(&self.head, self.head_request, sink)? } else { None };
            (parsed, before)
        };
        let Some(head) = parsed else {
            if self.head.is_empty() {
                self.head.extend_from_slice(data);
            }
            if self.head.len() > MOST_BYTES {
                return Err(ProtocolError("a head without an end"));
            }
            return Ok(None);
        };
        self.head.clear();
        if (100..200).contains(&head.status) {
            if head.status == 101 {
                return Err(ProtocolError("a switch of protocols that nobody asked for"));
            }
            // An interim answer: the final one follows.
            self.continued |= head.status == 100;
            return Ok(Some(head.len - before));
        }
        self.status = head.status;
        self.http10 = head.http10;
        self.keep_alive = head.keep_alive;
        self.head_bytes = head.len as u64;
        self.known_length = matches!(head.framing, State::Length(_) | State::Done);
        self.state = head.framing;
        Ok(Some(head.len - before))
    }
}

fn parse_head(data: &[u8], head_request: bool, sink: &mut impl Sink) -> Result<Option<Head>, ProtocolError> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, data, &mut headers);
    match parsed {
        Ok(httparse::Status::Complete(len)) => {
            let mut framing = Framing::new(response.version != Some(1), response.code.unwrap_or(0))?;
            for h in response.headers.iter() {
                framing.field(h.name, h.value, sink);
            }
            framing.head(len, head_request).map(Some)
        }
        Ok(httparse::Status::Partial) => Ok(None),
        // It violates the RFC, but a lenient client may understand it: slower, and rare.
        Err(_) => {
            let Some(odd) = lenient_head::read(data)? else { return Ok(None) };
            let mut framing = Framing::new(odd.http10, odd.status)?;
            for (name, value) in &odd.fields {
                framing.field(name, value, sink);
            }
            framing.head(odd.bytes, head_request).map(Some)
        }
    }
}

/// What the fields of a head say about the rest of the answer.
struct Framing {
    status: u16,
    http10: bool,
    keep_alive: bool,
    /// An error in it matters only if the length is needed.
    length: Option<Result<u64, ProtocolError>>,
    chunked: bool,
    other_coding: bool,
}

impl Framing {
    #[inline]
    fn new(http10: bool, status: u16) -> Result<Framing, ProtocolError> {
        if !(100..1000).contains(&status) {
            return Err(ProtocolError("a status code outside 100 to 999"));
        }
        Ok(Framing { status, http10, keep_alive: !http10, length: None, chunked: false, other_coding: false })
    }

    #[inline]
    fn field(&mut self, name: &str, value: &[u8], sink: &mut impl Sink) {
        if self.status >= 200 {
            sink.field(name, value);
        }
        // The length of the name tells most fields apart without comparing.
        match name.len() {
            14 if name.eq_ignore_ascii_case("content-length") => {
                self.length = Some(match (self.length, content_length(value)) {
                    (Some(Ok(other)), Ok(n)) if other != n => Err(ProtocolError("two Content-Lengths that differ")),
                    (Some(wrong @ Err(_)), _) => wrong,
                    (_, this) => this,
                });
            }
            10 if name.eq_ignore_ascii_case("connection") => {
                if has_token(value, "close") {
                    self.keep_alive = false;
                } else if has_token(value, "keep-alive") {
                    self.keep_alive = true;
                }
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                let last = value.rsplit(|b| *b == b',').next().unwrap_or_default().trim_ascii();
                self.chunked = last.eq_ignore_ascii_case(b"chunked");
                // "identity" is from before RFC 7230, and has no effect.
                self.other_coding = !self.chunked && !last.eq_ignore_ascii_case(b"identity");
            }
            _ => {}
        }
    }

    /// Applies RFC 9112 section 6.3, in its order.
    #[inline]
    fn head(self, len: usize, head_request: bool) -> Result<Head, ProtocolError> {
        let Framing { status, http10, mut keep_alive, length, chunked, other_coding } = self;
        let framing = if head_request || status < 200 || status == 204 || status == 304 {
            State::Done
        } else if chunked {
            // Section 6.1: HTTP/1.0 has no transfer codings, and a length together with one is suspicious.
            keep_alive &= length.is_none() && !http10;
            State::Chunked(ChunkDecoder::default())
        } else if let (Some(length), false) = (length, other_coding) {
            let n = length?;
            if n == 0 { State::Done } else { State::Length(n) }
        } else {
            keep_alive = false;
            State::UntilClose
        };
        Ok(Head { len, status, http10, keep_alive, framing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(wire: &[u8], step: usize, head: bool) -> Result<(u16, Vec<u8>, usize, bool, bool), ProtocolError> {
        let mut p = ResponseParser::default();
        p.start(head);
        let (mut body, mut used) = (Vec::new(), 0);
        for part in wire.chunks(step) {
            let f = p.feed(part, &mut |b: &[u8]| body.extend_from_slice(b))?;
            used += f.consumed;
            if f.complete {
                return Ok((p.status(), body, used, true, p.keep_alive()));
            }
        }
        let complete = p.close();
        Ok((p.status(), body, used, complete, p.keep_alive()))
    }

    #[test]
    fn an_answer_is_the_same_however_it_is_cut() {
        let wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhelloEXTRA";
        for step in 1..wire.len() {
            assert_eq!(
                parse(wire, step, false).expect("valid"),
                (200, b"hello".to_vec(), wire.len() - 5, true, true),
                "in steps of {step}"
            );
        }
    }

    #[test]
    fn a_remembered_head_changes_nothing() {
        let answers: [&[u8]; 6] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello",
            b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        ];
        let mut memory = HeadMemory::default();
        for round in 0..3 {
            for wire in answers {
                for step in [wire.len(), 3, wire.len() - 1] {
                    let (mut plain, mut remembering) = (ResponseParser::default(), ResponseParser::default());
                    plain.start(false);
                    remembering.start(false);
                    for part in wire.chunks(step) {
                        let a = plain.feed(part, &mut NullSink).expect("valid");
                        let b = remembering.feed_remembering(part, &mut memory).expect("valid");
                        assert_eq!(a, b, "{round} {}", String::from_utf8_lossy(wire));
                    }
                    assert_eq!(
                        (plain.status(), plain.keep_alive(), plain.body_bytes()),
                        (remembering.status(), remembering.keep_alive(), remembering.body_bytes())
                    );
                }
            }
        }
        let mut p = ResponseParser::default();
        p.start(true);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(
            p.feed_remembering(head, &mut memory).expect("valid"),
            Feed { consumed: head.len(), complete: true }
        );
        p.start(false);
        assert!(!p.feed_remembering(head, &mut memory).expect("valid").complete);
    }

    #[test]
    fn framing_follows_the_rfc() {
        let close = b"HTTP/1.1 200 OK\r\n\r\nall of it";
        assert_eq!(parse(close, 4, false).expect("valid"), (200, b"all of it".to_vec(), close.len(), true, false));
        let both = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\na\r\n0\r\n\r\n";
        let (_, body, _, complete, keep) = parse(both, 3, false).expect("valid");
        assert_eq!((body.as_slice(), complete, keep), (&b"a"[..], true, false));
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        assert!(parse(head, 5, true).expect("valid").3);
        let ten = b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na";
        assert!(!parse(ten, 50, false).expect("valid").4);
        let none = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n";
        assert!(parse(none, 50, false).expect("valid").3);
    }

    #[test]
    fn what_the_rfcs_let_a_client_accept_is_accepted_however_it_is_cut() {
        let many = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\nok", "X-Field: y\r\n".repeat(900));
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 2\r\n\r\nok", "y".repeat(200_000));
        let odd: [(&str, &[u8], bool); 22] = [
            ("bare line feeds", b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", true),
            ("empty lines before it", b"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true),
            ("no reason phrase", b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", true),
            ("more blanks in the status line", b"HTTP/1.1  200   Very OK\r\nContent-Length: 2\r\n\r\nok", true),
            ("a reason in Latin-1", b"HTTP/1.1 200 D\xe9j\xe0\r\nContent-Length: 2\r\n\r\nok", true),
            ("a later minor version", b"HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok", true),
            ("a folded field", b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok", true),
            ("a folded length", b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\t2\r\n\r\nok", true),
            ("a fold before the first field", b"HTTP/1.1 200 OK\r\n X: a\r\nContent-Length: 2\r\n\r\nok", true),
            ("a blank before the colon", b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok", true),
            ("a line without a colon", b"HTTP/1.1 200 OK\r\nwhatever\r\nContent-Length: 2\r\n\r\nok", true),
            ("a name with a blank", b"HTTP/1.1 200 OK\r\nA b: c\r\nContent-Length: 2\r\n\r\nok", true),
            ("control characters", b"HTTP/1.1 200 OK\r\nX: a\x00\x01b\r\nContent-Length: 2\r\n\r\nok", true),
            ("one length twice", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", true),
            ("a list of one length", b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", true),
            ("identity", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok", true),
            (
                "early hints",
                b"HTTP/1.1 103 Hints\r\nLink: </a>\r\n b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                true,
            ),
            (
                "chunks in HTTP/1.0",
                b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                false,
            ),
            (
                "a last chunk and the end",
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n02 ;x=y\r\nok\r\n0\r\n",
                true,
            ),
            (
                "chunks beside a wrong length",
                b"HTTP/1.1 200 OK\r\nContent-Length: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
                false,
            ),
            ("900 fields", many.as_bytes(), true),
            ("a field of 200,000 bytes", long.as_bytes(), true),
        ];
        for (what, wire, keeps) in odd {
            for step in [wire.len(), wire.len() / 2, if wire.len() > 1000 { 997 } else { 1 }] {
                let (status, body, used, complete, keep_alive) = parse(wire, step, false).expect(what);
                let whole = (status, body.as_slice(), used, complete, keep_alive);
                assert_eq!(whole, (200, &b"ok"[..], wire.len(), true, keeps), "{what}, {step} bytes at a time");
            }
        }
        let not_modified = b"HTTP/1.1 304 Not Modified\r\nContent-Length: none\r\n\r\n";
        assert!(parse(not_modified, 100, false).expect("a length that nobody needs").3);
    }

    #[test]
    fn the_value_of_a_folded_field_is_one_line() {
        #[derive(Default)]
        struct Fields(Vec<(String, String)>);
        impl Sink for Fields {
            fn field(&mut self, name: &str, value: &[u8]) {
                self.0.push((name.into(), String::from_utf8_lossy(value).into_owned()));
            }
        }
        let mut fields = Fields::default();
        let mut parser = ResponseParser::default();
        parser.start(false);
        let wire = b"HTTP/1.1 200 OK\r\nX: a\r\n  b\r\n\tc\r\nY : z\r\nContent-Length: 0\r\n\r\n";
        assert!(parser.feed(wire, &mut fields).expect("accepted").complete);
        let wanted = [("X", "a b c"), ("Y", "z"), ("Content-Length", "0")];
        assert_eq!(fields.0, wanted.map(|(n, v)| (n.to_string(), v.to_string())));
    }

    #[test]
    fn what_is_refused_is_refused_with_what_is_wrong() {
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(1100));
        for (wire, why) in [
            (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], "it does not begin with HTTP/"),
            (b"<html>hello</html>\n", "it does not begin with HTTP/"),
            (b"http/1.1 200 OK\r\n\r\n", "it begins with http/ in lower case"),
            (b"ICY 200 OK\r\n\r\n", "it does not begin with HTTP/"),
            (b"HTTP/2 200\r\n\r\n", "HTTP/2"),
            (b"HTTP/3.0 200\r\n\r\n", "neither HTTP/1.0 nor HTTP/1.1"),
            (b"HTTP/1.1 OK\r\n\r\n", "without a status code"),
            (b"HTTP/1.1 20 OK\r\n\r\n", "without a status code"),
            (b"\x15\x03\x01\x00\x02\x02\x50", "TLS"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n", "a Content-Length that is not a number"),
            (many.as_bytes(), "more than 1,000 header fields"),
        ] {
            let e = parse(wire, wire.len(), false).expect_err(why);
            assert!(e.0.contains(why), "{:?}: {e}", String::from_utf8_lossy(&wire[..wire.len().min(30)]));
        }
    }

    #[test]
    fn lies_are_errors() {
        for bad in [
            &b"garbage\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
            b"HTTP/1.1 099 X\r\n\r\n",
            b"HTTP/1.1 101 Switching\r\n\r\n",
        ] {
            assert!(parse(bad, 1000, false).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn an_endless_head_is_an_error_before_it_fills_the_memory() {
        let mut wire = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
        wire.resize(4 * MOST_BYTES, b'a');
        assert!(parse(&wire, 1000, false).is_err());
    }

    #[test]
    fn a_torn_answer_is_not_complete() {
        let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort";
        assert!(!parse(wire, 7, false).expect("so far valid").3);
    }
}
