//! Binds sampling to the time in which the load is on. A run begins before that, on many machines by seconds. It
//! returns after it, when the last answer is in or the last machine has sent its part.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{Lab, LabError, Observer};
use lastdrop_model::{Event, Plan, Run};

/// Waits for points in time of a run's load.
pub struct LoadTime {
    /// Receives the start of the load once, and is disconnected when the run is over.
    begins: Receiver<Instant>,
    began: OnceCell<Option<Instant>>,
    is_past: bool,
}

impl LoadTime {
    /// Of a load that is over: nothing is waited for.
    fn past() -> LoadTime {
        LoadTime { begins: channel().1, began: OnceCell::new(), is_past: true }
    }

    /// Waits until the load has been on for this long. False if the run is over before, or no load has come.
    pub fn wait(&self, since: Duration) -> bool {
        if self.is_past {
            return true;
        }
        let Some(began) = *self.began.get_or_init(|| self.begins.recv().ok()) else { return false };
        let at = began + since;
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            match self.begins.recv_timeout(left) {
                Err(RecvTimeoutError::Disconnected) => return false,
                // If the load starts again, only the first start counts.
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// Runs a plan, and calls `look` on a thread of its own meanwhile.
///
/// # Errors
/// Those of the run.
pub fn during<T: Send>(
    lab: &mut Lab<'_>,
    plan: &Plan,
    label: &str,
    look: impl FnOnce(&LoadTime) -> T + Send,
) -> Result<(Run, T), LabError> {
    if !lab.is_real() {
        // Its machine remembers what happened under the last load.
        let run = lab.run(plan, label)?;
        return Ok((run, look(&LoadTime::past())));
    }
    let (tell, begins) = channel();
    lab.begins = Some(tell);
    thread::scope(|scope| {
        let time = LoadTime { begins, began: OnceCell::new(), is_past: false };
        let looking = scope.spawn(move || look(&time));
        let run = lab.run(plan, label);
        // Wakes the thread if it still waits for the start or the end.
        lab.begins = None;
        let seen = looking.join().map_err(|_| LabError::Other("looking at the servers failed".into()))?;
        Ok((run?, seen))
    })
}

/// Like [`during`]; the run ends within a second after `look` has returned, even if the plan is longer.
///
/// # Errors
/// Those of the run.
pub fn until_done<T: Send>(
    lab: &mut Lab<'_>,
    plan: &Plan,
    label: &str,
    look: impl FnOnce(&LoadTime) -> T + Send,
) -> Result<(Run, T), LabError> {
    let done = Arc::new(AtomicBool::new(false));
    let lasting = lab.observers.len();
    lab.observers.push(Box::new(LookObserver(Arc::clone(&done))));
    let outcome = during(lab, plan, label, |time| {
        let seen = look(time);
        done.store(true, Ordering::Relaxed);
        seen
    });
    lab.observers.truncate(lasting);
    outcome
}

/// Ends a run once the look is done.
struct LookObserver(Arc<AtomicBool>);

impl Observer for LookObserver {
    fn on_event(&mut self, _: &Event<'_>) {}

    fn has_seen_enough(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
