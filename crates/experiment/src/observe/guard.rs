//! Keeps a worker pool in order while it serves: workers that are too large, too old or stuck are replaced one by one.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_analyze::guard::{self, BrokenLimit, FreshWorkerCheck, Worker, WorkerLimits};
use lastdrop_model::event::GuardEvent;
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Event, Sample, WorkerSample};
use lastdrop_probe::group::ProcessGroup;
use lastdrop_probe::namespace::Namespace;
use lastdrop_probe::{ProbeError, listeners, memory, process};
use lastdrop_server::{FoundServer, ServerError, ServerRef, find};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab::LabError;

/// A stuck worker that does not end on SIGTERM is killed after this time.
const STUCK_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two checks whether a worker is idle.
const IDLE_NAP: Duration = Duration::from_millis(10);
/// If a master replaces a worker that has left, it does so within this time. Apache checks once per second; a busy
/// machine takes longer.
const SUCCESSION: Duration = Duration::from_secs(10);
/// How often the master's children are counted while workers are being replaced: counting reads all of /proc.
const COUNT_EVERY: Duration = Duration::from_millis(100);
const YOUNG: Duration = Duration::from_millis((guard::YOUNG_S * 1e3) as u64);

/// What to guard, and how.
#[derive(Debug, Clone)]
pub struct GuardOptions {
    pub server: ServerRef,
    pub limits: WorkerLimits,
    pub every: Duration,
    /// Share of the pool that may be in replacement at the same time, 0 to 1.
    pub share: f64,
    /// Replace workers; otherwise only report which would be replaced.
    pub act: bool,
    /// Also ask busy workers; they finish their request first.
    pub even_busy: bool,
    pub duration: Option<Duration>,
}

/// What the guard has done.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GuardSummary {
    pub checks: u64,
    /// Workers that were asked to leave, or would have been.
    pub asked: u64,
    pub left: u64,
    pub killed: u64,
    /// Largest real memory of all samples, in bytes.
    pub largest_real_memory: u64,
}

fn why_text(why: &BrokenLimit) -> String {
    let b = |n: &u64| show_bytes(*n);
    match why {
        BrokenLimit::Size(v, l) => format!("size {} above {}", b(v), b(l)),
        BrokenLimit::Private(v, l) => format!("private {} above {}", b(v), b(l)),
        BrokenLimit::Shared(v, l) => format!("shared {} below {}", b(v), b(l)),
        BrokenLimit::Cpu(v, l) => format!("{v:.1} s of CPU above {l:.1} s"),
        BrokenLimit::Age(v, l) => format!("{v:.0} s old, above {l:.0} s"),
        BrokenLimit::Stuck(v, l) => format!("stuck: {v:.0} s at one request, above {l:.0} s"),
        BrokenLimit::Memory(v, l) => format!("the largest while all use {} of {}", b(v), b(l)),
    }
}

/// Explains why a limit cannot be kept.
fn hopeless(worker: &Worker, why: &BrokenLimit) -> String {
    let (what, limit, advice) = match why {
        BrokenLimit::Private(has, limit) => {
            (format!("{} private", show_bytes(*has)), format!("--max-private {}", show_bytes(*limit)), "above")
        }
        BrokenLimit::Shared(has, limit) => {
            (format!("only {} shared", show_bytes(*has)), format!("--min-shared {}", show_bytes(*limit)), "below")
        }
        BrokenLimit::Size(has, limit) | BrokenLimit::Memory(has, limit) => {
            (format!("a size of {}", show_bytes(*has)), format!("--max-size {}", show_bytes(*limit)), "above")
        }
        BrokenLimit::Cpu(..) | BrokenLimit::Age(..) | BrokenLimit::Stuck(..) => {
            (why_text(why), "a limit".into(), "above")
        }
    };
    let served = worker.requests.map_or(format!("{:.1} s old", worker.age_s), |n| format!("after {n} requests"));
    format!(
        "{limit} cannot be kept: a fresh worker breaks it (process {}, {served}, has {what}), so that the pool would be \
         turned over and over; give a limit that is well {advice} that",
        worker.pid
    )
}

