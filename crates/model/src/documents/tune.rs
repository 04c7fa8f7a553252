//! `lastdrop.tune/1`: which settings are better, and the race that proves it.

use serde::{Deserialize, Serialize};

use crate::documents::{CapacityStep, WorkersAdvice};
use crate::settings::Settings;

pub const TUNE_SCHEMA: &str = "lastdrop.tune/1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneVerdict {
    Improved,
    NoGain,
    Infeasible,
    Inconclusive,
    /// Nothing was measured: `--dry-run` says what would be tried.
    Planned,
}

/// What the best settings are the best at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Good answers a second.
    #[default]
    Throughput,
    /// The shortest 99th percentile of response times.
    Latency,
    /// The least memory of the workers.
    Memory,
}

impl Goal {
    /// What a trial is compared by: good answers a second, microseconds or bytes. None where it was not measured.
    #[must_use]
    pub fn measure(self, trial: &Trial) -> Option<f64> {
        let value = match self {
            Goal::Throughput => Some(trial.objective),
            Goal::Latency => Some(trial.p99_us),
            Goal::Memory => trial.real_memory_bytes.map(|bytes| bytes as f64),
        };
        value.filter(|v| *v > 0.0 || self == Goal::Throughput)
    }

    /// A measure as a number of which more is better.
    #[must_use]
    pub fn goodness(self, measure: f64) -> f64 {
        if self == Goal::Throughput { measure } else { 1.0 / measure.max(f64::MIN_POSITIVE) }
    }

    /// What a ratio is a number of times of.
    #[must_use]
    pub fn times(self) -> &'static str {
        match self {
            Goal::Throughput => "the throughput",
            Goal::Latency => "as short a p99",
            Goal::Memory => "as little memory",
        }
    }
}

/// A measurement of the server with some settings over its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was changed; empty is the server as it was.
    pub settings: Settings,
    /// Good answers per second, or the highest rate that meets the objectives.
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
    /// Measured again so often because other programs were busy; what is told is the quietest.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u32,
    /// It was ended early, for the best so far is out of its reach; what is told is about what it could have reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_short: bool,
    /// Where the highest rate that meets the objectives was searched: the rates that were tried. `objective` is that rate then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<CapacityStep>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
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
    /// How much better than the baseline, geometric mean over the pairs of the race. None where the baseline answered too little to be
    /// divided by.
    pub ratio: Option<f64>,
    /// 95 %.
    pub interval: Option<[f64; 2]>,
    /// In the measure of the goal.
    pub objective: f64,
    pub p99_us: f64,
    /// The rate at which it was shown to meet the objectives, on one more fresh start and with another seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meets: Option<CapacityStep>,
    /// What its pool was expected to need, beside what it needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPrediction>,
}

/// Real memory (Σ PSS) of a pool: by the memory model, from pools of other sizes, before it was raced, and as it was measured then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPrediction {
    pub workers: u64,
    pub predicted_bytes: u64,
    pub used_bytes: u64,
}

/// In the measure of the goal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub baseline: f64,
    pub best: f64,
}

/// What a setting has to do with how good the best of the search is, by the model of the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingEffect {
    pub name: String,
    /// In the best of the search.
    pub value: String,
    /// What it is compared with: as it was, or the best of the other values.
    pub other: String,
    /// How many times better than with the other value, and the bounds of 95 %.
    pub ratio: f64,
    pub interval: [f64; 2],
}

impl SettingEffect {
    /// Is it shown to be no matter of chance?
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.interval[0] > 1.0 || self.interval[1] < 1.0
    }
}

/// A setting that was searched, or was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchedSetting {
    pub name: String,
    /// The values that it could have; none where it was left alone.
    pub values: Vec<String>,
    pub because: String,
}

/// A change that a doctor's look has a reason for: tried before anything else.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    pub settings: Settings,
    /// What was found, and its id.
    pub because: String,
    pub finding: String,
    /// Throughput after the change as a ratio to now, where there is a model for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
}

/// A reason to try the settings that are worth trying for a finding: what the look before the search saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clue {
    /// The finding that it points to. A clue is less than a finding: look-alikes are not excluded.
    pub finding: String,
    /// What the server is called; empty: any of them.
    pub server: String,
    /// What was seen.
    pub because: String,
}

/// What a tune takes, at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneEstimate {
    /// Trials of the search with its finals; a race follows.
    pub trials: u64,
    /// Of the search and the race.
    pub seconds: u64,
}

/// What holds the servers back with the winner: what to look at next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainingLimit {
    /// Of the finding; None where nothing was found to be the limit.
    pub id: Option<String>,
    pub title: String,
}

/// What those who use servers have seen in some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UserMetrics {
    pub seconds: f64,
    pub requests: u64,
    /// Without a good answer.
    pub errors: u64,
    /// None where nothing is known of times.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

/// The time after better settings were left in force, in which they were watched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchPeriod {
    /// Whose requests were looked at, and how.
    pub watched: String,
    /// How long it was to be, seconds.
    pub asked_s: f64,
    pub before: UserMetrics,
    pub during: UserMetrics,
    /// The settings from before are in force again.
    pub went_back: bool,
    pub because: String,
}

