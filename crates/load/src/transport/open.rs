//! A connection is made: the socket, then TLS.

use std::io;

/// An error of the system without its number: "Connection refused" of "Connection refused (os error 111)".
#[must_use]
pub fn describe(e: &io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
