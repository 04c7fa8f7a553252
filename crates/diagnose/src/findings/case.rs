//! What the rules look at: the evidence, and what follows from it by arithmetic.

use lastdrop_analyze::workers::{KeepAliveHold, RequestCost, WorkersEvidence, advise};
use lastdrop_model::documents::{Evidence, ExpectedGain, Finding, Fix, Severity, WorkersAdvice};
use lastdrop_model::examination::{
    Examination, ExaminationStep, ExaminedServer, LoadShape, ServerMeasurements, ServerProfile, StepKind,
};
use lastdrop_model::units::show_us;
use serde_json::{Value, json};

/// From here on processors have nothing left.
const FULL: f64 = 0.9;
/// A thread or process that uses this much of a processor has no more.
pub const ONE_CORE: f64 = 0.88;
/// Differences of times below this mean nothing.
const NOISE_US: f64 = 1_000.0;
/// Segments sent again for each answer from which on packets are said to be lost.
pub(super) const SENT_AGAIN: f64 = 0.02;
/// Times a request that nobody has answered until a timer ran out.
const LOST_FOR_LONG: f64 = 1e-3;
/// The least time until one is sent again.
pub(super) const RETRANSMISSION_US: f64 = 190_000.0;
/// Lines of error logs that say that a request had no answer, or not its own.
const GOES_WITHOUT: &[&str] = &[
    "worker-connections",
    "descriptors",
    "upstream-full",
    "no-ports",
    "database-connections",
    "fork-failed",
    "crash",
    "killed",
];
/// Of all requests so many wait for a connection to be answered.
pub(super) const UNANSWERED: f64 = 0.3;
/// Answers that take so many times as long as for one user alone.
const SLOWER: f64 = 1.3;
const MUCH_SLOWER: f64 = 3.0;
/// A limit is shown by so many numbers at least, where there are so many.
const NUMBERS: usize = 3;
/// From here on somebody who waits for an answer notices: seconds.
const LONG_S: f64 = 0.15;
/// A pool that has this share of the workers that it may have has grown.
const GROWN: f64 = 0.95;
/// A pool of which this share is at work has nobody left.
const EVERYBODY: f64 = 0.85;
/// The same by a status page, while connections wait all along.
const EVERYBODY_WITH_A_QUEUE: f64 = 0.75;

#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub all: &'a Examination,
    /// The load that is asked about.
    pub main: &'a ExaminationStep,
    pub alone: Option<&'a ExaminationStep>,
}

/// A server, and what was seen of it under the load that is asked about.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub case: &'a Case<'a>,
    /// Its place in the chain: 0 is the one that the URL leads to.
    pub place: usize,
    pub about: &'a ExaminedServer,
    pub seen: &'a ServerMeasurements,
}

