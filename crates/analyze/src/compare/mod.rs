//! Is B faster or slower than A? Two stored runs by their seconds, or interleaved blocks of both.
//!
//! Everything is reckoned with logarithms of ratios B / A. A verdict of one metric holds for all metrics together: of the
//! 5 % for which chance may find a difference where there is none, the metric that the comparison is mainly about has
//! three fifths, and the others share the rest (Bonferroni, weighted).
//!
//! `stored` compares two runs by their seconds, `live` decides on interleaved blocks and compares them, `numbers` compares what
//! others have told as one number a block. Each has an
//! `estimate` of every metric, and counts the `errors`; of what they say, `verdict` makes one [`Comparison`].

mod classes;
mod errors;
mod estimate;
#[cfg(test)]
mod fixtures;
mod live;
mod metrics;
mod numbers;
mod stored;
mod verdict;

pub use self::live::{Live, Next};
pub use self::metrics::{METRICS, Metrics, metrics_of};
pub use self::numbers::numbers;
pub use self::stored::{assumed_floor, stored};
pub use self::verdict::{Comparison, label};
