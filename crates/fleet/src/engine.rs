//! How an agent executes an order: the interface between the transport and the load generator.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Executes orders. An agent has one engine and gives it one job at a time, always from the same thread.
pub trait Engine: Send {
    /// Checks an order before anything begins: whether the payload is understood, within the limits, and its
    /// files complete. The coordinator learns of a refusal at once, and the run then begins on no agent.
    ///
    /// # Errors
    /// The reason for a refusal, as a sentence that says what to try.
    fn prepare(&mut self, job: &Job) -> Result<(), EngineError> {
        let _ = job;
        Ok(())
    }

    /// Runs the prepared job from `start` on and passes each record to `sink` as soon as it is complete.
    /// Returns when everything is recorded; the engine makes the last record, with the job's result. If
    /// `stop` is requested, it ends early in an orderly way, with what it has.
    ///
    /// # Errors
    /// The reason why the job is incomplete. Records made so far are kept.
    fn run(&mut self, job: &Job, start: Start, sink: &dyn Sink, stop: &Stop) -> Result<(), EngineError>;
}

/// A checked order: signed by the holder of the token, for this agent, not expired, not seen before.
#[derive(Debug, Clone)]
pub struct Job {
    /// The run's id, which the coordinator chose.
    pub run: String,
    /// This agent's name.
    pub agent: String,
    /// The agent's current epoch.
    pub epoch: u64,
    /// The payload from the coordinator's caller (`Assignment::payload`).
    pub payload: Vec<u8>,
    pub files: Files,
    /// The limits from this agent's command line. The engine enforces them, since the transport cannot
    /// interpret a payload.
    pub limits: Limits,
}

/// The start of a job: the same moment for the whole fleet.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// By this machine's monotonic clock; usually some hundred milliseconds ahead.
    pub at: Instant,
    /// By the coordinator's clock, in microseconds since 1970.
    pub unix_us: i64,
    /// Possible error of `at` in microseconds: half of the shortest round trip.
    pub error_us: u64,
}

/// Limits on what coordinators may ask of an agent, from its command line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Hosts that may get load; empty means this machine only. The engine checks the address that it connects
    /// to.
    pub allow: Vec<String>,
    /// Servers here may be changed, not only observed.
    pub act: bool,
    /// Highest rate, requests per second.
    pub max_rate: Option<f64>,
    /// Longest time of a job; its `Stop` is requested then.
    pub max_time: Option<Duration>,
}

/// Files that came with an order, already checked against their SHA-256. They are removed after the job.
#[derive(Debug, Clone, Default)]
pub struct Files(Vec<File>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The coordinator's name for it: any text, never a path on this machine.
    pub name: String,
    /// Path of the content. Engines must not write to it, because jobs share it.
    pub path: PathBuf,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

impl Files {
    #[must_use]
    pub fn new(files: Vec<File>) -> Files {
        Files(files)
    }

    /// Returns the path of the file that the coordinator calls `name`.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<&Path> {
        self.0.iter().find(|f| f.name == name).map(|f| f.path.as_path())
    }

    pub fn iter(&self) -> impl Iterator<Item = &File> {
        self.0.iter()
    }
}

/// Takes an engine's records.
pub trait Sink: Send + Sync {
    /// Writes the record to the agent's journal, waits until it is on the disk, and queues it for publishing.
    /// Any thread may call this, but it takes as long as the disk does, so never call it from a load loop.
    ///
    /// Returns the record's sequence number, starting at 0 for each job.
    ///
    /// # Errors
    /// If the journal could not be written. The record still has its number and is published from memory; it
    /// is lost only if the agent dies first. The transport reports the error itself, so an engine may
    /// continue.
    fn record(&self, record: &[u8]) -> Result<u64, SinkError>;
}

/// A record could not be written to the journal.
#[derive(Debug, thiserror::Error)]
#[error("record {seq} is not in the journal {}: {source}; it is kept in memory until it is published", journal.display())]
pub struct SinkError {
    pub seq: u64,
    pub journal: PathBuf,
    pub source: std::io::Error,
}

/// The reason why a job was refused or is incomplete, as a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineError(pub String);

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EngineError {}

/// A request to stop in an orderly way, which cannot be withdrawn. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<(Mutex<Option<String>>, Condvar)>);

impl Stop {
    /// Requests a stop, with a reason ("the coordinator stopped the run"). The first reason is kept.
    pub fn ask(&self, why: &str) {
        let mut asked = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.get_or_insert_with(|| why.to_owned());
        self.0.1.notify_all();
    }

    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.why().is_some()
    }

    /// Returns the reason, if a stop was requested.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits at most `limit` for a stop request; returns whether there is one.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let asked = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, _) =
            self.0.1.wait_timeout_while(asked, limit, |asked| asked.is_none()).unwrap_or_else(PoisonError::into_inner);
        asked.is_some()
    }
}
