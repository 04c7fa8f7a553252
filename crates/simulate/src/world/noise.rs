//! What disturbs a machine over time: drift of its speed, a neighbour, and stolen time. Also the luck of each start.
//!
//! Its random numbers are its own: the same seed disturbs every load alike, whatever its requests draw.

use super::machine::Disturbance;
use super::plan::NoisePlan;
use crate::rng::Rng;

/// Correlation of the logarithm of the speed from one second to the next.
const CORRELATION: f64 = 0.95;
const SECOND_US: f64 = 1e6;
/// Shortest and longest burst of stolen time.
const BURST_US: (f64, f64) = (50_000.0, 200_000.0);

#[derive(Debug)]
pub(super) struct Noise {
    plan: NoisePlan,
    drift: Rng,
    neighbour: Rng,
    steal: Rng,
    starts: Rng,
    log_speed: f64,
    neighbour_on: bool,
    steal_on: bool,
    /// Share of the processors that a burst takes.
    steal_depth: f64,
    next_drift_us: f64,
    next_neighbour_us: f64,
    next_steal_us: f64,
}

impl Noise {
    pub fn new(plan: &NoisePlan, rng: &mut Rng) -> Noise {
        let (mut drift, mut neighbour, mut steal, starts) = (rng.others(), rng.others(), rng.others(), rng.others());
        let log_speed = plan.drift * drift.normal();
        let (on, off) = (plan.neighbour_on_s, plan.neighbour_off_s);
        let comes = plan.neighbour_cores > 0.0 && on > 0.0;
        let neighbour_on = comes && neighbour.share() <= on / (on + off);
        let mut noise = Noise {
            plan: plan.clone(),
            log_speed,
            neighbour_on,
            steal_on: false,
            steal_depth: plan.steal.sqrt().max(0.5),
            next_drift_us: if plan.drift > 0.0 { SECOND_US } else { f64::INFINITY },
            next_neighbour_us: f64::INFINITY,
            next_steal_us: f64::INFINITY,
            drift,
            neighbour,
            steal: Rng::new(0),
            starts,
        };
        if comes && off > 0.0 {
            noise.next_neighbour_us = noise.neighbour_time();
        }
        if plan.steal > 0.0 {
            noise.steal_on = steal.share() <= plan.steal / noise.steal_depth;
        }
        noise.steal = steal;
        if plan.steal > 0.0 {
            noise.next_steal_us = noise.steal_time();
        }
        noise
    }

    /// When the next change comes; infinity without noise.
    #[inline]
    pub fn next(&self) -> f64 {
        self.next_drift_us.min(self.next_neighbour_us).min(self.next_steal_us)
    }

    /// Makes the changes that are due.
    pub fn change(&mut self, now_us: f64) {
        if now_us >= self.next_drift_us {
            let innovation = self.plan.drift * (1.0 - CORRELATION * CORRELATION).sqrt();
            self.log_speed = CORRELATION * self.log_speed + innovation * self.drift.normal();
            self.next_drift_us += SECOND_US;
        }
        if now_us >= self.next_neighbour_us {
            self.neighbour_on = !self.neighbour_on;
            self.next_neighbour_us += self.neighbour_time();
        }
        if now_us >= self.next_steal_us {
            self.steal_on = !self.steal_on;
            self.next_steal_us += self.steal_time();
        }
    }

    pub fn disturbance(&self) -> Disturbance {
        Disturbance {
            speed: self.log_speed.exp(),
            neighbour_cores: if self.neighbour_on { self.plan.neighbour_cores } else { 0.0 },
            stolen_share: if self.steal_on { self.steal_depth } else { 0.0 },
        }
    }

    /// Draws the factor for the CPU costs of a fresh pool. Its median is 1, so that ratios of runs have no bias.
    pub fn start_factor(&mut self) -> f64 {
        if self.plan.start_spread > 0.0 { (self.plan.start_spread * self.starts.normal()).exp() } else { 1.0 }
    }

    /// How long the neighbour stays as it is.
    fn neighbour_time(&mut self) -> f64 {
        let mean_s = if self.neighbour_on { self.plan.neighbour_on_s } else { self.plan.neighbour_off_s };
        SECOND_US * mean_s * self.neighbour.exponential()
    }

