//! When requests come due in an open loop: clockless, seeded, sharded without loss.
//!
//! An `Arrivals` is an endless increasing sequence of due times. Two clones give the same sequence, so the event loop
//! keeps one cursor at "now" (what has come due) and one at the next request to send (what is waiting), and needs no
//! queue between them however long a server stalls.
//!
//! The rate may change: due times are where the integral of the rate reaches 0, 1, 2 … (uniform) or sums of independent
//! exponential variables of mean 1 (Poisson, by the time-rescaling theorem). A constant rate is one segment of it.

use lastdrop_model::{Arrival, Micros};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::share::Shard;

/// A rate over time: consecutive straight lines. After the last one nothing arrives.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Segment {
    start_us: f64,
    /// Infinite if a constant rate has no end.
    len_us: f64,
    from_rps: f64,
    to_rps: f64,
    /// Arrivals before the segment, and up to its end.
    before: f64,
    until: f64,
}

impl Profile {
    /// The same rate for ever.
    #[must_use]
    pub fn constant(rate_rps: f64) -> Profile {
        Profile::of(&[(f64::INFINITY, rate_rps, rate_rps)])
    }

    /// A rate that changes linearly.
    #[must_use]
    pub fn linear(from_rps: f64, to_rps: f64, len_us: Micros) -> Profile {
        Profile::of(&[(len_us as f64, from_rps, to_rps)])
    }

    /// `steps` equal stretches of constant rate, the first at one rate and the last at the other.
    #[must_use]
    pub fn steps(from_rps: f64, to_rps: f64, steps: u32, len_us: Micros) -> Profile {
        let last = f64::from(steps.max(2) - 1);
        let each = len_us as f64 / f64::from(steps.max(1));
        let rate = |i: u32| from_rps + (to_rps - from_rps) * f64::from(i) / last;
        Profile::of(&(0..steps.max(1)).map(|i| (each, rate(i), rate(i))).collect::<Vec<_>>())
    }

    fn of(parts: &[(f64, f64, f64)]) -> Profile {
        let (mut start_us, mut before) = (0.0, 0.0);
        let segments = parts
            .iter()
            .map(|&(len_us, from_rps, to_rps)| {
                let until = before + (from_rps + to_rps) / 2.0 * len_us / 1e6;
                let segment = Segment { start_us, len_us, from_rps, to_rps, before, until };
                start_us += len_us;
                before = until;
                segment
            })
            .collect();
        Profile { segments }
    }

    /// Returns when the integral of the rate reaches `count`; `None` if it never does. `at` is the segment to begin
    /// with, and advances.
    fn time_of(&self, count: f64, at: &mut usize) -> Option<Micros> {
        loop {
            let s = self.segments.get(*at)?;
            // `until` belongs to the next segment: an arrival at the very end of a phase is not in it.
            if count < s.until {
                let n = count - s.before;
                let slope = if s.len_us.is_finite() { (s.to_rps - s.from_rps) / s.len_us * 1e6 } else { 0.0 };
                // This form of the root of slope/2·t² + from·t = n also holds for slope 0.
                let root = (s.from_rps * s.from_rps + 2.0 * slope * n).max(0.0).sqrt();
                let t_us = if n == 0.0 { 0.0 } else { 2.0 * n * 1e6 / (s.from_rps + root) };
                return Some((s.start_us + t_us.min(s.len_us)) as Micros);
            }
            *at += 1;
        }
    }
}

/// Number of exponential gaps summed with one logarithm, that of the product of their random numbers. The smallest such
/// product is (2⁻⁵³)¹⁶, far above the smallest positive `f64`.
const GROUP: u32 = 16;

#[derive(Debug, Clone)]
pub struct Arrivals {
    kind: Spacing,
    profile: std::sync::Arc<Profile>,
    segment: usize,
    /// Number of requests that arrive together.
    burst: u64,
    /// Which arrivals are this thread's, and how many of those have passed.
    shard: Shard,
    taken: u64,
    next_us: Micros,
}

#[derive(Debug, Clone)]
enum Spacing {
    /// An arrival wherever the integral of the rate is a whole number.
    Uniform,
    /// Gaps of 1 ± `spread`.
    Jitter { spread: f64, walk: GapSum },
    /// Independent exponential gaps.
    Poisson { walk: GapSum },
}

/// Walks through all gaps of a run, of which a thread needs the sums at its own arrivals. That costs some nanoseconds
/// for each arrival of another thread. In return the schedule is identical to the last bit for any number of threads.
#[derive(Debug, Clone)]
struct GapSum {
    rng: Box<Xoshiro256PlusPlus>,
    /// Sum of the gaps passed so far, up to the last full group.
    at: f64,
    /// Number of gaps passed; those of the current group are in `product`, whose logarithm is not in the sum yet.
    gaps: u64,
    in_group: u32,
    product: f64,
}

