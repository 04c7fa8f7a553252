//! The client's side: answers, parsed from bytes as they come.

use std::mem::MaybeUninit;

use crate::chunked::ChunkDecoder;
use crate::{MAX_HEAD_BYTES, MAX_HEADERS, ProtocolError, content_length, has_token};

#[derive(Debug)]
enum State {
    Head,
    /// A body of known length; bytes still to come.
    Length(u64),
    Chunked(ChunkDecoder),
    /// A body that ends with the connection.
    UntilClose,
    Done,
}

/// What an answer is given to while it comes.
pub trait Sink {
    /// A field of the head of the final answer; called for each, in order, once the head is complete.
    fn field(&mut self, _name: &str, _value: &[u8]) {}

    /// A piece of the body, without its transfer coding.
    fn body(&mut self, _bytes: &[u8]) {}
}

/// Counts only.
#[derive(Debug, Clone, Copy)]
pub struct Discard;

impl Sink for Discard {}

/// Bodies into a closure.
impl<F: FnMut(&[u8])> Sink for F {
    fn body(&mut self, bytes: &[u8]) {
        self(bytes);
    }
}

/// What became of a piece of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feed {
    /// Bytes that belong to this answer. Fewer than given only when it is complete.
    pub consumed: usize,
    pub complete: bool,
}

/// Parses one answer at a time; [`ResponseParser::start`] makes it ready for the next.
#[derive(Debug)]
pub struct ResponseParser {
    state: State,
    /// The part of a head seen so far, when it did not come in one piece.
    head: Vec<u8>,
    head_request: bool,
    status: u16,
    /// An answer of HTTP/1.0.
    http10: bool,
    keep_alive: bool,
    started: bool,
    /// Was there a `100 Continue`?
    continued: bool,
    /// Of the head of the final answer; 0 until that is complete.
    head_bytes: u64,
    body_bytes: u64,
    /// The head gave the length of the body.
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

/// The head of the last answer, parsed. Servers send the same head again and again, but for the date once a second:
/// comparing costs a tenth of parsing.
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

/// What a head says about the rest.
struct Head {
    len: usize,
    status: u16,
    http10: bool,
    keep_alive: bool,
    framing: State,
}

impl ResponseParser {
    /// Makes ready for the answer to a new request. `head_request`: the request was a HEAD, the answer has no body.
    pub fn start(&mut self, head_request: bool) {
        self.state = State::Head;
        self.head.clear();
        self.head_request = head_request;
        self.started = false;
        self.continued = false;
        self.head_bytes = 0;
        self.body_bytes = 0;
    }

    /// Has any byte of the answer been seen?
    #[must_use]
    pub fn started(&self) -> bool {
        self.started
    }

    /// Has the server said that it wants the body?
    #[must_use]
    pub fn continued(&self) -> bool {
        self.continued
    }

    /// Is the head complete?
    #[must_use]
    pub fn has_head(&self) -> bool {
        !matches!(self.state, State::Head)
    }

    /// Status code of the answer; valid once the head is complete.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Is it an answer of HTTP/1.0? Valid once the head is complete.
    #[must_use]
    pub fn http10(&self) -> bool {
        self.http10
    }

    /// May the connection carry another request?
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

    /// Takes bytes that arrived; fields and pieces of body go to `sink`.
    ///
    /// # Errors
    /// When the bytes are not an HTTP/1 answer. The connection is of no use afterwards.
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

