//! The master process: opens the listener, keeps the pool full, handles signals. It stays single-threaded, because it
//! forks.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use lastdrop_model::Printable;
use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe2};

use crate::config::{Config, ConfigError, Layers};
use crate::shared::{Shared, monotonic_ns};
use crate::worker::Worker;

#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot listen on {address}: {source}{}", listen_advice(source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    PidFile { path: PathBuf, source: io::Error },
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

fn listen_advice(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::AddrInUse => "; another server has it: choose another --listen, or port 0 for a free one",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need root",
        _ => "",
    }
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> MasterError {
    move |e| MasterError::System { what, source: e.into() }
}

/// Workers of an older generation are killed after this time.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

struct Master {
    layers: Layers,
    config: Config,
    shared: &'static Shared,
    listener: TcpListener,
    /// Closing the write end tells a generation to leave; its workers hold the read end.
    leave_write: OwnedFd,
    leave_read: OwnedFd,
    /// Slot of each worker of this generation.
    workers: HashMap<Pid, usize>,
    /// Workers of older generations, and when they are killed.
    leaving: HashMap<Pid, Instant>,
    /// The master never writes to it again, so all workers share its pages until they write to them.
    shared_memory: RefCell<Vec<u8>>,
}

/// Runs the target until a signal ends it. Calls `ready` once, with the address that it listens on.
///
/// # Errors
/// When the settings are wrong, the address is not available, or the system refuses a process.
pub fn run(
    layers: Layers,
    pid_file: Option<PathBuf>,
    ready: impl FnOnce(SocketAddr, &Config),
) -> Result<(), MasterError> {
    let config = layers.load()?;
    let listener = open_listener(&config)?;
    let mut signals = SigSet::empty();
    for s in [Signal::SIGCHLD, Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGTERM, Signal::SIGINT] {
        signals.add(s);
    }
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None).map_err(system("cannot block signals"))?;
    let (leave_read, leave_write) = leave_pipe()?;
    let mut shared_memory = vec![1u8; config.shared_memory as usize];
    std::hint::black_box(shared_memory.as_mut_slice());
    let mut master = Master {
        shared: Shared::map().map_err(system("cannot map shared memory"))?,
        layers,
        listener,
        leave_write,
        leave_read,
        workers: HashMap::new(),
        leaving: HashMap::new(),
        shared_memory: RefCell::new(shared_memory),
        config,
    };
    let address = master.listener.local_addr().unwrap_or(master.config.listen);
    // A port that the system chose stays the same after reloads.
    master.config.listen = address;
    master.fill()?;
    if let Some(path) = &pid_file {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .map_err(|source| MasterError::PidFile { path: path.clone(), source })?;
    }
    ready(address, &master.config);
    let result = master.obey(&signals, address);
    master.end();
    if let Some(path) = &pid_file {
        let _ = std::fs::remove_file(path);
    }
    result
}

/// Prints an error on stderr, and ignores a closed stderr.
fn complain(what: &str) {
    let text = Printable::from(format!("lastdrop target: {what}\n"));
    #[allow(clippy::disallowed_methods)]
    let _ = std::io::stderr().write_all(text.as_str().as_bytes());
}

fn leave_pipe() -> Result<(OwnedFd, OwnedFd), MasterError> {
    pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(system("cannot open a pipe"))
}

/// Opens the listener with the configured backlog; std's own listener has a fixed one.
fn open_listener(config: &Config) -> Result<TcpListener, MasterError> {
    let open = || -> nix::Result<TcpListener> {
        let family = if config.listen.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &SockaddrStorage::from(config.listen))?;
        listen(&fd, Backlog::new(config.backlog).unwrap_or(Backlog::MAXCONN))?;
        Ok(TcpListener::from(fd))
    };
    open().map_err(|e| MasterError::Listen { address: config.listen, source: e.into() })
}

