//! The race: the best settings of the search against the baseline, in pairs of blocks on fresh starts, and what it
//! proves.

use lastdrop_analyze::ratio::{self, Ratio};
use lastdrop_model::documents::{Pair, TuneVerdict, Winner};
use lastdrop_model::event::{Lead, Stage};
use lastdrop_model::settings::describe;
use lastdrop_model::units::show_duration;
use lastdrop_model::{Event, Plan, Settings};
use lastdrop_server::EffectiveSettings;
use lastdrop_tune::race::{RatioInterval, are_divisible, is_clear};
use lastdrop_tune::{Decision, Race, RaceVerdict};

use super::Tuning;
use crate::lab::LabError;

pub(super) const MIN_PAIRS: usize = 4;
/// How many invalid blocks are repeated.
const SPOILED_BLOCKS: usize = 3;

/// A block of the baseline and one of the best settings.
#[derive(Debug, Clone, Copy)]
struct BlockPair {
    baseline: RaceBlock,
    best: RaceBlock,
}

#[derive(Debug, Clone, Copy, Default)]
struct RaceBlock {
    /// More is better.
    goodness: f64,
    answers: u64,
    p99_us: f64,
    /// The block met the objectives, and everything else required of a trial.
    valid: bool,
}

impl Tuning<'_, '_> {
    pub(super) fn race(&mut self, settings: &Settings, effective: &EffectiveSettings) -> Result<(), LabError> {
        self.lab.tell(&Event::Stage { stage: Stage::Race });
        // Invalid pairs count towards the maximum number of pairs.
        let race = |spoiled: usize| Race {
            min_pairs: MIN_PAIRS,
            max_pairs: (self.order.max_pairs as usize).saturating_sub(spoiled).max(MIN_PAIRS),
            worth: 1.0 + self.order.min_gain,
        };
        // With another seed: the best must also win with another order of requests and pauses.
        let plan = Plan { seed: self.seed.wrapping_add(1), ..self.plan.clone() };
        let goal = self.order.goal;
        let (mut blocks, mut spoiled) = (Vec::new(), 0);
        let verdict = loop {
            let answers = answers(&blocks);
            let divisible = are_divisible(&answers);
            let of = |confidence| interval(&blocks, confidence).filter(|_| divisible);
            let keeps = !self.plan.objectives.is_empty() && only_best_counts(&blocks);
            let clear = keeps || !divisible && is_clear(&answers);
            let best_first = match race(spoiled).decide(blocks.len(), of(0.99), of(0.95)) {
                _ if blocks.len() >= MIN_PAIRS && clear => break RaceVerdict::Improved,
                Decision::Pair { best_first } => best_first,
                Decision::Stop(verdict) => break verdict,
            };
            let mut pair = [RaceBlock::default(); 2];
            let mut measures = [0.0; 2];
            for is_best in [best_first, !best_first] {
                let with = if is_best { settings.clone() } else { Settings::new() };
                let t = self.measure(&with, "race", &plan, None)?.trial;
                let measure = goal.measure(&t);
                measures[usize::from(is_best)] = measure.unwrap_or_default();
                pair[usize::from(is_best)] = RaceBlock {
                    goodness: measure.map_or(0.0, |m| goal.goodness(m)),
                    answers: self.answers(t.objective),
                    p99_us: t.p99_us,
                    valid: t.valid,
                };
            }
            let [baseline, best] = pair;
            // A baseline without responses is a result; an invalid block of the winner is not.
            if !best.valid {
                spoiled += 1;
                if spoiled > SPOILED_BLOCKS {
                    break RaceVerdict::Inconclusive;
                }
                continue;
            }
            blocks.push(BlockPair { baseline, best });
            self.document.race.push(Pair { baseline: measures[0], best: measures[1] });
            if let Some(found) = interval(&blocks, 0.95).filter(|_| are_divisible(&self::answers(&blocks))) {
                let lead = Lead {
                    what: describe(settings).into(),
                    ratio: found.ratio,
                    interval: Some([found.low, found.high]),
                    times: goal.times().into(),
                    rests_on: format!("{} pairs", blocks.len()).into(),
                };
                self.lab.tell(&Event::Leading { lead });
            }
        };
        let confidence = race(spoiled).confidence(blocks.len());
        self.conclude(verdict, settings, effective, &blocks, spoiled, confidence);
        if self.order.searches_rates() && self.document.verdict == TuneVerdict::Improved {
            self.show_rate(settings)?;
        }
        Ok(())
    }

