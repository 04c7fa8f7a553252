//! Looks at databases from outside, by their own views: PostgreSQL, MariaDB and MySQL. Changes nothing: its sessions are
//! read-only, bounded in time, and one for each database that is looked at.
//!
//! What is sent and read is small, so that the client is small, too: blocking sockets with a deadline for each exchange, on a
//! thread of the [`DatabaseWatcher`] that nobody waits for. Of PostgreSQL's protocol the messages and SCRAM are
//! `postgres-protocol`'s, without the asynchronous runtime that the client on top of it needs; of MySQL's, three packets of
//! the text protocol are ours, because the client library would bring sixty crates for them.

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

pub use access::{Access, Password, TlsChoice, TlsMode, Way};
pub use tls::certificates;
pub use watcher::DatabaseWatcher;
