//! What a browser may ask of us.

use std::time::Duration;

/// Connections at once, a thread each; a browser has some six.
pub const CONNECTIONS: usize = 64;
/// Of them so many may wait for news.
pub const STREAMS: usize = 32;
/// Of a thread, which renders pages.
pub const STACK_BYTES: usize = 2 << 20;
/// Request line and fields.
pub const HEAD_BYTES: usize = 16 << 10;
/// A note of 4,000 characters, each of which may be twelve bytes on its way.
pub const BODY_BYTES: usize = 64 << 10;

/// A connection on which nothing is asked any more.
pub const IDLE: Duration = Duration::from_secs(60);
/// One on which nothing has been asked yet. Browsers connect some seconds ahead.
pub const FIRST: Duration = Duration::from_secs(10);
/// A handshake, or a whole request, from its first byte.
pub const REQUEST: Duration = Duration::from_secs(5);
/// An answer, or a piece of news, on its way out.
pub const ANSWER: Duration = Duration::from_secs(30);
/// How often is looked for news in the store, which gets some each second.
pub const LOOK: Duration = Duration::from_millis(250);
/// After so long without news something is sent all the same: who has left is noticed then.
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// How long a run that was started may take to appear in the store.
pub const START: Duration = Duration::from_secs(60);
/// How long is waited at the end for runs that were started here.
pub const END: Duration = Duration::from_secs(15);
