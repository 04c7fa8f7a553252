//! The result of a run, and its JSON form `lastdrop.run/1`.
//!
//! [`RunBuilder`] always builds a [`Run`] from slices, from a run that just ended or, after a kill, from the store.
//! A killed run is therefore an ordinary, shorter run.

mod agent;
mod anatomy;
mod builder;
mod by_class;
mod generator;
mod joined_log;
mod mark;
mod phase;
mod summary;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use agent::AgentReport;
pub use anatomy::{Anatomy, AnatomyPart, PartTime, RequestGroup};
pub use builder::RunBuilder;
pub use generator::{Generator, OtherProgram, Shortage, with_question};
pub use joined_log::JoinedLog;
pub use mark::Mark;
pub use phase::{
    Bytes, ClassReport, Connections, Expectations, FollowUpCounts, Mismatch, PageCounts, PhaseReport, Rate, Requests,
    Results, Second, ServerCpu, SlowRequest, StartingWorkers,
};

use crate::kept_plan::KeptPlan;
use crate::objective::ObjectiveResult;
use crate::plan::ReplaySummary;
use crate::sample::ServerTimeline;
use crate::timeline::Timeline;
use crate::validity::Validity;

pub const RUN_SCHEMA: &str = "lastdrop.run/1";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// As planned.
    Finished,
    /// By Ctrl-C or another signal, with its report.
    Interrupted,
    /// Given up early because no connection succeeded.
    Unreachable,
    /// The process died; the run is what the store had.
    Killed,
}

/// Processes of the server, if it runs on this machine and is visible.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// The process that owns the listener.
    pub master: i32,
    /// Its children when the measured phase began, and when it ended.
    pub workers_at_start: u32,
    pub workers_at_end: u32,
    /// True if server and generator may run on the same processors.
    pub shares_cpus: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub schema: String,
    pub id: String,
    pub seed: u64,
    /// Milliseconds since 1970, UTC.
    pub started_unix_ms: u64,
    /// Purpose of the run: empty, or for example `tune baseline`.
    #[serde(default)]
    pub label: String,
    pub end: End,
    pub environment: Value,
    pub plan: KeptPlan,
    pub phases: Vec<PhaseReport>,
    pub generator: Generator,
    /// The server's processes, if they were visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Samples of the server, if it runs on this machine and is visible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerTimeline>,
    pub validity: Validity,
    /// Counts of the replayed log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySummary>,
    /// Counts of the server's log, if it was the source of the server's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_log: Option<JoinedLog>,
    /// Where the requests spent their time, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anatomy: Option<Anatomy>,
    /// The machines that generated the load, if there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentReport>,
    /// Moments that a user marked, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// The plan's objectives with their measured values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<ObjectiveResult>,
}

impl Run {
    /// Returns the phase that the result is about: the first measured one.
    #[must_use]
    pub fn measured(&self) -> Option<&PhaseReport> {
        self.phases.iter().find(|p| p.measured)
    }

    /// Returns the run without its seconds, its samples and the requests of its plan, which a long run has many of.
    #[must_use]
    pub fn without_lists(&self) -> Run {
        let brief = |phase: &PhaseReport| PhaseReport { seconds: Timeline::default(), ..phase.clone() };
        Run {
            schema: self.schema.clone(),
            id: self.id.clone(),
            seed: self.seed,
            started_unix_ms: self.started_unix_ms,
            label: self.label.clone(),
            end: self.end,
            environment: self.environment.clone(),
            plan: self.plan.without_requests(),
            phases: self.phases.iter().map(brief).collect(),
            generator: self.generator.clone(),
            pool: self.pool.clone(),
            server: self
                .server
                .as_ref()
                .map(|server| ServerTimeline { samples: Timeline::default(), ..server.clone() }),
            validity: self.validity.clone(),
            replay: self.replay.clone(),
            joined_log: self.joined_log.clone(),
            anatomy: self.anatomy.clone(),
            agents: self.agents.clone(),
            marks: self.marks.clone(),
            objectives: self.objectives.clone(),
        }
    }

    #[must_use]
    pub fn answered_anything(&self) -> bool {
        self.phases.iter().any(|p| p.requests.answered > 0)
    }
}
