//! Requests: built once by the client, parsed by the server.

use crate::chunked::ChunkDecoder;
use crate::response::{NullSink, Sink};
use crate::{MAX_HEAD_BYTES, MAX_HEADERS, ProtocolError, content_length, has_token};

/// The parts of a request head.
#[derive(Debug, Clone, Copy)]
pub struct RequestBuilder<'a> {
    pub method: &'a str,
    /// Path and query, or the whole URL for a proxy.
    pub target: &'a str,
    /// The value of the Host header.
    pub host: &'a str,
    pub http10: bool,
    /// Ask the server to close after its answer.
    pub close: bool,
    /// A header of these replaces a default one of the same name; an empty value removes it.
    pub extra: &'a [(String, String)],
}

impl RequestBuilder<'_> {
    /// The request line and the fields, without the empty line that ends a head and without fields about a body.
    #[must_use]
    pub fn head(&self) -> Vec<u8> {
        let mut bytes = self.line();
        if !self.extra.iter().any(|(n, _)| n.eq_ignore_ascii_case("host")) {
            write_field(&mut bytes, "Host", self.host.as_bytes());
        }
        bytes.extend_from_slice(&self.fields());
        bytes
    }

    /// The request line.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_line(&mut bytes, self.method, self.target.as_bytes(), self.http10);
        bytes
    }

    /// The fields except the default `Host`.
    #[must_use]
    pub fn fields(&self) -> Vec<u8> {
        let agent = concat!("lastdrop/", env!("CARGO_PKG_VERSION"));
        let mut ours: Vec<(&str, &str)> = vec![("User-Agent", agent), ("Accept", "*/*")];
        if self.close {
            ours.push(("Connection", "close"));
        } else if self.http10 {
            ours.push(("Connection", "keep-alive"));
        }
        let mut bytes = Vec::new();
        for (name, value) in &ours {
            if !self.extra.iter().any(|(n, _)| n.eq_ignore_ascii_case(name)) {
                write_field(&mut bytes, name, value.as_bytes());
            }
        }
        for (name, value) in self.extra.iter().filter(|(_, v)| !v.is_empty()) {
            write_field(&mut bytes, name, value.as_bytes());
        }
        bytes
    }
}

