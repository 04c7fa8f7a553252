//! Progress for a person: a live line on a terminal, plain lines elsewhere, always on stderr.

use lastdrop_experiment::lab::Observer;
use lastdrop_model::units::show_us;
use lastdrop_model::{Counts, Event, Kind, Printable, Slice};
use lastdrop_report::event_line;

use crate::stdio::{self, note};

#[derive(Debug)]
pub struct Terminal {
    quiet: bool,
    live: bool,
    /// Width of the live line on the screen now.
    shown: usize,
    /// Names and counts so far of the current run's phases.
    phases: Vec<(String, Counts)>,
}

impl Terminal {
    #[must_use]
    pub fn new(quiet: bool) -> Terminal {
        Terminal { quiet, live: stdio::err_is_terminal(), shown: 0, phases: Vec::new() }
    }

    fn clear(&mut self) {
        if self.shown > 0 {
            stdio::err(Printable::new().control("\r").text(&" ".repeat(self.shown)).control("\r"));
            self.shown = 0;
        }
    }

    fn second(&mut self, slice: &Slice) {
        let Some((phase, so_far)) = self.phases.get_mut(usize::from(slice.phase)) else { return };
        so_far.add(&slice.counts);
        let response = &slice.latencies[Kind::Response as usize];
        let unanswered = so_far.failed.total() + so_far.timed_out;
        let line = format!(
            "{phase} {}s  {}/s  p50 {}  p99 {}  answered {}  failed {unanswered}",
            slice.second + 1,
            slice.counts.answered,
            show_us(response.quantile(0.5) as f64),
            show_us(response.quantile(0.99) as f64),
            so_far.answered,
        );
        self.clear();
        let line = Printable::from(line);
        self.shown = line.as_str().chars().count();
        stdio::err(line);
    }
}

impl Observer for Terminal {
    fn on_event(&mut self, event: &Event<'_>) {
        if self.quiet {
            return;
        }
        match event {
            Event::Began { plan, .. } if self.live => {
                self.phases = plan.phases.iter().map(|p| (p.name.clone(), Counts::default())).collect();
            }
            Event::Second { slice } if self.live => self.second(slice),
            Event::Ended { .. } | Event::Failed { .. } => self.clear(),
            _ => {
                if let Some(line) = event_line(event) {
                    self.clear();
                    note!("{line}");
                }
            }
        }
    }
}
