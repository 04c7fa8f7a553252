//! What an agent does with an order: the interface between the transport and whoever puts load on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Does what orders ask for. An agent has one, and gives it one job at a time, all from one thread.
pub trait Engine: Send {
    /// Checks an order before anything begins: can the payload be understood, is it within the limits, are its files whole?
    /// The coordinator hears of a refusal at once, and the run then begins nowhere.
    ///
    /// # Errors
    /// Why the order is refused, as a sentence that says what to try.
    fn prepare(&mut self, job: &Job) -> Result<(), EngineError> {
        let _ = job;
        Ok(())
    }

    /// Does the job that was prepared, from `start` on, and hands over each record as it is complete. Comes back when all is
    /// recorded: the last record, with what came of the job, is the engine's to make. A `stop` asks it to come back early, in
    /// an orderly way, with what there is.
    ///
    /// # Errors
    /// Why the job is not whole. What was recorded stays recorded.
    fn run(&mut self, job: &Job, start: Start, sink: &dyn Sink, stop: &Stop) -> Result<(), EngineError>;
}

/// An order after it was checked: signed by the holder of the token, for this agent, not expired, not seen before.
#[derive(Debug, Clone)]
pub struct Job {
    /// The run's id, as the coordinator named it.
    pub run: String,
    /// This agent's name.
    pub agent: String,
    /// This life of the agent.
    pub epoch: u64,
    /// What the coordinator's caller gave (`Assignment::payload`).
    pub payload: Vec<u8>,
    pub files: Files,
    /// What this agent was started with. The engine keeps to them: the transport cannot know what a payload asks for.
    pub limits: Limits,
}

/// When a job begins: one instant for the whole fleet.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// This machine's monotonic clock; usually some hundred milliseconds from now.
    pub at: Instant,
    /// The same instant on the coordinator's clock: microseconds since 1970.
    pub unix_us: i64,
    /// How far off `at` may be: half of the shortest round trip, in microseconds.
    pub error_us: u64,
}

/// What may be asked of an agent, from its own command line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Hosts that load may be put on; empty is this machine only. To be checked on the address that is connected to.
    pub allow: Vec<String>,
    /// Servers may be changed here, not only looked at.
    pub act: bool,
    /// Requests a second at most.
    pub max_rate: Option<f64>,
    /// A job lasts no longer; its `Stop` is set when it does.
    pub max_time: Option<Duration>,
}

/// Files that came with an order, already checked against their SHA-256; they are removed after the job.
#[derive(Debug, Clone, Default)]
pub struct Files(Vec<File>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// What the coordinator calls it: any text, never a path on this machine.
    pub name: String,
    /// Where its content is. Read-only by agreement: jobs share it.
    pub path: PathBuf,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

impl Files {
    #[must_use]
    pub fn new(files: Vec<File>) -> Files {
        Files(files)
    }

    /// Where the content of the file is that the coordinator calls `name`.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<&Path> {
        self.0.iter().find(|f| f.name == name).map(|f| f.path.as_path())
    }

    pub fn iter(&self) -> impl Iterator<Item = &File> {
        self.0.iter()
    }
}

/// Where an engine's records go.
pub trait Sink: Send + Sync {
    /// Writes the record to the agent's journal, waits until it is on the disk, and leaves it to be published. It may be
    /// called from any thread, but takes as long as the disk does: never from a loop that puts load on.
    ///
    /// Returns the record's sequence number: 0 for the first of a job, then each one more.
    ///
    /// # Errors
    /// The journal could not be written. The record has its number all the same and is published from memory: it is lost only
    /// if the agent dies before that. The transport says so by itself; an engine may go on.
    fn record(&self, record: &[u8]) -> Result<u64, SinkError>;
}

/// A record is not in the journal.
#[derive(Debug, thiserror::Error)]
#[error("record {seq} is not in the journal {}: {source}; it is kept in memory until it is published", journal.display())]
pub struct SinkError {
    pub seq: u64,
    pub journal: PathBuf,
    pub source: std::io::Error,
}

/// Why a job was refused, or is not whole: a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineError(pub String);

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EngineError {}

/// Asks for an orderly end; once asked it stays so. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<(Mutex<Option<String>>, Condvar)>);

impl Stop {
    /// Asks, and says why ("the coordinator stopped the run"). The first reason is kept.
    pub fn ask(&self, why: &str) {
        let mut asked = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.get_or_insert_with(|| why.to_owned());
        self.0.1.notify_all();
    }

    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.why().is_some()
    }

    /// Why the end was asked for, if it was.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the end is asked for, but no longer than `limit`. True when it is.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let asked = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, _) =
            self.0.1.wait_timeout_while(asked, limit, |asked| asked.is_none()).unwrap_or_else(PoisonError::into_inner);
        asked.is_some()
    }
}
