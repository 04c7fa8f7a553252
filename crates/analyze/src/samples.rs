//! Durations as reports of other programs need them: exact mean and deviation, and values by rank.

use lastdrop_model::{Histogram, Micros};

/// Durations in microseconds. Values by rank come from a histogram of three digits; the rest is exact.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    histogram: Histogram,
    sum: f64,
    /// Sum of squared distances from the mean (Welford).
    spread: f64,
    mean: f64,
    min: Micros,
    max: Micros,
}

impl Samples {
    pub fn record(&mut self, us: Micros) {
        self.min = if self.histogram.count() == 0 { us } else { self.min.min(us) };
        self.max = self.max.max(us);
        self.histogram.record(us);
        let x = us as f64;
        self.sum += x;
        let before = x - self.mean;
        self.mean += before / self.histogram.count() as f64;
        self.spread += before * (x - self.mean);
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.count()
    }

    /// µs.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    #[must_use]
    pub fn min(&self) -> Micros {
        self.min
    }

    #[must_use]
    pub fn max(&self) -> Micros {
        self.max
    }

    /// 0 without samples.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Standard deviation of a sample (n − 1), µs; 0 below two samples.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        match self.count() {
            0 | 1 => 0.0,
            n => (self.spread / (n - 1) as f64).sqrt(),
        }
    }

    /// Returns the value at this rank, from 0, in ascending order.
    #[must_use]
    pub fn at_rank(&self, rank: u64) -> Micros {
        let n = self.count();
        if n == 0 {
            return 0;
        }
        let rank = rank.min(n - 1);
        self.histogram.quantile((rank as f64 + 0.5) / n as f64).clamp(self.min, self.max)
    }

    /// Returns the recorded values in ascending order with their counts. Each is the largest value of its
    /// histogram bucket.
    pub fn recorded(&self) -> impl Iterator<Item = (Micros, u64)> + '_ {
        self.histogram.recorded()
    }

    /// Counts the samples per whole millisecond.
    #[must_use]
    pub fn by_ms(&self) -> std::collections::BTreeMap<u64, u64> {
        let mut bins = std::collections::BTreeMap::new();
        for (us, n) in self.histogram.recorded() {
            *bins.entry(us / 1000).or_default() += n;
        }
        bins
    }

    /// Returns the median; for an even count, the mean of the two middle values.
    #[must_use]
    pub fn median(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            n if n % 2 == 1 => self.at_rank(n / 2) as f64,
            n => f64::midpoint(self.at_rank(n / 2 - 1) as f64, self.at_rank(n / 2) as f64),
        }
    }

    /// Returns the fraction (0 to 1) of the samples within `deviations` standard deviations of the mean;
    /// `None` without samples.
    #[must_use]
    pub fn share_within(&self, deviations: f64) -> Option<f64> {
        let reach = self.deviation() * deviations;
        let inside: u64 =
            self.histogram.recorded().filter(|(v, _)| (*v as f64 - self.mean).abs() <= reach).map(|(_, n)| n).sum();
        (self.count() > 0).then(|| inside as f64 / self.count() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_mean_and_deviation_are_those_of_the_textbook() {
        let mut s = Samples::default();
        for us in [4, 1, 3, 2] {
            s.record(us);
        }
        assert_eq!((s.min(), s.max(), s.at_rank(0), s.at_rank(3), s.at_rank(9)), (1, 4, 1, 4, 4));
        assert!((s.median() - 2.5).abs() < 1e-9 && (s.mean() - 2.5).abs() < 1e-9);
        assert!((s.deviation() - (5.0_f64 / 3.0).sqrt()).abs() < 1e-9);
        assert_eq!((s.share_within(1.0), s.by_ms()), (Some(0.5), [(0, 4)].into()));
        s.record(10);
        assert!((s.median() - 3.0).abs() < 1e-9);
        assert_eq!(Samples::default().share_within(1.0), None);
    }
}
