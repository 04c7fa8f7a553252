//! Detects regressions: compares what users see now with what they saw before, and reports differences larger than
//! chance.
//!
//! It compares errors and slow requests. Slow means slower than the earlier 99th or 90th percentile by a margin that
//! people could care about. Both are shares of requests, compared by the usual test of two proportions. Requests come
//! in bursts that fare alike, so counts vary more than with independent requests. This excess variation is estimated
//! from the seconds before and from those now. So a stall of a second, which the time before may not have had, does not
//! count as many independent requests. The threshold is high (4 standard deviations), because it is tested every
//! second. It is tested on the latest seconds, the latest minute and all seconds: late problems are found soon, and
//! small changes in the end.

use lastdrop_model::units::show_us;
use lastdrop_model::{Experience, Histogram};

/// Standard deviations by which the share has to be larger.
const SIGMAS: f64 = 4.0;
/// A 99th percentile that is longer by less than this is no reason to roll back.
const SLOWER: f64 = 1.1;
const SLOWER_US: u64 = 1000;
/// Smaller shares of errors, fewer errors, or fewer slow requests than these are no reason either.
const LEAST_SHARE: f64 = 0.001;
const LEAST_ERRORS: u64 = 3;
const LEAST_SLOW: u64 = 5;
/// With fewer requests there is no verdict.
const LEAST_REQUESTS: u64 = 20;
/// Windows that are tested in addition to all seconds: the latest seconds of these lengths.
const RECENT: [usize; 3] = [5, 15, 60];
/// Quantiles of the earlier requests beyond which a request is slow.
const SLOW: [(f64, &str); 2] = [(0.99, "p99"), (0.9, "p90")];
/// Lengths in seconds at which bursts are measured.
const BURSTS: [usize; 2] = [1, 5];

/// A number of requests, and how many of them are counted.
#[derive(Debug, Clone, Copy, Default)]
struct CountedShare {
    of: u64,
    count: u64,
}

impl CountedShare {
    fn value(self) -> f64 {
        self.count as f64 / (self.of as f64).max(1.0)
    }

    fn add(self, other: CountedShare) -> CountedShare {
        CountedShare { of: self.of + other.of, count: self.count + other.count }
    }
}

/// Counts of one second.
#[derive(Debug, Clone)]
struct SecondShares {
    errors: CountedShare,
    /// For each of [`SLOW`].
    slow: Vec<CountedShare>,
}

/// Watches for a regression after a change.
#[derive(Debug)]
pub struct RegressionDetector {
    before: Experience,
    beginning_s: f64,
    errors: BaselineShare,
    slow: Vec<(SlowThreshold, BaselineShare)>,
    all: Experience,
    /// Counts of each second.
    seconds: Vec<SecondShares>,
}

/// A percentile of the earlier requests, and the slower threshold with its margin.
#[derive(Debug, Clone, Copy)]
struct SlowThreshold {
    quantile: f64,
    name: &'static str,
    above_us: u64,
}

/// A share of the earlier requests, and the factor by which it varied more than by chance.
#[derive(Debug, Clone, Copy)]
struct BaselineShare {
    share: CountedShare,
    variation: f64,
}

fn errors(e: &Experience) -> CountedShare {
    CountedShare { of: e.requests, count: e.errors }
}

fn slow(e: &Experience, slow_us: u64) -> CountedShare {
    CountedShare { of: e.latency.count(), count: e.latency.count_above(slow_us) }
}

impl RegressionDetector {
    /// Takes the seconds before the change. For the first `beginning_s` seconds only errors count, because a server
    /// that has just started is slow.
    #[must_use]
    pub fn new(before: &[Experience], beginning_s: f64) -> RegressionDetector {
        let sum = Experience::sum(before);
        let slow = SLOW.map(|(quantile, name)| {
            let us = sum.latency.quantile(quantile);
            let above_us = ((us as f64 * SLOWER) as u64).max(us + SLOWER_US);
            // Bursts are measured beyond the percentile itself, which gives more requests to count than beyond the
            // margin.
            let variation = variation(&before.iter().map(|e| slow(e, us)).collect::<Vec<_>>());
            (SlowThreshold { quantile, name, above_us }, BaselineShare { share: slow(&sum, above_us), variation })
        });
        let variation = variation(&before.iter().map(errors).collect::<Vec<_>>());
        RegressionDetector {
            errors: BaselineShare { share: errors(&sum), variation },
            slow: slow.to_vec(),
            before: sum,
            beginning_s,
            all: Experience::default(),
            seconds: Vec::new(),
        }
    }

