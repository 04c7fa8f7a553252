//! What undoes a tune that dies or hangs: a process of its own that hears a heartbeat, and puts the servers back when that
//! ends without a farewell.
//!
//! The heartbeat are bytes in a pipe, one for what happens, at most one a second. The end of the pipe is the end of the tune, however
//! it came.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use lastdrop_lab::Observer;
use lastdrop_model::Event;
use lastdrop_probe::tool;
use lastdrop_server::restore_of;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::{Pid, getppid, setsid};

use crate::exit::Exit;
use crate::stdio::note;

/// What a tune says when it has put everything back itself.
const FAREWELL: u8 = b'.';
const BEAT: u8 = b'|';
const EACH: Duration = Duration::from_secs(1);
/// How long the locks of a process that was killed may outlive it.
const RELEASE: Duration = Duration::from_millis(200);
/// A server that could not be put back is tried again so often.
const TRIES: u32 = 5;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lastdrop watchdog --patience 5m apache      (tune starts it by itself)")]
pub struct WatchdogArgs {
    /// Silence that is taken for a hang
    #[arg(long, value_parser = lastdrop_model::units::parse_duration)]
    patience: Duration,
    servers: Vec<String>,
}

/// The end of the pipe that the tune has; shared with the observer that beats.
type Pipe = Arc<Mutex<Option<ChildStdin>>>;

/// A watchdog that is there as long as this is.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    pipe: Pipe,
}

/// The heartbeat.
#[derive(Debug)]
pub struct Pulse {
    pipe: Pipe,
    last: Option<Instant>,
}

impl Watchdog {
    /// # Errors
    /// When there is no process for it.
    pub fn start(servers: &[String], patience: Duration) -> io::Result<Watchdog> {
        let mut command = tool::ourselves("restores the servers if this process dies");
        command.arg("watchdog").arg("--patience").arg(format!("{}ms", patience.as_millis()));
        command.args(servers).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let pipe = Arc::new(Mutex::new(child.stdin.take()));
        Ok(Watchdog { child, pipe })
    }

    /// What beats as long as something happens.
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

/// Why it acts.
enum End {
    Farewell,
    Died,
    Silent,
}

/// Waits for the end of a tune, and puts its servers back where it has not.
pub fn watchdog(args: WatchdogArgs) -> Result<Exit> {
    let tune = getppid();
    // What ends the tune's terminal or its group shall not end this.
    let _ = setsid();
    for ignored in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGPIPE] {
        // SAFETY: to ignore a signal runs no handler.
        unsafe { signal(ignored, SigHandler::SigIgn) }?;
    }
    match listen(io::stdin().lock(), args.patience)? {
        End::Farewell => return Ok(Exit::Done),
        End::Died => note!("lastdrop: the tune has died"),
        End::Silent => {
            note!("lastdrop: nothing was heard of the tune for {} s; it is ended", args.patience.as_secs());
            // One that has ended meanwhile is nobody's parent any more.
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
