//! `lastdrop.compare/1`: B against A, and the noise of the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const COMPARE_SCHEMA: &str = "lastdrop.compare/1";

/// What a comparison says of one metric of B against A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricVerdict {
    Better,
    Worse,
    NoDifference,
    Inconclusive,
}

/// What a comparison says altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareVerdict {
    Better,
    Worse,
    /// Some metrics better, others worse.
    Mixed,
    NoDifference,
    Inconclusive,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricComparison {
    pub a: f64,
    pub b: f64,
    /// B / A.
    pub ratio: f64,
    /// 95 %, of this metric alone.
    pub interval: [f64; 2],
    /// Holds for all metrics together.
    pub verdict: MetricVerdict,
    /// A difference of this share would have been seen (0.05 is 5 %).
    pub smallest_difference: f64,
}

/// What a comparison says of one class of requests. Its verdicts hold for all classes together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassComparison {
    pub name: String,
    /// `rps`, `p50_us`, `p99_us`
    pub metrics: BTreeMap<String, MetricComparison>,
}

/// Which comparison it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompareKind {
    /// Two runs that were made one after the other.
    Stored,
    /// Interleaved blocks.
    Live,
    /// Interleaved blocks of the same: what it finds is noise.
    Aa,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareSide {
    /// URL, plan file, or exported file.
    pub name: String,
    /// Ids of its runs.
    pub runs: Vec<String>,
}

/// A stretch of load at A beside one at B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareBlock {
    pub a: BTreeMap<String, f64>,
    pub b: BTreeMap<String, f64>,
    pub b_first: bool,
    /// Why it does not count; empty where it does.
    pub spoiled: String,
}

/// What the noise of this machine does to a metric: with nothing changed, the ratio of two runs made one after the other
/// stays within 1 / (1 + floor) and 1 + floor in 95 of 100 cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NoiseFloor {
    /// By metric.
    pub floor: BTreeMap<String, f64>,
    /// Milliseconds since 1970, UTC; None for one that was not measured but assumed.
    pub measured_unix_ms: Option<u64>,
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareDocument {
    pub schema: String,
    pub kind: CompareKind,
    pub a: CompareSide,
    pub b: CompareSide,
    pub metrics: BTreeMap<String, MetricComparison>,
    /// The classes of requests that both sides have, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassComparison>,
    pub verdict: CompareVerdict,
    /// The verdict in a sentence.
    pub because: String,
    /// Of the metric that the comparison is mainly about: `rps` in a closed loop, `p50_us` in an open one.
    pub smallest_difference: f64,
    pub blocks: Vec<CompareBlock>,
    /// The noise that was reckoned with (stored runs), or found (--aa).
    pub noise_floor: Option<NoiseFloor>,
    pub interrupted: bool,
    pub notes: Vec<String>,
}
