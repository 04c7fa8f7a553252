//! What is needed to undo a change, on disk before the change is made; and the lock that keeps two at bay.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{Settings, Url};
use lastdrop_probe::process::{self, Birth};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::ServerError;

/// Where journals, locks and overrides live: /var/lib/lastdrop for root, the user's state folder otherwise.
/// LASTDROP_STATE names another.
///
/// # Errors
/// When there is no such place.
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

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Everything needed is written down, nothing is changed.
    Armed,
    /// Files or the running server may be changed.
    Changed,
}

/// What the server was before the first change.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Journal {
    pub schema: String,
    /// The server, as in [`crate::Facts::name`].
    pub server: String,
    pub stage: Stage,
    pub created_unix_s: u64,
    pub birth: Birth,
    pub daemonizes: bool,
    /// Number of the signal that reloads it.
    pub reload_signal: i32,
    /// Unit by which the service manager restarts it, if one keeps it.
    pub unit: Option<String>,
    /// The command line on our own file.
    pub changed_argv: Vec<String>,
    /// Override in an included folder, and what stood there before (from an earlier `--keep`).
    pub included_file: Option<PathBuf>,
    pub included_before: Option<String>,
    /// The file of ours that the changed server runs on.
    pub own_file: PathBuf,
    pub settings: Settings,
    /// The server is in use: what a reload undoes is undone by a reload.
    pub live: bool,
    /// It was started anew with other settings: only another start undoes that for sure.
    pub restarted: bool,
    pub url: Option<Url>,
    pub status: Option<u16>,
    #[serde(skip)]
    pub path: PathBuf,
}

pub const JOURNAL_SCHEMA: &str = "lastdrop.journal/1";

impl Journal {
    /// Writes it so that it is on disk, whole, before this returns.
    pub fn write(&self) -> Result<(), ServerError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| self.error(e.to_string()))?;
        write_durably(&self.path, text.as_bytes()).map_err(|e| self.error(e.to_string()))
    }

    fn error(&self, what: String) -> ServerError {
        ServerError::Journal { path: self.path.clone(), what }
    }

    pub fn read(path: &Path) -> Result<Journal, ServerError> {
        let error = |what: String| ServerError::Journal { path: path.to_path_buf(), what };
        let text = fs::read_to_string(path).map_err(|e| error(e.to_string()))?;
        let mut journal: Journal = serde_json::from_str(&text).map_err(|e| error(e.to_string()))?;
        journal.path = path.to_path_buf();
        Ok(journal)
    }

    /// Forgets the change: it is undone, or meant to stay.
    pub fn remove(&self) -> Result<(), ServerError> {
        remove_if_there(&self.path).map_err(|e| self.error(e.to_string()))
    }

    /// All journals of killed runs, oldest name first.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn all() -> Result<Vec<PathBuf>, ServerError> {
        let folder = state_folder()?;
        match fs::read_dir(&folder) {
            Ok(entries) => {
                let mut paths: Vec<PathBuf> = entries
                    .filter_map(Result::ok)
                    .map(|e| e.path())
                    .filter(|p| p.extension().is_some_and(|e| e == "journal"))
                    .collect();
                paths.sort();
                Ok(paths)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(ServerError::io(format!("cannot read {}", folder.display()))(e)),
        }
    }
}

/// Replaces a file: the old content or the new, never a part, also after a crash.
pub fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let temporary = folder.join(name);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(folder)?.sync_all()
}

pub fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Files of one server in the state folder, named after it.
#[derive(Debug, Clone)]
pub struct StateFiles {
    pub journal: PathBuf,
    pub lock: PathBuf,
    pub trial: PathBuf,
    pub kept: PathBuf,
    pub test: PathBuf,
}

impl StateFiles {
    pub fn of(server: &str) -> Result<StateFiles, ServerError> {
        let folder = state_folder()?;
        fs::create_dir_all(&folder).map_err(ServerError::io(format!(
            "cannot make {} for the journal (LASTDROP_STATE names another folder)",
            folder.display()
        )))?;
        let name: String =
            server.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let file = |suffix: &str| folder.join(format!("{name}{suffix}"));
        Ok(StateFiles {
            journal: file(".journal"),
            lock: file(".lock"),
            trial: file(".trial.conf"),
            kept: file(".kept.conf"),
            test: file(".test.conf"),
        })
    }
}

/// Held while a server may be changed; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] Flock<File>);

/// A child of a killed holder keeps the lock from its fork to its exec; that takes a moment on a busy machine.
const DEAD_HOLDER_PATIENCE: Duration = Duration::from_secs(10);

impl Lock {
    pub fn take(path: &Path) -> Result<Lock, ServerError> {
        let deadline = Instant::now() + DEAD_HOLDER_PATIENCE;
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(ServerError::io(format!("cannot open the lock {}", path.display())))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(mut lock) => {
                    let _ = lock.set_len(0);
                    let _ = writeln!(*lock, "{}", std::process::id());
                    return Ok(Lock(lock));
                }
                Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                    let mut text = String::new();
                    let _ = file.read_to_string(&mut text);
                    let pid = text.trim().to_string();
                    let alive = pid.parse().is_ok_and(|p| process::look(p).is_some_and(|p| p.state != 'Z'));
                    if alive || Instant::now() > deadline {
                        return Err(ServerError::Locked { pid });
                    }
                    thread::sleep(Duration::from_millis(50));
                }
                Err((_, e)) => return Err(ServerError::io(format!("cannot lock {}", path.display()))(e.into())),
            }
        }
    }
}
