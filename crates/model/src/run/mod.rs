//! What a run leaves behind, and its JSON form `lastdrop.run/1`.
//!
//! A [`Run`] is always built from slices by [`RunBuilder`], whether they come from a run that just ended or from the
//! store after a kill, so a killed run is a shorter run and not another kind of thing.

mod agent;
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
pub use builder::RunBuilder;
pub use generator::{Generator, OtherProgram, Shortage, with_question};
pub use joined_log::JoinedLog;
pub use mark::Mark;
pub use phase::{
    Bytes, ClassReport, Connections, Expectations, FollowUpCounts, Mismatch, Pages, PhaseReport, Rate, Requests,
    Results, Second, ServerCpu,
};

use crate::kept_plan::KeptPlan;
use crate::objective::ObjectiveResult;
use crate::plan::ReplaySummary;
use crate::sample::ServerTimeline;
use crate::timeline::Timeline;
use crate::validity::Validity;

pub const RUN_SCHEMA: &str = "lastdrop.run/1";

/// How the run came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// As planned.
    Finished,
    /// By Ctrl-C or another signal, with its report.
    Interrupted,
    /// Given up early: nothing could be connected at all.
    Unreachable,
    /// The process died; the run is what the store held.
    Killed,
}

/// Processes of the server, where it runs on this machine and can be seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Process that owns the listener.
    pub master: i32,
    /// Its children when the measured phase began, and when it ended.
    pub workers_at_start: u32,
    pub workers_at_end: u32,
    /// May server and generator run on the same processors?
    pub shares_cpus: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub schema: String,
    pub id: String,
    pub seed: u64,
    /// Milliseconds since 1970, UTC.
    pub started_unix_ms: u64,
    /// What the run was for: empty, or such as `tune baseline`.
    #[serde(default)]
    pub label: String,
    pub end: End,
    pub environment: Value,
    pub plan: KeptPlan,
    pub phases: Vec<PhaseReport>,
    pub generator: Generator,
    /// The server's processes, where they could be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// The server second by second, where it runs on this machine and can be seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerTimeline>,
    pub validity: Validity,
    /// What came of the log, where one was played.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplaySummary>,
    /// What came of the server's log, where the server's time was taken from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined_log: Option<JoinedLog>,
    /// The machines that put the load on, where they were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentReport>,
    /// Moments that somebody marked who watched, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
    /// What the plan wanted to be reached, judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<ObjectiveResult>,
}

impl Run {
    /// The phase that the result is about: the first measured one.
    #[must_use]
    pub fn measured(&self) -> Option<&PhaseReport> {
        self.phases.iter().find(|p| p.measured)
    }

    /// The run without its seconds, its looks and the requests of its plan, each of which a long run has many of.
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
            server: self.server.as_ref().map(|server| ServerTimeline { looks: Timeline::default(), ..server.clone() }),
            validity: self.validity.clone(),
            replay: self.replay.clone(),
            joined_log: self.joined_log.clone(),
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
