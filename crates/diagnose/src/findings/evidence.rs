//! The evidence that the rules examine, and what follows from it by arithmetic.

use lastdrop_analyze::workers::{KeepAliveHold, RequestCost, WorkersEvidence, advise};
use lastdrop_model::documents::{Evidence, ExpectedGain, Finding, Fix, Severity, WorkersAdvice};
use lastdrop_model::examination::{
    Examination, ExaminationStep, ExaminedServer, LoadShape, ServerMeasurements, ServerProfile, StepKind,
};
use lastdrop_model::units::show_us;
use serde_json::{Value, json};

/// Processor use from which on the processors count as full.
const FULL: f64 = 0.9;
/// A thread or process that uses this much of a core is saturated.
pub const ONE_CORE: f64 = 0.88;
/// Time differences below this are noise.
const NOISE_US: f64 = 1_000.0;
/// Retransmitted segments per answer from which on packets count as lost.
pub(super) const RETRANSMITTED: f64 = 0.02;
/// Retransmission timeouts per request from which on they explain a high mean.
const TIMEOUTS: f64 = 1e-3;
/// Shortest time until a retransmission.
pub(super) const RETRANSMISSION_US: f64 = 190_000.0;
/// Kinds of error log lines that say that a request got no answer, or not its own.
const FAILURE_LINES: &[&str] = &[
    "worker-connections",
    "descriptors",
    "upstream-full",
    "no-ports",
    "database-connections",
    "fork-failed",
    "crash",
    "killed",
];
/// Share of the requests in flight that wait for an unanswered connect, from which on it counts.
pub(super) const UNANSWERED: f64 = 0.3;
/// Slowdown against one user alone that shows waiting; the second value where a smaller one is normal.
const SLOWER: f64 = 1.3;
const MUCH_SLOWER: f64 = 3.0;
/// A limit is reported with at least this many numbers, if there are that many.
const MIN_NUMBERS: usize = 3;
/// Seconds from which on a user notices the wait.
const LONG_S: f64 = 0.15;
/// Pages swapped per second from which on memory is short.
pub(super) const SWAPPED: f64 = 100.0;
/// Share of the processors from which on other programs fill them.
pub(super) const OTHERS_FILL: f64 = 0.7;
/// Mean response time from which on other programs' CPU use is reported as the limit, µs: occasional use is normal.
pub(super) const LONG_US: f64 = 100_000.0;
/// Share of its allowed workers from which on a pool counts as fully grown.
const GROWN: f64 = 0.95;
/// Share of busy workers from which on a pool counts as full.
const FULL_POOL: f64 = 0.85;
/// The same share by a status page, while connections queue.
const FULL_POOL_WITH_A_QUEUE: f64 = 0.75;

#[derive(Debug, Clone, Copy)]
pub struct LoadEvidence<'a> {
    pub all: &'a Examination,
    /// The step with the load that was asked about.
    pub main: &'a ExaminationStep,
    pub alone: Option<&'a ExaminationStep>,
}

/// The evidence about one server under the load that was asked about.
#[derive(Debug, Clone, Copy)]
pub struct ServerEvidence<'a> {
    pub case: &'a LoadEvidence<'a>,
    /// Position in the chain; 0 is the server at the URL.
    pub place: usize,
    pub about: &'a ExaminedServer,
    pub seen: &'a ServerMeasurements,
}

