//! The data that a doctor's diagnosis rests on: the experiments that were made, and the measurements of each server of
//! the chain. It can be stored, so that a diagnosis can be repeated from it.
//!
//! Shares are between 0 and 1, processors are cores, counters are differences over the step. A number that could not be
//! read is absent, never zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::database::DatabaseSample;
use crate::documents::WorkersCeiling;
use crate::run::{Anatomy, ServerCpu};
use crate::settings::Settings;

/// All experiments and measurements of one diagnosis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Examination {
    pub url: String,
    pub tls: bool,
    /// The agent, or agents, on whose machine the servers were examined; empty: this machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Number of processors of the servers' machine.
    pub processors: u64,
    pub memory_bytes: u64,
    /// Kind of load: lastdrop's own closed or open loop, or existing traffic.
    pub load: LoadShape,
    /// The servers: first the one that the URL leads to, then its backends.
    pub servers: Vec<ExaminedServer>,
    pub steps: Vec<ExaminationStep>,
    pub inside: Vec<ServerProfile>,
    /// Growth of the workers' memory over all steps.
    pub growth: Vec<Growth>,
    /// Answers to single requests, as a browser asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<ExaminedAnswer>,
    /// Kernel settings that are often changed for web servers, if they differ from the kernel's defaults.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// Deviations from what was asked for.
    pub notes: Vec<String>,
    /// What could not be measured, and why.
    pub unseen: Vec<String>,
    /// Processors that the examination itself used, on average; and `cost_s`, its CPU seconds by purpose.
    pub cost_cores: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cost_s: BTreeMap<String, f64>,
    /// With the same servers on several machines: the examination of each machine, with its share of the load. The
    /// whole is combined from these, and each is also diagnosed separately.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Examination>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadShape {
    #[default]
    Closed,
    Open,
    /// Existing traffic of real clients.
    Foreign,
}

/// A server of the chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExaminedServer {
    /// Name in documents, and kind; `pid` for a process of unknown kind.
    pub server: String,
    pub kind: String,
    /// Name on a command line.
    pub named: String,
    pub software: String,
    pub master: i32,
    /// Each worker is a process that serves one request at a time.
    pub one_request_a_worker: bool,
    pub listens: Vec<String>,
    /// Addresses that it connects to, and which of these servers listen there (`to`).
    pub connects: Vec<String>,
    pub to: Vec<String>,
    /// Its present settings, and where each comes from (`apache2.conf:12`).
    pub settings: Settings,
    pub sources: BTreeMap<String, String>,
    /// What each setting needs to take effect: `reload`, `restart`, `sysctl`.
    pub needs: BTreeMap<String, String>,
    /// The setting that limits the number of workers.
    pub pool: Option<String>,
    /// Ceilings of the number of workers, for a pool on the examined machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<WorkersCeiling>,
    /// Language modules that run programs inside its workers: `mod_perl`, `libphp` …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub embeds: Vec<String>,
    /// Processors that it may run on.
    pub cpus: Vec<usize>,
    /// Directives that no knob covers, by name: `HostnameLookups` = `On`.
    pub directives: BTreeMap<String, String>,
    /// Processes of other programs that hold one of its listening sockets: `pid name`.
    pub foreign_listeners: Vec<String>,
    /// Test of a second instance without unused modules (for PHP: extensions); `None`: not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<ModuleTrial>,
}

/// Test of a second instance with and without unused modules. A module is unused if nothing in the configuration refers
/// to it; a PHP extension, if nothing in the configuration or the site's files does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleTrial {
    /// Without all of these, the configuration passes its test and the URL answers as before.
    pub unused: Vec<ModuleSize>,
    /// Modules without which it does not start, or the URL answers differently.
    pub needed: Vec<String>,
    /// Modules that there was no time to test.
    pub undecided: Vec<String>,
    /// Proportional set size of a worker in bytes: with all modules, and without the unused ones.
    pub worker_bytes: Option<u64>,
    pub worker_bytes_without: Option<u64>,
    /// Seconds from start to first answer: with all modules, and without the unused ones.
    pub start_s: f64,
    pub start_without_s: f64,
}

