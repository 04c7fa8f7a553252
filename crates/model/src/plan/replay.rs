//! Replay of logged requests: where they come from, and when they are sent again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The logs to replay, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// File names of the logs.
    pub logs: Vec<String>,
    pub pace: Pace,
    /// File with the requests, for a run on other machines. It exists only during the run and is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tape: Option<PathBuf>,
    /// Typical answers in the log to each request of the plan, from the log's beginning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usual: Vec<UsualAnswer>,
}

/// Typical answers in a log to the requests of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsualAnswer {
    /// The most frequent status; 0 if the log has none.
    pub status: u16,
    /// Size of good answers (2xx) in bytes, p5 and p95, with or without the head as the log records it. `None` if the
    /// log has no sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<(u64, u64)>,
}

impl UsualAnswer {
    /// Returns true if the size of a good answer is far from the log's: below ¼ of p5 or above 4 × p95, both with and
    /// without the head.
    #[must_use]
    pub fn is_far(&self, head_bytes: u64, body_bytes: u64) -> bool {
        let Some((p5, p95)) = self.bytes else { return false };
        let far = |bytes: u64| bytes < p5 / 4 || bytes > p95.saturating_mul(4);
        far(body_bytes) && far(head_bytes + body_bytes)
    }
}

/// When requests are sent again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// At their original times, `speed` times as fast.
    Original { speed: f64 },
    /// In the log's order, at the plan's rate.
    Rate,
    /// Each user replays one client of the log, identified by `by`, and waits for each answer before the next request.
    Sessions { by: String },
}

/// Counts of a replayed log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplaySummary {
    /// Lines read, and those of them that could not be parsed.
    pub lines: u64,
    pub unparsed: u64,
    /// Requests read. Of these:
    pub requests: u64,
    /// skipped because they come before `--from`,
    pub skipped: u64,
    /// left out because their method may change data and the user did not allow it,
    pub unsafe_left_out: u64,
    /// unusable: no target, or no method.
    pub unusable: u64,
    /// Out of order by more than the window; sent at once.
    pub late: u64,
    /// Requests of the log that are done; `--from` this number continues.
    pub next: u64,
    /// The first lines that could not be parsed: where, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<String>,
}
