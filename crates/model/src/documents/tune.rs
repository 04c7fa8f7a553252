//! `lastdrop.tune/1`: better settings, and the race that proves the gain.

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
    /// Nothing was measured: `--dry-run` only shows what would be tried.
    Planned,
}

/// The goal of a tune.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Good answers per second.
    #[default]
    Throughput,
    /// The lowest 99th percentile of response times.
    Latency,
    /// The least memory of the workers.
    Memory,
}

impl Goal {
    /// Returns the measure by which trials are compared: good answers per second, microseconds or bytes. `None` if it
    /// was not measured.
    #[must_use]
    pub fn measure(self, trial: &Trial) -> Option<f64> {
        let value = match self {
            Goal::Throughput => Some(trial.objective),
            Goal::Latency => Some(trial.p99_us),
            Goal::Memory => trial.real_memory_bytes.map(|bytes| bytes as f64),
        };
        value.filter(|v| *v > 0.0 || self == Goal::Throughput)
    }

    /// Converts a measure into a number where more is better.
    #[must_use]
    pub fn goodness(self, measure: f64) -> f64 {
        if self == Goal::Throughput { measure } else { 1.0 / measure.max(f64::MIN_POSITIVE) }
    }

    /// Returns the words after a ratio: "1.2 times the throughput".
    #[must_use]
    pub fn times(self) -> &'static str {
        match self {
            Goal::Throughput => "the throughput",
            Goal::Latency => "as short a p99",
            Goal::Memory => "as little memory",
        }
    }
}

/// A measurement of the server with some changed settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Changed settings; empty for the baseline.
    pub settings: Settings,
    /// Good answers per second, or the highest rate that meets the objectives.
    pub objective: f64,
    pub valid: bool,
    /// Why the trial does not count.
    pub why: String,
    pub p99_us: f64,
    pub unanswered: u64,
    pub real_memory_bytes: Option<u64>,
    pub warmed: String,
    /// Purpose of the trial: `baseline`, `search`, `advice`, `race`.
    pub role: String,
    /// Whether clients reuse connections in this trial.
    pub keepalive: String,
    pub run: String,
    /// Repetitions because other programs were busy; the numbers are those of the quietest measurement.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u32,
    /// Stopped early, because it could not beat the best so far. `objective` is an estimate of what it could have
    /// reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut_short: bool,
    /// The rates tried, if the trial searched for the highest rate that meets the objectives. `objective` is then that
    /// rate.
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
    /// Gain over the baseline: geometric mean over the pairs of the race. `None` if the baseline answered too little
    /// for a ratio.
    pub ratio: Option<f64>,
    /// 95 % interval.
    pub interval: Option<[f64; 2]>,
    /// Measure of the goal.
    pub objective: f64,
    pub p99_us: f64,
    /// The rate at which it met the objectives again, after a fresh start and with another seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meets: Option<CapacityStep>,
    /// Predicted and measured memory of its pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPrediction>,
}

/// Real memory (Σ PSS) of a pool: predicted by the memory model from pools of other sizes, and measured in the race.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPrediction {
    pub workers: u64,
    pub predicted_bytes: u64,
    pub used_bytes: u64,
}

/// Measure of the goal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub baseline: f64,
    pub best: f64,
}

/// Effect of a setting on the best trial of the search, by the search's model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingEffect {
    pub name: String,
    /// Its value in the best trial.
    pub value: String,
    /// The value that it is compared with: the original one, or the best of the others.
    pub other: String,
    /// How many times better than the other value, with the 95 % interval.
    pub ratio: f64,
    pub interval: [f64; 2],
}

impl SettingEffect {
    /// Returns true if the effect is statistically significant.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        self.interval[0] > 1.0 || self.interval[1] < 1.0
    }
}

/// A setting, and whether the search varied it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchedSetting {
    pub name: String,
    /// Values that the search could try; empty if it left the setting alone.
    pub values: Vec<String>,
    #[serde(rename = "because")]
    pub reason: String,
}

/// A change that the doctor proposes; it is tried first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    pub settings: Settings,
    /// The finding in words; `finding` is its id.
    #[serde(rename = "because")]
    pub reason: String,
    pub finding: String,
    /// Predicted throughput after the change as a ratio to now, if there is a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<f64>,
}

/// A hint of the doctor before the search to try the settings listed for a finding.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clue {
    /// The finding that it hints at. A clue is weaker than a finding: similar causes are not ruled out.
    pub finding: String,
    /// Name of the server; empty: any server.
    pub server: String,
    /// The observation, in words.
    #[serde(rename = "because")]
    pub reason: String,
}

/// Upper estimate of a tune's effort.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuneEstimate {
    /// Trials of the search including its finals; a race follows.
    pub trials: u64,
    /// Seconds of search and race.
    pub seconds: u64,
}

