//! V8's own profiler, for programs of Node.
//!
//! A second instance of the program loads a script of lastdrop's first (`--require`). The script makes it listen on a
//! port of lastdrop's instead of the URL's, and on any port instead of all others. It samples each thread from inside
//! the process: the inspector's port is never opened.
//!
//! A sample is a signal to the thread, which takes it when it runs. So samples are counted, and the time between two of
//! them is not: a thread that waits for a processor has no samples.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::Url;
use lastdrop_probe::process::Birth;
use lastdrop_probe::status;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use tempfile::TempDir;

use super::{
    ASK_TIME, Clock, CodeRequest, CodeTemplate, END_TIME, Language, ProfiledServer, Recording, START_TIME,
    check_instance, impossible, read_lossy, unlike,
};
use crate::execution::{Question, Reader};
use crate::leftover_folders::{self, FOR_CODE};
use crate::shadow_instance::{InstanceProcesses, POLL};
use crate::{ServerError, ServerRef, find};

/// Time between two samples of a thread that computes.
const PERIOD: Duration = Duration::from_micros(500);
/// Allocated bytes between two samples, on average: four times as fine as V8's default.
const BYTES: u32 = 8192;
/// Time for all processes to begin after the first has.
const BEGIN_TIME: Duration = Duration::from_millis(200);
/// Time for the program to end by itself.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// How the file of a thread that is sampled ends, and that of one whose record is whole.
const BEGUN: &str = "begun";
const WHOLE: &str = "cpuprofile";
/// The file at which records end.
const END: &str = "end";

/// What is needed to start second instances of a program.
struct NodeCode {
    server: String,
    birth: Birth,
    url: Url,
    /// Status of the server's own answer.
    status: u16,
    what: RecordingSubject,
}

/// What V8 records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingSubject {
    /// CPU time.
    Time,
    /// Bytes of objects that are still alive at the end, by the function that allocated them.
    Kept,
}

pub fn template(
    server: &ServerRef,
    request: &CodeRequest<'_>,
    what: RecordingSubject,
) -> Result<Box<dyn CodeTemplate>, ServerError> {
    let no = |why: &str| Err(impossible(why));
    let found = find(server)?;
    let birth = Birth::of(found.master)?;
    check_instance(&birth, request.url)?;
    if request.language.is_some_and(|language| language != Language::Node) {
        return no("a process of Node executes JavaScript");
    }
    if request.clock == Clock::Wall {
        return no("a process of Node waits for many requests at once, so that --wall shows none of their functions");
    }
    if !found.ports().contains(&request.url.port) {
        return no("it does not listen at the URL itself; name the server that executes the code");
    }
    if birth.argv.len() < 2 || birth.shown.is_some() {
        return no("its command line is not visible, because the program has set a title of its own (process.title)");
    }
    let status = status::get(request.url, ASK_TIME).map_err(|e| ServerError::Setting(e.to_string()))?.status;
    Ok(Box::new(NodeCode { server: found.name, birth, url: request.url.clone(), status, what }))
}

impl CodeTemplate for NodeCode {
    fn server(&self) -> &str {
        &self.server
    }

    fn language(&self) -> Language {
        Language::Node
    }

    fn note(&self) -> String {
        "on a second instance with the same command line and environment; nothing was loaded into the server's own processes".into()
    }

