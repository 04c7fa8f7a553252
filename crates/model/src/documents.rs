//! The JSON documents of commands other than `run`: `lastdrop.size/1`, `lastdrop.sweep/1`, `lastdrop.tune/1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::settings::Settings;

pub const SIZE_SCHEMA: &str = "lastdrop.size/1";
pub const SWEEP_SCHEMA: &str = "lastdrop.sweep/1";
pub const TUNE_SCHEMA: &str = "lastdrop.tune/1";

/// Mean and largest of a quantity over the workers, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanMax {
    pub mean: u64,
    pub max: u64,
}

impl MeanMax {
    #[must_use]
    pub fn of(values: &[u64]) -> MeanMax {
        let n = values.len().max(1) as u64;
        MeanMax { mean: values.iter().sum::<u64>() / n, max: values.iter().copied().max().unwrap_or(0) }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeWorkers {
    pub count: u64,
    pub rss_bytes: MeanMax,
    pub pss_bytes: MeanMax,
    pub private_bytes: MeanMax,
    pub shared_bytes: MeanMax,
}

/// Workers that fit the budget, by four ways of reckoning; see `lastdrop-analyze`'s `pool`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeFits {
    pub no_sharing: u64,
    pub classic_sharing: u64,
    pub independent: u64,
    pub worst_case: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizeDocument {
    pub schema: String,
    pub server: String,
    pub version: String,
    pub model: String,
    /// Threads that serve requests in each worker process; 1 for prefork.
    pub threads_per_worker: u64,
    pub workers: SizeWorkers,
    /// Σ PSS of workers and parent.
    pub real_memory_bytes: u64,
    /// Σ(size − shared) + the largest shared, of the workers.
    pub classic_real_memory_bytes: u64,
    /// Σ RSS, which counts shared pages once a process.
    pub sum_rss_bytes: u64,
    /// Pages that the whole group has in common, counted once (parent included).
    pub shared_once_bytes: u64,
    pub budget_bytes: u64,
    pub budget_from: String,
    pub fits: SizeFits,
    /// Formulas with their numbers put in, by the name of the fit.
    pub formulas: BTreeMap<String, String>,
    pub suggested: Settings,
    /// Suggestions for a dedicated, shared and bursty machine.
    pub profiles: BTreeMap<String, Settings>,
    pub effective: Settings,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    pub series: String,
    pub url: String,
    pub settings: Settings,
    pub requests: u64,
    pub users: u32,
    pub answered: u64,
    /// Requests without an answer, and answers with an unexpected status.
    pub failed: u64,
    pub rps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// `each`: every initial worker had a request first; `15s`: this much load; `no`.
    pub warmed: String,
    /// Id of the run; empty where the settings were refused.
    pub run: String,
    /// Why there are no numbers, or what is wrong with them.
    pub note: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepDocument {
    pub schema: String,
    pub server: Option<String>,
    /// Names of the columns that differ between rows.
    pub varying: Vec<String>,
    /// Parameters that are the same in all rows.
    pub fixed: BTreeMap<String, Value>,
    pub rows: Vec<SweepRow>,
    /// All rows were measured.
    pub complete: bool,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneVerdict {
    Improved,
    NoGain,
    Infeasible,
    Inconclusive,
}

/// A measurement of the server with some settings over its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was changed; empty is the server as it was.
    pub settings: Settings,
    /// Good answers per second.
    pub objective: f64,
    pub valid: bool,
    /// Why it does not count.
    pub why: String,
    pub p99_us: f64,
    pub unanswered: u64,
    pub real_memory_bytes: Option<u64>,
    pub warmed: String,
    /// What the trial was for: baseline, search, advice, race.
    pub role: String,
    /// Do clients keep their connections in this trial?
    pub keepalive: String,
    pub run: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    pub settings: Settings,
    pub objective: f64,
    pub p99_us: f64,
    pub run: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Winner {
    pub settings: Settings,
    /// Winner / baseline, geometric mean over the pairs of the race.
    pub ratio: f64,
    /// 95 %.
    pub interval: [f64; 2],
    pub objective: f64,
    pub p99_us: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub baseline: f64,
    pub best: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuneDocument {
    pub schema: String,
    pub server: String,
    pub url: String,
    pub verdict: TuneVerdict,
    /// The verdict in a sentence.
    pub because: String,
    pub baseline: Option<Baseline>,
    pub winner: Option<Winner>,
    pub trials: Vec<Trial>,
    pub race: Vec<Pair>,
    /// The change of the configuration: lines that go with `-`, lines that come with `+`.
    pub diff: Vec<String>,
    pub kept: bool,
    /// Where kept settings are, and how the server is started with them.
    pub kept_in: Option<String>,
    /// Is everything back as it was found?
    pub restored: bool,
    pub interrupted: bool,
    pub notes: Vec<String>,
}
