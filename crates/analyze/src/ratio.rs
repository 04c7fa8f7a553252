//! The ratio of paired measurements before and after a change, with its interval.
//!
//! The two values of a pair are measured close together in time, so that influences of the machine cancel.
//! The logarithms of the ratios are averaged and get a Student's t interval. The logarithm makes ratios
//! symmetric, so Fieller's theorem is not needed (see e.g. Kalibera & Jones, "Rigorous benchmarking in
//! reasonable time", ISMM 2013).

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::series::mean_and_variance;

/// A geometric mean ratio with a two-sided interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    pub pairs: usize,
}

/// Returns the ratio after / before of pairs of positive measurements, with its interval at `confidence`
/// (such as 0.95). `None` with fewer than two pairs or a value that is not positive.
#[must_use]
pub fn paired(pairs: &[(f64, f64)], confidence: f64) -> Option<Ratio> {
    let n = pairs.len();
    if n < 2 || pairs.iter().any(|(b, a)| !(*b > 0.0 && *a > 0.0 && b.is_finite() && a.is_finite())) {
        return None;
    }
    let logs: Vec<f64> = pairs.iter().map(|(before, after)| (after / before).ln()).collect();
    let (mean, variance) = mean_and_variance(&logs);
    let t = StudentsT::new(0.0, 1.0, (n - 1) as f64).ok()?.inverse_cdf(0.5 + confidence / 2.0);
    let half = t * (variance / n as f64).sqrt();
    Some(Ratio { ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp(), pairs: n })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // ln ratios 0.1, 0.2, 0.3: mean 0.2, s 0.1, t(2, 97.5 %) = 4.3027, half width 0.24842.
        let pairs: Vec<(f64, f64)> = [0.1f64, 0.2, 0.3].iter().map(|x| (1.0, x.exp())).collect();
        let r = paired(&pairs, 0.95).expect("three pairs");
        assert!((r.ratio.ln() - 0.2).abs() < 1e-9);
        assert!((r.low.ln() - (0.2 - 0.248_42)).abs() < 1e-4, "{r:?}");
        assert!((r.high.ln() - (0.2 + 0.248_42)).abs() < 1e-4, "{r:?}");
    }

    #[test]
    fn nothing_is_said_without_enough_pairs() {
        assert_eq!(paired(&[(1.0, 2.0)], 0.95), None);
        assert_eq!(paired(&[(1.0, 2.0), (0.0, 1.0)], 0.95), None);
    }
}
