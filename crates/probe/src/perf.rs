//! Where processes spend their time: call stacks by perf, or, without it, what /proc says they are at.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::printable::lossless;
use tempfile::NamedTempFile;

use crate::ProbeError;
use crate::attached::Attached;
use crate::process;

/// Samples a second of each processor. Not a round number, so as not to keep time with what is sampled.
const FREQUENCY: &str = "199";

/// It begins within this time, or is told to end and says why it did not.
const BEGINNING: Duration = Duration::from_secs(10);

const MISSING: &str = "it is not installed; on Debian: apt-get install linux-perf";

/// How often perf is started with all processes that live then. After that it follows masters alone: with one process in its list that has
/// just ended it does not begin, and where workers live for milliseconds there is always one.
const TRIES: u32 = 3;
/// So often it is started again where it ends by itself, and so often with the workers that live then.
const MOST_SLICES: usize = 20;
const SLICES_WITH_WORKERS: usize = 2;

/// A perf that records processes and those that they fork.
#[derive(Debug)]
pub struct Perf {
    child: Attached,
    event: &'static str,
    /// Where its first recording is, and those that were begun when the one before had ended by itself.
    output: PathBuf,
    more: Vec<NamedTempFile>,
    /// Functions of the kernel are told by name, and those of C++ by the name that their source has.
    has_full_names: bool,
}

fn tool(what: impl Into<String>) -> ProbeError {
    ProbeError::Tool { tool: "perf", what: what.into() }
}

fn perf() -> std::io::Result<Command> {
    crate::tool::command("perf", "samples where processes spend their time")
}

/// The best event that works here: processor cycles, else a timer.
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
    /// Begins to sample masters with their workers, and those that they fork from now on. Workers may end at any moment.
    ///
    /// # Errors
    /// When perf is missing or not allowed.
    pub fn start(masters: &[i32], workers: &dyn Fn() -> Vec<i32>, output: &Path) -> Result<Perf, ProbeError> {
        Perf::with_event(usable_event()?, masters, workers, output, true)
    }

    /// The same by a timer, which is there on every machine: shares come out alike, and nothing has to be tried first, which takes a
    /// quarter of a second of a processor. What the kernel does has no names, of which there are a hundred thousand to be read; those of C++
    /// stay as the linker has them.
    ///
    /// # Errors
    /// As [`Perf::start`]; what is not allowed is told when it is finished.
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

    /// Goes on with those that live now where perf has ended by itself. To be called now and then while it records.
    ///
    /// # Errors
    /// When perf cannot be started again.
    pub fn go_on(&mut self, masters: &[i32], workers: &dyn Fn() -> Vec<i32>) -> Result<(), ProbeError> {
        if self.more.len() >= MOST_SLICES || matches!(self.child.0.try_wait(), Ok(None)) {
            return Ok(());
        }
        let next = NamedTempFile::new().map_err(|e| tool(e.to_string()))?;
        // Where workers leave too fast for it, masters and whom they fork have to do.
        let none = || Vec::new();
        let workers: &dyn Fn() -> Vec<i32> = if self.more.len() < SLICES_WITH_WORKERS { workers } else { &none };
        self.child = begin(self.event, masters, workers, next.path())?;
        self.more.push(next);
        Ok(())
    }

    /// How often perf had ended by itself and was started again: what happened meanwhile is missing.
    #[must_use]
    pub fn gaps(&self) -> usize {
        self.more.len()
    }

    /// Processor time that the recording has taken so far.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.child.cost()
    }

    /// Ends the recording; what `perf script` makes of it.
    ///
    /// # Errors
    /// When perf did not record, or none of its recordings can be read.
    pub fn finish(mut self) -> Result<String, ProbeError> {
        self.child.end();
        let recordings = [self.output.as_path()].into_iter().chain(self.more.iter().map(NamedTempFile::path));
        // One that ended by itself may leave a recording that cannot be read.
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

/// Starts perf with the masters and the workers that live, and waits until it records.
fn begin(event: &str, masters: &[i32], workers: &dyn Fn() -> Vec<i32>, output: &Path) -> Result<Attached, ProbeError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut pids = if tries <= TRIES { workers() } else { Vec::new() };
        pids.retain(|pid| !masters.contains(pid) && !process::has_ended(*pid));
        let is_last = pids.is_empty();
        pids.extend(masters);
        let mut child = spawn(event, &pids, output)?;
        // It writes the head of its file when it has its events. Told to end before it leaves an empty one: on a machine that is busy this
        // may take longer than a short recording.
        let begins = Instant::now();
        let is_empty = || fs::metadata(output).is_ok_and(|m| m.len() == 0);
        while is_empty() && begins.elapsed() < BEGINNING && matches!(child.0.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(5));
        }
        // Where it may not record at all, that is told when its recording is read.
        let failed = is_empty() && matches!(child.0.try_wait(), Ok(Some(_)));
        if !failed || is_last {
            return Ok(child);
        }
    }
}

fn spawn(event: &str, pids: &[i32], output: &Path) -> Result<Attached, ProbeError> {
    let list = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut command = perf().map_err(|_| tool(MISSING))?;
    // It would look through all that was sampled for the libraries in it, and keep copies of them in the user's folder.
    let keep_nothing = ["--no-buildid", "--no-buildid-cache"];
    command.args(["record", "-q", "-e", event, "-F", FREQUENCY, "-g"]).args(keep_nothing);
    command.args(["-p", &list, "-o"]).arg(output);
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.spawn().map(Attached).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => tool(MISSING),
        _ => tool(e.to_string()),
    })
}

/// The event that was really sampled: without counters in the processor perf takes a timer and does not say so.
#[must_use]
pub fn sampled_event(recording: &Path) -> String {
    let told = perf().and_then(|mut perf| perf.arg("evlist").arg("-i").arg(recording).output());
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
