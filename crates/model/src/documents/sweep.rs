//! `lastdrop.sweep/1`: a table of measurements, one row per combination.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::settings::Settings;

pub const SWEEP_SCHEMA: &str = "lastdrop.sweep/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    /// Name of the variant or series.
    pub series: String,
    pub url: String,
    /// Length of the query in characters, if the plan sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_length: Option<u32>,
    /// Headers of the variant, `Name: value`, one after the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header: String,
    pub settings: Settings,
    /// Directives of the variant, separated by `; `, and where they apply.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub directives: String,
    pub requests: u64,
    pub users: u32,
    pub answered: u64,
    /// Requests without an answer, and answers with an unexpected status.
    pub failed: u64,
    /// Mean response, microseconds.
    #[serde(default)]
    pub avtime_us: f64,
    /// Answers per second; with several rounds, their geometric mean.
    pub rps: f64,
    /// 95 % interval from the rounds; absent with fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps_interval: Option<[f64; 2]>,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Warm-up: `each` (every initial worker served a request first), `15s` (this much load), or `no`.
    pub warmed: String,
    /// Id of the run of the last round; empty if the settings were refused.
    pub run: String,
    /// Ids of the runs of all rounds.
    #[serde(default)]
    pub runs: Vec<String>,
    /// Why there are no numbers, or what is wrong with them.
    pub note: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepDocument {
    pub schema: String,
    pub server: Option<String>,
    /// Names of the columns that differ between rows.
    pub varying: Vec<String>,
    /// Settings with a short name in published tables, and that name; for text output only.
    #[serde(skip)]
    pub abbreviations: Vec<(String, String)>,
    /// Parameters that are the same in all rows.
    pub fixed: BTreeMap<String, Value>,
    pub rows: Vec<SweepRow>,
    /// Rounds; each measures all rows, one after the other.
    #[serde(default)]
    pub rounds: u32,
    /// The column by which the rows are sorted; empty for the order of the plan.
    #[serde(default)]
    pub sorted_by: String,
    /// True if all rows were measured.
    pub complete: bool,
    pub notes: Vec<String>,
}