impl<'a> LoadEvidence<'a> {
    pub fn of(all: &'a Examination) -> Option<LoadEvidence<'a>> {
        Some(LoadEvidence { all, main: all.main()?, alone: all.step(StepKind::Alone) })
    }

    pub fn servers(&'a self) -> Vec<ServerEvidence<'a>> {
        let view = |(place, about): (usize, &'a ExaminedServer)| {
            Some(ServerEvidence { case: self, place, about, seen: self.main.server(&about.server)? })
        };
        self.all.servers.iter().enumerate().filter_map(view).collect()
    }

    /// Mean service time of one user alone, seconds.
    pub fn alone_s(&self) -> Option<f64> {
        self.alone.filter(|s| s.service.count > 0).map(|s| s.service.mean / 1e6)
    }

    /// Slowdown of answers against one user alone. None if unknown.
    pub fn slower(&self) -> Option<f64> {
        let step = self.alone.filter(|s| s.response.count > 0)?;
        // Rejected requests are answered sooner. If the shares of rejections differ, the two times cannot be compared.
        let turned_away = |s: &ExaminationStep| s.share_of_status(|s| ["429", "503", "403"].contains(&s));
        if (turned_away(step) - turned_away(self.main)).abs() > 0.1 && !self.errors() {
            return Some(1.0);
        }
        let alone = step.response.mean;
        let times = self.main.response.mean / alone.max(1.0);
        // A single thread that answers tens of thousands of requests per second is full long before a request waits for
        // a millisecond.
        let is_full = |v: &ServerEvidence<'_>| v.seen.hottest_thread_cores >= ONE_CORE;
        let full = self.all.load == LoadShape::Closed && times >= MUCH_SLOWER && self.servers().iter().any(is_full);
        // Otherwise an increase of less than a millisecond is noise.
        let noise = !full && self.main.response.mean - alone < NOISE_US;
        (self.main.response.count > 0).then_some(if noise { 1.0 } else { times })
    }

    /// True if requests wait or fail. Otherwise nothing limits: the users do not ask for more.
    pub fn requests_wait(&self) -> bool {
        // A client that finds the listen queue full retries after a second. Among hundreds of requests, the mean does
        // not show it.
        let turned_away = self.servers().iter().map(|v| v.moved("ListenOverflows")).max().unwrap_or(0);
        let refused = self.main.unanswered().max(turned_away) * 200 > self.main.due.max(1);
        let errors = self.errors();
        // If other clients fill the server, one user alone waits as long as many.
        let queue = self.servers().iter().any(|v| v.queue() >= 0.9);
        // A lock that another program holds delays one user alone as well.
        let locked = self.main.databases.iter().any(|look| look.lock_wait_mean.is_some_and(|n| n >= 1.0));
        // Users without a descriptor or port do not even send their request.
        let ours = self.main.generator.no_descriptors + self.main.generator.no_ports > 0;
        // An open load that is answered at its rate is not limited, unless answers take several times as long.
        let slower = match self.all.load {
            LoadShape::Open if self.main.answered_rps >= 0.98 * self.main.rate_rps => MUCH_SLOWER,
            _ => SLOWER,
        };
        // An upstream does not answer connects: one user alone meets that as well.
        let unanswered = self
            .servers()
            .iter()
            .any(|v| v.outgoing_connections().1 >= 1.0 && v.outgoing_connections().1 >= UNANSWERED * self.in_flight());
        // A few failures among thousands are a negligible share, but the server's log proves them.
        let told = self.servers().iter().any(|v| {
            let lines: u64 = FAILURE_LINES.iter().map(|what| v.log(what)).sum();
            lines >= 5 || v.logged_for_other_clients("upstream-refused")
        });
        let swaps = self.per_second(self.main.swapped_pages) > SWAPPED && !self.has_free_memory();
        let certainly = queue || refused || errors || locked || ours || unanswered || told || swaps;
        match self.all.load {
            LoadShape::Foreign => certainly,
            // Lost packets delay one user alone as much as many.
            _ => certainly || self.few_wait_long() || self.slower().is_none_or(|times| times > slower),
        }
    }

    /// True if other programs fill the processors, and half of the time of the requests at work goes into waiting for one.
    pub fn is_starved_by_others(&self) -> bool {
        let all = self.main.cores.len() as f64;
        let fills = self.main.generator.others_cores >= OTHERS_FILL * all && self.busy_cores() >= 0.95 * all;
        let starves = |v: &ServerEvidence<'_>| {
            let used = v.seen.cpu_cores.unwrap_or(f64::INFINITY);
            v.seen.waiting("running") - used >= 0.5 * v.busy().max(0.5)
        };
        fills && self.main.response.mean >= LONG_US && self.servers().iter().any(starves)
    }

    /// True if the machine has memory that nobody uses. Then pages may be swapped, but not for lack of memory of the machine.
    pub fn has_free_memory(&self) -> bool {
        let enough = (0.1 * self.all.memory_bytes as f64).max(512e6);
        self.main.memory_available_bytes.is_some_and(|bytes| bytes as f64 >= enough)
    }

    /// True if all users wait for long, each as long as without the others. Then this wait bounds a closed loop: N
    /// users, S each, give N / S and no more.
    pub fn each_waits_long(&self) -> bool {
        self.all.load == LoadShape::Closed && self.cpu_idle() && self.alone_s().is_some_and(|s| s >= LONG_S)
    }

    /// Mean number of requests in flight (Little's law).
    pub fn in_flight(&self) -> f64 {
        self.main.answered_rps * self.main.response.mean / 1e6
    }

    /// Retransmitted segments per request on accepted connections, without retransmitted SYNs. Segments that had
    /// arrived after all do not count: the receiver reports them (D-SACK, RFC 2883). On a busy machine the kernel sends
    /// such tail loss probes.
    pub fn retransmitted(&self) -> f64 {
        let first = self.servers().into_iter().next();
        let needless = |v: &ServerEvidence<'_>| v.moved("TCPSynRetrans") + v.moved("TCPDSACKRecv");
        self.per_request(first.map_or(0, |v| v.moved("RetransSegs").saturating_sub(needless(&v))))
    }

    /// True if segments were retransmitted and a few answers are very late: one in a hundred, or fewer that dominate
    /// the mean.
    pub fn few_wait_long(&self) -> bool {
        let r = self.main.response;
        let first = self.servers().into_iter().next();
        let timeouts =
            self.per_request(first.map_or(0, |v| v.moved("TCPTimeouts").saturating_sub(v.moved("TCPSynRetrans"))));
        let one_of_a_hundred = r.p99 >= RETRANSMISSION_US && r.p50 < 0.25 * r.p99;
        let the_mean = r.max >= RETRANSMISSION_US && r.mean >= 3.0 * r.p50 && timeouts >= TIMEOUTS;
        self.retransmitted() > RETRANSMITTED && (one_of_a_hundred || the_mean)
    }

    /// True if more than 1 % of the answers are server errors. Rejections by a configured limit do not count if the log
    /// reports them.
    pub fn errors(&self) -> bool {
        self.main.share_of_errors(self.logs_rejections()) > 0.01
    }

    /// True if one user alone gets mostly errors, too: then no load makes them, and no full processor.
    pub fn fails_for_one_user(&self) -> bool {
        let fails = |step: &ExaminationStep| step.share_of_errors(self.logs_rejections()) > 0.5;
        fails(self.main) && self.alone.is_some_and(fails)
    }

    /// True if a log says that a configured limit rejects clients.
    pub fn logs_rejections(&self) -> bool {
        self.servers().iter().any(|v| v.log("rate-limited") > 0)
    }

    /// Mean number of busy cores.
    pub fn busy_cores(&self) -> f64 {
        self.main.busy_cores()
    }

    /// Cores that the servers and the load used.
    pub fn own_cores(&self) -> f64 {
        self.main.own_cores()
    }

    /// Returns the core seconds per request, and the cores available to requests: all but those that other programs
    /// use.
    fn demand(&self) -> (f64, f64) {
        let others = self.main.generator.others_cores;
        // Time that is neither ours nor known to be another program's belongs to requests, too: the kernel, or a peer
        // that was not sampled.
        let used = (self.busy_cores() - others).max(self.own_cores());
        // Rejected requests cost processor time, too.
        let asked = self.main.answered_rps + self.per_second(self.main.unanswered());
        (used / asked, self.main.cores.len() as f64 * (1.0 - self.main.steal) - others)
    }

    /// True if the processors on which the servers may run are full, and the servers fill them. If other programs fill
    /// them, servers whose workers mostly sleep do not lack processors.
    pub fn cpu_full(&self) -> bool {
        let busy = self.busy_cores();
        // Runnable workers lack processors, too, whichever program uses these. Without a pool most threads may be idle:
        // then more than one runnable thread is enough.
        let could_run = |v: &ServerEvidence<'_>| {
            let least = if v.has_pool() { 0.6 * v.busy().max(1.5) } else { 1.5 };
            v.seen.waiting("running") >= least && !v.is(&["mariadb", "postgresql"])
        };
        // A process that a server starts for a request ends before its time is read. It is not another program's
        // either.
        let others = self.main.generator.others_cores;
        let starts = self.servers().iter().any(|v| v.calls("exec") >= 0.3);
        let by_children = starts && others > 0.0 && others <= 0.4 * busy;
        let by_us = self.own_cores() >= 0.75 * busy || by_children || self.servers().iter().any(could_run);
        self.used() >= FULL && by_us
    }

