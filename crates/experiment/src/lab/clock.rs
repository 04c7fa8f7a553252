//! The time of an experiment: that of this machine, or of a simulated one.

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

/// The time in which an experiment runs. Limits of time and pauses go by it.
pub trait Clock {
    /// Returns the time since some moment before the experiment.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The clock of this machine.
#[derive(Debug, Clone, Copy)]
pub struct RealClock;

static FIRST_ASKED: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for RealClock {
    fn now(&self) -> Duration {
        FIRST_ASKED.elapsed()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// Measures time from its start on.
#[derive(Clone, Copy)]
pub struct Stopwatch<'a> {
    clock: &'a dyn Clock,
    began: Duration,
}

impl std::fmt::Debug for Stopwatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stopwatch").field("began", &self.began).finish_non_exhaustive()
    }
}

impl<'a> Stopwatch<'a> {
    #[must_use]
    pub fn start(clock: &'a dyn Clock) -> Stopwatch<'a> {
        Stopwatch { clock, began: clock.now() }
    }

    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.clock.now().saturating_sub(self.began)
    }
}