/// Appends a request line.
pub fn write_line(bytes: &mut Vec<u8>, method: &str, target: &[u8], http10: bool) {
    bytes.extend_from_slice(method.as_bytes());
    bytes.push(b' ');
    bytes.extend_from_slice(target);
    bytes.extend_from_slice(if http10 { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
}

/// Appends a header field.
pub fn write_field(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

/// Appends a body in the chunked transfer coding, in chunks of `size` bytes.
pub fn write_chunked(bytes: &mut Vec<u8>, body: &[u8], size: usize) {
    for chunk in body.chunks(size.max(1)) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
}

/// Builds a whole HTTP/1.1 request. A header of `extra` replaces a default one of the same name; an empty value removes
/// it. `host` is the value of the Host header; `close` asks the server to close after its answer.
#[must_use]
pub fn build_request(
    method: &str,
    path: &str,
    host: &str,
    close: bool,
    extra: &[(String, String)],
    body: Option<&[u8]>,
) -> Vec<u8> {
    let mut bytes = RequestBuilder { method, target: path, host, http10: false, close, extra }.head();
    if let Some(body) = body
        && !extra.iter().any(|(n, _)| n.eq_ignore_ascii_case("content-length"))
    {
        write_field(&mut bytes, "Content-Length", body.len().to_string().as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body.unwrap_or_default());
    bytes
}

/// The facts that a server needs of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    pub method: String,
    pub path: String,
    pub http10: bool,
    pub keep_alive: bool,
}

/// Parses requests on one connection, one after the other.
#[derive(Debug, Default)]
pub struct RequestParser {
    buffer: Vec<u8>,
    /// Head of the request whose body is being read, and the rest of that body.
    pending: Option<(RequestHead, RemainingBody)>,
}

/// The part of a body that is still to come.
#[derive(Debug)]
enum RemainingBody {
    Bytes(u64),
    Chunks(ChunkDecoder),
}

impl RequestParser {
    /// Takes bytes that arrived.
    pub fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// Whether nothing of a next request has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty() && self.pending.is_none()
    }

    /// Whether the head of a request is complete, and its body is not.
    #[must_use]
    pub fn has_head(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns the next whole request, if there is one; drops its body.
    ///
    /// # Errors
    /// The bytes are not HTTP/1.
    pub fn next_request(&mut self) -> Result<Option<RequestHead>, ProtocolError> {
        self.next_into(&mut NullSink)
    }

    /// Like `next_request`, but passes fields to `sink` once the head is complete, and pieces of the body as they
    /// arrive.
    ///
    /// # Errors
    /// The bytes are not HTTP/1.
    pub fn next_into(&mut self, sink: &mut impl Sink) -> Result<Option<RequestHead>, ProtocolError> {
        if self.pending.is_none() {
            let Some((head, len, body)) = parse_head(&self.buffer, sink)? else {
                return if self.buffer.len() > MAX_HEAD_BYTES {
                    Err(ProtocolError("a head without an end"))
                } else {
                    Ok(None)
                };
            };
            self.buffer.drain(..len);
            self.pending = Some((head, body));
        }
        let Some((_, missing)) = &mut self.pending else { return Ok(None) };
        let whole = match missing {
            RemainingBody::Bytes(missing) => {
                let take = usize::try_from(*missing).unwrap_or(usize::MAX).min(self.buffer.len());
                sink.body(&self.buffer[..take]);
                self.buffer.drain(..take);
                *missing -= take as u64;
                *missing == 0
            }
            RemainingBody::Chunks(decoder) => {
                let (used, done) = decoder.feed(&self.buffer, |piece| sink.body(piece))?;
                self.buffer.drain(..used);
                done
            }
        };
        if whole { Ok(self.pending.take().map(|(head, _)| head)) } else { Ok(None) }
    }
}

fn parse_head(data: &[u8], sink: &mut impl Sink) -> Result<Option<(RequestHead, usize, RemainingBody)>, ProtocolError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let parsed = request.parse(data).map_err(|_| ProtocolError("a request that is not HTTP"))?;
    let httparse::Status::Complete(len) = parsed else { return Ok(None) };
    let mut keep_alive = request.version == Some(1);
    let mut body = RemainingBody::Bytes(0);
    for h in request.headers.iter() {
        sink.field(h.name, h.value);
        if h.name.eq_ignore_ascii_case("content-length") {
            let length = content_length(h.value)?;
            // Chunks win over a length (RFC 9112 section 6.3).
            if matches!(body, RemainingBody::Bytes(_)) {
                body = RemainingBody::Bytes(length);
            }
        } else if h.name.eq_ignore_ascii_case("transfer-encoding") {
            if !has_token(h.value, "chunked") {
                return Err(ProtocolError("a request body in an unknown coding"));
            }
            body = RemainingBody::Chunks(ChunkDecoder::default());
        } else if h.name.eq_ignore_ascii_case("connection") {
            if has_token(h.value, "close") {
                keep_alive = false;
            } else if has_token(h.value, "keep-alive") {
                keep_alive = true;
            }
        }
    }
    let head = RequestHead {
        method: request.method.unwrap_or_default().to_string(),
        path: request.path.unwrap_or_default().to_string(),
        http10: request.version == Some(0),
        keep_alive,
    };
    Ok(Some((head, len, body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_client_builds_the_server_reads() {
        let extra = vec![("host".to_string(), "other".to_string()), ("Accept".to_string(), String::new())];
        let wire = build_request("POST", "/p?q", "h:80", true, &extra, Some(b"body"));
        let text = String::from_utf8(wire.clone()).expect("text");
        assert!(text.contains("host: other\r\n") && !text.contains("h:80") && !text.contains("Accept"));
        for step in 1..wire.len() {
            let (mut p, mut got) = (RequestParser::default(), None);
            for part in wire.chunks(step) {
                p.push(part);
                got = p.next_request().expect("valid");
            }
            let head = got.expect("complete");
            assert_eq!((head.method.as_str(), head.path.as_str(), head.keep_alive), ("POST", "/p?q", false));
            assert!(p.is_empty());
        }
    }

    #[test]
    fn a_body_in_chunks_is_read_to_its_end() {
        let mut wire = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        write_chunked(&mut wire, b"hello world", 4);
        wire.extend_from_slice(b"GET /next HTTP/1.1\r\n\r\n");
        for step in 1..wire.len() {
            let (mut p, mut paths) = (RequestParser::default(), Vec::new());
            for part in wire.chunks(step) {
                p.push(part);
                while let Some(head) = p.next_request().expect("valid") {
                    paths.push(head.path);
                }
            }
            assert_eq!(paths, ["/", "/next"], "in steps of {step}");
        }
    }

    #[test]
    fn fields_and_bodies_come_to_whoever_wants_them() {
        #[derive(Default)]
        struct CollectedRequest(Vec<String>, Vec<u8>);
        impl Sink for CollectedRequest {
            fn field(&mut self, name: &str, value: &[u8]) {
                self.0.push(format!("{name}={}", String::from_utf8_lossy(value)));
            }
            fn body(&mut self, bytes: &[u8]) {
                self.1.extend_from_slice(bytes);
            }
        }
        let wire = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhelloGET";
        for step in 1..wire.len() {
            let (mut p, mut seen, mut whole) = (RequestParser::default(), CollectedRequest::default(), 0);
            for part in wire.chunks(step) {
                p.push(part);
                whole += usize::from(p.next_into(&mut seen).expect("valid").is_some());
            }
            let fields = ["Host=h".to_string(), "Content-Length=5".to_string()];
            assert_eq!((whole, seen.0.as_slice(), seen.1.as_slice()), (1, &fields[..], &b"hello"[..]));
            assert!(!p.has_head() && !p.is_empty());
        }
    }

    #[test]
    fn two_requests_in_one_piece_are_two_requests() {
        let mut p = RequestParser::default();
        p.push(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
        assert_eq!(p.next_request().expect("valid").expect("first").path, "/a");
        assert_eq!(p.next_request().expect("valid").expect("second").path, "/b");
        assert_eq!(p.next_request().expect("valid"), None);
    }
}
