//! Compares the error counts of both sides.

use lastdrop_model::documents::{MetricComparison, MetricVerdict};

use super::estimate::Estimate;
use crate::series::mean_and_variance;

/// With fewer errors on both sides together, no comparison is possible.
const FEW_ERRORS: f64 = 5.0;

/// Compares (errors, requests) of both sides by the log ratio of two Poisson rates. Half an error is added to
/// each, and the variance is multiplied by the dispersion. `None` if there were no errors at all.
pub(super) fn errors(a: (f64, f64), b: (f64, f64), dispersion: f64, alpha: f64) -> Option<MetricComparison> {
    if a.1 <= 0.0 || b.1 <= 0.0 {
        return None;
    }
    let log = ((b.0 + 0.5) / b.1).ln() - ((a.0 + 0.5) / a.1).ln();
    let error = (dispersion * (1.0 / (a.0 + 0.5) + 1.0 / (b.0 + 0.5))).sqrt();
    let estimate = Estimate { log, error, freedom: 1000.0, floor: 0.0 };
    let mut comparison = estimate.comparison("errors", a.0 / a.1, b.0 / b.1, alpha);
    if a.0 + b.0 == 0.0 {
        comparison.ratio = 1.0;
    }
    if a.0 + b.0 < FEW_ERRORS {
        comparison.verdict = MetricVerdict::NoDifference;
    }
    Some(comparison)
}

/// Variance divided by mean of error counts, at least 1, because errors come in groups.
pub(super) fn dispersion(counts: &[f64]) -> f64 {
    let (mean, variance) = mean_and_variance(counts);
    if mean > 0.0 { (variance / mean).max(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_compared_by_their_counts() {
        let c = errors((10.0, 1000.0), (40.0, 1000.0), 1.0, 0.01).expect("counts");
        assert_eq!(c.verdict, MetricVerdict::Worse);
        assert_eq!(
            errors((0.0, 1000.0), (2.0, 1000.0), 1.0, 0.01).expect("counts").verdict,
            MetricVerdict::NoDifference
        );
        assert_eq!(errors((0.0, 1000.0), (60.0, 1000.0), 1.0, 0.01).expect("counts").verdict, MetricVerdict::Worse);
        // The same errors in one burst are much weaker evidence.
        assert_eq!(
            errors((10.0, 1000.0), (40.0, 1000.0), 20.0, 0.01).expect("counts").verdict,
            MetricVerdict::NoDifference
        );
    }
}
