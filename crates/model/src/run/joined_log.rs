//! Counts of joining a run's answers with the lines of the server's log.

use serde::{Deserialize, Serialize};

/// Counts of answers and lines. Every answer whose request carried an id is either joined or without a line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JoinedLog {
    pub file: String,
    /// The given or recognised format; empty if the log had no line.
    pub format: String,
    /// Answers whose line was found.
    pub joined: u64,
    /// Answers whose line did not appear within the waiting time.
    pub without_line: u64,
    /// Lines of requests without an id of this run.
    pub others: u64,
    /// Lines that could not be parsed.
    pub unparsed: u64,
    /// Times that the log was replaced or truncated.
    pub rotations: u64,
}
