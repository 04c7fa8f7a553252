//! The watchdog restores the servers of a tune that dies or hangs. It is a process of its own that receives a heartbeat, and
//! acts when that stops without a farewell.
//!
//! The heartbeat is bytes in a pipe, one for each event, at most one per second. The pipe closes when the tune ends for any
//! reason.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lastdrop_experiment::lab::Observer;
use lastdrop_model::Event;
use lastdrop_probe::tool;
use lastdrop_server::restore_of;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::{Pid, getppid, setsid};

use crate::exit::Exit;
use crate::stdio::note;

/// The byte of a tune that has restored everything itself.
const FAREWELL: u8 = b'.';
const BEAT: u8 = b'|';
const EACH: Duration = Duration::from_secs(1);
/// How long the locks of a killed process may outlive it.
const RELEASE: Duration = Duration::from_millis(200);
/// Number of attempts to restore a server.
const TRIES: u32 = 5;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop watchdog --patience 5m apache      (tune starts it by itself)")]
pub struct WatchdogArgs {
    /// Silence that is taken for a hang
    #[arg(long, value_parser = lastdrop_model::units::parse_duration)]
    patience: Duration,
    servers: Vec<String>,
}

/// The tune's end of the pipe, shared with the observer that sends the heartbeat.
type Pipe = Arc<Mutex<Option<ChildStdin>>>;

/// A watchdog process; ends on drop.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    pipe: Pipe,
}

/// The observer that sends the heartbeat.
#[derive(Debug)]
pub struct Pulse {
    pipe: Pipe,
    last: Option<Instant>,
}

impl Watchdog {
    /// Starts the process.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(servers: &[String], patience: Duration) -> io::Result<Watchdog> {
        let mut command = tool::ourselves("restores the servers if this process dies");
        command.arg("watchdog").arg("--patience").arg(format!("{}ms", patience.as_millis()));
        command.args(servers).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let pipe = Arc::new(Mutex::new(child.stdin.take()));
        Ok(Watchdog { child, pipe })
    }

    /// An observer that sends a heartbeat while events come.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        Pulse { pipe: Arc::clone(&self.pipe), last: None }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = pipe.write_all(&[FAREWELL]);
        }
        let _ = self.child.wait();
    }
}

impl Observer for Pulse {
    fn on_event(&mut self, _: &Event<'_>) {
        if self.last.is_some_and(|last| last.elapsed() < EACH) {
            return;
        }
        self.last = Some(Instant::now());
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        if pipe.as_mut().is_some_and(|pipe| pipe.write_all(&[BEAT]).is_err()) {
            *pipe = None;
            note!("note: the watchdog of this tune is gone; after a kill, lastdrop restore");
        }
    }
}

/// How the heartbeat ended.
enum End {
    Farewell,
    Died,
    Silent,
}

/// Waits for the end of a tune, and restores its servers unless the tune has.
pub fn watchdog(args: WatchdogArgs) -> Result<Exit> {
    let tune = getppid();
    // A signal to the tune's terminal or process group must not end the watchdog.
    let _ = setsid();
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGPIPE] {
        // SAFETY: an ignored signal runs no handler.
        unsafe { signal(ignored, SigHandler::SigIgn) }?;
    }
    match listen(io::stdin().lock(), args.patience)? {
        End::Farewell => return Ok(Exit::Done),
        End::Died => note!("lastdrop: the tune has died"),
        End::Silent => {
            note!("lastdrop: nothing was heard of the tune for {} s; it is ended", args.patience.as_secs());
            // Only if the tune is still our parent: otherwise it has ended, and its pid may have been reused.
            if getppid() == tune && tune != Pid::from_raw(1) {
                let _ = kill(tune, Signal::SIGKILL);
            }
        }
    }
    for try_number in 1..=TRIES {
        std::thread::sleep(RELEASE * try_number);
        let mut failed = Vec::new();
        for result in restore_of(&args.servers)? {
            match result {
                Ok(restored) if restored.was_changed => {
                    note!("lastdrop: {}: put back as it was found", restored.server)
                }
                Ok(_) => {}
                Err(e) => failed.push(e),
            }
        }
        if failed.is_empty() {
            return Ok(Exit::Done);
        }
        if try_number == TRIES {
            for e in failed {
                note!("lastdrop: {e}");
            }
        }
    }
    Ok(Exit::Failed)
}

fn listen(mut pipe: impl Read + AsFd, patience: Duration) -> io::Result<End> {
    let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
    let mut heard = [0; 64];
    loop {
        let ready = poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], timeout)?;
        if ready == 0 {
            return Ok(End::Silent);
        }
        match pipe.read(&mut heard)? {
            0 => return Ok(End::Died),
            n if heard[..n].contains(&FAREWELL) => return Ok(End::Farewell),
            _ => {}
        }
    }
}
