//! JFR, the flight recorder of the JVM, for any server that a JVM executes.
//!
//! `jcmd` has the running JVM record: it asks as the JVM's own user, and the recording is that user's file. JFR is a part
//! of the JVM, so nothing is loaded into it, and the server itself is profiled. Every 10 ms JFR looks at up to five
//! threads that execute Java; a thread that waits for a processor counts as one. Native code and the JVM's own threads
//! (garbage collector, compilers) are not seen.
//!
//! A recording of a killed lastdrop ends by itself, and its folder names it, so that it can be ended sooner.

use std::fs;
use std::io::BufReader;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::tool;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::flight_events::{PERIOD, WAITS, record_of};
use super::{
    ASK_TIME, Clock, CodeRequest, CodeTemplate, Language, ProfiledServer, Recording, check_rights, impossible,
};
use crate::execution::{Question, Reader, check_roots};
use crate::leftover_folders::{self, FOR_CODE};
use crate::shadow_instance::{InstanceProcesses, POLL};
use crate::{ServerError, ServerRef, find};

/// The library that a process has if it is a JVM, in the folder lib/server of its Java.
const LIBRARY: &str = "/libjvm.so";
/// The first Java whose JVM can be asked for a recording with settings of ours.
const OLDEST: u32 = 11;
/// The first Java that makes the socket of its attach mechanism again if the file is gone (JDK-8225690).
const MAKES_SOCKET_AGAIN: u32 = 14;
/// Time for jfr to print a recording.
const PRINT_TIME: Duration = Duration::from_secs(120);
/// How much longer a recording may take than the load is planned: what ends it if lastdrop is killed.
const BEYOND: Duration = Duration::from_secs(60);
/// The file that says what is recorded, for a later lastdrop.
const MARK: &str = "jvm";
/// The recording's file.
const RECORDING: &str = "code.jfr";
/// The waits that a recording has at least: shorter ones are many, and short.
const SHORTEST_WAIT: &str = "100 us";

/// A server that a JVM executes.
struct JavaCode {
    server: String,
    master: i32,
    birth: Birth,
    tools: JavaTools,
    clock: Clock,
    time: Duration,
    version: u32,
}

/// Programs of a JDK.
#[derive(Debug, Clone)]
struct JavaTools {
    jcmd: PathBuf,
    jfr: PathBuf,
}

/// True if the process, or one below it, is a JVM.
pub fn is_java(master: i32) -> bool {
    jvm_of(master).is_some()
}

/// The JVM of a server: its master, or what a script has started as its child.
fn jvm_of(master: i32) -> Option<(i32, PathBuf)> {
    let home = |pid: i32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let library = maps.lines().find(|line| line.ends_with(LIBRARY))?;
        Some((pid, Path::new(&library[library.find('/')?..]).ancestors().nth(3)?.to_path_buf()))
    };
    home(master).or_else(|| process::child_pids(master).into_iter().find_map(home))
}

impl JavaTools {
    /// Those of the JVM's own JDK, or the system's. The system's also where others than root could change the JVM's.
    fn find(home: &Path) -> Option<JavaTools> {
        let own = home.join("bin/jcmd");
        let (own, system) = (own.is_file().then_some(own), tool::find("jcmd"));
        let jcmd = match (own, system) {
            (Some(own), Some(system)) => [system, own].into_iter().rfind(|one| check_roots(one).is_ok())?,
            (own, system) => own.or(system)?,
        };
        let jfr = fs::canonicalize(&jcmd).ok()?.with_file_name("jfr");
        jfr.is_file().then_some(JavaTools { jcmd, jfr })
    }
}

pub fn template(server: &ServerRef, request: &CodeRequest<'_>) -> Result<Box<dyn CodeTemplate>, ServerError> {
    let found = find(server)?;
    let (pid, home) = jvm_of(found.master).ok_or_else(|| impossible("no JVM executes it"))?;
    let birth = Birth::of(pid)?;
    check_rights(&birth)?;
    if request.language.is_some_and(|language| language != Language::Java) {
        return Err(impossible("a JVM executes Java"));
    }
    let tools = JavaTools::find(&home).ok_or_else(|| ServerError::Setting(Language::Java.missing()))?;
    let socket = AttachSocket::of(pid);
    let version = version_in(&ask(&tools.jcmd, &birth, &["VM.version"])?).unwrap_or_default();
    socket.put_back(&birth, version);
    if version < OLDEST {
        return Err(impossible(&format!("JFR needs a JVM of Java {OLDEST} or newer")));
    }
    let (clock, time) = (request.clock, request.time);
    Ok(Box::new(JavaCode { server: found.name, master: found.master, birth, tools, clock, time, version }))
}