    /// Used share of the processors on which the servers may run. Steal counts as used: something here wanted to run.
    fn used(&self) -> f64 {
        let cpus = self.all.servers.first().map_or(&[][..], |s| &s.cpus[..]);
        self.main.busy(cpus) + self.main.steal
    }

    /// Number of processors on which a server may run.
    pub fn cpus_of(&self, v: &ServerEvidence<'_>) -> f64 {
        if v.about.cpus.is_empty() { self.main.cores.len() as f64 } else { v.about.cpus.len() as f64 }
    }

    /// True if processors are not what is lacking.
    pub fn cpu_idle(&self) -> bool {
        self.used() < FULL - 0.05 || !self.cpu_full()
    }

    /// Adds what the load felt to a limit that only one or two counters prove, up to [`MIN_NUMBERS`].
    pub fn with_load_evidence(&self, mut limit: Finding) -> Finding {
        let share = self.main.unanswered() as f64 / self.main.due.max(1) as f64;
        let errors = self.main.share_of_status(|s| s.starts_with('5'));
        let felt = [
            ("load", "share of the requests without an answer", share, 0.005),
            ("load", "share of the answers with a status of 5xx", errors, 0.01),
            ("load", "time of an answer, against one user alone", self.slower().unwrap_or(0.0), SLOWER),
            ("/proc/stat", "cores busy", self.busy_cores(), 0.0),
            ("load", "answers a second", self.main.answered_rps, 0.0),
            ("load", "mean time of an answer, ms", self.main.response.mean / 1e3, 0.0),
        ];
        for (source, name, value, from) in felt.into_iter().filter(|(_, _, value, from)| value > from) {
            if limit.evidence.iter().filter(|e| e.speaks()).count() < MIN_NUMBERS
                && !limit.evidence.iter().any(|e| e.source == source && e.name == name)
            {
                limit = limit.evidence(source, name, value, from);
            }
        }
        limit
    }

