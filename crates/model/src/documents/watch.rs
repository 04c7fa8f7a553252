//! `lastdrop.watch/1`: a server at one moment.

use serde::{Deserialize, Serialize};

use crate::look::{Look, WorkerLook};

pub const WATCH_SCHEMA: &str = "lastdrop.watch/1";

/// A server at one moment, as `watch` shows it; differences cover `span_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchDocument {
    pub schema: String,
    pub server: String,
    pub software: String,
    pub master: i32,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    pub workers: Vec<WorkerLook>,
    #[serde(flatten)]
    pub look: Look,
    /// What could not be read, and why.
    pub unread: Vec<String>,
    /// Processors that looking takes.
    pub cost_cores: f64,
}
