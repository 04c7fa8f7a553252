//! What is needed to undo a change, written to disk before the change; and the lock that keeps two lastdrops off one
//! server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_files::{TrustedFile, check_folder};
use lastdrop_model::{Settings, Url};
use lastdrop_probe::process::{self, Birth};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ServerError;
use crate::edited::EditedFile;
use crate::private::{keep_to_ourselves, make_folder, remove_if_there, unfinished, write_durably};
use crate::streams::Streams;
use crate::systemd::DropIn;

/// Folder of journals, locks and overrides: /var/lib/lastdrop for root, otherwise the user's state folder.
/// LASTDROP_STATE names another.
///
/// # Errors
/// If there is no such folder.
pub fn state_folder() -> Result<PathBuf, ServerError> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = variable("LASTDROP_STATE") {
        return Ok(folder);
    }
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/lastdrop"));
    }
    variable("XDG_STATE_HOME")
        .or_else(|| variable("HOME").map(|h| h.join(".local/state")))
        .map(|s| s.join("lastdrop"))
        .ok_or_else(|| ServerError::Setting("no folder for the journal: set LASTDROP_STATE to one".into()))
}

/// How far a change has proceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Everything needed is written down; nothing is changed.
    Armed,
    /// Files or the running server may have been changed.
    Changed,
}

/// The state of a server before the first change. Its environment may contain passwords: only its owner may read it,
/// and nothing of it goes anywhere else.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Journal {
    pub schema: String,
    /// The server's name, as in [`crate::Facts::name`].
    pub server: String,
    pub stage: Stage,
    pub created_unix_s: u64,
    pub birth: Birth,
    pub daemonizes: bool,
    /// Number of the signal that reloads it.
    pub reload_signal: i32,
    /// The systemd unit that restarts it, if it belongs to one.
    pub unit: Option<String>,
    /// The command line that starts it on lastdrop's file.
    pub changed_argv: Vec<String>,
    /// Other command lines with which it has been started, for a server whose command line is what changes.
    #[serde(default)]
    pub tried_argvs: Vec<Vec<String>>,
    /// Number of the signal that ends it [default: that of SIGTERM].
    #[serde(default)]
    pub stop_signal: Option<i32>,
    /// Override in an included folder, and its former content (from an earlier `--keep`).
    pub included_file: Option<PathBuf>,
    pub included_before: Option<String>,
    /// The server's own files that were edited, with their former content.
    #[serde(default)]
    pub edited: Vec<EditedFile>,
    /// Drop-in files of its unit that say how it is started, with their former content.
    #[serde(default)]
    pub drop_ins: Vec<DropIn>,
    /// A temporary configuration next to the server's own.
    #[serde(default)]
    pub test_file: Option<PathBuf>,
    /// Folders of a cache on trial and of one to be kept, which go with all that is in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_folders: Vec<PathBuf>,
    /// A reload replaces every serving process.
    #[serde(default)]
    pub reloads: bool,
    /// Its master executes itself at a reload.
    #[serde(default)]
    pub executes_itself: bool,
    /// For a server that shows a title: its command line and environment were seen, not assumed.
    #[serde(default)]
    pub launch_is_known: bool,
    /// It keeps its old workers if it cannot use a configuration.
    #[serde(default)]
    pub survives: bool,
    /// The log in which it says why it did not use a configuration.
    #[serde(default)]
    pub error_log: Option<PathBuf>,
    /// The file of lastdrop's on which the changed server runs.
    pub own_file: PathBuf,
    /// Addresses on which the server listened.
    #[serde(default)]
    pub listeners: Vec<SocketAddr>,
    pub settings: Settings,
    /// The server is in use: changes made by a reload are undone by a reload.
    pub live: bool,
    /// It was restarted with other settings: only another restart is sure to undo that.
    pub restarted: bool,
    pub url: Option<Url>,
    pub status: Option<u16>,
    /// Users whose files were trusted like root's (--trust).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trusted_users: Vec<u32>,
    /// Set if it is changed together with other servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<StackPlace>,
    /// Where its output goes.
    #[serde(default)]
    pub streams: Streams,
    #[serde(skip)]
    pub path: PathBuf,
}

/// Position of a server among those that are changed together, each with its own journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackPlace {
    /// Id of the stack, the same in all its journals.
    pub stack: String,
    /// The server's name in the stack.
    pub called: String,
    /// From 0 in the order of changes; servers are restored in reverse order.
    pub place: usize,
}

pub const JOURNAL_SCHEMA: &str = "lastdrop.journal/1";

