//! Why no load could be put on a server at all.

use lastdrop_model::plan::PlanError;

/// Why a load could not start at all. What happens to single requests is data, not an error.
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
    /// A server could not be asked for the version of HTTP: its origin, and why.
    #[error("{origin}: --http auto asks the server for the version before the run: {what}")]
    Agreement { origin: String, what: String },
    /// The owner of this agent does not allow connections there.
    #[error("{what} is at {address}, where this agent may not connect; start it with --allow for that address")]
    NotAllowed { what: String, address: String },
    #[error("{what}: {source}")]
    System { what: &'static str, source: std::io::Error },
    #[error("a load thread ended early: {0}; please report this")]
    Thread(String),
}
