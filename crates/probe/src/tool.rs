//! Other programs that lastdrop executes, and the list of all of them: each document names the programs that were
//! executed for it.
//!
//! If lastdrop runs as root, its own tools (perf, strace, systemctl, ssh, nats-server) are searched only in the
//! system's folders. So no folder of a user's PATH can substitute another program. Variables that make a program load
//! code are removed from their environment.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use lastdrop_model::ExecutedProgram;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// Folders of the system's programs, in their usual order.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

static EXECUTED: Mutex<Vec<ExecutedProgram>> = Mutex::new(Vec::new());

/// Logs that a program is executed, as which user and for what. Repetitions are not logged again.
pub fn log(program: &Path, uid: u32, why: &str) {
    let one = ExecutedProgram { program: program.display().to_string(), uid, why: why.into() };
    let mut all = EXECUTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !all.contains(&one) {
        all.push(one);
    }
}

/// Returns all programs that this process has executed so far.
#[must_use]
pub fn executed() -> Vec<ExecutedProgram> {
    EXECUTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Finds the file of one of our own tools: in the system's folders for root, anywhere in PATH for others.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let own = std::env::var("PATH").ok().filter(|_| !nix::unistd::geteuid().is_root());
    let folders = own.unwrap_or_else(|| PATH.into());
    let is_program = |path: &PathBuf| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    folders
        .split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| Path::new(folder).join(name))
        .find(is_program)
}

/// Returns a command for one of our own tools, with a clean environment. Its execution is logged.
///
/// # Errors
/// "Not found", if it is not installed.
pub fn command(name: &str, why: &str) -> std::io::Result<Command> {
    Ok(clean_command(&find(name).ok_or(std::io::ErrorKind::NotFound)?, why))
}

/// Like `command`, for a program that the user names: a path, or a name that is looked up like a tool.
///
/// # Errors
/// "Not found", if no program has that name.
pub fn named(program: &str, why: &str) -> std::io::Result<Command> {
    if program.contains('/') { Ok(clean_command(Path::new(program), why)) } else { command(program, why) }
}

/// Returns a command that executes lastdrop again, with a clean environment. Its execution is logged.
#[must_use]
pub fn ourselves(why: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = clean_command(Path::new("/proc/self/exe"), why);
    command.arg0("lastdrop");
    command
}

/// In a child between fork and exec: makes it receive a signal when the thread that started it ends.
///
/// It must come last, because the kernel clears this when rights change. `parent` is the process that started it.
///
/// # Errors
/// If that process has ended before the kernel was told. A parent outside the child's PID namespace is not checked.
pub fn end_with_parent(parent: Pid, signal: Signal) -> std::io::Result<()> {
    nix::sys::prctl::set_pdeathsig(signal)?;
    let now = nix::unistd::getppid();
    if now == parent || now.as_raw() == 0 { Ok(()) } else { Err(Errno::ESRCH.into()) }
}

/// The only place that makes a command for a tool.
#[allow(clippy::disallowed_methods)]
fn clean_command(program: &Path, why: &str) -> Command {
    let shown = std::fs::canonicalize(program).unwrap_or_else(|_| program.into());
    log(&shown, nix::unistd::geteuid().as_raw(), why);
    let mut command = Command::new(program);
    clean(&mut command);
    command
}

/// Removes from a command's environment the variables that make a program load code or configuration.
pub fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_none_or(loads_code) {
            command.env_remove(&name);
        }
    }
    if nix::unistd::geteuid().is_root() {
        command.env("PATH", PATH);
    }
}

/// Prefixes of variables by which loaders, libraries and interpreters load code or files.
const LOAD_CODE: &[&str] = &[
    "ASAN_",
    "BASH",
    "BUNDLE",
    "CLASSPATH",
    "COMPlus_",
    "CORECLR_",
    "COR_",
    "DOTNET_",
    "ELIXIR_",
    "ERL_",
    "GCONV_PATH",
    "GEM_",
    "GETCONF_DIR",
    "GIT_",
    "GLIBC_TUNABLES",
    "GODEBUG",
    "HOSTALIASES",
    "IFS",
    "JAVA_",
    "JDK_",
    "LD_",
    "LLVM_PROFILE_FILE",
    "LOCALDOMAIN",
    "LOCPATH",
    "LSAN_",
    "LUA_",
    "MALLOC_",
    "NLSPATH",
    "NODE_",
    "NPM_",
    "OPENSSL_",
    "PERF_",
    "PERL",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "PS4",
    "PYTHON",
    "RESOLV_",
    "RES_OPTIONS",
    "RUBY",
    "SHELLOPTS",
    "SSLKEYLOGFILE",
    "TSAN_",
    "TZDIR",
    "UBSAN_",
    "_JAVA_",
    "npm_",
];

/// Returns true if a variable of this name makes some program load code or configuration.
#[must_use]
pub fn loads_code(name: &str) -> bool {
    matches!(name, "ENV" | "CDPATH" | "PROMPT_COMMAND")
        || name.ends_with("_PRELOAD")
        || LOAD_CODE.iter().any(|begins| name.starts_with(begins))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_load_code_are_known() {
        for name in ["LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "PERL5LIB", "PYTHONPATH", "RUBYOPT", "NODE_OPTIONS", "ENV"]
        {
            assert!(loads_code(name), "{name}");
        }
        for name in ["APACHE_RUN_USER", "PORT", "ENVIRONMENT", "DATABASE_URL", "SSH_AUTH_SOCK", "TERM"] {
            assert!(!loads_code(name), "{name}");
        }
    }

    #[test]
    fn a_command_for_a_tool_has_a_clean_environment_and_is_listed() {
        let at_path = named("/bin/sh", "a path").expect("no look-up");
        let found = named("sh", "a name").expect("there is a shell");
        assert!(Path::new(found.get_program()).is_absolute() && named("no-such-program-here", "").is_err());
        for command in [at_path, found, ourselves("again")] {
            let passes = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
                value.is_some() && name.to_str().is_none_or(loads_code)
            };
            assert!(!command.get_envs().any(passes), "{command:?}");
        }
        let own = std::env::current_exe().and_then(std::fs::canonicalize).expect("this program");
        assert!(executed().iter().any(|one| one.program == own.display().to_string() && one.why == "again"));
    }

    #[test]
    fn what_is_executed_is_listed_once() {
        for _ in 0..2 {
            log(Path::new("/bin/a-test"), 7, "a reason");
        }
        assert_eq!(executed().iter().filter(|one| one.program == "/bin/a-test").count(), 1);
    }

    #[test]
    fn a_child_whose_parent_ended_before_it_could_tell_the_kernel_does_not_start() {
        use std::os::unix::process::CommandExt;
        let start = |parent: Pid| {
            let mut command = clean_command(Path::new("/bin/true"), "a test");
            // SAFETY: only system calls between fork and exec.
            unsafe { command.pre_exec(move || end_with_parent(parent, Signal::SIGKILL)) };
            command.status()
        };
        assert!(start(Pid::this()).expect("it starts").success());
        let other = start(nix::unistd::getppid()).expect_err("started by another process");
        assert_eq!(other.raw_os_error(), Some(Errno::ESRCH as i32));
    }
}
