//! Looks at a server and its machine again and again, and tells the differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{ListenQueue, Look, WorkerLook};

use crate::cgroup::{self, Reading};
use crate::gauges::{Gauges, Readings, Wanted};
use crate::group::Group;
use crate::host::HostCounters;
use crate::kernel_log::KernelLog;
use crate::listeners::{self, Endpoint};
use crate::namespace::{self, Inside, Namespace, TcpListener, Walks};
use crate::process::Helpers;
use crate::status::{AskError, StatusReading, StatusSource};

/// A status page that does not answer within this has no worker for us: that is a finding, and not worth a wait.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// One that takes longer than this waits for a worker: it is made in milliseconds.
const STATUS_SLOW: Duration = Duration::from_millis(500);
/// Connections by state are counted this often: the kernel walks its whole table for it.
const CONNECTIONS_EVERY: Duration = Duration::from_secs(15);
/// Of more listeners than this all come together.
const MOST_LISTENERS: usize = 16;
/// Fewer closed connections than this share of the local ports are no shortage, wherever they went to.
const PORTS_WORTH_A_LOOK: f64 = 0.8;

/// What is looked at.
#[derive(Debug, Clone)]
pub struct Subject {
    pub master: i32,
    /// Which of its children are no workers.
    pub helpers: Helpers,
    pub listeners: Vec<SocketAddr>,
    /// Asked at every look: each question is a request to the server.
    pub status: Option<StatusSource>,
    /// What the load connects to, where there is one: the listener that its queue is told of.
    pub url: Option<Endpoint>,
    /// Shared with those who look at other servers at the same time.
    pub walks: Walks,
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
    /// Since when an answer is waited for.
    asked: Option<Instant>,
    /// Requests of ours that the server counts and that are in no difference yet.
    own_requests: u64,
}