    /// How long a burst lasts, or the time between two: so long that the mean share is the plan's.
    fn steal_time(&mut self) -> f64 {
        let (shortest, longest) = BURST_US;
        if self.steal_on {
            return shortest + (longest - shortest) * self.steal.share();
        }
        let mean_us = (shortest + longest) / 2.0 * (self.steal_depth / self.plan.steal - 1.0);
        mean_us * self.steal.exponential()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The disturbances of many seconds, each with its duration in seconds.
    fn over(plan: &NoisePlan, seed: u64, seconds: f64) -> Vec<(Disturbance, f64)> {
        let mut noise = Noise::new(plan, &mut Rng::new(seed));
        let (mut now, mut all) = (0.0, Vec::new());
        while now < seconds * SECOND_US {
            let next = noise.next().min(seconds * SECOND_US);
            all.push((noise.disturbance(), (next - now) / SECOND_US));
            noise.change(next);
            now = next;
        }
        all
    }

    fn mean(all: &[(Disturbance, f64)], of: impl Fn(&Disturbance) -> f64) -> f64 {
        all.iter().map(|(d, s)| of(d) * s).sum::<f64>() / all.iter().map(|(_, s)| s).sum::<f64>()
    }

    #[test]
    fn drift_has_its_spread_from_the_first_second_on_and_its_correlation() {
        let plan = NoisePlan { drift: 0.1, ..NoisePlan::default() };
        let first: Vec<f64> =
            (0..4_000).map(|seed| Noise::new(&plan, &mut Rng::new(seed)).disturbance().speed.ln()).collect();
        let spread = |all: &[f64]| (all.iter().map(|x| x * x).sum::<f64>() / all.len() as f64).sqrt();
        assert!((spread(&first) - 0.1).abs() < 0.004, "{}", spread(&first));
        let later: Vec<f64> = over(&plan, 1, 100_000.0).iter().map(|(d, _)| d.speed.ln()).collect();
        assert!((spread(&later) - 0.1).abs() < 0.004, "{}", spread(&later));
        let product = later.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / (later.len() - 1) as f64;
        assert!((product / spread(&later).powi(2) - 0.95).abs() < 0.01);
    }

    #[test]
    fn the_neighbour_is_there_for_its_share_of_the_time() {
        let plan =
            NoisePlan { neighbour_cores: 1.5, neighbour_on_s: 3.0, neighbour_off_s: 9.0, ..NoisePlan::default() };
        let cores = mean(&over(&plan, 2, 200_000.0), |d| d.neighbour_cores);
        assert!((cores / (1.5 / 4.0) - 1.0).abs() < 0.03, "{cores}");
        let always = NoisePlan { neighbour_off_s: 0.0, ..plan.clone() };
        assert_eq!(mean(&over(&always, 2, 10.0), |d| d.neighbour_cores), 1.5);
        let never = NoisePlan { neighbour_on_s: 0.0, ..plan };
        assert_eq!(mean(&over(&never, 2, 10.0), |d| d.neighbour_cores), 0.0);
    }

    #[test]
    fn stolen_time_has_its_mean_share_in_short_bursts() {
        for steal in [0.05, 0.4] {
            let all = over(&NoisePlan { steal, ..NoisePlan::default() }, 3, 5_000.0);
            let share = mean(&all, |d| d.stolen_share);
            assert!((share / steal - 1.0).abs() < 0.04, "{share}");
            let bursts = all.iter().filter(|(d, _)| d.stolen_share > 0.0);
            assert!(bursts.skip(1).all(|(_, s)| *s < 0.2001));
        }
    }

    #[test]
    fn the_factor_of_a_start_has_median_one() {
        let plan = NoisePlan { start_spread: 0.05, ..NoisePlan::default() };
        let mut noise = Noise::new(&plan, &mut Rng::new(4));
        let logs: Vec<f64> = (0..10_000).map(|_| noise.start_factor().ln()).collect();
        assert!(logs.iter().sum::<f64>().abs() / 10_000.0 < 0.002);
    }
}