    /// Adds a second; returns why things are worse now, if they are.
    pub fn add(&mut self, second: Experience) -> Option<String> {
        let counts = self.all.seconds >= self.beginning_s;
        self.all.add(&second);
        let latency = if counts { second.latency } else { Histogram::new() };
        let second = Experience { latency, ..second };
        self.seconds.push(SecondShares {
            errors: errors(&second),
            slow: self.slow.iter().map(|(of, _)| slow(&second, of.above_us)).collect(),
        });
        let all = self.seconds.len();
        let mut windows = RECENT.into_iter().filter(|n| *n < all).chain([all]);
        windows.find_map(|n| self.judge(&self.seconds[all - n..]))
    }

    /// Returns why these seconds are worse, if they are.
    fn judge(&self, seconds: &[SecondShares]) -> Option<String> {
        let length = seconds.len();
        let parts: Vec<CountedShare> = seconds.iter().map(|s| s.errors).collect();
        let now = sum(&parts);
        let share = self.errors.share.value();
        if now.count >= LEAST_ERRORS && now.value() >= share + LEAST_SHARE && self.errors.is_less(&parts) {
            return Some(format!(
                "{} of {} requests in {length} s had no good answer ({:.2} %), {:.2} % before",
                now.count,
                now.of,
                now.value() * 100.0,
                share * 100.0
            ));
        }
        self.slow.iter().enumerate().find_map(|(i, (of, before))| {
            let parts: Vec<CountedShare> = seconds.iter().map(|s| s.slow[i]).collect();
            let now = sum(&parts);
            (now.count >= LEAST_SLOW && before.is_less(&parts)).then(|| {
                format!(
                    "{:.2} % of {} requests in {length} s took longer than {}, {:.2} % before, when {} was {}",
                    now.value() * 100.0,
                    now.of,
                    show_us(of.above_us as f64),
                    before.share.value() * 100.0,
                    of.name,
                    show_us(self.before.latency.quantile(of.quantile) as f64)
                )
            })
        })
    }

    #[must_use]
    pub fn before(&self) -> &Experience {
        &self.before
    }

    /// Returns everything measured after the change.
    #[must_use]
    pub fn during(&self) -> &Experience {
        &self.all
    }
}

fn sum(parts: &[CountedShare]) -> CountedShare {
    parts.iter().copied().fold(CountedShare::default(), CountedShare::add)
}

impl BaselineShare {
    /// Returns true if the share of these seconds is larger by more than chance.
    fn is_less(&self, now: &[CountedShare]) -> bool {
        let (before, during) = (self.share, sum(now));
        if during.of < LEAST_REQUESTS || before.of == 0 {
            return false;
        }
        // With separate shares and with a common one: the first variance is too small if nothing happened before, the
        // second if much has happened now.
        let of = |share: f64, n: u64| share * (1.0 - share) / n as f64;
        let together = before.add(during).value();
        let apart = of(before.value(), before.of) + of(during.value(), during.of);
        let independent = apart.max(of(together, before.of) + of(together, during.of));
        let variance = independent * self.variation.max(variation(now));
        during.value() - before.value() > SIGMAS * variance.sqrt()
    }
}

/// Returns the factor by which counts of seconds vary more than those of independent requests, at least 1 (Pearson's
/// statistic divided by its degrees of freedom).
fn variation(seconds: &[CountedShare]) -> f64 {
    let share = sum(seconds).value();
    let at = |length: usize| {
        let parts: Vec<CountedShare> = seconds.chunks(length).map(sum).filter(|s| s.of > 0).collect();
        if parts.len() < 3 || share <= 0.0 || share >= 1.0 {
            return 1.0;
        }
        let squares = |s: &CountedShare| {
            let expected = s.of as f64 * share;
            (s.count as f64 - expected).powi(2) / (expected * (1.0 - share))
        };
        parts.iter().map(squares).sum::<f64>() / (parts.len() - 1) as f64
    };
    BURSTS.into_iter().map(at).fold(1.0, f64::max)
}

#[cfg(test)]
mod tests {
    use rand_core::{Rng, SeedableRng};
    use rand_xoshiro::Xoshiro256PlusPlus;

