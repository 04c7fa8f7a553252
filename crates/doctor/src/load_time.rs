//! What is looked at is bound to the time in which the load is on: a run begins before that (on many machines seconds before), and comes
//! back after it, when the last answer is in or the last machine has told its part.

use std::cell::OnceCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_lab::{Lab, LabError};
use lastdrop_model::{Plan, Run};

/// The time of a run's load, as it comes.
pub struct LoadTime {
    /// Told once, and gone when the run is over.
    begins: Receiver<Instant>,
    began: OnceCell<Option<Instant>>,
}

impl LoadTime {
    /// Waits until the load has been on for so long. False where the run is over before, or no load has come.
    pub fn wait(&self, since: Duration) -> bool {
        let Some(began) = *self.began.get_or_init(|| self.begins.recv().ok()) else { return false };
        let at = began + since;
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            match self.begins.recv_timeout(left) {
                Err(RecvTimeoutError::Disconnected) => return false,
                // Of what begins again only the first beginning counts.
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Carries a plan out, and meanwhile, on a thread of its own, looks at something.
///
/// # Errors
/// Those of the run.
pub fn during<T: Send>(
    lab: &mut Lab<'_>,
    plan: &Plan,
    label: &str,
    look: impl FnOnce(&LoadTime) -> T + Send,
) -> Result<(Run, T), LabError> {
    let (tell, begins) = channel();
    lab.begins = Some(tell);
    thread::scope(|scope| {
        let time = LoadTime { begins, began: OnceCell::new() };
        let looking = scope.spawn(move || look(&time));
        let run = lab.run(plan, label);
        // Whoever still waits for a beginning, or for the end, waits no longer.
        lab.begins = None;
        let seen = looking.join().map_err(|_| LabError::Other("looking at the servers failed".into()))?;
        Ok((run?, seen))
    })
}
