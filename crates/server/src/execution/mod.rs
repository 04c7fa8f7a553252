//! The only place that executes a program for a server: to ask it something, to start a second instance, to start it
//! again.
//!
//! What a process shows of itself is a claim of its owner. Therefore a program is executed with the rights of the
//! process that it stands for (`rights`), and a question in an environment of lastdrop's (`environment`). It gets
//! root's rights only if root alone could have written what it executes (`trust`). Each execution is logged.

mod bounded;
mod environment;
mod process_attributes;
mod rights;
mod trust;

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lastdrop_probe::identity::Identity;
use lastdrop_probe::process::{self, Birth};
pub use lastdrop_probe::reader::Reader;
use lastdrop_probe::tool;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

pub use bounded::ProgramOutput;
use process_attributes::ProcessAttributes;
pub use process_attributes::cgroup_file;
pub use rights::Rights;
use trust::Checker;
pub use trust::{trust_user, trusted_users};

use crate::ServerError;

/// Longest time for a program to describe itself.
const LIMIT: Duration = Duration::from_secs(10);
/// Users of whom a program did not answer in time. They are not asked again, because each could have a hundred such
/// programs.
static SILENT: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// If true, servers are only read from outside and none of their programs is executed.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// If true, this process is in a container with the rights of a process there, and ownership of its files is not
/// checked.
static CONTAINED: AtomicBool = AtomicBool::new(false);

/// Forbids this process to execute a server's program from now on.
pub fn forbid() {
    FORBIDDEN.store(true, Ordering::Relaxed);
}

/// Declares that this process has the rights of a container's process and nothing of the host's to protect.
pub(crate) fn be_contained() {
    CONTAINED.store(true, Ordering::Relaxed);
}

/// The file of a running program, without the " (deleted)" that the kernel appends after an upgrade.
pub fn program_of(birth: &Birth) -> PathBuf {
    PathBuf::from(birth.exe.to_string_lossy().trim_end_matches(" (deleted)"))
}

/// A call of a server's program to ask it something.
#[derive(Debug, Clone)]
pub struct Question {
    birth: Birth,
    program: PathBuf,
    name: Option<String>,
    words: Vec<String>,
    /// Files, besides the program and its libraries, that decide what it executes.
    code: Vec<PathBuf>,
    likeness: bool,
    /// Processes whose memory it reads.
    read: Option<Vec<i32>>,
    /// A process whose mounted file systems it sees.
    mounts_of: Option<i32>,
    limit: Duration,
    why: &'static str,
}

impl Question {
    /// Prepares a call of a running server's program. `why` states the purpose in the list of executed programs.
    pub fn new(birth: &Birth, why: &'static str) -> Question {
        let birth = Birth { environment: environment::of_question(&birth.environment), ..birth.clone() };
        let program = program_of(&birth);
        Question {
            birth,
            program,
            name: None,
            words: Vec::new(),
            code: Vec::new(),
            likeness: false,
            read: None,
            mounts_of: None,
            limit: LIMIT,
            why,
        }
    }

    /// Prepares a call of a tool that reads the memory of processes, or files of their user, with the rights of that
    /// user. If these do not suffice, it gets CAP_SYS_PTRACE too, and nobody but root may have written the tool. It gets
    /// no variables of the server.
    pub fn of_reader(tool: &str, user: &Birth, processes: Vec<i32>, why: &'static str) -> Question {
        let birth = Birth { environment: Vec::new(), directory: "/".into(), ..user.clone() };
        Question { read: Some(processes), ..Question::new(&birth, why).program(Path::new(tool)) }
    }

    /// Executes another program instead, with the same rights; a bare name is looked up in the system's folders.
    pub fn program(mut self, program: &Path) -> Question {
        let name = program.to_string_lossy();
        self.program =
            if name.contains('/') { program.into() } else { tool::find(&name).unwrap_or_else(|| program.into()) };
        self
    }

    /// Sets the whole command line; its first word is the program's name for itself.
    pub fn argv(mut self, argv: &[String]) -> Question {
        self.name = argv.first().cloned();
        self.words = argv.get(1..).unwrap_or_default().to_vec();
        self
    }

