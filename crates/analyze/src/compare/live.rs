//! Interleaved blocks of both sides: which side runs next, when the answer is clear, and the result.

use std::collections::BTreeMap;

use lastdrop_model::documents::MetricVerdict;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::classes;
use super::errors::{dispersion, errors};
use super::estimate::{Estimate, share};
use super::metrics::{FEWEST, METRICS, Metrics};
use super::verdict::{Comparison, chance, conclude};
use crate::series::mean_and_variance;

/// Share of the error probability that is spent on early looks.
const EARLY: f64 = 0.1;
/// The first early look comes after this many blocks.
const FIRST_LOOK: usize = 5;
/// A smaller difference is not worth more time.
const RESOLUTION: f64 = 0.01;

/// The next step of a live comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextBlock {
    /// Load A and B for one stretch each.
    Pair {
        b_first: bool,
    },
    Stop,
}

/// Runs a live comparison: decides which side goes first in each block, and when the answer is clear.
///
/// Blocks come in groups of two, ABBA or BAAB at random. A steady drift then hits both sides alike, and a
/// periodic disturbance cannot favour one side. From the fifth block on, there is a look after each block. A
/// tenth of the probability of a false difference is shared among these looks, and the rest is for the last
/// (a union bound). So stopping early does not raise that probability.
#[derive(Debug, Clone)]
pub struct LiveComparison {
    most: usize,
    early: bool,
    open: bool,
    pairs: Vec<(Metrics, Metrics)>,
    /// Number of blocks requested, and the side that goes first in this group.
    asked: usize,
    b_first: bool,
    rng: Xoshiro256PlusPlus,
}

impl LiveComparison {
    /// Compares over at most `most` valid blocks; `early` allows an earlier end.
    #[must_use]
    pub fn new(most: usize, open: bool, early: bool, seed: u64) -> LiveComparison {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        LiveComparison { most, early, open, pairs: Vec::new(), asked: 0, b_first: false, rng }
    }

    /// Returns the next step.
    pub fn ask(&mut self) -> NextBlock {
        if self.pairs.len() >= self.most || self.is_clear() {
            return NextBlock::Stop;
        }
        if self.asked.is_multiple_of(2) {
            self.b_first = self.rng.next_u64() & 1 == 1;
        } else {
            self.b_first = !self.b_first;
        }
        self.asked += 1;
        NextBlock::Pair { b_first: self.b_first }
    }

    /// Adds a valid block.
    pub fn add(&mut self, a: Metrics, b: Metrics) {
        self.pairs.push((a, b));
    }

