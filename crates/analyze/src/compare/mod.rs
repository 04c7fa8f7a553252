//! Is B faster or slower than A? Compares two stored runs by their seconds, or interleaved blocks of both.
//!
//! All calculations use the logarithm of the ratio B / A. The verdicts on the metrics hold jointly with a 5 %
//! chance of a false difference. Three fifths of that go to the main metric; the others share the rest
//! (weighted Bonferroni).
//!
//! `stored` compares two runs by their seconds; `live` runs interleaved blocks and compares them; `numbers`
//! compares results of other programs, one number per block. Each produces an `estimate` for every metric and
//! counts the `errors`. From these, `verdict` makes one [`Comparison`].

mod classes;
mod errors;
mod estimate;
#[cfg(test)]
pub(crate) mod fixtures;
mod live;
mod metrics;
mod numbers;
mod stored;
mod verdict;

pub use self::live::{LiveComparison, NextBlock};
pub use self::metrics::{METRICS, Metrics, metrics_of};
pub use self::numbers::numbers;
pub use self::stored::{assumed_floor, stored};
pub use self::verdict::{Comparison, label};
