//! Who is shown what happens: one file each. A new one is a file here or where it is needed, and a line where observers are
//! listed (`observers` in the command line).

mod keeper;
mod request_log;
mod requests;
mod scratch;

pub use keeper::Keeper;
pub use request_log::RequestLog;
pub use requests::Requests;
pub(crate) use scratch::Scratch;

use std::time::Instant;

use lastdrop_model::{CaptureLevel, Event};
use lastdrop_store::Store;

/// Somebody who wants to know what happens in an experiment.
pub trait Observer {
    /// Is shown each event, in order. The load goes on meanwhile: whoever takes longer than a second delays the next ones.
    fn see(&mut self, event: &Event<'_>);

    /// How much of each request it wants to see.
    fn wish(&self) -> CaptureLevel {
        CaptureLevel::Nothing
    }

    /// Where all that it has been shown of the present run can be read again. None once something is missing there. While
    /// there is such a place, the run's memory has only the latest of its seconds and looks.
    fn archive(&self) -> Option<&Store> {
        None
    }

    /// What it has to say of moments since it was asked last, each as it shall stand in the report. Asked about once a second
    /// while there is load.
    fn remarks(&mut self) -> Vec<(Instant, String)> {
        Vec::new()
    }

    /// What is still to come of the present run would change nothing: it may end.
    fn has_seen_enough(&self) -> bool {
        false
    }

    /// What it could not do, for a sentence that begins with the runs: `could not be kept: …`. Asked when all runs are over: who hands on
    /// what it is shown ends with that. Who keeps runs (`archive`) may be asked after each.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// Somebody who is asked by others afterwards.
impl<T: Observer + ?Sized> Observer for &mut T {
    fn see(&mut self, event: &Event<'_>) {
        (**self).see(event);
    }

    fn wish(&self) -> CaptureLevel {
        (**self).wish()
    }

    fn archive(&self) -> Option<&Store> {
        (**self).archive()
    }

    fn remarks(&mut self) -> Vec<(Instant, String)> {
        (**self).remarks()
    }

    fn has_seen_enough(&self) -> bool {
        (**self).has_seen_enough()
    }

    fn trouble(&self) -> Option<String> {
        (**self).trouble()
    }
}
