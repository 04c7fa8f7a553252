//! Samples a server and its machine repeatedly and returns the differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{ListenQueue, Sample, WorkerSample};

use crate::cgroup::{self, CgroupReading};
use crate::gauges::{GaugeReadings, GaugeTargets, Gauges};
use crate::group::ProcessGroup;
use crate::host::HostCounters;
use crate::kernel_log::KernelLog;
use crate::listeners::{self, Endpoint};
use crate::namespace::{self, ConnectionTables, Namespace, NamespaceSnapshot, TcpListener};
use crate::process::Helpers;
use crate::status::{AskError, StatusReading, StatusSource};

/// Timeout of the status page. If it does not respond within this time, no worker is free, which is worth a finding but
/// not a longer wait.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// A status page that takes longer waits for a worker: making it takes milliseconds.
const STATUS_SLOW: Duration = Duration::from_millis(500);
/// How often connections are counted by state: the kernel walks its whole table for it.
const CONNECTIONS_EVERY: Duration = Duration::from_secs(15);
/// Above this number of listeners, all of the namespace are read at once.
const MOST_LISTENERS: usize = 16;
/// Below this share of the local ports, TIME_WAIT connections are no shortage, whatever their destination.
const PORTS_WORTH_A_LOOK: f64 = 0.8;

/// A server to sample.
#[derive(Debug, Clone)]
pub struct SampledServer {
    pub master: i32,
    /// Which of its children are not workers.
    pub helpers: Helpers,
    pub listeners: Vec<SocketAddr>,
    /// Read with every sample; each read is a request to the server.
    pub status: Option<StatusSource>,
    /// Address that the load connects to, if there is a load; marks the listener whose queue is reported.
    pub url: Option<Endpoint>,
    /// Shared with samplers of other servers at the same time.
    pub walks: ConnectionTables,
}

/// How much a sample contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// One line of a long timeline: unchanged counters are left out.
    Timeline,
    /// Everything, with every worker.
    Whole,
}

/// Reads the status page on a thread of its own, so that a full server cannot block the sampler.
#[derive(Debug)]
struct StatusWatch {
    ask: SyncSender<()>,
    answers: Receiver<(Instant, Result<StatusReading, AskError>)>,
    latest: Option<(Instant, StatusReading)>,
    previous: Option<(Instant, u64)>,
    /// When the outstanding request was sent.
    asked: Option<Instant>,
    /// Our own requests that the server counts and that no difference contains yet.
    own_requests: u64,
}

/// Why there is no status page.
enum StatusFailure {
    /// The request was sent this long ago, and no worker has responded yet.
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

    /// Takes the response that has come, and sends the next request. With `wait`, waits for the response.
    fn turn(&mut self, wait: bool) -> Option<StatusFailure> {
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
                // The request is in the server's queue and will be counted once a worker takes it.
                self.own_requests += u64::from(e.waits());
                missing = Some(if e.waits() { StatusFailure::Waits(waited) } else { StatusFailure::Failed(e) });
            }
            None if waited >= STATUS_SLOW => {
                self.latest = None;
                missing = Some(StatusFailure::Waits(waited));
            }
            None => {}
        }
        if !wait {
            self.ask();
        }
        missing
    }

    /// Returns the requests per second of other clients, from two pages.
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

/// Totals at one moment; the next sample contains the differences.
#[derive(Debug, Default)]
struct CounterTotals {
    at: Option<Instant>,
    kernel: BTreeMap<&'static str, u64>,
    cgroups: Vec<CgroupReading>,
    stalls: BTreeMap<String, u64>,
    host: Option<HostCounters>,
}

#[derive(Debug)]
pub struct Sampler {
    detail: Detail,
    group: ProcessGroup,
    master: i32,
    ports: Vec<u16>,
    /// Inodes of the server's listening sockets.
    inodes: BTreeSet<u64>,
    namespace: Option<Namespace>,
    gauges: Option<Gauges>,
    url: Option<Endpoint>,
    cgroups: Vec<cgroup::ControlGroup>,
    log: Option<KernelLog>,
    status: Option<StatusWatch>,
    /// One worker serves the status page like any other request, and each worker is a process that serves one request
    /// at a time.
    one_request_a_worker: bool,
    before: CounterTotals,
    connections: Option<(Instant, BTreeMap<String, u64>)>,
    walks: ConnectionTables,
    unread: BTreeSet<String>,
    workers: Vec<WorkerSample>,
    started_cpu: Duration,
    started: Instant,
}