impl<'a> Case<'a> {
    pub fn of(all: &'a Examination) -> Option<Case<'a>> {
        Some(Case { all, main: all.main()?, alone: all.step(StepKind::Alone) })
    }

    pub fn servers(&'a self) -> Vec<View<'a>> {
        let view = |(place, about): (usize, &'a ExaminedServer)| {
            Some(View { case: self, place, about, seen: self.main.server(&about.server)? })
        };
        self.all.servers.iter().enumerate().filter_map(view).collect()
    }

    /// Mean service time of one user alone, seconds.
    pub fn alone_s(&self) -> Option<f64> {
        self.alone.filter(|s| s.service.count > 0).map(|s| s.service.mean / 1e6)
    }

    /// How much longer answers take than for one user alone. None where that is not known.
    pub fn slower(&self) -> Option<f64> {
        let step = self.alone.filter(|s| s.response.count > 0)?;
        // One who is turned away most of the time is answered sooner: their times tell nothing of each other.
        let turned_away = |s: &ExaminationStep| s.share_of_status(|s| ["429", "503", "403"].contains(&s));
        if (turned_away(step) - turned_away(self.main)).abs() > 0.1 && !self.errors() {
            return Some(1.0);
        }
        let alone = step.response.mean;
        let times = self.main.response.mean / alone.max(1.0);
        // Whoever answers tens of thousands a second by one thread is full long before anybody waits for a millisecond.
        let is_full = |v: &View<'_>| v.seen.hottest_thread_cores >= ONE_CORE;
        let full = self.all.load == LoadShape::Closed && times >= MUCH_SLOWER && self.servers().iter().any(is_full);
        // Else a part of a millisecond more is the machine's noise.
        let noise = !full && self.main.response.mean - alone < NOISE_US;
        (self.main.response.count > 0).then_some(if noise { 1.0 } else { times })
    }

    /// Does anybody wait, or go without? Otherwise nothing limits: it is the users who do not ask for more.
    pub fn somebody_waits(&self) -> bool {
        // Whoever finds no place in a queue tries again after a second: one of hundreds, of whom a mean says nothing.
        let turned_away = self.servers().iter().map(|v| v.moved("ListenOverflows")).max().unwrap_or(0);
        let refused = self.main.unanswered().max(turned_away) * 200 > self.main.due.max(1);
        let errors = self.errors();
        // Where others fill the server one user alone waits as long as many.
        let queue = self.servers().iter().any(|v| v.queue() >= 0.9);
        // A lock that another program holds makes one user alone wait as well.
        let locked = self.main.databases.iter().any(|look| look.lock_wait_mean.is_some_and(|n| n >= 1.0));
        // Users who have no descriptor or port do not even ask.
        let ours = self.main.generator.no_descriptors + self.main.generator.no_ports > 0;
        // A rate that is answered as it comes is bounded by nothing; answers that take several times as long are.
        let slower = match self.all.load {
            LoadShape::Open if self.main.answered_rps >= 0.98 * self.main.rate_rps => MUCH_SLOWER,
            _ => SLOWER,
        };
        // Nobody answers when a server behind is connected to: one user alone meets that as well.
        let unanswered =
            self.servers().iter().any(|v| v.made().1 >= 1.0 && v.made().1 >= UNANSWERED * self.in_flight());
        // A few of thousands are no share, and yet somebody: their server has said so.
        let told = self.servers().iter().any(|v| {
            let lines: u64 = GOES_WITHOUT.iter().map(|what| v.log(what)).sum();
            lines >= 5 || v.is_told_of_others("upstream-refused")
        });
        let certainly = queue || refused || errors || locked || ours || unanswered || told;
        match self.all.load {
            LoadShape::Foreign => certainly,
            // Lost packets make one user alone wait as well as many.
            _ => certainly || self.few_wait_long() || self.slower().is_none_or(|times| times > slower),
        }
    }

    /// Do all users wait for long, each as long as if there were nobody else? Then it is what they wait for that bounds a closed loop:
    /// N users, S each, give N / S and no more.
    pub fn each_waits_long(&self) -> bool {
        self.all.load == LoadShape::Closed && self.cpu_idle() && self.alone_s().is_some_and(|s| s >= LONG_S)
    }

    /// Requests at once, on average (Little's law).
    pub fn in_flight(&self) -> f64 {
        self.main.answered_rps * self.main.response.mean / 1e6
    }

    /// Segments were sent again, of connections that somebody has taken: the first one of others is sent again, too. Those that had arrived
    /// all the same are told by who got them twice (D-SACK, RFC 2883): on a busy machine the kernel loses patience (tail loss probes).
    pub fn sent_again(&self) -> f64 {
        let first = self.servers().into_iter().next();
        let needless = |v: &View<'_>| v.moved("TCPSynRetrans") + v.moved("TCPDSACKRecv");
        self.per_request(first.map_or(0, |v| v.moved("RetransSegs").saturating_sub(needless(&v))))
    }

    /// Are a few answers very late, and segments sent again? Be it one of a hundred, or of so many that the mean is theirs.
    pub fn few_wait_long(&self) -> bool {
        let r = self.main.response;
        let first = self.servers().into_iter().next();
        let timeouts =
            self.per_request(first.map_or(0, |v| v.moved("TCPTimeouts").saturating_sub(v.moved("TCPSynRetrans"))));
        let one_of_a_hundred = r.p99 >= RETRANSMISSION_US && r.p50 < 0.25 * r.p99;
        let the_mean = r.max >= RETRANSMISSION_US && r.mean >= 3.0 * r.p50 && timeouts >= LOST_FOR_LONG;
        self.sent_again() > SENT_AGAIN && (one_of_a_hundred || the_mean)
    }

    /// Do some get an answer that says that something went wrong? Those that a limit turns away, which says so in the log, do not.
    pub fn errors(&self) -> bool {
        let limits = self.says_that_it_limits();
        self.main.share_of_status(|s| s.starts_with('5') && !(limits && s == "503")) > 0.01
    }

    /// Does a log say that a configured limit turns clients away?
    pub fn says_that_it_limits(&self) -> bool {
        self.servers().iter().any(|v| v.log("rate-limited") > 0)
    }

    /// Cores that ran something, of all.
    pub fn busy_cores(&self) -> f64 {
        self.main.busy_cores()
    }

    /// Cores that the servers and the load used.
    pub fn own_cores(&self) -> f64 {
        self.main.own_cores()
    }

    /// Seconds of a core that a request takes, and the cores that there are for requests: those that other programs do not have.
    fn demand(&self) -> (f64, f64) {
        let others = self.main.generator.others_cores;
        // What is neither ours nor known to be others' belongs to requests, too: the kernel, a peer that nobody looked at.
        let used = (self.busy_cores() - others).max(self.own_cores());
        // Whoever is turned away costs something, too.
        let asked = self.main.answered_rps + self.per_second(self.main.unanswered());
        (used / asked, self.main.cores.len() as f64 * (1.0 - self.main.steal) - others)
    }

    /// Are the processors full on which the servers may run, and is it them who fill them? Where other programs do, servers
    /// whose workers mostly sleep do not lack processors.
    pub fn cpu_full(&self) -> bool {
        let busy = self.busy_cores();
        // Workers that could run and may not lack processors, too, whoever has them. Where there is no pool most threads may have nothing
        // to do: it runs on as many processors as there are.
        let could_run = |v: &View<'_>| {
            let least = if v.has_pool() { 0.6 * v.busy().max(1.5) } else { 1.5 };
            v.seen.waiting("running") >= least && !v.is(&["mariadb", "postgresql"])
        };
        // What a server starts for each request is gone before its time is read; it is none of others' either.
        let others = self.main.generator.others_cores;
        let starts = self.servers().iter().any(|v| v.calls("exec") >= 0.3);
        let by_children = starts && others > 0.0 && others <= 0.4 * busy;
        let by_us = self.own_cores() >= 0.75 * busy || by_children || self.servers().iter().any(could_run);
        self.used() >= FULL && by_us
    }

    /// The share that is used of the processors on which the servers may run. Time that the hypervisor gave to others is time in which
    /// somebody here wanted to run.
    fn used(&self) -> f64 {
        let cpus = self.all.servers.first().map_or(&[][..], |s| &s.cpus[..]);
        self.main.busy(cpus) + self.main.steal
    }

    /// Processors on which a server may run.
    pub fn cpus_of(&self, v: &View<'_>) -> f64 {
        if v.about.cpus.is_empty() { self.main.cores.len() as f64 } else { v.about.cpus.len() as f64 }
    }

    /// Is it not processors that lack?
    pub fn cpu_idle(&self) -> bool {
        self.used() < FULL - 0.05 || !self.cpu_full()
    }

    /// Adds to a limit that one or two counters prove what the load felt of it, up to [`NUMBERS`].
    pub fn felt(&self, mut limit: Finding) -> Finding {
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
            if limit.evidence.iter().filter(|e| e.speaks()).count() < NUMBERS
                && !limit.evidence.iter().any(|e| e.source == source && e.name == name)
            {
                limit = limit.seen(source, name, value, from);
            }
        }
        limit
    }

