//! Profilers that read the memory of a server's processes from outside, so that nothing is loaded into these and the
//! server itself is profiled.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::tool;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{
    Clock, CodeRequest, CodeTemplate, END_TIME, Language, ProfiledServer, Recording, START_TIME, check_rights,
    impossible, read_lossy,
};
use crate::execution::{Question, Reader};
use crate::leftover_folders::{self, FOR_CODE};
use crate::shadow_instance::{InstanceProcesses, POLL};
use crate::{ServerError, ServerRef, find};

/// Samples of a process per second. In two seconds of two workers, the share of a function is then within 5 points.
pub const FREQUENCY: u64 = 250;
/// The file of the samples.
const SAMPLES: &str = "samples";

/// A program that samples a process and those below it, and writes its samples at SIGINT.
#[derive(Debug)]
pub struct OutsideProfiler {
    pub language: Language,
    /// Its name, to be looked up in the system's folders.
    pub program: &'static str,
    pub why: &'static str,
    /// What it says as soon as it samples.
    pub says: &'static str,
    /// How long it may take from then to the first sample.
    pub begins_within: Duration,
    /// Its options, for a process and the file of its samples.
    pub options: fn(pid: i32, clock: Clock, file: &Path) -> Vec<String>,
    /// Turns its samples, made in some time, into a record.
    pub record_of: fn(samples: &str, clock: Clock, sampled: Duration) -> String,
}

/// A server whose processes are read.
struct OutsideCode {
    profiler: &'static OutsideProfiler,
    server: String,
    master: i32,
    birth: Birth,
    clock: Clock,
}

pub fn template(
    profiler: &'static OutsideProfiler,
    server: &ServerRef,
    request: &CodeRequest<'_>,
) -> Result<Box<dyn CodeTemplate>, ServerError> {
    let found = find(server)?;
    let birth = Birth::of(found.master)?;
    check_rights(&birth)?;
    if let Some(other) = request.language.filter(|language| *language != profiler.language) {
        return Err(impossible(&format!("a {} executes {}, not {other}", found.kind.name, profiler.language)));
    }
    if tool::find(profiler.program).is_none() {
        return Err(ServerError::Setting(profiler.language.missing()));
    }
    let (server, master) = (found.name, found.master);
    Ok(Box::new(OutsideCode { profiler, server, master, birth, clock: request.clock }))
}

impl CodeTemplate for OutsideCode {
    fn server(&self) -> &str {
        &self.server
    }

    fn language(&self) -> Language {
        self.profiler.language
    }

    fn note(&self) -> String {
        format!("read from outside {FREQUENCY} times per second; a worker stands still while it is read")
    }

    fn start(&self, _profiled: bool) -> Result<Box<dyn ProfiledServer>, ServerError> {
        let cannot = || ServerError::io("cannot make a place for records");
        let folder = leftover_folders::create(FOR_CODE).map_err(cannot())?;
        // The tool reaches its own folder and cannot list this one.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).map_err(cannot())?;
        let mut recording = Recording::new(self.profiler.language, &self.birth, |name| folder.path().join(name))?;
        recording.give_to(process::child_pids(self.master).first().copied())?;
        let (profiler, master, clock) = (self.profiler, self.master, self.clock);
        Ok(Box::new(ReadServer { profiler, master, clock, recording, folder, running: None, began: Instant::now() }))
    }
}

/// A server that is read; the profiler ends when this is dropped.
struct ReadServer {
    profiler: &'static OutsideProfiler,
    master: i32,
    clock: Clock,
    recording: Recording,
    folder: TempDir,
    running: Option<InstanceProcesses>,
    began: Instant,
}

impl ReadServer {
    fn said(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        read("said") + &read("errors")
    }

    fn failed(&self, what: &str) -> ServerError {
        let said = self.said();
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        ServerError::Setting(format!("{} {what}: {last}", self.profiler.program))
    }
}

impl ProfiledServer for ReadServer {
    fn address(&self) -> Option<SocketAddr> {
        None
    }

    fn master(&self) -> i32 {
        self.master
    }

    fn profiler(&self) -> Option<i32> {
        self.running.as_ref().map(InstanceProcesses::master)
    }

    fn begin(&mut self) -> Result<(), ServerError> {
        let profiler = self.profiler;
        let options = (profiler.options)(self.master, self.clock, &self.recording.folder.join(SAMPLES));
        let mut processes = vec![self.master];
        add_descendants(&mut processes);
        let question = Question::of_reader(profiler.program, &self.recording.user, processes, profiler.why);
        let question = question.args(options);
        let mut command = question.command()?;
        let file = |name: &str| fs::File::create(self.folder.path().join(name));
        let cannot = || ServerError::io(format!("cannot run {}", profiler.program));
        command.stdin(Stdio::null()).stdout(file("said").map_err(cannot())?).stderr(file("errors").map_err(cannot())?);
        // At SIGINT it lets go of the process that it reads, and writes what it has.
        let mut running = InstanceProcesses::start_ended_by(command, Signal::SIGINT).map_err(cannot())?;
        let until = Instant::now() + START_TIME;
        let failed = || self.failed("cannot read the server's processes");
        while !self.said().contains(profiler.says) {
            if running.ended().is_some() || Instant::now() >= until {
                return Err(failed());
            }
            thread::sleep(POLL);
        }
        thread::sleep(profiler.begins_within);
        if running.ended().is_some() {
            return Err(failed());
        }
        (self.running, self.began) = (Some(running), Instant::now());
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<String, ServerError> {
        let Some(mut running) = self.running.take() else { return Ok(String::new()) };
        let sampled = self.began.elapsed();
        if !running.end(END_TIME) {
            return Err(self.failed("does not end"));
        }
        let samples = {
            let _reader = Reader::of(&self.recording.user);
            read_lossy(&self.recording.folder.join(SAMPLES))
        };
        let samples = samples.map_err(|_| self.failed("has written nothing"))?;
        Ok((self.profiler.record_of)(&samples, self.clock, sampled))
    }
}

/// Adds the processes below those of a list.
fn add_descendants(processes: &mut Vec<i32>) {
    let mut next = 0;
    while let Some(pid) = processes.get(next).copied() {
        processes.extend(
            process::child_pids(pid).into_iter().filter(|child| !processes.contains(child)).collect::<Vec<_>>(),
        );
        next += 1;
    }
}
