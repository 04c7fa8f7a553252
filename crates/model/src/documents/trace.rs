//! `lastdrop.trace/1`: the system calls of a request.

use serde::{Deserialize, Serialize};

pub const TRACE_SCHEMA: &str = "lastdrop.trace/1";

/// System calls of a request, as `trace` finds them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceDocument {
    pub schema: String,
    pub server: String,
    pub url: String,
    /// Requests that were answered while it was traced.
    pub requests: u64,
    pub calls_per_request: f64,
    /// Time in calls that a request pays for, without waits.
    pub us_per_request: f64,
    /// Time that a request waits for others than its client.
    #[serde(default)]
    pub waiting_us_per_request: f64,
    /// What tracing itself added to each call, taken off where a time is tracing's: the fastest call that was seen.
    pub floor_us: f64,
    /// The costliest first.
    pub calls: Vec<TraceRow>,
    /// What requests wait for, the longest first: the same calls by what they are for.
    #[serde(default)]
    pub waiting: Vec<TraceWait>,
    /// What is worth a word, the costliest first.
    pub kinds: Vec<TraceKind>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceRow {
    pub call: String,
    /// The file or the peer; `client` is the connection that the request came over.
    pub path: String,
    pub per_request: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub us_per_request: f64,
    /// The time is tracing's: the median less the floor. Calls on files are timed again without it.
    pub traced: bool,
    /// The time is spent waiting, and in no sum but that of the waits. It is the mean, less the floor.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
}

/// Calls in which a request waits for the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceWait {
    pub call: String,
    /// `peer`, `lock`, `file`, `pipe`, `child`, `futex`, `semaphore`, `sleep`, `event`.
    pub what: String,
    /// The address, path or file; empty where the call does not tell.
    pub peer: String,
    /// The program at the other end, where it is on this machine and can be seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// What it speaks, where program, port or path is a known one: `mysql`, `redis`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    pub per_request: f64,
    pub us_per_request: f64,
}

/// Calls that have a common cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceKind {
    /// `htaccess`, `virtual-path`, `missing-file`, `missing-lookup`, `path-components`, `source-files`, `dns`,
    /// `new-connection`, `database-round-trips`.
    pub kind: String,
    /// Calls; of `database-round-trips` the round trips.
    pub per_request: f64,
    pub us_per_request: f64,
    pub title: String,
    /// Empty where what would spare them is not sure.
    pub advice: String,
}
