//! The one clock of a run.

use std::time::Instant;

use lastdrop_model::Micros;

/// Microseconds since the run began, monotonic. Copies share the same beginning, so load, probes and events of a run
/// are on one time axis.
#[derive(Debug, Clone, Copy)]
pub struct RunClock(Instant);

impl RunClock {
    #[must_use]
    pub fn start() -> RunClock {
        RunClock(Instant::now())
    }

    #[inline]
    #[must_use]
    pub fn now_us(&self) -> Micros {
        self.0.elapsed().as_micros() as Micros
    }
}
