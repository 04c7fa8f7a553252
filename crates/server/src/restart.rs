//! Stops a server and starts it again as it had been started: program, command line, environment, folder, user, limits,
//! CPUs, cgroup.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_files::step;
use lastdrop_probe::process::{self, Birth, ProcessInfo};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::streams::Streams;
use crate::{ServerError, execution};

const POLL: Duration = Duration::from_millis(20);
/// A server that does not detach itself must live this long: until it has read its configuration it is alive, whatever
/// the configuration says.
const STAYS: Duration = Duration::from_millis(50);
/// A master that has not ended by then is killed with its workers.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// If the environment is unknown, the new process at least needs PATH to find programs, and room for its title, which
/// masters write over command line and environment.
pub use lastdrop_probe::tool::PATH;

/// What a server is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Empty if unknown: the server shows a title instead.
    pub argv: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Launch {
    pub fn as_found(birth: &Birth) -> Launch {
        Launch { argv: birth.argv.clone(), environment: birth.environment.clone() }
    }
}

/// All processes of the server, masters and workers: same program, same pid namespace, one of its command lines.
pub fn family(birth: &Birth, argvs: &[&[String]]) -> Vec<ProcessInfo> {
    let own_namespace = pid_namespace("self");
    process::all()
        .into_iter()
        .filter(|p| p.exe.as_ref().is_some_and(|e| same_program(e, &birth.exe)))
        .filter(|p| argvs.iter().any(|a| birth.is_shown_as(a, &p.argv)))
        .filter(|p| !birth.relative || was_started_in(p, &birth.directory))
        // A container's server may have the same program and command line, but is not ours.
        .filter(|p| pid_namespace(&p.pid.to_string()) == own_namespace)
        .collect()
}

/// A worker may be in a chroot; its master is not.
fn was_started_in(p: &ProcessInfo, folder: &Path) -> bool {
    let is_in = |pid: i32| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|at| at == folder);
    is_in(p.pid) || is_in(p.parent)
}

fn pid_namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// Compares programs. After an upgrade, the running program's file is deleted, and the kernel appends that to its name.
pub fn same_program(a: &Path, b: &Path) -> bool {
    let plain = |p: &Path| p.to_string_lossy().trim_end_matches(" (deleted)").to_string();
    plain(a) == plain(b)
}

/// Processes of a family whose parent is not in it.
pub fn masters(family: &[ProcessInfo]) -> Vec<&ProcessInfo> {
    family.iter().filter(|p| !family.iter().any(|q| q.pid == p.parent)).collect()
}

/// Sends `signal` to the master and waits until all its processes are gone.
pub fn stop(birth: &Birth, argvs: &[&[String]], signal: Signal) -> Result<(), ServerError> {
    let deadline = Instant::now() + STOP_TIMEOUT;
    let mut told: Vec<i32> = Vec::new();
    let mut seen: BTreeMap<i32, u64> = BTreeMap::new();
    let mut empty_looks = 0;
    loop {
        let family = family(birth, argvs);
        seen.extend(family.iter().map(|p| (p.pid, p.start_ticks)));
        // A process that ends loses its command line before it releases its sockets.
        seen.retain(|pid, ticks| process::look(*pid).is_some_and(|p| p.start_ticks == *ticks && p.state != 'Z'));
        if family.is_empty() && seen.is_empty() {
            empty_looks += 1;
            // While a server detaches itself, it is between two processes for a moment.
            if empty_looks >= 3 {
                return Ok(());
            }
        } else {
            empty_looks = 0;
        }
        let late = Instant::now() > deadline;
        for p in masters(&family) {
            if late || !told.contains(&p.pid) {
                told.push(p.pid);
                let signal = if late { Signal::SIGKILL } else { signal };
                step();
                if let Err(nix::Error::EPERM) = kill(Pid::from_raw(p.pid), signal) {
                    return Err(ServerError::Permission { what: format!("cannot end process {}", p.pid) });
                }
            }
        }
        if late {
            for p in &family {
                let _ = kill(Pid::from_raw(p.pid), Signal::SIGKILL);
            }
            if Instant::now() > deadline + Duration::from_secs(5) {
                return Err(ServerError::Timeout {
                    what: "the server did not end".into(),
                    limit: STOP_TIMEOUT,
                    advice: "look at its processes with ps, and at its error log".into(),
                });
            }
        }
        thread::sleep(POLL);
    }
}

