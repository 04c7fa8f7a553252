//! Requests per second: peaks, burstiness, and which arrivals would look alike.
//!
//! Seconds are compared with the mean of their own minute, so that the daily rhythm does not look like a burst. For
//! independent arrivals (Poisson) the variance of the counts per second equals their mean: index of dispersion 1.
//! Evenly spaced arrivals are near 0; clustered ones are above 1.
//!
//! The fit of a law is Kolmogorov's distance. That is the greatest difference between the observed and the expected
//! share of seconds with at most n requests, given the rate of each minute. 0 is perfect, 1 is nothing in common. Sums
//! of differences of the frequencies would not work: with bursts of five all counts are multiples of five.

use std::collections::BTreeMap;

use lastdrop_model::documents::{ArrivalsLaw, LogArrivals, LogMoment, LogRate};

/// Most steps; in a longer log a step covers several seconds.
const MOST_STEPS: usize = 1 << 17;
/// Most steps in the document: enough for a chart.
const MOST_SHOWN_STEPS: usize = 3600;
/// Seconds per group.
const MINUTE: usize = 60;
/// Busier seconds are beyond the fit of a law.
const MOST_FITTED: usize = 1 << 16;
/// Minutes with fewer requests do not show how they arrive.
const LEAST_IN_MINUTE: u64 = 30;
/// Shorter parts of a minute do not either.
const LEAST_SECONDS: usize = 10;

/// Counts of requests by second.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    /// The first second, and the seconds per step.
    start_s: i64,
    step_s: i64,
    steps: Vec<u32>,
    minute: Minute,
    peak: (u64, i64),
    peak_minute: (u64, i64),
    /// Σ variance and Σ mean of the seconds of minutes.
    variances: f64,
    means: f64,
    /// How often a second of an evaluated minute had n requests.
    seen: Vec<u64>,
    /// How many minutes had this number of requests and of seconds.
    levels: BTreeMap<(u64, u64), u64>,
}

/// The current minute.
#[derive(Debug)]
struct Minute {
    number: i64,
    seconds: [u32; MINUTE],
}

impl Default for Minute {
    fn default() -> Minute {
        Minute { number: i64::MIN, seconds: [0; MINUTE] }
    }
}

impl Rates {
    /// Counts a request at a second since 1970. Requests arrive in order, except for late ones.
    pub(crate) fn count(&mut self, second: i64) {
        self.count_step(second);
        let minute = second.div_euclid(MINUTE as i64);
        if minute > self.minute.number {
            self.end_minute(MINUTE);
            self.minute.number = minute;
        }
        if minute == self.minute.number {
            self.minute.seconds[second.rem_euclid(MINUTE as i64) as usize] += 1;
        }
    }

    fn count_step(&mut self, second: i64) {
        if self.steps.is_empty() {
            (self.start_s, self.step_s) = (second, 1);
        }
        // A request from before the start of the log counts at its beginning.
        let mut step = second.saturating_sub(self.start_s).max(0) / self.step_s;
        while step >= MOST_STEPS as i64 {
            self.steps = self.steps.chunks(2).map(|pair| pair.iter().sum()).collect();
            self.step_s *= 2;
            step /= 2;
        }
        let step = step as usize;
        if step >= self.steps.len() {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] = self.steps[step].saturating_add(1);
    }

    /// Ends the minute, at its end or at second `to` where the log ends.
    fn end_minute(&mut self, to: usize) {
        let Minute { number, seconds } = std::mem::take(&mut self.minute);
        let sum: u64 = seconds.iter().map(|n| u64::from(*n)).sum();
        if sum == 0 {
            return;
        }
        let begin = number * MINUTE as i64;
        for (second, n) in seconds.iter().enumerate() {
            if u64::from(*n) > self.peak.0 {
                self.peak = (u64::from(*n), begin + second as i64);
            }
        }
        if sum > self.peak_minute.0 {
            self.peak_minute = (sum, begin);
        }
        // The log's first minute, and its first second, are incomplete.
        let from = (self.start_s + 1 - begin).clamp(0, MINUTE as i64) as usize;
        let seconds = seconds.get(from..to).unwrap_or_default();
        let sum: u64 = seconds.iter().map(|n| u64::from(*n)).sum();
        if sum < LEAST_IN_MINUTE || seconds.len() < LEAST_SECONDS {
            return;
        }
        let mean = sum as f64 / seconds.len() as f64;
        let squares: f64 = seconds.iter().map(|n| (f64::from(*n) - mean).powi(2)).sum();
        self.variances += squares / (seconds.len() - 1) as f64;
        self.means += mean;
        for n in seconds {
            let n = (*n as usize).min(MOST_FITTED);
            if n >= self.seen.len() {
                self.seen.resize(n + 1, 0);
            }
            self.seen[n] += 1;
        }
        *self.levels.entry((sum, seconds.len() as u64)).or_insert(0) += 1;
        if self.levels.len() > MOST_STEPS {
            // Merge levels that are nearly equal.
            let mut levels = BTreeMap::new();
            for ((sum, length), n) in std::mem::take(&mut self.levels) {
                *levels.entry((sum - sum % 16, length)).or_insert(0) += n;
            }
            self.levels = levels;
        }
    }