impl Journal {
    /// Writes the journal; when this returns, it is completely on disk.
    pub fn write(&self) -> Result<(), ServerError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| self.error(e.to_string()))?;
        write_durably(&self.path, text.as_bytes()).map_err(|e| self.error(e.to_string()))
    }

    fn error(&self, what: String) -> ServerError {
        ServerError::Journal { path: self.path.clone(), what }
    }

    pub fn read(path: &Path) -> Result<Journal, ServerError> {
        let bytes = read_bytes(path)?;
        let mut journal = parse(&bytes).map_err(|fault| unusable(path, &bytes, fault))?;
        journal.path = path.to_path_buf();
        Ok(journal)
    }

    /// True if the server survives only with a configuration that passes its test. A server that is only reloaded keeps
    /// its old state, unless its master executes itself.
    pub fn has_to_pass(&self) -> bool {
        !self.reloads || self.executes_itself
    }

    /// All command lines with which the server may be running.
    pub fn argvs(&self) -> Vec<&[String]> {
        let own = [&self.birth.argv, &self.changed_argv];
        own.into_iter().chain(&self.tried_argvs).map(Vec::as_slice).collect()
    }

    pub fn stop_signal(&self) -> Result<Signal, ServerError> {
        let signal = self.stop_signal.map_or(Ok(Signal::SIGTERM), Signal::try_from);
        signal.map_err(|e| ServerError::Setting(format!("the journal's stop signal: {e}")))
    }

    /// Removes the journal: the change is undone or meant to stay.
    pub fn remove(&self) -> Result<(), ServerError> {
        // A kill may have left a partial journal with the same passwords.
        let removed = remove_if_there(&unfinished(&self.path)).and_then(|()| remove_if_there(&self.path));
        removed.map_err(|e| self.error(e.to_string()))
    }

    /// All journals of killed runs, by name.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn all() -> Result<Vec<PathBuf>, ServerError> {
        Journal::all_named("journal")
    }

    /// All journals of caches that were kept.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn all_of_caches() -> Result<Vec<PathBuf>, ServerError> {
        Journal::all_named("cache")
    }

    fn all_named(extension: &str) -> Result<Vec<PathBuf>, ServerError> {
        let folder = state_folder()?;
        match check_folder(&folder) {
            Err(e) if e.is_not_found() => return Ok(Vec::new()),
            checked => checked?,
        }
        match fs::read_dir(&folder) {
            Ok(entries) => {
                // Close what an older version left open to other users.
                let _ = keep_to_ourselves(&folder);
                let mut paths: Vec<PathBuf> = entries
                    .filter_map(Result::ok)
                    .map(|e| e.path())
                    .filter(|p| p.extension().is_some_and(|e| e == extension))
                    .collect();
                paths.sort();
                Ok(paths)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(ServerError::io(format!("cannot read {}", folder.display()))(e)),
        }
    }
}

/// A journal contains the former content of edited files.
const MOST_JOURNAL_BYTES: u64 = 256 << 20;

/// Reads a journal that only root and the user of lastdrop can have written, because its content is executed.
///
/// # Errors
/// With owner and mode if it belongs to another user.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, ServerError> {
    TrustedFile::open(path).and_then(|file| file.read(MOST_JOURNAL_BYTES)).map_err(|e| match e {
        lastdrop_files::FileError::Io { source, .. } => {
            ServerError::io(format!("cannot read the journal {}", path.display()))(source)
        }
        e => ServerError::Journal { path: path.into(), what: e.to_string() },
    })
}

/// Why a journal cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalFault {
    #[error("it is empty")]
    Empty,
    #[error("it ends in the middle, in line {line}")]
    Cut { line: usize },
    #[error("it is no journal: {0}")]
    Other(String),
    #[error("it is a {schema}, which this lastdrop does not know")]
    Version { schema: String },
}

fn parse(bytes: &[u8]) -> Result<Journal, JournalFault> {
    parse_as(bytes, JOURNAL_SCHEMA)
}

/// Reads a journal of this schema.
pub fn parse_as<T: DeserializeOwned>(bytes: &[u8], known: &str) -> Result<T, JournalFault> {
    if bytes.iter().all(|b| b.is_ascii_whitespace() || *b == 0) {
        return Err(JournalFault::Empty);
    }
    let fault = |e: serde_json::Error| match e.classify() {
        serde_json::error::Category::Eof => JournalFault::Cut { line: e.line() },
        _ => JournalFault::Other(e.to_string()),
    };
    let value: serde_json::Value = lastdrop_model::read_json(bytes).map_err(fault)?;
    match value.get("schema").and_then(serde_json::Value::as_str) {
        Some(schema) if schema != known => return Err(JournalFault::Version { schema: schema.into() }),
        _ => {}
    }
    lastdrop_model::read_json(bytes).map_err(fault)
}