    pub fn per_request(&self, n: u64) -> f64 {
        // Other clients' requests are not counted, but each of their connections brought at least one.
        let asked = match self.all.load {
            LoadShape::Foreign => self.servers().first().map_or(0, |v| v.moved("PassiveOpens")),
            _ => self.main.answered,
        };
        n as f64 / asked.max(1) as f64
    }

    /// Returns what a request costs, see [`ExaminationStep::cpu_per_request_s`]. Where workers started throughout the main load, that
    /// of another step, if it is less.
    pub fn cpu_per_request_s(&self) -> Option<f64> {
        let main_s = self.main.cpu_per_request_s()?;
        let others = self.all.whole_steps().filter(|step| self.main.starting && !step.starting);
        Some(others.filter_map(ExaminationStep::cpu_per_request_s).filter(|s| *s > 0.0).fold(main_s, f64::min))
    }

    pub fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.main.duration_s.max(1e-3)
    }

    /// Expected throughput without some of a request's processor time. Throughput rises if processors are lacking;
    /// otherwise the time of a request falls. `spared` holds the minimum, likely and maximum seconds per request.
    pub fn without_cpu(&self, spared: [f64; 3], reason: impl Into<String>) -> Option<ExpectedGain> {
        // For one user alone this is the whole time of a request; for a load that fills the processors, its processor
        // time.
        let all =
            if self.cpu_full() { self.cpu_per_request_s()? } else { self.alone_s()?.max(self.cpu_per_request_s()?) };
        // Some of a request always remains.
        let ratio = |spared: f64| round(1.0 / (1.0 - (spared / all).clamp(0.0, 0.9)));
        let [least, likely, most] = spared.map(ratio);
        (all > 0.0).then(|| ExpectedGain { ratio: likely, interval: Some([least, most]), reason: reason.into() })
    }

    pub fn inside(&self, server: &str) -> Option<&'a ServerProfile> {
        self.all.inside.iter().find(|i| i.server == server)
    }

    /// Answers per second without server errors. If most requests fail, it is chance how many succeed: then the rate is
    /// taken over all the time of this load.
    fn good_rps(&self) -> f64 {
        let inside = self.all.step(StepKind::Inside).filter(|_| self.main.unanswered() > self.main.answered);
        let steps = [Some(self.main), inside];
        let good = |step: &ExaminationStep| step.answered as f64 * (1.0 - step.share_of_status(|s| s.starts_with('5')));
        let (answered, seconds) =
            steps.iter().flatten().fold((0.0, 0.0), |(n, s), step| (n + good(step), s + step.duration_s));
        answered / seconds.max(1e-3)
    }

    /// Highest throughput that users and processors allow, as a ratio to now: N / S of one user alone, and cores / D.
    /// `workers` caps the requests at once, each of which takes as long as for one user alone. (Bottleneck bounds of
    /// operational analysis; Denning and Buzen 1978.)
    pub fn bound(&self, workers: Option<f64>) -> Option<ExpectedGain> {
        let now = self.good_rps();
        let service = self.alone_s().filter(|s| *s > 0.0)?;
        if now <= 0.0 {
            return None;
        }
        let (demand, cores) = self.demand();
        let by_cpu = if demand > 0.0 { cores / demand } else { f64::INFINITY };
        let users = match self.all.load {
            LoadShape::Closed => f64::from(self.main.users) / service,
            _ => self.main.rate_rps.max(now),
        };
        let by_workers = workers.map_or(f64::INFINITY, |w| w / service);
        let most = by_cpu.min(users).min(by_workers);
        let why = if most == by_workers {
            format!("{:.0} workers, each {} a request", workers.unwrap_or(0.0), show_us(service * 1e6))
        } else if most == by_cpu {
            let servers = self
                .cpu_per_request_s()
                .map_or_else(String::new, |s| format!(", of which {} the servers' own", show_us(s * 1e6)));
            format!(
                "{} of processor time per request, load and kernel included{servers}, on {cores:.2} cores",
                show_us(demand * 1e6)
            )
        } else {
            format!("{} users, each {} a request when nobody waits", self.main.users, show_us(service * 1e6))
        };
        Some(ExpectedGain { ratio: round(most / now), interval: None, reason: why })
    }
}