    /// Returns the rates; `span_s` is the time that the log covers.
    pub(crate) fn finish(mut self, requests: u64, span_s: f64) -> (LogRate, LogArrivals) {
        self.end_minute(self.last_of_minute());
        let arrivals = self.arrivals();
        let together = self.steps.len().div_ceil(MOST_SHOWN_STEPS).max(1);
        let rate = LogRate {
            mean_rps: if span_s > 0.0 { requests as f64 / span_s } else { requests as f64 },
            peak: LogMoment { unix_s: self.peak.1, rps: self.peak.0 as f64 },
            busiest_minute: LogMoment { unix_s: self.peak_minute.1, rps: self.peak_minute.0 as f64 / MINUTE as f64 },
            start_unix_s: self.start_s,
            step_s: self.step_s as u64 * together as u64,
            counts: self.steps.chunks(together).map(|c| c.iter().map(|n| u64::from(*n)).sum()).collect(),
        };
        (rate, arrivals)
    }

    /// The last second of the minute that has a request; the log may end within it.
    fn last_of_minute(&self) -> usize {
        self.minute.seconds.iter().rposition(|n| *n > 0).unwrap_or(0)
    }

    /// The busiest stretch of at most `most_s` seconds, in `parts` parts: requests per second, and seconds.
    pub(crate) fn busiest(&self, most_s: usize, parts: usize) -> Vec<(f64, u64)> {
        let step_s = self.step_s.max(1) as usize;
        let steps = (most_s / step_s).clamp(1, self.steps.len().max(1));
        let mut sum: u64 = self.steps.iter().take(steps).map(|n| u64::from(*n)).sum();
        let (mut best, mut from) = (sum, 0);
        for end in steps..self.steps.len() {
            sum = sum + u64::from(self.steps[end]) - u64::from(self.steps[end - steps]);
            if sum > best {
                (best, from) = (sum, end + 1 - steps);
            }
        }
        let stretch = self.steps.get(from..from + steps).unwrap_or_default();
        let part = stretch.len().div_ceil(parts).max(1);
        let seconds = |steps: &[u32]| (steps.len() * step_s) as u64;
        let count = |steps: &[u32]| steps.iter().map(|n| u64::from(*n)).sum::<u64>() as f64;
        stretch.chunks(part).map(|p| (count(p) / seconds(p) as f64, seconds(p))).collect()
    }

    /// How the requests arrived, in the minutes that are over.
    pub(crate) fn arrivals(&self) -> LogArrivals {
        if self.means == 0.0 {
            return LogArrivals::default();
        }
        let dispersion = self.variances / self.means;
        let laws = [ArrivalsLaw::Uniform, ArrivalsLaw::Poisson, ArrivalsLaw::Bursts];
        let distances = laws.map(|law| (law, self.distance(law, dispersion)));
        let best = distances.iter().min_by(|a, b| a.1.total_cmp(&b.1)).copied();
        let (law, distance) = best.unwrap_or((ArrivalsLaw::Poisson, 1.0));
        LogArrivals {
            dispersion: Some(dispersion),
            law: Some(law),
            distance: Some(distance),
            distances: distances.into_iter().map(|(law, d)| (law.name().to_string(), d)).collect(),
            burst: if law == ArrivalsLaw::Bursts { dispersion.max(1.0) } else { 1.0 },
        }
    }

    fn distance(&self, law: ArrivalsLaw, dispersion: f64) -> f64 {
        let mut expected = vec![0.0; self.seen.len()];
        for ((sum, length), minutes) in &self.levels {
            let mean = *sum as f64 / *length as f64;
            let seconds = (*minutes * *length) as f64;
            add_expected(law, mean, dispersion, seconds, &mut expected);
        }
        let all: f64 = self.seen.iter().sum::<u64>() as f64;
        let (mut ahead, mut most) = (0.0, 0.0f64);
        for (seen, expected) in self.seen.iter().zip(&expected) {
            ahead += *seen as f64 - expected;
            most = most.max(f64::abs(ahead));
        }
        (most / all).min(1.0)
    }
}