    pub fn args<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Question {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    /// Adds files that decide what it executes: its configuration, and code that this names.
    pub fn reads(mut self, files: impl IntoIterator<Item = PathBuf>) -> Question {
        self.code.extend(files);
        self
    }

    /// Sets an environment variable.
    pub fn variable(mut self, name: &str, value: &str) -> Question {
        self.birth.environment.retain(|(known, _)| known != name);
        self.birth.environment.push((name.into(), value.into()));
        self
    }

    /// Uses the server's limits, processors, priority and umask, so that its configuration is tested as it would start.
    pub fn like_the_server(mut self) -> Question {
        self.likeness = true;
        self
    }

    /// Lets it see the file systems that a process of the same user namespace sees, whose /tmp systemd may have made.
    pub fn with_mounts_of(mut self, pid: i32) -> Question {
        self.mounts_of = Some(pid);
        self
    }

    pub fn within(mut self, limit: Duration) -> Question {
        self.limit = limit;
        self
    }

    /// The command line for display.
    pub fn shown(&self) -> String {
        let name = self.name.clone().unwrap_or_else(|| self.program.display().to_string());
        std::iter::once(&name).chain(&self.words).map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// Executes it to its end, for a bounded time, and returns a bounded part of its output.
    ///
    /// # Errors
    /// If it may not be executed (see [`ServerError::NotAsked`]), cannot be, or does not end in time.
    pub fn ask(&self) -> Result<ProgramOutput, ServerError> {
        let uid = self.birth.uid;
        if SILENT.lock().unwrap_or_else(PoisonError::into_inner).contains(&uid) {
            return Err(ServerError::NotAsked {
                program: self.program.display().to_string(),
                why: format!("another program of user {uid} was asked and did not end in time"),
            });
        }
        let command = self.command()?;
        let answer = bounded::run(command, self.limit);
        let cannot = ServerError::io(format!("cannot run {}", self.shown()));
        answer.map_err(cannot)?.ok_or_else(|| {
            if uid != 0 && nix::unistd::geteuid().is_root() {
                SILENT.lock().unwrap_or_else(PoisonError::into_inner).push(uid);
            }
            ServerError::Timeout {
                what: format!("{} did not end", self.shown()),
                limit: self.limit,
                advice: "run it by hand".into(),
            }
        })
    }

    /// Returns the command for a second instance, which runs on for a while.
    ///
    /// # Errors
    /// If it may not be executed.
    pub fn command(&self) -> Result<Command, ServerError> {
        if FORBIDDEN.load(Ordering::Relaxed) {
            return Err(ServerError::NotAsked {
                program: self.program.display().to_string(),
                why: "this lastdrop executes nothing of a server's".into(),
            });
        }
        let rights = match &self.read {
            Some(processes) => Rights::of_reader(&self.birth, processes)?,
            None => Rights::of_question(&self.birth)?,
        };
        if rights.exceeds_user() && self.read.is_some() {
            check_program(&self.program)?;
        } else if rights.uid == 0 {
            let code = self.code.iter().map(PathBuf::as_path);
            check_code(&self.program, &self.birth, code)?;
        }
        tool::log(&self.program, rights.uid, self.why);
        let mut command = plain(&self.program, &self.birth);
        command.args(&self.words);
        if let Some(name) = &self.name {
            command.arg0(name);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mounts = self.mounts_of.map(mounts_of).transpose();
        let mounts = mounts.map_err(ServerError::io("cannot see its file systems"))?.flatten();
        let likeness = self.likeness.then(|| ProcessAttributes::of_question(&self.birth));
        let us = Pid::this();
        // SAFETY: between fork and exec only system calls are made; what they read was allocated before.
        unsafe {
            command.pre_exec(move || {
                prepare()?;
                if let Some(mounts) = &mounts {
                    setns(mounts, CloneFlags::CLONE_NEWNS)?;
                }
                if let Some(likeness) = &likeness {
                    likeness.take();
                }
                rights.take()?;
                tool::end_with_parent(us, Signal::SIGKILL)
            });
        }
        Ok(command)
    }
}

/// Returns the command that starts a server again as it was started, with its own environment and rights.
///
/// # Errors
/// If it may not be started: see [`check_start`].
pub fn start(birth: &Birth, argv: &[String]) -> Result<Command, ServerError> {
    check_start(birth)?;
    let rights = Rights::of_start(birth)?;
    let program = program_of(birth);
    tool::log(&program, rights.uid, "starts the server again");
    let mut command = plain(&program, birth);
    if let Some((name, rest)) = argv.split_first() {
        command.arg0(name).args(rest);
    }
    let likeness = ProcessAttributes::of(birth);
    // SAFETY: as above.
    unsafe {
        command.pre_exec(move || {
            prepare()?;
            likeness.take();
            rights.take()
        });
    }
    Ok(command)
}

/// Checks that a server may be started again from here. Call it before the server is stopped.
///
/// # Errors
/// If nothing shows that root started it; if users other than root could have written what root would execute; if the
/// server belongs to another user.
pub fn check_start(birth: &Birth) -> Result<(), ServerError> {
    let rights = Rights::of_start(birth)?;
    if birth.unknown_starter && nix::unistd::geteuid().is_root() {
        return Err(ServerError::NotFound {
            what: format!(
                "process {} runs as user {} and would have to be started as root; it was started as root by nobody that can be shown",
                birth.pid, birth.uid
            ),
            advice: "start it with -W, or with a pid file of root's".into(),
        });
    }
    if rights.uid == 0 {
        check_code(&program_of(birth), birth, birth.code.iter().map(PathBuf::as_path))?;
    }
    Ok(())
}

/// True if the server's claims count like root's: it is root's, or nobody else could have written what it executes.
/// Then its configuration names only what root wrote there.
pub fn counts_as_roots(birth: &Birth) -> bool {
    let code = birth.code.iter().map(PathBuf::as_path);
    birth.uid == 0 || check_code(&program_of(birth), birth, code).is_ok()
}

/// Writes files of a server with the rights of its user, unless the server's claims count like root's. Otherwise a
/// user's configuration could make root write where that user may not.
///
/// # Errors
/// Those of `write`.
pub fn write_for<T>(birth: &Birth, write: impl FnOnce() -> Result<T, ServerError>) -> Result<T, ServerError> {
    if counts_as_roots(birth) {
        return write();
    }
    let _reader = Reader::of(birth);
    write().map_err(|error| match error {
        ServerError::Io { what, source } if source.kind() == io::ErrorKind::PermissionDenied => ServerError::Io {
            what: format!("{what} with the rights of user {}, whose server it is", birth.uid),
            source,
        },
        error => error,
    })
}

/// True if a socket named in a server's configuration may be connected to: its user may, or the server's claims count
/// like root's.
pub fn may_connect(birth: &Birth, socket: &Path) -> bool {
    const LIMIT: Duration = Duration::from_secs(1);
    if counts_as_roots(birth) {
        return true;
    }
    let _reader = Reader::of(birth);
    lastdrop_probe::unix::connect(socket, LIMIT).is_ok()
}

/// Checks that only root could have written a file.
///
/// # Errors
/// With the file or folder that others could change.
pub fn check_roots(file: &Path) -> Result<(), String> {
    let words = |found: trust::UntrustedFile| {
        format!(
            "{} (owner {}, mode {:04o}) can be changed by others than root",
            found.path.display(),
            found.owner(),
            found.mode
        )
    };
    Checker::default().check(file).map_err(words)
}

/// True if a pid file that only root can have written names this process.
pub fn is_pid_file_of_root(file: &Path, pid: i32) -> bool {
    let names = |text: String| text.split_whitespace().any(|word| word.parse() == Ok(pid));
    Checker::default().check(file).is_ok() && fs::read_to_string(file).is_ok_and(names)
}

/// Checks that only root could have written what root would execute: the program, the running process's mapped files,
/// its start folder, and the files that decide the rest.
fn check_code<'a>(program: &Path, birth: &Birth, code: impl Iterator<Item = &'a Path>) -> Result<(), ServerError> {
    if needs_no_check() {
        return Ok(());
    }
    let mut checker = Checker::default();
    let mut check = |path: &Path| {
        // Root already executes lastdrop itself.
        if is_ourselves(path) {
            return Ok(());
        }
        checker.check(path).map_err(|found| not_asked(program, &found, "It is still watched and sized. "))
    };
    check(program)?;
    if process::is_alive(birth.pid, birth.start_ticks) {
        for file in trust::mapped_by(birth.pid) {
            check(&file)?;
        }
    }
    for file in code {
        check(&birth.directory.join(file))?;
    }
    Ok(())
}

/// Checks that only root could have written a program that reads the memory of others' processes.
fn check_program(program: &Path) -> Result<(), ServerError> {
    if needs_no_check() {
        return Ok(());
    }
    Checker::default().check(program).map_err(|found| not_asked(program, &found, ""))
}

/// True if lastdrop has no rights that a program could abuse.
fn needs_no_check() -> bool {
    CONTAINED.load(Ordering::Relaxed) || !nix::unistd::geteuid().is_root()
}

/// The error for a file that others than root could have written. `remains`: a sentence about what is still possible.
fn not_asked(program: &Path, found: &trust::UntrustedFile, remains: &str) -> ServerError {
    let (path, owner) = (found.path.display(), found.owner());
    let trusted = if found.uid != 0 && found.is_owners_alone() {
        format!(", or trust that user: --trust {owner}")
    } else {
        String::new()
    };
    ServerError::NotAsked {
        program: program.display().to_string(),
        why: format!(
            "{path} (owner {owner}, mode {:04o}) can be changed by others than root. {remains}Give it to root alone{trusted}",
            found.mode
        ),
    }
}

fn is_ourselves(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    id(path).is_some_and(|own| id(Path::new("/proc/self/exe")) == Some(own))
}

/// A command in the folder and with the environment of a birth, without standard input.
#[allow(clippy::disallowed_methods)]
fn plain(program: &Path, birth: &Birth) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(birth.environment.iter().map(|(name, value)| (name, value)));
    // If its folder has been removed since it was started, it runs in the root folder.
    let directory = if birth.directory.is_dir() { birth.directory.as_path() } else { Path::new("/") };
    command.current_dir(directory).stdin(Stdio::null());
    command
}

/// The mount namespace of a process, if it is not ours and we may enter it. Only a process with root's rights here can
/// have made it.
fn mounts_of(pid: i32) -> io::Result<Option<fs::File>> {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt"));
    if !nix::unistd::geteuid().is_root() || namespace(&pid.to_string())? == namespace("self")? {
        return Ok(None);
    }
    if !Identity::of(pid).is_ok_and(|identity| identity.is_of_our_namespace()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    fs::File::open(format!("/proc/{pid}/ns/mnt")).map(Some)
}

/// In the child: creates a session, closes lastdrop's descriptors, resets signals to their defaults.
fn prepare() -> io::Result<()> {
    let _ = nix::unistd::setsid();
    // SAFETY: plain calls; the signal set lives for the call. Descriptors are closed at exec, because the one that
    // reports an error is needed until then.
    unsafe {
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
    Ok(())
}