/// One setting moved by one step while visitors use the servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TuneStep {
    pub name: String,
    pub from: String,
    pub to: String,
    /// How many times as short visitors' times were with it, and the bounds of 95 %; None where too little was seen.
    pub ratio: Option<f64>,
    pub interval: Option<[f64; 2]>,
    pub pairs: usize,
    /// It was left in force for the steps after it.
    pub taken: bool,
    pub because: String,
}

/// The visitors of servers that were tuned while they were in use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveTuning {
    /// How they are seen: `access log /var/log/nginx/access.log`.
    pub by: String,
    /// What of their times was compared: `p95`.
    pub compared: String,
    /// Of the servers as they were, at the beginning.
    pub before: UserMetrics,
    pub steps: Vec<TuneStep>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuneDocument {
    pub schema: String,
    pub server: String,
    pub url: String,
    #[serde(default)]
    pub goal: Goal,
    pub verdict: TuneVerdict,
    /// The verdict in a sentence.
    pub because: String,
    pub baseline: Option<Baseline>,
    pub winner: Option<Winner>,
    /// Each setting of the servers, with what was to be tried of it or why it was left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searched: Vec<SearchedSetting>,
    /// What a doctor's look before the search has proposed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proposals: Vec<Proposal>,
    /// What the look before the search saw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clues: Vec<Clue>,
    /// How many workers the pool should have (of several pools: the last server's), by the look before the search; by ceilings alone where
    /// nothing was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_advice: Option<WorkersAdvice>,
    /// As it was known before the search began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<TuneEstimate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_after: Option<RemainingLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visited: Option<LiveTuning>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchPeriod>,
    pub trials: Vec<Trial>,
    /// Trials (by their place in `trials`) than which none has more throughput, a shorter p99 and less memory at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undominated: Vec<usize>,
    /// Of each setting that was searched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<SettingEffect>,
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

impl TuneDocument {
    /// Settings of which another value than the present one was measured.
    #[must_use]
    pub fn tried(&self) -> Vec<&str> {
        let measured = self.trials.iter().filter(|t| !t.run.is_empty());
        let steps = self.visited.iter().flat_map(|v| &v.steps).filter(|s| s.pairs > 0).map(|s| s.name.as_str());
        let names: Vec<&str> = measured.flat_map(|t| t.settings.keys().map(String::as_str)).chain(steps).collect();
        self.searched
            .iter()
            .filter(|s| !s.values.is_empty())
            .map(|s| s.name.as_str())
            .filter(|n| names.contains(n))
            .collect()
    }

    /// Reasons why settings were not tried, each with their names.
    #[must_use]
    pub fn untried(&self) -> Vec<(String, Vec<&str>)> {
        let tried = self.tried();
        let mut all: Vec<(String, Vec<&str>)> = Vec::new();
        for s in self.searched.iter().filter(|s| !tried.contains(&s.name.as_str())) {
            let why = if s.values.is_empty() { s.because.clone() } else { self.unreached(&s.name) };
            let why = why.replace(&format!("--only {} ", s.name), "--only NAME ");
            match all.iter_mut().find(|(known, _)| *known == why) {
                Some((_, names)) => names.push(&s.name),
                None => all.push((why, vec![&s.name])),
            }
        }
        all
    }

    /// Why a setting that was to be searched was not tried.
    fn unreached(&self, name: &str) -> String {
        let refused = self.trials.iter().find(|t| t.run.is_empty() && t.settings.contains_key(name));
        let why = refused.map(|t| t.why.lines().next().unwrap_or_default().to_string()).filter(|why| !why.is_empty());
        why.map_or_else(|| "no trial was left for it".into(), |why| format!("refused: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_tried_stands_beside_what_was_not_and_why() {
        let trial = |settings: serde_json::Value, run: &str, why: &str| {
            json!({"settings": settings, "objective": 1.0, "valid": !run.is_empty(), "why": why, "p99_us": 1.0, "unanswered": 0,
                "real_memory_bytes": null, "warmed": "", "role": "search", "keepalive": "off", "run": run})
        };
        let searched =
            |name: &str, values: &[&str], because: &str| json!({"name": name, "values": values, "because": because});
        let document: TuneDocument = serde_json::from_value(json!({
            "schema": TUNE_SCHEMA, "server": "nginx", "url": "", "verdict": "no_gain", "because": "", "baseline": null, "winner": null,
            "searched": [
                searched("gzip_comp_level", &["1", "9"], "a core is full"),
                searched("worker_processes", &["1", "2"], "a core is full"),
                searched("reuseport", &["on", "off"], "a core is full"),
                searched("backlog", &[], "nothing points to it; --only backlog tries it"),
                searched("keepalive_requests", &[], "nothing points to it; --only keepalive_requests tries it"),
            ],
            "trials": [
                trial(json!({}), "a", ""),
                trial(json!({"gzip_comp_level": 1}), "b", ""),
                trial(json!({"reuseport": "on"}), "", "refused by the kernel"),
            ],
            "race": [], "diff": [], "kept": false, "kept_in": null, "restored": true, "interrupted": false, "notes": [],
        }))
        .expect("a document");
        assert_eq!(document.tried(), ["gzip_comp_level"]);
        let nothing = "nothing points to it; --only NAME tries it".to_string();
        assert_eq!(
            document.untried(),
            [
                ("no trial was left for it".to_string(), vec!["worker_processes"]),
                ("refused: refused by the kernel".to_string(), vec!["reuseport"]),
                (nothing, vec!["backlog", "keepalive_requests"]),
            ]
        );
    }
}