/// The limit that remains with the winner's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemainingLimit {
    /// Id of the finding; `None` if no limit was found.
    pub id: Option<String>,
    pub title: String,
}

/// Metrics of the servers' users in some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UserMetrics {
    pub seconds: f64,
    pub requests: u64,
    /// Requests without a good answer.
    pub errors: u64,
    /// `None` if no times are known.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

/// The time in which better settings were in force and watched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchPeriod {
    /// Whose requests were watched, and how.
    pub watched: String,
    /// Requested duration, seconds.
    pub asked_s: f64,
    pub before: UserMetrics,
    pub during: UserMetrics,
    /// True if the previous settings were restored.
    pub went_back: bool,
    #[serde(rename = "because")]
    pub reason: String,
}

/// One setting changed by one step while visitors use the servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TuneStep {
    pub name: String,
    pub from: String,
    pub to: String,
    /// Factor by which visitors' times became shorter, with the 95 % interval; `None` with too few requests.
    pub ratio: Option<f64>,
    pub interval: Option<[f64; 2]>,
    pub pairs: usize,
    /// True if the change stayed in force for later steps.
    pub taken: bool,
    #[serde(rename = "because")]
    pub reason: String,
}

/// Tuning of servers with real visitors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveTuning {
    /// Source of the visitors' metrics: `access log /var/log/nginx/access.log`.
    pub by: String,
    /// The compared metric: `p95`.
    pub compared: String,
    /// Metrics at the beginning, with the original settings.
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
    #[serde(rename = "because")]
    pub reason: String,
    pub baseline: Option<Baseline>,
    pub winner: Option<Winner>,
    /// Each setting of the servers, with the values to try or why it was left alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub searched: Vec<SearchedSetting>,
    /// Proposals of the doctor before the search.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proposals: Vec<Proposal>,
    /// Clues of the doctor before the search.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clues: Vec<Clue>,
    /// Advised number of workers (with several pools: of the last server), from the doctor before the search, or from
    /// ceilings alone if the doctor did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_advice: Option<WorkersAdvice>,
    /// The estimate before the search began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned: Option<TuneEstimate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_after: Option<RemainingLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visited: Option<LiveTuning>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<WatchPeriod>,
    pub trials: Vec<Trial>,
    /// Pareto-optimal trials, as indices into `trials`: no other trial is better in throughput, p99 and memory at once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undominated: Vec<usize>,
    /// Effects of the searched settings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<SettingEffect>,
    pub race: Vec<Pair>,
    /// The change of the configuration as a diff: removed lines begin with `-`, added ones with `+`.
    pub diff: Vec<String>,
    pub kept: bool,
    /// Where persisted settings are, and how to start the server with them.
    pub kept_in: Option<String>,
    /// True if the original state was restored.
    pub restored: bool,
    pub interrupted: bool,
    pub notes: Vec<String>,
}

impl TuneDocument {
    /// A tune that has no result yet.
    #[must_use]
    pub fn new(server: String, url: String, goal: Goal) -> TuneDocument {
        TuneDocument {
            schema: TUNE_SCHEMA.into(),
            server,
            url,
            goal,
            verdict: TuneVerdict::Inconclusive,
            reason: "it was ended before there was a result".into(),
            baseline: None,
            winner: None,
            searched: Vec::new(),
            proposals: Vec::new(),
            clues: Vec::new(),
            workers_advice: None,
            planned: None,
            limit_after: None,
            visited: None,
            watch: None,
            trials: Vec::new(),
            undominated: Vec::new(),
            effects: Vec::new(),
            race: Vec::new(),
            diff: Vec::new(),
            kept: false,
            kept_in: None,
            restored: false,
            interrupted: false,
            notes: Vec::new(),
        }
    }

    /// Returns the settings of which another value was measured.
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

    /// Returns the reasons why settings were not tried, each with the settings' names.
    #[must_use]
    pub fn untried(&self) -> Vec<(String, Vec<&str>)> {
        let tried = self.tried();
        let mut all: Vec<(String, Vec<&str>)> = Vec::new();
        for s in self.searched.iter().filter(|s| !tried.contains(&s.name.as_str())) {
            let why = if s.values.is_empty() { s.reason.clone() } else { self.unreached(&s.name) };
            let why = why.replace(&format!("--only {} ", s.name), "--only NAME ");
            match all.iter_mut().find(|(known, _)| *known == why) {
                Some((_, names)) => names.push(&s.name),
                None => all.push((why, vec![&s.name])),
            }
        }
        all
    }

    /// Returns why a setting that was to be searched was not tried.
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
            |name: &str, values: &[&str], reason: &str| json!({"name": name, "values": values, "because": reason});
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
