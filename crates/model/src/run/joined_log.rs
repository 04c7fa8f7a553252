//! What came of joining a run's answers with the lines of the server's log.

use serde::{Deserialize, Serialize};

/// Answers and lines. Every answer whose request carried an id is joined or without a line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JoinedLog {
    pub file: String,
    /// As it was given or recognised; empty where no line ever came.
    pub format: String,
    /// Answers whose line was found.
    pub joined: u64,
    /// Answers whose line had not come when nobody waited for it any more.
    pub without_line: u64,
    /// Lines of requests that have no id of this run.
    pub others: u64,
    /// Lines that were not understood.
    pub unparsed: u64,
    /// Times that the log was replaced or truncated.
    pub rotations: u64,
}