/// Checks that it is known how the server is started, and that lastdrop may start it. Call it before the server is
/// stopped.
pub fn check_known(birth: &Birth, launch: &Launch) -> Result<(), ServerError> {
    execution::check_start(birth)?;
    if !launch.argv.is_empty() {
        return Ok(());
    }
    let shown = birth.shown.as_deref().unwrap_or_default();
    Err(ServerError::NotFound {
        what: format!("the server shows '{shown}' instead of its command line, and nobody can tell how it was started"),
        advice: "start it again as it is always started, then: lastdrop restore".into(),
    })
}

/// Starts the server with its former output streams and waits for its master. Returns the master's pid.
pub fn start(birth: &Birth, launch: &Launch, streams: &Streams, daemonizes: bool) -> Result<i32, ServerError> {
    let argv = launch.argv.as_slice();
    let birth = &Birth { environment: launch.environment.clone(), ..birth.clone() };
    let deadline = Instant::now() + START_TIMEOUT;
    let shown = argv.join(" ");
    let (tell, ended) = mpsc::channel();
    let attached = |hear_errors| {
        step();
        let mut command = command(birth, argv, hear_errors).map_err(io::Error::other)?;
        streams.attach(&mut command, birth, hear_errors).map(|()| command)
    };
    if daemonizes {
        // The port may become free only a moment after the old server has gone.
        loop {
            let (success, said) = attached(true)
                .and_then(start_daemon)
                .map_err(ServerError::io(format!("cannot start {}", birth.exe.display())))?;
            if success {
                break;
            }
            if said.contains("Address already in use") && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(200));
                continue;
            }
            return Err(ServerError::ConfigTest { command: shown, output: said });
        }
    } else {
        let mut child = attached(false)
            .and_then(|mut command| command.spawn())
            .map_err(ServerError::io(format!("cannot start {}", birth.exe.display())))?;
        // The child must be waited for, or its process entry stays for as long as lastdrop runs.
        thread::spawn(move || tell.send(child.wait()));
    }
    let mut there: Option<(i32, Instant)> = None;
    loop {
        let end = ended.try_recv();
        let family = family(birth, &[argv]);
        // A server that does not detach itself and has ended will not come up.
        if let (Ok(status), true) = (end, family.is_empty()) {
            let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
            return Err(ServerError::Ended { command: shown, status });
        }
        if let [master] = masters(&family).as_slice()
            && process::look(master.pid).is_some_and(|p| p.state != 'Z')
        {
            let (pid, since) = there.filter(|(pid, _)| *pid == master.pid).unwrap_or((master.pid, Instant::now()));
            if daemonizes || since.elapsed() >= STAYS {
                return Ok(pid);
            }
            there = Some((pid, since));
        }
        if Instant::now() > deadline {
            return Err(ServerError::Timeout {
                what: format!("the server did not start ({shown})"),
                limit: START_TIMEOUT,
                advice: "look at its error log".into(),
            });
        }
        thread::sleep(POLL);
    }
}

/// Longest time to read a program's remaining output after it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs a program that detaches itself until the started process has ended. Returns whether it succeeded, and its
/// output. A process that it leaves running may hold its standard error open forever.
fn start_daemon(mut command: Command) -> io::Result<(bool, String)> {
    let mut child = command.spawn()?;
    let (tell, said) = mpsc::channel();
    let errors = child.stderr.take();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut errors = errors;
        while let Some(Ok(n @ 1..)) = errors.as_mut().map(|e| e.read(&mut buffer)) {
            if tell.send(buffer[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    let status = child.wait()?;
    let deadline = Instant::now() + if status.success() { Duration::ZERO } else { LAST_WORDS };
    let mut all = Vec::new();
    while let Ok(part) = said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        all.extend(part);
    }
    Ok((status.success(), String::from_utf8_lossy(&all).trim().to_string()))
}

/// Returns the command that starts the server again with everything except its standard streams. They are /dev/null,
/// but standard error may be captured.
///
/// # Errors
/// If it may not be started from here.
pub fn command(birth: &Birth, argv: &[String], keep_output: bool) -> Result<Command, ServerError> {
    let mut command = execution::start(birth, argv)?;
    command.stdout(Stdio::null());
    command.stderr(if keep_output { Stdio::piped() } else { Stdio::null() });
    Ok(command)
}
