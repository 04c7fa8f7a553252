//! Ends a trial early once it cannot beat the best so far.
//!
//! After each second the throughput so far has an interval. It comes from the spread between the seconds. It is never
//! narrower than the differences between trials of the same settings; these weigh more the shorter the block was until
//! then. A trial whose optimistic end lies below the pessimistic end of the best so far cannot win.

use std::cell::Cell;
use std::rc::Rc;

use crate::lab::Observer;
use lastdrop_model::Event;

/// The best so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStop {
    /// Its responses per second.
    pub best_rps: f64,
    /// Standard deviation of the logarithm of a trial's throughput.
    pub noise: f64,
    /// Length of a complete block, seconds.
    pub block_s: f64,
}

/// Standard deviations up to the optimistic and the pessimistic end.
const SIGMAS: f64 = 3.0;
/// A single second has no spread between seconds.
const LEAST_SECONDS: usize = 2;

impl EarlyStop {
    /// Returns true if the best is out of reach after seconds with these numbers of responses.
    #[must_use]
    pub fn is_out_of_reach(&self, answers: &[u64]) -> bool {
        let n = answers.len() as f64;
        if answers.len() < LEAST_SECONDS || n >= self.block_s {
            return false;
        }
        let mean = answers.iter().sum::<u64>() as f64 / n;
        let variance = answers.iter().map(|a| (*a as f64 - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let noise = (self.noise * (self.block_s / n).sqrt()).max((variance / n).sqrt() / mean.max(1.0));
        // Counts have a spread of their own, even if the seconds happen to be alike.
        let counting = 1.0 / (mean * n).max(1.0).sqrt();
        let optimistic = mean.max(1.0).ln() + SIGMAS * noise.hypot(counting);
        optimistic < self.best_rps.ln() - SIGMAS * self.noise
    }
}

/// Ends a run once the best is out of reach.
#[derive(Debug)]
pub(crate) struct EarlyStopObserver {
    early_stop: EarlyStop,
    /// Index of the measured phase.
    phase: u16,
    answers: Vec<u64>,
    /// Seconds after which the best was out of reach; 0 while it is within reach.
    pub over: Rc<Cell<usize>>,
}

impl EarlyStopObserver {
    pub(crate) fn new(early_stop: EarlyStop, phase: usize) -> EarlyStopObserver {
        EarlyStopObserver { early_stop, phase: phase as u16, answers: Vec::new(), over: Rc::default() }
    }
}

impl Observer for EarlyStopObserver {
    fn on_event(&mut self, event: &Event<'_>) {
        match event {
            Event::Began { .. } => {
                self.answers.clear();
                self.over.set(0);
            }
            Event::Second { slice } if slice.phase == self.phase && self.over.get() == 0 => {
                self.answers.push(slice.counts.answered);
                if self.early_stop.is_out_of_reach(&self.answers) {
                    self.over.set(self.answers.len());
                }
            }
            _ => {}
        }
    }

    fn has_seen_enough(&self) -> bool {
        self.over.get() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAR: EarlyStop = EarlyStop { best_rps: 400.0, noise: 0.05, block_s: 5.0 };

    #[test]
    fn what_is_far_behind_is_over_after_two_seconds() {
        assert!(BAR.is_out_of_reach(&[100, 110]) && !BAR.is_out_of_reach(&[100]));
        // Near its end, stopping a trial saves nothing.
        assert!(!BAR.is_out_of_reach(&[100; 5]));
    }

    #[test]
    fn what_might_still_come_up_goes_on() {
        // A slow first second, noise, and slightly less than the best.
        assert!(!BAR.is_out_of_reach(&[100, 390]) && !BAR.is_out_of_reach(&[330, 340]));
        assert!(!EarlyStop { noise: 0.3, ..BAR }.is_out_of_reach(&[150, 160]));
        // With few responses per second, nothing is certain so soon.
        assert!(!EarlyStop { best_rps: 4.0, ..BAR }.is_out_of_reach(&[1, 2]));
        // No responses at all are certain.
        assert!(BAR.is_out_of_reach(&[0, 0]));
    }

    #[test]
    fn chance_seldom_ends_one_that_is_as_good() {
        use rand_core::{Rng, SeedableRng};
        let mut rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(7);
        let mut unit = || (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut normal = || (0..12).map(|_| unit()).sum::<f64>() - 6.0;
        let mut ended = 0;
        for _ in 0..10_000 {
            // Trials of the best settings differ by 5 %, their seconds by 11 %.
            let level = 400.0 * (0.05 * normal()).exp();
            let seconds: Vec<u64> = (0..5).map(|_| (level * (0.11 * normal()).exp()) as u64).collect();
            ended += u32::from((1..5).any(|n| BAR.is_out_of_reach(&seconds[..n])));
        }
        assert!(ended < 20, "{ended} of 10000");
    }
}