    fn start(&self, profiled: bool) -> Result<Box<dyn ProfiledServer>, ServerError> {
        let cannot = || ServerError::io("cannot make a place for a second instance");
        let refuse = |what: String| ServerError::Setting(format!("of its second instance: {what}"));
        let folder = leftover_folders::create(FOR_CODE).map_err(cannot())?;
        // The program reaches its own folder and cannot list this one.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).map_err(cannot())?;
        let file = |name: &str| folder.path().join(name);
        let recording = Recording::new(Language::Node, &self.birth, file)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).map_err(cannot())?.port();
        recording.write_script(&script(
            &recording,
            &file(END),
            (self.url.port, port),
            profiled.then_some(self.what),
        ))?;
        let mut question = Question::new(&self.birth, "a second instance of a Node program is profiled")
            .argv(&argv_with(&self.birth.argv, &recording.script))
            .reads(code_of(&self.birth))
            .like_the_server();
        for (name, value) in own_variables(&self.birth.environment) {
            question = question.variable(&name, &value);
        }
        let mut command = question.command()?;
        let said = file("said");
        command.stdout(Stdio::null()).stderr(fs::File::create(&said).map_err(cannot())?);
        // A program may leave SIGTERM unheeded.
        let processes = InstanceProcesses::start_ended_by(command, Signal::SIGKILL).map_err(cannot())?;
        let mut instance = NodeInstance {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            end: file(END),
            processes,
            recording,
            what: self.what,
            _folder: folder,
        };
        let until = Instant::now() + START_TIME;
        let status = loop {
            if let Some(status) = instance.processes.ended() {
                let said = fs::read_to_string(&said).unwrap_or_default();
                // After the trace of an error comes the version of Node.
                let mut errors = said.lines().filter(|line| line.contains("Error"));
                let why = errors.next_back().or_else(|| said.lines().last()).unwrap_or_default();
                return Err(refuse(format!("it does not start ({status}): {why}")));
            }
            if Instant::now() >= until {
                return Err(refuse("it did not answer in time".into()));
            }
            match status::get_at(instance.address, &self.url, ASK_TIME) {
                Ok(answer) => break answer.status,
                Err(_) => thread::sleep(POLL),
            }
        };
        if status != self.status {
            return Err(unlike(status, self.status));
        }
        instance.recording.give_to(Some(instance.processes.master()))?;
        Ok(Box::new(instance))
    }
}

/// A running second instance; it ends when dropped.
struct NodeInstance {
    address: SocketAddr,
    /// The file at which records end.
    end: PathBuf,
    processes: InstanceProcesses,
    recording: Recording,
    what: RecordingSubject,
    _folder: TempDir,
}

impl NodeInstance {
    /// Threads of living processes whose files end so.
    fn threads(&self, ending: &str) -> usize {
        let entries = fs::read_dir(&self.recording.folder).into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let lives = |name: &String| {
            let pid = name.split('.').next().unwrap_or_default();
            !pid.is_empty() && Path::new("/proc").join(pid).exists()
        };
        names.filter(|name| name.rsplit('.').next() == Some(ending)).filter(lives).count()
    }

    fn wait_for(&self, limit: Duration, is_reached: impl Fn() -> bool) -> bool {
        let until = Instant::now() + limit;
        while !is_reached() {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }
}

impl ProfiledServer for NodeInstance {
    fn address(&self) -> Option<SocketAddr> {
        Some(self.address)
    }

    fn master(&self) -> i32 {
        self.processes.master()
    }

