//! Observers of runs, one file each. To add one, add a file here or where it is needed, and a line to the list of
//! observers (`observers` in the command line).

mod keeper;
mod request_log;
mod requests;
mod scratch;

pub use keeper::Keeper;
pub use request_log::RequestLog;
pub use requests::ExchangeObserver;
pub(crate) use scratch::Scratch;

use std::time::Instant;

use lastdrop_model::{CaptureLevel, Event};
use lastdrop_store::Store;

/// Receives the events of an experiment.
pub trait Observer {
    /// Is called with each event in order. The load goes on meanwhile: an observer that takes longer than a second
    /// delays the next events.
    fn on_event(&mut self, event: &Event<'_>);

    /// Returns how much of each request it wants to see.
    fn capture_level(&self) -> CaptureLevel {
        CaptureLevel::Nothing
    }

    /// Returns the store that has all events of the present run so far; None once an event is missing there. With such
    /// a store, the run keeps only its latest seconds and samples in memory.
    fn archive(&self) -> Option<&Store> {
        None
    }

    /// Returns marks that were made since the last call, each as it shall appear in the report. Called about once per
    /// second while there is load.
    fn take_marks(&mut self) -> Vec<(Instant, String)> {
        Vec::new()
    }

    /// Returns true if the rest of the present run would change nothing, so that it may end.
    fn has_seen_enough(&self) -> bool {
        false
    }

    /// Returns what it could not do, as the end of a sentence that begins with the runs: `could not be kept: …`. Called
    /// when all runs are over, and exporters end their work then. An observer with an `archive` may be asked after each
    /// run.
    fn error(&self) -> Option<String> {
        None
    }
}

/// Lets the caller keep the observer and query it afterwards.
impl<T: Observer + ?Sized> Observer for &mut T {
    fn on_event(&mut self, event: &Event<'_>) {
        (**self).on_event(event);
    }

    fn capture_level(&self) -> CaptureLevel {
        (**self).capture_level()
    }

    fn archive(&self) -> Option<&Store> {
        (**self).archive()
    }

    fn take_marks(&mut self) -> Vec<(Instant, String)> {
        (**self).take_marks()
    }

    fn has_seen_enough(&self) -> bool {
        (**self).has_seen_enough()
    }

    fn error(&self) -> Option<String> {
        (**self).error()
    }
}
