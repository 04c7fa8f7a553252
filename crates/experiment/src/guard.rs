//! Keeps a pool in order while it works: workers that are too large, too old or stuck are replaced one by one.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_analyze::guard::{self, Limits, Why, Worker};
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Look, ServerKind, ServerRef, WorkerLook};
use lastdrop_probe::group::Group;
use lastdrop_probe::namespace::Namespace;
use lastdrop_probe::{listeners, process};
use lastdrop_server::{Found, ServerError, find};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab::LabError;

/// A stuck worker that does not end when it is told is killed after this.
const STUCK_LIMIT: Duration = Duration::from_secs(5);
/// Looks for a moment at which a worker is idle.
const IDLE_NAP: Duration = Duration::from_millis(10);

/// What is to be guarded, and how.
#[derive(Debug, Clone)]
pub struct GuardOrder {
    pub server: ServerRef,
    pub limits: Limits,
    pub every: Duration,
    /// Part of the pool that may be in replacement at a time, 0 to 1.
    pub share: f64,
    /// Replace; else only say what would be.
    pub act: bool,
    /// Ask workers that are at work too; they finish their request first.
    pub even_busy: bool,
    pub duration: Option<Duration>,
}

/// Something worth a line in a log.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Started {
        server: String,
        workers: usize,
        act: bool,
    },
    /// A worker was asked to leave, or would have been.
    Asked {
        pid: i32,
        why: String,
        requests: Option<u64>,
        age_s: f64,
        real_memory: Option<u64>,
        acted: bool,
    },
    /// It has left.
    Left {
        pid: i32,
        after_s: f64,
    },
    /// It was told with a signal that ends it whatever it does.
    Killed {
        pid: i32,
        signal: &'static str,
    },
    Note(String),
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Summary {
    pub checks: u64,
    /// Workers that were asked to leave, or would have been.
    pub asked: u64,
    pub left: u64,
    pub killed: u64,
    /// Largest real memory that was seen, bytes.
    pub largest_real_memory: u64,
}

/// The signal at which one worker finishes what it does and leaves, its master putting another in its place.
fn leave_signal(found: &Found) -> Result<Signal, LabError> {
    match found.kind {
        ServerKind::Apache if found.prefork => Ok(Signal::SIGUSR1),
        ServerKind::Target => Ok(Signal::SIGUSR1),
        ServerKind::Fpm | ServerKind::Nginx => Ok(Signal::SIGQUIT),
        ServerKind::Apache => Err(LabError::Other(format!(
            "{} is not prefork: one process of it serves many requests at once and cannot be replaced alone; \
             MaxConnectionsPerChild limits their age",
            found.name
        ))),
        ServerKind::Pid(_) => Err(LabError::Other(
            "how a worker of an unknown program is replaced gracefully is not known; name the server by its kind"
                .into(),
        )),
    }
}

fn why_text(why: &Why) -> String {
    let b = |n: &u64| show_bytes(*n);
    match why {
        Why::Size(v, l) => format!("size {} above {}", b(v), b(l)),
        Why::Private(v, l) => format!("private {} above {}", b(v), b(l)),
        Why::Shared(v, l) => format!("shared {} below {}", b(v), b(l)),
        Why::Cpu(v, l) => format!("{v:.1} s of CPU above {l:.1} s"),
        Why::Age(v, l) => format!("{v:.0} s old, above {l:.0} s"),
        Why::Stuck(v, l) => format!("stuck: {v:.0} s at one request, above {l:.0} s"),
        Why::Memory(v, l) => format!("the largest while all use {} of {}", b(v), b(l)),
    }
}

/// A worker on its way out.
struct Leaving {
    since: Instant,
    start_ticks: u64,
    /// When it was told to end, if it was stuck.
    told: Option<Instant>,
}

struct Guard<'a> {
    order: &'a GuardOrder,
    found: Found,
    signal: Signal,
    group: Group,
    namespace: Namespace,
    leaving: BTreeMap<i32, Leaving>,
    /// Said already in a dry run.
    said: HashSet<i32>,
    summary: Summary,
    stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(Event),
}

/// Guards until told to stop, or for the time that the order says.
///
/// # Errors
/// When the server is not found, its workers cannot be replaced one by one, or may not be looked at.
pub fn guard(order: &GuardOrder, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) -> Result<Summary, LabError> {
    let found = find(&order.server)?;
    let signal = leave_signal(&found)?;
    let namespace = Namespace::of(found.master).map_err(|e| {
        LabError::Other(format!(
            "process {} may not be looked at ({e}); run as root or as the server's user",
            found.master
        ))
    })?;
    if order.limits.stuck_s.is_some() && found.status.is_none() {
        tell(Event::Note("without a status page it cannot be told that a worker is stuck".into()));
    }
    if order.act && kill(Pid::from_raw(found.master), None) == Err(Errno::EPERM) {
        return Err(LabError::Other(format!(
            "the workers of {} belong to another user: replacing them needs root (without --act it only looks)",
            found.name
        )));
    }
    let group = Group::new(found.master, false);
    let mut guard = Guard {
        order,
        found,
        signal,
        group,
        namespace,
        leaving: BTreeMap::new(),
        said: HashSet::new(),
        summary: Summary::default(),
        stop,
        tell,
    };
    let end = order.duration.map(|d| Instant::now() + d);
    let mut first = true;
    while !guard.stopped() && end.is_none_or(|e| Instant::now() < e) {
        let next = Instant::now() + order.every;
        guard.check(first, next)?;
        first = false;
        while !guard.stopped() && Instant::now() < next && end.is_none_or(|e| Instant::now() < e) {
            guard.see_off();
            thread::sleep(Duration::from_millis(50).min(next.saturating_duration_since(Instant::now())));
        }
    }
    // A worker that was asked leaves by itself; nothing has to be undone.
    guard.see_off();
    Ok(guard.summary)
}