impl GapSum {
    fn new(seed: u64) -> GapSum {
        GapSum { rng: Box::new(Xoshiro256PlusPlus::seed_from_u64(seed)), at: 0.0, gaps: 0, in_group: 0, product: 1.0 }
    }

    /// Returns the sum of the first `gaps` exponential gaps; `gaps` must not decrease between calls.
    fn exponential(&mut self, gaps: u64) -> f64 {
        while self.gaps < gaps {
            // 53 random bits, in (0, 1]: the logarithm is finite.
            self.product *= ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            self.gaps += 1;
            self.in_group += 1;
            if self.in_group == GROUP {
                self.at -= self.product.ln();
                (self.in_group, self.product) = (0, 1.0);
            }
        }
        self.at - self.product.ln()
    }

    /// Like `exponential`, for gaps evenly distributed over 1 ± `spread`.
    fn even(&mut self, gaps: u64, spread: f64) -> f64 {
        while self.gaps < gaps {
            let u = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            self.at += 1.0 + spread * (2.0 * u - 1.0);
            self.gaps += 1;
        }
        self.at
    }
}

impl Arrivals {
    /// The arrivals of a thread.
    #[must_use]
    pub fn new(arrival: Arrival, profile: Profile, burst: u32, seed: u64, shard: Shard) -> Arrivals {
        let kind = match arrival {
            Arrival::Uniform => Spacing::Uniform,
            Arrival::Jitter(thousandths) => {
                Spacing::Jitter { spread: f64::from(thousandths.min(1000)) / 1000.0, walk: GapSum::new(seed) }
            }
            Arrival::Poisson => Spacing::Poisson { walk: GapSum::new(seed) },
        };
        let burst = u64::from(burst.max(1));
        let mut arrivals = Arrivals { kind, profile: profile.into(), segment: 0, burst, shard, taken: 0, next_us: 0 };
        arrivals.next_us = arrivals.compute();
        arrivals
    }

    /// When the next request is due, since the start of the phase; `Micros::MAX` if nothing more arrives.
    #[inline]
    #[must_use]
    pub fn next_due(&self) -> Micros {
        self.next_us
    }

    /// Advances by one request.
    #[inline]
    pub fn advance(&mut self) {
        self.taken += 1;
        self.next_us = self.compute();
    }

    /// Advances until nothing is due before `end_us`. Returns how many requests that were.
    pub fn advance_to(&mut self, end_us: Micros) -> u64 {
        let mut count = 0;
        while self.next_us < end_us {
            count += 1;
            self.advance();
        }
        count
    }

