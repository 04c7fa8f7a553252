//! What a doctor has to go by: the experiments that were made, and what was seen of each server of a chain meanwhile. It can
//! be stored, so that whatever was concluded from it can be concluded again.
//!
//! Shares are between 0 and 1, processors are cores, counters are differences over the step. What could not be read is
//! absent, never zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::database::DatabaseSample;
use crate::documents::WorkersCeiling;
use crate::run::ServerCpu;
use crate::settings::Settings;

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Examination {
    pub url: String,
    pub tls: bool,
    /// The agent on whose machine the servers were looked at, or several; empty: this machine.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Processors of the servers' machine, and its memory.
    pub processors: u64,
    pub memory_bytes: u64,
    /// Was the load put on by us, with a fixed number of users or a fixed rate? Otherwise it was there already.
    pub load: LoadShape,
    /// The servers, the one that the URL leads to first, then those behind it.
    pub servers: Vec<ExaminedServer>,
    pub steps: Vec<ExaminationStep>,
    pub inside: Vec<ServerProfile>,
    /// How the memory of workers grew over all steps.
    pub growth: Vec<Growth>,
    /// Settings of the kernel that people change for the sake of web servers, where they are not its own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// What was done otherwise than asked.
    pub notes: Vec<String>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
    /// Processors that looking took, on average; and what for, seconds of processor time.
    pub cost_cores: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cost_s: BTreeMap<String, f64>,
    /// Where the same servers are on several machines: what was seen of each machine, with its part of the load. Of these the whole is
    /// put together, and of each it is concluded by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Examination>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadShape {
    #[default]
    Closed,
    Open,
    /// Of others.
    Foreign,
}

/// A server of the chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExaminedServer {
    /// What it is called in documents, and its kind; of a process of no known kind that is `pid`.
    pub server: String,
    pub kind: String,
    /// As it is named on a command line.
    pub named: String,
    pub software: String,
    pub master: i32,
    /// Each of its workers is a process that serves one request at a time.
    pub one_request_a_worker: bool,
    pub listens: Vec<String>,
    /// Where it connects to, and which of these servers listens there.
    pub connects: Vec<String>,
    pub to: Vec<String>,
    /// What it does now, and where that comes from (`apache2.conf:12`).
    pub settings: Settings,
    pub sources: BTreeMap<String, String>,
    /// What each setting needs to come into force: `reload`, `restart`, `sysctl`.
    pub needs: BTreeMap<String, String>,
    /// The setting that says how many workers there may be.
    pub pool: Option<String>,
    /// What allows no more workers than that, of a pool on the machine that was examined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<WorkersCeiling>,
    /// Languages whose programs run inside its workers: `mod_perl`, `libphp` …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub embeds: Vec<String>,
    /// Processors that it may use.
    pub cpus: Vec<usize>,
    /// Directives that it has and that knobs do not tell, by name: `HostnameLookups` = `On`.
    pub directives: BTreeMap<String, String>,
    /// Processes that hold one of its listening sockets and are none of its own: `pid name`.
    pub foreign_listeners: Vec<String>,
    /// What an instance of it did without the modules (of PHP: extensions) that nothing refers to. None: not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<ModuleTrial>,
}

/// A second instance of a server, with and without modules that nothing in its configuration refers to; of PHP: extensions that
/// nothing in its configuration or the site's files refers to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleTrial {
    /// Without all of these its configuration passes its test, and the URL answers as with them.
    pub unused: Vec<ModuleSize>,
    /// Those without which it does not start or the URL answers otherwise.
    pub needed: Vec<String>,
    /// Those that there was no time for.
    pub undecided: Vec<String>,
    /// Proportional size of a worker, bytes: with all modules, and without the unused ones.
    pub worker_bytes: Option<u64>,
    pub worker_bytes_without: Option<u64>,
    /// From the start to the first answer, seconds.
    pub start_s: f64,
    pub start_without_s: f64,
}

/// A module and the proportional size of its file's mappings in a worker, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModuleSize {
    pub name: String,
    pub bytes: Option<u64>,
    /// The line that loads it (`20-ftp.ini:2` with its folder), where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
}

