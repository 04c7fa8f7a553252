//! When the requests of an open loop come due, by the definition in the manual: where the integral of the rate reaches
//! 0, 1, 2 … (uniform), or sums of random gaps with mean 1.

use lastdrop_model::Arrival;
use lastdrop_model::plan::Load;

use crate::rng::Rng;

/// A stretch of time in which the rate changes linearly.
#[derive(Debug, Clone, Copy)]
struct RateSegment {
    start_us: f64,
    length_us: f64,
    from_rps: f64,
    to_rps: f64,
    /// Arrivals before the segment, and up to its end.
    before: f64,
    until: f64,
}

/// The due times of a phase, µs since it began.
#[derive(Debug)]
pub(super) struct DueTimes {
    segments: Vec<RateSegment>,
    segment: usize,
    spacing: Arrival,
    /// Requests that arrive together, and how many of them are left.
    burst: u32,
    left: u32,
    /// Where the integral of the rate has to be for the next burst.
    count: f64,
    rng: Rng,
}

impl DueTimes {
    /// The due times of an open loop; `None` for a closed one. `length_us` is infinite for a phase without an end.
    pub fn new(load: &Load, length_us: f64, seed: u64) -> Option<DueTimes> {
        let Load::Open { rate_rps, to_rps, steps, arrivals, burst, .. } = load else { return None };
        let mut times = DueTimes {
            segments: Vec::new(),
            segment: 0,
            spacing: *arrivals,
            burst: (*burst).max(1),
            left: (*burst).max(1),
            count: 0.0,
            rng: Rng::new(seed),
        };
        match (to_rps, steps) {
            (Some(to), None) => times.append(length_us, *rate_rps, *to),
            (Some(to), Some(steps)) => {
                let (n, last) = (f64::from((*steps).max(1)), f64::from((*steps).max(2) - 1));
                for i in 0..(*steps).max(1) {
                    let rate = rate_rps + (to - rate_rps) * f64::from(i) / last;
                    times.append(length_us / n, rate, rate);
                }
            }
            (None, _) => times.append(length_us, *rate_rps, *rate_rps),
        }
        if matches!(arrivals, Arrival::Poisson) {
            // The first burst follows a gap, too.
            times.count = times.gap();
        }
        Some(times)
    }

    fn append(&mut self, length_us: f64, from_rps: f64, to_rps: f64) {
        let (start_us, before) = self.segments.last().map_or((0.0, 0.0), |s| (s.start_us + s.length_us, s.until));
        let until = before + (from_rps + to_rps) / 2.0 * length_us / 1e6;
        self.segments.push(RateSegment { start_us, length_us, from_rps, to_rps, before, until });
    }

    fn gap(&mut self) -> f64 {
        let each = match self.spacing {
            Arrival::Uniform => 1.0,
            Arrival::Poisson => self.rng.exponential(),
            Arrival::Jitter(thousandths) => 1.0 + f64::from(thousandths) / 1e3 * (2.0 * self.rng.share() - 1.0),
        };
        each * f64::from(self.burst)
    }

    /// Returns when the next request is due; infinity if no more arrives.
    pub fn next(&mut self) -> f64 {
        if self.left == 0 {
            self.left = self.burst;
            self.count += self.gap();
        }
        self.left -= 1;
        while let Some(s) = self.segments.get(self.segment) {
            if self.count >= s.until {
                self.segment += 1;
                continue;
            }
            let n = self.count - s.before;
            if n <= 0.0 {
                return s.start_us;
            }
            let slope = if s.length_us.is_finite() { (s.to_rps - s.from_rps) / s.length_us * 1e6 } else { 0.0 };
            // The root of slope/2·t² + from·t = n, in the form that also holds for slope 0.
            let root = (s.from_rps * s.from_rps + 2.0 * slope * n).max(0.0).sqrt();
            return s.start_us + (2.0 * n * 1e6 / (s.from_rps + root)).min(s.length_us);
        }
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(load: &Load, length_us: f64) -> Vec<f64> {
        let mut due = DueTimes::new(load, length_us, 7).expect("an open loop");
        std::iter::from_fn(|| Some(due.next()).filter(|at| *at < length_us)).collect()
    }

    #[test]
    fn a_constant_rate_and_a_ramp_have_their_integral() {
        let load = Load::open(1_000.0, Arrival::Uniform, 1);
        assert_eq!(times(&load, 5_500.0), [0.0, 1_000.0, 2_000.0, 3_000.0, 4_000.0, 5_000.0]);
        let Load::Open { arrivals, burst, connections, .. } = load else { panic!("open") };
        let ramp = |steps| Load::Open { rate_rps: 0.0, to_rps: Some(100.0), steps, arrivals, burst, connections };
        let linear = times(&ramp(None), 10e6);
        assert_eq!((linear.len(), linear.iter().filter(|at| **at < 5e6).count()), (500, 125));
        assert_eq!(times(&ramp(Some(5)), 10e6).len(), 500);
    }

    #[test]
    fn random_gaps_and_bursts_have_the_mean_of_the_rate() {
        for (arrivals, burst) in [(Arrival::Poisson, 1), (Arrival::Jitter(300), 1), (Arrival::Poisson, 4)] {
            let (to_rps, steps, connections) = (None, None, 1);
            let load = Load::Open { rate_rps: 1_000.0, to_rps, steps, arrivals, burst, connections };
            let all = times(&load, 100e6);
            assert!((all.len() as f64 - 100_000.0).abs() < 2_500.0, "{arrivals} {burst}: {}", all.len());
            assert!(all.chunks_exact(burst as usize).all(|together| together.iter().all(|at| *at == together[0])));
        }
    }
}
