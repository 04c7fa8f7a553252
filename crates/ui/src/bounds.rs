//! Limits on what browsers may ask for.

use std::time::Duration;

/// Open connections, each with a thread; a browser has about six.
pub const CONNECTIONS: usize = 64;
/// Connections that may wait for events.
pub const STREAMS: usize = 32;
/// Stack of a thread that renders pages.
pub const STACK_BYTES: usize = 2 << 20;
/// Request line and headers.
pub const HEAD_BYTES: usize = 16 << 10;
/// Enough for a note of 4,000 characters, each encoded in up to twelve bytes.
pub const BODY_BYTES: usize = 64 << 10;

/// Time limit for a connection between requests.
pub const IDLE: Duration = Duration::from_secs(60);
/// Time limit for the first request of a connection. Browsers connect some seconds ahead.
pub const FIRST: Duration = Duration::from_secs(10);
/// Time limit for a TLS handshake, or for a request from its first byte to its last.
pub const REQUEST: Duration = Duration::from_secs(5);
/// Time limit for sending a response or an event.
pub const ANSWER: Duration = Duration::from_secs(30);
/// How often the store is read for events; a run adds some each second.
pub const LOOK: Duration = Duration::from_millis(250);
/// Without events for this long a sign of life is sent, so that a closed connection is noticed.
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// How long a started run may take to appear in the store.
pub const START: Duration = Duration::from_secs(60);
/// How long to wait at the end for runs that were started here.
pub const END: Duration = Duration::from_secs(15);
