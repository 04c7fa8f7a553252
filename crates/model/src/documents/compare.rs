//! `lastdrop.compare/1`: comparison of B with A, and the noise of the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub const COMPARE_SCHEMA: &str = "lastdrop.compare/1";

/// Verdict on one metric of B against A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricVerdict {
    Better,
    Worse,
    NoDifference,
    Inconclusive,
}

/// Verdict of the whole comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareVerdict {
    Better,
    Worse,
    /// Some metrics are better, others worse.
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
    /// 95 % interval of this metric alone.
    pub interval: [f64; 2],
    /// Verdict, corrected for testing all metrics together.
    pub verdict: MetricVerdict,
    /// The smallest difference that would have been detected, as a share (0.05 is 5 %).
    pub smallest_difference: f64,
}

/// Comparison of one request class. Its verdicts are corrected for testing all classes together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassComparison {
    pub name: String,
    /// `rps`, `p50_us`, `p99_us`
    pub metrics: BTreeMap<String, MetricComparison>,
}

/// Kind of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompareKind {
    /// Two stored runs, made one after the other.
    Stored,
    /// Interleaved blocks of load on A and B.
    Live,
    /// Interleaved blocks on the same server (A/A test): any difference is noise.
    Aa,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareSide {
    /// URL, plan file, exported file, or directives.
    pub name: String,
    /// What the directives change in the configuration, a line for each place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// How it is connected, if one of the sides speaks HTTP/2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<SideConnections>,
    /// Ids of its runs.
    pub runs: Vec<String>,
}

/// The connections of one side of a comparison. Over HTTP/2 they are a part of what differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SideConnections {
    /// The version of HTTP.
    pub version: String,
    /// Most connections open at once.
    pub peak: u64,
    /// Most requests in flight on each.
    pub streams: u32,
}

/// One block of load on A and one on B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareBlock {
    pub a: BTreeMap<String, f64>,
    pub b: BTreeMap<String, f64>,
    pub b_first: bool,
    /// Why the block does not count; empty if it does.
    pub spoiled: String,
}

/// Noise of the machine. With nothing changed, the ratio of a metric in two successive runs stays between
/// 1 / (1 + floor) and 1 + floor in 95 of 100 cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NoiseFloor {
    /// Noise floor by metric.
    pub floor: BTreeMap<String, f64>,
    /// Milliseconds since 1970, UTC; `None` if the floor is assumed, not measured.
    pub measured_unix_ms: Option<u64>,
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareDocument {
    pub schema: String,
    pub kind: CompareKind,
    /// The server, if A and B are changes of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    pub a: CompareSide,
    pub b: CompareSide,
    pub metrics: BTreeMap<String, MetricComparison>,
    /// The request classes that both sides have, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassComparison>,
    pub verdict: CompareVerdict,
    /// The verdict in a sentence.
    #[serde(rename = "because")]
    pub reason: String,
    /// For the main metric: `rps` in a closed loop, `p50_us` in an open loop.
    pub smallest_difference: f64,
    pub blocks: Vec<CompareBlock>,
    /// The noise floor that was used (stored runs) or measured (`--aa`).
    pub noise_floor: Option<NoiseFloor>,
    pub interrupted: bool,
    pub notes: Vec<String>,
}
