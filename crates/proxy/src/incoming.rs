//! Reads a whole request of a browser, within limits.

use std::time::Instant;

use lastdrop_http::{RequestHead, RequestParser, Sink};
use lastdrop_wire::Wire;

use crate::bounds;
use crate::recorder::{MemoryReservation, Recorder};

/// A whole request.
#[derive(Debug)]
pub struct Request<'a> {
    pub head: RequestHead,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    _held: MemoryReservation<'a>,
}

impl Request<'_> {
    /// The first field of a name.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        field(&self.fields, name)
    }

    /// The first field of a name as text, if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.field(name).and_then(|value| str::from_utf8(value).ok())
    }
}

pub fn field<'a>(fields: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a [u8]> {
    fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_slice())
}

/// Why there is no request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestError {
    /// The connection has ended, and no request was begun.
    Over,
    /// The connection ended, or fell silent, within a request.
    Torn,
    /// The request is refused with this status.
    Refused(u16, String),
}

struct RequestCollector<'a> {
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    held: MemoryReservation<'a>,
    too_large: bool,
    no_memory: bool,
}

impl Sink for RequestCollector<'_> {
    fn field(&mut self, name: &str, value: &[u8]) {
        self.fields.push((name.to_string(), value.to_vec()));
    }

    fn body(&mut self, bytes: &[u8]) {
        self.too_large |= self.body.len() + bytes.len() > bounds::REQUEST_BODY_BYTES;
        self.no_memory |= !self.too_large && !self.held.grow(bytes.len());
        if !self.too_large && !self.no_memory {
            self.body.extend_from_slice(bytes);
        }
    }
}

/// Reads the next request of a connection; bytes after it stay in the parser.
///
/// # Errors
/// What to do about the failure.
pub fn read<'a>(
    wire: &mut Wire,
    parser: &mut RequestParser,
    recorder: &'a Recorder,
) -> Result<Request<'a>, RequestError> {
    let refused = |status: u16, why: &str| Err(RequestError::Refused(status, why.to_string()));
    let Some(held) = recorder.hold(0) else { return refused(503, "there is no memory for a request") };
    let mut incoming =
        RequestCollector { fields: Vec::new(), body: Vec::new(), held, too_large: false, no_memory: false };
    let (mut head_until, mut body_until) = (None, None);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        match parser.next_into(&mut incoming) {
            Err(e) => return refused(400, e.0),
            Ok(_) if incoming.too_large => return refused(413, "a body of more than 64 MB"),
            Ok(_) if incoming.no_memory => return refused(503, "there is no memory for its body"),
            Ok(Some(head)) => {
                let RequestCollector { fields, body, held, .. } = incoming;
                return Ok(Request { head, fields, body, _held: held });
            }
            Ok(None) => {}
        }
        if parser.has_head() && body_until.is_none() {
            body_until = Some(Instant::now() + bounds::BODY);
            let coding = field(&incoming.fields, "transfer-encoding");
            if coding.is_some_and(|c| !c.trim_ascii().eq_ignore_ascii_case(b"chunked")) {
                return refused(501, "a body in an unknown coding");
            }
            if field(&incoming.fields, "expect").is_some_and(|e| e.eq_ignore_ascii_case(b"100-continue")) {
                wire.within(bounds::SILENCE);
                wire.write(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(|_| RequestError::Torn)?;
            }
        }
        let begun = !parser.is_empty();
        if begun && head_until.is_none() {
            head_until = Some(Instant::now() + bounds::HEAD);
        }
        wire.until(body_until.or(head_until).unwrap_or_else(|| Instant::now() + bounds::IDLE));
        match wire.read(&mut buffer) {
            Ok(0) | Err(_) => return Err(if begun { RequestError::Torn } else { RequestError::Over }),
            Ok(n) => parser.push(&buffer[..n]),
        }
    }
}
