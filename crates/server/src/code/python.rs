//! py-spy, for gunicorn, uWSGI and other processes of CPython.
//!
//! It reads the memory of the workers from outside, 250 times per second at random moments, and stops a worker while it
//! reads. So nothing is loaded into it, and the server itself is profiled. With `--gil` it counts the thread that holds
//! the interpreter's lock, which is the one that computes; with `--idle` also those that wait.
//!
//! A thread that waits for a processor holds the lock. So requests that take less than a time slice of the kernel's (3 to
//! 4 ms) are seen with a bias if more processes compute than there are processors: functions that planted 60, 25 and 15 % of
//! 5 ms then had 51, 30 and 19 %; of 55 ms they had 57, 27 and 16 %.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::tool;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::{
    Clock, CodeRequest, CodeTemplate, END_TIME, Language, ProfiledServer, Recording, START_TIME, check_rights,
    impossible, read_lossy, without_shared_start,
};
use crate::execution::{Question, Reader};
use crate::leftover_folders::{self, FOR_CODE};
use crate::shadow_instance::{InstanceProcesses, POLL};
use crate::{ServerError, ServerRef, find};

const PROGRAM: &str = "py-spy";
/// Samples of a worker per second. In two seconds of two workers, the share of a function is then within 5 points.
const FREQUENCY: u64 = 250;
/// The file of its samples.
const RAW: &str = "raw";
/// What it says as soon as it samples.
const SAMPLES: &str = "Sampling process";
/// The function in which a worker of gunicorn answers a request; all else is its wait for the next.
const ANSWERS: &str = "handle_request";
/// The file in which event loops wait for the next event.
const SELECTORS: &str = "/selectors.py|";

/// A server whose workers execute Python.
struct PythonCode {
    server: String,
    master: i32,
    birth: Birth,
    clock: Clock,
}

pub fn template(server: &ServerRef, request: &CodeRequest<'_>) -> Result<Box<dyn CodeTemplate>, ServerError> {
    let found = find(server)?;
    let birth = Birth::of(found.master)?;
    check_rights(&birth)?;
    if request.language.is_some_and(|language| language != Language::Python) {
        return Err(impossible(&format!("a {} executes Python", found.kind.name)));
    }
    if tool::find(PROGRAM).is_none() {
        return Err(ServerError::Setting(Language::Python.missing()));
    }
    Ok(Box::new(PythonCode { server: found.name, master: found.master, birth, clock: request.clock }))
}

impl CodeTemplate for PythonCode {
    fn server(&self) -> &str {
        &self.server
    }

    fn language(&self) -> Language {
        Language::Python
    }

    fn note(&self) -> String {
        format!("read from outside {FREQUENCY} times per second; a worker stands still while it is read")
    }

    fn start(&self, _profiled: bool) -> Result<Box<dyn ProfiledServer>, ServerError> {
        let cannot = || ServerError::io("cannot make a place for records");
        let folder = leftover_folders::create(FOR_CODE).map_err(cannot())?;
        // The tool reaches its own folder and cannot list this one.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).map_err(cannot())?;
        let mut recording = Recording::new(Language::Python, &self.birth, |name| folder.path().join(name))?;
        recording.give_to(process::child_pids(self.master).first().copied())?;
        let (master, clock) = (self.master, self.clock);
        Ok(Box::new(ReadServer { master, clock, recording, folder, spy: None, began: Instant::now() }))
    }
}

/// A server that py-spy reads; py-spy ends when this is dropped.
struct ReadServer {
    master: i32,
    clock: Clock,
    recording: Recording,
    folder: TempDir,
    spy: Option<InstanceProcesses>,
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
        ServerError::Setting(format!("{PROGRAM} {what}: {last}"))
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
        self.spy.as_ref().map(InstanceProcesses::master)
    }

    fn begin(&mut self) -> Result<(), ServerError> {
        let (pid, frequency) = (self.master.to_string(), FREQUENCY.to_string());
        let output = self.recording.folder.join(RAW).display().to_string();
        // Longer than any profile: it is ended.
        let words =
            ["record", "--pid", &pid, "--subprocesses", "--function", "--full-filenames", "--duration", "100000"];
        let which = match self.clock {
            Clock::Cpu => "--gil",
            Clock::Wall => "--idle",
        };
        let mut processes = vec![self.master];
        add_descendants(&mut processes);
        let why = "samples the functions of a Python server";
        let question = Question::of_reader(PROGRAM, &self.recording.user, processes, why).args(words);
        let question = question.args(["--rate", &frequency, which, "--format", "raw", "--output", &output]);
        let mut command = question.command()?;
        let file = |name: &str| fs::File::create(self.folder.path().join(name));
        let cannot = || ServerError::io(format!("cannot run {PROGRAM}"));
        command.stdin(Stdio::null()).stdout(file("said").map_err(cannot())?).stderr(file("errors").map_err(cannot())?);
        // At SIGINT it lets go of the process that it reads, and writes what it has.
        let mut spy = InstanceProcesses::start_ended_by(command, Signal::SIGINT).map_err(cannot())?;
        let until = Instant::now() + START_TIME;
        while !self.said().contains(SAMPLES) {
            if spy.ended().is_some() || Instant::now() >= until {
                return Err(self.failed("cannot read the server's processes"));
            }
            thread::sleep(POLL);
        }
        (self.spy, self.began) = (Some(spy), Instant::now());
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<String, ServerError> {
        let Some(mut spy) = self.spy.take() else { return Ok(String::new()) };
        let sampled = self.began.elapsed();
        if !spy.end(END_TIME) {
            return Err(self.failed("does not end"));
        }
        let raw = read(&self.recording).map_err(|_| self.failed("has written nothing"))?;
        Ok(record_of(&raw, self.clock, sampled))
    }
}