impl Guard<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn check(&mut self, first: bool, next: Instant) -> Result<(), LabError> {
        let mut look = Look::default();
        self.group.look(true, &mut look);
        if !self.group.is_alive() {
            return self.find_again();
        }
        if let Some(why) = &self.group.refused {
            return Err(LabError::Other(format!("the workers' memory cannot be read: {why}")));
        }
        let mut workers = self.group.worker_looks();
        if self.order.limits.stuck_s.is_some() {
            self.ask_status(&mut workers);
        }
        if first {
            let (server, act) = (self.found.name.clone(), self.order.act);
            (self.tell)(Event::Started { server, workers: workers.len(), act });
        }
        self.summary.checks += 1;
        let real = look.real_memory_bytes;
        self.summary.largest_real_memory = self.summary.largest_real_memory.max(real.unwrap_or(0));
        let now: Vec<Worker> = workers
            .iter()
            .filter(|w| !self.leaving.contains_key(&w.pid))
            .map(|w| Worker {
                pid: w.pid,
                size: w.rss_bytes.filter(|_| w.private_bytes.is_some()),
                private: w.private_bytes,
                shared: w.shared_bytes,
                cpu_s: w.cpu_s,
                age_s: w.age_s,
                request_s: w.request_s.filter(|_| !matches!(w.state.as_str(), "_" | "K")),
            })
            .collect();
        let mut waiting = guard::judge(&now, real, &self.order.limits);
        if !self.order.act {
            for (worker, why) in waiting {
                if self.said.insert(worker.pid) {
                    self.asked(&worker, &why, &workers, real, false);
                }
            }
            return Ok(());
        }
        // A worker that is at work now may be idle in a moment: until the next check is due.
        while !waiting.is_empty() && !self.stopped() && Instant::now() < next {
            self.see_off();
            // Where the kernel does not say who is connected, nobody is known to be idle.
            let connected = self.namespace.connected_inodes(&self.found.ports()).ok();
            let mut room = guard::room(workers.len(), self.order.share, self.leaving.len());
            waiting.retain(|(worker, why)| {
                let stuck = matches!(why, Why::Stuck(..));
                let idle = || {
                    let own = listeners::inodes(worker.pid).ok();
                    own.zip(connected.as_ref()).is_some_and(|(own, all)| !own.iter().any(|inode| all.contains(inode)))
                };
                if room == 0 || !(stuck || self.order.even_busy || idle()) {
                    return true;
                }
                room -= 1;
                if self.ask_to_leave(worker.pid, stuck) {
                    self.asked(worker, why, &workers, real, true);
                }
                false
            });
            thread::sleep(IDLE_NAP);
        }
        Ok(())
    }

    fn asked(&mut self, worker: &Worker, why: &Why, workers: &[WorkerLook], real_memory: Option<u64>, acted: bool) {
        self.summary.asked += 1;
        let requests = workers.iter().find(|w| w.pid == worker.pid).and_then(|w| w.requests);
        let (pid, age_s) = (worker.pid, worker.age_s);
        (self.tell)(Event::Asked { pid, why: why_text(why), requests, age_s, real_memory, acted });
    }

    /// False: it has gone by itself.
    fn ask_to_leave(&mut self, pid: i32, stuck: bool) -> bool {
        let Some(info) = process::look(pid).filter(|p| p.parent == self.found.master) else { return false };
        let signal = if stuck { Signal::SIGTERM } else { self.signal };
        if kill(Pid::from_raw(pid), signal).is_err() {
            return false;
        }
        let told = stuck.then(Instant::now);
        self.leaving.insert(pid, Leaving { since: Instant::now(), start_ticks: info.start_ticks, told });
        true
    }

    /// Notes who has left, and ends those who do not.
    fn see_off(&mut self) {
        let mut events = Vec::new();
        let mut summary = self.summary;
        self.leaving.retain(|pid, leaving| {
            if !process::is_alive(*pid, leaving.start_ticks) {
                summary.left += 1;
                events.push(Event::Left { pid: *pid, after_s: leaving.since.elapsed().as_secs_f64() });
                return false;
            }
            // One that is at a long request is left to it; only what is stuck is ended against its will.
            if leaving.told.is_some_and(|t| t.elapsed() > STUCK_LIMIT) {
                leaving.told = None;
                summary.killed += 1;
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
                events.push(Event::Killed { pid: *pid, signal: "SIGKILL" });
            }
            true
        });
        self.summary = summary;
        for event in events {
            (self.tell)(event);
        }
    }

    fn ask_status(&mut self, workers: &mut [WorkerLook]) {
        let Some(source) = &self.found.status else { return };
        match source.read(true, Duration::from_secs(2)) {
            Ok(reading) => reading.tell(workers),
            Err(e) => (self.tell)(Event::Note(format!("{e}; who is stuck is not known now"))),
        }
    }

    /// The master has ended: a restart brings another.
    fn find_again(&mut self) -> Result<(), LabError> {
        match find(&self.order.server) {
            Ok(found) => {
                (self.tell)(Event::Note(format!("the server was restarted: process {} now", found.master)));
                self.group = Group::new(found.master, false);
                self.namespace = Namespace::of(found.master).map_err(|e| LabError::Other(e.to_string()))?;
                self.found = found;
                self.leaving.clear();
                self.said.clear();
                Ok(())
            }
            Err(ServerError::NotFound { .. }) => {
                (self.tell)(Event::Note("the server has ended; waiting for it to come back".into()));
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }
}
