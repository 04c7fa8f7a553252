//! `lastdrop.log/1`: what an access log tells.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

pub const LOG_SCHEMA: &str = "lastdrop.log/1";

/// What `replay --analyse` finds. Times of day are seconds since 1970, others µs unless they say so. `lines` is the sum of `requests`,
/// `ignored` and `unparsed`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogDocument {
    pub schema: String,
    pub files: Vec<LogFile>,
    pub lines: u64,
    pub requests: u64,
    /// Blank lines, comments, TCP in a log of HAProxy.
    pub ignored: u64,
    /// Lines that were not understood, those of `too_long` and `torn` among them.
    pub unparsed: u64,
    pub too_long: u64,
    pub torn: u64,
    /// Out of order by more than the window.
    pub late: u64,
    /// With a time far ahead of their neighbours', which they were given instead.
    pub clock_jumps: u64,
    /// Files that break off.
    pub damaged: Vec<String>,
    /// The first of the lines that were not understood.
    pub rejected: Vec<LogRejected>,
    /// From the first request to the last.
    pub seconds: f64,
    pub begin_unix_s: f64,
    pub end_unix_s: f64,
    /// What times are a multiple of.
    pub resolution_us: u64,
    pub rate: LogRate,
    pub arrivals: LogArrivals,
    pub status: BTreeMap<String, u64>,
    pub methods: BTreeMap<String, u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<LogSpread>,
    /// The most frequent first; the last may be `(other)`: all that there is no room for.
    pub classes: Vec<LogClass>,
    /// The most frequent first.
    pub clients: Vec<LogClient>,
    /// Requests of the clients that are not listed.
    pub other_clients: u64,
    /// False where there were more classes or clients than are counted one by one: counts are then at least so many.
    pub exact: bool,
    pub sessions: LogSessions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think_us: Option<LogSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_time_us: Option<LogSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_time_us: Option<LogSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_time_us: Option<LogSpread>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LogFile {
    pub file: String,
    pub format: String,
}

/// A line that was not understood.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LogRejected {
    pub file: String,
    pub line: u64,
    pub why: String,
    pub text: String,
}

/// Requests over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogRate {
    pub mean_rps: f64,
    /// The busiest second.
    pub peak: LogMoment,
    pub busiest_minute: LogMoment,
    pub start_unix_s: i64,
    /// What each of the counts is of: 1 s, more in a log of more than an hour.
    pub step_s: u64,
    pub counts: Vec<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LogMoment {
    pub unix_s: i64,
    pub rps: f64,
}

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalsLaw {
    /// Evenly spaced.
    Uniform,
    /// Each without regard to the others.
    Poisson,
    /// Several together.
    Bursts,
}

impl ArrivalsLaw {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ArrivalsLaw::Uniform => "uniform",
            ArrivalsLaw::Poisson => "poisson",
            ArrivalsLaw::Bursts => "bursts",
        }
    }
}

/// Counts of seconds within their minutes. All is None, or nothing, where no minute has enough requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogArrivals {
    /// Variance of the counts of seconds over their mean: 0 evenly spaced, 1 Poisson, more in bursts.
    pub dispersion: Option<f64>,
    /// The law that fits best.
    pub law: Option<ArrivalsLaw>,
    /// How well: 0 is perfectly, 1 not at all (Kolmogorov's distance).
    pub distance: Option<f64>,
    /// That of each law.
    pub distances: BTreeMap<String, f64>,
    /// So many come together by the law that fits.
    pub burst: f64,
}

/// Values in short.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LogSpread {
    pub count: u64,
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
    pub max: u64,
}

impl LogSpread {
    /// None of nothing.
    #[must_use]
    pub fn of(h: &Histogram) -> Option<LogSpread> {
        (h.count() > 0).then(|| LogSpread {
            count: h.count(),
            min: h.min(),
            mean: (h.mean() * 10.0).round() / 10.0,
            p50: h.quantile(0.5),
            p90: h.quantile(0.9),
            p95: h.quantile(0.95),
            p99: h.quantile(0.99),
            max: h.max(),
        })
    }
}

/// Requests that belong together: `GET /item/{n}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogClass {
    pub name: String,
    pub count: u64,
    /// So many more there may have been, which are with the others.
    #[serde(skip_serializing_if = "is_zero")]
    pub missed_at_most: u64,
    /// Of all requests.
    pub share: f64,
    /// By the first digit: `2xx`.
    pub status: BTreeMap<String, u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_time_us: Option<LogSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_time_us: Option<LogSpread>,
}

/// An address, and what it took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogClient {
    pub address: String,
    pub count: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub missed_at_most: u64,
    pub bytes: u64,
    /// Answers of 400 and more.
    pub errors: u64,
    /// Of the server, where the log has it.
    pub server_time_us: u64,
}

/// What one address and browser asked for until half an hour without a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSessions {
    pub count: u64,
    /// So many were counted as ended before their time, to keep memory within its bound.
    #[serde(skip_serializing_if = "is_zero")]
    pub cut: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<LogSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<LogSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<LogSpread>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes it so.
fn is_zero(n: &u64) -> bool {
    *n == 0
}