/// Why there is no status page.
enum NoPage {
    /// It was asked for so long ago, and a worker has not answered yet.
    Waits(Duration),
    Failed(AskError),
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
        Some(StatusWatch { ask, answers, latest: None, previous: None, asked: None, own_requests: 0 })
    }

    fn ask(&mut self) {
        if self.asked.is_none() && self.ask.try_send(()).is_ok() {
            self.asked = Some(Instant::now());
        }
    }

    /// Takes what has come, and asks for the next. With `wait`, waits for the answer.
    fn turn(&mut self, wait: bool) -> Option<NoPage> {
        if wait {
            self.ask();
        }
        let answer =
            if wait { self.answers.recv_timeout(STATUS_TIMEOUT * 2).ok() } else { self.answers.try_recv().ok() };
        let waited = self.asked.map_or(Duration::ZERO, |t| t.elapsed());
        let mut missing = None;
        match answer {
            Some((at, Ok(reading))) => {
                self.asked = None;
                self.own_requests += reading.asked;
                self.latest = Some((at, reading));
            }
            Some((_, Err(e))) => {
                self.asked = None;
                self.latest = None;
                // It lies in the server's queue and will be counted when its turn comes.
                self.own_requests += u64::from(e.waits());
                missing = Some(if e.waits() { NoPage::Waits(waited) } else { NoPage::Failed(e) });
            }
            None if waited >= STATUS_SLOW => {
                self.latest = None;
                missing = Some(NoPage::Waits(waited));
            }
            None => {}
        }
        if !wait {
            self.ask();
        }
        missing
    }

    /// Requests a second of others, by two pages.
    fn rate(&mut self) -> Option<f64> {
        let (at, reading) = self.latest.as_ref()?;
        let total = reading.total_requests?;
        let own = if reading.counts_own { self.own_requests } else { 0 };
        let before = self.previous.filter(|(then, _)| at > then);
        if before.is_some() || self.previous.is_none() {
            self.previous = Some((*at, total));
            self.own_requests = 0;
        }
        let (then, before) = before?;
        Some(total.saturating_sub(before).saturating_sub(own) as f64 / (*at - then).as_secs_f64())
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
pub struct Looker {
    detail: Detail,
    group: Group,
    master: i32,
    ports: Vec<u16>,
    /// Inodes of the server's listening sockets.
    inodes: BTreeSet<u64>,
    namespace: Option<Namespace>,
    gauges: Option<Gauges>,
    url: Option<Endpoint>,
    cgroups: Vec<cgroup::Group>,
    log: Option<KernelLog>,
    status: Option<StatusWatch>,
    /// Its status page is answered by one worker, a process, of many that are no more than that.
    one_request_a_worker: bool,
    before: Totals,
    connections: Option<(Instant, BTreeMap<String, u64>)>,
    walks: Walks,
    unread: BTreeSet<String>,
    workers: Vec<WorkerLook>,
    started_cpu: Duration,
    started: Instant,
}

impl Looker {
    /// Prepares to look; the first look tells no differences. To be used by one thread, whose CPU time it counts.
    #[must_use]
    pub fn new(subject: &Subject, detail: Detail) -> Looker {
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
        let gauges = namespace.as_ref().and_then(|n| Gauges::start(subject.master, n).ok());
        let status = subject.status.clone().and_then(|s| StatusWatch::start(s, detail == Detail::Whole));
        Looker {
            detail,
            group: Group::new(subject.master, detail == Detail::Whole, subject.helpers),
            master: subject.master,
            ports: subject.listeners.iter().map(SocketAddr::port).collect(),
            inodes,
            namespace,
            gauges,
            url: subject.url.clone(),
            cgroups: cgroup::groups(subject.master),
            log,
            status,
            one_request_a_worker: matches!(subject.status, Some(StatusSource::FastCgi { .. })),
            before: Totals::default(),
            connections: None,
            walks: subject.walks.clone(),
            unread,
            workers: Vec::new(),
            started_cpu: crate::host::thread_cpu(),
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
        let memory = self.group.refused.clone().or_else(|| self.group.unread_memory());
        self.unread.iter().cloned().chain(memory).collect()
    }

    /// Processor time that looking has taken so far, with all else that its thread does.
    #[must_use]
    pub fn cost(&self) -> Duration {
        let readings = self.gauges.as_ref().map_or(Duration::ZERO, Gauges::cost);
        crate::host::thread_cpu().saturating_sub(self.started_cpu) + readings
    }

    /// Processors that it has taken.
    #[must_use]
    pub fn cost_cores(&self) -> f64 {
        self.cost().as_secs_f64() / self.started.elapsed().as_secs_f64().max(1e-9)
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
        let mut readings = self.gauges.as_ref().map(Gauges::take).unwrap_or_default();
        match namespace::socket_counts(self.master) {
            Ok(counts) => self.tell_sockets(counts, &mut readings, look),
            Err(e) => self.note("sockets of the server's namespace", &e),
        }
        let Some(namespace) = &self.namespace else { return };
        match namespace.look() {
            Ok(seen) => {
                (look.conntrack, look.conntrack_limit) = seen.conntrack.unzip();
                look.local_ports = Some(seen.local_ports);
                self.tell_queues(seen, &mut readings, look);
            }
            Err(e) => {
                let e = format!("listen queues: {e}; in another network namespace they want root");
                self.unread.insert(e);
                self.namespace = None;
                return;
            }
        }
        if patient || self.connections.as_ref().is_none_or(|(at, _)| now - *at >= CONNECTIONS_EVERY) {
            match self.walks.connections(namespace, &self.ports) {
                Ok(states) => self.connections = Some((now, states)),
                Err(e) => self.note("connections by state", &e),
            }
        }
        if let Some((_, states)) = &self.connections {
            look.sockets.extend(states.clone());
        }
        self.look_at_ports(look);
    }

    /// The largest and the mean of what was read since the look before, this moment included.
    fn tell_sockets(&self, counts: BTreeMap<String, u64>, readings: &mut Readings, look: &mut Look) {
        look.readings = readings.count + 1;
        for (name, now) in counts {
            let tally = readings.sockets.entry(name.clone()).or_default();
            tally.add(now as f64);
            look.sockets_mean.extend(tally.mean().map(|mean| (name.clone(), mean)));
            look.sockets.insert(name, tally.max as u64);
        }
        // The kernel's word for how many are at work, as of this moment.
        let now = look.busy.unwrap_or(0);
        readings.busy.add(now as f64);
        look.busy = look.busy.max(readings.busy_max);
        look.busy_mean = readings.busy.mean();
    }

    /// The same of the server's listeners, that of the URL first.
    fn tell_queues(&self, seen: Inside, readings: &mut Readings, look: &mut Look) {
        let mut wanted = Wanted { workers: self.group.workers(), ..Wanted::default() };
        let mut tell = |inode: u64, fitness: u8, queue: ListenQueue| {
            let tally = readings.listen.entry(inode).or_default();
            tally.add(queue.queue as f64);
            let queue = ListenQueue { queue: tally.max as u64, queue_mean: tally.mean(), ..queue };
            (fitness, queue)
        };
        let mut all = Vec::new();
        let tcp: Vec<TcpListener> =
            seen.tcp.into_iter().filter(|l| self.is_ours(l.inode) || self.ports.contains(&l.address.port())).collect();
        for l in &tcp {
            if tcp.iter().filter(|other| other.address == l.address).count() > 1 || tcp.len() > MOST_LISTENERS {
                wanted.tcp = true;
            } else {
                wanted.listeners.push(l.address);
            }
        }
        for l in tcp {
            all.push(tell(l.inode, self.url.as_ref().map_or(0, |u| u.fitness(&l.address)), l.queue));
        }
        for l in seen.unix.into_iter().filter(|l| self.is_ours(l.inode)) {
            wanted.unix = true;
            all.push(tell(l.inode, u8::from(self.url.as_ref().is_some_and(|u| u.is_path(&l.path))), l.queue));
        }
        // Of several that could take a connection to the URL the kernel asks the most particular.
        let best = all.iter().map(|(fitness, _)| *fitness).max().filter(|f| *f > 0);
        look.listen = all.into_iter().map(|(f, q)| ListenQueue { of_url: Some(f) == best, ..q }).collect();
        look.listen.sort_by_key(|q| !q.of_url);
        if let Some(gauges) = &self.gauges {
            gauges.want(wanted);
        }
    }

    fn is_ours(&self, inode: u64) -> bool {
        self.inodes.contains(&inode)
    }

    /// Where closed connections hold nearly as many ports as there are: is it one destination that has them?
    fn look_at_ports(&mut self, look: &mut Look) {
        let (Some(ports), Some(closed)) = (look.local_ports, look.sockets.get("time_wait")) else { return };
        let few = (*closed as f64) < PORTS_WORTH_A_LOOK * ports as f64;
        if ports == 0 || few {
            return;
        }
        let Some(namespace) = &self.namespace else { return };
        match self.walks.ports_held(namespace) {
            Ok(held) => look.ports_held = held,
            Err(e) => self.note("closed connections by destination", &e),
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
        // The kernel's word for it would not mean the same.
        (look.busy, look.busy_mean) = (None, None);
        match status.turn(patient) {
            None => {}
            Some(NoPage::Waits(waited)) => {
                look.status_waits_s = Some((waited.as_secs_f64() * 10.0).round() / 10.0);
                if self.one_request_a_worker && look.listen.iter().any(|q| q.queue > 0) {
                    look.busy = Some(look.worker_count);
                }
            }
            Some(NoPage::Failed(e)) => {
                self.unread.insert(e.to_string());
            }
        }
        look.requests_rps = status.rate();
        let Some((_, reading)) = &status.latest else { return };
        look.scoreboard.clone_from(&reading.scoreboard);
        look.busy = reading.busy;
        look.queued = reading.queued;
        reading.tell(&mut self.workers);
    }

    fn note(&mut self, what: &str, e: &std::io::Error) {
        self.unread.insert(format!("{what}: {e}"));
    }
}
