//! Limits on what a peer may demand of the proxy.

use std::time::Duration;

/// Connections of browsers at once, each with a thread; a browser uses about six per host.
pub const CONNECTIONS: usize = 256;
/// Stack of a thread; TLS handshakes and brotli decoders keep their memory on the heap.
pub const STACK_BYTES: usize = 1 << 20;
/// The body of a request.
pub const REQUEST_BODY_BYTES: usize = 64 << 20;
/// Request bodies in transit and everything kept of all exchanges, together.
pub const HELD_BYTES: usize = 256 << 20;
/// Exchanges of a recording; a person makes some thousands per hour.
pub const EXCHANGES: usize = 20_000;
/// Kept bytes of a text from a server, as many as the load engine inspects.
pub const ANSWER_BYTES: usize = 4 << 20;
/// Notices that have not been read yet.
pub const NOTICES: usize = 1_000;

/// An idle connection of a browser.
pub const IDLE: Duration = Duration::from_secs(120);
/// A handshake, or the head of a request, from its first byte.
pub const HEAD: Duration = Duration::from_secs(30);
/// The whole body of a request.
pub const BODY: Duration = Duration::from_secs(300);
/// Connecting to one address of a server.
pub const CONNECT: Duration = Duration::from_secs(10);
/// Silence of a peer that neither sends nor reads. Long-polling pages are silent for half a minute.
pub const SILENCE: Duration = Duration::from_secs(120);
