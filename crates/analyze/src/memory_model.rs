//! The memory of a pool: the shared part, the part that each worker adds, and the growth per request.
//!
//! Over pool sizes, total = S + n·μ by least squares (Draper & Smith, "Applied Regression Analysis", ch. 1).
//! Over workers' ages, the model is the slope of a worker's memory against its requests. Each worker has a
//! level of its own, so that differences between workers do not look like growth.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// One-sided 95 % quantile of the normal distribution.
const Z95: f64 = 1.645;
/// Smallest assumed difference in a pool's total memory between starts (standard deviation, as a fraction).
/// Eleven fits of three sizes of the same prefork with mod_perl scattered by 0.46 % about their lines; a line
/// through three points does not show that.
pub const STARTS_DIFFER: f64 = 0.005;
/// Upper bound for the number of workers.
const MOST_WORKERS: u64 = 10_000_000;

/// A number with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub interval: (f64, f64),
}

impl Estimate {
    fn of(value: f64, half: f64) -> Estimate {
        Estimate { value, interval: (value - half, value + half) }
    }

    /// Returns whether the value is significantly above zero.
    #[must_use]
    pub fn is_positive(&self) -> bool {
        self.interval.0 > 0.0
    }
}

/// Half the width of a 95 % interval for this standard error.
fn half(se: f64, freedom: usize) -> f64 {
    match StudentsT::new(0.0, 1.0, freedom.max(1) as f64) {
        Ok(t) => t.inverse_cdf(0.975) * se,
        Err(_) => f64::INFINITY,
    }
}

/// total = shared + n · each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolLine {
    pub shared: Estimate,
    pub each: Estimate,
    points: f64,
    mean_n: f64,
    sum_squares: f64,
    mean_total: f64,
    residual: f64,
    freedom: usize,
}

/// Fits the line through (workers, bytes). `None` with fewer than three points, or with only one pool size.
#[must_use]
pub fn fit_pool(points: &[(u64, u64)]) -> Option<PoolLine> {
    let k = points.len();
    if k < 3 {
        return None;
    }
    let mean = |f: fn(&(u64, u64)) -> u64| points.iter().map(|p| f(p) as f64).sum::<f64>() / k as f64;
    let (mean_n, mean_total) = (mean(|p| p.0), mean(|p| p.1));
    let sxx: f64 = points.iter().map(|p| (p.0 as f64 - mean_n).powi(2)).sum();
    if sxx == 0.0 {
        return None;
    }
    let sxy: f64 = points.iter().map(|p| (p.0 as f64 - mean_n) * (p.1 as f64 - mean_total)).sum();
    let slope = sxy / sxx;
    let level = mean_total - slope * mean_n;
    let squares: f64 = points.iter().map(|p| (p.1 as f64 - level - slope * p.0 as f64).powi(2)).sum();
    let residual = (squares / (k - 2) as f64).sqrt();
    let se_level = residual * (1.0 / k as f64 + mean_n * mean_n / sxx).sqrt();
    Some(PoolLine {
        shared: Estimate::of(level, half(se_level, k - 2)),
        each: Estimate::of(slope, half(residual / sxx.sqrt(), k - 2)),
        points: k as f64,
        mean_n,
        sum_squares: sxx,
        mean_total,
        residual,
        freedom: k - 2,
    })
}

/// The number of workers that fit, with the interval from the line's uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolCapacity {
    pub workers: u64,
    pub interval: (u64, u64),
}

impl PoolLine {
    /// Returns the bytes that this many workers need.
    #[must_use]
    pub fn at(&self, workers: u64) -> f64 {
        self.shared.value + workers as f64 * self.each.value
    }

    /// Half the width of the line's 95 % interval at n workers.
    fn doubt(&self, n: f64) -> f64 {
        half(self.error(n, self.residual), self.freedom)
    }

    /// Standard error of the line at n workers for this scatter of the points; it grows with the distance
    /// from the measured sizes.
    fn error(&self, n: f64, scatter: f64) -> f64 {
        scatter * (1.0 / self.points + (n - self.mean_n).powi(2) / self.sum_squares).sqrt()
    }

