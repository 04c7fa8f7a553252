//! Passes each completed request to a function, for counts that a run does not contain.

use lastdrop_model::{CaptureLevel, Event, Exchange};

use super::Observer;

/// A function and how much it wants to see.
pub struct ExchangeObserver<F> {
    pub wish: CaptureLevel,
    pub show: F,
}

impl<F> std::fmt::Debug for ExchangeObserver<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExchangeObserver").field("wish", &self.wish).finish_non_exhaustive()
    }
}

impl<F: FnMut(&[Exchange])> Observer for ExchangeObserver<F> {
    fn on_event(&mut self, event: &Event<'_>) {
        if let Event::Exchanges { exchanges } = event {
            (self.show)(exchanges);
        }
    }

    fn capture_level(&self) -> CaptureLevel {
        self.wish
    }
}
