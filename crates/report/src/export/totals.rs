//! Cumulative totals of a run so far, for formats that export counters.

use lastdrop_model::{Event, Sample, Slice};

use super::Runs;
use super::phases::Phases;

/// Phases that are kept apart. A plan may have thousands, and each needs histograms.
const MOST_PHASES: usize = 24;
/// The name under which all other phases are added up.
const OTHERS: &str = "(others)";

/// Totals of one phase, or of all phases with the same name.
#[derive(Debug)]
pub(super) struct PhaseTotal {
    pub name: String,
    pub slice: Slice,
}

/// The state of an experiment.
#[derive(Debug)]
pub(super) struct Totals {
    runs: Runs,
    phases: Phases,
    pub id: String,
    pub url: String,
    pub label: String,
    pub started_unix_ms: u64,
    /// The end of the latest second, in seconds since the run began.
    pub at_s: f64,
    pub running: bool,
    pub of_phases: Vec<PhaseTotal>,
    pub look: Option<Sample>,
}

impl Totals {
    /// With one run, its own totals; with several, the totals of all, so that no counter ever decreases.
    pub fn of(runs: Runs) -> Totals {
        Totals {
            runs,
            phases: Phases::default(),
            id: String::new(),
            url: String::new(),
            label: String::new(),
            started_unix_ms: 0,
            at_s: 0.0,
            running: false,
            of_phases: Vec::new(),
            look: None,
        }
    }

    pub fn on_event(&mut self, event: &Event<'_>) {
        self.phases.on_event(event);
        match event {
            Event::Began { id, started_unix_ms, label, plan, .. } => {
                (self.id, self.label, self.url) = (id.to_string(), label.to_string(), plan.url.to_string());
                (self.started_unix_ms, self.at_s, self.running, self.look) = (*started_unix_ms, 0.0, true, None);
                if self.runs == Runs::One {
                    self.of_phases.clear();
                }
            }
            Event::Second { slice } => {
                self.at_s = self.at_s.max(self.phases.at(slice.phase, slice.second) + 1.0);
                let name = self.phases.name(slice.phase).to_string();
                let known = self.of_phases.iter().position(|p| p.name == name);
                let name = if known.is_none() && self.of_phases.len() >= MOST_PHASES { OTHERS.into() } else { name };
                match known.or_else(|| self.of_phases.iter().position(|p| p.name == name)) {
                    Some(at) => self.of_phases[at].slice.add_unclassed(slice),
                    None => {
                        let mut sum = Slice::new(0, 0);
                        sum.add_unclassed(slice);
                        self.of_phases.push(PhaseTotal { name, slice: sum });
                    }
                }
            }
            Event::Sample { sample } => self.look = Some(Sample::clone(sample)),
            Event::Ended { .. } | Event::Failed { .. } => self.running = false,
            _ => {}
        }
    }
}
