//! What a peer may ask of us.

use std::time::Duration;

/// Connections of browsers at once, a thread each; a browser has some six a host.
pub const CONNECTIONS: usize = 256;
/// Of a thread; handshakes of TLS and decoders of brotli have their memory on the heap.
pub const STACK_BYTES: usize = 1 << 20;
/// The body of a request.
pub const REQUEST_BODY_BYTES: usize = 64 << 20;
/// Bodies of requests on their way, and what is kept of all exchanges, together.
pub const HELD_BYTES: usize = 256 << 20;
/// Exchanges of a recording; a person makes some thousands an hour.
pub const EXCHANGES: usize = 20_000;
/// Of a text that a server sends so much is kept, as much as a load looks at.
pub const ANSWER_BYTES: usize = 4 << 20;
/// Lines about what happens that nobody has read yet.
pub const NOTICES: usize = 1_000;

/// A connection of a browser on which nothing is asked.
pub const IDLE: Duration = Duration::from_secs(120);
/// A handshake, or the head of a request, from its first byte.
pub const HEAD: Duration = Duration::from_secs(30);
/// The body of a request, whole.
pub const BODY: Duration = Duration::from_secs(300);
/// Connecting to one address of a server.
pub const CONNECT: Duration = Duration::from_secs(10);
/// A peer that says nothing, or takes nothing. Pages that wait for news are silent for half a minute.
pub const SILENCE: Duration = Duration::from_secs(120);