    /// [`ResponseParser::feed`] for answers that are only counted, with a memory that many connections share.
    ///
    /// # Errors
    /// As [`ResponseParser::feed`].
    #[inline]
    pub fn feed_remembering(&mut self, data: &[u8], memory: &mut HeadMemory) -> Result<Feed, ProtocolError> {
        if !matches!(self.state, State::Head) || !self.head.is_empty() {
            return self.feed(data, &mut Discard);
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
            let feed = self.feed(&data[memory.bytes.len()..], &mut Discard)?;
            return Ok(Feed { consumed: memory.bytes.len() + feed.consumed, complete: feed.complete });
        }
        let feed = self.feed(data, &mut Discard)?;
        let length = self.body_bytes;
        // Only whole answers of known length in one piece: those of small pages, where parsing counts.
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

    /// The server closed the connection. True when that completes the answer.
    pub fn close(&mut self) -> bool {
        if matches!(self.state, State::UntilClose) {
            self.state = State::Done;
        }
        matches!(self.state, State::Done)
    }

    /// Parses a head out of `data`, or stores it until the rest comes (`None`).
    fn feed_head(&mut self, data: &[u8], sink: &mut impl Sink) -> Result<Option<usize>, ProtocolError> {
        let (parsed, before) = if self.head.is_empty() {
            (parse_head(data, self.head_request, sink)?, 0)
        } else {
            let before = self.head.len();
            self.head.extend_from_slice(data);
            // A head can only become complete with a line feed; trying at each byte would cost the square of its length.
            let parsed = if data.contains(&b'\n') { parse_head(&self.head, self.head_request, sink)? } else { None };
            (parsed, before)
        };
        let Some(head) = parsed else {
            if self.head.is_empty() {
                self.head.extend_from_slice(data);
            }
            if self.head.len() > MAX_HEAD_BYTES {
                return Err(ProtocolError("a head without an end"));
            }
            return Ok(None);
        };
        self.head.clear();
        if (100..200).contains(&head.status) {
            if head.status == 101 {
                return Err(ProtocolError("a switch of protocols that nobody asked for"));
            }
            // An interim answer: the real one follows.
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
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, data, &mut headers)
        .map_err(|e| {
            ProtocolError(match e {
                httparse::Error::TooManyHeaders => "more than 100 header fields",
                httparse::Error::Version => "an answer that is not HTTP/1.0 or 1.1",
                httparse::Error::Status => "a status line without a status",
                _ => "a head that is not HTTP",
            })
        })?;
    let httparse::Status::Complete(len) = parsed else { return Ok(None) };
    let status = response.code.unwrap_or(0);
    if !(100..1000).contains(&status) {
        return Err(ProtocolError("a status code outside 100 to 999"));
    }
    let mut keep_alive = response.version == Some(1);
    let mut length = None;
    let (mut chunked, mut other_coding) = (false, false);
    for h in response.headers.iter() {
        if status >= 200 {
            sink.field(h.name, h.value);
        }
        // The length of the name tells most fields apart without comparing.
        match h.name.len() {
            14 if h.name.eq_ignore_ascii_case("content-length") => {
                let n = content_length(h.value)?;
                if length.is_some_and(|other| other != n) {
                    return Err(ProtocolError("two Content-Lengths that differ"));
                }
                length = Some(n);
            }
            10 if h.name.eq_ignore_ascii_case("connection") => {
                if has_token(h.value, "close") {
                    keep_alive = false;
                } else if has_token(h.value, "keep-alive") {
                    keep_alive = true;
                }
            }
            17 if h.name.eq_ignore_ascii_case("transfer-encoding") => {
                let last = h.value.rsplit(|b| *b == b',').next().unwrap_or_default();
                chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
                other_coding = !chunked;
            }
            _ => {}
        }
    }
    // RFC 9112 section 6.3, in its order.
    let framing = if head_request || status < 200 || status == 204 || status == 304 {
        State::Done
    } else if chunked {
        if length.is_some() {
            keep_alive = false;
        }
        State::Chunked(ChunkDecoder::default())
    } else if let (Some(n), false) = (length, other_coding) {
        if n == 0 { State::Done } else { State::Length(n) }
    } else {
        keep_alive = false;
        State::UntilClose
    };
    Ok(Some(Head { len, status, http10: response.version == Some(0), keep_alive, framing }))
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
                        let a = plain.feed(part, &mut Discard).expect("valid");
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
    fn lies_are_errors() {
        for bad in [
            &b"garbage\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 099 X\r\n\r\n",
            b"HTTP/1.1 101 Switching\r\n\r\n",
        ] {
            assert!(parse(bad, 1000, false).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn an_endless_head_is_an_error_before_it_fills_the_memory() {
        let mut wire = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
        wire.resize(10 * MAX_HEAD_BYTES, b'a');
        assert!(parse(&wire, 1000, false).is_err());
    }

    #[test]
    fn a_torn_answer_is_not_complete() {
        let wire = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort";
        assert!(!parse(wire, 7, false).expect("so far valid").3);
    }
}
