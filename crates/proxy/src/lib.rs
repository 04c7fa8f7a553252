//! A proxy between a browser and a server that writes down what they say, for `record`.
//!
//! It listens on loopback alone, and knows two ways. *Reverse*: it stands for one server, and changes of its answers only what
//! would take the browser away from it (`rewrite`). *Forward*: the browser is told of it, and it passes on what is for hosts that
//! the user named, https by certificates of an [`Authority`] that lives as long as the recording. What goes into the
//! recording is always what the server was asked and what it answered, so that a plan asks the server itself.
//!
//! One user is recorded: a thread for each connection, blocking sockets with a deadline for each exchange of bytes, and a
//! connection to the server for each request, so that none is lost on one that the server has let go of. Whoever stands at either
//! end may be hostile: every size, count and time has a bound in `bounds`.

mod authority;
mod back;
mod bounds;
mod connection;
mod exchange;
mod folder;
mod incoming;
mod listener;
mod recorder;
mod rewrite;
mod stranger;
mod upstream;

/// How servers are spoken to over TLS.
pub type ServerTls = std::sync::Arc<rustls::ClientConfig>;

pub use authority::{Authority, AuthorityError};
pub use folder::remove_leftovers;
pub use listener::{Proxy, ProxyError, Way};
pub use recorder::{Notice, Recorder};
pub use stranger::ask_without_cookies;
