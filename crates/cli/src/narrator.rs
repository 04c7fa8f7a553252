//! Progress for a person: a live line on a terminal, plain lines elsewhere, always on stderr.

use std::io::{IsTerminal, Write, stderr};

use lastdrop_experiment::{Narrator, Progress};
use lastdrop_model::Kind;
use lastdrop_model::units::show_us;

#[derive(Debug)]
pub struct Terminal {
    quiet: bool,
    live: bool,
    /// Width of the live line on the screen now.
    shown: usize,
}

impl Terminal {
    #[must_use]
    pub fn new(quiet: bool) -> Terminal {
        Terminal { quiet, live: stderr().is_terminal(), shown: 0 }
    }

    fn clear(&mut self) {
        if self.shown > 0 {
            eprint!("\r{}\r", " ".repeat(self.shown));
            self.shown = 0;
        }
    }
}

impl Narrator for Terminal {
    fn tell(&mut self, progress: Progress<'_>) {
        if self.quiet {
            return;
        }
        match progress {
            Progress::Second { phase, second, so_far, slice } if self.live => {
                let response = &slice.latencies[Kind::Response as usize];
                let unanswered = so_far.failed.total() + so_far.timed_out;
                let line = format!(
                    "{phase} {}s  {}/s  p50 {}  p99 {}  answered {}  failed {unanswered}",
                    second + 1,
                    slice.counts.answered,
                    show_us(response.quantile(0.5) as f64),
                    show_us(response.quantile(0.99) as f64),
                    so_far.answered,
                );
                self.clear();
                self.shown = line.chars().count();
                eprint!("{line}");
                let _ = stderr().flush();
            }
            Progress::Second { .. } => {}
            Progress::RunOver => self.clear(),
            Progress::Note(text) => {
                self.clear();
                eprintln!("{text}");
            }
        }
    }
}