impl<'a> ServerEvidence<'a> {
    pub fn kind(&self) -> &'a str {
        &self.about.kind
    }

    pub fn is(&self, kinds: &[&str]) -> bool {
        kinds.contains(&self.kind())
    }

    /// True if the server is Node, even if it was found only as a process.
    pub fn is_node(&self) -> bool {
        self.is(&["node"]) || self.about.software == "node"
    }

    pub fn setting(&self, name: &str) -> Option<String> {
        self.about.settings.get(name).map(ToString::to_string)
    }

    pub fn count(&self, name: &str) -> Option<f64> {
        self.about.settings.get(name)?.count().map(|n| n as f64)
    }

    /// Name and value of the setting that replaces a worker after a number of requests (Apache: connections). 0 means
    /// never.
    pub fn recycling(&self) -> Option<(&'static str, f64)> {
        const NAMES: [&str; 5] =
            ["MaxConnectionsPerChild", "pm.max_requests", "max_requests", "max-requests", "max_requests_per_worker"];
        NAMES.into_iter().find_map(|name| Some((name, self.count(name)?)))
    }

    /// Number of lines of this kind in the error log; `sample_line` returns one of them.
    pub fn log(&self, what: &str) -> u64 {
        self.seen.log.get(what).copied().unwrap_or(0)
    }

    pub fn sample_line(&self, what: &str) -> &'a str {
        self.seen.log_samples.get(what).map_or("", String::as_str)
    }

    /// True if, under other clients' load, the log has at least one such line per second. Nothing else shows what it
    /// means for them.
    pub fn logged_for_other_clients(&self, what: &str) -> bool {
        self.case.all.load == LoadShape::Foreign && self.case.per_second(self.log(what)) >= 1.0
    }

    /// Increase of a counter in the server's network namespace.
    pub fn moved(&self, counter: &str) -> u64 {
        self.seen.kernel.get(counter).copied().unwrap_or(0)
    }

    /// Outgoing connections: the open ones, the unanswered ones, and the address with most of the unanswered.
    pub fn outgoing_connections(&self) -> (f64, f64, &'a str) {
        // An address that was never reached is not among the known peers. On the front, connections to its own ports
        // are the load's.
        let port = |address: &str| address.rsplit(':').next().unwrap_or_default().to_string();
        let own_ports: Vec<String> = self.about.listens.iter().map(|l| port(l)).collect();
        let is_own =
            |to: &String| self.about.connects.contains(to) || self.place == 0 && !own_ports.contains(&port(to));
        let own = self.seen.peers.iter().filter(|(to, _)| is_own(to));
        let (mut open, mut opening, mut most) = (0.0, 0.0, ("", 0.0));
        for (to, peer) in own {
            (open, opening) = (open + peer.open, opening + peer.opening);
            if peer.opening > most.1 {
                most = (to.as_str(), peer.opening);
            }
        }
        (open, opening, most.0)
    }

    /// Traced calls of this kind per request.
    pub fn calls(&self, sort: &str) -> f64 {
        self.case.inside(&self.about.server).and_then(|i| i.calls.get(sort)).copied().unwrap_or(0.0)
    }

    /// Mean number of workers with this letter in the scoreboard. None if it could not be read.
    pub fn letters(&self, letter: &str) -> Option<f64> {
        (!self.seen.scoreboard.is_empty()).then(|| self.seen.scoreboard.get(letter).copied().unwrap_or(0.0))
    }

    /// Mean length of the listen queue.
    pub fn queue(&self) -> f64 {
        self.seen.queue_mean.unwrap_or(0.0)
    }

    /// True if each worker (process or thread) serves one request at a time.
    pub fn has_pool(&self) -> bool {
        self.about.one_request_a_worker
            || self.is(&["apache", "php-fpm", "gunicorn", "uwsgi", "puma", "target", "tomcat"])
    }

    /// True if its only process computes all the time, even if other programs take the processor now and then.
    pub fn one_computes(&self) -> bool {
        let starved = self.case.main.generator.others_cores >= 0.3
            && self.case.busy_cores() >= 0.8 * self.case.main.cores.len() as f64;
        // One thread of it, not several in parallel.
        let runs = self.seen.workers_most <= 1 && (ONE_CORE..1.5).contains(&self.seen.waiting("running"));
        self.seen.hottest_process_cores >= ONE_CORE || starved && runs
    }

    /// True if each worker of this application server has an event loop.
    pub fn is_async(&self) -> bool {
        let class = self.setting("worker_class").unwrap_or_default().to_lowercase();
        ["gevent", "eventlet", "tornado", "uvicorn", "async", "aiohttp"].iter().any(|name| class.contains(name))
    }

    /// True if each worker is a process with one thread.
    pub fn one_thread_each(&self) -> bool {
        self.seen.threads <= self.seen.workers_most as f64 * 1.3 + 0.5
    }

    /// Mean number of busy workers, from the states of their threads, or from the status page if these do not show it.
    /// Threads whose state is hidden do not count as busy.
    pub fn busy(&self) -> f64 {
        let unseen = self.seen.waiting("unseen");
        // Ruby has threads of its own beside Puma's, which wait on a pipe for signals. So does the first thread of each
        // Apache process.
        let own = match self.kind() {
            "puma" => self.seen.waiting("pipe") + self.seen.waiting("other"),
            "apache" if !self.one_thread_each() => self.seen.waiting("pipe").min(self.seen.workers_most as f64),
            _ => 0.0,
        };
        let at_rest = self.seen.waiting("idle") + self.seen.waiting("events") + own;
        let by_threads = (self.seen.threads - at_rest - unseen).max(0.0);
        if self.one_thread_each() && (unseen < 0.1 * self.seen.threads || self.seen.status_busy.is_none()) {
            return by_threads;
        }
        // Idle threads of a pool wait on a condition variable, and so do some busy ones. An Apache thread sleeps, or
        // waits for a peer or a lock, only during a request. If the workers run in step, the status page is made while
        // the others are between two requests.
        let surely = |what: &&str| self.is(&["apache"]).then(|| self.seen.waiting(what));
        let surely: f64 = ["sleep", "peer", "lock"].iter().filter_map(surely).sum();
        self.seen.status_busy.map_or_else(|| (by_threads - self.seen.waiting("futex")).max(0.0), |n| n.max(surely))
    }

    /// Maximum number of requests that the server handles at once.
    pub fn size(&self) -> f64 {
        let pool = self.about.pool.as_ref().and_then(|name| self.count(name)).filter(|n| *n > 0.0);
        let threads = self.count("threads").filter(|n| *n > 1.0).unwrap_or(1.0);
        match pool {
            Some(n) if self.is(&["apache"]) => n,
            Some(n) if self.is(&["gunicorn", "uwsgi", "puma"]) => n * threads,
            Some(n) => n,
            None if self.one_thread_each() => self.seen.workers_most as f64,
            None => self.seen.threads,
        }
    }

    /// Serving threads of a threaded Apache. Each process also has a listener thread and one that does nothing.
    pub fn apache_threads(&self) -> f64 {
        (self.seen.threads - 2.0 * self.seen.workers_most as f64).max(1.0)
    }

    /// True if all available workers are busy.
    pub fn is_full(&self) -> bool {
        let living = match () {
            // A pool that grew to its limit during the step was smaller before, but as full.
            () if self.one_thread_each() && self.seen.workers_last as f64 >= GROWN * self.size() => self.seen.threads,
            () if self.one_thread_each() => self.seen.workers_most as f64,
            () if self.is(&["apache"]) => self.apache_threads(),
            () => self.size(),
        };
        let most = self.size().min(living.max(1.0)).max(1.0);
        // A worker that was free a moment ago makes the status page, while others are between two requests.
        let by_page = !self.one_thread_each() && self.seen.status_busy.is_some() && self.queue() >= 1.0;
        self.busy() >= if by_page { FULL_POOL_WITH_A_QUEUE } else { FULL_POOL } * most
    }

    /// Threads that wait for a name server.
    pub fn names_asked(&self) -> f64 {
        let asks = |what: &str| what.starts_with("peer ") && what.ends_with(":53");
        self.seen.waits.iter().filter(|(what, _)| asks(what)).map(|(_, n)| n).sum()
    }

    /// Share of the busy workers in this state.
    pub fn share(&self, what: &str) -> f64 {
        self.seen.waiting(what) / self.busy().max(0.5)
    }

    /// Fixes that raise the number of workers: the pool's directive, and `ServerLimit` if it is lower.
    pub fn more_workers(&self, to: f64) -> Vec<Fix> {
        let Some(name) = &self.about.pool else { return Vec::new() };
        let processes = self.processes_for(to);
        let mut all = vec![self.fix(name, json!((processes * self.threads_a_process()) as i64))];
        if self.count("ServerLimit").is_some_and(|limit| limit < processes) {
            all.push(self.fix("ServerLimit", json!(processes as i64)));
        }
        all
    }

    /// Number of processes needed for this many workers.
    pub fn processes_for(&self, workers: f64) -> f64 {
        (workers / self.threads_a_process()).ceil()
    }

    /// Workers per process: `ThreadsPerChild` in a threaded Apache, otherwise 1.
    fn threads_a_process(&self) -> f64 {
        let is_threaded = self.is(&["apache"]) && !self.about.one_request_a_worker;
        self.count("ThreadsPerChild").filter(|n| is_threaded && *n >= 1.0).unwrap_or(1.0)
    }

    pub fn fix(&self, name: &str, to: Value) -> Fix {
        let from = self.about.settings.get(name).map_or(Value::Null, |v| json!(v));
        Fix {
            server: self.about.server.clone(),
            knob: name.into(),
            from,
            to,
            needs: self.about.needs.get(name).cloned().unwrap_or_else(|| "reload".into()),
            place: self.about.sources.get(name).cloned().unwrap_or_default(),
        }
    }

    /// True if its workers embed a program (mod_php, mod_perl) that needs a process for each request.
    pub fn needs_prefork(&self) -> bool {
        let is_one = |name: &str| ["libphp", "mod_perl", "mod_php"].iter().any(|known| name.starts_with(known));
        let inside = self.case.inside(&self.about.server);
        self.about.embeds.iter().any(|name| is_one(name))
            || inside.is_some_and(|i| {
                i.libraries.keys().any(|library| is_one(library.rsplit('/').next().unwrap_or_default()))
            })
    }

    /// Evidence from which the number of workers is computed. None for a server without a pool, or with a pool of event
    /// loops.
    fn workers_evidence(&self) -> Option<WorkersEvidence> {
        self.about.pool.as_ref().filter(|_| self.has_pool() && !self.is_async())?;
        let case = self.case;
        let request = case.cpu_per_request_s().zip(case.alone_s()).map(|(cpu_s, held_s)| RequestCost { cpu_s, held_s });
        let on = self.is(&["apache"]) && self.setting("KeepAlive").is_some_and(|s| s.eq_ignore_ascii_case("on"));
        let holds = on && !self.about.software.contains("event");
        // Users who share connections do not hold a worker each.
        let holds_one = case.all.load == LoadShape::Closed && case.main.keepalive && !case.main.shares_connections;
        let users = if holds_one { f64::from(case.main.users) } else { 0.0 };
        // Real visitors show how many connections are idle; users of our load ask again at once.
        let idle = (self.seen.other_clients >= 1.0).then(|| self.held_by_idle());
        Some(WorkersEvidence {
            cores: case.cpus_of(self).min(self.seen.cpu_limit_cores.unwrap_or(f64::INFINITY)),
            request: request.filter(|_| case.all.load != LoadShape::Foreign),
            rate_rps: None,
            keep_alive: holds.then(|| KeepAliveHold {
                timeout_s: self.count("KeepAliveTimeout").unwrap_or(5.0),
                idle,
                users,
            }),
            ceilings: self.about.ceilings.clone(),
            together: self.threads_a_process() as u64,
            event_mpm: self.is(&["apache"]) && !self.needs_prefork(),
        })
    }

    /// Number of workers that it should have: the need, capped by the ceilings.
    pub fn workers_advice(&self) -> Option<WorkersAdvice> {
        Some(WorkersAdvice { server: self.about.server.clone(), ..advise(&self.workers_evidence()?)? })
    }

    /// Workers that idle keep-alive connections hold.
    pub fn held_by_idle(&self) -> f64 {
        self.seen.waiting("client kept").max(self.letters("K").unwrap_or(0.0))
    }

    /// Pool size with which no request would wait, as far as users and processors allow. If memory is unknown, no more
    /// than the users of the load could use.
    pub fn wanted_workers(&self) -> f64 {
        let users = f64::from(self.case.main.users).max(1.0);
        let waiting = self.busy() + self.queue();
        let for_users = (waiting * 1.25).max(self.size() * 2.0).max(users * 1.2).min(self.size() * 16.0).ceil();
        let advice = self.workers_advice();
        let knows_memory = self.about.ceilings.iter().any(|c| c.by == "memory");
        match advice.filter(|advice| advice.need.is_some()) {
            Some(advice) if knows_memory => advice.number as f64,
            Some(advice) => (advice.number as f64).min(for_users),
            None => for_users.min(self.about.ceilings.iter().map(|c| c.number as f64).fold(f64::INFINITY, f64::min)),
        }
    }
}

