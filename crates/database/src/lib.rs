//! Observes databases from outside, by their own views: PostgreSQL, MariaDB and MySQL. It changes nothing: each
//! database gets one session, which is read-only and bounded in time.
//!
//! Requests and responses are small, so the client is small too: blocking sockets with a deadline for each exchange, on
//! a thread of the [`DatabaseWatcher`] that blocks no caller. PostgreSQL's messages and SCRAM come from
//! `postgres-protocol`, without the asynchronous runtime that its client needs. Three packets of MySQL's text protocol
//! are written here, because the client library would bring sixty crates.

mod access;
mod failure;
mod fold;
#[cfg(test)]
mod hostile;
mod mysql;
mod mysql_views;
mod postgres_views;
mod postgresql;
mod stream;
mod tls;
mod views;
mod watcher;
mod window;

pub use access::{Access, DatabaseAddress, Password, TlsChoice, TlsMode};
pub use tls::certificates;
pub use watcher::DatabaseWatcher;