/// A module, and the proportional set size of its file's mappings in a worker, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleSize {
    pub name: String,
    pub bytes: Option<u64>,
    /// File and line that load it (`20-ftp.ini:2` with its folder), if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// Purpose of an experiment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// A single user: the cost of a request without queueing.
    Alone,
    /// A few users.
    Few,
    /// The load that the user asked about.
    #[default]
    Main,
    /// The main load while workers that had served nothing loaded the application. It was repeated.
    Starting,
    /// Twice the load.
    Beyond,
    /// The main load with keep-alive switched.
    OtherKeepalive,
    /// The main load without asking for compressed answers.
    Uncompressed,
    /// The main load with a session per user; otherwise all users share the plan's cookies.
    OtherSessions,
    /// The main load while the servers are traced and profiled, which slows them down.
    Inside,
    /// No load by lastdrop; existing traffic is observed.
    Observed,
}

impl StepKind {
    /// Returns how the load differs from the main load, other than in its amount.
    #[must_use]
    pub fn difference(self) -> Option<&'static str> {
        match self {
            StepKind::OtherKeepalive => Some("the other keep-alive"),
            StepKind::Starting => Some("workers started"),
            StepKind::Uncompressed => Some("without compression"),
            StepKind::OtherSessions => Some("a session for each user"),
            _ => None,
        }
    }
}

/// Measurements of one experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExaminationStep {
    pub kind: StepKind,
    /// Where typical and slow requests spent their time, in the main step on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anatomy: Option<Anatomy>,
    /// Users of a closed loop; 0 in an open loop.
    pub users: u32,
    pub rate_rps: f64,
    pub keepalive: bool,
    /// Several requests share a connection (HTTP/2): a connection is not a request, nor a user.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shares_connections: bool,
    pub duration_s: f64,
    pub due: u64,
    pub answered: u64,
    pub answered_rps: f64,
    pub timed_out: u64,
    /// Requests without an answer by failure: `connect`, `reset`, `closed`, `protocol`.
    pub failed: BTreeMap<String, u64>,
    /// Failed connections by reason.
    pub connect_errors: BTreeMap<String, u64>,
    pub status: BTreeMap<String, u64>,
    pub connections: u64,
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
    pub bytes_received: u64,
    pub response: LatencySummary,
    pub service: LatencySummary,
    /// Time from sending a request to the first byte of its answer.
    pub first_byte: LatencySummary,
    pub connect: LatencySummary,
    /// Each class of requests, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassMeasurements>,
    pub generator: GeneratorMeasurements,
    /// CPU seconds of the servers and their backends, as this step's run counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_s: Option<f64>,
    /// Workers that had served nothing before were at their first requests for too much of this step: what those cost is in
    /// `server_cpu_s`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub starting: bool,
    /// Busy share of each processor of the servers' machine; `softirq`: its share in network interrupts.
    pub cores: Vec<f64>,
    pub softirq: Vec<f64>,
    pub steal: f64,
    /// Share of the time in which tasks of the machine waited (pressure stall information): `memory_full`, `io_some` …
    pub pressure: BTreeMap<String, f64>,
    pub swapped_pages: u64,
    /// Processes and threads that were started on the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_tasks: Option<u64>,
    /// The least available memory of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
    pub oom_kills: u64,
    /// Databases behind the servers, as their own views report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub databases: Vec<DatabaseSample>,
    /// Relevant lines of the kernel log.
    pub kernel_log: Vec<String>,
    pub servers: Vec<ServerMeasurements>,
    /// Id of the stored run.
    pub run: String,
    /// Agents that were lost. The load was then too low for an unknown time, so nothing is concluded from the step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

/// A class of requests during a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassMeasurements {
    pub name: String,
    pub answered: u64,
    pub response: LatencySummary,
    pub service: LatencySummary,
}

/// Summary of a latency, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencySummary {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// The generator during a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GeneratorMeasurements {
    pub saturated: bool,
    pub cores: f64,
    /// The part of `cores` on the servers' machine, if other machines also generate load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores_here: Option<f64>,
    /// Cores of each agent that generates load.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, f64>,
    /// Time for which its control group was throttled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_s: Option<f64>,
    pub no_ports: u64,
    pub no_descriptors: u64,
    pub lateness_p99_us: f64,
    pub others_cores: f64,
}

