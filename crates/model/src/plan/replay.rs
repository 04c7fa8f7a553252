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
pub struct Played {
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
