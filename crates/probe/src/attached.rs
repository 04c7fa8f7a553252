//! A tool that is attached to running processes until it is told to let go of them.

use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::processor_time;

/// The tool's process. Dropped, it is told to end.
#[derive(Debug)]
pub(crate) struct Attached(pub Child);

impl Attached {
    /// Processor time that it has taken so far.
    pub fn cost(&self) -> Duration {
        i32::try_from(self.0.id()).ok().and_then(processor_time).unwrap_or_default()
    }

    /// SIGINT makes strace and perf let go of all processes and write down what they have.
    pub fn end(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            if let Ok(pid) = i32::try_from(self.0.id()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
            }
            let _ = self.0.wait();
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.end();
    }
}
