//! The metrics by which runs are compared.

use std::collections::BTreeMap;

use lastdrop_model::run::Run;
use lastdrop_model::{Kind, PhaseReport};

use crate::objective::error_share;

/// All metrics, in the usual order.
pub const METRICS: [&str; 5] = ["rps", "p50_us", "p90_us", "p99_us", "errors"];

/// With fewer independent stretches on a side, no comparison is possible.
pub(super) const FEWEST: usize = 4;

/// Metrics by name.
pub type Metrics = BTreeMap<String, f64>;

/// Returns the metrics of a stretch of load; those of a class are named like `checkout.p99_us`. Latencies are
/// absent if nothing was answered. `errors` is a fraction.
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
