//! What happens in an experiment, in the order in which it happens: load, looks and decisions as one stream.
//!
//! Whoever wants to know is shown each event as it happens (`lab::Observer`). A run is what the events from its beginning to
//! its end leave behind, so that every report can be made again from them. An event lends what it is about: a second has
//! eight histograms, and nobody but who keeps them shall pay for copies. Read back from JSON it owns them.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::documents::{
    CapacityDocument, CapacityStep, CompareBlock, CompareDocument, FitPoint, SharingPoint, SizeDocument, StaircaseStep,
    SweepDocument, SweepRow, Trial, TuneDocument, UserMetrics,
};
use crate::run::{ClassReport, Mark};
use crate::{Exchange, KeptPlan, Micros, Reason, Run, Sample, Settings, Slice};

/// Something that has happened.
// Events are shown by reference, one at a time: how large the largest is costs nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// A run begins. What comes up to [`Event::Ended`] or [`Event::Failed`] is part of it.
    Began {
        id: Cow<'a, str>,
        started_unix_ms: u64,
        label: Cow<'a, str>,
        plan: Cow<'a, KeptPlan>,
        environment: Cow<'a, Value>,
    },
    /// A second has passed; seconds of a phase come in order, each once.
    Second { slice: Cow<'a, Slice> },
    /// The server was looked at.
    #[serde(rename = "look")]
    Sample { look: Cow<'a, Sample> },
    /// Somebody who watches has marked a moment of the run.
    Mark { mark: Cow<'a, Mark> },
    /// Requests that are over, where somebody wished to see each.
    Exchanges { exchanges: Cow<'a, [Exchange]> },
    /// What requests of a phase have come to so far, by class, where there are several: now and then.
    Classes { phase: usize, classes: Cow<'a, [ClassReport]> },
    /// A phase is over: how long until nothing came due, and the most connections open at once.
    PhaseEnd { phase: usize, duration_us: Micros, peak: u64 },
    /// A rule has found something about the run that is over.
    Finding { reason: Cow<'a, Reason> },
    /// The run is over and judged.
    Ended { run: Cow<'a, Run> },
    /// No load could be put on at all.
    Failed { why: Cow<'a, str> },

    /// What the trials from here on are for.
    Stage { stage: Stage },
    /// An experiment begins; what it is to show, in words.
    Experiment { what: Cow<'a, str> },
    /// A trial begins; its runs follow.
    TrialBegan { trial: TrialBegan<'a> },
    /// A trial is over.
    TrialDone { outcome: Outcome<'a> },
    /// What is ahead so far, in an experiment that looks for the better.
    Leading { lead: Lead<'a> },
    /// What the evidence so far speaks for, and what it leaves no room for.
    Suspicion { suspicion: Suspicion<'a> },
    /// Something is measured again.
    Repeated { what: RepeatScope, rule: Cow<'a, str>, why: Cow<'a, str> },
    /// Something is done otherwise than was asked for or done before.
    Decided { what: ExperimentDecision, because: Cow<'a, str> },
    /// The memory of the server was read, and how many workers fit.
    Sized { size: Cow<'a, SizeDocument> },
    /// So many of the workers of a fresh pool have answered a request.
    Warmed { answered: u64, workers: u64 },
    /// The server has to get over its overload before the next trial.
    Recovering,
    /// The server is put back as it was found.
    Restoring,
    /// The server is given its better settings for good.
    Keeping { settings: Cow<'a, Settings> },
    /// What those who use the servers have seen in the latest second, where nobody puts load on.
    Visited { seen: Cow<'a, UserMetrics> },
    /// The experiment is over.
    Concluded { document: Document<'a> },

    /// Something about a pool that is guarded.
    Guard { seen: GuardEvent },
}

/// What several trials are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Search,
    /// What KeepAlive is worth to clients that keep their connections.
    KeepAlive,
    Race,
    /// The rate of the winner is held once more.
    Hold,
    /// One small step at a time, judged by what visitors see.
    Steps,
    /// How the servers do before the better settings are left to themselves.
    Before,
    /// The better settings are in force, and what the servers do with them is watched.
    Watch,
}

/// What a trial is to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialBegan<'a> {
    /// From 1.
    pub number: u64,
    /// How many there will be, where that is known.
    pub of: Option<u64>,
    /// From 1, where there is more than one.
    pub round: Option<u32>,
    /// baseline, search, advice, race, sweep, variant.
    pub role: Cow<'a, str>,
    /// Name of the variant or series.
    pub series: Cow<'a, str>,
    /// Over the server's own.
    pub settings: Cow<'a, Settings>,
    pub users: u32,
    pub requests: Option<u64>,
    pub duration: Option<Duration>,
    /// With marks in place of secrets.
    pub url: Cow<'a, str>,
}

/// What came of a trial.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome<'a> {
    /// Of a tune.
    Tune {
        trial: Cow<'a, Trial>,
    },
    Sweep {
        row: Cow<'a, SweepRow>,
    },
    /// Some users of a staircase.
    Stair {
        stair: Cow<'a, StaircaseStep>,
    },
    /// A rate of a search for capacity.
    Capacity {
        step: Cow<'a, CapacityStep>,
    },
    Compare {
        number: u64,
        of: u64,
        block: Cow<'a, CompareBlock>,
    },
    /// Workers have grown older.
    Age {
        workers: u64,
        step: u32,
        of: u32,
        point: SharingPoint,
    },
    /// A smaller pool, its workers of the same age: requests that each has served.
    Pool {
        workers: u64,
        requests: f64,
        point: FitPoint,
    },
}

/// What is better than what it is compared with, by so much, as far as is known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Lead<'a> {
    /// Settings, or the side of a comparison.
    pub what: Cow<'a, str>,
    pub ratio: f64,
    /// 95 %; None before there is enough to tell.
    pub interval: Option<[f64; 2]>,
    /// What the ratio is a number of times of: `the throughput`.
    pub times: Cow<'a, str>,
    /// What it rests on, in words: `4 pairs`, `3 trials`.
    pub rests_on: Cow<'a, str>,
}

/// Where a diagnosis stands: each limit is suspected, excluded, or open because nothing has been seen that could tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspicion<'a> {
    /// The one that explains the others first.
    pub suspects: Cow<'a, [Suspect]>,
    /// Ids of findings.
    pub excluded: Cow<'a, [String]>,
}

/// A finding for which there is evidence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    pub id: String,
    pub title: String,
    /// The number that speaks for it most, with what it is: `processors busy 1.98`.
    pub because: String,
    /// Percent.
    pub confidence: u8,
}

/// What is measured again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatScope {
    Run,
    /// A rate that failed while the machine was disturbed.
    Rate,
}

/// What was decided on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExperimentDecision {
    /// Nothing is measured again any more because of other programs.
    RepeatNoMore,
    LongerBlocks,
    /// Settings are put back, for things got worse with them.
    GoBack,
}

/// What an experiment of several runs has found.
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

/// What the guard of a pool has seen or done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "guard", rename_all = "snake_case")]
pub enum GuardEvent {
    Started {
        server: String,
        workers: usize,
        act: bool,
    },
    /// A worker was asked to leave, or would have been.
    Asked {
        pid: i32,
        why: String,
        requests: Option<u64>,
        age_s: f64,
        /// Of the whole group, bytes.
        real_memory: Option<u64>,
        acted: bool,
    },
    /// It has left.
    Left {
        pid: i32,
        after_s: f64,
    },
    /// It was told with a signal that ends it whatever it does.
    Killed {
        pid: i32,
        signal: String,
    },
    /// The master has ended and another is there.
    Restarted {
        master: i32,
    },
    /// The master has ended and there is no other yet.
    Gone,
    /// There is no status page to tell what workers are at.
    NoStatus,
    /// It has not told.
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
        serde_json::from_str(&serde_json::to_string(event).expect("JSON")).expect("own output")
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
