//! How a request becomes bytes, and bytes its answer: a file or folder a version of HTTP. There is HTTP/1; 2 and 3 belong here.
//!
//! What depends on the version is asked here and nowhere else: which connection carries a stream and which streams a connection carries,
//! whether it has room for another one, whose a piece of input is, what is to be written, what a connection says and hears of its own, what
//! is left of it when a stream has ended, how many streams an open loop has, and what a TLS handshake offers.

mod h1;

pub(crate) use h1::{CONTINUE_PATIENCE_US, offered, open_bound, open_streams};
pub use h1::{Carriers, Progress, Wire};
