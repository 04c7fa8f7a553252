//! Events of an experiment in the order in which they happen: load, samples and decisions as one stream.
//!
//! Observers (`lab::Observer`) receive each event as it happens. The events of a run contain all that its report needs,
//! so that every report can be made again from them. An event borrows its contents: a second has thirteen histograms,
//! and only an observer that keeps them should pay for copies. An event read from JSON owns its contents.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::documents::{
    CapacityDocument, CapacityStep, CompareBlock, CompareDocument, FitPoint, SharingPoint, SizeDocument, StaircaseStep,
    SweepDocument, SweepRow, Trial, TuneDocument, UserMetrics,
};
use crate::run::{ClassReport, Mark};
use crate::settings::describe;
use crate::{Exchange, KeptPlan, Micros, Reason, Run, Sample, Settings, Slice};

/// One event of an experiment.
// Events are passed by reference, one at a time, so the size of the largest variant costs nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// A run begins. All events up to [`Event::Ended`] or [`Event::Failed`] are part of it.
    Began {
        id: Cow<'a, str>,
        started_unix_ms: u64,
        label: Cow<'a, str>,
        plan: Cow<'a, KeptPlan>,
        environment: Cow<'a, Value>,
    },
    /// A second has passed. Seconds of a phase come in order, each once.
    Second { slice: Cow<'a, Slice> },
    /// A sample of the server.
    #[serde(rename = "look")]
    Sample {
        #[serde(rename = "look")]
        sample: Cow<'a, Sample>,
    },
    /// A user who watches the run has marked a moment.
    Mark { mark: Cow<'a, Mark> },
    /// Requests that have ended, if an observer wants every request.
    Exchanges { exchanges: Cow<'a, [Exchange]> },
    /// Intermediate results of a phase by class, sent now and then if there are several classes.
    Classes { phase: usize, classes: Cow<'a, [ClassReport]> },
    /// A phase has ended: the time until nothing more came due, and the most connections open at once.
    PhaseEnd { phase: usize, duration_us: Micros, peak: u64 },
    /// A validity rule fired for the run that has ended.
    Finding { reason: Cow<'a, Reason> },
    /// The run has ended and was judged.
    Ended { run: Cow<'a, Run> },
    /// No load could be generated at all.
    Failed { why: Cow<'a, str> },

    /// A new stage of the experiment: the purpose of the following trials.
    Stage { stage: Stage },
    /// An experiment begins; `what` says in words what it is to show.
    Experiment { what: Cow<'a, str> },
    /// A trial begins; its runs follow.
    TrialBegan { trial: TrialBegan<'a> },
    /// A trial has ended.
    TrialDone { outcome: Outcome<'a> },
    /// The leading candidate so far, in an experiment that compares candidates.
    Leading { lead: Lead<'a> },
    /// The limits that the evidence so far points to, and those that it rules out.
    Suspicion { suspicion: Suspicion<'a> },
    /// A measurement is repeated.
    Repeated { what: RepeatScope, rule: Cow<'a, str>, why: Cow<'a, str> },
    /// The experiment deviates from what was asked for or done before.
    Decided {
        what: ExperimentDecision,
        #[serde(rename = "because")]
        reason: Cow<'a, str>,
    },
    /// The server's memory was measured, and how many workers fit.
    Sized { size: Cow<'a, SizeDocument> },
    /// Warm-up of a fresh pool: how many of its workers have answered a request.
    Warmed { answered: u64, workers: u64 },
    /// The experiment waits until the server has recovered from its overload.
    Recovering,
    /// The server's original configuration is restored.
    Restoring,
    /// The better settings are persisted.
    Keeping { settings: Cow<'a, Settings> },
    /// Metrics of the servers' real users in the latest second, in an experiment without load.
    Visited { seen: Cow<'a, UserMetrics> },
    /// The experiment has ended.
    Concluded { document: Document<'a> },

    /// An event of a guarded pool.
    Guard { seen: GuardEvent },
}

/// The purpose of several trials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Search,
    /// Tests KeepAlive with clients that reuse connections.
    KeepAlive,
    Race,
    /// Holds the winner's rate once more.
    Hold,
    /// Changes one setting at a time, judged by the latency of real visitors.
    Steps,
    /// Measures the servers before the better settings are left in force.
    Before,
    /// Watches the servers with the better settings in force.
    Watch,
}

/// Description of a trial that begins.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialBegan<'a> {
    /// From 1.
    pub number: u64,
    /// The number of trials, if known.
    pub of: Option<u64>,
    /// From 1, if there are several rounds.
    pub round: Option<u32>,
    /// `baseline`, `search`, `advice`, `race`, `sweep` or `variant`.
    pub role: Cow<'a, str>,
    /// Name of the variant or series.
    pub series: Cow<'a, str>,
    /// Settings that the trial changes.
    pub settings: Cow<'a, Settings>,
    /// Directives that it puts into the configuration.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub directives: Cow<'a, str>,
    pub users: u32,
    pub requests: Option<u64>,
    pub duration: Option<Duration>,
    /// URL with its secrets hidden.
    pub url: Cow<'a, str>,
}

impl TrialBegan<'_> {
    /// What differs from the server as it is, as text.
    #[must_use]
    pub fn changes(&self) -> String {
        match (self.settings.is_empty(), self.directives.is_empty()) {
            (_, true) => describe(&self.settings),
            (true, false) => self.directives.to_string(),
            (false, false) => format!("{}, {}", describe(&self.settings), self.directives),
        }
    }
}

/// Result of a trial.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome<'a> {
    /// A trial of a tune.
    Tune {
        trial: Cow<'a, Trial>,
    },
    Sweep {
        row: Cow<'a, SweepRow>,
    },
    /// One step of the closed-loop staircase.
    Stair {
        stair: Cow<'a, StaircaseStep>,
    },
    /// One rate of a capacity search.
    Capacity {
        step: Cow<'a, CapacityStep>,
    },
    Compare {
        number: u64,
        of: u64,
        block: Cow<'a, CompareBlock>,
    },
    /// Memory of workers after more requests.
    Age {
        workers: u64,
        step: u32,
        of: u32,
        point: SharingPoint,
    },
    /// Memory of a smaller pool whose workers have served the same number of requests.
    Pool {
        workers: u64,
        requests: f64,
        point: FitPoint,
    },
}

/// The leading candidate of a comparison, and by how much it leads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Lead<'a> {
    /// Settings, or the side of a comparison.
    pub what: Cow<'a, str>,
    pub ratio: f64,
    /// 95 % interval; `None` while there is too little data.
    pub interval: Option<[f64; 2]>,
    /// The quantity that the ratio multiplies: `the throughput`.
    pub times: Cow<'a, str>,
    /// The data behind it, in words: `4 pairs`, `3 trials`.
    pub rests_on: Cow<'a, str>,
}

/// State of a diagnosis: each limit is suspected, excluded, or open because no evidence is available yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion<'a> {
    /// The suspect that explains the others comes first.
    pub suspects: Cow<'a, [Suspect]>,
    /// Ids of findings.
    pub excluded: Cow<'a, [String]>,
}

/// A finding that the evidence points to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub id: String,
    pub title: String,
    /// The strongest evidence, with its name: `processors busy 1.98`.
    #[serde(rename = "because")]
    pub reason: String,
    /// Percent.
    pub confidence: u8,
}

/// The part of an experiment that is measured again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatScope {
    Run,
    /// A rate that failed while the machine was disturbed.
    Rate,
}

/// A decision that an experiment made on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExperimentDecision {
    /// Disturbed measurements are no longer repeated.
    RepeatNoMore,
    LongerBlocks,
    /// Settings are rolled back because they made the server worse.
    GoBack,
}

/// Result document of an experiment of several runs.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Document<'a> {
    Capacity { found: Cow<'a, CapacityDocument> },
    Compare { found: Cow<'a, CompareDocument> },
    Size { found: Cow<'a, SizeDocument> },
    Sweep { found: Cow<'a, SweepDocument> },
    Tune { found: Cow<'a, TuneDocument> },
}

/// An observation or action of the guard of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "guard", rename_all = "snake_case")]
pub enum GuardEvent {
    Started {
        server: String,
        workers: usize,
        act: bool,
    },
    /// The guard asked a worker to exit, or would have asked.
    Asked {
        pid: i32,
        why: String,
        requests: Option<u64>,
        age_s: f64,
        /// Real memory of the whole group, bytes.
        real_memory: Option<u64>,
        acted: bool,
    },
    /// The worker has exited.
    Left {
        pid: i32,
        after_s: f64,
    },
    /// The guard killed the worker with a signal that it cannot ignore.
    Killed {
        pid: i32,
        signal: String,
    },
    /// The master has exited, and a new one runs.
    Restarted {
        master: i32,
    },
    /// The master has exited, and no new one runs yet.
    Gone,
    /// No status page reports what the workers do.
    NoStatus,
    /// The status page did not answer.
    Blind {
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunBuilder;
    use crate::{Counts, Kind, Plan};

    fn read_back(event: &Event<'_>) -> Event<'static> {
        crate::read_json(&serde_json::to_string(event).expect("JSON")).expect("own output")
    }

    #[test]
    fn a_report_is_made_again_from_events_that_were_written_down() {
        let plan = Plan::new("http://10.0.0.1/".parse().expect("valid"), 1);
        let (mut told, mut again) = (RunBuilder::new(&plan), RunBuilder::new(&plan));
        for second in 0..3 {
            let mut slice = Slice::new(0, second);
            slice.counts = Counts { due: 100, sent: 100, answered: 99, timed_out: 1, ..Counts::default() };
            (slice.status[200], slice.status[404]) = (90, 9);
            (0..99).for_each(|i| slice.record(Kind::Response, 1000 + 100 * i));
            told.add(&slice);
            match read_back(&Event::Second { slice: Cow::Borrowed(&slice) }) {
                Event::Second { slice } => again.add(&slice),
                other => panic!("{other:?}"),
            }
        }
        for builder in [&mut told, &mut again] {
            builder.end_phase(0, 3_000_000, 10);
        }
        assert_eq!(told.into_reports(), again.into_reports());
    }

    #[test]
    fn a_run_can_be_told_without_its_secrets() {
        let plan = Plan::new("http://10.0.0.1/?token=hunter2".parse().expect("valid"), 1);
        let kept = KeptPlan::from(&plan);
        let began = Event::Began {
            id: "abc".into(),
            started_unix_ms: 5,
            label: "".into(),
            plan: Cow::Borrowed(&kept),
            environment: Cow::Owned(serde_json::json!({"cpus": 2})),
        };
        assert!(!serde_json::to_string(&began).expect("JSON").contains("hunter2"));
        match read_back(&began) {
            Event::Began { plan, started_unix_ms: 5, .. } => assert_eq!(*plan, kept),
            other => panic!("{other:?}"),
        }
    }
}
