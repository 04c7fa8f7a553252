//! The part of one agent of a fleet in a run.

use serde::{Deserialize, Serialize};

use super::phase::Requests;
use crate::counts::Counts;

/// An agent's part of a run, over all phases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentReport {
    pub name: String,
    /// True if the agent has reported everything. Otherwise `requests` covers only the reported seconds and counts the
    /// rest of its schedule as unsent; the server may have received more.
    pub complete: bool,
    pub requests: Requests,
    /// Reported seconds of each phase.
    pub told_s: Vec<u64>,
    /// Its clock minus the coordinator's when the run began, and the error bound of that, microseconds.
    pub offset_us: i64,
    pub error_us: u64,
    /// CPU time of its load threads.
    pub cpu_s: f64,
    /// Its share of the load is this weight divided by the sum of all weights.
    pub weight: u32,
    /// The agent is on the machine that coordinated the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub here: bool,
    /// Replays: every request of its share up to this number was sent, and the next was not. `None`: all were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub played_up_to: Option<u64>,
}

impl From<&Counts> for Requests {
    fn from(c: &Counts) -> Requests {
        Requests {
            due: c.due,
            unsent: c.unsent(),
            sent: c.sent,
            answered: c.answered,
            failed: c.failed,
            timed_out: c.timed_out,
            censored: c.censored(),
        }
    }
}
