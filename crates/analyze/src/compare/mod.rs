//! Is B faster or slower than A? Two stored runs by their seconds, or interleaved blocks of both.
//!
//! Everything is reckoned with logarithms of ratios B / A. A verdict of one metric holds for all metrics together: of the
//! 5 % for which chance may find a difference where there is none, the metric that the comparison is mainly about has
//! three fifths, and the others share the rest (Bonferroni, weighted).
//!
//! `stored` compares two runs by their seconds, `live` decides on interleaved blocks and compares them. Each has an
//! `estimate` of every metric, and counts the `errors`; of what they say, `verdict` makes one [`Comparison`].

mod errors;
mod estimate;
#[cfg(test)]
mod fixtures;
mod live;
mod stored;
mod verdict;

use std::collections::BTreeMap;

use lastdrop_model::run::Run;
use lastdrop_model::{Kind, PhaseReport};

pub use self::live::{Live, Next};
pub use self::stored::{assumed_floor, stored};
pub use self::verdict::{Comparison, label};
use crate::objective::error_share;

/// The metrics, in the order in which people read them.
pub const METRICS: [&str; 5] = ["rps", "p50_us", "p90_us", "p99_us", "errors"];

/// Fewer independent stretches on a side say nothing.
const FEWEST: usize = 4;

/// Metrics by name.
pub type Metrics = BTreeMap<String, f64>;

/// The metrics of one stretch of load. Latencies are absent where nothing was answered. `errors` is a share.
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
    m
}
