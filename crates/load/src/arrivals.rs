//! When requests come due in an open loop: clockless, seeded, sharded without loss.
//!
//! An `Arrivals` is an endless increasing sequence of due times. Two clones give the same sequence, so the event loop
//! keeps one cursor at "now" (what has come due) and one at the next request to send (what is waiting), and needs no
//! queue between them however long a server stalls.

use lastdrop_model::{Arrival, Micros};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

#[derive(Debug, Clone)]
pub struct Arrivals {
    kind: Kind,
    next_us: Micros,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Request i of the whole run is due at i / rate; a shard takes every `step`-th.
    Uniform { rate_rps: f64, index: u64, step: u64 },
    /// Independent exponential gaps; shards of rate / step superpose to the whole rate.
    Poisson { mean_gap_us: f64, at_us: f64, rng: Box<Xoshiro256PlusPlus> },
}

impl Arrivals {
    /// The arrivals of shard `shard` of `shards` at `rate_rps` requests per second for the whole.
    #[must_use]
    pub fn new(arrival: Arrival, rate_rps: f64, seed: u64, shard: u32, shards: u32) -> Arrivals {
        let kind = match arrival {
            Arrival::Uniform => Kind::Uniform { rate_rps, index: u64::from(shard), step: u64::from(shards) },
            Arrival::Poisson => {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
                for _ in 0..shard {
                    // Non-overlapping streams: each jump is 2^128 values.
                    rng.jump();
                }
                Kind::Poisson { mean_gap_us: 1e6 * f64::from(shards) / rate_rps, at_us: 0.0, rng: Box::new(rng) }
            }
        };
        let mut arrivals = Arrivals { kind, next_us: 0 };
        arrivals.next_us = arrivals.compute(true);
        arrivals
    }

    /// When the next request is due, since the start of the phase.
    #[inline]
    #[must_use]
    pub fn next_due(&self) -> Micros {
        self.next_us
    }

    /// Goes on to the request after the next.
    #[inline]
    pub fn advance(&mut self) {
        self.next_us = self.compute(false);
    }

    /// Goes on until nothing is due before `end_us`; says how many requests that were.
    pub fn advance_to(&mut self, end_us: Micros) -> u64 {
        let mut count = 0;
        while self.next_us < end_us {
            count += 1;
            self.advance();
        }
        count
    }

    fn compute(&mut self, first: bool) -> Micros {
        match &mut self.kind {
            Kind::Uniform { rate_rps, index, step } => {
                if !first {
                    *index += *step;
                }
                (*index as f64 * 1e6 / *rate_rps) as Micros
            }
            Kind::Poisson { mean_gap_us, at_us, rng } => {
                // 53 random bits, in (0, 1]: the logarithm is finite.
                let u = ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                *at_us += -u.ln() * *mean_gap_us;
                *at_us as Micros
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_arrivals_are_the_ceiling_of_rate_times_time() {
        for (rate, end_us) in [(1000.0, 10_000_000), (3.0, 1_000_000), (0.7, 1_000_000), (333.3, 2_500_000)] {
            for shards in 1..5 {
                let total: u64 =
                    (0..shards).map(|s| Arrivals::new(Arrival::Uniform, rate, 1, s, shards).advance_to(end_us)).sum();
                assert_eq!(total, (rate * end_us as f64 / 1e6).ceil() as u64, "{rate} {end_us} {shards}");
            }
        }
    }

    #[test]
    fn poisson_arrivals_are_within_four_standard_deviations() {
        for shards in 1..5 {
            for seed in 0..20 {
                let n: u64 = (0..shards)
                    .map(|s| Arrivals::new(Arrival::Poisson, 2000.0, seed, s, shards).advance_to(10_000_000))
                    .sum();
                assert!((n as f64 - 20_000.0).abs() < 4.0 * 20_000f64.sqrt(), "{n}");
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_arrivals() {
        let mut a = Arrivals::new(Arrival::Poisson, 100.0, 7, 1, 3);
        let mut b = a.clone();
        assert_eq!(a.advance_to(5_000_000), b.advance_to(5_000_000));
        assert_eq!(a.next_due(), b.next_due());
    }
}