    fn begin(&mut self) -> Result<(), ServerError> {
        self.recording.begin()?;
        if !self.wait_for(ASK_TIME, || self.threads(BEGUN) > 0) {
            return Err(ServerError::Setting("of its second instance: V8's profiler does not begin".into()));
        }
        thread::sleep(BEGIN_TIME);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<String, ServerError> {
        fs::write(&self.end, "").map_err(ServerError::io(format!("cannot write {}", self.end.display())))?;
        if !self.wait_for(END_TIME, || self.threads(WHOLE) >= self.threads(BEGUN)) {
            return Err(ServerError::Setting("of its second instance: it does not write its record".into()));
        }
        let record = read(&self.recording, self.what)?;
        let _ = kill(Pid::from_raw(self.master()), Signal::SIGTERM);
        let until = Instant::now() + LEAVE_TIME;
        while self.processes.ended().is_none() && Instant::now() < until {
            thread::sleep(POLL);
        }
        Ok(record)
    }
}

/// The command line with lastdrop's script, without the options that open the inspector's port.
fn argv_with(argv: &[String], script: &Path) -> Vec<String> {
    let (program, words) = argv.split_first().map_or(("node", argv), |(program, words)| (program.as_str(), words));
    let ours = ["--require".to_string(), script.display().to_string()];
    let theirs = words.iter().filter(|word| !opens_inspector(word)).cloned();
    std::iter::once(program.to_string()).chain(ours).chain(theirs).collect()
}

fn opens_inspector(word: &str) -> bool {
    word.starts_with("--inspect") || word.starts_with("--debug")
}

/// The variables of Node's that an instance has as the server has them, besides those of a question. Those that tell
/// it of a parent's channel are left out.
fn own_variables(environment: &[(String, String)]) -> Vec<(String, String)> {
    let is_own =
        |name: &str| name.starts_with("NODE_") && !name.starts_with("NODE_CHANNEL_") && name != "NODE_UNIQUE_ID";
    let without_inspector = |value: &str| {
        let words = value.split_whitespace().filter(|word| !opens_inspector(word));
        words.collect::<Vec<_>>().join(" ")
    };
    let value =
        |name: &str, value: &String| if name == "NODE_OPTIONS" { without_inspector(value) } else { value.clone() };
    environment.iter().filter(|(name, _)| is_own(name)).map(|(name, v)| (name.clone(), value(name, v))).collect()
}

/// Files that decide what it executes: those of its command line, their folders, and the modules there.
fn code_of(birth: &Birth) -> Vec<PathBuf> {
    let files = birth.argv.iter().skip(1).map(|word| birth.directory.join(word)).filter(|path| path.is_file());
    let mut code = Vec::new();
    for file in files {
        let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
        code.extend([folder.join("node_modules")].into_iter().filter(|path| path.is_dir()));
        code.extend([file, folder]);
    }
    code
}

/// lastdrop's script, which the program loads first.
fn script(
    recording: &Recording,
    end: &Path,
    (url_port, port): (u16, u16),
    recorded: Option<RecordingSubject>,
) -> String {
    let quoted = |path: &Path| serde_json::Value::from(path.display().to_string()).to_string();
    SCRIPT
        .replace("{url_port}", &url_port.to_string())
        .replace("{port}", &port.to_string())
        .replace("{profiled}", if recorded.is_some() { "true" } else { "false" })
        .replace("{kept}", if recorded == Some(RecordingSubject::Kept) { "true" } else { "false" })
        .replace("{bytes}", &BYTES.to_string())
        .replace("{folder}", &quoted(&recording.folder))
        .replace("{go}", &quoted(&recording.go))
        .replace("{end}", &quoted(end))
        .replace("{period}", &PERIOD.as_micros().to_string())
        .replace("{begun}", BEGUN)
        .replace("{whole}", WHOLE)
}

const SCRIPT: &str = r"'use strict';
const fs = require('fs');
const net = require('net');
const { threadId } = require('worker_threads');

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...words) {
    const first = words[0];
    const wanted = Number(first !== null && typeof first === 'object' ? first.port : first);
    // In a cluster, the primary listens for its workers, with their port.
    const port = wanted === {url_port} || wanted === {port} ? {port} : 0;
    const done = words.find((word) => typeof word === 'function');
    return listen.call(this, { host: '127.0.0.1', port }, ...(done ? [done] : []));
};

if ({profiled}) {
    const file = `${{folder}}/${process.pid}.${threadId}`;
    let session;
    const look = setInterval(() => {
        if (!session && fs.existsSync({go})) {
            session = new (require('inspector').Session)();
            session.connect();
            const begun = () => fs.writeFileSync(`${file}.{begun}`, '');
            if ({kept}) {
                session.post('HeapProfiler.enable');
                session.post('HeapProfiler.startSampling', { samplingInterval: {bytes} }, begun);
            } else {
                session.post('Profiler.enable');
                session.post('Profiler.setSamplingInterval', { interval: {period} });
                session.post('Profiler.start', begun);
            }
        } else if (session && fs.existsSync({end})) {
            clearInterval(look);
            const write = (profile) => {
                fs.writeFileSync(`${file}.part`, JSON.stringify(profile));
                fs.renameSync(`${file}.part`, `${file}.{whole}`);
            };
            if ({kept}) {
                session.post('HeapProfiler.collectGarbage');
                session.post('HeapProfiler.stopSampling', (error, answer) => {
                    // The tree may be deeper than a reader of JSON goes.
                    const nodes = [], left = [answer.profile.head];
                    for (let node = left.pop(); node; node = left.pop()) {
                        const { id, callFrame, selfSize, children } = node;
                        nodes.push({ id, callFrame, bytes: Math.round(selfSize), children: children.map((c) => c.id) });
                        for (const child of children) left.push(child);
                    }
                    write({ nodes });
                });
            } else {
                session.post('Profiler.stop', (error, answer) => write(answer.profile));
            }
        }
    }, 20);
    look.unref();
}
";

/// A record as V8 writes it.
#[derive(Debug, Deserialize)]
struct CpuProfile {
    nodes: Vec<CpuNode>,
    /// Ids of nodes.
    #[serde(default)]
    samples: Vec<u64>,
    /// Microseconds before each sample.
    #[serde(rename = "timeDeltas", default)]
    deltas: Vec<i64>,
}

/// A function in a stack.
#[derive(Debug, Deserialize)]
struct CpuNode {
    id: u64,
    #[serde(rename = "callFrame")]
    frame: CallFrame,
    #[serde(default)]
    children: Vec<u64>,
    /// Bytes that it allocated and that are still in use.
    #[serde(default)]
    bytes: u64,
}

#[derive(Debug, Deserialize)]
struct CallFrame {
    #[serde(rename = "functionName")]
    name: String,
    url: String,
    /// Counted from 0; -1 where there is none.
    #[serde(rename = "lineNumber")]
    line: i64,
}

/// Reads what the threads have recorded, with the rights of their user.
///
/// # Errors
/// If there is nothing, or it cannot be read.
fn read(recording: &Recording, what: RecordingSubject) -> Result<String, ServerError> {
    let _reader = Reader::of(&recording.user);
    let folder = &recording.folder;
    let entries = fs::read_dir(folder).map_err(ServerError::io(format!("cannot read {}", folder.display())))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut all = String::new();
    for file in files.filter(|path| path.extension().is_some_and(|ending| ending == WHOLE)) {
        let profile: CpuProfile = lastdrop_model::read_json(&read_lossy(&file)?)
            .map_err(|e| ServerError::Setting(format!("the record of V8's profiler cannot be read: {e}")))?;
        all += &match what {
            RecordingSubject::Time => record_of(&profile, &recording.script),
            RecordingSubject::Kept => record_of_kept(&profile, &recording.script),
        };
    }
    Ok(all)
}

/// Turns V8's samples into a record, without those in which the thread was idle, and those of lastdrop's script.
fn record_of(profile: &CpuProfile, script: &Path) -> String {
    let mut counts = HashMap::<u64, u64>::new();
    for id in &profile.samples {
        *counts.entry(*id).or_default() += 1;
    }
    let mut deltas: Vec<u64> =
        profile.deltas.iter().filter_map(|us| u64::try_from(*us).ok()).filter(|us| *us > 0).collect();
    deltas.sort_unstable();
    let us_per_sample = deltas.get(deltas.len() / 2).copied().unwrap_or(PERIOD.as_micros() as u64);
    record_with(profile, &counts, us_per_sample, script)
}

/// Turns the bytes that are still in use into a record. Its weights are bytes.
fn record_of_kept(profile: &CpuProfile, script: &Path) -> String {
    let bytes = profile.nodes.iter().filter(|node| node.bytes > 0).map(|node| (node.id, node.bytes)).collect();
    record_with(profile, &bytes, 1, script)
}

/// Writes a record of these counts by node, each multiplied by a weight.
fn record_with(profile: &CpuProfile, counts: &HashMap<u64, u64>, weight: u64, script: &Path) -> String {
    let script = script.display().to_string();
    let nodes: HashMap<u64, &CpuNode> = profile.nodes.iter().map(|node| (node.id, node)).collect();
    let parents: HashMap<u64, u64> =
        profile.nodes.iter().flat_map(|node| node.children.iter().map(|child| (*child, node.id))).collect();
    let mut lines = Vec::new();
    let mut seen = 0;
    for (id, count) in counts {
        // A parent comes before its children, so this ends.
        let path = std::iter::successors(Some(*id), |id| parents.get(id).copied().filter(|parent| parent < id));
        let frames: Vec<&CallFrame> = path.filter_map(|id| Some(&nodes.get(&id)?.frame)).collect();
        let is_left_out = |frame: &&CallFrame| frame.name == "(idle)" || frame.url.ends_with(&script);
        if frames.iter().any(is_left_out) {
            continue;
        }
        let stack: Vec<String> = frames.iter().rev().filter(|frame| frame.name != "(root)").map(|f| shown(f)).collect();
        if !stack.is_empty() {
            seen += count;
            lines.push(format!("s\t{}\t{}\n", stack.join(";"), count * weight));
        }
    }
    lines.sort();
    format!("n\tsamples\t{seen}\n") + &lines.concat()
}

fn shown(frame: &CallFrame) -> String {
    let plain = |text: &str| text.replace([';', '|', '\t', '\r', '\n'], "_");
    let name = if frame.name.is_empty() { "(anonymous)" } else { &frame.name };
    let file = frame.url.strip_prefix("file://").unwrap_or(&frame.url);
    format!("{}|{}|{}", plain(name), plain(file), frame.line + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_and_idle_ones_are_left_out() {
        let node = |id: u64, name: &str, url: &str, line: i64, children: &[u64]| serde_json::json!({ "id": id, "callFrame": { "functionName": name, "url": url, "lineNumber": line }, "children": children });
        let profile = serde_json::json!({
            "nodes": [
                node(1, "(root)", "", -1, &[2, 3, 6]),
                node(2, "(idle)", "", -1, &[]),
                node(3, "", "file:///srv/a.js", 8, &[4]),
                node(4, "heavy", "file:///srv/a.js", 1, &[]),
                node(6, "look", "file:///tmp/x/profile-code", 20, &[]),
            ],
            // The thread waited for a processor before the third.
            "samples": [4, 4, 4, 3, 2, 6, 9], "timeDeltas": [500, 500, 90000, 500, 500, 500, -1],
        });
        let profile = serde_json::from_value(profile).expect("a profile");
        assert_eq!(
            record_of(&profile, Path::new("/tmp/x/profile-code")),
            "n\tsamples\t4\ns\t(anonymous)|/srv/a.js|9\t500\ns\t(anonymous)|/srv/a.js|9;heavy|/srv/a.js|2\t1500\n"
        );
    }

    #[test]
    fn kept_bytes_belong_to_the_function_that_allocated_them() {
        let node = |id: u64, name: &str, bytes: u64, children: &[u64]| serde_json::json!({ "id": id, "callFrame": { "functionName": name, "url": "file:///srv/a.js", "lineNumber": 1 }, "bytes": bytes, "children": children });
        let profile = serde_json::json!({ "nodes": [node(1, "(root)", 0, &[2]), node(2, "page", 0, &[3]), node(3, "keep", 4096, &[])] });
        let profile = serde_json::from_value(profile).expect("a profile");
        let record = record_of_kept(&profile, Path::new("/tmp/x/profile-code"));
        assert_eq!(record, "n\tsamples\t4096\ns\tpage|/srv/a.js|2;keep|/srv/a.js|2\t4096\n");
    }

    #[test]
    fn the_inspectors_port_and_a_parents_channel_are_not_taken_over() {
        let words = |text: &str| text.split(' ').map(str::to_string).collect::<Vec<_>>();
        let argv = argv_with(&words("node --inspect=0.0.0.0:9229 -r dotenv app.js --x"), Path::new("/t/s"));
        assert_eq!(argv, words("node --require /t/s -r dotenv app.js --x"));
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let theirs = [
            pair("NODE_ENV", "production"),
            pair("NODE_OPTIONS", "--inspect --max-old-space-size=200"),
            pair("NODE_CHANNEL_FD", "3"),
            pair("NODE_UNIQUE_ID", "1"),
            pair("PORT", "80"),
        ];
        let ours = [pair("NODE_ENV", "production"), pair("NODE_OPTIONS", "--max-old-space-size=200")];
        assert_eq!(own_variables(&theirs), ours);
    }
}
