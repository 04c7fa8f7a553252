//! The one clock of a run.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::Micros;

/// Microseconds since the run began, monotonic. Copies share the same start, so load, probes and events of a run are on
/// one time axis.
#[derive(Debug, Clone, Copy)]
pub struct RunClock {
    start: Instant,
    unix_us: u64,
}

impl RunClock {
    #[must_use]
    pub fn start() -> RunClock {
        let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        RunClock { start: Instant::now(), unix_us }
    }

    #[inline]
    #[must_use]
    pub fn now_us(&self) -> Micros {
        self.start.elapsed().as_micros() as Micros
    }

    /// Converts a moment to this clock; 0 if it is before the start.
    #[must_use]
    pub fn at(&self, moment: Instant) -> Micros {
        moment.saturating_duration_since(self.start).as_micros() as Micros
    }

    /// Converts a time of this clock to a moment.
    #[must_use]
    pub fn moment(&self, at: Micros) -> Instant {
        self.start + Duration::from_micros(at)
    }

    /// Microseconds since 1970 (UTC) when the run began.
    #[must_use]
    pub fn unix_us(&self) -> u64 {
        self.unix_us
    }
}