/// Adds how many of `seconds` seconds are expected to have each number of requests.
fn add_expected(law: ArrivalsLaw, mean: f64, dispersion: f64, seconds: f64, expected: &mut [f64]) {
    let mut add = |n: f64, p: f64| {
        if let Some(e) = expected.get_mut(n as usize) {
            *e += p * seconds;
        }
    };
    if law == ArrivalsLaw::Uniform {
        let above = mean - mean.floor();
        add(mean.floor(), 1.0 - above);
        return add(mean.floor() + 1.0, above);
    }
    // Bursts: a negative binomial distribution of the same mean and the observed dispersion. Its limit is Poisson's.
    let dispersion = if law == ArrivalsLaw::Bursts { dispersion } else { 1.0 };
    let r = mean / (dispersion - 1.0);
    let poisson = dispersion < 1.0 + 1e-6 || r > 1e9;
    // The ratio of two consecutive terms, from the one at the mean outwards.
    let ratio = |n: f64| if poisson { mean / (n + 1.0) } else { (n + r) / (n + 1.0) * (dispersion - 1.0) / dispersion };
    let middle = mean.floor();
    let reach = 8.0 * (mean * dispersion).sqrt() + 8.0 * dispersion + 8.0;
    let (from, to) = ((middle - reach).max(0.0).floor(), (middle + reach).ceil());
    let mut relative = Vec::with_capacity((to - from) as usize + 1);
    let (mut p, mut n) = (1.0, middle);
    while n < to {
        p *= ratio(n);
        n += 1.0;
        relative.push((n, p));
    }
    (p, n) = (1.0, middle);
    relative.push((n, p));
    while n > from {
        n -= 1.0;
        p /= ratio(n);
        relative.push((n, p));
    }
    let sum: f64 = relative.iter().map(|(_, p)| p).sum();
    for (n, p) in relative {
        add(n, p / sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator whose numbers are the same on every machine (xorshift64*).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// An hour at 20 requests/s whose arrivals come in groups of `together`, by Poisson.
    fn hour(together: u32) -> LogArrivals {
        let mut random = Random(7);
        let mut rates = Rates::default();
        let mut t = 0.0;
        while t < 3600.0 {
            for _ in 0..together {
                rates.count(t as i64);
            }
            t += -random.next().max(1e-12).ln() * f64::from(together) / 20.0;
        }
        rates.finish(72_000, 3600.0).1
    }

    #[test]
    fn arrivals_are_known_by_their_dispersion() {
        let mut even = Rates::default();
        (0..72_000).for_each(|i| even.count(i / 20));
        let (rate, even) = even.finish(72_000, 3600.0);
        assert_eq!((even.law, even.dispersion, even.distance), (Some(ArrivalsLaw::Uniform), Some(0.0), Some(0.0)));
        assert_eq!((rate.peak.rps, rate.busiest_minute.rps, rate.counts.len()), (20.0, 20.0, 3600));
        let poisson = hour(1);
        assert!((0.9..1.1).contains(&poisson.dispersion.unwrap_or(0.0)), "{poisson:?}");
        assert!(poisson.distances["poisson"] < 0.05 && poisson.distances["uniform"] > 0.3, "{poisson:?}");
        let bursts = hour(5);
        assert_eq!(bursts.law, Some(ArrivalsLaw::Bursts));
        assert!((4.0..6.0).contains(&bursts.burst) && bursts.distances["poisson"] > 0.15, "{bursts:?}");
    }

    #[test]
    fn a_log_that_begins_and_ends_within_a_minute_has_no_empty_seconds() {
        let mut rates = Rates::default();
        (0..900).for_each(|i| rates.count(45 + i / 10));
        let (_, arrivals) = rates.finish(900, 90.0);
        assert_eq!((arrivals.law, arrivals.dispersion), (Some(ArrivalsLaw::Uniform), Some(0.0)));
    }

    #[test]
    fn a_rate_that_changes_over_the_day_is_no_burst() {
        let mut rates = Rates::default();
        for minute in 0..600 {
            for second in 0..60 {
                (0..minute % 40).for_each(|_| rates.count(minute * 60 + second));
            }
        }
        assert_eq!(rates.finish(1, 1.0).1.law, Some(ArrivalsLaw::Uniform));
    }

    #[test]
    fn a_log_of_many_years_has_no_more_steps() {
        let mut rates = Rates::default();
        for day in 0..20_000 {
            rates.count(day * 86_400);
        }
        rates.count(-5);
        rates.count(i64::MAX / 2_000_000);
        assert!(rates.steps.len() <= MOST_STEPS);
        let (rate, arrivals) = rates.finish(20_002, 1.7e9);
        assert!(rate.counts.len() <= MOST_SHOWN_STEPS && arrivals.law.is_none());
        assert_eq!(rate.counts.iter().sum::<u64>(), 20_002);
    }
}
