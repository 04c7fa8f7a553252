//! Archives the seconds and samples of a long run that is not stored. They go to a file without a name, so that memory
//! holds only the latest ones.

use std::time::Duration;

use lastdrop_model::timeline::KEPT;
use lastdrop_model::{Event, Plan};
use lastdrop_store::Store;

use super::Observer;

/// One run on disk, for as long as it is read.
#[derive(Debug)]
pub(crate) struct Scratch {
    store: Store,
    run: String,
    /// A write failed. The user has not asked for this file and need not know about it.
    failed: bool,
}

impl Scratch {
    /// Returns None for a run of minutes, which fits into memory, and if there is no scratch space: then memory has to
    /// do.
    pub fn of(plan: &Plan, run: &str) -> Option<Scratch> {
        if !long(plan) {
            return None;
        }
        Some(Scratch { store: Store::scratch().ok()?, run: run.into(), failed: false })
    }
}

impl Observer for Scratch {
    fn on_event(&mut self, event: &Event<'_>) {
        let written = match event {
            _ if self.failed => return,
            Event::Second { slice } => self.store.second(&self.run, slice),
            Event::Sample { sample } => self.store.look(&self.run, sample),
            _ => return,
        };
        self.failed = written.is_err();
    }

    fn archive(&self) -> Option<&Store> {
        Some(&self.store).filter(|_| !self.failed)
    }
}

/// Returns true if the run may last longer than memory keeps all of it.
fn long(plan: &Plan) -> bool {
    let whole: Option<Duration> = plan.phases.iter().map(|p| p.duration).sum();
    whole.is_none_or(|d| d.as_secs() >= 2 * KEPT as u64)
}
