//! The nats-server process, started so that it never outlives lastdrop and stopped in an orderly way.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lastdrop_probe::tool;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::BrokerError;

const PROGRAM: &str = "nats-server";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Returns the version of the installed nats-server.
pub(super) fn version() -> Result<Version, BrokerError> {
    let output = command()?.arg("--version").stdin(Stdio::null()).output().map_err(not_started)?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text).ok_or_else(|| BrokerError::Start(format!("it does not tell its version: {:?}", text.trim())))
}

/// For root, looks in system folders only; for others on the PATH. The environment is clean.
fn command() -> Result<Command, BrokerError> {
    tool::command(PROGRAM, "carries what a fleet says").map_err(not_started)
}

fn not_started(e: io::Error) -> BrokerError {
    match e.kind() {
        io::ErrorKind::NotFound => BrokerError::NotInstalled,
        _ => BrokerError::Start(e.to_string()),
    }
}

/// Parses `nats-server: v2.9.10`, ignoring a distribution's suffix.
fn parse(text: &str) -> Option<Version> {
    let numbers = text
        .split_once('v')
        .and_then(|_| text.split(|c: char| !c.is_ascii_digit() && c != '.').find(|w| w.contains('.')))?;
    let mut numbers = numbers.split('.').map(|n| n.parse().ok());
    Some(Version(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

/// A running or ended nats-server.
#[derive(Debug)]
pub(super) struct NatsServer {
    process: process::Child,
    log: PathBuf,
    since: Instant,
    ended: Option<ExitStatus>,
}

impl NatsServer {
    /// Starts nats-server with the configuration in the folder. It dies with the calling thread.
    pub fn start(folder: &Path) -> Result<NatsServer, BrokerError> {
        let log = folder.join("nats.log");
        let failed = |source| BrokerError::Disk { path: log.clone(), source };
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&log).map_err(failed)?;
        // Do not let the log of earlier starts grow without limit.
        if file.metadata().map_err(failed)?.len() > 8 << 20 {
            file.set_len(0).map_err(failed)?;
        }
        let mut command = command()?;
        // Process lists show the program's name without its path.
        command.arg0(PROGRAM).arg("--config").arg(folder.join("nats.conf")).current_dir(folder);
        command.env_remove("LASTDROP_TOKEN");
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        // Ctrl-C goes to lastdrop, which stops nats-server itself.
        command.process_group(0);
        let us = Pid::this();
        // SAFETY: two async-signal-safe system calls; nothing is allocated.
        unsafe {
            command.pre_exec(move || tool::end_with_parent(us, Signal::SIGTERM));
        }
        let process = command.spawn().map_err(|e| BrokerError::Start(e.to_string()))?;
        Ok(NatsServer { process, log, since: Instant::now(), ended: None })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns how the process ended, if it has.
    pub fn has_ended(&mut self) -> Option<String> {
        if self.ended.is_none() {
            self.ended = self.process.try_wait().ok().flatten();
        }
        self.ended.map(|status| match status.signal() {
            Some(signal) => format!("nats-server was killed by signal {signal}"),
            None => format!("nats-server ended ({status}): {}", self.last_words()),
        })
    }

    /// Returns the end of its log.
    pub fn last_words(&self) -> String {
        let read = || {
            let mut file = std::fs::File::open(&self.log)?;
            let from = file.metadata()?.len().saturating_sub(2_000);
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).into_owned())
        };
        let text = read().unwrap_or_default();
        let lines: Vec<&str> =
            text.lines().filter(|l| l.contains("[FTL]") || l.contains("[ERR]") || l.starts_with(PROGRAM)).collect();
        let last = lines.last().or(text.lines().last().as_ref()).copied().unwrap_or("it says nothing");
        format!("{} ({})", last.trim(), self.log.display())
    }

    /// Makes it reload its configuration.
    pub fn read_again(&self) -> Result<(), String> {
        if self.ended.is_some() {
            return Err("nats-server is not up".into());
        }
        kill(self.nix_pid(), Signal::SIGHUP).map_err(|e| format!("nats-server cannot be told of the agent: {e}"))
    }

    /// Stops it in an orderly way, or after 10 s by force.
    pub fn end(&mut self) {
        if self.has_ended().is_some() {
            return;
        }
        let _ = kill(self.nix_pid(), Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.has_ended().is_none() {
            if Instant::now() > deadline {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn nix_pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        assert_eq!(parse("nats-server: v2.9.10\n"), Some(Version(2, 9, 10)));
        assert_eq!(parse("nats-server: v2.10.0-beta.3"), Some(Version(2, 10, 0)));
        assert_eq!(parse("nats-server: v2.11"), Some(Version(2, 11, 0)));
        assert_eq!(parse("nats-server"), None);
        assert!(Version(2, 9, 10) < Version(2, 10, 0));
    }
}
