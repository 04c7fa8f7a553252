//! Looks at a server and its machine again and again, and tells the differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{Look, WorkerLook};

use crate::cgroup::{self, Reading};
use crate::group::Group;
use crate::host::HostCounters;
use crate::kernel_log::KernelLog;
use crate::listeners;
use crate::namespace::{self, Namespace};
use crate::status::{AskError, StatusReading, StatusSource};

/// A status page that does not answer within this has no worker for us: that is a finding, and not worth a wait.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections by state are counted this often: the kernel walks its whole table for it.
const CONNECTIONS_EVERY: Duration = Duration::from_secs(15);

/// What is looked at.
#[derive(Debug, Clone)]
pub struct Subject {
    pub master: i32,
    pub listeners: Vec<SocketAddr>,
    /// Asked at every look: each question is a request to the server.
    pub status: Option<StatusSource>,
}

/// How much a look tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// One line of a long timeline: what did not move is left out.
    Timeline,
    /// Everything, every worker with it.
    Whole,
}

/// A status page asked beside the looks, so that a full server cannot stop them.
#[derive(Debug)]
struct StatusWatch {
    ask: SyncSender<()>,
    answers: Receiver<(Instant, Result<StatusReading, AskError>)>,
    latest: Option<(Instant, StatusReading)>,
    previous: Option<(Instant, u64)>,
    waiting: bool,
}

