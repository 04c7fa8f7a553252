//! A tracing tool that is attached to running processes and lets go of them when it ends.

use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::processor_time;

/// A tool that has not ended after this time is killed.
const END_LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);

/// The tool's process. Dropping it ends the tool.
#[derive(Debug)]
pub(crate) struct AttachedTool(pub Child);

impl AttachedTool {
    /// Returns the processor time that the tool has used so far.
    pub fn cost(&self) -> Duration {
        i32::try_from(self.0.id()).ok().and_then(processor_time).unwrap_or_default()
    }

    /// Ends the tool. On SIGINT, strace and perf detach from all processes and write out what they have. One that does not end
    /// is killed: strace can wait for good for a process that is stopped, and the kernel lets that go on.
    pub fn end(&mut self) {
        self.end_within(END_LIMIT);
    }

    fn end_within(&mut self, limit: Duration) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGINT);
        }
        let asked = Instant::now();
        while asked.elapsed() < limit {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(PAUSE);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for AttachedTool {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_tool_that_does_not_end_is_killed() {
        let endless = "trap '' INT; echo deaf; while :; do sleep 0.1; done";
        let mut child = Command::new("sh").args(["-c", endless]).stdout(Stdio::piped()).spawn().expect("sh");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let mut tool = AttachedTool(child);
        tool.end_within(Duration::from_millis(50));
        assert!(tool.0.try_wait().expect("a child").is_some_and(|status| !status.success()));
    }
}
