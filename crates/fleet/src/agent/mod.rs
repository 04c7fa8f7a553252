//! An agent: connects to the broker, announces itself, takes signed orders, has its engine execute them, and
//! delivers each record to the broker. It runs until it is told to end, even if broker and coordinator
//! disappear.
//!
//! It has three threads. The caller's runs the engine; one publishes (`outbox`); the connection's handles
//! requests (`order_handler`), so pings that measure the clock never wait for a disk. Each conversation adds a thread
//! (`answering`).

mod answering;
mod home;
mod join;
mod order_handler;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine::{Engine, EngineError, Job, Limits, Sink, SinkError, Start, Stop};
use crate::journal::{END, Journal, JournalId, RECORD};
use crate::link::{Driver, Link};
use crate::messages::{Clock, FinalReport, Reply};
use crate::order::Refusal;
use crate::outbox::{Outbox, OutgoingJournal};
use crate::subjects::is_agent_name;
use crate::tokens::AgentToken;
pub use answering::{Answerer, ConversationEnd, MuteResponder, Responder};
use home::Home;
pub use home::HomeError;
pub(crate) use home::write_whole;
pub(crate) use join::JoinAttempt;
pub use join::JoinError;
use order_handler::{OrderHandler, Task};

/// At its end an agent waits this long for the broker to take its records. The rest is published when it next
/// starts.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Options of an agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// `tls://HOST:PORT`.
    pub url: String,
    pub token: AgentToken,
    pub name: String,
    /// The agent's private folder, with its journals.
    pub folder: PathBuf,
    /// The version of lastdrop; orders of other versions are refused.
    pub version: String,
    pub limits: Limits,
    /// Servers that the agent can observe, for people and for `fleet status`.
    pub looks: Vec<String>,
    /// A conversation ends when nothing was heard for this long: longer than it takes to restart a killed broker.
    pub silence: Duration,
    /// Added to the clock, for tests.
    pub skew_us: i64,
    /// Publishes each record twice, as two messages, for tests.
    pub twice: bool,
}

/// Events of an agent, for its user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentStatus {
    /// The agent has joined the fleet.
    Joined,
    /// There is no broker, or no longer one; the agent keeps trying.
    Away(String),
    Back,
    Began {
        run: String,
    },
    Ended {
        run: String,
        records: u64,
        error: Option<String>,
    },
    Refused(Refusal),
    Trouble(String),
    /// The agent ends with this many records left in the journal.
    Left(usize),
}