pub fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// Length for a listen queue whose `limit` has overflowed.
pub fn longer_queue(limit: u64) -> u64 {
    (limit * 8).clamp(511, 4096).max(limit * 2)
}

/// Starts a finding.
pub fn finding(confidence: f64, title: impl Into<String>) -> Finding {
    Finding { confidence: round(confidence), title: title.into(), severity: Severity::Limit, ..Finding::default() }
}

/// Builds a finding, one method call per line.
pub trait FindingBuilder {
    fn of(self, view: &ServerEvidence<'_>) -> Finding;
    fn evidence(self, source: &str, name: &str, value: impl Into<Value>, threshold: impl Into<Value>) -> Finding;
    fn ruled_out(self, against: impl Into<String>) -> Finding;
    fn fix(self, fix: Vec<Fix>, advice: impl Into<String>) -> Finding;
    fn expected(self, expect: Option<ExpectedGain>) -> Finding;
    fn verify(self, check: impl Into<String>) -> Finding;
}

impl FindingBuilder for Finding {
    fn of(mut self, view: &ServerEvidence<'_>) -> Finding {
        self.server = view.about.server.clone();
        self
    }

    fn evidence(mut self, source: &str, name: &str, value: impl Into<Value>, threshold: impl Into<Value>) -> Finding {
        let value = match value.into() {
            Value::Number(n) if n.is_f64() => json!(round(n.as_f64().unwrap_or(0.0))),
            other => other,
        };
        let threshold = threshold.into();
        // An absent sign proves nothing, nor does a number that could not be read. An unset setting does prove
        // something.
        let is_absent = value.as_f64() == Some(0.0) && threshold.as_f64().is_some_and(|t| t > 0.0);
        let is_unread = value.is_null() && source != "configuration";
        if !is_absent && !is_unread {
            self.evidence.push(Evidence { source: source.into(), name: name.into(), value, threshold });
        }
        self
    }

    fn ruled_out(mut self, against: impl Into<String>) -> Finding {
        self.against.push(against.into());
        self
    }

    fn fix(mut self, fix: Vec<Fix>, advice: impl Into<String>) -> Finding {
        (self.fix, self.advice) = (fix, advice.into());
        self
    }

    fn expected(mut self, expect: Option<ExpectedGain>) -> Finding {
        self.expect = expect.filter(|e| e.ratio.is_finite() && e.ratio >= 1.0);
        self
    }

    fn verify(mut self, check: impl Into<String>) -> Finding {
        self.check = check.into();
        self
    }
}