/// A server during a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerMeasurements {
    pub server: String,
    /// Worker processes at the beginning, at the end, and the most.
    pub workers_first: u64,
    pub workers_last: u64,
    pub workers_most: u64,
    /// Worker processes that started during the step and lived long enough to be seen.
    pub born: u64,
    /// Readings of its threads, and the mean number of worker threads.
    pub readings: u64,
    pub threads: f64,
    /// Mean number of threads by state: `running`, `idle`, `events`, `client`, `peer 127.0.0.1:3306`, `lock /path`,
    /// `futex`, `sleep`, `disk`, `pipe`, `child` … If known, `client kept` means waiting for the next request of a
    /// connection, and `client request` for the present one.
    pub waits: BTreeMap<String, f64>,
    pub cpu_cores: Option<f64>,
    /// CPU of the busiest thread, and of the busiest process.
    pub hottest_thread_cores: f64,
    pub hottest_process_cores: f64,
    /// The thread that was runnable most of the time. `None`: the kernel does not count how long threads wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_runnable: Option<Runnable>,
    /// Its longest listen queue: mean, largest length, limit and address.
    pub queue_mean: Option<f64>,
    pub queue_most: Option<u64>,
    pub queue_limit: Option<u64>,
    pub queue_at: String,
    /// Mean number of scoreboard slots by letter.
    pub scoreboard: BTreeMap<String, f64>,
    /// Mean number of busy workers by its status page.
    pub status_busy: Option<f64>,
    /// Most requests that a proxy queued for its backends.
    pub queued: Option<u64>,
    /// Longest wait of the status page for a worker, seconds.
    pub status_waits_s: Option<f64>,
    /// Counters of the network namespace that changed.
    pub kernel: BTreeMap<String, u64>,
    pub sockets: BTreeMap<String, f64>,
    pub local_ports: Option<u64>,
    pub ports_held: Option<u64>,
    pub ports_held_to: String,
    pub conntrack: Option<u64>,
    pub conntrack_limit: Option<u64>,
    pub fds: Option<u64>,
    pub fds_limit: Option<u64>,
    /// Of its control groups: throttled time, throttled periods, and the tightest CPU limit in cores.
    pub throttled_us: u64,
    pub throttled_periods: u64,
    pub cpu_limit_cores: Option<f64>,
    pub memory_high: u64,
    pub memory_max: u64,
    /// Of its control groups: the tightest memory limit, refaulted pages, and the share of the time in which tasks
    /// waited for memory.
    pub memory_limit_bytes: Option<u64>,
    pub refaulted_pages: u64,
    pub memory_stalled: f64,
    pub group_oom_kills: u64,
    pub pids_refused: u64,
    pub real_memory_bytes: Option<u64>,
    pub private_bytes: Option<u64>,
    /// New lines of its error log by message, and a sample line of each.
    pub log: BTreeMap<String, u64>,
    pub log_samples: BTreeMap<String, String>,
    /// Connections of other clients: the address with the most of them and its share, and their number.
    pub top_client: Option<(String, f64)>,
    pub other_clients: f64,
    /// Outgoing connections of its network namespace by destination.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<String, PeerConnections>,
    /// Mean number of running children of another program than the server's own, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, f64>,
    /// CPU of children that its workers have waited for.
    #[serde(skip_serializing_if = "is_zero")]
    pub ended_children_cores: f64,
    /// Zombies: children that exited and have not been reaped since the previous step.
    pub zombies: u64,
}

/// Share of the time in which a thread was runnable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Runnable {
    /// Share in which it ran.
    pub cores: f64,
    /// Share in which it waited for a processor.
    pub run_delay: f64,
}

/// Mean number of connections to one address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerConnections {
    pub open: f64,
    /// Connections whose handshake the peer had not answered yet (SYN_SENT).
    pub opening: f64,
}

/// Results of tracing and profiling a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerProfile {
    pub server: String,
    /// Estimated number of requests that the traced calls belong to.
    pub requests: f64,
    /// Calls per request by kind: `open`, `stat`, `htaccess`, `connect`, `log-write`, `dns`, `temp-file` …
    pub calls: BTreeMap<String, f64>,
    /// The most frequent object of each kind.
    pub objects: BTreeMap<String, String>,
    /// Programs that listen at the addresses it connected to.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
    /// Seconds per request by what the request waits for.
    pub waits_s: BTreeMap<String, f64>,
    /// Shares of CPU time by library, and by function.
    pub libraries: BTreeMap<String, f64>,
    pub functions: BTreeMap<String, f64>,
    /// Functions of the program's own language, the costliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<HotFunction>,
    /// What could not be traced or profiled, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
}

