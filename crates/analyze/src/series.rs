//! A phase as a series of seconds, and the detection of changes in its level.

use std::collections::BTreeMap;

use lastdrop_model::{Histogram, PhaseReport};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// One whole second.
#[derive(Debug, Clone, PartialEq)]
pub struct SecondData {
    pub t: u32,
    pub answered: f64,
    pub failed: f64,
    /// Response latencies in ascending order: microseconds and count.
    pub latencies: Vec<(u64, u64)>,
}

impl SecondData {
    /// Median response time of this second, microseconds.
    #[must_use]
    pub fn p50(&self) -> Option<f64> {
        quantile(&self.latencies, 0.5)
    }
}

/// Returns the seconds that lie entirely within a phase; the drain and a last partial second are left out.
/// Seconds without any request are included.
fn each_second(phase: &PhaseReport) -> impl Iterator<Item = SecondData> + '_ {
    // A phase of 10 s may end some microseconds early or late.
    let end = (phase.duration_s + 0.02).floor() as u32;
    let mut kept = phase.seconds.iter().take_while(move |s| s.t < end).peekable();
    let mut t = 0;
    std::iter::from_fn(move || {
        let next = kept.peek()?;
        let second = if next.t > t {
            SecondData { t, answered: 0.0, failed: 0.0, latencies: Vec::new() }
        } else {
            let s = kept.next()?;
            let latencies =
                Histogram::decode_base64(&s.response_hdr).map(|h| h.recorded().collect()).unwrap_or_default();
            SecondData { t: s.t, answered: s.answered as f64, failed: s.failed as f64, latencies }
        };
        t = second.t + 1;
        Some(second)
    })
}

/// Collects the whole seconds of a short phase.
#[must_use]
pub fn whole_seconds(phase: &PhaseReport) -> Vec<SecondData> {
    each_second(phase).collect()
}

/// Returns answers and median response time (microseconds) of each whole second. The result stays small even
/// for a long phase.
#[must_use]
pub fn levels(phase: &PhaseReport) -> Vec<(f64, Option<f64>)> {
    each_second(phase).map(|s| (s.answered, s.p50())).collect()
}

/// Groups the whole seconds of a phase into at most `most` stretches of equal length; a remainder at the end
/// is dropped.
#[must_use]
pub fn stretches(phase: &PhaseReport, most: usize) -> Vec<SecondData> {
    let n = ((phase.duration_s + 0.02).floor() as usize).max(1);
    let length = n.div_ceil(most.max(1));
    let mut groups: Vec<SecondData> = Vec::new();
    let mut latencies: BTreeMap<u64, u64> = BTreeMap::new();
    let mut group = SecondData { t: 0, answered: 0.0, failed: 0.0, latencies: Vec::new() };
    for (i, second) in each_second(phase).enumerate() {
        if length == 1 {
            groups.push(second);
            continue;
        }
        group.answered += second.answered;
        group.failed += second.failed;
        for (value, count) in second.latencies {
            *latencies.entry(value).or_insert(0) += count;
        }
        if (i + 1) % length == 0 {
            group.latencies = std::mem::take(&mut latencies).into_iter().collect();
            let next = SecondData { t: second.t + 1, answered: 0.0, failed: 0.0, latencies: Vec::new() };
            groups.push(std::mem::replace(&mut group, next));
        }
    }
    groups
}

/// Returns the value at quantile `q` of (value, count) pairs in ascending order; `None` without counts.
#[must_use]
pub fn quantile(sorted: &[(u64, u64)], q: f64) -> Option<f64> {
    let total: u64 = sorted.iter().map(|(_, n)| n).sum();
    let rank = ((q * total as f64).ceil() as u64).max(1);
    let mut seen = 0;
    sorted
        .iter()
        .find(|(_, n)| {
            seen += n;
            seen >= rank
        })
        .map(|(value, _)| *value as f64)
}

/// A change of level in a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelChange {
    /// Index of the first value of the new level.
    pub at: usize,
    /// Medians before and after.
    pub before: f64,
    pub after: f64,
    /// Probability that chance alone makes as clear a change.
    pub p: f64,
}

/// A shorter series is not evaluated.
pub const SHORTEST: usize = 8;

/// Returns the clearest change of level in a series, unless chance makes one as clear in more than 1 of 100
/// shuffles. The statistic is the largest cumulative sum of the centred ranks, tested against its permutation
/// distribution (a CUSUM on ranks, as Pettitt, "A non-parametric approach to the change-point problem",
/// 1979). `None` for series shorter than [`SHORTEST`].
#[must_use]
pub fn change_point(series: &[f64]) -> Option<LevelChange> {
    const SHUFFLES: u32 = 2000;
    if series.len() < SHORTEST {
        return None;
    }
    let mut ranks = centred_ranks(series);
    let (peak, at) = cusum(&ranks);
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(series.len() as u64);
    let mut as_clear = 0;
    for _ in 0..SHUFFLES {
        for i in (1..ranks.len()).rev() {
            ranks.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
        }
        as_clear += u32::from(cusum(&ranks).0 >= peak - 1e-9);
    }
    let p = f64::from(as_clear + 1) / f64::from(SHUFFLES + 1);
    if p > 0.01 {
        return None;
    }
    // Ranks blur the edge. Place it where two levels leave the least unexplained deviation.
    let spread = |part: &[f64]| {
        let level = median(part);
        part.iter().map(|x| (x - level).abs()).sum::<f64>()
    };
    let around = at.saturating_sub(EDGE).max(1)..(at + EDGE + 1).min(series.len());
    let unexplained = |at: &usize| spread(&series[..*at]) + spread(&series[*at..]);
    let at = around.min_by(|a, b| unexplained(a).total_cmp(&unexplained(b))).unwrap_or(at);
    Some(LevelChange { at, before: median(&series[..at]), after: median(&series[at..]), p })
}