/// The reason why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{0:?} is no name for an agent: letters, digits, - and _, at most 64, and not digits alone")]
    Name(String),
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    Entry(#[from] JoinError),
    #[error("no thread for the agent: {0}")]
    System(#[from] std::io::Error),
}

/// Receives the agent's events.
pub type StatusListener = Arc<dyn Fn(AgentStatus) + Send + Sync>;

/// Runs an agent until `stop` is requested. It then publishes its remaining records if the broker takes them
/// within 10 s. `respond` answers questions, in threads of their own.
///
/// # Errors
/// If the agent can never run: its folder is unusable, the token belongs to another fleet, or its name is
/// taken. A missing broker is no error; the agent waits for it.
pub fn run(
    options: &AgentOptions,
    engine: &mut dyn Engine,
    respond: Arc<dyn Responder>,
    stop: &Stop,
    tell: StatusListener,
) -> Result<(), AgentError> {
    if !is_agent_name(&options.name) {
        return Err(AgentError::Name(options.name.clone()));
    }
    let home = Home::open(&options.folder)?;
    let driver = Driver::start()?;
    let outbox = Arc::new(Outbox::new(options.twice));
    take_up_former_lives(&home, &outbox, &tell);
    let Some(link) = enter(options, &home, &driver, stop, &tell)? else { return Ok(()) };
    tell(AgentStatus::Joined);
    let publisher = {
        let (driver, link, outbox) = (Arc::clone(&driver), link.clone(), Arc::clone(&outbox));
        std::thread::Builder::new().name("publish".into()).spawn(move || outbox.publish(&driver, &link))?
    };
    let (give, tasks) = channel();
    let handler = OrderHandler::open(options, home, &driver, link, &outbox, give, respond, stop, &tell);
    let agent = JobRunner { options, outbox: &outbox, handler: &handler, stop, tell: &tell };
    agent.work(engine, &tasks);
    handler.end_conversations();
    tell(AgentStatus::Left(outbox.close(LAST_WORDS)));
    let _ = publisher.join();
    handler.close();
    Ok(())
}

/// Queues the records that earlier epochs left unacknowledged.
fn take_up_former_lives(home: &Home, outbox: &Outbox, tell: &StatusListener) {
    let (left, trouble) = home.left();
    for what in trouble {
        tell(AgentStatus::Trouble(what));
    }
    for (journal, left) in left {
        let error = Some("the agent ended before the run did: it was killed, or its machine was".to_owned());
        let word = FinalReport { records: left.next, error, trouble: None };
        outbox.take_up(journal, left, &serde_json::to_vec(&word).expect("a number and a text are JSON"));
    }
}

/// Waits for the broker without a time limit; `None` if told to end meanwhile.
fn enter(
    options: &AgentOptions,
    home: &Home,
    driver: &Driver,
    stop: &Stop,
    tell: &StatusListener,
) -> Result<Option<Link>, AgentError> {
    let entry = JoinAttempt {
        url: options.url.clone(),
        token: options.token.clone(),
        name: options.name.clone(),
        password: home.state.password.clone(),
    };
    let mut told = String::new();
    let mut pause = Duration::from_millis(100);
    loop {
        match driver.wait(entry.enter()) {
            Ok(link) => return Ok(Some(link)),
            Err(e) if e.may_pass() => {
                let why = e.to_string();
                if why != told {
                    tell(AgentStatus::Away(why.clone()));
                    told = why;
                }
            }
            Err(e) => return Err(e.into()),
        }
        if stop.wait(pause) {
            return Ok(None);
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Runs jobs on the engine's thread.
struct JobRunner<'a> {
    options: &'a AgentOptions,
    outbox: &'a Arc<Outbox>,
    handler: &'a OrderHandler,
    stop: &'a Stop,
    tell: &'a StatusListener,
}

impl JobRunner<'_> {
    /// Runs one job after the other until told to end.
    fn work(&self, engine: &mut dyn Engine, tasks: &Receiver<Task>) {
        while !self.stop.is_asked() {
            match tasks.recv_timeout(Duration::from_millis(100)) {
                Ok(task) => self.job(engine, task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn job(&self, engine: &mut dyn Engine, task: Task) {
        let Task { job, stop, go, expires, ready } = task;
        let prepared = match caught(|| engine.prepare(&job)) {
            Ok(()) => self.journal(&job).map_err(|e| Refusal::Declined(format!("the journal cannot be written: {e}"))),
            Err(e) => Err(Refusal::Declined(e.0)),
        };
        let journal = match prepared {
            Ok(journal) => journal,
            Err(refusal) => {
                self.handler.free();
                let _ = ready.send(Reply::Refused(refusal));
                return;
            }
        };
        let _ = ready.send(Reply::Ready { epoch: job.epoch });
        let Some(start) = awaited(&go, &stop, expires) else {
            if stop.is_asked() {
                // Nobody expects records of a job that was called off.
                journal.discard();
            } else {
                self.end(&job, &journal, Some("it was prepared and never told to begin".into()));
            }
            self.handler.free();
            return;
        };
        (self.tell)(AgentStatus::Began { run: job.run.clone() });
        let sink = JournalSink { journal: &journal, outbox: self.outbox, handler: self.handler };
        let result = caught(|| engine.run(&job, start, &sink, &stop));
        let error = match (result, stop.why()) {
            (Err(e), _) => Some(e.0),
            (Ok(()), Some(why)) => Some(why),
            (Ok(()), None) => None,
        };
        self.end(&job, &journal, error);
        self.handler.free();
    }

    fn journal(&self, job: &Job) -> std::io::Result<Arc<OutgoingJournal>> {
        let id = JournalId { run: job.run.clone(), agent: job.agent.clone(), epoch: job.epoch };
        Journal::create(&self.options.folder.join("journal"), id).map(OutgoingJournal::new)
    }

    fn end(&self, job: &Job, journal: &Arc<OutgoingJournal>, error: Option<String>) {
        let records = journal.next();
        let word = FinalReport { records, error: error.clone(), trouble: self.handler.untold_trouble() };
        let word = serde_json::to_vec(&word).expect("a number and a text are JSON");
        if let (_, Some(e)) = journal.add(self.outbox, END, &word) {
            self.handler.journal_trouble(Some(e.to_string()));
        }
        (self.tell)(AgentStatus::Ended { run: job.run.clone(), records, error });
    }
}

/// Turns a panic of the engine into a failed job, so that the agent survives.
fn caught(work: impl FnOnce() -> Result<(), EngineError>) -> Result<(), EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let what =
            panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
        Err(EngineError(format!("the engine broke: {}", what.unwrap_or_else(|| "a panic".into()))))
    })
}

/// Waits for the start time; `None` if the job was called off, or no `Go` came in time.
fn awaited(go: &Receiver<Start>, stop: &Stop, expires: Instant) -> Option<Start> {
    while !stop.is_asked() && Instant::now() < expires {
        match go.recv_timeout(Duration::from_millis(20)) {
            Ok(start) => return Some(start),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
    }
    None
}

/// Passes the engine's records to the journal.
struct JournalSink<'a> {
    journal: &'a Arc<OutgoingJournal>,
    outbox: &'a Outbox,
    handler: &'a OrderHandler,
}

impl Sink for JournalSink<'_> {
    fn record(&self, record: &[u8]) -> Result<u64, SinkError> {
        let (seq, error) = self.journal.add(self.outbox, RECORD, record);
        self.handler.journal_trouble(error.as_ref().map(ToString::to_string));
        match error {
            None => Ok(seq),
            Some(source) => Err(SinkError { seq, journal: self.journal.path(), source }),
        }
    }
}

// A clock that may be skewed.
impl AgentOptions {
    pub(crate) fn clock(&self) -> Clock {
        Clock { skew_us: self.skew_us }
    }
}

/// State shared by the handler and its tasks.
type Shared<T> = Arc<Mutex<T>>;
