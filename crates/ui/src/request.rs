//! Reads a browser's request as a whole, within limits.

use std::time::{Duration, Instant};

use lastdrop_http::{RequestParser, Sink, form};
use lastdrop_wire::Wire;

use crate::bounds;

/// A complete request.
#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    /// The path without the query.
    pub path: String,
    pub query: Vec<(String, String)>,
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    pub keep_alive: bool,
}

impl Request {
    /// Returns a header as text if it occurs exactly once; a repeated header is ignored.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        match (found.next(), found.next()) {
            (Some((_, value)), None) => str::from_utf8(value).ok(),
            _ => None,
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(n, _)| n.eq_ignore_ascii_case(name))
    }

    /// Returns a value of the query.
    pub fn asked(&self, name: &str) -> Option<&str> {
        value(&self.query, name)
    }

    /// Returns the fields of a form.
    pub fn form(&self) -> Vec<(String, String)> {
        form::fields(&String::from_utf8_lossy(&self.body))
    }
}

/// Returns the first value of a name.
pub fn value<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

/// The reason why there is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// The connection is closed or too slow.
    Over,
    /// Refuse it with this status.
    Refused(u16),
}

#[derive(Default)]
struct IncomingRequest {
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    head_bytes: usize,
    too_large: bool,
}

impl Sink for IncomingRequest {
    fn field(&mut self, name: &str, value: &[u8]) {
        self.head_bytes += name.len() + value.len();
        self.fields.push((name.to_string(), value.to_vec()));
    }

    fn body(&mut self, bytes: &[u8]) {
        self.too_large |= self.body.len() + bytes.len() > bounds::BODY_BYTES;
        if !self.too_large {
            self.body.extend_from_slice(bytes);
        }
    }
}

/// Reads the next request of a connection, waiting at most `wait` for it to begin; further bytes stay in the
/// parser.
///
/// # Errors
/// Says how to react.
pub fn read(wire: &mut Wire, parser: &mut RequestParser, wait: Duration) -> Result<Request, RequestError> {
    let mut incoming = IncomingRequest::default();
    let idle_until = Instant::now() + wait;
    let mut until = None;
    let mut head_bytes = 0;
    let mut buffer = [0; 4096];
    loop {
        match parser.next_into(&mut incoming) {
            Err(_) => return Err(RequestError::Refused(400)),
            Ok(_) if incoming.too_large => return Err(RequestError::Refused(413)),
            // The last bytes of an oversized head may arrive together with its end.
            Ok(Some(head)) if head.path.len() + incoming.head_bytes > bounds::HEAD_BYTES => {
                return Err(RequestError::Refused(431));
            }
            Ok(Some(head)) => {
                let (path, query) = head.path.split_once('?').unwrap_or((&head.path, ""));
                return Ok(Request {
                    method: head.method,
                    path: path.to_string(),
                    query: form::fields(query),
                    fields: incoming.fields,
                    body: incoming.body,
                    keep_alive: head.keep_alive,
                });
            }
            Ok(None) if head_bytes > bounds::HEAD_BYTES && !parser.has_head() => {
                return Err(RequestError::Refused(431));
            }
            Ok(None) => {}
        }
        if until.is_none() && !parser.is_empty() {
            until = Some(Instant::now() + bounds::REQUEST);
        }
        wire.until(until.unwrap_or(idle_until));
        match wire.read(&mut buffer) {
            Ok(0) | Err(_) => return Err(RequestError::Over),
            Ok(n) => {
                head_bytes += if parser.has_head() { 0 } else { n };
                parser.push(&buffer[..n]);
            }
        }
    }
}