impl Master {
    /// Handles signals until one of them ends the server.
    fn obey(&mut self, signals: &SigSet, address: SocketAddr) -> Result<(), MasterError> {
        loop {
            match wait_signal(signals, Duration::from_secs(1)) {
                Some(Signal::SIGTERM | Signal::SIGINT) => return Ok(()),
                Some(Signal::SIGHUP) => self.reload(address, false),
                Some(Signal::SIGUSR2) => self.reload(address, true),
                _ => {}
            }
            self.reap();
            let now = Instant::now();
            for (pid, deadline) in &self.leaving {
                if now > *deadline {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
            }
            if let Err(e) = self.fill() {
                // The system refuses a process; the next turn tries again.
                complain(&e.to_string());
            }
        }
    }

    fn reap(&mut self) {
        while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            let (WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _)) = status else { break };
            self.leaving.remove(&pid);
            if let Some(slot) = self.workers.remove(&pid) {
                let s = self.shared.slot(slot);
                s.pid.store(0, SeqCst);
                s.state.store(0, SeqCst);
            }
        }
    }

    /// Starts workers until the pool is full.
    fn fill(&mut self) -> Result<(), MasterError> {
        let pool = self.config.workers as usize;
        self.shared.pool.store(self.config.workers, SeqCst);
        for index in 0..pool {
            if self.workers.values().any(|s| *s == index) {
                continue;
            }
            self.shared.set_state(index, b'S');
            let slot = self.shared.slot(index);
            slot.requests.store(0, SeqCst);
            slot.since_ns.store(monotonic_ns(), SeqCst);
            // SAFETY: this process has one thread; the child runs on with its own copy of everything.
            match unsafe { fork() }.map_err(system("cannot fork a worker"))? {
                ForkResult::Parent { child } => {
                    self.shared.counters.forks.fetch_add(1, SeqCst);
                    self.shared.slot(index).pid.store(child.as_raw(), SeqCst);
                    self.workers.insert(child, index);
                }
                ForkResult::Child => self.become_worker(index),
            }
        }
        Ok(())
    }

    fn become_worker(&self, slot: usize) -> ! {
        // Only the master may hold the write end: closing it ends the generation.
        // SAFETY: this copy of the descriptor is not used again; the process ends without dropping it.
        unsafe { libc::close(std::os::fd::AsRawFd::as_raw_fd(&self.leave_write)) };
        let _ = sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&SigSet::all()), None);
        // Ctrl-C on the terminal reaches all processes; the master ends its workers itself.
        // SAFETY: ignoring a signal installs no handler.
        let _ = unsafe { signal(Signal::SIGINT, SigHandler::SigIgn) };
        // SAFETY: plain calls. They make sleeps exact and name the worker in ps.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize);
            libc::prctl(libc::PR_SET_NAME, c"target-worker".as_ptr());
        }
        let mut retire = SigSet::empty();
        retire.add(Signal::SIGUSR1);
        let _ = retire.thread_block();
        let Ok(retire) = SignalFd::with_flags(&retire, SfdFlags::SFD_CLOEXEC) else {
            // SAFETY: as below.
            unsafe { libc::_exit(1) }
        };
        let worker = Worker {
            slot,
            config: &self.config,
            shared: self.shared,
            listener: &self.listener,
            leave: self.leave_read.as_fd(),
            retire: retire.as_fd(),
            shared_memory: &self.shared_memory,
        };
        let code = i32::from(worker.run().is_err());
        // SAFETY: ends the child at once, without the exit handlers of the master's program.
        unsafe { libc::_exit(code) }
    }

    /// Loads the settings and replaces the workers; with `relisten` the listener too. Wrong settings change nothing.
    fn reload(&mut self, address: SocketAddr, relisten: bool) {
        let mut config = match self.layers.load() {
            Ok(config) => config,
            Err(e) => return complain(&format!("settings not read, the old ones stay: {e}")),
        };
        if config.listen.port() == 0 || !relisten {
            config.listen = address;
        }
        let pipe = match leave_pipe() {
            Ok(pipe) => pipe,
            Err(e) => return complain(&format!("not reloaded: {e}")),
        };
        (self.leave_read, self.leave_write) = pipe;
        let deadline = Instant::now() + LEAVE_TIMEOUT;
        self.leaving.extend(self.workers.drain().map(|(pid, _)| (pid, deadline)));
        if relisten {
            // The old workers hold the old listener, so it is closed only when they have left.
            while !self.leaving.is_empty() && Instant::now() < deadline {
                self.reap();
                std::thread::sleep(Duration::from_millis(5));
            }
            let old = std::mem::replace(&mut self.config, config);
            match nix::sys::socket::listen(
                &self.listener,
                Backlog::new(self.config.backlog).unwrap_or(Backlog::MAXCONN),
            ) {
                // A second listen() on the same socket changes its backlog.
                Ok(()) if old.listen == self.config.listen => {}
                _ => match open_listener(&self.config) {
                    Ok(listener) => self.listener = listener,
                    Err(e) => {
                        complain(&format!("{e}; still on {}", old.listen));
                        self.config.listen = old.listen;
                    }
                },
            }
        } else {
            self.config = config;
        }
        self.shared.counters.generation.fetch_add(1, SeqCst);
    }

    /// Ends all workers. Busy ones may finish within two seconds.
    fn end(&mut self) {
        if let Ok(pipe) = leave_pipe() {
            (self.leave_read, self.leave_write) = pipe;
        }
        let mut pids: Vec<Pid> = self.workers.keys().chain(self.leaving.keys()).copied().collect();
        let deadline = Instant::now() + Duration::from_secs(2);
        while !pids.is_empty() {
            pids.retain(|p| matches!(waitpid(*p, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)));
            if Instant::now() > deadline {
                for pid in &pids {
                    let _ = kill(*pid, Signal::SIGKILL);
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn wait_signal(signals: &SigSet, limit: Duration) -> Option<Signal> {
    let timeout = libc::timespec { tv_sec: limit.as_secs() as libc::time_t, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: the set and the time live for the call; no information structure is asked for.
    let n = unsafe { libc::sigtimedwait(signals.as_ref(), std::ptr::null_mut(), &raw const timeout) };
    Signal::try_from(n).ok()
}
