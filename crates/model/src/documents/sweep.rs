//! `lastdrop.sweep/1`: a table of measurements, a row for each combination.

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
    /// Characters of the query, where the plan sets its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_length: Option<u32>,
    /// Headers of the variant, `Name: value`, one after the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header: String,
    pub settings: Settings,
    pub requests: u64,
    pub users: u32,
    pub answered: u64,
    /// Requests without an answer, and answers with an unexpected status.
    pub failed: u64,
    /// Mean response, microseconds.
    #[serde(default)]
    pub avtime_us: f64,
    /// Answers a second; with several rounds their geometric mean.
    pub rps: f64,
    /// 95 %, from the rounds; absent with fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps_interval: Option<[f64; 2]>,
    pub p50_us: f64,
    pub p99_us: f64,
    /// `each`: every initial worker had a request first; `15s`: this much load; `no`.
    pub warmed: String,
    /// Id of the run, of the last round; empty where the settings were refused.
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
    /// Settings that the field's tables have a short word for, and that word; for text only.
    #[serde(skip)]
    pub abbreviations: Vec<(String, String)>,
    /// Parameters that are the same in all rows.
    pub fixed: BTreeMap<String, Value>,
    pub rows: Vec<SweepRow>,
    /// Rounds in which all rows were measured, one after the other.
    #[serde(default)]
    pub rounds: u32,
    /// The column by which the rows are sorted; empty where they are in the order of the plan.
    #[serde(default)]
    pub sorted_by: String,
    /// All rows were measured.
    pub complete: bool,
    pub notes: Vec<String>,
}