    fn compute(&mut self) -> Micros {
        let burst = self.shard.nth(self.taken) / self.burst;
        let each = self.burst as f64;
        let count = match &mut self.kind {
            Spacing::Uniform => (burst * self.burst) as f64,
            Spacing::Jitter { spread, walk } => each * walk.even(burst, *spread),
            // The first arrival follows a gap of its own.
            Spacing::Poisson { walk } => each * walk.exponential(burst + 1),
        };
        self.profile.time_of(count, &mut self.segment).unwrap_or(Micros::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Share;

    fn shard(thread: u32, threads: u32) -> Shard {
        Share::whole().of_thread(thread as usize, threads as usize)
    }

    fn uniform(profile: &Profile, burst: u32, shards: u32, end_us: Micros) -> u64 {
        let one = |s| Arrivals::new(Arrival::Uniform, profile.clone(), burst, 1, shard(s, shards)).advance_to(end_us);
        (0..shards).map(one).sum()
    }

    #[test]
    fn uniform_arrivals_are_the_ceiling_of_rate_times_time() {
        for (rate, end_us) in [(1000.0, 10_000_000), (3.0, 1_000_000), (0.7, 1_000_000), (333.3, 2_500_000)] {
            for shards in 1..5 {
                let total = uniform(&Profile::constant(rate), 1, shards, end_us);
                assert_eq!(total, (rate * end_us as f64 / 1e6).ceil() as u64, "{rate} {end_us} {shards}");
            }
        }
    }

    #[test]
    fn ramps_bring_the_integral_of_their_rate() {
        for shards in 1..4 {
            assert_eq!(uniform(&Profile::linear(0.0, 100.0, 10_000_000), 1, shards, 10_000_000), 500);
            assert_eq!(uniform(&Profile::linear(100.0, 0.0, 10_000_000), 1, shards, 10_000_000), 500);
            assert_eq!(uniform(&Profile::steps(10.0, 50.0, 5, 10_000_000), 1, shards, 10_000_000), 300);
        }
        // A ramp from 0 has a quarter of its arrivals in the first half of its time.
        assert_eq!(uniform(&Profile::linear(0.0, 100.0, 10_000_000), 1, 1, 5_000_000), 125);
    }

    #[test]
    fn bursts_arrive_together() {
        let mut a = Arrivals::new(Arrival::Uniform, Profile::constant(100.0), 5, 1, shard(0, 1));
        let times: Vec<Micros> = (0..12)
            .map(|_| {
                let t = a.next_due();
                a.advance();
                t
            })
            .collect();
        assert_eq!(times, [0, 0, 0, 0, 0, 50_000, 50_000, 50_000, 50_000, 50_000, 100_000, 100_000]);
        let mut p = Arrivals::new(Arrival::Poisson, Profile::constant(1000.0), 10, 3, shard(0, 1));
        let n = p.advance_to(10_000_000);
        assert!((n as f64 - 10_000.0).abs() < 4.0 * (10_000f64 * 10.0).sqrt(), "{n}");
    }

    #[test]
    fn poisson_arrivals_are_within_four_standard_deviations() {
        for shards in 1..5 {
            for seed in 0..20 {
                let n: u64 = (0..shards)
                    .map(|s| {
                        Arrivals::new(Arrival::Poisson, Profile::constant(2000.0), 1, seed, shard(s, shards))
                            .advance_to(10_000_000)
                    })
                    .sum();
                assert!((n as f64 - 20_000.0).abs() < 4.0 * 20_000f64.sqrt(), "{n}");
            }
        }
    }

    #[test]
    fn poisson_gaps_pass_a_kolmogorov_smirnov_test() {
        let mut times: Vec<Micros> = Vec::new();
        for thread in 0..3 {
            let mut a = Arrivals::new(Arrival::Poisson, Profile::constant(1000.0), 1, 11, shard(thread, 3));
            while a.next_due() < 20_000_000 {
                times.push(a.next_due());
                a.advance();
            }
        }
        times.sort_unstable();
        let mut gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64 / 1000.0).collect();
        gaps.sort_by(f64::total_cmp);
        let n = gaps.len() as f64;
        let distance = gaps
            .iter()
            .enumerate()
            .map(|(i, g)| {
                let f = 1.0 - (-g).exp();
                (f - i as f64 / n).abs().max(((i + 1) as f64 / n - f).abs())
            })
            .fold(0.0, f64::max);
        assert!(distance < 1.63 / n.sqrt(), "{distance}");
    }

    #[test]
    fn jittered_gaps_stay_within_their_share_of_the_mean() {
        let mut times: Vec<Micros> = Vec::new();
        for thread in 0..3 {
            let mut a = Arrivals::new(Arrival::Jitter(100), Profile::constant(1000.0), 1, 5, shard(thread, 3));
            while a.next_due() < 10_000_000 {
                times.push(a.next_due());
                a.advance();
            }
        }
        times.sort_unstable();
        let gaps: Vec<Micros> = times.windows(2).map(|w| w[1] - w[0]).collect();
        assert!(gaps.iter().all(|g| (899..=1101).contains(g)));
        assert!(gaps.iter().any(|g| *g < 920) && gaps.iter().any(|g| *g > 1080));
        assert!((times.len() as f64 - 10_000.0).abs() < 30.0, "{}", times.len());
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals() {
        let mut a = Arrivals::new(Arrival::Poisson, Profile::constant(100.0), 1, 7, shard(1, 3));
        let mut b = a.clone();
        assert_eq!(a.advance_to(5_000_000), b.advance_to(5_000_000));
        assert_eq!(a.next_due(), b.next_due());
    }

    /// Due times before `end_us`.
    fn times(arrivals: Arrivals, end_us: Micros) -> Vec<Micros> {
        let mut arrivals = arrivals;
        let next = move || {
            let at = arrivals.next_due();
            arrivals.advance();
            (at < end_us).then_some(at)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_fleet_has_the_schedule_of_one_machine() {
        const END: Micros = 3_000_000;
        let profiles = [
            Profile::constant(777.7),
            Profile::linear(10.0, 900.0, END),
            Profile::linear(900.0, 0.0, END),
            Profile::steps(100.0, 800.0, 4, END),
        ];
        for arrival in [Arrival::Uniform, Arrival::Poisson, Arrival::Jitter(250)] {
            for (profile, burst) in profiles.iter().zip([1, 7, 1, 3]) {
                let of = |shard: Shard| times(Arrivals::new(arrival, profile.clone(), burst, 42, shard), END);
                let whole = of(Shard::whole());
                assert!(whole.len() > 900, "{}", whole.len());
                for (agents, threads) in (1..=8).flat_map(|agents| [(agents, 1), (agents, 2), (agents, 5)]) {
                    let weights: Vec<u32> = (0..agents).map(|i| 1 + i * (threads as u32 - 1)).collect();
                    let shares = Share::by_weight(&weights).expect("weights");
                    let mut all: Vec<Micros> = (0..threads)
                        .flat_map(|thread| shares.iter().map(move |s| s.of_thread(thread, threads)))
                        .flat_map(of)
                        .collect();
                    all.sort_unstable();
                    assert_eq!(all, whole, "{arrival} {agents} agents {threads} threads");
                }
            }
        }
    }
}
