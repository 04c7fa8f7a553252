//! Where processes spend their time: call stacks by perf, or, without it, what /proc says they are at.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::printable::lossless;

use crate::ProbeError;
use crate::attached::Attached;

/// Samples a second of each processor. Not a round number, so as not to keep time with what is sampled.
const FREQUENCY: &str = "199";

/// It begins within this time, or is told to end and says why it did not.
const BEGINNING: Duration = Duration::from_secs(10);

const MISSING: &str = "it is not installed; on Debian: apt-get install linux-perf";

/// A perf that records.
#[derive(Debug)]
pub struct Perf {
    child: Attached,
    /// Functions of the kernel are told by name, and those of C++ by the name that their source has.
    has_full_names: bool,
}

fn tool(what: impl Into<String>) -> ProbeError {
    ProbeError::Tool { tool: "perf", what: what.into() }
}

/// The best event that works here: processor cycles, else a timer.
fn usable_event() -> Result<&'static str, ProbeError> {
    let mut said = String::new();
    for event in ["cycles", "cpu-clock"] {
        let tried = Command::new("perf").args(["record", "-q", "-e", event, "-o", "/dev/null", "--", "true"]).output();
        match tried {
            Ok(output) if output.status.success() => return Ok(event),
            Ok(output) => said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_string(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(tool(MISSING));
            }
            Err(e) => return Err(tool(e.to_string())),
        }
    }
    Err(tool(format!("{said}; root may use it, others where kernel.perf_event_paranoid allows")))
}

impl Perf {
    /// Begins to sample processes and those that they fork.
    ///
    /// # Errors
    /// When perf is missing or not allowed.
    pub fn start(pids: &[i32], output: &Path) -> Result<Perf, ProbeError> {
        Perf::with_event(usable_event()?, pids, output, true)
    }

    /// The same by a timer, which is there on every machine: shares come out alike, and nothing has to be tried first, which takes a
    /// quarter of a second of a processor. What the kernel does has no names, of which there are a hundred thousand to be read; those of C++
    /// stay as the linker has them.
    ///
    /// # Errors
    /// As [`Perf::start`]; what is not allowed is told when it is finished.
    pub fn by_timer(pids: &[i32], output: &Path) -> Result<Perf, ProbeError> {
        Perf::with_event("cpu-clock", pids, output, false)
    }

    fn with_event(event: &str, pids: &[i32], output: &Path, has_full_names: bool) -> Result<Perf, ProbeError> {
        let list = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut command = Command::new("perf");
        // It would look through all that was sampled for the libraries in it, and keep copies of them in the user's folder.
        let keep_nothing = ["--no-buildid", "--no-buildid-cache"];
        command.args(["record", "-q", "-e", event, "-F", FREQUENCY, "-g"]).args(keep_nothing);
        command.args(["-p", &list, "-o"]).arg(output);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = quiet.spawn().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => tool(MISSING),
            _ => tool(e.to_string()),
        })?;
        let mut child = Attached(child);
        // It writes the head of its file when it has its events. Told to end before it leaves an empty one: on a machine that is busy this
        // may take longer than a short recording.
        let begins = Instant::now();
        let is_empty = || fs::metadata(output).is_ok_and(|m| m.len() == 0);
        while is_empty() && begins.elapsed() < BEGINNING && matches!(child.0.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Perf { child, has_full_names })
    }

    /// Processor time that the recording has taken so far.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.child.cost()
    }

    /// Ends the recording; what `perf script` makes of it.
    ///
    /// # Errors
    /// When perf did not record, or its recording cannot be read.
    pub fn finish(mut self, recording: &Path) -> Result<String, ProbeError> {
        self.child.end();
        let mut command = Command::new("perf");
        command.args(["script", "--no-inline", "-F", "comm,pid,ip,sym,dso", "-i"]).arg(recording);
        if !self.has_full_names {
            command.args(["--kallsyms", "/dev/null", "--no-demangle"]);
        }
        let output = command.output().map_err(|e| tool(e.to_string()))?;
        if !output.status.success() {
            return Err(tool(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default()));
        }
        Ok(lossless(&output.stdout))
    }
}

/// The event that was really sampled: without counters in the processor perf takes a timer and does not say so.
#[must_use]
pub fn sampled_event(recording: &Path) -> String {
    let told = Command::new("perf").arg("evlist").arg("-i").arg(recording).output();
    told.map(|o| String::from_utf8_lossy(&o.stdout).lines().next().unwrap_or_default().to_string()).unwrap_or_default()
}

/// Looks what each process is at, `times` times, `pause` apart: running, or waiting in which function of the kernel.
#[must_use]
pub fn sample_proc(
    pids: impl Fn() -> Vec<i32>,
    pause: Duration,
    mut go_on: impl FnMut() -> bool,
) -> BTreeMap<String, u64> {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    while go_on() {
        for pid in pids() {
            let Some(info) = crate::process::look(pid) else { continue };
            let what = match info.state {
                'R' => "running".to_string(),
                state => {
                    let at = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
                    let at = if at.is_empty() || at == "0" { "unknown".to_string() } else { at };
                    let how = if state == 'D' { "waiting for a disk" } else { "asleep" };
                    format!("{how} in {at}")
                }
            };
            *seen.entry(what).or_default() += 1;
        }
        thread::sleep(pause);
    }
    seen
}
