//! `top`: what a growing log or a server's status tells at a moment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::LogSpread;

pub const TOP_SCHEMA: &str = "lastdrop.top/1";

/// The window that ends now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopDocument {
    pub schema: String,
    /// The log, or the server.
    pub source: String,
    pub unix_ms: u64,
    /// Since the start, or as long as the window is.
    pub window_s: f64,
    /// Requests since the last look, a second.
    pub rps: f64,
    pub bytes_per_s: f64,
    /// Of the window, as are all counts below.
    pub requests: u64,
    /// Answers of 500 and more.
    pub server_errors: u64,
    /// By the first digit: `2xx`.
    pub status: BTreeMap<String, u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_time_us: Option<LogSpread>,
    /// The slowest first, where times are known; else the most frequent.
    pub classes: Vec<TopGroup>,
    /// The most frequent first.
    pub clients: Vec<TopGroup>,
    /// False where there was no room to count all classes and clients one by one.
    pub exact: bool,
    /// Since the start: lines that are no requests of the log's format, and how often the log was rotated or truncated.
    pub unparsed: u64,
    pub rotations: u64,
    /// Of a server's status: workers or connections at work and free, requests that wait for a server behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// Classes and clients are known only of each worker's latest request.
    pub sampled: bool,
    /// Why there is nothing new: the server does not answer, the file cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A class of requests, or a client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopGroup {
    pub name: String,
    pub count: u64,
    /// Answers of 400 and more.
    pub errors: u64,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_time_us: Option<LogSpread>,
}