impl StatusWatch {
    fn start(source: StatusSource, each_worker: bool) -> Option<StatusWatch> {
        let (ask, questions) = sync_channel::<()>(1);
        let (give, answers) = sync_channel(1);
        let work = move || {
            while questions.recv().is_ok() {
                let reading = source.read(each_worker, STATUS_TIMEOUT);
                if give.send((Instant::now(), reading)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("status".into()).spawn(work).ok()?;
        Some(StatusWatch { ask, answers, latest: None, previous: None, waiting: false })
    }

    /// Takes what has come, and asks for the next. With `wait`, waits for the answer.
    fn turn(&mut self, wait: bool) -> Option<AskError> {
        if wait && !self.waiting {
            self.waiting = self.ask.try_send(()).is_ok();
        }
        let mut error = None;
        let answer =
            if wait { self.answers.recv_timeout(STATUS_TIMEOUT * 2).ok() } else { self.answers.try_recv().ok() };
        match answer {
            Some((at, Ok(reading))) => {
                self.waiting = false;
                self.latest = Some((at, reading));
            }
            Some((_, Err(e))) => {
                self.waiting = false;
                self.latest = None;
                error = Some(e);
            }
            None => {}
        }
        if !wait && !self.waiting {
            self.waiting = self.ask.try_send(()).is_ok();
        }
        error
    }
}

/// Totals at one moment, of which the next look tells the differences.
#[derive(Debug, Default)]
struct Totals {
    at: Option<Instant>,
    kernel: BTreeMap<&'static str, u64>,
    cgroups: Vec<Reading>,
    stalls: BTreeMap<String, u64>,
    host: Option<HostCounters>,
}

#[derive(Debug)]
pub struct Observer {
    detail: Detail,
    group: Group,
    master: i32,
    ports: Vec<u16>,
    /// Inodes of the server's listening sockets.
    inodes: BTreeSet<u64>,
    namespace: Option<Namespace>,
    cgroups: Vec<cgroup::Group>,
    log: Option<KernelLog>,
    status: Option<StatusWatch>,
    before: Totals,
    connections: Option<(Instant, BTreeMap<String, u64>)>,
    unread: BTreeSet<String>,
    workers: Vec<WorkerLook>,
    started_cpu: Duration,
    started: Instant,
}

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

impl Observer {
    /// Prepares to look; the first look tells no differences. To be used by one thread, whose CPU time it counts.
    #[must_use]
    pub fn new(subject: &Subject, detail: Detail) -> Observer {
        let mut unread = BTreeSet::new();
        let mut note = |what: &str, e: std::io::Error| {
            let advice =
                if e.kind() == std::io::ErrorKind::PermissionDenied { "; root or the server's user may" } else { "" };
            unread.insert(format!("{what}: {e}{advice}"));
        };
        let namespace =
            Namespace::of(subject.master).map_err(|e| note("the server's network namespace (listen queues)", e)).ok();
        let log = KernelLog::open().map_err(|e| note("the kernel log", e)).ok();
        let inodes = listeners::inodes(subject.master).map_err(|e| note("the server's sockets", e)).unwrap_or_default();
        let status = subject.status.clone().and_then(|s| StatusWatch::start(s, detail == Detail::Whole));
        Observer {
            detail,
            group: Group::new(subject.master, detail == Detail::Whole),
            master: subject.master,
            ports: subject.listeners.iter().map(SocketAddr::port).collect(),
            inodes,
            namespace,
            cgroups: cgroup::groups(subject.master),
            log,
            status,
            before: Totals::default(),
            connections: None,
            unread,
            workers: Vec::new(),
            started_cpu: thread_cpu(),
            started: Instant::now(),
        }
    }

    /// Is the server's master process still there, as of the last look?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.group.is_alive()
    }

    /// The workers as of the last look.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerLook> {
        if self.detail == Detail::Whole { self.workers.clone() } else { self.group.worker_looks() }
    }

    /// What could not be read so far, and why.
    #[must_use]
    pub fn unread(&self) -> Vec<String> {
        self.unread.iter().cloned().chain(self.group.refused.clone()).collect()
    }

    /// Processors that looking has taken.
    #[must_use]
    pub fn cost_cores(&self) -> f64 {
        let cpu = thread_cpu().saturating_sub(self.started_cpu).as_secs_f64();
        cpu / self.started.elapsed().as_secs_f64().max(1e-9)
    }

    /// Looks. `t_s` is the time of the look on the caller's clock. With `patient`, all of the memory is read and the
    /// status page waited for.
    pub fn look(&mut self, t_s: f64, patient: bool) -> Look {
        let now = Instant::now();
        let span_s = self.before.at.map_or(0.0, |t| (now - t).as_secs_f64());
        let first = self.before.at.replace(now).is_none();
        let mut look = Look { t_s, span_s, ..Look::default() };
        self.group.look(patient, &mut look);
        self.look_at_network(now, first, patient, &mut look);
        self.look_at_limits(first, span_s, &mut look);
        let host = HostCounters::now();
        if let (Some(host), Some(before)) = (&host, &self.before.host) {
            look.host = host.since(before);
        }
        self.before.host = host;
        if let Some(log) = &mut self.log {
            look.log = log.news();
        }
        self.look_at_status(patient, &mut look);
        look
    }

    fn look_at_network(&mut self, now: Instant, first: bool, patient: bool, look: &mut Look) {
        match namespace::counters(self.master) {
            Ok(counters) => {
                for (name, value) in &counters {
                    let moved = value.saturating_sub(self.before.kernel.get(name).copied().unwrap_or(*value));
                    if !first && (moved > 0 || self.detail == Detail::Whole) {
                        look.kernel.insert((*name).to_string(), moved);
                    }
                }
                self.before.kernel = counters;
            }
            Err(e) => self.note("kernel counters of the server's namespace", &e),
        }
        match namespace::socket_counts(self.master) {
            Ok(counts) => look.sockets = counts,
            Err(e) => self.note("sockets of the server's namespace", &e),
        }
        let Some(namespace) = &self.namespace else { return };
        match namespace.look() {
            Ok(seen) => {
                let ours = |port: u16, inode: u32| self.inodes.contains(&inode.into()) || self.ports.contains(&port);
                look.listen.extend(seen.tcp.into_iter().filter(|(a, i, _)| ours(a.port(), *i)).map(|(_, _, q)| q));
                let unix = seen.unix.into_iter().filter(|(inode, _)| self.inodes.contains(&(*inode).into()));
                look.listen.extend(unix.map(|(_, q)| q));
                (look.conntrack, look.conntrack_limit) = seen.conntrack.unzip();
                look.local_ports = Some(seen.local_ports);
            }
            Err(e) => {
                let e = format!("listen queues: {e}; in another network namespace they want root");
                self.unread.insert(e);
                self.namespace = None;
                return;
            }
        }
        if patient || self.connections.as_ref().is_none_or(|(at, _)| now - *at >= CONNECTIONS_EVERY) {
            match namespace.connections(&self.ports) {
                Ok(states) => self.connections = Some((now, states)),
                Err(e) => self.note("connections by state", &e),
            }
        }
        if let Some((_, states)) = &self.connections {
            look.sockets.extend(states.clone());
        }
    }

    fn look_at_limits(&mut self, first: bool, span_s: f64, look: &mut Look) {
        let readings: Vec<Reading> = self.cgroups.iter().map(cgroup::Group::read).collect();
        if !first {
            let pairs = readings.iter().zip(&self.before.cgroups);
            look.cgroups = pairs.map(|(now, before)| now.since(before, span_s)).collect();
            if self.detail == Detail::Timeline {
                look.cgroups.retain(|c| !Reading::is_idle(c));
            }
        }
        self.before.cgroups = readings;
        let mut stalls = BTreeMap::new();
        for resource in ["cpu", "memory", "io"] {
            match fs::read_to_string(format!("/proc/pressure/{resource}")) {
                Ok(text) => stalls.extend(cgroup::stalls(&text, resource)),
                Err(e) => self.note("pressure of the machine", &e),
            }
        }
        if !first {
            look.pressure = cgroup::shares(&stalls, &self.before.stalls, span_s);
        }
        self.before.stalls = stalls;
    }

    fn look_at_status(&mut self, patient: bool, look: &mut Look) {
        if self.detail == Detail::Whole {
            self.workers = self.group.worker_looks();
        }
        let Some(status) = &mut self.status else { return };
        if let Some(e) = status.turn(patient) {
            self.unread.insert(e.to_string());
        }
        // The kernel's word for it would not mean the same.
        look.busy = None;
        let Some((at, reading)) = &status.latest else { return };
        look.scoreboard.clone_from(&reading.scoreboard);
        look.busy = reading.busy;
        reading.tell(&mut self.workers);
        if let Some(total) = reading.total_requests {
            if let Some((then, before)) = status.previous
                && *at > then
            {
                look.requests_rps = Some(total.saturating_sub(before) as f64 / (*at - then).as_secs_f64());
            }
            status.previous = Some((*at, total));
        }
    }

    fn note(&mut self, what: &str, e: &std::io::Error) {
        self.unread.insert(format!("{what}: {e}"));
    }
}
