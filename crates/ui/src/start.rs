//! Starts a stored plan again, one at a time, in a separate process that writes its run to the store like any
//! other.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_store::Store;

use crate::bounds;

/// Length limit for a process's error output if it cannot begin.
const MOST_SAID: u64 = 4096;
const LOOK: Duration = Duration::from_millis(50);

/// Runs that were started from the UI.
#[derive(Debug, Default)]
pub struct StartedRuns {
    children: Mutex<Vec<Child>>,
}

impl StartedRuns {
    fn children(&self) -> MutexGuard<'_, Vec<Child>> {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        children
    }

    /// Starts a process that makes a run and waits until the run has begun; returns the run's id.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn start(&self, mut command: Command, store: &Store) -> Result<String, String> {
        // Held until the run has begun, so that two simultaneous requests do not start two runs.
        let mut children = self.children();
        let busy = store.under_way().map_err(|e| e.to_string())?;
        if !busy.is_empty() || !children.is_empty() {
            return Err("another run is under way; two at once would disturb each other".into());
        }
        // Ctrl-C in the terminal is for the UI, which passes it on at its end.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("it could not be started: {e}"))?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stderr.take().map(|mut pipe| {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                let mut first = Vec::new();
                let _ = pipe.by_ref().take(MOST_SAID).read_to_end(&mut first);
                *said.lock().unwrap_or_else(PoisonError::into_inner) = first;
                // A full pipe would block the process.
                let _ = std::io::copy(&mut pipe, &mut std::io::sink());
            })
        });
        let until = Instant::now() + bounds::START;
        loop {
            let ended = child.try_wait().map_err(|e| e.to_string())?;
            if let Ok(Some(run)) = store.run_of(child.id()) {
                children.push(child);
                return Ok(run);
            }
            if let Some(status) = ended {
                let _ = reader.map(thread::JoinHandle::join);
                let said = said.lock().unwrap_or_else(PoisonError::into_inner);
                let text = String::from_utf8_lossy(&said).trim().to_string();
                return Err(if text.is_empty() { format!("it ended at once: {status}") } else { text });
            }
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return Err("it did not begin in time".into());
            }
            thread::sleep(LOOK);
        }
    }

    /// Asks the remaining processes to stop, and waits for a while.
    pub fn end(&self) {
        let mut children = self.children();
        for child in children.iter() {
            // SAFETY: a plain call on a child process that was not waited for yet.
            unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        }
        let until = Instant::now() + bounds::END;
        while Instant::now() < until && children.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
            thread::sleep(LOOK);
        }
    }
}