    /// Returns the largest number of workers whose memory stays within `budget` bytes. Each may use `extra`
    /// bytes above the line, because it has aged or is the largest. `spread` is the standard deviation
    /// between workers in bytes, `starts` that between starts of the pool, as a fraction. Both are covered in
    /// 95 of 100 cases. The interval is that of the line alone.
    #[must_use]
    pub fn room(&self, budget: u64, extra: f64, spread: f64, starts: f64) -> PoolCapacity {
        let scatter = self.residual.max(starts * self.mean_total);
        let of_line = |n: f64| if starts > 0.0 { self.error(n, scatter) } else { 0.0 };
        let need = |n: f64, doubt: f64| {
            let mean = self.shared.value + n * (self.each.value + extra);
            if doubt == 0.0 {
                return mean + Z95 * (spread * spread * n + of_line(n).powi(2)).sqrt();
            }
            mean + Z95 * spread * n.sqrt() + doubt * self.doubt(n)
        };
        let most = |doubt: f64| {
            let (mut fits, mut too_many) = (0, MOST_WORKERS);
            while too_many - fits > 1 {
                let n = u64::midpoint(fits, too_many);
                // A billionth of slack, so that workers of exactly one fortieth fit forty times.
                if need(n as f64, doubt) <= budget as f64 * (1.0 + 1e-9) { fits = n } else { too_many = n }
            }
            fits
        };
        let workers = most(0.0);
        PoolCapacity { workers, interval: (most(1.0).min(workers), most(-1.0)) }
    }
}

/// A worker's memory at a certain age, bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerAge {
    pub worker: i32,
    /// Requests it has served.
    pub requests: f64,
    pub rss: f64,
    pub private: f64,
    pub shared: f64,
}

/// Growth of a worker's memory per request, bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// Private memory: the sum of the two below.
    pub private: Estimate,
    /// Newly allocated memory.
    pub leaked: Estimate,
    /// Shared memory that was written to, so that the worker got its own copy.
    pub unshared: Estimate,
}

/// Fits the slopes against requests served. `None` unless some worker has two ages.
#[must_use]
pub fn growth(points: &[WorkerAge]) -> Option<Growth> {
    Some(Growth {
        private: slope(points, |a| a.private)?,
        leaked: slope(points, |a| a.rss)?,
        unshared: slope(points, |a| -a.shared)?,
    })
}

/// The page size. A worker that touches one more page does not count as growing.
const PAGE_BYTES: f64 = 4096.0;
/// A worker that has grown by less than this is done growing: sixteen pages, or this fraction of its memory.
/// A heap grows in steps of 32 pages and more, so a few pages over some dozen requests are the last caches
/// filling.
const FLAT_PAGES: f64 = 16.0;
const FLAT_SHARE: f64 = 0.01;
/// Growth at half its earlier pace is slowing down.
const SLOWING: f64 = 0.5;
/// Unsharing slows down as less memory is left to unshare; a leak does not. From step to step the pace must
/// fall to this fraction, and by the last step to this fraction of the first.
const FALLS_EACH: f64 = 0.95;
const FALLS_BY_THE_END: f64 = 0.8;
/// A worker counts as settled only if it was flat for the last 40 % of the requests or more.
const WATCHED: f64 = 0.6;

/// How a worker's memory develops with age.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GrowthTrend {
    /// Constant from this number of requests on.
    Settled(f64),
    /// Steady growth: a leak, or pages unshared one by one.
    Growing,
    /// Growth that slows down: it takes more requests than were tried to settle.
    Slowing,
}

/// Evaluates mean private memory (bytes) by requests served, youngest first. `None` with fewer than three
/// ages.
#[must_use]
pub fn settling(ages: &[(f64, f64)]) -> Option<GrowthTrend> {
    let [.., (middle, at_middle), (last, at_last)] = *ages else { return None };
    if ages.len() < 3 {
        return None;
    }
    let little = (FLAT_PAGES * PAGE_BYTES).max(at_last * FLAT_SHARE);
    // The first age after which memory changed no more, in either direction.
    let flat = |from: usize| ages[from..].iter().all(|(_, bytes)| (at_last - bytes).abs() <= little);
    let settled = (0..ages.len()).find(|i| flat(*i)).map(|i| ages[i].0).filter(|age| *age <= WATCHED * last);
    if let Some(age) = settled {
        return Some(GrowthTrend::Settled(age));
    }
    let pace = |from: (f64, f64), to: (f64, f64)| (to.1 - from.1) / (to.0 - from.0).max(1.0);
    // The first requests fill caches, so compare the pace after them with the pace at the end.
    let early = ages.iter().copied().find(|(age, _)| *age >= 0.2 * last).filter(|(age, _)| *age < middle);
    let before = pace(early.unwrap_or(ages[0]), (middle, at_middle));
    let now = pace((middle, at_middle), (last, at_last));
    let paces: Vec<f64> = ages.windows(2).map(|w| pace(w[0], w[1])).collect();
    let slows = now < SLOWING * before || is_falling(&paces);
    Some(if slows { GrowthTrend::Slowing } else { GrowthTrend::Growing })
}