/// What an experiment was for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepKind {
    /// One user alone: what a request costs when nobody waits.
    Alone,
    /// A few users.
    Few,
    /// The load that is asked about.
    #[default]
    Main,
    /// Twice as many.
    Beyond,
    /// The load that is asked about, with keep-alive the other way.
    OtherKeepalive,
    /// The same, where nobody asks for compressed answers.
    Uncompressed,
    /// The same, where each user has a session of its own: otherwise all have the cookies that the plan has.
    OtherSessions,
    /// The same, while servers are traced and profiled: numbers of it are slower than the truth.
    Inside,
    /// No load of ours.
    Observed,
}

impl StepKind {
    /// In what the load differed from the one that is asked about, but for how much it was.
    #[must_use]
    pub fn difference(self) -> Option<&'static str> {
        match self {
            StepKind::OtherKeepalive => Some("the other keep-alive"),
            StepKind::Uncompressed => Some("without compression"),
            StepKind::OtherSessions => Some("a session for each user"),
            _ => None,
        }
    }
}

/// An experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExaminationStep {
    pub kind: StepKind,
    /// Of a closed loop; 0 of an open one.
    pub users: u32,
    pub rate_rps: f64,
    pub keepalive: bool,
    pub duration_s: f64,
    pub due: u64,
    pub answered: u64,
    pub answered_rps: f64,
    pub timed_out: u64,
    /// Requests without an answer by what happened: `connect`, `reset`, `closed`, `protocol`.
    pub failed: BTreeMap<String, u64>,
    /// Why connections failed, in words.
    pub connect_errors: BTreeMap<String, u64>,
    pub status: BTreeMap<String, u64>,
    pub connections: u64,
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
    pub bytes_received: u64,
    pub response: LatencySummary,
    pub service: LatencySummary,
    /// From when a request was sent to the first byte of its answer.
    pub first_byte: LatencySummary,
    pub connect: LatencySummary,
    pub generator: GeneratorMeasurements,
    /// Processor time of the servers and all behind them, seconds, as the run of this step counted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpu_s: Option<f64>,
    /// Share of each processor of the servers' machine that was busy, and in interrupts of the network.
    pub cores: Vec<f64>,
    pub softirq: Vec<f64>,
    pub steal: f64,
    /// Share of the time in which tasks of the machine waited: `memory_full`, `io_some` …
    pub pressure: BTreeMap<String, f64>,
    pub swapped_pages: u64,
    /// The least of the machine's memory that was to be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available_bytes: Option<u64>,
    pub oom_kills: u64,
    /// Databases behind the servers, by their own views.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub databases: Vec<DatabaseSample>,
    /// Lines of the kernel's log that matter.
    pub kernel_log: Vec<String>,
    pub servers: Vec<ServerMeasurements>,
    /// The stored run.
    pub run: String,
    /// Agents that were lost: the load was less than it should have been, and nobody knows when. Nothing follows from such a step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

/// Times in microseconds.
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

/// Ourselves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GeneratorMeasurements {
    pub saturated: bool,
    pub cores: f64,
    /// Those of them that are the servers' machine's own, where the load does not come from there alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores_here: Option<f64>,
    /// Those of each agent that puts load on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, f64>,
    /// For how long its control group was not let run.
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
    /// Worker processes: at the beginning, at the end, and the most.
    pub workers_first: u64,
    pub workers_last: u64,
    pub workers_most: u64,
    /// Worker processes that were born meanwhile, as far as they lived long enough to be seen.
    pub born: u64,
    /// Times that its threads were looked at, and how many threads of workers there were on average.
    pub readings: u64,
    pub threads: f64,
    /// Threads by what they were at, on average: `running`, `idle`, `events`, `client` (`client kept`: for the next request of a connection,
    /// `client request`: for one, where that is known), `peer 127.0.0.1:3306`,
    /// `lock /path`, `futex`, `sleep`, `disk`, `pipe`, `child` …
    pub waits: BTreeMap<String, f64>,
    pub cpu_cores: Option<f64>,
    /// The busiest thread and the busiest process.
    pub hottest_thread_cores: f64,
    pub hottest_process_cores: f64,
    /// The thread that ran, or waited for a processor, most of the time. None: the kernel does not count what threads wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_runnable: Option<Runnable>,
    /// The listener of it that had the longest queue: mean and most that waited, and how many may.
    pub queue_mean: Option<f64>,
    pub queue_most: Option<u64>,
    pub queue_limit: Option<u64>,
    pub queue_at: String,
    /// Places of the scoreboard by letter, on average.
    pub scoreboard: BTreeMap<String, f64>,
    /// Workers that its status page called busy, on average.
    pub status_busy: Option<f64>,
    /// Requests that a proxy keeps waiting for the servers behind it, most.
    pub queued: Option<u64>,
    /// The longest that the status page waited for a worker, seconds.
    pub status_waits_s: Option<f64>,
    /// Counters of the network namespace that moved.
    pub kernel: BTreeMap<String, u64>,
    pub sockets: BTreeMap<String, f64>,
    pub local_ports: Option<u64>,
    pub ports_held: Option<u64>,
    pub ports_held_to: String,
    pub conntrack: Option<u64>,
    pub conntrack_limit: Option<u64>,
    pub fds: Option<u64>,
    pub fds_limit: Option<u64>,
    /// Of its control groups: time throttled, periods of that, the tightest limit in cores.
    pub throttled_us: u64,
    pub throttled_periods: u64,
    pub cpu_limit_cores: Option<f64>,
    pub memory_high: u64,
    pub memory_max: u64,
    /// The tightest limit of memory of its control groups, pages that they gave up and soon wanted again, and the share of the time in
    /// which something in one of them waited for memory.
    pub memory_limit_bytes: Option<u64>,
    pub refaulted_pages: u64,
    pub memory_stalled: f64,
    pub group_oom_kills: u64,
    pub pids_refused: u64,
    pub real_memory_bytes: Option<u64>,
    pub private_bytes: Option<u64>,
    /// Lines that its error log got, by what they say, and one of each.
    pub log: BTreeMap<String, u64>,
    pub log_samples: BTreeMap<String, String>,
    /// Of the connections that are not ours: the address that has the most of them and its share, and how many there were.
    pub top_client: Option<(String, f64)>,
    pub other_clients: f64,
    /// Connections by the address that they were made to, all of its network namespace.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<String, PeerConnections>,
    /// Children that have ended and that nobody has waited for since the step before.
    pub zombies: u64,
}

