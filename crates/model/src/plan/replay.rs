//! Requests of a run that somebody else made before: where they are from, and when they are sent again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What is played again, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// Names of the logs.
    pub logs: Vec<String>,
    pub pace: Pace,
    /// Its requests as a file, where they go to other machines. It is not kept: it is there for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tape: Option<PathBuf>,
    /// What the log's answers to each request of the plan are usually like, as far as its beginning says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usual: Vec<UsualAnswer>,
}

/// What a log's answers to requests of one class are usually like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsualAnswer {
    /// The most frequent status; 0 where the log has none.
    pub status: u16,
    /// The size of good answers (2xx), p5 and p95, in bytes; with or without the head, as the log has it. None where the log has no sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<(u64, u64)>,
}

impl UsualAnswer {
    /// Is a good answer with so many bytes of head and body far from what the log has? Far is below ¼ of p5 or above 4 × p95, both
    /// with and without the head.
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
    /// As they came, so many times faster.
    Original { speed: f64 },
    /// At a rate of their own, in their order.
    Rate,
    /// Each user asks for what one of theirs did, known by this, when it has the answer before.
    Sessions { by: String },
}

/// What came of a log that was played.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplaySummary {
    /// Lines that were read, and those of them that were not understood.
    pub lines: u64,
    pub unparsed: u64,
    /// Requests that were read, and of these:
    pub requests: u64,
    /// before the place from which it was played,
    pub skipped: u64,
    /// with a method that may change something, which was not asked for,
    pub unsafe_left_out: u64,
    /// that cannot be sent: no target, or no method.
    pub unusable: u64,
    /// Out of order by more than the window: sent at once.
    pub late: u64,
    /// How many requests of the log are behind: to go on, `--from` this.
    pub next: u64,
    /// Where the first lines are that were not understood, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<String>,
}