/// A worker that has been asked to leave.
struct LeavingWorker {
    since: Instant,
    start_ticks: u64,
    /// When it was told to end, if it was stuck.
    told: Option<Instant>,
}

/// How many workers exist, and how many there should be.
struct WorkerCount {
    /// Number of workers when none was being replaced.
    whole: usize,
    /// Workers that exist and have not been asked to leave, and when they were counted.
    present: usize,
    counted: Instant,
    last_left: Option<Instant>,
}

impl WorkerCount {
    fn new() -> WorkerCount {
        WorkerCount { whole: 0, present: 0, counted: Instant::now(), last_left: None }
    }

    fn count(&mut self, children: &[i32], leaving: &BTreeMap<i32, LeavingWorker>) {
        self.present = children.iter().filter(|pid| !leaving.contains_key(pid)).count();
        self.counted = Instant::now();
        // If the master has started no replacement by now, it does not want one.
        let settled = self.last_left.is_none_or(|t| t.elapsed() > SUCCESSION);
        if leaving.is_empty() && (settled || self.present >= self.whole) {
            self.whole = self.present;
        }
    }

    /// Returns the workers that have not been replaced yet.
    fn missing(&self) -> usize {
        self.whole.saturating_sub(self.present)
    }
}

struct Guard<'a> {
    order: &'a GuardOptions,
    found: FoundServer,
    signal: Signal,
    group: ProcessGroup,
    namespace: Namespace,
    leaving: BTreeMap<i32, LeavingWorker>,
    /// Already reported in a dry run.
    said: HashSet<i32>,
    pool: WorkerCount,
    fresh: FreshWorkerCheck,
    /// Workers that are known, and those that started recently.
    known: HashSet<i32>,
    newborn: BTreeMap<i32, Instant>,
    summary: GuardSummary,
    stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(&Event<'_>),
}

/// Guards until stopped, or for the duration in the options.
///
/// # Errors
/// When the server is not found, or its workers cannot be replaced one by one or may not be inspected.
pub fn guard(
    order: &GuardOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&Event<'_>),
) -> Result<GuardSummary, LabError> {
    let found = find(&order.server)?;
    let signal = found.leave_signal().map_err(LabError::Other)?;
    let namespace = Namespace::of(found.master).map_err(|e| {
        LabError::Other(format!(
            "process {} may not be looked at ({e}); run as root or as the server's user",
            found.master
        ))
    })?;
    if order.limits.stuck_s.is_some() && found.status.is_none() {
        tell(&Event::Guard { seen: GuardEvent::NoStatus });
    }
    if order.act && kill(Pid::from_raw(found.master), None) == Err(Errno::EPERM) {
        return Err(LabError::Other(format!(
            "the workers of {} belong to another user: replacing them needs root (without --act it only looks)",
            found.name
        )));
    }
    let group = ProcessGroup::new(found.master, false, found.helpers);
    let mut guard = Guard {
        order,
        found,
        signal,
        group,
        namespace,
        leaving: BTreeMap::new(),
        said: HashSet::new(),
        pool: WorkerCount::new(),
        fresh: FreshWorkerCheck::default(),
        known: HashSet::new(),
        newborn: BTreeMap::new(),
        summary: GuardSummary::default(),
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
            guard.follow()?;
            thread::sleep(Duration::from_millis(50).min(next.saturating_duration_since(Instant::now())));
        }
    }
    // A worker that was asked leaves by itself; nothing has to be undone.
    guard.see_off();
    Ok(guard.summary)
}

