//! HTTP responses, each with headers that restrict what a browser may do with it.

use std::io;

use lastdrop_http::request::write_field;
use lastdrop_report::html::served_policy;
use lastdrop_wire::Wire;

use crate::bounds;

/// A response to be sent.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(&'static str, String)>,
    pub body: String,
}

impl Answer {
    /// A page of the web UI.
    pub fn page(html: String) -> Answer {
        Answer::page_with(200, html)
    }

    pub fn page_with(status: u16, html: String) -> Answer {
        Answer { status, fields: vec![("Content-Type", "text/html; charset=utf-8".into())], body: html }
    }

    /// An empty body, so that an unauthenticated client learns nothing.
    pub fn empty(status: u16) -> Answer {
        Answer { status, fields: Vec::new(), body: String::new() }
    }

    /// Redirects to another page of the UI, by GET.
    pub fn see(path: &str) -> Answer {
        Answer { fields: vec![("Location", path.into())], ..Answer::empty(303) }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.fields.push((name, value.into()));
        self
    }

    /// Sends the response; `head` leaves out the body.
    ///
    /// # Errors
    /// If the client does not take it in time.
    pub fn write(&self, wire: &mut Wire, keep: bool, head: bool) -> io::Result<()> {
        let mut bytes = begun(self.status);
        for (name, value) in &self.fields {
            write_field(&mut bytes, name, value.as_bytes());
        }
        write_field(&mut bytes, "Content-Length", self.body.len().to_string().as_bytes());
        write_field(&mut bytes, "Connection", if keep { b"keep-alive" } else { b"close" });
        bytes.extend_from_slice(b"\r\n");
        if !head {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        wire.within(bounds::ANSWER);
        wire.write(&bytes)
    }
}

/// Returns the status line and the headers that all responses have.
pub fn begun(status: u16) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status} \r\n").into_bytes();
    let policy = served_policy();
    for (name, value) in [
        ("Content-Security-Policy", policy.as_str()),
        ("Cache-Control", "no-store"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
    ] {
        write_field(&mut bytes, name, value.as_bytes());
    }
    bytes
}