/// How much of the time a thread could run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Runnable {
    /// It ran.
    pub cores: f64,
    /// It waited for a processor that others had, as a share of the time.
    pub run_delay: f64,
}

/// Connections to one address, on average.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerConnections {
    pub open: f64,
    /// Those that the other side had not answered yet.
    pub opening: f64,
}

/// What was seen by tracing and profiling a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerProfile {
    pub server: String,
    /// Requests that the traced calls belong to, as far as they can be told.
    pub requests: f64,
    /// Calls a request, by what they are: `open`, `stat`, `htaccess`, `connect`, `log-write`, `dns`, `temp-file` …
    pub calls: BTreeMap<String, f64>,
    /// The object that stands for the most of them.
    pub objects: BTreeMap<String, String>,
    /// Programs that listen where it connected to.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, String>,
    /// Time a request waits by what it waits for, seconds.
    pub waits_s: BTreeMap<String, f64>,
    /// Shares of processor time by library, and by function.
    pub libraries: BTreeMap<String, f64>,
    pub functions: BTreeMap<String, f64>,
    /// What could not be traced or profiled, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
}

/// What workers gained a request, of those that lived through all steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Growth {
    pub server: String,
    pub workers: u64,
    pub requests: u64,
    /// Bytes a request: of their own, and resident (shared pages included).
    pub private_bytes: f64,
    pub resident_bytes: f64,
    /// The least of the steps: what settles grows in the first only.
    pub least_private_bytes: f64,
    /// Bytes of its own that a worker gained per request in each of the steps, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps_private_bytes: Vec<f64>,
    /// All of them together.
    pub gained_bytes: f64,
    /// At the end, on average: what a worker has for itself and what is resident of it; and what is resident of their master.
    pub worker_private_bytes: f64,
    pub worker_resident_bytes: f64,
    pub master_resident_bytes: f64,
}

impl Examination {
    /// The step that is judged: the load that is asked about, or what was there already. None where it was not made, or not whole:
    /// another one does not stand for it.
    #[must_use]
    pub fn main(&self) -> Option<&ExaminationStep> {
        self.made_main().filter(|step| step.is_whole())
    }

    fn made_main(&self) -> Option<&ExaminationStep> {
        let made = |kind| self.steps.iter().find(|s| s.kind == kind);
        [StepKind::Main, StepKind::Observed, StepKind::Few].into_iter().find_map(made)
    }

    /// Was the step made that is to be judged, and lost a part of its load?
    #[must_use]
    pub fn has_lost_main(&self) -> bool {
        self.made_main().is_some_and(|step| !step.is_whole())
    }

