//! `lastdrop.top/1`: traffic at one moment, from a growing log or a server's status page.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::LogSpread;

pub const TOP_SCHEMA: &str = "lastdrop.top/1";

/// Traffic of the window that ends now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopDocument {
    pub schema: String,
    /// Name of the log, or of the server.
    pub source: String,
    pub unix_ms: u64,
    /// Seconds covered: since the start, at most the window.
    pub window_s: f64,
    /// Requests per second since the previous document.
    pub rps: f64,
    pub bytes_per_s: f64,
    /// Requests in the window, like all counts below.
    pub requests: u64,
    /// Answers with status 500 or above.
    pub server_errors: u64,
    /// Answers by status class: `2xx`.
    pub status: BTreeMap<String, u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_time_us: Option<LogSpread>,
    /// The slowest first if times are known, otherwise the most frequent.
    pub classes: Vec<TopGroup>,
    /// The most frequent first.
    pub clients: Vec<TopGroup>,
    /// False if there were more classes or clients than are counted separately.
    pub exact: bool,
    /// Since the start: lines that could not be parsed, and rotations or truncations of the log.
    pub unparsed: u64,
    pub rotations: u64,
    /// By a server's status page: busy and idle workers or connections, and requests queued for a backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// True if classes and clients come only from each worker's latest request.
    pub sampled: bool,
    /// Why there is nothing new: the server does not answer, or the file cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A class of requests, or a client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopGroup {
    pub name: String,
    pub count: u64,
    /// Answers with status 400 or above.
    pub errors: u64,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_time_us: Option<LogSpread>,
}
