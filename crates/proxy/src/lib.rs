//! A proxy between a browser and a server that records their exchanges, for `record`.
//!
//! It listens only on loopback and has two modes. *Reverse*: it represents one server, and changes only what would take
//! the browser away from it (`rewrite`). *Forward*: the browser is configured to use it, and it passes requests on to
//! hosts that the user named. For https it uses certificates of an [`Authority`] that lives as long as the recording.
//! The recording always contains what the server was asked and what it answered, so that a plan can address the server
//! itself.
//!
//! It records one user. Each connection has a thread, with blocking sockets and a deadline for each exchange of bytes.
//! Each request has its own connection to the server, so that none is lost on a connection that the server has closed.
//! Either peer may be hostile: every size, count and time has a limit in `bounds`.

mod anonymous;
mod authority;
mod bounds;
mod connection;
mod exchange;
mod folder;
mod incoming;
mod listener;
mod recorder;
mod relay;
mod rewrite;
mod upstream;

/// The TLS configuration for connections to servers.
pub type ServerTls = std::sync::Arc<rustls::ClientConfig>;

pub use anonymous::ask_without_cookies;
pub use authority::{Authority, AuthorityError};
pub use folder::remove_leftovers;
pub use listener::{Proxy, ProxyError, ProxyMode};
pub use recorder::{Notice, Recorder};
