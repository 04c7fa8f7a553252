//! Stores runs in one SQLite file that anyone can read.
//!
//! A run is stored while it happens: its plan when it begins, every second as it passes, its document when it
//! ends. After a kill the seconds are there, and [`Store::load`] builds the run from them as for a run that
//! ended normally. With the write-ahead log each second is one atomic transaction, and readers never wait for
//! it.
//!
//! This module opens a store, and `schema` has its tables. `runs` stores the beginning and end of a run, and
//! finds and loads it; `timelines` stores its seconds and samples; `replay_events` replays it as events.
//! `documents` stores the results of commands that make several runs, and `noise` the noise of the machine.
//! `run_owner` knows which process makes a run, `latest` what a run in progress has so far. `listing` lists
//! everything with tags and notes. `private` keeps other users out; `older` removes secrets that older
//! versions stored.

mod agents;
mod documents;
#[cfg(test)]
mod fixtures;
mod latest;
mod listing;
mod noise;
mod older;
mod private;
mod replay_events;
mod run_owner;
mod runs;
mod schema;
mod timelines;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lastdrop_model::Sample;
use lastdrop_model::run::Second;
use lastdrop_model::timeline::Archive;
use rusqlite::Connection;

pub use crate::agents::{AgentRecord, RecordBody, RunAgent};
pub use crate::documents::StoredId;
pub use crate::latest::{LatestSample, LatestSecond, Progress};
pub use crate::listing::{
    ExperimentRun, ItemKind, ListItem, Listing, MOST_NOTE_CHARS, MOST_TAG_CHARS, MOST_TAGS, Remark, RunState,
};
pub use crate::run_owner::RunOwner;
pub use crate::runs::HistoryEntry;
use crate::timelines::{Seconds, StoredSamples};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the store of runs {} cannot be opened: {source}; choose another with --store FILE or LASTDROP_STORE, or go \
         without it: --no-store", path.display()
    )]
    Open { path: PathBuf, source: rusqlite::Error },
    #[error(
        "the store of runs {} cannot be made: {source}; choose another with --store FILE or LASTDROP_STORE, or go \
         without it: --no-store", path.display()
    )]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("the store of runs: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("no run '{0}' in the store; `lastdrop history` lists them")]
    NotFound(String),
    #[error("'{0}' could be more than one run; write more of its id")]
    Ambiguous(String),
    #[error("run {id} is damaged in the store: {what}")]
    Damaged { id: String, what: String },
    #[error("the store of runs could not be read to the end: {0}")]
    Reading(String),
}

/// An open store; clones refer to the same store.
#[derive(Debug, Clone)]
pub struct Store {
    connection: Arc<Mutex<Connection>>,
    /// The first error while reading a timeline.
    trouble: Arc<OnceLock<String>>,
    /// The id of this process's experiment, for commands that make several runs.
    experiment: Arc<OnceLock<String>>,
}

/// Page cache size; negative means KiB in SQLite. A run only appends and reads little, so a larger cache
/// would just make the process grow.
const CACHE_KIB: i64 = -256;

impl Store {
    /// Opens the store; creates it and its folder if missing.
    ///
    /// # Errors
    /// If it cannot be created, read or written.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        private::prepare(path).map_err(|source| StoreError::Folder { path: path.to_path_buf(), source })?;
        let open = || -> rusqlite::Result<Connection> {
            let mut connection = Connection::open(path)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            // Applies to new files only. Four rows of a second fit into a page of this size with little space
            // left.
            connection.pragma_update(None, "page_size", 8192)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            connection.pragma_update(None, "cache_size", CACHE_KIB)?;
            schema::prepare(&connection)?;
            older::hide_secrets(&mut connection)?;
            Ok(connection)
        };
        open().map(Store::on).map_err(|source| StoreError::Open { path: path.to_path_buf(), source })
    }

    /// Opens a temporary store without a name. Large data goes to disk; all of it is gone with the last
    /// clone, however the process ends.
    ///
    /// # Errors
    /// If there is no place for temporary files.
    pub fn scratch() -> Result<Store, StoreError> {
        let connection = Connection::open("")?;
        // Its entries refer to runs that are not in this store.
        connection.pragma_update(None, "foreign_keys", false)?;
        connection.pragma_update(None, "cache_size", CACHE_KIB)?;
        schema::prepare(&connection)?;
        Ok(Store::on(connection))
    }

    fn on(connection: Connection) -> Store {
        Store { connection: Arc::new(Mutex::new(connection)), trouble: Arc::default(), experiment: Arc::default() }
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the seconds of a phase of a run, read on demand.
    #[must_use]
    pub fn seconds(&self, id: &str, phase: u16) -> Arc<dyn Archive<Second>> {
        Arc::new(Seconds { store: self.clone(), run: id.into(), phase })
    }

    /// Returns the samples of a run, read on demand.
    #[must_use]
    pub fn looks(&self, id: &str) -> Arc<dyn Archive<Sample>> {
        Arc::new(StoredSamples { store: self.clone(), run: id.into() })
    }

    /// Checks that everything read from timelines so far was intact.
    ///
    /// # Errors
    /// The first problem that was found.
    pub fn check_reads(&self) -> Result<(), StoreError> {
        match self.trouble.get() {
            None => Ok(()),
            Some(what) => Err(StoreError::Reading(what.clone())),
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<Vec<T>, StoreError>) -> Vec<T> {
        read(&self.connection()).unwrap_or_else(|e| {
            let _ = self.trouble.set(e.to_string());
            Vec::new()
        })
    }
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types have only string keys and finite numbers or null")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_store_is_an_error_that_says_so() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("s");
        std::fs::write(&path, "not a database, but long enough to look at ".repeat(100)).expect("writes");
        let message = Store::open(&path).expect_err("no database").to_string();
        assert!(message.contains("--no-store"), "{message}");
    }
}