impl Sampler {
    /// Prepares to sample; the first sample has no differences. Use it on one thread, whose CPU time it counts.
    #[must_use]
    pub fn new(subject: &SampledServer, detail: Detail) -> Sampler {
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
        Sampler {
            detail,
            group: ProcessGroup::new(subject.master, detail == Detail::Whole, subject.helpers),
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
            before: CounterTotals::default(),
            connections: None,
            walks: subject.walks.clone(),
            unread,
            workers: Vec::new(),
            started_cpu: crate::host::thread_cpu(),
            started: Instant::now(),
        }
    }

    /// Returns true if the server's master process existed at the last sample.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.group.is_alive()
    }

    /// Returns the workers as of the last sample.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerSample> {
        if self.detail == Detail::Whole { self.workers.clone() } else { self.group.worker_looks() }
    }

    /// Returns what could not be read so far, and why.
    #[must_use]
    pub fn unread(&self) -> Vec<String> {
        let memory = self.group.refused.clone().or_else(|| self.group.unread_memory());
        self.unread.iter().cloned().chain(memory).collect()
    }

    /// Returns the processor time that sampling has used so far, including everything else on its thread.
    #[must_use]
    pub fn cost(&self) -> Duration {
        let readings = self.gauges.as_ref().map_or(Duration::ZERO, Gauges::cost);
        crate::host::thread_cpu().saturating_sub(self.started_cpu) + readings
    }

    /// Returns the processors that sampling has used on average.
    #[must_use]
    pub fn cost_cores(&self) -> f64 {
        self.cost().as_secs_f64() / self.started.elapsed().as_secs_f64().max(1e-9)
    }

    /// Takes a sample. `t_s` is its time on the caller's clock. With `patient`, reads all of the memory and waits for
    /// the status page.
    pub fn sample(&mut self, t_s: f64, patient: bool) -> Sample {
        let now = Instant::now();
        let span_s = self.before.at.map_or(0.0, |t| (now - t).as_secs_f64());
        let first = self.before.at.replace(now).is_none();
        let mut look = Sample { t_s, span_s, ..Sample::default() };
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

    fn look_at_network(&mut self, now: Instant, first: bool, patient: bool, look: &mut Sample) {
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

    /// Reports the maximum and the mean of all readings since the previous sample, this moment included.
    fn tell_sockets(&self, counts: BTreeMap<String, u64>, readings: &mut GaugeReadings, look: &mut Sample) {
        look.readings = readings.count + 1;
        for (name, now) in counts {
            let tally = readings.sockets.entry(name.clone()).or_default();
            tally.add(now as f64);
            look.sockets_mean.extend(tally.mean().map(|mean| (name.clone(), mean)));
            look.sockets.insert(name, tally.max as u64);
        }
        // Busy workers as the kernel counts them at this moment.
        let now = look.busy.unwrap_or(0);
        readings.busy.add(now as f64);
        look.busy = look.busy.max(readings.busy_max);
        look.busy_mean = readings.busy.mean();
    }

    /// Reports the listen queues of the server, that of the URL first.
    fn tell_queues(&self, seen: NamespaceSnapshot, readings: &mut GaugeReadings, look: &mut Sample) {
        let mut wanted = GaugeTargets { workers: self.group.workers(), ..GaugeTargets::default() };
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
        // Of several listeners that match the URL, the kernel uses the most specific.
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

    /// If TIME_WAIT connections hold nearly all local ports, finds out whether they lead to one destination.
    fn look_at_ports(&mut self, look: &mut Sample) {
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

    fn look_at_limits(&mut self, first: bool, span_s: f64, look: &mut Sample) {
        let readings: Vec<CgroupReading> = self.cgroups.iter().map(cgroup::ControlGroup::read).collect();
        if !first {
            let pairs = readings.iter().zip(&self.before.cgroups);
            look.cgroups = pairs.map(|(now, before)| now.since(before, span_s)).collect();
            if self.detail == Detail::Timeline {
                look.cgroups.retain(|c| !CgroupReading::is_idle(c));
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

    fn look_at_status(&mut self, patient: bool, look: &mut Sample) {
        if self.detail == Detail::Whole {
            self.workers = self.group.worker_looks();
        }
        let Some(status) = &mut self.status else { return };
        // With a status page, `busy` must not mix its definition with the kernel's.
        (look.busy, look.busy_mean) = (None, None);
        match status.turn(patient) {
            None => {}
            Some(StatusFailure::Waits(waited)) => {
                look.status_waits_s = Some((waited.as_secs_f64() * 10.0).round() / 10.0);
                if self.one_request_a_worker && look.listen.iter().any(|q| q.queue > 0) {
                    look.busy = Some(look.worker_count);
                }
            }
            Some(StatusFailure::Failed(e)) => {
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