    use super::*;

    /// Visitors of a server: a rate per second, times around a typical one, and now and then a second in which all are
    /// slow.
    struct World {
        random: Xoshiro256PlusPlus,
        rate: f64,
        typical_us: f64,
        errors: f64,
        stalls: f64,
    }

    impl World {
        fn number(&mut self) -> f64 {
            (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
        }

        fn second(&mut self) -> Experience {
            let count = (self.rate + (self.number() - 0.5) * 2.0 * self.rate.sqrt()).max(0.0).round() as u64;
            let stall = if self.number() < self.stalls { 4.0 } else { 1.0 };
            let mut e = Experience { seconds: 1.0, requests: count, ..Experience::default() };
            for _ in 0..count {
                // Times of requests have a long tail: their logarithm is about normal.
                let normal = (0..12).map(|_| self.number()).sum::<f64>() - 6.0;
                e.latency.record((self.typical_us * stall * (0.5 * normal).exp()) as u64);
                e.errors += u64::from(self.number() < self.errors);
            }
            e
        }

        fn seconds(&mut self, n: usize) -> Vec<Experience> {
            (0..n).map(|_| self.second()).collect()
        }
    }

    fn world(seed: u64, rate: f64) -> World {
        let random = Xoshiro256PlusPlus::seed_from_u64(seed);
        World { random, rate, typical_us: 20_000.0, errors: 0.002, stalls: 0.03 }
    }

    /// Returns the seconds after which the regression is found.
    fn found_after(world: &mut World, guard: &mut RegressionDetector, seconds: usize) -> Option<usize> {
        (1..=seconds).find(|_| guard.add(world.second()).is_some())
    }

    #[test]
    fn what_has_not_changed_is_left_alone() {
        let mut wrong = 0;
        for seed in 0..200 {
            let mut world = world(seed, [5.0, 20.0, 80.0][seed as usize % 3]);
            let mut guard = RegressionDetector::new(&world.seconds(60), 3.0);
            wrong += u32::from(found_after(&mut world, &mut guard, 300).is_some());
        }
        assert!(wrong <= 6, "{wrong} of 200 times, in five minutes each");
    }

    #[test]
    fn twice_as_long_answers_and_some_errors_are_seen_within_a_minute() {
        let (mut slow, mut failing) = (0, 0);
        for seed in 0..100 {
            let mut world = world(seed, 20.0);
            let before = world.seconds(60);
            let mut guard = RegressionDetector::new(&before, 3.0);
            world.typical_us *= 2.0;
            slow += u32::from(found_after(&mut world, &mut guard, 60).is_some());
            let mut guard = RegressionDetector::new(&before, 3.0);
            (world.typical_us, world.errors) = (20_000.0, 0.05);
            let why = (0..60).find_map(|_| guard.add(world.second()));
            failing += u32::from(why.is_some_and(|why| why.contains("no good answer")));
        }
        assert!(slow >= 95 && failing >= 95, "{slow} {failing}");
    }

    #[test]
    fn a_margin_that_nobody_feels_is_no_reason() {
        let even = |us: u64| {
            let mut latency = Histogram::new();
            (0..50).for_each(|_| latency.record(us));
            Experience { seconds: 1.0, requests: 50, errors: 0, latency }
        };
        let mut guard = RegressionDetector::new(&vec![even(200); 30], 3.0);
        assert!((0..100).all(|_| guard.add(even(900)).is_none()), "0.7 ms");
        let mut guard = RegressionDetector::new(&vec![even(20_000); 30], 3.0);
        assert!((0..100).all(|_| guard.add(even(21_000)).is_none()), "5 %");
        assert!((0..30).any(|_| guard.add(even(30_000)).is_some()));
    }

    #[test]
    fn the_first_seconds_are_slow_and_nothing_is_said_of_next_to_nothing() {
        let mut world = world(1, 20.0);
        let mut guard = RegressionDetector::new(&world.seconds(60), 3.0);
        let mut slow = world.seconds(1).remove(0);
        (0..20).for_each(|_| slow.latency.record(3_000_000));
        assert_eq!(guard.add(slow), None);
        let mut guard = RegressionDetector::new(&[], 3.0);
        assert!((0..50).all(|_| guard.add(Experience::default()).is_none()));
    }
}
