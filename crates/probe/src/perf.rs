//! Where processes spend their time: call stacks from perf, or without perf the states in /proc.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::printable::lossless;
use tempfile::NamedTempFile;

use crate::ProbeError;
use crate::attached::AttachedTool;
use crate::process;

/// Samples per second and processor. Not a round number, to avoid sampling in step with periodic work.
const FREQUENCY: &str = "199";

/// Perf has to start recording within this time; otherwise it is ended and reports why.
const BEGINNING: Duration = Duration::from_secs(10);

const MISSING: &str = "it is not installed; on Debian: apt-get install linux-perf";

/// How often perf is started with all processes that live at that moment. After that it follows only masters. Perf does
/// not start if one process of its list has just ended, and if workers live for milliseconds there is always one.
const TRIES: u32 = 3;
/// How often perf is started again after it has ended by itself, and how many of these starts include the workers.
const MOST_SLICES: usize = 20;
const SLICES_WITH_WORKERS: usize = 2;

/// A perf process that records processes and their children.
#[derive(Debug)]
pub struct Perf {
    child: AttachedTool,
    event: &'static str,
    /// The first recording, and further recordings started after perf had ended by itself.
    output: PathBuf,
    more: Vec<NamedTempFile>,
    /// Resolve kernel functions to names, and demangle names of C++.
    has_full_names: bool,
}

fn tool(what: impl Into<String>) -> ProbeError {
    ProbeError::Tool { tool: "perf", what: what.into() }
}

fn perf() -> std::io::Result<Command> {
    crate::tool::command("perf", "samples where processes spend their time")
}

/// Returns the best event that works here: processor cycles, otherwise a timer.
fn usable_event() -> Result<&'static str, ProbeError> {
    let mut said = String::new();
    for event in ["cycles", "cpu-clock"] {
        let tried = perf().and_then(|mut perf| {
            perf.args(["record", "-q", "-e", event, "-o", "/dev/null", "--", "true"]).stdin(Stdio::null()).output()
        });
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
    /// Starts sampling masters with their workers, and processes that they fork from now on. Workers may end at any
    /// moment.
    ///
    /// # Errors
    /// When perf is missing or not allowed.
    pub fn start(masters: &[i32], workers: &dyn Fn() -> Vec<i32>, output: &Path) -> Result<Perf, ProbeError> {
        Perf::with_event(usable_event()?, masters, workers, output, true)
    }

    /// Like `start`, but with a timer, which every machine has: the shares come out alike. It saves trying events
    /// first, which takes a quarter of a second of processor time. Kernel functions are not resolved (a hundred
    /// thousand symbols would have to be read), and names of C++ stay mangled.
    ///
    /// # Errors
    /// As [`Perf::start`]; a missing permission is reported only by `finish`.
    pub fn by_timer(masters: &[i32], workers: &dyn Fn() -> Vec<i32>, output: &Path) -> Result<Perf, ProbeError> {
        Perf::with_event("cpu-clock", masters, workers, output, false)
    }

    fn with_event(
        event: &'static str,
        masters: &[i32],
        workers: &dyn Fn() -> Vec<i32>,
        output: &Path,
        has_full_names: bool,
    ) -> Result<Perf, ProbeError> {
        let child = begin(event, masters, workers, output)?;
        Ok(Perf { child, event, output: output.into(), more: Vec::new(), has_full_names })
    }

    /// Starts perf again with the processes that live now, if it has ended by itself. Call it now and then while perf
    /// records.
    ///
    /// # Errors
    /// When perf cannot be started again.
    pub fn go_on(&mut self, masters: &[i32], workers: &dyn Fn() -> Vec<i32>) -> Result<(), ProbeError> {
        if self.more.len() >= MOST_SLICES || matches!(self.child.0.try_wait(), Ok(None)) {
            return Ok(());
        }
        let next = NamedTempFile::new().map_err(|e| tool(e.to_string()))?;
        // If workers end too fast for perf, it follows only masters and the processes they fork.
        let none = || Vec::new();
        let workers: &dyn Fn() -> Vec<i32> = if self.more.len() < SLICES_WITH_WORKERS { workers } else { &none };
        self.child = begin(self.event, masters, workers, next.path())?;
        self.more.push(next);
        Ok(())
    }

    /// Returns how often perf had ended by itself and was started again; samples in between are missing.
    #[must_use]
    pub fn gaps(&self) -> usize {
        self.more.len()
    }

    /// Returns the processor time that the recording has used so far.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.child.cost()
    }

    /// Ends the recording and returns the output of `perf script`.
    ///
    /// # Errors
    /// When perf did not record, or none of its recordings can be read.
    pub fn finish(mut self) -> Result<String, ProbeError> {
        self.child.end();
        let recordings = [self.output.as_path()].into_iter().chain(self.more.iter().map(NamedTempFile::path));
        // A perf that ended by itself may leave an unreadable recording.
        let (mut failed, mut whole) = (None, None);
        for recording in recordings {
            match self.script(recording) {
                Ok(script) => whole.get_or_insert_with(String::new).push_str(&script),
                Err(e) => failed = Some(e),
            }
        }
        whole.ok_or_else(|| failed.unwrap_or_else(|| tool("it recorded nothing")))
    }

    fn script(&self, recording: &Path) -> Result<String, ProbeError> {
        let mut command = perf().map_err(|_| tool(MISSING))?;
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

/// Starts perf with the masters and the living workers, and waits until it records.
fn begin(
    event: &str,
    masters: &[i32],
    workers: &dyn Fn() -> Vec<i32>,
    output: &Path,
) -> Result<AttachedTool, ProbeError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut pids = if tries <= TRIES { workers() } else { Vec::new() };
        pids.retain(|pid| !masters.contains(pid) && !process::has_ended(*pid));
        let is_last = pids.is_empty();
        pids.extend(masters);
        let mut child = spawn(event, &pids, output)?;
        // Perf writes the header of its file once it has opened its events. Ended before that, it leaves an empty file;
        // on a busy machine, starting may take longer than a short recording.
        let begins = Instant::now();
        let is_empty = || fs::metadata(output).is_ok_and(|m| m.len() == 0);
        while is_empty() && begins.elapsed() < BEGINNING && matches!(child.0.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        // If perf may not record at all, reading its recording reports that.
        let failed = is_empty() && matches!(child.0.try_wait(), Ok(Some(_)));
        if !failed || is_last {
            return Ok(child);
        }
    }
}

fn spawn(event: &str, pids: &[i32], output: &Path) -> Result<AttachedTool, ProbeError> {
    let list = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut command = perf().map_err(|_| tool(MISSING))?;
    // By default perf searches the samples for libraries and keeps copies of them in the user's folder.
    let keep_nothing = ["--no-buildid", "--no-buildid-cache"];
    command.args(["record", "-q", "-e", event, "-F", FREQUENCY, "-g"]).args(keep_nothing);
    command.args(["-p", &list, "-o"]).arg(output);
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.spawn().map(AttachedTool).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => tool(MISSING),
        _ => tool(e.to_string()),
    })
}

/// Returns the event that was really sampled: without hardware counters, perf silently uses a timer.
#[must_use]
pub fn sampled_event(recording: &Path) -> String {
    let told = perf().and_then(|mut perf| perf.arg("evlist").arg("-i").arg(recording).output());
    told.map(|o| String::from_utf8_lossy(&o.stdout).lines().next().unwrap_or_default().to_string()).unwrap_or_default()
}

/// Samples the state of each process with pauses of `pause`, while `go_on` returns true: running, or the kernel
/// function in which it waits.
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