    fn conclude(
        &mut self,
        verdict: RaceVerdict,
        settings: &Settings,
        effective: &EffectiveSettings,
        blocks: &[BlockPair],
        spoiled: usize,
        confidence: f64,
    ) {
        let answers = answers(blocks);
        let measured: Option<Ratio> = paired(blocks, confidence).filter(|_| are_divisible(&answers));
        let percent = self.order.min_gain * 100.0;
        let times = self.order.times();
        let (ours, theirs) = answers.iter().fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        let words = format!(
            "in {} blocks of {} the server as it is answered {}, the best of the others {theirs} requests: too little to \
             divide by",
            blocks.len(),
            show_duration(self.block()),
            if ours == 0 { "nothing".into() } else { ours.to_string() },
        );
        let d = &mut *self.document;
        (d.verdict, d.reason) = match (verdict, measured) {
            (RaceVerdict::Improved, r) if only_best_counts(blocks) && !self.plan.objectives.is_empty() => {
                let so_much = r.map_or(String::new(), |r| format!("; it has {:.2} times {times}", r.ratio));
                let said = format!(
                    "the best keeps to the objectives in all of {} blocks, the server as it is in none{so_much}",
                    blocks.len()
                );
                (TuneVerdict::Improved, said)
            }
            (RaceVerdict::Improved, Some(r)) => (
                TuneVerdict::Improved,
                format!(
                    "{:.2} times {times}, between {:.2} and {:.2} with 95 % confidence, in {} pairs",
                    r.ratio, r.low, r.high, r.pairs
                ),
            ),
            (RaceVerdict::Improved, None) => (TuneVerdict::Improved, words),
            (RaceVerdict::NoGain, Some(r)) => (
                TuneVerdict::NoGain,
                format!(
                    "the best of the others gives {:.2} times {times}, between {:.2} and {:.2} with 95 % confidence: \
                     not shown to be worth {percent:.0} %",
                    r.ratio, r.low, r.high
                ),
            ),
            (_, Some(r)) => (
                TuneVerdict::Inconclusive,
                format!(
                    "{:.2} times {times}, but anything between {:.2} and {:.2} is possible: run with longer blocks (-d)",
                    r.ratio, r.low, r.high
                ),
            ),
            (_, None) if spoiled <= SPOILED_BLOCKS => {
                (TuneVerdict::Inconclusive, format!("{words}; run with longer blocks (-d)"))
            }
            (_, None) => (TuneVerdict::Inconclusive, format!("{spoiled} blocks did not count; see why in the trials")),
        };
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let all: Vec<f64> = values.collect();
            if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
        };
        if measured.is_some() || d.verdict == TuneVerdict::Improved {
            d.winner = Some(Winner {
                settings: settings.clone(),
                ratio: measured.map(|r| r.ratio),
                interval: measured.map(|r| [r.low, r.high]),
                objective: mean(&mut d.race.iter().map(|p| p.best)),
                p99_us: mean(&mut blocks.iter().map(|b| b.best.p99_us)),
                meets: None,
                memory: None,
            });
        }
        d.diff = diff(settings, effective);
    }
}

/// Returns the removed lines, each with its source, and the added lines.
pub(super) fn diff(settings: &Settings, effective: &EffectiveSettings) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, value) in settings {
        if let Some(old) = effective.settings.get(name) {
            let source = effective.sources.get(name).map_or("", String::as_str);
            lines.push(format!("-{name} {old}    # {source}"));
        }
        lines.push(format!("+{name} {value}"));
    }
    lines
}

/// Returns true if all blocks of the best are valid and none of the baseline.
fn only_best_counts(blocks: &[BlockPair]) -> bool {
    !blocks.is_empty() && blocks.iter().all(|b| b.best.valid && !b.baseline.valid)
}

fn answers(blocks: &[BlockPair]) -> Vec<(u64, u64)> {
    blocks.iter().map(|b| (b.baseline.answers, b.best.answers)).collect()
}

fn goodness(blocks: &[BlockPair]) -> Vec<(f64, f64)> {
    blocks.iter().map(|b| (b.baseline.goodness, b.best.goodness)).collect()
}

/// Returns the ratio best / baseline. Answers are whole: where all blocks have the same number, it may still be one off, and the
/// interval is at least as wide as that.
fn paired(blocks: &[BlockPair], confidence: f64) -> Option<Ratio> {
    let found = ratio::paired(&goodness(blocks), confidence)?;
    let one_of = |count: &dyn Fn(&BlockPair) -> u64| {
        let all: u64 = blocks.iter().map(count).sum();
        blocks.len() as f64 / all.max(1) as f64
    };
    let off = 1.0 + one_of(&|b| b.baseline.answers) + one_of(&|b| b.best.answers);
    Some(Ratio { low: found.low.min(found.ratio / off), high: found.high.max(found.ratio * off), ..found })
}

fn interval(blocks: &[BlockPair], confidence: f64) -> Option<RatioInterval> {
    let found = paired(blocks, confidence)?;
    Some(RatioInterval { ratio: found.ratio, low: found.low, high: found.high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_counts_leave_an_interval_of_an_answer() {
        let block = |goodness: f64| RaceBlock { goodness, answers: (5.0 * goodness) as u64, p99_us: 0.0, valid: true };
        let blocks = [BlockPair { baseline: block(6.0), best: block(75.0) }; 4];
        let found = interval(&blocks, 0.95).expect("a ratio");
        assert!(found.low < 12.1 && found.high > 12.9 && found.low > 11.9, "{found:?}");
    }
}
