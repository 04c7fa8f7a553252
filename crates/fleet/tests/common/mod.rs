//! A fleet on one machine: a broker, agents as threads and as processes, and an engine that only counts.
#![allow(dead_code, reason = "each file of tests uses some of it")]
#![allow(clippy::print_stdout, reason = "agents that are processes tell the test where they are")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lastdrop_fleet::{
    Agent, AgentOptions, AgentStatus, AgentToken, Assignment, Broker, BrokerOptions, Engine, EngineError, EpochEnd,
    Fleet, Job, Limits, MuteResponder, RecordId, RemoteRun, RemoteRunEvent, Responder, Sink, Start, Stop, run_agent,
};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal};
use serde::{Deserialize, Serialize};

pub const VERSION: &str = "1.0.0-test";
/// A time limit that no step reaches, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// Instructions for the counting engine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Count {
    pub records: u64,
    pub every_ms: u64,
    /// This record gets this many extra bytes.
    pub large: Option<(u64, usize)>,
}

pub struct Counter;

/// Returns the content of record `seq` of an agent.
pub fn content(agent: &str, seq: u64, count: &Count) -> Vec<u8> {
    let mut bytes = format!("{agent} {seq}").into_bytes();
    if let Some((_, more)) = count.large.filter(|(at, _)| *at == seq) {
        bytes.extend((0..more).map(|i| (i * 7 % 251) as u8));
    }
    bytes
}

impl Engine for Counter {
    fn prepare(&mut self, job: &Job) -> Result<(), EngineError> {
        if let Some(file) = job.files.path("numbers.csv") {
            let text = std::fs::read_to_string(file).map_err(|e| EngineError(e.to_string()))?;
            if !text.starts_with("1,2,3") {
                return Err(EngineError(format!("numbers.csv holds {text:?}")));
            }
        }
        serde_json::from_slice::<Count>(&job.payload).map(drop).map_err(|e| EngineError(format!("no count: {e}")))
    }

    fn run(&mut self, job: &Job, start: Start, sink: &dyn Sink, stop: &Stop) -> Result<(), EngineError> {
        let count: Count = serde_json::from_slice(&job.payload).map_err(|e| EngineError(e.to_string()))?;
        let _ = stop.wait(start.at.saturating_duration_since(Instant::now()));
        for seq in 0..count.records {
            if stop.is_asked() {
                return Ok(());
            }
            // The transport reports a full disk.
            let _ = sink.record(&content(&job.agent, seq, &count));
            if std::env::var_os("FLEET_TEST_URL").is_some() {
                println!("recorded {seq}");
            }
            let _ = stop.wait(Duration::from_millis(count.every_ms));
        }
        Ok(())
    }
}

/// A broker in a folder of its own.
pub struct World {
    pub broker: Broker,
    pub folder: tempfile::TempDir,
}

pub fn broker_in(folder: &Path, listen: &str) -> Broker {
    let options = BrokerOptions {
        listen: listen.parse().expect("an address"),
        folder: folder.join("broker"),
        version: VERSION.into(),
    };
    Broker::start(&options).expect("a broker: is nats-server installed?")
}

impl World {
    pub fn new() -> World {
        let folder = tempfile::tempdir().expect("folder");
        World { broker: broker_in(folder.path(), "127.0.0.1:0"), folder }
    }

    pub fn fleet(&self) -> Fleet {
        Fleet::connect(self.broker.url(), self.broker.token(), VERSION).expect("connected")
    }

    pub fn options(&self, name: &str) -> AgentOptions {
        AgentOptions {
            url: self.broker.url().into(),
            token: self.broker.token().agent_token(),
            name: name.into(),
            folder: self.folder.path().join(name),
            version: VERSION.into(),
            limits: Limits::default(),
            looks: Vec::new(),
            silence: Duration::from_secs(30),
            skew_us: 0,
            twice: false,
        }
    }

    pub fn agent(&self, name: &str) -> AgentThread {
        AgentThread::start(self.options(name))
    }

    /// Starts an agent as a separate process, which can be killed.
    pub fn process(&self, name: &str) -> AgentProcess {
        AgentProcess::start(&self.options(name), u64::MAX)
    }

    /// Starts an agent whose files are limited to this size.
    pub fn cramped(&self, name: &str, bytes: u64) -> AgentProcess {
        AgentProcess::start(&self.options(name), bytes)
    }

    /// Sends a signal to nats-server.
    pub fn signal(&self, signal: Signal) {
        let pid = until("nats-server to be up", || self.broker.pid());
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal).expect("signalled");
    }
}

/// An agent in a thread; it ends when dropped.
pub struct AgentThread {
    stop: Stop,
    pub told: Receiver<AgentStatus>,
    thread: Option<JoinHandle<()>>,
}

impl AgentThread {
    pub fn start(options: AgentOptions) -> AgentThread {
        AgentThread::answering(options, Arc::new(MuteResponder))
    }

    /// Starts an agent that answers questions.
    pub fn answering(options: AgentOptions, respond: Arc<dyn Responder>) -> AgentThread {
        let (tell, told) = channel();
        let stop = Stop::default();
        let ends = stop.clone();
        let tell = std::sync::Mutex::new(tell);
        let tell = Arc::new(move |what| drop(tell.lock().expect("lock").send(what)));
        let thread =
            std::thread::spawn(move || run_agent(&options, &mut Counter, respond, &ends, tell).expect("an agent"));
        AgentThread { stop, told, thread: Some(thread) }
    }
}