/// Returns whether the last three growth rates fall one after the other. Growth is then bounded, as unsharing
/// is by the shared memory. Fewer than three prove nothing: the first steps may be higher than a
/// leak's while caches fill.
#[must_use]
pub fn is_falling(paces: &[f64]) -> bool {
    let [.., first, second, third] = *paces else { return false };
    first > 0.0 && second <= FALLS_EACH * first && third <= FALLS_EACH * second && third <= FALLS_BY_THE_END * first
}

impl Growth {
    /// Returns whether this is real growth and not a few single pages, for workers observed for `requests`
    /// each.
    #[must_use]
    pub fn is_real(&self, requests: f64) -> bool {
        self.private.is_positive() && self.private.value * requests >= FLAT_PAGES * PAGE_BYTES
    }

    /// Returns whether part of it is newly allocated memory, beyond chance. Unsharing alone ends when nothing
    /// shared is left.
    #[must_use]
    pub fn is_leak(&self, requests: f64) -> bool {
        self.is_real(requests) && self.leaked.is_positive() && self.leaked.value * requests >= FLAT_PAGES * PAGE_BYTES
    }
}

fn slope(points: &[WorkerAge], of: fn(&WorkerAge) -> f64) -> Option<Estimate> {
    let mut workers: Vec<i32> = points.iter().map(|p| p.worker).collect();
    workers.sort_unstable();
    workers.dedup();
    let mut pairs = Vec::new();
    let mut levels = 0;
    for worker in workers {
        let own: Vec<&WorkerAge> = points.iter().filter(|p| p.worker == worker).collect();
        if own.len() < 2 {
            continue;
        }
        levels += 1;
        let mean = |f: &dyn Fn(&WorkerAge) -> f64| own.iter().map(|p| f(p)).sum::<f64>() / own.len() as f64;
        let (x, y) = (mean(&|p| p.requests), mean(&of));
        pairs.extend(own.iter().map(|p| (p.requests - x, of(p) - y)));
    }
    let sxx: f64 = pairs.iter().map(|(x, _)| x * x).sum();
    if sxx == 0.0 {
        return None;
    }
    let slope = pairs.iter().map(|(x, y)| x * y).sum::<f64>() / sxx;
    let freedom = pairs.len().saturating_sub(levels + 1).max(1);
    let squares: f64 = pairs.iter().map(|(x, y)| (y - slope * x).powi(2)).sum();
    Some(Estimate::of(slope, half((squares / freedom as f64 / sxx).sqrt(), freedom)))
}