    pub fn per_request(&self, n: u64) -> f64 {
        // What others ask is not counted; one request at least came with each of their connections.
        let asked = match self.all.load {
            LoadShape::Foreign => self.servers().first().map_or(0, |v| v.moved("PassiveOpens")),
            _ => self.main.answered,
        };
        n as f64 / asked.max(1) as f64
    }

    pub fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.main.duration_s.max(1e-3)
    }

    /// What throughput should be without so much of a request's processor time: it goes up as that goes down where processors are what lacks,
    /// and the time of a request goes down elsewhere. `spared` are the least, the likely and the most seconds per request.
    pub fn without_cpu(&self, spared: [f64; 3], because: impl Into<String>) -> Option<ExpectedGain> {
        // Of one user alone all that a request takes; of a load that fills processors what it takes of these.
        let all = if self.cpu_full() {
            self.main.cpu_per_request_s()?
        } else {
            self.alone_s()?.max(self.main.cpu_per_request_s()?)
        };
        // Something of a request is always left.
        let ratio = |spared: f64| round(1.0 / (1.0 - (spared / all).clamp(0.0, 0.9)));
        let [least, likely, most] = spared.map(ratio);
        (all > 0.0).then(|| ExpectedGain { ratio: likely, interval: Some([least, most]), because: because.into() })
    }

    pub fn inside(&self, server: &str) -> Option<&'a ServerProfile> {
        self.all.inside.iter().find(|i| i.server == server)
    }

    /// Answers a second, but for those that a server gives for want of something. Where most are turned away it is chance how many are not:
    /// then of all the time for which this load was on.
    fn good_rps(&self) -> f64 {
        let inside = self.all.step(StepKind::Inside).filter(|_| self.main.unanswered() > self.main.answered);
        let steps = [Some(self.main), inside];
        let good = |step: &ExaminationStep| step.answered as f64 * (1.0 - step.share_of_status(|s| s.starts_with('5')));
        let (answered, seconds) =
            steps.iter().flatten().fold((0.0, 0.0), |(n, s), step| (n + good(step), s + step.duration_s));
        answered / seconds.max(1e-3)
    }

    /// The largest throughput that users and processors allow, as a ratio to now: N / S of one user alone, and cores / D.
    /// `workers`: no more of them than that at once, each for as long as one user alone takes.
    /// (Bottleneck bounds of operational analysis; Denning and Buzen 1978.)
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
                .main
                .cpu_per_request_s()
                .map_or_else(String::new, |s| format!(", of which {} the servers' own", show_us(s * 1e6)));
            format!(
                "{} of processor time per request, load and kernel included{servers}, on {cores:.2} cores",
                show_us(demand * 1e6)
            )
        } else {
            format!("{} users, each {} a request when nobody waits", self.main.users, show_us(service * 1e6))
        };
        Some(ExpectedGain { ratio: round(most / now), interval: None, because: why })
    }
}

