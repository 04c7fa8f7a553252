//! Compares two runs by class of request.
//!
//! For each class, throughput, median and p99 are compared; the overall verdict is about all requests
//! together. The classes' verdicts hold jointly: all their metrics share the 5 % chance of a false
//! difference.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::documents::{ClassComparison, MetricComparison, MetricVerdict};
use lastdrop_model::{Kind, PhaseReport};

use super::estimate::{ALPHA, Estimate};
use super::metrics::{FEWEST, Metrics};

const OF_CLASS: [&str; 3] = ["rps", "p50_us", "p99_us"];

fn key(class: &str, metric: &str) -> String {
    format!("{class}.{metric}")
}

/// Returns the metrics of each class in a stretch of load, if there are several classes.
pub(super) fn of_classes(phase: &PhaseReport) -> Metrics {
    let mut all = Metrics::new();
    for class in phase.classes.iter().filter(|_| phase.classes.len() > 1) {
        let latency = |field| class.latency(Kind::Response, field);
        let values = [Some(class.rate.answered_rps), latency("p50"), latency("p99")];
        for (metric, value) in OF_CLASS.iter().zip(values) {
            all.extend(value.map(|v| (key(&class.name, metric), v)));
        }
    }
    all
}

/// Compares the classes that both sides have; `estimate` gives the uncertainty of a metric's ratio.
pub(super) fn compare(
    a: &Metrics,
    b: &Metrics,
    blocks: usize,
    estimate: impl Fn(&str) -> Option<Estimate>,
) -> Vec<ClassComparison> {
    let class = |k: &String| OF_CLASS.iter().find_map(|m| k.strip_suffix(m)?.strip_suffix('.').map(str::to_string));
    let names: BTreeSet<String> = a.keys().filter(|k| b.contains_key(*k)).filter_map(class).collect();
    let alpha = ALPHA / (names.len() * OF_CLASS.len()).max(1) as f64;
    let one = |name: String| {
        let metric = |metric: &&str| -> Option<(String, MetricComparison)> {
            let key = key(&name, metric);
            let (x, y) = (*a.get(&key)?, *b.get(&key)?);
            let mut comparison = estimate(&key)?.comparison(metric, x, y, alpha);
            if blocks < FEWEST {
                comparison.verdict = MetricVerdict::Inconclusive;
            }
            Some(((*metric).to_string(), comparison))
        };
        let metrics: BTreeMap<String, MetricComparison> = OF_CLASS.iter().filter_map(metric).collect();
        (!metrics.is_empty()).then_some(ClassComparison { name, metrics })
    };
    names.into_iter().filter_map(one).collect()
}

/// An estimate without certainty: a stored run has only the totals of a class, so any difference may be
/// chance.
pub(super) fn unknown(x: f64, y: f64) -> Option<Estimate> {
    let log = (y / x).ln();
    log.is_finite().then_some(Estimate { log, error: f64::INFINITY, freedom: 1.0, floor: 0.0 })
}
