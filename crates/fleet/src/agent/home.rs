//! An agent's folder: the state that outlives its process.
//!
//! | file | what |
//! |---|---|
//! | `lock` | held while the agent lives: a folder has one agent |
//! | `state.json` | its instance, password at the broker, epoch, the highest sequence of an order, names of conversations |
//! | `journal/` | records that the broker has not acknowledged |
//! | `files/` | files of the job under way |

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_files::TrustedFile;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::journal::{Journal, JournalBacklog};
use crate::tokens::{hex, random};

#[derive(Debug)]
pub(crate) struct Home {
    folder: PathBuf,
    pub state: HomeState,
    /// Locked, never read.
    _lock: Flock<File>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HomeState {
    /// Created with the folder.
    pub instance: String,
    pub password: String,
    /// Number of times that an agent has started in this folder.
    pub epoch: u64,
    pub last_order: u64,
    /// Conversations that have begun and when, in microseconds since 1970. None begins twice.
    #[serde(default)]
    pub conversations: BTreeMap<String, i64>,
}

/// How long the name of a finished conversation is kept. Its messages expire after a minute, so an hour is
/// more than enough.
const KNOWN_FOR_US: i64 = 3_600_000_000;

impl HomeState {
    /// Notes that a conversation begins; returns `false` if it has begun before. Open conversations are never
    /// forgotten.
    pub fn begin_conversation(&mut self, name: &str, now_us: i64, is_open: impl Fn(&str) -> bool) -> bool {
        if self.conversations.contains_key(name) {
            return false;
        }
        for (known, at_us) in &mut self.conversations {
            if is_open(known) {
                *at_us = now_us;
            }
        }
        // If the clock was set back, no conversation is forgotten.
        self.conversations.retain(|_, at_us| now_us.saturating_sub(*at_us) < KNOWN_FOR_US);
        self.conversations.insert(name.to_owned(), now_us);
        true
    }
}

/// The reason why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("another agent is at work in {}: give this one another --name", .0.display())]
    Taken(PathBuf),
    #[error("{} is no state of an agent ({why}): remove it, and the agent is a new one", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("cannot use {}: {source}", path.display())]
    Disk { path: PathBuf, source: io::Error },
}

/// The state has a line per conversation.
const MOST_STATE_BYTES: u64 = 64 << 20;

/// How long a lock is awaited, and how often it is tried. A program that this process starts holds all locks until it has
/// begun, also one that was given up meanwhile.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Locks a file, unless another process keeps it locked.
fn lock_soon(mut file: File) -> Option<Flock<File>> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err(_) if Instant::now() >= deadline => return None,
            Err((back, _)) => file = back,
        }
        thread::sleep(LOCK_PAUSE);
    }
}

impl Home {
    /// Locks the folder, loads its state, and begins a new epoch.
    pub fn open(folder: &Path) -> Result<Home, HomeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| HomeError::Disk { path, source }
        };
        for part in ["", "journal", "files"] {
            let path = folder.join(part);
            DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed(&path))?;
        }
        let path = folder.join("lock");
        let file = TrustedFile::create(&path).map_err(|e| failed(&path)(e.into()))?.into_file();
        let lock = lock_soon(file).ok_or_else(|| HomeError::Taken(folder.to_owned()))?;
        let path = folder.join("state.json");
        let state = TrustedFile::open(&path).and_then(|file| file.read(MOST_STATE_BYTES)).map_err(io::Error::from);
        let mut state = match state {
            Ok(bytes) => serde_json::from_slice::<HomeState>(&bytes)
                .map_err(|e| HomeError::Damaged { path: path.clone(), why: e.to_string() })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => HomeState {
                instance: hex(&random::<16>().map_err(failed(&path))?),
                password: hex(&random::<32>().map_err(failed(&path))?),
                epoch: 0,
                last_order: 0,
                conversations: BTreeMap::new(),
            },
            Err(e) => return Err(failed(&path)(e)),
        };
        state.epoch += 1;
        let home = Home { folder: folder.to_owned(), state, _lock: lock };
        home.save().map_err(failed(&path))?;
        home.forget_files();
        Ok(home)
    }

    /// Saves the state durably.
    pub fn save(&self) -> io::Result<()> {
        write_whole(&self.folder.join("state.json"), &serde_json::to_vec(&self.state)?)
    }

    pub fn journals(&self) -> PathBuf {
        self.folder.join("journal")
    }

    pub fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    pub fn forget_files(&self) {
        for entry in fs::read_dir(self.files()).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Returns the journals of earlier epochs, and messages about those that could not be read.
    pub fn left(&self) -> (Vec<(Journal, JournalBacklog)>, Vec<String>) {
        let (mut left, mut trouble) = (Vec::new(), Vec::new());
        let mut paths: Vec<PathBuf> =
            fs::read_dir(self.journals()).into_iter().flatten().flatten().map(|e| e.path()).collect();
        paths.retain(|p| p.extension().is_some_and(|e| e == "journal"));
        paths.sort();
        for path in paths {
            match Journal::open(&path) {
                Ok(journal) => left.push(journal),
                // The agent was killed before the header was written, so the journal is empty.
                Err(e)
                    if e.kind() == io::ErrorKind::InvalidData && fs::metadata(&path).is_ok_and(|m| m.len() < 4096) =>
                {
                    let _ = fs::remove_file(&path);
                }
                Err(e) => trouble.push(format!("the journal {} cannot be read: {e}", path.display())),
            }
        }
        (left, trouble)
    }
}

/// Replaces a file atomically and durably. The file is readable by its owner only.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    // An existing partial file may be a symbolic link.
    let _ = fs::remove_file(&partial);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_begins_once_however_long_it_was_open() {
        let mut state = HomeState {
            instance: String::new(),
            password: String::new(),
            epoch: 1,
            last_order: 0,
            conversations: BTreeMap::new(),
        };
        assert!(state.begin_conversation("a", 0, |_| false) && state.begin_conversation("b", 1, |_| false));
        assert!(!state.begin_conversation("a", 2, |_| true));
        let later = KNOWN_FOR_US + 10;
        assert!(state.begin_conversation("c", later, |name| name == "a"));
        assert!(!state.begin_conversation("a", later, |_| false), "it was open until now");
        assert!(!state.conversations.contains_key("b"));
    }

    #[test]
    fn each_life_is_an_epoch_and_remembers_the_last_order() {
        let folder = tempfile::tempdir().expect("folder");
        let mut home = Home::open(folder.path()).expect("opened");
        home.state.last_order = 9;
        home.save().expect("saved");
        let first = home.state.clone();
        assert!(matches!(Home::open(folder.path()), Err(HomeError::Taken(_))));
        drop(home);
        let second = Home::open(folder.path()).expect("opened").state;
        assert_eq!((first.epoch, second.epoch, second.last_order), (1, 2, 9));
        assert_eq!((second.instance, second.password), (first.instance, first.password));
    }
}