/// The answer to a single request of the plan, or for a file that one of its pages embeds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExaminedAnswer {
    /// The URL, without its secrets.
    pub url: String,
    /// Share of the plan's requests that ask for it; of a file, share of those that ask for its page.
    pub share: f64,
    /// A page of the plan embeds it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub embedded: bool,
    pub status: u16,
    /// Media type without parameters, in lower case.
    pub media_type: String,
    /// `Content-Encoding`; empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub coding: String,
    /// The server forbids others to change it (`Cache-Control: no-transform`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_transform: bool,
    /// Size of the body as it came.
    pub bytes: u64,
    /// Time from connecting to the last byte, µs, when nobody else asked.
    #[serde(skip_serializing_if = "is_zero")]
    pub took_us: f64,
    /// It looks like a file: parts of it may be asked for, and it has an ETag or a date.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub file: bool,
    /// What only a debug mode shows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub debug: Vec<String>,
    /// How it depends on who asks; `None`: not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<AnswerSharing>,
    /// Size of the body once compressed here, for text that came without a coding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gzipped: Vec<Gzipped>,
}

/// How an answer depends on who asks: asked again, and as others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AnswerSharing {
    /// Whether the bytes were those of the first answer, by what differed: `again` (nothing, a second later), `cookies`,
    /// `the plan's cookies`, `language`, `type`, `browser`, `coding`, `after the load`, or a field of the plan.
    pub same: BTreeMap<String, bool>,
    /// What in an answer forbids a shared cache to keep it; empty: nothing.
    pub kept_from_caches: String,
    pub vary: String,
    /// The answer came from a cache already.
    pub from_cache: bool,
    /// The plan sends values of each user in fields of its own.
    pub known_users: bool,
    /// Share of its requests in the plan that send a cookie or `Authorization`.
    #[serde(skip_serializing_if = "is_zero")]
    pub known_share: f64,
    /// Shortest time from connecting to the last byte, µs, when nobody else asked.
    #[serde(skip_serializing_if = "is_zero")]
    pub took_us: f64,
    /// Hash of the first answer's body.
    #[serde(skip)]
    pub first: u64,
}

/// A body compressed with gzip at one level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gzipped {
    pub level: u32,
    pub bytes: u64,
    /// Processor time that it took, µs.
    pub cpu_us: f64,
}

/// A function of a program's own language.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HotFunction {
    pub name: String,
    pub file: String,
    pub line: u32,
    /// Exclusive share of the CPU time of all functions.
    pub share: f64,
    /// The profiler, and what it counts.
    pub how: String,
}

/// Memory growth per request of the workers that lived through all steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Growth {
    pub server: String,
    pub workers: u64,
    pub requests: u64,
    /// Bytes per request: private, and resident (shared pages included).
    pub private_bytes: f64,
    pub resident_bytes: f64,
    /// The least private growth of a step. Memory that settles grows only in the first step.
    pub least_private_bytes: f64,
    /// Private bytes per request that a worker gained in each step, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps_private_bytes: Vec<f64>,
    /// Private bytes that all workers gained together.
    pub gained_bytes: f64,
    /// At the end: mean private and resident bytes of a worker, and resident bytes of the master.
    pub worker_private_bytes: f64,
    pub worker_resident_bytes: f64,
    pub master_resident_bytes: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(n: &f64) -> bool {
    *n == 0.0
}

impl Examination {
    /// Returns the step to judge: the main load, or the existing traffic. `None` if it was not made or is incomplete;
    /// no other step replaces it.
    #[must_use]
    pub fn main(&self) -> Option<&ExaminationStep> {
        self.made_main().filter(|step| step.is_whole())
    }

    fn made_main(&self) -> Option<&ExaminationStep> {
        let made = |kind| self.steps.iter().find(|s| s.kind == kind);
        [StepKind::Main, StepKind::Observed, StepKind::Few].into_iter().find_map(made)
    }

    /// Returns true if the step to judge was made but lost a part of its load.
    #[must_use]
    pub fn has_lost_main(&self) -> bool {
        self.made_main().is_some_and(|step| !step.is_whole())
    }

    /// Returns the step of this kind if it was made and is complete.
    #[must_use]
    pub fn step(&self, kind: StepKind) -> Option<&ExaminationStep> {
        self.whole_steps().find(|s| s.kind == kind)
    }

    /// Returns the complete steps, from which conclusions may be drawn.
    pub fn whole_steps(&self) -> impl Iterator<Item = &ExaminationStep> {
        self.steps.iter().filter(|s| s.is_whole())
    }
}

