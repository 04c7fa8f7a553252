//! Turns requests into bytes and bytes into answers: one file or folder per version of HTTP. Only HTTP/1 exists; 2 and
//! 3 belong here.
//!
//! Everything that depends on the version is decided here: which connection carries a stream, whether it has room for
//! another one, and which stream a piece of input belongs to. So are what to write, what a connection sends and
//! receives on its own, and what is left of it after a stream. So are the number of streams of an open loop, and what a
//! TLS handshake offers.

mod h1;

pub(crate) use h1::{CONTINUE_PATIENCE_US, offered, open_bound, open_streams};
pub use h1::{Carriers, HttpState, WriteProgress};
