//! Confirms the rate that the winner is said to meet, on another fresh start, with a seed that no trial had.

use std::time::Duration;

use lastdrop_model::documents::TuneVerdict;
use lastdrop_model::event::Stage;
use lastdrop_model::units::show_us;
use lastdrop_model::{Event, Plan, Settings};

use super::Tuning;
use crate::lab::LabError;
use crate::trials::rate::{RateStart, step_s};

/// Number of samples beyond the percentile that the result should rest on.
const SAMPLES: f64 = 10.0;
/// The rate is held for this many blocks; to collect samples, at most for `LONGEST_S` seconds.
const BLOCKS: u32 = 3;
const LONGEST_S: f64 = 60.0;
/// Factor by which a missed rate is lowered, and how often it is tried.
const LOWER: f64 = 0.95;
const TRIES: u32 = 6;

impl Tuning<'_, '_> {
    /// Holds the lowest rate that the winner reached in the race, and lowers it if it is missed.
    pub(super) fn show_rate(&mut self, settings: &Settings) -> Result<(), LabError> {
        self.lab.tell(&Event::Stage { stage: Stage::Hold });
        let lowest = self.document.race.iter().map(|pair| pair.best).fold(f64::INFINITY, f64::min);
        let goal = self.order.objectives();
        let mut missed = String::new();
        for try_number in 0..TRIES {
            let rate = lowest * LOWER.powi(try_number as i32);
            let seconds = step_s(self.block() * BLOCKS, &self.plan.objectives, rate, SAMPLES, LONGEST_S);
            let mut plan = Plan { seed: self.seed.wrapping_add(2 + u64::from(try_number)), ..self.plan.clone() };
            for phase in &mut plan.phases {
                phase.duration = Some(Duration::from_secs_f64(seconds));
            }
            let held = RateStart::Held { rate };
            let measured = self.measure_from(settings, "hold", &plan, None, Some(held))?;
            let Some(step) = measured.trial.steps.into_iter().next_back() else {
                missed = measured.trial.why;
                continue;
            };
            if step.ok {
                let held = format!(
                    "; {rate:.1}/s meet {goal} for {seconds:.0} s on one more fresh start with another seed (p99 {})",
                    show_us(step.p99_us)
                );
                self.document.reason.push_str(&held);
                if let Some(winner) = &mut self.document.winner {
                    winner.meets = Some(step);
                }
                return Ok(());
            }
            missed = step.why;
        }
        self.document.verdict = TuneVerdict::Inconclusive;
        self.document.reason.push_str(&format!(
            "; but no rate down to {:.1}/s was held on one more fresh start: {missed}",
            lowest * LOWER.powi(TRIES as i32 - 1)
        ));
        Ok(())
    }
}
