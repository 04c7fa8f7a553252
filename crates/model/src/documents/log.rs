//! `lastdrop.log/1`: the analysis of an access log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

pub const LOG_SCHEMA: &str = "lastdrop.log/1";

/// Results of `replay --analyse`. Times of day are seconds since 1970; other times are µs unless a name says otherwise.
/// `lines` is the sum of `requests`, `ignored` and `unparsed`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogDocument {
    pub schema: String,
    pub files: Vec<LogFile>,
    pub lines: u64,
    pub requests: u64,
    /// Blank lines, comments, and TCP lines of an HAProxy log.
    pub ignored: u64,
    /// Lines that could not be parsed, including `too_long` and `torn`.
    pub unparsed: u64,
    pub too_long: u64,
    pub torn: u64,
    /// Lines out of order by more than the window.
    pub late: u64,
    /// Lines with a time far ahead of their neighbours'; they get their neighbours' time.
    pub clock_jumps: u64,
    /// Files that end in the middle.
    pub damaged: Vec<String>,
    /// The first lines that could not be parsed.
    pub rejected: Vec<LogRejected>,
    /// Seconds from the first request to the last.
    pub seconds: f64,
    pub begin_unix_s: f64,
    pub end_unix_s: f64,
    /// Resolution of the log's times.
    pub resolution_us: u64,
    pub rate: LogRate,
    pub arrivals: LogArrivals,
    pub status: BTreeMap<String, u64>,
    pub methods: BTreeMap<String, u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_bytes: Option<LogSpread>,
    /// The most frequent class first. The last may be `(other)`, which holds the classes beyond the limit.
    pub classes: Vec<LogClass>,
    /// The most frequent first.
    pub clients: Vec<LogClient>,
    /// Requests of clients that are not listed.
    pub other_clients: u64,
    /// False if there were more classes or clients than are counted separately; counts are then lower bounds.
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
    /// Share of the requests that a cache of all GETs would answer, by the lifetime of its answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repeats: Vec<LogRepeat>,
    pub notes: Vec<String>,
}

/// Requests for a URL that was answered with 200 and fetched less than `lifetime_s` before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LogRepeat {
    pub lifetime_s: u32,
    /// Of all requests; a lower bound.
    pub share: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LogFile {
    pub file: String,
    pub format: String,
}

/// A line that could not be parsed.
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
    /// Seconds that each count covers: 1, or more in a log longer than an hour.
    pub step_s: u64,
    pub counts: Vec<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LogMoment {
    pub unix_s: i64,
    pub rps: f64,
}

/// Law of the arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArrivalsLaw {
    /// Evenly spaced.
    Uniform,
    /// Independent of each other (Poisson).
    Poisson,
    /// In bursts.
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

/// Statistics of the per-second counts within each minute. All fields are empty if no minute has enough requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogArrivals {
    /// Variance of the per-second counts divided by their mean: 0 evenly spaced, 1 Poisson, more in bursts.
    pub dispersion: Option<f64>,
    /// The law that fits best.
    pub law: Option<ArrivalsLaw>,
    /// Its Kolmogorov distance: 0 is a perfect fit, 1 none.
    pub distance: Option<f64>,
    /// Kolmogorov distance of each law.
    pub distances: BTreeMap<String, f64>,
    /// Requests per burst by the law that fits best.
    pub burst: f64,
}

/// Summary of a distribution.
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
    /// Returns the summary of a histogram; `None` if it is empty.
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

/// A class of requests: `GET /item/{n}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogClass {
    pub name: String,
    pub count: u64,
    /// Most further requests of this class that may have been counted under the others.
    #[serde(skip_serializing_if = "is_zero")]
    pub missed_at_most: u64,
    /// Share of all requests.
    pub share: f64,
    /// Answers by status class: `2xx`.
    pub status: BTreeMap<String, u64>,
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_time_us: Option<LogSpread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_time_us: Option<LogSpread>,
}

/// A client address, and what it used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogClient {
    pub address: String,
    pub count: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub missed_at_most: u64,
    pub bytes: u64,
    /// Answers with status 400 or above.
    pub errors: u64,
    /// Total server time, if the log has it.
    pub server_time_us: u64,
}

/// Sessions: the requests of one address and browser until half an hour without a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSessions {
    pub count: u64,
    /// Sessions that were ended early to bound memory.
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