    #[must_use]
    pub fn blocks(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the error probability of a metric for the look after the blocks so far.
    fn alpha(&self, metric: &str) -> f64 {
        let all = chance(metric, self.open);
        let early = self.most.saturating_sub(FIRST_LOOK);
        if early == 0 || !self.early {
            all
        } else if self.pairs.len() < self.most {
            all * EARLY / early as f64
        } else {
            all * (1.0 - EARLY)
        }
    }

    fn is_clear(&self) -> bool {
        if !self.early || self.pairs.len() < FIRST_LOOK {
            return false;
        }
        let clear = |m: &&str| self.estimate(m).is_some_and(|e| e.is_clear(self.alpha(m)));
        let fine = |m: &&str| self.estimate(m).is_some_and(|e| share(e.half(self.alpha(m))) < RESOLUTION);
        METRICS[..3].iter().any(clear) || METRICS[..2].iter().all(fine)
    }

    pub(super) fn estimate(&self, metric: &str) -> Option<Estimate> {
        let logs: Vec<f64> = self
            .pairs
            .iter()
            .filter_map(|(a, b)| {
                let (a, b) = (*a.get(metric)?, *b.get(metric)?);
                (a > 0.0 && b > 0.0).then(|| (b / a).ln())
            })
            .collect();
        let n = logs.len() as f64;
        if logs.len() < 2 {
            return None;
        }
        let (mean, variance) = mean_and_variance(&logs);
        // Values are whole microseconds or requests, so a standard error far below one step is not credible.
        let step = self.pairs.iter().filter_map(|(a, _)| a.get(metric)).fold(f64::INFINITY, |m, x| m.min(*x));
        let rounding = if step.is_finite() && step > 0.0 { 0.3 / step / n.sqrt() } else { 0.0 };
        Some(Estimate { log: mean, error: (variance / n).sqrt().max(rounding), freedom: n - 1.0, floor: 0.0 })
    }

    /// Concludes from the blocks so far.
    #[must_use]
    pub fn conclude(&self) -> Comparison {
        let mut notes = Vec::new();
        let mut metrics = BTreeMap::new();
        let n = self.pairs.len();
        if n < FEWEST {
            notes.push(format!("only {n} blocks count; it takes {FEWEST} to say anything"));
        }
        for name in &METRICS[..4] {
            let Some(estimate) = self.estimate(name) else { continue };
            let (a, b) = (self.mean(name, |p| &p.0), self.mean(name, |p| &p.1));
            let mut comparison = estimate.comparison(name, a, b, self.alpha(name));
            if n < FEWEST {
                comparison.verdict = MetricVerdict::Inconclusive;
            }
            metrics.insert((*name).to_string(), comparison);
        }
        if n >= FEWEST {
            let counts = |m: &Metrics| (m["errors"] * m["requests"], m["requests"]);
            let (a, b): (Vec<_>, Vec<_>) = self.pairs.iter().map(|(a, b)| (counts(a), counts(b))).unzip();
            let sum = |v: &[(f64, f64)]| v.iter().fold((0.0, 0.0), |s, x| (s.0 + x.0, s.1 + x.1));
            // The scatter between blocks shows how failures group.
            let scatter = |v: &[(f64, f64)]| dispersion(&v.iter().map(|c| c.0).collect::<Vec<_>>());
            let dispersion = scatter(&a).max(scatter(&b));
            if let Some(c) = errors(sum(&a), sum(&b), dispersion, self.alpha("errors")) {
                metrics.insert("errors".into(), c);
            }
        }
        let means = |side: fn(&(Metrics, Metrics)) -> &Metrics| -> Metrics {
            let keys = self.pairs.first().map(|p| side(p).keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
            keys.into_iter().map(|key| (key.clone(), self.mean(&key, side))).collect()
        };
        let classes = classes::compare(&means(|p| &p.0), &means(|p| &p.1), n, |key| self.estimate(key));
        conclude(metrics, classes, self.open, notes)
    }

    /// Returns the geometric mean of a metric over the blocks of a side.
    pub(super) fn mean(&self, metric: &str, side: fn(&(Metrics, Metrics)) -> &Metrics) -> f64 {
        let logs: Vec<f64> =
            self.pairs.iter().filter_map(|p| side(p).get(metric)).filter(|x| **x > 0.0).map(|x| x.ln()).collect();
        (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
    }

    /// Returns the noise between two consecutive runs, measured on blocks with the same configuration on both
    /// sides. It uses the spread of all stretches, not only that within pairs.
    #[must_use]
    pub fn noise_floor(&self) -> Metrics {
        METRICS[..4]
            .iter()
            .filter_map(|name| {
                let logs: Vec<f64> = self
                    .pairs
                    .iter()
                    .flat_map(|(a, b)| [a.get(*name), b.get(*name)])
                    .flatten()
                    .filter(|x| **x > 0.0)
                    .map(|x| x.ln())
                    .collect();
                let n = logs.len() as f64;
                if n < 4.0 {
                    return None;
                }
                let (_, variance) = mean_and_variance(&logs);
                let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(0.975);
                Some(((*name).to_string(), share(t * (2.0 * variance).sqrt())))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::CompareVerdict;

    use super::*;
    use crate::compare::fixtures::{normal, uniform};

    fn stretch(speed: f64) -> Metrics {
        BTreeMap::from([
            ("rps".to_string(), 400.0 * speed),
            ("p50_us".to_string(), 20_000.0 / speed),
            ("p90_us".to_string(), 25_000.0 / speed),
            ("p99_us".to_string(), 40_000.0 / speed),
            ("errors".to_string(), 0.0),
            ("requests".to_string(), 250.0),
        ])
    }

    /// Simulates a live comparison of two sides with scatter `noise` and a slow drift, with B at `level`.
    fn live(level: f64, noise: f64, seed: u64) -> (Comparison, usize) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut l = LiveComparison::new(15, false, true, seed);
        let mut drift = 0.0;
        while let NextBlock::Pair { b_first } = l.ask() {
            let mut measure = |b: bool| {
                drift += noise * 0.3 * normal(&mut rng);
                // Now and then another process takes the CPU.
                let hit = if uniform(&mut rng) < 0.05 { -4.0 * noise * uniform(&mut rng) } else { 0.0 };
                stretch(f64::exp(drift + hit + noise * normal(&mut rng)) * if b { level } else { 1.0 })
            };
            let first = measure(b_first);
            let second = measure(!b_first);
            if b_first { l.add(second, first) } else { l.add(first, second) }
        }
        (l.conclude(), l.blocks())
    }

    #[test]
    fn looking_early_does_not_find_what_is_not_there() {
        for noise in [0.005, 0.03, 0.1] {
            let wrong = (0..1000)
                .filter(|i| {
                    let v = live(1.0, noise, *i).0.verdict;
                    !matches!(v, CompareVerdict::NoDifference | CompareVerdict::Inconclusive)
                })
                .count();
            assert!(wrong <= 60, "{wrong} of 1000 at noise {noise}");
        }
    }

    #[test]
    fn what_is_there_is_found() {
        let found = |level: f64, noise: f64| {
            (0..200).filter(|i| live(level, noise, *i).0.verdict == CompareVerdict::Worse).count()
        };
        assert!(found(0.9, 0.03) >= 190, "{}", found(0.9, 0.03));
        assert!(found(0.97, 0.01) >= 120, "{}", found(0.97, 0.01));
        // A large difference ends the comparison early.
        assert!(live(0.7, 0.02, 1).1 < 8);
    }

    #[test]
    fn noise_that_hides_everything_is_inconclusive() {
        let (c, _) = live(1.0, 0.6, 3);
        assert_eq!(c.verdict, CompareVerdict::Inconclusive, "{c:?}");
        assert!(c.smallest_difference > 0.3);
    }

    #[test]
    fn each_group_of_two_blocks_is_abba() {
        let mut l = LiveComparison::new(20, false, true, 4);
        let order: Vec<bool> = (0..10)
            .map(|_| match l.ask() {
                NextBlock::Pair { b_first } => b_first,
                NextBlock::Stop => panic!("too early"),
            })
            .collect();
        assert!(order.chunks(2).all(|g| g[0] != g[1]), "{order:?}");
        assert!(order.chunks(2).any(|g| g[0]) && order.chunks(2).any(|g| !g[0]), "{order:?}");
    }
}
