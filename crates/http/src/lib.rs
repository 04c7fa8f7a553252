//! HTTP/1.1 as bytes in, events out: no sockets, no clock, no allocation per message on the common path.
//!
//! Both sides of the protocol live here: [`response`] for the client, [`request`] for the server and for building
//! requests. No other crate of lastdrop parses HTTP. `httparse` parses heads. The framing of bodies (RFC 9112 section
//! 6) is ours, because a load generator counts bodies without keeping them and must survive every false length.

pub mod chunked;
pub mod content;
pub mod cookies;
pub mod digest;
pub mod form;
pub mod h2;
mod lenient_head;
pub mod request;
pub mod response;
pub mod server_time;

pub use request::{RequestBuilder, RequestHead, RequestParser, build_request};
pub use response::{Feed, HeadMemory, NullSink, ResponseParser, Sink};
pub use server_time::ServerTime;

/// The peer broke the rules of HTTP; the text says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProtocolError(pub &'static str);

/// Most bytes of a request's head, of all chunk extensions or of all trailers of a body. Apache's own limit for a head
/// is about 800 KB, nginx's 32 KB. No useful answer is larger.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Most header fields in a request's head (Apache's LimitRequestFields is 100); answers with more are still read.
pub const MAX_HEADERS: usize = 100;

/// Whether `token` is among the comma-separated words of a header value, in any case.
#[must_use]
pub fn has_token(value: &[u8], token: &str) -> bool {
    if value.len() == token.len() {
        return value.eq_ignore_ascii_case(token.as_bytes());
    }
    value.split(|b| *b == b',').any(|w| w.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// Reads a Content-Length, which may be a list of equal numbers (RFC 9110 section 8.6).
pub(crate) fn content_length(value: &[u8]) -> Result<u64, ProtocolError> {
    const BAD: ProtocolError = ProtocolError("a Content-Length that is not a number");
    let mut found = None;
    for word in value.split(|b| *b == b',') {
        let word = word.trim_ascii();
        if word.is_empty() || word.len() > 18 || !word.iter().all(u8::is_ascii_digit) {
            return Err(BAD);
        }
        let n = word.iter().fold(0u64, |n, d| n * 10 + u64::from(d - b'0'));
        match found {
            Some(other) if other != n => return Err(ProtocolError("two Content-Lengths that differ")),
            _ => found = Some(n),
        }
    }
    found.ok_or(BAD)
}
