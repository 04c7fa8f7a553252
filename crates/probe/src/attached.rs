//! A tracing tool that is attached to running processes and lets go of them when it ends.

use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::processor_time;

/// The tool's process. Dropping it ends the tool.
#[derive(Debug)]
pub(crate) struct AttachedTool(pub Child);

impl AttachedTool {
    /// Returns the processor time that the tool has used so far.
    pub fn cost(&self) -> Duration {
        i32::try_from(self.0.id()).ok().and_then(processor_time).unwrap_or_default()
    }

    /// Ends the tool. On SIGINT, strace and perf detach from all processes and write out what they have.
    pub fn end(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            if let Ok(pid) = i32::try_from(self.0.id()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
            }
            let _ = self.0.wait();
        }
    }
}

impl Drop for AttachedTool {
    fn drop(&mut self) {
        self.end();
    }
}