/// One server's files in the state folder, named after it.
#[derive(Debug, Clone)]
pub struct StateFiles {
    pub journal: PathBuf,
    /// The journal of a cache that was kept.
    pub cache: PathBuf,
    pub lock: PathBuf,
    pub trial: PathBuf,
    pub kept: PathBuf,
    pub test: PathBuf,
}

impl StateFiles {
    pub fn of(server: &str) -> Result<StateFiles, ServerError> {
        let folder = state_folder()?;
        let cannot = || {
            let what = format!("cannot use {} for the journal (LASTDROP_STATE names another folder)", folder.display());
            ServerError::io(what)
        };
        // Nothing is created in a folder that another user may change.
        let existing = folder.ancestors().find(|f| f.exists() || f.as_os_str().is_empty()).unwrap_or(Path::new("/"));
        check_folder(existing).map_err(|e| cannot()(e.into()))?;
        make_folder(&folder).map_err(cannot())?;
        check_folder(&folder).map_err(|e| cannot()(e.into()))?;
        Ok(StateFiles::named(&folder, &name_of(server)))
    }

    fn named(folder: &Path, name: &str) -> StateFiles {
        let file = |suffix: &str| folder.join(format!("{name}{suffix}"));
        StateFiles {
            journal: file(".journal"),
            cache: file(".cache"),
            lock: file(".lock"),
            trial: file(".trial.conf"),
            kept: file(".kept.conf"),
            test: file(".test.conf"),
        }
    }

    /// The files that belong to a journal.
    pub fn beside(journal: &Path) -> StateFiles {
        let name = journal.file_stem().unwrap_or_default().to_string_lossy();
        StateFiles::named(journal.parent().unwrap_or(Path::new("")), &name)
    }

    /// Removes partial files of a killed process. Needs the lock.
    pub fn tidy(&self) {
        let half_written =
            [&self.journal, &self.cache, &self.trial, &self.kept, &self.test].map(|file| unfinished(file));
        for file in half_written.iter().chain([&self.test]) {
            let _ = remove_if_there(file);
        }
        // A trial file without a journal is obsolete, but a server that still runs on it needs it for its next reload.
        let in_use = || process::all().iter().any(|p| p.argv.iter().any(|word| Path::new(word) == self.trial));
        if self.trial.exists() && !self.journal.exists() && !in_use() {
            let _ = remove_if_there(&self.trial);
        }
    }
}

/// Base name of a server's files.
fn name_of(server: &str) -> String {
    server.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Removes what killed runs left besides journals: partial files, and locks that no process holds.
pub fn tidy_all() -> Result<(), ServerError> {
    let folder = state_folder()?;
    if check_folder(&folder).is_err() {
        return Ok(());
    }
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
    let suffixes = [
        ".lock",
        ".journal.new",
        ".cache.new",
        ".trial.conf",
        ".trial.conf.new",
        ".kept.conf.new",
        ".test.conf",
        ".test.conf.new",
    ];
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let names: BTreeSet<String> =
        names.filter_map(|name| suffixes.iter().find_map(|s| name.strip_suffix(s)).map(str::to_string)).collect();
    for files in names.iter().map(|name| StateFiles::named(&folder, name)) {
        // A process at work needs them.
        if let Ok(_lock) = Lock::take(&files.lock) {
            files.tidy();
        }
    }
    Ok(())
}

/// Held while a server may be changed. The kernel releases it when the process ends, however it ends. The file is
/// removed with the lock.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: Flock<File>,
}

/// A child of a killed holder keeps the lock from its fork to its exec, which takes a moment on a busy machine.
const DEAD_HOLDER_PATIENCE: Duration = Duration::from_secs(10);

impl Lock {
    pub fn take(path: &Path) -> Result<Lock, ServerError> {
        let deadline = Instant::now() + DEAD_HOLDER_PATIENCE;
        loop {
            let file = TrustedFile::create(path)
                .map_err(|e| ServerError::io(format!("cannot open the lock {}", path.display()))(io::Error::from(e)))?;
            match Flock::lock(file.into_file(), FlockArg::LockExclusiveNonblock) {
                // The previous holder may have removed the file between our open and our lock. Then we hold a deleted
                // file, and another process may hold the present one.
                Ok(lock) if !is_at(&lock, path) => {}
                Ok(mut lock) => {
                    let _ = lock.set_len(0);
                    let _ = writeln!(*lock, "{}", std::process::id());
                    return Ok(Lock { path: path.to_path_buf(), _file: lock });
                }
                Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                    let mut text = String::new();
                    let _ = file.read_to_string(&mut text);
                    let pid = text.trim().to_string();
                    if is_alive(&pid) || Instant::now() > deadline {
                        return Err(ServerError::Locked { pid });
                    }
                    thread::sleep(Duration::from_millis(50));
                }
                Err((_, e)) => return Err(ServerError::io(format!("cannot lock {}", path.display()))(e.into())),
            }
        }
    }

    /// True if a running process holds the lock.
    pub fn is_held(path: &Path) -> bool {
        /// A lock file contains a pid.
        const MOST_BYTES: u64 = 64;
        let bytes = TrustedFile::open(path).and_then(|file| file.read(MOST_BYTES));
        bytes.is_ok_and(|pid| is_alive(String::from_utf8_lossy(&pid).trim()))
    }
}