/// Reads the samples, with the rights of the server's user.
fn read(recording: &Recording) -> Result<String, ServerError> {
    let _reader = Reader::of(&recording.user);
    read_lossy(&recording.folder.join(RAW))
}

/// Turns py-spy's lines into a record. A line is a stack and a number of samples; the stack begins with
/// `process PID:"TITLE"` for the master and for the worker, and a frame is `NAME (FILE:LINE)`.
fn record_of(raw: &str, clock: Clock, sampled: Duration) -> String {
    let mut stacks: Vec<(Vec<String>, u64, bool)> = Vec::new();
    for line in raw.lines() {
        let Some((stack, samples)) = line.rsplit_once(' ') else { continue };
        let Ok(samples) = samples.parse::<u64>() else { continue };
        let frames: Vec<String> = stack.split(';').filter_map(frame_of).collect();
        if !frames.is_empty() {
            stacks.push((frames, samples, stack.contains(";process ")));
        }
    }
    // The master only waits for its workers. Of its one thread, py-spy has a sample of each round, also where it was too
    // late for some.
    let mut us_per_sample = 1_000_000 / FREQUENCY;
    let of_master = stacks.iter().filter(|(.., of_worker)| !of_worker).map(|(_, samples, _)| samples).sum();
    if clock == Clock::Wall && stacks.iter().any(|(.., of_worker)| *of_worker) {
        us_per_sample = (sampled.as_micros() as u64).checked_div(of_master).unwrap_or(us_per_sample);
    }
    if stacks.iter().any(|(.., of_worker)| *of_worker) {
        stacks.retain(|(.., of_worker)| *of_worker);
    }
    if clock == Clock::Wall {
        let answers = |frames: &[String]| frames.iter().any(|frame| is_named(frame, ANSWERS));
        if stacks.iter().any(|(frames, ..)| answers(frames)) {
            stacks.retain(|(frames, ..)| answers(frames));
        }
        stacks.retain(|(frames, ..)| !frames.last().is_some_and(|frame| frame.contains(SELECTORS)));
    }
    let mut stacks: Vec<_> = stacks.into_iter().map(|(frames, samples, _)| (frames, samples)).collect();
    without_shared_start(&mut stacks);
    let all: u64 = stacks.iter().map(|(_, samples)| samples).sum();
    let lines =
        stacks.iter().map(|(frames, samples)| format!("s\t{}\t{}\n", frames.join(";"), samples * us_per_sample));
    format!("n\tsamples\t{all}\n") + &lines.collect::<String>()
}

/// True if a frame is of a function of this name, or of a method of this name in any class.
fn is_named(frame: &str, name: &str) -> bool {
    frame.split('|').next().and_then(|whole| whole.rsplit('.').next()) == Some(name)
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

fn frame_of(text: &str) -> Option<String> {
    let (name, place) = text.rsplit_once(" (")?;
    let (file, line) = place.strip_suffix(')')?.rsplit_once(':')?;
    let line: u32 = line.parse().ok()?;
    let plain = |text: &str| text.replace(['|', '\t'], "_");
    Some(format!("{}|{}|{line}", plain(name), plain(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_the_master_and_waits_for_a_request_are_left_out() {
        let begin = "process 1:\"gunicorn: master [a;b]\";process 2:\"gunicorn: worker\";run (/g/sync.py:112)";
        let raw = format!(
            "process 1:\"gunicorn: master [a]\";Arbiter.sleep (/g/arbiter.py:3) 500\n{begin};SyncWorker.wait (/g/sync.py:33) 70\n\
             {begin};SyncWorker.handle_request (/g/sync.py:163);application (/srv/a.py:22);heavy (/srv/a.py:1) 20\n\
             {begin};SyncWorker.handle_request (/g/sync.py:163);application (/srv/a.py:22) 10\nnonsense\n"
        );
        // In 5 s there were 500 samples, not 1250.
        let record = |raw: &str, clock| record_of(raw, clock, Duration::from_secs(5));
        assert_eq!(
            record(&raw, Clock::Wall),
            "n\tsamples\t30\ns\tapplication|/srv/a.py|22;heavy|/srv/a.py|1\t200000\ns\tapplication|/srv/a.py|22\t100000\n"
        );
        let cpu = record(&raw, Clock::Cpu);
        assert!(cpu.starts_with("n\tsamples\t100\ns\tSyncWorker.wait|/g/sync.py|33\t280000\n"), "{cpu}");
        assert_eq!(record("", Clock::Cpu), "n\tsamples\t0\n");
    }

    #[test]
    fn an_event_loop_that_waits_is_left_out_of_the_time_that_passes() {
        let raw = "run (/app.py:1);EpollSelector.select (/usr/lib/python3.11/selectors.py:451) 90\nrun (/app.py:1);work (/app.py:9) 10\n";
        let record = record_of(raw, Clock::Wall, Duration::from_secs(1));
        assert_eq!(record, "n\tsamples\t10\ns\trun|/app.py|1;work|/app.py|9\t40000\n");
    }
}