impl Guard<'_> {
    fn tell(&mut self, seen: GuardEvent) {
        (self.tell)(&Event::Guard { seen });
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn check(&mut self, first: bool, next: Instant) -> Result<(), LabError> {
        let mut look = Sample::default();
        self.group.look(true, &mut look);
        if !self.group.is_alive() {
            return self.find_again();
        }
        if let Some(why) = &self.group.refused {
            return Err(LabError::Other(format!("the workers' memory cannot be read: {why}")));
        }
        let mut workers = self.group.worker_looks();
        let limits = &self.order.limits;
        let own_memory = limits.max_size.is_some() || limits.max_private.is_some() || limits.min_shared.is_some();
        if limits.stuck_s.is_some() || own_memory {
            self.ask_status(&mut workers);
        }
        if first {
            let (server, act) = (self.found.name.clone(), self.order.act);
            self.tell(GuardEvent::Started { server, workers: workers.len(), act });
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
                requests: w.requests,
            })
            .collect();
        self.learn(&now, workers.len())?;
        let children = process::child_pids(self.found.master);
        self.pool.count(&children, &self.leaving);
        self.known = children.into_iter().collect();
        let mut waiting = guard::judge(&now, real, &self.order.limits);
        if !self.order.act {
            for (worker, why) in waiting {
                if self.said.insert(worker.pid) {
                    self.asked(&worker, &why, &workers, real, false);
                }
            }
            return Ok(());
        }
        // A busy worker may become idle in a moment, so try until the next check is due.
        while !waiting.is_empty() && !self.stopped() && Instant::now() < next {
            self.see_off();
            // If the kernel does not show connections, no worker counts as idle.
            let connected = self.namespace.connected_inodes(&self.found.ports()).ok();
            self.follow()?;
            let room_beside = |under_way| guard::room(workers.len(), self.order.share, under_way);
            // The next worker is taken only once the server has enough of them, unless waiting would be worse.
            let mut whole = room_beside(self.leaving.len().max(self.pool.missing()));
            let mut urgent = room_beside(self.leaving.len());
            waiting.retain(|(worker, why)| {
                let room = if why.is_urgent() { &mut urgent } else { &mut whole };
                let stuck = matches!(why, BrokenLimit::Stuck(..));
                let idle = || {
                    let own = listeners::inodes(worker.pid).ok();
                    own.zip(connected.as_ref()).is_some_and(|(own, all)| !own.iter().any(|inode| all.contains(inode)))
                };
                if *room == 0 || !(stuck || self.order.even_busy || idle()) {
                    return true;
                }
                urgent = urgent.saturating_sub(1);
                whole = whole.saturating_sub(1);
                if self.ask_to_leave(worker.pid, stuck) {
                    self.asked(worker, why, &workers, real, true);
                }
                false
            });
            thread::sleep(IDLE_NAP);
        }
        Ok(())
    }

    /// Watches a pool that workers have left: whether they are replaced, and whether the new ones are better.
    fn follow(&mut self) -> Result<(), LabError> {
        let under_way = self.pool.missing() > 0 || !self.leaving.is_empty() || !self.newborn.is_empty();
        if !under_way || self.pool.counted.elapsed() < COUNT_EVERY {
            return Ok(());
        }
        let children = process::child_pids(self.found.master);
        self.pool.count(&children, &self.leaving);
        for pid in children {
            if self.known.insert(pid) {
                self.newborn.insert(pid, Instant::now());
            }
        }
        self.newborn.retain(|_, since| since.elapsed() < YOUNG);
        let young: Vec<Worker> = self
            .newborn
            .iter()
            .filter_map(|(pid, since)| {
                let memory = memory::of_process(*pid).ok()?;
                Some(Worker {
                    pid: *pid,
                    size: Some(memory.rss),
                    private: Some(memory.private),
                    shared: Some(memory.shared),
                    age_s: since.elapsed().as_secs_f64(),
                    ..Worker::default()
                })
            })
            .collect();
        self.learn(&young, self.pool.whole)
    }

    /// Fails once it is clear that fresh workers are no better than those they replace.
    fn learn(&mut self, workers: &[Worker], pool: usize) -> Result<(), LabError> {
        match self.fresh.learn(workers, pool, &self.order.limits) {
            Some((worker, why)) => Err(LabError::Other(hopeless(&worker, &why))),
            None => Ok(()),
        }
    }

    fn asked(
        &mut self,
        worker: &Worker,
        why: &BrokenLimit,
        workers: &[WorkerSample],
        real_memory: Option<u64>,
        acted: bool,
    ) {
        self.summary.asked += 1;
        let requests = workers.iter().find(|w| w.pid == worker.pid).and_then(|w| w.requests);
        let (pid, age_s) = (worker.pid, worker.age_s);
        self.tell(GuardEvent::Asked { pid, why: why_text(why), requests, age_s, real_memory, acted });
    }

    /// Returns false if the worker has ended by itself.
    fn ask_to_leave(&mut self, pid: i32, stuck: bool) -> bool {
        let Some(info) = process::look(pid).filter(|p| p.parent == self.found.master) else { return false };
        let signal = if stuck { Signal::SIGTERM } else { self.signal };
        if kill(Pid::from_raw(pid), signal).is_err() {
            return false;
        }
        let told = stuck.then(Instant::now);
        self.leaving.insert(pid, LeavingWorker { since: Instant::now(), start_ticks: info.start_ticks, told });
        self.pool.present = self.pool.present.saturating_sub(1);
        true
    }

    /// Notes which workers have left, and kills stuck ones that do not.
    fn see_off(&mut self) {
        let mut events = Vec::new();
        let mut summary = self.summary;
        self.leaving.retain(|pid, leaving| {
            if !process::is_alive(*pid, leaving.start_ticks) {
                summary.left += 1;
                self.pool.last_left = Some(Instant::now());
                events.push(GuardEvent::Left { pid: *pid, after_s: leaving.since.elapsed().as_secs_f64() });
                return false;
            }
            // A worker with a long request may finish it; only stuck ones are killed.
            if leaving.told.is_some_and(|t| t.elapsed() > STUCK_LIMIT) {
                leaving.told = None;
                summary.killed += 1;
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
                events.push(GuardEvent::Killed { pid: *pid, signal: "SIGKILL".into() });
            }
            true
        });
        self.summary = summary;
        for event in events {
            self.tell(event);
        }
    }

    fn ask_status(&mut self, workers: &mut [WorkerSample]) {
        let Some(source) = &self.found.status else { return };
        match source.read(true, Duration::from_secs(2)) {
            Ok(reading) => reading.tell(workers),
            Err(e) => self.tell(GuardEvent::Blind { why: e.to_string() }),
        }
    }

    /// Finds the server again: its master has ended, and a restart starts another.
    fn find_again(&mut self) -> Result<(), LabError> {
        let found = match find(&self.order.server) {
            Ok(found) => found,
            Err(ServerError::NotFound { .. } | ServerError::Probe(ProbeError::Gone(_))) => {
                self.tell(GuardEvent::Gone);
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        };
        self.namespace = match Namespace::of(found.master) {
            Ok(namespace) => namespace,
            // It has ended again.
            Err(_) if process::look(found.master).is_none() => {
                self.tell(GuardEvent::Gone);
                return Ok(());
            }
            Err(e) => return Err(LabError::Other(e.to_string())),
        };
        // The new server may use another signal to make its workers leave.
        self.signal = found.leave_signal().map_err(LabError::Other)?;
        self.tell(GuardEvent::Restarted { master: found.master });
        self.group = ProcessGroup::new(found.master, false, found.helpers);
        self.found = found;
        self.leaving.clear();
        self.said.clear();
        self.known.clear();
        self.newborn.clear();
        self.pool = WorkerCount::new();
        Ok(())
    }
}