impl Drop for AgentThread {
    fn drop(&mut self) {
        self.stop.ask("the test is over");
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || ended.is_ok(), "the agent failed");
        }
    }
}

/// An agent in a process; it is killed when dropped.
pub struct AgentProcess {
    child: Child,
    lines: Receiver<String>,
}

impl AgentProcess {
    fn start(options: &AgentOptions, file_bytes: u64) -> AgentProcess {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "an_agent_as_a_process", "--nocapture"])
            .env("FLEET_TEST_URL", &options.url)
            .env("FLEET_TEST_TOKEN", options.token.to_string())
            .env("FLEET_TEST_NAME", &options.name)
            .env("FLEET_TEST_FOLDER", &options.folder)
            .env("FLEET_TEST_FILE_BYTES", file_bytes.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let (send, lines) = channel();
        let out = BufReader::new(child.stdout.take().expect("its output"));
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        AgentProcess { child, lines }
    }

    /// Waits until the process prints this line.
    pub fn says(&self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while let Some(rest) = deadline.checked_duration_since(Instant::now()) {
            if self.lines.recv_timeout(rest).is_ok_and(|line| line.trim_end().ends_with(what)) {
                return;
            }
        }
        panic!("the agent never said {what:?}");
    }

    pub fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).expect("signalled");
    }

    pub fn wait(&mut self) -> std::process::ExitStatus {
        until("the agent to end", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The main function of the agent process.
pub fn agent_process() {
    let var = |name: &str| std::env::var(name).expect("started by a test");
    let options = AgentOptions {
        url: var("FLEET_TEST_URL"),
        token: AgentToken::parse(&var("FLEET_TEST_TOKEN")).expect("a token"),
        name: var("FLEET_TEST_NAME"),
        folder: PathBuf::from(var("FLEET_TEST_FOLDER")),
        version: VERSION.into(),
        limits: Limits::default(),
        looks: Vec::new(),
        silence: Duration::from_secs(30),
        skew_us: 0,
        twice: false,
    };
    // The test process may already be gone.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).expect("set");
    let bytes = var("FLEET_TEST_FILE_BYTES").parse().expect("a number");
    if bytes != u64::MAX {
        // SAFETY: no handler runs; the signal is ignored, so that writing fails instead.
        unsafe { nix::sys::signal::signal(Signal::SIGXFSZ, SigHandler::SigIgn).expect("ignored") };
        setrlimit(Resource::RLIMIT_FSIZE, bytes, bytes).expect("limited");
    }
    let stop = Stop::default();
    let signalled = Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&signalled)).expect("caught");
    let asked = stop.clone();
    std::thread::spawn(move || {
        while !signalled.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        asked.ask("SIGTERM");
    });
    run_agent(&options, &mut Counter, Arc::new(MuteResponder), &stop, Arc::new(|told| println!("{told:?}")))
        .expect("an agent");
}

pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited for {what} in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the agents of the fleet once there are this many.
pub fn agents(fleet: &Fleet, count: usize) -> Vec<Agent> {
    until("all agents", || fleet.agents().ok().filter(|agents| agents.len() == count))
}

pub fn assignments(agents: &[Agent], count: &Count) -> Vec<Assignment> {
    let payload = serde_json::to_vec(count).expect("json");
    agents.iter().map(|a| Assignment { agent: a.clone(), payload: payload.clone(), files: Vec::new() }).collect()
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct RunLog {
    pub records: BTreeMap<RecordId, Vec<u8>>,
    pub ends: Vec<EpochEnd>,
    pub other: Vec<String>,
}

impl RunLog {
    /// Receives and commits records until `enough`.
    pub fn follow(&mut self, flight: &mut RemoteRun, enough: impl Fn(&RunLog, &RemoteRun) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !enough(self, flight) {
            assert!(
                Instant::now() < deadline,
                "it has not come: {} records, {:?}, {:?}",
                self.records.len(),
                self.ends,
                self.other
            );
            match flight.next(Duration::from_millis(200)).expect("a connection") {
                Some(RemoteRunEvent::Arrived(arrived)) => {
                    flight.commit(&arrived.id);
                    let id = arrived.id.clone();
                    assert!(self.records.insert(arrived.id, arrived.bytes).is_none(), "{id:?} came twice");
                }
                Some(RemoteRunEvent::Ended(end)) => {
                    flight.commit(&end.id);
                    self.ends.push(end);
                }
                Some(other) => self.other.push(format!("{other:?}")),
                None => {}
            }
        }
    }

    /// Checks that each agent's records are complete, unique and unchanged.
    pub fn is_whole(&self, agents: &[&str], count: &Count) {
        for agent in agents {
            let records: Vec<_> = self.records.iter().filter(|(id, _)| id.agent == **agent).collect();
            assert_eq!(records.len() as u64, count.records, "records of {agent}");
            for (seq, (id, bytes)) in records.into_iter().enumerate() {
                assert_eq!(id.seq, seq as u64);
                assert!(*bytes == content(agent, id.seq, count), "record {seq} of {agent} is another");
            }
        }
    }
}