/// Largest distance of the edge from the maximum of the cumulative sum.
const EDGE: usize = 5;

fn cusum(centred: &[f64]) -> (f64, usize) {
    let (mut sum, mut best) = (0.0f64, (0.0f64, 0));
    for (i, x) in centred[..centred.len() - 1].iter().enumerate() {
        sum += x;
        if sum.abs() > best.0 {
            best = (sum.abs(), i + 1);
        }
    }
    best
}

/// Ranks (ties share theirs) minus their mean.
fn centred_ranks(series: &[f64]) -> Vec<f64> {
    let mut sorted = series.to_vec();
    sorted.sort_by(f64::total_cmp);
    series
        .iter()
        .map(|x| {
            let below = sorted.partition_point(|y| y < x) as f64;
            let equal = sorted.partition_point(|y| y <= x) as f64 - below;
            below + (equal + 1.0) / 2.0 - (series.len() as f64 + 1.0) / 2.0
        })
        .collect()
}

/// Mean and unbiased variance; variance 0 for fewer than two values.
#[must_use]
pub fn mean_and_variance(values: &[f64]) -> (f64, f64) {
    let n = values.len();
    let mean = values.iter().sum::<f64>() / n.max(1) as f64;
    (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n.max(2) - 1) as f64)
}

/// Returns the median; 0 for an empty slice.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Returns the integrated autocorrelation time: how many values carry as much information as one independent
/// value (at least 1). The sum ends at the first pair that is not positive (Geyer's initial positive
/// sequence, "Practical Markov chain Monte Carlo", 1992).
#[must_use]
pub fn correlation_time(series: &[f64]) -> f64 {
    let n = series.len();
    let mean = series.iter().sum::<f64>() / n.max(1) as f64;
    let covariance = |lag: usize| -> f64 {
        (0..n.saturating_sub(lag)).map(|i| (series[i] - mean) * (series[i + lag] - mean)).sum::<f64>() / n.max(1) as f64
    };
    let variance = covariance(0);
    if n < 4 || variance <= 0.0 {
        return 1.0;
    }
    let mut time = -1.0;
    for pair in 0..n / 4 {
        let both = (covariance(2 * pair) + covariance(2 * pair + 1)) / variance;
        if both <= 0.0 {
            break;
        }
        time += 2.0 * both;
    }
    time.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        (0..n)
            .map(|_| (0..12).map(|_| (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0)
            .collect()
    }

    #[test]
    fn a_step_is_found_where_it_is() {
        let mut series = noise(30, 1);
        series[..9].iter_mut().for_each(|x| *x += 8.0);
        let change = change_point(&series).expect("a step");
        assert_eq!(change.at, 9);
        assert!(change.before > change.after + 6.0);
    }

    #[test]
    fn noise_has_no_level_to_change() {
        let found = (0..200).filter(|seed| change_point(&noise(20, *seed)).is_some()).count();
        // 1 % is expected: 2. More than 8 have a probability below 1 in 1000.
        assert!(found <= 8, "{found}");
    }

    #[test]
    fn correlation_is_seen() {
        let white = noise(400, 3);
        let mut red = white.clone();
        for i in 1..red.len() {
            red[i] += 0.8 * red[i - 1];
        }
        assert!(correlation_time(&white) < 2.0);
        // (1 + 0.8) / (1 − 0.8) = 9 for a first-order process.
        assert!((4.0..18.0).contains(&correlation_time(&red)), "{}", correlation_time(&red));
    }

    #[test]
    fn seconds_without_an_answer_count_and_long_phases_are_put_together() {
        use lastdrop_model::run::RunBuilder;
        use lastdrop_model::{Counts, Kind, Plan, Slice};
        let mut b = RunBuilder::new(&Plan::new("http://127.0.0.1/".parse().expect("valid"), 1));
        for t in [0, 1, 4, 5, 6] {
            let mut s = Slice::new(0, t);
            s.counts = Counts { due: 2, sent: 2, answered: 2, ..Counts::default() };
            s.record(Kind::Response, 100);
            s.record(Kind::Response, 200);
            b.add(&s);
        }
        // The last second is the drain.
        b.end_phase(0, 6_000_000, 1);
        let phase = b.into_reports().remove(0);
        assert_eq!(levels(&phase).iter().map(|l| l.0).collect::<Vec<_>>(), [2.0, 2.0, 0.0, 0.0, 2.0, 2.0]);
        let groups = stretches(&phase, 3);
        assert_eq!(groups.iter().map(|g| (g.t, g.answered)).collect::<Vec<_>>(), [(0, 4.0), (2, 0.0), (4, 4.0)]);
        assert_eq!(groups[0].latencies, [(100, 2), (200, 2)]);
        assert_eq!(stretches(&phase, 100).len(), 6);
    }

    #[test]
    fn quantiles_are_those_of_the_counts() {
        let values = [(10, 50), (20, 49), (900, 1)];
        assert_eq!(
            [0.5, 0.51, 0.99, 0.995].map(|q| quantile(&values, q)),
            [Some(10.0), Some(20.0), Some(20.0), Some(900.0)]
        );
        assert_eq!(quantile(&[], 0.5), None);
    }
}
