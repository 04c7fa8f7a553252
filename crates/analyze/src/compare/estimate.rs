//! The uncertainty of a ratio of B to A, and the verdict on one metric.

use lastdrop_model::documents::{MetricComparison, MetricVerdict};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Chance of a false difference over all metrics together, for a comparison that looks once, at its end.
pub(super) const ALPHA: f64 = 0.05;
/// An interval wider than this could hide a large difference, so it decides nothing.
pub(super) const WIDEST: f64 = 0.3;

/// A mean log ratio with its standard error and degrees of freedom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) log: f64,
    pub(super) error: f64,
    pub(super) freedom: f64,
    /// Additional noise, as half the width of a 95 % interval of the log ratio.
    pub(super) floor: f64,
}

impl Estimate {
    /// Returns half the width of the two-sided interval that contains the log ratio with probability 1 −
    /// `alpha`.
    pub(super) fn half(&self, alpha: f64) -> f64 {
        let quantile = |p: f64| {
            StudentsT::new(0.0, 1.0, self.freedom.max(1.0)).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - p / 2.0))
        };
        // The floor comes from many blocks, so it scales like a normal quantile.
        let floor = self.floor * normal_quantile(1.0 - alpha / 2.0) / normal_quantile(0.975);
        (quantile(alpha) * self.error).hypot(floor)
    }

    pub(super) fn is_clear(&self, alpha: f64) -> bool {
        self.log.abs() > self.half(alpha)
    }

    pub(super) fn comparison(&self, name: &str, a: f64, b: f64, alpha: f64) -> MetricComparison {
        let plain = self.half(ALPHA);
        let smallest = share(self.half(alpha));
        let verdict = if self.is_clear(alpha) {
            // More answers are better; more time and more errors are worse.
            if (self.log > 0.0) == (name == "rps") { MetricVerdict::Better } else { MetricVerdict::Worse }
        // A difference that this metric alone would show makes the verdict inconclusive, not "no difference".
        } else if self.is_clear(ALPHA) || smallest > WIDEST && name != "errors" {
            MetricVerdict::Inconclusive
        } else {
            MetricVerdict::NoDifference
        };
        let clamp = |x: f64| x.exp().clamp(1e-9, 1e9);
        MetricComparison {
            a,
            b,
            ratio: clamp(self.log),
            interval: [clamp(self.log - plain), clamp(self.log + plain)],
            verdict,
            smallest_difference: smallest,
        }
    }
}

/// Converts half the width of a log interval to a fraction: the smallest difference that would be detected.
pub(super) fn share(log: f64) -> f64 {
    log.exp_m1().clamp(0.0, 1e9)
}

fn normal_quantile(p: f64) -> f64 {
    Normal::new(0.0, 1.0).map_or(1.96, |n| n.inverse_cdf(p))
}