impl<'a> View<'a> {
    pub fn kind(&self) -> &'a str {
        &self.about.kind
    }

    pub fn is(&self, kinds: &[&str]) -> bool {
        kinds.contains(&self.kind())
    }

    /// Is it Node, be it found as a process only?
    pub fn is_node(&self) -> bool {
        self.is(&["node"]) || self.about.software == "node"
    }

    pub fn setting(&self, name: &str) -> Option<String> {
        self.about.settings.get(name).map(ToString::to_string)
    }

    pub fn count(&self, name: &str) -> Option<f64> {
        self.about.settings.get(name)?.count().map(|n| n as f64)
    }

    /// The setting that says after how many requests (Apache: connections) a worker is replaced, and their number; 0: never.
    pub fn recycling(&self) -> Option<(&'static str, f64)> {
        const NAMES: [&str; 5] =
            ["MaxConnectionsPerChild", "pm.max_requests", "max_requests", "max-requests", "max_requests_per_worker"];
        NAMES.into_iter().find_map(|name| Some((name, self.count(name)?)))
    }

    /// Lines of this sort in its error log, and one of them.
    pub fn log(&self, what: &str) -> u64 {
        self.seen.log.get(what).copied().unwrap_or(0)
    }

    pub fn line(&self, what: &str) -> &'a str {
        self.seen.log_samples.get(what).map_or("", String::as_str)
    }

    /// Does its log say so of other people's load, again and again? That is all that is known of what came of it.
    pub fn is_told_of_others(&self, what: &str) -> bool {
        self.case.all.load == LoadShape::Foreign && self.case.per_second(self.log(what)) >= 1.0
    }

    /// By how much a counter of its network moved.
    pub fn moved(&self, counter: &str) -> u64 {
        self.seen.kernel.get(counter).copied().unwrap_or(0)
    }

    /// Connections to those that it connects to: open ones, and those that are not answered yet; with whom most of the latter are.
    pub fn made(&self) -> (f64, f64, &'a str) {
        // Whom nobody has ever reached is none of those that are known; the load itself makes connections to the front alone.
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

    /// Traced calls of this sort a request.
    pub fn calls(&self, sort: &str) -> f64 {
        self.case.inside(&self.about.server).and_then(|i| i.calls.get(sort)).copied().unwrap_or(0.0)
    }

    /// Workers with this letter in the scoreboard, on average. None where it could not be read.
    pub fn letters(&self, letter: &str) -> Option<f64> {
        (!self.seen.scoreboard.is_empty()).then(|| self.seen.scoreboard.get(letter).copied().unwrap_or(0.0))
    }

    /// Connections that wait to be accepted, on average.
    pub fn queue(&self) -> f64 {
        self.seen.queue_mean.unwrap_or(0.0)
    }

    /// Are its workers processes (or threads) that serve one request each?
    pub fn has_pool(&self) -> bool {
        self.about.one_request_a_worker
            || self.is(&["apache", "php-fpm", "gunicorn", "uwsgi", "puma", "target", "tomcat"])
    }

    /// Does its only process compute all the time, be it that others have the processor now and then?
    pub fn one_computes(&self) -> bool {
        let starved = self.case.main.generator.others_cores >= 0.3
            && self.case.busy_cores() >= 0.8 * self.case.main.cores.len() as f64;
        // One thread of it, not several side by side.
        let runs = self.seen.workers_most <= 1 && (ONE_CORE..1.5).contains(&self.seen.waiting("running"));
        self.seen.hottest_process_cores >= ONE_CORE || starved && runs
    }

    /// Do the workers of this application server have an event loop each?
    pub fn is_async(&self) -> bool {
        let class = self.setting("worker_class").unwrap_or_default().to_lowercase();
        ["gevent", "eventlet", "tornado", "uvicorn", "async", "aiohttp"].iter().any(|name| class.contains(name))
    }

    /// Each of its workers is a process of one thread.
    pub fn one_thread_each(&self) -> bool {
        self.seen.threads <= self.seen.workers_most as f64 * 1.3 + 0.5
    }

    /// Workers at work, on average: told by what their threads are at, or by the status page where threads do not tell. Those
    /// that may not be seen are not known to be at work.
    pub fn busy(&self) -> f64 {
        let unseen = self.seen.waiting("unseen");
        // Ruby has threads of its own beside Puma's, which wait for what signals tell; so does the first thread of each of Apache's processes.
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
        // Threads of a pool that have nothing to do wait for a condition; so do some that have.
        // Only a request makes a thread of Apache's wait for these. A status page is made when others are between two requests,
        // where all of them keep time.
        let surely = |what: &&str| self.is(&["apache"]).then(|| self.seen.waiting(what));
        let surely: f64 = ["sleep", "peer", "lock"].iter().filter_map(surely).sum();
        self.seen.status_busy.map_or_else(|| (by_threads - self.seen.waiting("futex")).max(0.0), |n| n.max(surely))
    }

    /// How many may be at work at once.
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

    /// Threads of an Apache that serve: beside them each process has one that listens and one that does nothing.
    pub fn apache_threads(&self) -> f64 {
        (self.seen.threads - 2.0 * self.seen.workers_most as f64).max(1.0)
    }

    /// Is everybody at work who could be?
    pub fn is_full(&self) -> bool {
        let living = match () {
            // One that has grown to its limit meanwhile was smaller before, and as full.
            () if self.one_thread_each() && self.seen.workers_last as f64 >= GROWN * self.size() => self.seen.threads,
            () if self.one_thread_each() => self.seen.workers_most as f64,
            () if self.is(&["apache"]) => self.apache_threads(),
            () => self.size(),
        };
        let most = self.size().min(living.max(1.0)).max(1.0);
        // A status page is read by a worker that was free a moment ago, beside others between two requests.
        let by_page = !self.one_thread_each() && self.seen.status_busy.is_some() && self.queue() >= 1.0;
        self.busy() >= if by_page { EVERYBODY_WITH_A_QUEUE } else { EVERYBODY } * most
    }

    /// Threads that wait for a name server.
    pub fn names_asked(&self) -> f64 {
        let asks = |what: &str| what.starts_with("peer ") && what.ends_with(":53");
        self.seen.waits.iter().filter(|(what, _)| asks(what)).map(|(_, n)| n).sum()
    }

    /// Share of the workers at work that are at this.
    pub fn share(&self, what: &str) -> f64 {
        self.seen.waiting(what) / self.busy().max(0.5)
    }

    /// The directive that says how many workers there are, and a better number; with what else bounds it.
    pub fn more_workers(&self, to: f64) -> Vec<Fix> {
        let Some(name) = &self.about.pool else { return Vec::new() };
        let processes = self.processes_for(to);
        let mut all = vec![self.fix(name, json!((processes * self.threads_a_process()) as i64))];
        if self.count("ServerLimit").is_some_and(|limit| limit < processes) {
            all.push(self.fix("ServerLimit", json!(processes as i64)));
        }
        all
    }

    /// Processes for so many workers.
    pub fn processes_for(&self, workers: f64) -> f64 {
        (workers / self.threads_a_process()).ceil()
    }

    /// Of a threaded Apache.
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

    /// Do programs run inside its workers that need a process for each request?
    pub fn needs_prefork(&self) -> bool {
        let is_one = |name: &str| ["libphp", "mod_perl", "mod_php"].iter().any(|known| name.starts_with(known));
        let inside = self.case.inside(&self.about.server);
        self.about.embeds.iter().any(|name| is_one(name))
            || inside.is_some_and(|i| {
                i.libraries.keys().any(|library| is_one(library.rsplit('/').next().unwrap_or_default()))
            })
    }

    /// What the number of workers follows from. None of a server without a pool, or whose pool is of event loops.
    fn workers_evidence(&self) -> Option<WorkersEvidence> {
        self.about.pool.as_ref().filter(|_| self.has_pool() && !self.is_async())?;
        let case = self.case;
        let request =
            case.main.cpu_per_request_s().zip(case.alone_s()).map(|(cpu_s, held_s)| RequestCost { cpu_s, held_s });
        let on = self.is(&["apache"]) && self.setting("KeepAlive").is_some_and(|s| s.eq_ignore_ascii_case("on"));
        let holds = on && !self.about.software.contains("event");
        let users =
            if case.all.load == LoadShape::Closed && case.main.keepalive { f64::from(case.main.users) } else { 0.0 };
        // Visitors tell how many connections are idle; a load of ours has users who ask at once.
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

    /// How many workers it should have: the need, capped by the ceilings.
    pub fn workers_advice(&self) -> Option<WorkersAdvice> {
        Some(WorkersAdvice { server: self.about.server.clone(), ..advise(&self.workers_evidence()?)? })
    }

    /// Workers that a connection holds between two requests.
    pub fn held_by_idle(&self) -> f64 {
        self.seen.waiting("client kept").max(self.letters("K").unwrap_or(0.0))
    }

    /// A size of the pool with which nobody would wait, as far as users and processors allow: the number that is advised. Where nothing is
    /// known of memory, no more than the users of the load could use.
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

/// A listen queue that is longer than one of `limit` which has overflown.
pub fn longer_queue(limit: u64) -> u64 {
    (limit * 8).clamp(511, 4096).max(limit * 2)
}

/// A finding in the making.
pub fn finding(confidence: f64, title: impl Into<String>) -> Finding {
    Finding { confidence: round(confidence), title: title.into(), severity: Severity::Limit, ..Finding::default() }
}

/// Puts findings together, a clause a line.
pub trait Says {
    fn of(self, view: &View<'_>) -> Finding;
    fn seen(self, source: &str, name: &str, value: impl Into<Value>, threshold: impl Into<Value>) -> Finding;
    fn unless(self, against: impl Into<String>) -> Finding;
    fn do_this(self, fix: Vec<Fix>, advice: impl Into<String>) -> Finding;
    fn brings(self, expect: Option<ExpectedGain>) -> Finding;
    fn check_by(self, check: impl Into<String>) -> Finding;
}

impl Says for Finding {
    fn of(mut self, view: &View<'_>) -> Finding {
        self.server = view.about.server.clone();
        self
    }

    fn seen(mut self, source: &str, name: &str, value: impl Into<Value>, threshold: impl Into<Value>) -> Finding {
        let value = match value.into() {
            Value::Number(n) if n.is_f64() => json!(round(n.as_f64().unwrap_or(0.0))),
            other => other,
        };
        let threshold = threshold.into();
        // One of several signs that was not there says nothing, nor does a number that was not read. That a setting is not set does.
        let is_absent = value.as_f64() == Some(0.0) && threshold.as_f64().is_some_and(|t| t > 0.0);
        let is_unread = value.is_null() && source != "configuration";
        if !is_absent && !is_unread {
            self.evidence.push(Evidence { source: source.into(), name: name.into(), value, threshold });
        }
        self
    }

    fn unless(mut self, against: impl Into<String>) -> Finding {
        self.against.push(against.into());
        self
    }

    fn do_this(mut self, fix: Vec<Fix>, advice: impl Into<String>) -> Finding {
        (self.fix, self.advice) = (fix, advice.into());
        self
    }

    fn brings(mut self, expect: Option<ExpectedGain>) -> Finding {
        self.expect = expect.filter(|e| e.ratio.is_finite() && e.ratio >= 1.0);
        self
    }

    fn check_by(mut self, check: impl Into<String>) -> Finding {
        self.check = check.into();
        self
    }
}