/// Takes the locks of several servers in order of name: of two processes that want the same locks, the first gets all.
pub fn lock_all<'a>(servers: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, Result<Lock, ServerError>> {
    let in_order: BTreeSet<&str> = servers.into_iter().collect();
    let lock = |name: &str| StateFiles::of(name).and_then(|files| Lock::take(&files.lock));
    in_order.into_iter().map(|name| (name.to_string(), lock(name))).collect()
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the lock is released: until then, no other process can have created the file.
        let _ = remove_if_there(&self.path);
    }
}

fn is_alive(pid: &str) -> bool {
    pid.parse().is_ok_and(|p| process::look(p).is_some_and(|p| p.state != 'Z'))
}

/// True if the open file is still the one with this name.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    file.metadata().ok().map(id).is_some_and(|open| fs::symlink_metadata(path).ok().map(id) == Some(open))
}

/// The error about an unusable journal: which server it was about, and what a person can do without it.
fn unusable(path: &Path, bytes: &[u8], fault: JournalFault) -> ServerError {
    let text = String::from_utf8_lossy(bytes);
    let files = StateFiles::beside(path);
    let server = value_of(&text, "server");
    let about = server.clone().unwrap_or_else(|| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        format!("a server whose name its file has: {name}")
    });
    let mut by_hand = Vec::new();
    let trial = files.trial.display();
    if files.trial.exists() {
        by_hand.push(format!("a server that was started on {trial} (ps -ef) has changed settings: stop it"));
    }
    by_hand.push(match value_of(&text, "included_file") {
        Some(file) => format!("take {file} away, if it is there"),
        None if text.contains("\"edited\": [\n") => {
            "what stood in files of the server before they were edited is in the journal, as far as that goes: look at them"
                .into()
        }
        None => "take zz-lastdrop.conf away, if it is in a folder that the server's configuration includes".into(),
    });
    by_hand.push("start the server as it is always started, or reload it".into());
    ServerError::BrokenJournal { path: path.to_path_buf(), fault, about, by_hand: by_hand.join(";\n  ") }
}

/// Reads a field's value from the readable part of a journal, by its lines.
fn value_of(text: &str, field: &str) -> Option<String> {
    let begins = format!("\"{field}\": ");
    let value = text.lines().find_map(|l| l.trim_start().strip_prefix(&begins))?;
    lastdrop_model::read_json(value.trim_end_matches(',')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_leaves_no_file() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("server.lock");
        let (inside, most, turns) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while turns.load(Ordering::SeqCst) < 400 {
                        // The lock is held by this process, which is alive: taking it fails and is retried.
                        let Ok(_lock) = Lock::take(&path) else { continue };
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.load(Ordering::SeqCst), 1, "two held it at once");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
    }

    #[test]
    fn a_journal_that_says_nothing_says_how() {
        assert_eq!(parse(b" \n").err(), Some(JournalFault::Empty));
        assert_eq!(parse(b"\0\0\0").err(), Some(JournalFault::Empty));
        assert_eq!(parse(b"{\n\"schema\": \"lastdrop.jou").err(), Some(JournalFault::Cut { line: 2 }));
        assert!(matches!(parse(b"hello").err(), Some(JournalFault::Other(_))));
        let schema = "lastdrop.journal/9".to_string();
        assert_eq!(parse(b"{\"schema\":\"lastdrop.journal/9\"}").err(), Some(JournalFault::Version { schema }));
    }

    #[test]
    fn what_a_cut_journal_still_says_is_told() {
        let text =
            "{\n  \"schema\": \"lastdrop.journal/1\",\n  \"server\": \"apache:/etc/a.conf\",\n  \"stage\": \"cha";
        let error =
            unusable(Path::new("/x/apache-.journal"), text.as_bytes(), JournalFault::Cut { line: 4 }).to_string();
        for part in ["/x/apache-.journal", "line 4", "apache:/etc/a.conf", "zz-lastdrop.conf", "--forget"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
