//! Keeps runs on disk, in one SQLite file that anyone can read.
//!
//! A run is written as it happens: its plan when it begins, every second as it passes, its document when it ends.
//! After a kill the seconds are there, and [`Store::load`] makes the run from them in the same way as from a run that
//! ended by itself. The write-ahead log makes each second one atomic transaction that readers do not wait for.
//!
//! Here a store is opened. `schema` has its tables; `runs` writes down that a run begins and ends, and finds and loads it;
//! `timelines` has its seconds and looks, `retell` tells a run again as its events; `documents` has what came of questions
//! that take several runs, and `noise` that of the machine. `maker` tells which process makes a run, `latest` what has come of one that
//! is under way, `listing` has all that is kept, some at a time, with what somebody wrote about it.
//! `private` closes the files to others, `older` takes out what older versions should not have kept.

mod agents;
mod documents;
#[cfg(test)]
mod fixtures;
mod latest;
mod listing;
mod maker;
mod noise;
mod older;
mod private;
mod retell;
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

pub use crate::agents::{KeptAgent, KeptWord, Word};
pub use crate::documents::Found;
pub use crate::latest::{LatestLook, LatestSecond, Progress};
pub use crate::listing::{
    Listed, ListedPart, Listing, MOST_NOTE_CHARS, MOST_TAG_CHARS, MOST_TAGS, Remark, State, What,
};
pub use crate::maker::Maker;
pub use crate::runs::Entry;
use crate::timelines::{Looks, Seconds};

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

/// A store; copies are the same store.
#[derive(Debug, Clone)]
pub struct Store {
    connection: Arc<Mutex<Connection>>,
    /// What went wrong first with reading entries of a timeline one after the other.
    trouble: Arc<OnceLock<String>>,
    /// The id of what this process may do that takes several runs.
    experiment: Arc<OnceLock<String>>,
}

/// Memory for pages of the file, negative as SQLite wants it: a run writes to the end and reads little, and shall not grow
/// for as long as it fills a larger one.
const CACHE_KIB: i64 = -256;

impl Store {
    /// Opens the store, making it and its folder where there is none.
    ///
    /// # Errors
    /// When it cannot be made, read or written.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        private::prepare(path).map_err(|source| StoreError::Folder { path: path.to_path_buf(), source })?;
        let open = || -> rusqlite::Result<Connection> {
            let mut connection = Connection::open(path)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            // Holds for new files only: four rows of a second's size fit into one, with little left over.
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

    /// A store without a name, on disk as far as it is large, that is gone when the last copy of it is, however the process
    /// ends.
    ///
    /// # Errors
    /// When there is no place for temporary files.
    pub fn scratch() -> Result<Store, StoreError> {
        let connection = Connection::open("")?;
        // Its entries belong to no run that is kept.
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

    /// The seconds of a phase of a run, read as they are asked for.
    #[must_use]
    pub fn seconds(&self, id: &str, phase: u16) -> Arc<dyn Archive<Second>> {
        Arc::new(Seconds { store: self.clone(), run: id.into(), phase })
    }

    /// The looks of a run, read as they are asked for.
    #[must_use]
    pub fn looks(&self, id: &str) -> Arc<dyn Archive<Sample>> {
        Arc::new(Looks { store: self.clone(), run: id.into() })
    }

    /// Was all that was read from timelines whole?
    ///
    /// # Errors
    /// With what was wrong first.
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
