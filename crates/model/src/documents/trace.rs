//! `lastdrop.trace/1`: the system calls per request.

use serde::{Deserialize, Serialize};

pub const TRACE_SCHEMA: &str = "lastdrop.trace/1";

/// System calls per request, from the command `trace`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceDocument {
    pub schema: String,
    pub server: String,
    pub url: String,
    /// Requests answered while the server was traced.
    pub requests: u64,
    pub calls_per_request: f64,
    /// Time per request in system calls, without waits.
    pub us_per_request: f64,
    /// Time per request waiting for anything but its client.
    #[serde(default)]
    pub waiting_us_per_request: f64,
    /// Overhead of tracing per call: the fastest call. It is subtracted from times measured by tracing.
    pub floor_us: f64,
    /// The costliest first.
    pub calls: Vec<TraceRow>,
    /// What requests wait for, the longest wait first; the same calls, grouped by what they wait for.
    #[serde(default)]
    pub waiting: Vec<TraceWait>,
    /// Notable groups of calls, the costliest first.
    pub kinds: Vec<TraceKind>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceRow {
    pub call: String,
    /// The file or the peer; `client` is the connection of the request.
    pub path: String,
    pub per_request: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub us_per_request: f64,
    /// True if the time was measured by tracing: the median minus the floor. Calls on files are timed again without
    /// tracing.
    pub traced: bool,
    /// True if the call waits. Its time is the mean minus the floor, and is counted only as waiting.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// Calls in which a request waits for the same thing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceWait {
    pub call: String,
    /// `peer`, `lock`, `file`, `pipe`, `child`, `futex`, `semaphore`, `sleep`, `event`.
    pub what: String,
    /// The address, path or file; empty if the call does not show it.
    pub peer: String,
    /// The program at the other end, if it is on this machine and visible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Its protocol, if the program, port or path is known: `mysql`, `redis`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    pub per_request: f64,
    pub us_per_request: f64,
}

/// Calls with a common cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceKind {
    /// `htaccess`, `virtual-path`, `missing-file`, `missing-lookup`, `path-components`, `source-files`, `dns`,
    /// `new-connection`, `database-round-trips`.
    pub kind: String,
    /// Calls; for `database-round-trips`, round trips.
    pub per_request: f64,
    pub us_per_request: f64,
    pub title: String,
    /// How to avoid them; empty if that is uncertain.
    pub advice: String,
}
