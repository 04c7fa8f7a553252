//! Puts load on a server and accounts for every request.
//!
//! One thread, one epoll loop, nothing shared on the hot path: a thread owns its connections, its arrivals and its
//! recorder, and hands over one [`Slice`](lastdrop_model::Slice) a second through a channel. Chosen over an async
//! runtime because the generator must not be the bottleneck nor the source of latency: a bare epoll client costs
//! about 7.5 µs CPU a request on loopback, hyper/tokio clients 14 to 15; io_uring gave no gain at this size.
//!
//! Every request has a *due* time that travels with it, so that time spent waiting for a stalled server is in its
//! response latency by construction and nothing has to be corrected afterwards.

mod answer;
pub mod arrivals;
mod classes;
mod clock;
mod collector;
mod connection;
mod endpoint;
mod ends;
mod event_loop;
pub mod files;
mod follow;
pub mod inspect;
mod note;
pub mod page;
mod pool;
mod ports;
mod prepare;
mod receive;
mod send;
mod server_time;
mod sys;
mod tape;
pub mod template;
mod tls;
mod users;

use lastdrop_model::plan::PlanError;

pub use answer::{AnswerParts, answer_parts};
pub use arrivals::{Arrivals, Profile};
pub use clock::RunClock;
pub use collector::{Finished, FirstAnswer, TlsFacts, run};
pub use endpoint::resolve;
pub use prepare::{Prepared, Preview, preview};
pub use send::describe;
pub use sys::thread_cpu_us;
pub use tape::{Played, Tape};
pub use tls::configs as tls_configs;

/// Why no load could be put on a server at all. What happens to single requests is data, not an error.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the host '{host}' cannot be resolved: {source}; check the spelling, or write an address")]
    Resolve { host: String, source: std::io::Error },
    /// The plan contradicts itself.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// A file that the plan names cannot be used.
    #[error("{0}")]
    File(String),
    /// A request of the plan cannot be sent: its index, and why.
    #[error("request {}: {what}", index + 1)]
    Request { index: usize, what: String },
    #[error("{0}")]
    Tls(String),
    #[error("{what}: {source}")]
    System { what: &'static str, source: std::io::Error },
    #[error("a load thread ended early: {0}; please report this")]
    Thread(String),
}
