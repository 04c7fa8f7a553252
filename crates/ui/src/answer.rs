//! Answers, each with what keeps a browser from doing more with it than to show it.

use std::io;

use lastdrop_http::request::write_field;
use lastdrop_report::html::served_policy;
use lastdrop_wire::Wire;

use crate::bounds;

/// An answer in the making.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(&'static str, String)>,
    pub body: String,
}

impl Answer {
    /// A page of ours.
    pub fn page(html: String) -> Answer {
        Answer::page_with(200, html)
    }

    pub fn page_with(status: u16, html: String) -> Answer {
        Answer { status, fields: vec![("Content-Type", "text/html; charset=utf-8".into())], body: html }
    }

    /// Nothing: whoever is not let in learns nothing.
    pub fn empty(status: u16) -> Answer {
        Answer { status, fields: Vec::new(), body: String::new() }
    }

    /// To another page of ours, by GET.
    pub fn see(path: &str) -> Answer {
        Answer { fields: vec![("Location", path.into())], ..Answer::empty(303) }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.fields.push((name, value.into()));
        self
    }

    /// Writes it; `head` leaves out the body.
    ///
    /// # Errors
    /// When it is not taken in time.
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

/// Status line and the fields that all answers have.
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
