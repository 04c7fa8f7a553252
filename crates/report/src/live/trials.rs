//! The results of an experiment's trials, as a table with bars.

use lastdrop_model::event::Outcome;
use lastdrop_model::printable::line;
use lastdrop_model::settings::describe;
use lastdrop_model::units::{show_bytes, show_us};

use crate::html::number;
use crate::tune::other_load;

/// Number of trials that are kept: the latest.
const MOST_ROWS: usize = 500;

/// How a trial counts in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrialStanding {
    Counts,
    /// It ran under a different load, so it cannot be compared with the others.
    Beside,
    /// It was refused, failed, or missed its objective.
    Fails,
}

#[derive(Debug, Clone)]
pub(super) struct TrialRow {
    pub number: u64,
    /// The settings or the rate that was tried.
    pub name: String,
    /// Length of its bar.
    pub value: f64,
    pub shown: String,
    pub p99: String,
    /// The reason why it does not count, or its purpose.
    pub note: String,
    pub worth: TrialStanding,
    /// A rate of the capacity search, not a step of the staircase before it.
    pub is_rate: bool,
}

/// All trials.
#[derive(Debug, Clone, Default)]
pub(super) struct Trials {
    pub rows: Vec<TrialRow>,
    done: u64,
    /// The highest rate that held, and the rates that did not.
    held_rps: Option<f64>,
    failed_rps: Vec<f64>,
    capacity: bool,
}

impl Trials {
    pub fn add(&mut self, outcome: &Outcome<'_>) {
        self.done += 1;
        let mut row = row(outcome);
        row.number = self.done;
        if let Outcome::Capacity { step } = outcome {
            // The staircase before the search does not count as a rate.
            self.capacity = true;
            match step.ok {
                true => self.held_rps = Some(self.held_rps.map_or(step.rate, |held| held.max(step.rate))),
                false => self.failed_rps.push(step.rate),
            }
        }
        if self.rows.len() == MOST_ROWS {
            self.rows.remove(0);
        }
        self.rows.push(row);
    }

    /// Returns the index of the best trial among those that count.
    pub fn best(&self) -> Option<usize> {
        let counts = |(at, row): (usize, &TrialRow)| {
            let asked = !self.capacity || row.is_rate;
            (asked && row.worth == TrialStanding::Counts && row.value > 0.0).then_some((at, row.value))
        };
        let rows = self.rows.iter().enumerate().filter_map(counts);
        rows.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at)
    }

    /// Describes the best result so far.
    pub fn best_words(&self) -> Option<String> {
        if self.capacity {
            let held = self.held_rps.map_or("no rate held yet".into(), |r| format!("{} held", rate(r)));
            // A failure below a rate that held was chance, or had another reason.
            let above = self.failed_rps.iter().copied().filter(|r| self.held_rps.is_none_or(|held| *r > held));
            let failed = above.reduce(f64::min).map_or(String::new(), |r| format!(", {} not", rate(r)));
            return Some(format!("{held}{failed}"));
        }
        let row = &self.rows[self.best()?];
        Some(format!("{}  {}", row.shown, row.name))
    }
}

/// Formats a rate: `1,234/s`, `12.3/s`.
pub(super) fn rate(rps: f64) -> String {
    if rps >= 100.0 { format!("{}/s", grouped(rps.round() as u64)) } else { format!("{rps:.1}/s") }
}

/// Formats a count with grouped thousands: `1,234,567`.
pub(super) fn grouped(n: u64) -> String {
    number::grouped(n as f64)
}

fn row(outcome: &Outcome<'_>) -> TrialRow {
    let worth = |counts: bool| if counts { TrialStanding::Counts } else { TrialStanding::Fails };
    let row = |name: String, value: f64, shown: String, p99_us: f64, note: &str, counts: bool| TrialRow {
        number: 0,
        name: line(&name),
        value,
        shown,
        p99: if p99_us > 0.0 { show_us(p99_us) } else { String::new() },
        note: line(note),
        worth: worth(counts),
        is_rate: matches!(outcome, Outcome::Capacity { .. }),
    };
    match outcome {
        Outcome::Tune { trial } => {
            let note = if trial.valid { trial.role.as_str() } else { trial.why.as_str() };
            let name = describe(&trial.settings);
            let row = row(name, trial.objective, rate(trial.objective), trial.p99_us, note, trial.valid);
            if trial.valid && !other_load(&trial.role).is_empty() {
                TrialRow { worth: TrialStanding::Beside, ..row }
            } else {
                row
            }
        }
        Outcome::Sweep { row: of } => {
            let settings = if of.settings.is_empty() { String::new() } else { describe(&of.settings) };
            let users = format!("{} users", of.users);
            let parts: Vec<&str> =
                [of.series.as_str(), &users, &settings].into_iter().filter(|p| !p.is_empty()).collect();
            row(parts.join("  "), of.rps, rate(of.rps), of.p99_us, &of.note, !of.run.is_empty())
        }
        Outcome::Stair { stair } => {
            let name = format!("{} user{}", stair.users, if stair.users == 1 { "" } else { "s" });
            row(name, stair.rps, rate(stair.rps), stair.p99_us, "", true)
        }
        Outcome::Capacity { step } => {
            let note = if step.ok { "ok" } else { &step.why };
            row(
                format!("{} due", rate(step.rate)),
                step.answered_rps,
                rate(step.answered_rps),
                step.p99_us,
                note,
                step.ok,
            )
        }
        Outcome::Compare { number, of, block } => {
            let get = |side: &std::collections::BTreeMap<String, f64>, name| side.get(name).copied().unwrap_or(0.0);
            let (a, b) = (get(&block.a, "rps"), get(&block.b, "rps"));
            let name = format!("block {number} of {of}: A {}, B {}", rate(a), rate(b));
            let ratio = if a > 0.0 { b / a } else { 0.0 };
            row(
                name,
                ratio,
                format!("B/A {ratio:.3}"),
                get(&block.b, "p99_us"),
                &block.spoiled,
                block.spoiled.is_empty(),
            )
        }
        Outcome::Age { workers, step, of, point } => {
            let name = format!("{workers} workers, age {step} of {of}");
            row(name, point.private_bytes as f64, show_bytes(point.private_bytes), 0.0, "private each", true)
        }
        Outcome::Pool { workers, point, .. } => {
            let name = format!("{workers} workers");
            row(name, point.pss_bytes as f64, show_bytes(point.pss_bytes), 0.0, "together", true)
        }
    }
}
