//! What an agent of a fleet did in a run.

use serde::{Deserialize, Serialize};

use super::phase::Requests;
use crate::counts::Counts;

/// An agent's part of a run, all phases together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentReport {
    pub name: String,
    /// Everything that it did has been told. Else its requests are those of the seconds that it has told, and what its share of the
    /// schedule had after them is unsent: the server may have seen more.
    pub complete: bool,
    pub requests: Requests,
    /// Seconds of each phase that it has told.
    pub told_s: Vec<u64>,
    /// Its clock minus the coordinator's when the run began, microseconds, and how far off that may be.
    pub offset_us: i64,
    pub error_us: u64,
    /// CPU of its load threads.
    pub cpu_s: f64,
    /// Its part of the run is this one's part of all weights.
    pub weight: u32,
    /// It is on the machine that led the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub here: bool,
    /// Of a log that was played: all requests of its share up to this number were sent, and the one after it was not. None: all were.
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
