//! What two runs are compared by.

use std::collections::BTreeMap;

use lastdrop_model::run::Run;
use lastdrop_model::{Kind, PhaseReport};

use crate::objective::error_share;

/// The metrics, in the order in which people read them.
pub const METRICS: [&str; 5] = ["rps", "p50_us", "p90_us", "p99_us", "errors"];

/// Fewer independent stretches on a side say nothing.
pub(super) const FEWEST: usize = 4;

/// Metrics by name.
pub type Metrics = BTreeMap<String, f64>;

/// The metrics of one stretch of load, those of its classes as `checkout.p99_us`. Latencies are absent where nothing was answered. `errors` is a share.
#[must_use]
pub fn metrics_of(run: &Run, phase: &PhaseReport) -> Metrics {
    let mut m = BTreeMap::from([
        ("rps".to_string(), phase.rate.answered_rps),
        ("errors".to_string(), error_share(&run.plan, phase)),
        ("requests".to_string(), phase.requests.due as f64),
    ]);
    for (name, field) in [("p50_us", "p50"), ("p90_us", "p90"), ("p99_us", "p99")] {
        if let Some(v) = phase.latency(Kind::Response, field) {
            m.insert(name.to_string(), v);
        }
    }
    m.extend(super::classes::of_classes(phase));
    m
}