/// Asks a JVM by jcmd, as its user.
fn ask(jcmd: &Path, birth: &Birth, words: &[&str]) -> Result<String, ServerError> {
    let why = "has a JVM record which functions it executes";
    let pid = birth.pid.to_string();
    // Without a file of counters of its own in /tmp.
    let words = [&["-J-XX:-UsePerfData", &pid], words].concat();
    let question = Question::of_reader(&jcmd.display().to_string(), birth, vec![birth.pid], why).args(words);
    // Some jcmd look for the socket of a JVM with a /tmp of its own in theirs (JDK-8342449).
    let answer = question.with_mounts_of(birth.pid).within(ASK_TIME).ask()?;
    if answer.passed {
        return Ok(answer.output);
    }
    let said =
        answer.errors.lines().chain(answer.output.lines()).find(|line| line.contains(": ") || line.contains(' '));
    Err(ServerError::Setting(format!("jcmd cannot ask the JVM {}: {}", birth.pid, said.unwrap_or_default().trim())))
}

/// The number in `JDK 17.0.15`.
fn version_in(said: &str) -> Option<u32> {
    let number = said.lines().find_map(|line| line.strip_prefix("JDK "))?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The file of the socket at which a JVM is asked, which the JVM makes when it is asked first.
struct AttachSocket {
    path: PathBuf,
    was_there: bool,
}

impl AttachSocket {
    fn of(pid: i32) -> AttachSocket {
        let path = PathBuf::from(format!("/proc/{pid}/root/tmp/.java_pid{pid}"));
        AttachSocket { was_there: path.symlink_metadata().is_ok(), path }
    }

    /// Removes it if it was not there before, from a JVM that makes it again when it is asked again.
    fn put_back(&self, birth: &Birth, version: u32) {
        if !self.was_there && version >= MAKES_SOCKET_AGAIN {
            let _reader = Reader::of(birth);
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl CodeTemplate for JavaCode {
    fn server(&self) -> &str {
        &self.server
    }

    fn language(&self) -> Language {
        Language::Java
    }

    fn note(&self) -> String {
        let ms = PERIOD.as_millis();
        match self.clock {
            Clock::Cpu => format!(
                "recorded by the JVM itself every {ms} ms: threads that execute Java, on a processor or waiting for one; \
                 not native code, and not what waits"
            ),
            Clock::Wall => format!(
                "recorded by the JVM itself: threads that execute Java every {ms} ms, and each wait of {SHORTEST_WAIT} or \
                 more for a lock, another thread, a timer, a blocking socket or a file; not native code"
            ),
        }
    }

    fn start(&self, _profiled: bool) -> Result<Box<dyn ProfiledServer>, ServerError> {
        let cannot = || ServerError::io("cannot make a place for records");
        let make = |folder: TempDir| -> Result<RecordingPlace, ServerError> {
            // The JVM reaches its own folder and cannot list this one.
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).map_err(cannot())?;
            let mut recording = Recording::new(Language::Java, &self.birth, |name| folder.path().join(name))?;
            recording.give_to(None)?;
            Ok(RecordingPlace { recording, folder })
        };
        let own = make(leftover_folders::create(FOR_CODE).map_err(cannot())?)?;
        let theirs = leftover_folders::create_for(FOR_CODE, self.birth.pid, own.folder.path()).map_err(cannot())?;
        let theirs = theirs.map(make).transpose()?;
        theirs.as_ref().unwrap_or(&own).recording.write_script(&settings(self.clock))?;
        Ok(Box::new(RecordedServer {
            master: self.master,
            birth: self.birth.clone(),
            tools: self.tools.clone(),
            clock: self.clock,
            // Longer than the load, which is put on several times where nothing is answered.
            longest: self.time * 6 + BEYOND,
            own,
            theirs,
            version: self.version,
            started: None,
        }))
    }
}

/// The settings of a recording. What it does not name is not recorded.
fn settings(clock: Clock) -> String {
    let event = |name: &str, settings: &str| {
        format!("<event name=\"{name}\"><setting name=\"enabled\">true</setting>{settings}</event>\n")
    };
    let period = format!("<setting name=\"period\">{} ms</setting>", PERIOD.as_millis());
    let wait =
        format!("<setting name=\"threshold\">{SHORTEST_WAIT}</setting><setting name=\"stackTrace\">true</setting>");
    let waits = match clock {
        Clock::Cpu => String::new(),
        Clock::Wall => WAITS.iter().map(|name| event(name, &wait)).collect(),
    };
    let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<configuration version=\"2.0\" label=\"lastdrop\">\n";
    format!("{head}{}{waits}</configuration>\n", event("jdk.ExecutionSample", &period))
}

/// A folder of lastdrop's with one of the JVM's user in it.
struct RecordingPlace {
    recording: Recording,
    folder: TempDir,
}

/// A server whose JVM records; the recording ends when this is dropped.
struct RecordedServer {
    master: i32,
    birth: Birth,
    tools: JavaTools,
    clock: Clock,
    longest: Duration,
    own: RecordingPlace,
    /// The place as the JVM sees it, if its /tmp is not ours.
    theirs: Option<RecordingPlace>,
    version: u32,
    started: Option<JvmRecording>,
}

/// A recording that a JVM makes for lastdrop.
#[derive(Debug, Serialize, Deserialize)]
struct JvmRecording {
    pid: i32,
    start_ticks: u64,
    jcmd: PathBuf,
    name: String,
    version: u32,
    /// The JVM had been asked before.
    had_socket: bool,
}

impl RecordedServer {
    /// A path of ours as the JVM names it.
    fn seen_by_jvm(&self, path: &Path) -> String {
        let root = format!("/proc/{}/root", self.birth.pid);
        let within = path.strip_prefix(&root).map_or_else(|_| path.to_path_buf(), |path| Path::new("/").join(path));
        within.display().to_string()
    }

    fn end(&mut self) {
        if let Some(started) = self.started.take() {
            started.end();
            let _ = fs::remove_file(self.own.folder.path().join(MARK));
        }
    }

    /// Brings the recording to a place where jfr can read it.
    fn fetch(&self) -> Result<PathBuf, ServerError> {
        let to = self.own.recording.folder.join(RECORDING);
        let _reader = Reader::of(&self.birth);
        let fetched = match &self.theirs {
            Some(theirs) => fs::copy(theirs.recording.folder.join(RECORDING), &to).map(|_| ()),
            None => to.metadata().map(|_| ()),
        };
        fetched.map_err(ServerError::io("the JVM has written no recording"))?;
        Ok(to)
    }

    /// Has jfr print the recording's events into a file of lastdrop's.
    fn print(&self) -> Result<PathBuf, ServerError> {
        let failed = |why: &str| ServerError::Setting(format!("jfr cannot print the recording: {why}"));
        let cannot = || ServerError::io("cannot run jfr");
        let recording = self.fetch()?.display().to_string();
        let waits = if self.clock == Clock::Wall { WAITS } else { &[] };
        let events = [&["jdk.ExecutionSample"], waits].concat().join(",");
        let why = "prints which functions a JVM has executed";
        let question = Question::of_reader(&self.tools.jfr.display().to_string(), &self.birth, Vec::new(), why);
        let words = ["-J-XX:-UsePerfData", "print", "--events", &events, "--stack-depth", "64", &recording];
        let mut command = question.args(words).command()?;
        let file = |name: &str| fs::File::create(self.own.folder.path().join(name)).map_err(cannot());
        command.stdin(Stdio::null()).stdout(file("printed")?).stderr(file("errors")?);
        let mut jfr = InstanceProcesses::start_ended_by(command, Signal::SIGKILL).map_err(cannot())?;
        let until = Instant::now() + PRINT_TIME;
        let status = loop {
            match jfr.ended() {
                Some(status) => break status,
                None if Instant::now() >= until => return Err(failed("it does not end")),
                None => thread::sleep(POLL),
            }
        };
        let said = fs::read_to_string(self.own.folder.path().join("errors")).unwrap_or_default();
        let printed = self.own.folder.path().join("printed");
        match said.lines().find(|line| !line.trim().is_empty()) {
            Some(why) if printed.metadata().is_ok_and(|m| m.len() == 0) => Err(failed(&format!("{why} ({status})"))),
            _ => Ok(printed),
        }
    }
}

impl ProfiledServer for RecordedServer {
    fn address(&self) -> Option<SocketAddr> {
        None
    }

    fn master(&self) -> i32 {
        self.master
    }

    fn begin(&mut self) -> Result<(), ServerError> {
        let name = format!("lastdrop-{}", std::process::id());
        let place = self.theirs.as_ref().unwrap_or(&self.own);
        let settings = format!("settings={}", self.seen_by_jvm(&place.recording.script));
        let file = format!("filename={}", self.seen_by_jvm(&place.recording.folder.join(RECORDING)));
        let (named, longest) = (format!("name={name}"), format!("duration={}s", self.longest.as_secs()));
        let started = JvmRecording {
            pid: self.birth.pid,
            start_ticks: self.birth.start_ticks,
            jcmd: self.tools.jcmd.clone(),
            name,
            version: self.version,
            had_socket: AttachSocket::of(self.birth.pid).was_there,
        };
        let mark = serde_json::to_vec(&started).map_err(|e| ServerError::Setting(e.to_string()))?;
        let path = self.own.folder.path().join(MARK);
        fs::write(&path, mark).map_err(ServerError::io(format!("cannot write {}", path.display())))?;
        self.started = Some(started);
        let words = ["JFR.start", &named, &settings, &file, &longest, "maxsize=250M", "disk=true"];
        let said = ask(&self.tools.jcmd, &self.birth, &words)?;
        if said.contains("Started recording") {
            return Ok(());
        }
        let why = said.lines().nth(1).unwrap_or("it says nothing");
        Err(ServerError::Setting(format!("the JVM {} does not record: {why}", self.birth.pid)))
    }

    fn finish(mut self: Box<Self>) -> Result<String, ServerError> {
        self.end();
        let printed = self.print()?;
        let file = fs::File::open(&printed).map_err(ServerError::io(format!("cannot read {}", printed.display())))?;
        record_of(BufReader::new(file), self.clock).map_err(ServerError::io("cannot read what jfr has printed"))
    }
}

impl Drop for RecordedServer {
    fn drop(&mut self) {
        self.end();
    }
}

impl JvmRecording {
    /// Ends it, and removes what the JVM has made for it elsewhere.
    fn end(&self) {
        if !process::is_alive(self.pid, self.start_ticks) {
            return;
        }
        let Ok(birth) = Birth::of(self.pid) else { return };
        let configuration = ask(&self.jcmd, &birth, &["JFR.configure"]).unwrap_or_default();
        let _ = ask(&self.jcmd, &birth, &["JFR.stop", &format!("name={}", self.name)]);
        if let Some(repository) = configuration.lines().find_map(|line| line.strip_prefix("Repository path: ")) {
            let _reader = Reader::of(&birth);
            let folder = Path::new(repository);
            let is_its_own = folder.to_string_lossy().ends_with(&format!("_{}", self.pid));
            // The JVM makes it again for another recording; with files in it, it stays.
            if let Some(inside) = folder.strip_prefix("/").ok().filter(|_| is_its_own) {
                let _ = fs::remove_dir(Path::new(&format!("/proc/{}/root", self.pid)).join(inside));
            }
        }
        AttachSocket { was_there: self.had_socket, ..AttachSocket::of(self.pid) }.put_back(&birth, self.version);
    }
}

/// Ends the recording of which a killed lastdrop has left this folder.
pub fn end_left(folder: &Path) {
    let mark = fs::read(folder.join(MARK)).ok();
    if let Some(left) = mark.and_then(|mark| lastdrop_model::read_json::<JvmRecording>(&mark).ok()) {
        left.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_jdks_and_waits_are_recorded_for_wall_time_only() {
        assert_eq!(version_in("1234:\nOpenJDK 64-Bit Server VM version 17.0.15+6\nJDK 17.0.15\n"), Some(17));
        assert_eq!((version_in("JDK 8.0_382"), version_in("no such process")), (Some(8), None));
        assert!(settings(Clock::Wall).contains("jdk.ThreadPark") && !settings(Clock::Cpu).contains("jdk.ThreadPark"));
    }
}