/// Returns the age, in requests, at which to replace a worker under a fixed memory budget: A = √(2·p·c /
/// (g·s)).
///
/// A fresh worker has p bytes and grows by g bytes per request; a request takes s seconds and a replacement c
/// seconds. Workers of age up to A need p + g·A/2 on average, so (budget / that) of them fit. Each spends A·s
/// of every A·s + c seconds working. The product is greatest where its derivative is zero, which gives the
/// formula. `None` without growth.
#[must_use]
pub fn best_age(fresh_bytes: f64, growth_bytes: f64, request_s: f64, replace_s: f64) -> Option<u64> {
    let age = (2.0 * fresh_bytes * replace_s / (growth_bytes * request_s)).sqrt();
    (growth_bytes > 0.0 && request_s > 0.0 && age.is_finite()).then(|| age.round().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    #[test]
    fn a_line_through_exact_points_is_found_and_filled() {
        let at = |n: u64| (n, (30.0 * MB + 8.0 * MB * n as f64) as u64);
        let line = fit_pool(&[at(4), at(8), at(16)]).expect("three points");
        assert!((line.shared.value / MB - 30.0).abs() < 1e-6 && (line.each.value / MB - 8.0).abs() < 1e-6);
        let room = line.room(350_000_000, 0.0, 0.0, 0.0);
        assert_eq!((room.workers, room.interval), (40, (40, 40)));
        // First, all workers 2 MB above the mean; then workers that vary by 2 MB each.
        assert_eq!(line.room(350_000_000, 2.0 * MB, 0.0, 0.0).workers, 32);
        let varying = line.room(350_000_000, 0.0, 2.0 * MB, 0.0).workers;
        assert!((36..40).contains(&varying), "{varying}");
        assert_eq!(line.room(1_000_000, 0.0, 0.0, 0.0).workers, 0);
        assert_eq!(fit_pool(&[at(4), at(8)]), None);
        assert_eq!(fit_pool(&[at(4), at(4), at(4)]), None);
    }

    #[test]
    fn beyond_the_sizes_that_were_tried_there_is_room_for_what_starts_differ_by() {
        // As measured: 3, 6 and 10 workers of 3.9 MB, 30 kB off their line by chance. The slope may be 1 %
        // steeper.
        let points = [(3, 17_583_000), (6, 29_330_000), (10, 44_887_000)];
        let budget = 158_100_000;
        let line = fit_pool(&points).expect("three points");
        let (by_line, room) = (line.room(budget, 0.0, 0.0, 0.0), line.room(budget, 0.0, 0.0, STARTS_DIFFER));
        assert!(room.workers < by_line.workers && room.workers >= by_line.workers - 2, "{room:?} {by_line:?}");
        assert!(room.interval.0 <= room.workers && room.interval.1 >= by_line.workers, "{room:?}");
        let steeper = line.shared.value + room.workers as f64 * line.each.value * 1.01;
        assert!(steeper <= budget as f64, "{steeper}");
    }

    #[test]
    fn a_line_through_noise_says_how_sure_it_is() {
        let points = [(4, 62_500_000), (8, 93_000_000), (16, 158_500_000), (32, 285_500_000)];
        let line = fit_pool(&points).expect("four points");
        assert!(line.each.interval.0 < 8.0 * MB && line.each.interval.1 > 8.0 * MB, "{line:?}");
        let room = line.room(350_000_000, 0.0, 0.0, 0.0);
        assert!(room.interval.0 < 40 && room.interval.1 >= 40 && room.interval.0 > 35, "{room:?}");
    }

    #[test]
    fn growth_is_told_apart_from_workers_that_differ() {
        let mut points = Vec::new();
        for worker in 0..5 {
            for requests in [2.0, 12.0, 22.0, 42.0] {
                // Each worker has its own level; each request leaks 10 kB and unshares 5 kB, give or take a
                // page.
                let base = f64::from(worker) * 3.0 * MB + if requests > 20.0 { 4096.0 } else { 0.0 };
                points.push(WorkerAge {
                    worker,
                    requests,
                    rss: 50.0 * MB + base + 10_000.0 * requests,
                    private: 20.0 * MB + base + 15_000.0 * requests,
                    shared: 30.0 * MB - 5_000.0 * requests,
                });
            }
        }
        let g = growth(&points).expect("ages");
        for (estimate, planted) in [(g.private, 15_000.0), (g.leaked, 10_000.0), (g.unshared, 5_000.0)] {
            assert!((estimate.value / planted - 1.0).abs() < 0.05 && estimate.is_positive(), "{estimate:?} {planted}");
        }
        let still: Vec<WorkerAge> = points.iter().map(|p| WorkerAge { private: 1.0 * MB, ..*p }).collect();
        assert!(!growth(&still).expect("ages").private.is_positive());
        assert_eq!(growth(&points[..1]), None);
    }

    #[test]
    fn a_worker_that_settles_is_told_from_one_that_leaks() {
        let ages = |bytes: fn(f64) -> f64| -> Vec<(f64, f64)> {
            [2.0, 27.0, 52.0, 77.0, 102.0].iter().map(|n| (*n, bytes(*n))).collect()
        };
        // 0.94 MB from the second to the 27th request, then a page now and then: 42 bytes per request.
        let settles = ages(|n| 4.7 * MB + 0.94 * MB * ((n - 2.0) / 25.0).min(1.0) + 42.0 * n);
        assert_eq!(settling(&settles), Some(GrowthTrend::Settled(27.0)));
        assert_eq!(settling(&ages(|n| 5.0 * MB + 20_000.0 * n)), Some(GrowthTrend::Growing));
        assert_eq!(settling(&ages(|n| 5.0 * MB + 3.0 * MB * (1.0 - (-n / 40.0).exp()))), Some(GrowthTrend::Slowing));
        assert_eq!(settling(&ages(|_| 5.0 * MB)), Some(GrowthTrend::Settled(2.0)));
        // Growth between the last two ages was not observed for long enough.
        assert_eq!(settling(&ages(|n| if n > 80.0 { 6.0 * MB } else { 5.0 * MB })), Some(GrowthTrend::Growing));
        assert_eq!(settling(&settles[..2]), None);
    }

    #[test]
    fn growth_whose_increments_fall_is_unsharing_and_no_leak() {
        // In MB, one every 15 requests.
        let after = |increments: &[f64]| -> Vec<(f64, f64)> {
            let mut bytes = 20.0 * MB;
            let grown = increments.iter().enumerate().map(|(i, more)| {
                bytes += more * MB;
                (2.0 + 15.0 * (i as f64 + 1.0), bytes)
            });
            std::iter::once((2.0, 20.0 * MB)).chain(grown.collect::<Vec<_>>()).collect()
        };
        for falling in [&[1.9, 1.5, 1.1][..], &[3.0, 1.9, 1.5, 1.1], &[2.4, 1.9, 1.5, 1.2], &[2.0, 1.0, 0.6, 0.4]] {
            assert_eq!(settling(&after(falling)), Some(GrowthTrend::Slowing), "{falling:?}");
        }
        for steady in
            [&[1.5, 1.5, 1.5][..], &[4.0, 1.5, 1.5, 1.5], &[1.5, 1.4, 1.5, 1.45], &[1.1, 1.5, 1.9], &[1.5, 1.45, 1.4]]
        {
            assert_eq!(settling(&after(steady)), Some(GrowthTrend::Growing), "{steady:?}");
        }
        assert!(
            !is_falling(&[])
                && !is_falling(&[2.0, 1.0])
                && !is_falling(&[0.0, 0.0, 0.0])
                && !is_falling(&[-1.0, -2.0, -3.0])
        );
    }

    #[test]
    fn what_is_only_unshared_is_no_leak() {
        let of = |leaked: f64, error: f64, unshared: f64| {
            let estimate = |value: f64| Estimate::of(value, error);
            Growth { private: estimate(leaked + unshared), leaked: estimate(leaked), unshared: estimate(unshared) }
        };
        assert!(of(16_384.0, 500.0, 32_768.0).is_leak(60.0));
        // Unsharing alone; then 20 kB over 64 requests.
        assert!(!of(100.0, 500.0, 32_768.0).is_leak(60.0) && of(100.0, 500.0, 32_768.0).is_real(60.0));
        assert!(!of(312.0, 20.0, 0.0).is_leak(64.0) && !of(312.0, 20.0, 0.0).is_real(64.0));
    }

    #[test]
    fn a_page_here_and_there_is_no_leak() {
        let growth = |bytes: f64| {
            let estimate = Estimate { value: bytes, interval: (bytes * 0.9, bytes * 1.1) };
            Growth { private: estimate, leaked: estimate, unshared: estimate }
        };
        assert!(!growth(42.0).is_real(55.0) && growth(1_600.0).is_real(55.0) && !growth(-1_600.0).is_real(55.0));
    }

    #[test]
    fn the_best_age_is_where_more_and_less_are_worse() {
        let (p, g, s, c) = (10.0 * MB, 20_000.0, 0.005, 0.05);
        let work = |age: f64| 1.0 / (p + g * age / 2.0) * (age * s / (age * s + c));
        let best = best_age(p, g, s, c).expect("growth") as f64;
        assert!((50.0..200.0).contains(&best), "{best}");
        for other in [best * 0.8, best * 1.25] {
            assert!(work(other) < work(best), "{other}");
        }
        assert_eq!(best_age(p, 0.0, s, c), None);
    }
}