    /// Returns why no limit is not the same as a server without a limit. None: the load that is asked about was put on and answered.
    #[must_use]
    pub fn undecided(&self) -> Option<String> {
        /// More of them without an answer is what a limit looks like, whether its cause was seen or not.
        const MOST_UNANSWERED: f64 = 0.01;
        if self.has_lost_main() {
            return Some("an agent was lost while the load that is asked about was on".into());
        }
        let Some(main) = self.main() else { return Some("nothing was measured".into()) };
        let (unanswered, all) = (main.unanswered(), main.unanswered() + main.answered);
        (unanswered as f64 > MOST_UNANSWERED * all as f64).then(|| {
            format!("{unanswered} of {all} requests were not answered, and nothing that was looked at shows why")
        })
    }

    /// The step of this kind, where it was made and is whole.
    #[must_use]
    pub fn step(&self, kind: StepKind) -> Option<&ExaminationStep> {
        self.whole_steps().find(|s| s.kind == kind)
    }

    /// Steps from which something may follow.
    pub fn whole_steps(&self) -> impl Iterator<Item = &ExaminationStep> {
        self.steps.iter().filter(|s| s.is_whole())
    }
}

impl GeneratorMeasurements {
    /// Cores that the load took from the servers' machine.
    #[must_use]
    pub fn cores_beside_servers(&self) -> f64 {
        self.cores_here.unwrap_or(self.cores)
    }
}

impl ExaminationStep {
    /// Has all of its load been put on?
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty()
    }

    #[must_use]
    pub fn server(&self, name: &str) -> Option<&ServerMeasurements> {
        self.servers.iter().find(|s| s.server == name)
    }

    /// Requests without an answer.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.failed.values().sum::<u64>() + self.timed_out
    }

    /// Cores that ran something, of all.
    #[must_use]
    pub fn busy_cores(&self) -> f64 {
        self.cores.iter().sum()
    }

    /// Cores that the servers and the load used.
    #[must_use]
    pub fn own_cores(&self) -> f64 {
        self.generator.cores_beside_servers() + self.servers.iter().filter_map(|s| s.cpu_cores).sum::<f64>()
    }

    /// Seconds of processor time that an answer takes of the servers and all behind them. Where the run could not count it, their means over
    /// the step tell. None where nothing was answered or nothing is known of them.
    #[must_use]
    pub fn cpu_per_request_s(&self) -> Option<f64> {
        let cores = || self.servers.iter().filter_map(|s| s.cpu_cores).reduce(|a, b| a + b);
        let cpu_s = self.server_cpu_s.or_else(|| Some(cores()? * self.duration_s))?;
        (self.answered > 0).then(|| ServerCpu::of(cpu_s, self.answered).us_per_request / 1e6)
    }

    /// How busy these processors were, 0 to 1; all of them where none is named.
    #[must_use]
    pub fn busy(&self, cpus: &[usize]) -> f64 {
        let of = |all: Vec<f64>| if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 };
        let named: Vec<f64> = cpus.iter().filter_map(|i| self.cores.get(*i).copied()).collect();
        if named.is_empty() { of(self.cores.clone()) } else { of(named) }
    }

    /// Answers with this status, as a share.
    #[must_use]
    pub fn share_of_status(&self, wanted: impl Fn(&str) -> bool) -> f64 {
        let all: u64 = self.status.values().sum();
        let these: u64 = self.status.iter().filter(|(s, _)| wanted(s)).map(|(_, n)| n).sum();
        if all == 0 { 0.0 } else { these as f64 / all as f64 }
    }
}

impl Runnable {
    /// Share of the time in which it ran or waited for a processor: what it would use alone on the machine.
    #[must_use]
    pub fn share(self) -> f64 {
        self.cores + self.run_delay
    }
}

impl ServerMeasurements {
    /// Threads on average that wait for this: `peer` means any of `peer …`.
    #[must_use]
    pub fn waiting(&self, what: &str) -> f64 {
        let is = |key: &str| key == what || key.strip_prefix(what).is_some_and(|rest| rest.starts_with(' '));
        self.waits.iter().filter(|(key, _)| is(key)).map(|(_, n)| n).sum()
    }

    /// Of what these threads wait for, that which most of them do: its object and how many.
    #[must_use]
    pub fn most_of(&self, what: &str) -> Option<(&str, f64)> {
        let all = self.waits.iter().filter_map(|(key, n)| Some((key.strip_prefix(what)?.strip_prefix(' ')?, *n)));
        all.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}
