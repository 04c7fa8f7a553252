//! HTTP/2 (RFC 9113) as a client speaks it: bytes in, events out. No sockets, no clock, and no allocation per request
//! once a connection is warm.
//!
//! Frames and header compression are our own. A library decodes and encodes each head anew; a load generator sends the
//! same head millions of times and receives the same one back. So a head that never changes is encoded once
//! ([`head::encode_request`]) and copied, and an answer's head that equals the last one is not decoded again
//! ([`connection::Connection`]). The bounds below hold against a server that floods its client.

pub mod connection;
pub mod frame;
pub mod head;
pub mod hpack;
mod huffman;

use std::fmt;

pub use connection::{Body, Connection, ConnectionError, Event, Limits, Reset};
pub use head::{RequestHead, encode_request};

/// The first bytes of every connection.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Largest frame that we accept: the value that holds without a setting.
pub const MOST_FRAME_BYTES: usize = 16_384;
/// Most bytes of a header block as sent, and of its fields once decoded (each counted with 32 more bytes, as HPACK
/// does). Most CONTINUATION frames of a block: more are a flood (CVE-2024-27316 and its siblings).
pub const MOST_BLOCK_BYTES: usize = 64 * 1024;
pub const MOST_LIST_BYTES: usize = 256 * 1024;
pub const MOST_CONTINUATIONS: u32 = 64;
/// Most frames between two answers that bring nothing: empty DATA, PING, SETTINGS, WINDOW_UPDATE, PRIORITY, unknown.
pub const MOST_IDLE_FRAMES: u32 = 10_000;
/// Most bytes of replies (SETTINGS and PING acknowledged) that wait because the server reads none of them.
pub const MOST_REPLY_BYTES: usize = 64 * 1024;
/// Largest flow-control window.
pub const MOST_WINDOW: i64 = (1 << 31) - 1;

/// Error codes of RFC 9113 section 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    pub const NO_ERROR: ErrorCode = ErrorCode(0);
    pub const PROTOCOL: ErrorCode = ErrorCode(1);
    pub const FLOW_CONTROL: ErrorCode = ErrorCode(3);
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(5);
    pub const FRAME_SIZE: ErrorCode = ErrorCode(6);
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(7);
    pub const CANCEL: ErrorCode = ErrorCode(8);
    pub const COMPRESSION: ErrorCode = ErrorCode(9);
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(11);
    pub const HTTP_1_1_REQUIRED: ErrorCode = ErrorCode(13);
}

/// The name in the RFC; a code that has none as a number.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        match NAMES.get(self.0 as usize) {
            Some(name) => f.write_str(name),
            None => write!(f, "the unknown code {:#x}", self.0),
        }
    }
}
