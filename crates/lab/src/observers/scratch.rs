//! Where the seconds and looks of a long run go that nobody keeps: into a file without a name, so that memory has only the
//! latest of them.

use std::time::Duration;

use lastdrop_model::timeline::KEPT;
use lastdrop_model::{Event, Plan};
use lastdrop_store::Store;

use super::Observer;

/// One run on disk for as long as somebody reads in it.
#[derive(Debug)]
pub(crate) struct Scratch {
    store: Store,
    run: String,
    /// Something could not be written. The user has not asked for this file and needs not know of it.
    failed: bool,
}

impl Scratch {
    /// None for a run of minutes, which needs no disk, and where there is no scratch space: that run needs memory.
    pub fn of(plan: &Plan, run: &str) -> Option<Scratch> {
        if !long(plan) {
            return None;
        }
        Some(Scratch { store: Store::scratch().ok()?, run: run.into(), failed: false })
    }
}

impl Observer for Scratch {
    fn see(&mut self, event: &Event<'_>) {
        let written = match event {
            _ if self.failed => return,
            Event::Second { slice } => self.store.second(&self.run, slice),
            Event::Sample { look } => self.store.look(&self.run, look),
            _ => return,
        };
        self.failed = written.is_err();
    }

    fn archive(&self) -> Option<&Store> {
        Some(&self.store).filter(|_| !self.failed)
    }
}

/// May it last for longer than memory keeps all of it?
fn long(plan: &Plan) -> bool {
    let whole: Option<Duration> = plan.phases.iter().map(|p| p.duration).sum();
    whole.is_none_or(|d| d.as_secs() >= 2 * KEPT as u64)
}
