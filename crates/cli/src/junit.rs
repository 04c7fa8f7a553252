//! A JUnit file of the objectives and their verdicts, for build servers; written when a run has ended.

use anyhow::Result;
use lastdrop_experiment::lab::Observer;
use lastdrop_model::Event;
use lastdrop_report::junit;

use crate::outfile::Outfile;

/// Writes the JUnit file of the first run that ends.
#[derive(Debug)]
pub struct Junit {
    file: Option<Outfile>,
    /// The result of writing it.
    pub written: Result<()>,
}

impl Junit {
    #[must_use]
    pub fn new(file: Outfile) -> Junit {
        Junit { file: Some(file), written: Ok(()) }
    }
}

impl Observer for Junit {
    fn on_event(&mut self, event: &Event<'_>) {
        if let Event::Ended { run } = event
            && let Some(file) = self.file.take()
        {
            self.written = file.text(&junit(run));
        }
    }
}
