//! Combines the metrics' verdicts: which metric decides, how the error probability is shared, and the
//! wording.

use std::collections::BTreeMap;

use lastdrop_model::documents::{ClassComparison, CompareVerdict, MetricComparison, MetricVerdict};

use super::estimate::{ALPHA, WIDEST};
use super::metrics::METRICS;

/// Share of `ALPHA` for the main metric.
const MAIN: f64 = 0.6;

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub metrics: BTreeMap<String, MetricComparison>,
    pub classes: Vec<ClassComparison>,
    pub verdict: CompareVerdict,
    pub reason: String,
    pub smallest_difference: f64,
    pub notes: Vec<String>,
}

/// Returns the main metric. In an open loop it is a latency, because the plan sets the throughput.
fn main_metric(open: bool) -> &'static str {
    if open { "p50_us" } else { "rps" }
}

/// Returns the error probability of one metric.
pub(super) fn chance(metric: &str, open: bool) -> f64 {
    if metric == main_metric(open) { ALPHA * MAIN } else { ALPHA * (1.0 - MAIN) / (METRICS.len() - 1) as f64 }
}

pub(super) fn conclude(
    metrics: BTreeMap<String, MetricComparison>,
    classes: Vec<ClassComparison>,
    open: bool,
    notes: Vec<String>,
) -> Comparison {
    let named = |wanted: MetricVerdict| -> Vec<String> {
        METRICS.iter().filter_map(|m| metrics.get(*m).filter(|c| c.verdict == wanted).map(|c| say(m, c))).collect()
    };
    let (better, worse) = (named(MetricVerdict::Better), named(MetricVerdict::Worse));
    let main = metrics.get(main_metric(open));
    let smallest_difference = main.map_or(0.0, |m| m.smallest_difference);
    let (verdict, reason) = match (better.is_empty(), worse.is_empty()) {
        (false, false) => {
            (CompareVerdict::Mixed, format!("B is better in {}; worse in {}", better.join(", "), worse.join(", ")))
        }
        (false, true) => (CompareVerdict::Better, format!("B is better: {}", better.join(", "))),
        (true, false) => (CompareVerdict::Worse, format!("B is worse: {}", worse.join(", "))),
        (true, true) if main.is_some_and(|m| m.verdict == MetricVerdict::NoDifference) => (
            CompareVerdict::NoDifference,
            format!(
                "no difference shown; one of {:.1} % in {} would have been seen",
                smallest_difference * 100.0,
                label(main_metric(open))
            ),
        ),
        (true, true) => (
            CompareVerdict::Inconclusive,
            match main {
                Some(m) if m.smallest_difference <= WIDEST => format!(
                    "{} may still be chance: more blocks (--blocks), or longer runs (-d)",
                    say(main_metric(open), m)
                ),
                Some(m) if m.smallest_difference < 1e9 => format!(
                    "the measurement cannot tell: even a difference of {:.0} % in {} could hide in it",
                    m.smallest_difference * 100.0,
                    label(main_metric(open))
                ),
                _ => "there is too little to compare".into(),
            },
        ),
    };
    Comparison { metrics, classes, verdict, reason, smallest_difference, notes }
}

/// The name of a metric in a sentence.
#[must_use]
pub fn label(metric: &str) -> &str {
    match metric {
        "rps" => "answers/s",
        "p50_us" => "p50",
        "p90_us" => "p90",
        "p99_us" => "p99",
        other => other,
    }
}

/// A ratio above this is written as a factor, not as a percentage.
const TIMES: f64 = 2.0;

fn say(metric: &str, c: &MetricComparison) -> String {
    if c.ratio >= TIMES {
        return format!("{} {:.1} times", label(metric), c.ratio);
    }
    format!("{} {:+.1} %", label(metric), (c.ratio - 1.0) * 100.0)
}