impl ExaminedAnswer {
    /// Returns true for a type that compresses well. A stream of events must not wait for a compressor.
    #[must_use]
    pub fn is_text(&self) -> bool {
        const TYPES: [&str; 9] = [
            "application/javascript",
            "application/x-javascript",
            "application/json",
            "application/xml",
            "application/wasm",
            "application/graphql",
            "application/vnd.ms-fontobject",
            "font/ttf",
            "image/svg+xml",
        ];
        let kind = self.media_type.as_str();
        kind.starts_with("text/") && kind != "text/event-stream"
            || TYPES.contains(&kind)
            || kind.starts_with("application/") && (kind.ends_with("+json") || kind.ends_with("+xml"))
    }

    /// Returns the body's size and processor time at this level of gzip.
    #[must_use]
    pub fn gzipped_at(&self, level: u32) -> Option<Gzipped> {
        self.gzipped.iter().find(|g| g.level == level).copied()
    }
}

impl GeneratorMeasurements {
    /// Returns the cores that the load used on the servers' machine.
    #[must_use]
    pub fn cores_beside_servers(&self) -> f64 {
        self.cores_here.unwrap_or(self.cores)
    }
}

impl ExaminationStep {
    /// Returns true if all of its load was generated.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty()
    }

    #[must_use]
    pub fn server(&self, name: &str) -> Option<&ServerMeasurements> {
        self.servers.iter().find(|s| s.server == name)
    }

    /// Returns the number of requests without an answer.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.failed.values().sum::<u64>() + self.timed_out
    }

    /// Returns the busy cores of the machine.
    #[must_use]
    pub fn busy_cores(&self) -> f64 {
        self.cores.iter().sum()
    }

    /// Returns the cores that the servers and the load used.
    #[must_use]
    pub fn own_cores(&self) -> f64 {
        self.generator.cores_beside_servers() + self.servers.iter().filter_map(|s| s.cpu_cores).sum::<f64>()
    }

    /// Returns the CPU seconds per answer of the servers and their backends. If the run did not count them, uses the
    /// mean cores of the step. `None` if nothing was answered or no CPU is known.
    #[must_use]
    pub fn cpu_per_request_s(&self) -> Option<f64> {
        let cores = || self.servers.iter().filter_map(|s| s.cpu_cores).reduce(|a, b| a + b);
        let cpu_s = self.server_cpu_s.or_else(|| Some(cores()? * self.duration_s))?;
        (self.answered > 0).then(|| ServerCpu::of(cpu_s, self.answered).us_per_request / 1e6)
    }

    /// Returns how busy these processors were, 0 to 1; all processors if none is named.
    #[must_use]
    pub fn busy(&self, cpus: &[usize]) -> f64 {
        let of = |all: Vec<f64>| if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 };
        let named: Vec<f64> = cpus.iter().filter_map(|i| self.cores.get(*i).copied()).collect();
        if named.is_empty() { of(self.cores.clone()) } else { of(named) }
    }

    /// Returns the share of answers that are server errors. `rejects`: a configured limit answers with 503, which is no error.
    #[must_use]
    pub fn share_of_errors(&self, rejects: bool) -> f64 {
        self.share_of_status(|s| s.starts_with('5') && !(rejects && s == "503"))
    }

    /// Returns the share of answers whose status is wanted.
    #[must_use]
    pub fn share_of_status(&self, wanted: impl Fn(&str) -> bool) -> f64 {
        let all: u64 = self.status.values().sum();
        let these: u64 = self.status.iter().filter(|(s, _)| wanted(s)).map(|(_, n)| n).sum();
        if all == 0 { 0.0 } else { these as f64 / all as f64 }
    }
}

impl Runnable {
    /// Returns the share of the time in which the thread was runnable: what it would use alone on the machine.
    #[must_use]
    pub fn share(self) -> f64 {
        self.cores + self.run_delay
    }
}

impl ServerMeasurements {
    /// Returns the mean number of threads in a state; `peer` means any `peer …`.
    #[must_use]
    pub fn waiting(&self, what: &str) -> f64 {
        let is = |key: &str| key == what || key.strip_prefix(what).is_some_and(|rest| rest.starts_with(' '));
        self.waits.iter().filter(|(key, _)| is(key)).map(|(_, n)| n).sum()
    }

    /// Returns the object that most threads in this state wait for, and their number.
    #[must_use]
    pub fn most_of(&self, what: &str) -> Option<(&str, f64)> {
        let all = self.waits.iter().filter_map(|(key, n)| Some((key.strip_prefix(what)?.strip_prefix(' ')?, *n)));
        all.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
