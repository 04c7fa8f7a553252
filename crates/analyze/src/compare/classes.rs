//! Two sides by class of request.
//!
//! Of each class answers a second, median and p99 are compared; the verdict of the whole comparison is about all requests
//! together. A class's verdict holds for all classes together: the 5 % of chance are shared out among all their metrics.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::documents::{ClassComparison, MetricComparison, MetricVerdict};
use lastdrop_model::{Kind, PhaseReport};

use super::estimate::{ALPHA, Estimate};
use super::metrics::{FEWEST, Metrics};

const OF_CLASS: [&str; 3] = ["rps", "p50_us", "p99_us"];

fn key(class: &str, metric: &str) -> String {
    format!("{class}.{metric}")
}

/// The metrics of each class of a stretch of load, where it has several.
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

/// Compares the classes that both sides have; `estimate` says how sure a metric's ratio is.
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

/// Of a stored run only the sums of a class are known, and not how they scatter: any difference may be chance.
pub(super) fn unknown(x: f64, y: f64) -> Option<Estimate> {
    let log = (y / x).ln();
    log.is_finite().then_some(Estimate { log, error: f64::INFINITY, freedom: 1.0, floor: 0.0 })
}
