//! Processor time of sampling, by purpose.

use std::collections::BTreeMap;
use std::time::Duration;

use lastdrop_probe::host::timed;

/// Processor time by purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Costs(BTreeMap<&'static str, Duration>);

impl Costs {
    pub fn add(&mut self, what: &'static str, time: Duration) {
        *self.0.entry(what).or_default() += time;
    }

    /// Runs `work`, and adds its processor time on this thread.
    pub fn timed<T>(&mut self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let (done, time) = timed(work);
        self.add(what, time);
        done
    }

    pub fn add_all(&mut self, of: &Costs) {
        of.0.iter().for_each(|(what, time)| self.add(what, *time));
    }

    /// Returns seconds, rounded to milliseconds.
    pub fn seconds(&self) -> BTreeMap<String, f64> {
        let rounded = |time: &Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
        self.0.iter().map(|(what, time)| ((*what).to_string(), rounded(time))).collect()
    }

    pub fn total(&self) -> Duration {
        self.0.values().sum()
    }
}
