//! The JSON documents of commands other than `run`: `lastdrop.size/1`, `lastdrop.sweep/1`, `lastdrop.tune/1`,
//! `lastdrop.compare/1`, `lastdrop.capacity/1`.

use std::collections::BTreeMap;

use crate::look::{Look, WorkerLook};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::settings::Settings;

pub const SIZE_SCHEMA: &str = "lastdrop.size/1";
pub const SWEEP_SCHEMA: &str = "lastdrop.sweep/1";
pub const TUNE_SCHEMA: &str = "lastdrop.tune/1";
pub const COMPARE_SCHEMA: &str = "lastdrop.compare/1";
pub const CAPACITY_SCHEMA: &str = "lastdrop.capacity/1";

/// Mean and largest of a quantity over the workers, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeanMax {
    pub mean: u64,
    pub max: u64,
}

impl MeanMax {
    #[must_use]
    pub fn of(values: &[u64]) -> MeanMax {
        let n = values.len().max(1) as u64;
        MeanMax { mean: values.iter().sum::<u64>() / n, max: values.iter().copied().max().unwrap_or(0) }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeWorkers {
    pub count: u64,
    pub rss_bytes: MeanMax,
    pub pss_bytes: MeanMax,
    pub private_bytes: MeanMax,
    pub shared_bytes: MeanMax,
}

/// Workers that fit the budget, by four ways of reckoning; see `lastdrop-analyze`'s `pool`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeFits {
    pub no_sharing: u64,
    pub classic_sharing: u64,
    pub independent: u64,
    pub worst_case: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SizeDocument {
    pub schema: String,
    pub server: String,
    pub version: String,
    pub model: String,
    /// Threads that serve requests in each worker process; 1 for prefork.
    pub threads_per_worker: u64,
    pub workers: SizeWorkers,
    /// Σ PSS of workers and parent.
    pub real_memory_bytes: u64,
    /// Σ(size − shared) + the largest shared, of the workers.
    pub classic_real_memory_bytes: u64,
    /// Σ RSS, which counts shared pages once a process.
    pub sum_rss_bytes: u64,
    /// Pages that the whole group has in common, counted once (parent included).
    pub shared_once_bytes: u64,
    pub budget_bytes: u64,
    pub budget_from: String,
    pub fits: SizeFits,
    /// Formulas with their numbers put in, by the name of the fit.
    pub formulas: BTreeMap<String, String>,
    pub suggested: Settings,
    /// Suggestions for a dedicated, shared and bursty machine.
    pub profiles: BTreeMap<String, Settings>,
    pub effective: Settings,
    /// The memory model, where pool sizes were tried (`--fit`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<SizeFit>,
    /// What directives do to the size of a worker (`--variant`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<SizeVariant>,
    pub notes: Vec<String>,
}

/// A number with its 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub value: f64,
    pub interval: [f64; 2],
}

/// A pool of some size and what it takes, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FitPoint {
    pub workers: u64,
    /// What the model is fitted to: real memory and the kernel's own for these processes.
    pub total_bytes: u64,
    /// Real memory, Σ PSS, and its anonymous part.
    pub pss_bytes: u64,
    pub pss_anonymous_bytes: u64,
    /// The kernel's memory for the processes (page tables, stacks, maps), estimated.
    pub kernel_bytes: u64,
    /// What the server's control group counts as anonymous, where the server has it for itself.
    pub cgroup_anonymous_bytes: Option<u64>,
}

/// Workers at an age: means over the pool, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SharingPoint {
    /// Requests that a worker has served, mean.
    pub requests: f64,
    pub size_bytes: u64,
    pub shared_bytes: u64,
    /// Size less shared: what the worker has for itself.
    pub private_bytes: u64,
}

/// What each request adds to a worker, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeGrowth {
    pub private_bytes: Interval,
    pub leaked_bytes: Interval,
    pub unshared_bytes: Interval,
    /// Beyond chance?
    pub grows: bool,
    /// CPU seconds of a request, and of a new worker up to its first answer.
    pub request_cpu_s: f64,
    pub replace_cpu_s: f64,
    /// Requests after which replacing a worker pays best.
    pub best_age: Option<u64>,
}

/// total = shared + n · each, and how workers grow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeFit {
    pub points: Vec<FitPoint>,
    pub shared_bytes: Interval,
    pub per_worker_bytes: Interval,
    /// Standard deviation of workers' private memory.
    pub spread_bytes: f64,
    /// Requests at which a worker is replaced, in the answers below.
    pub age: Option<u64>,
    pub independent_interval: [u64; 2],
    pub worst_case_interval: [u64; 2],
    pub growth: Option<SizeGrowth>,
    pub sharing: Vec<SharingPoint>,
    /// Σ PSS (anonymous) as a share of what the control group counts, at the largest pool.
    pub cgroup_ratio: Option<f64>,
}

/// Workers under other directives, after their first and second request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeVariant {
    pub name: String,
    pub directives: String,
    pub first: SharingPoint,
    pub second: SharingPoint,
    /// Workers that fit the budget, after the second request.
    pub fits: SizeFits,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    /// Name of the variant or series.
    pub series: String,
    pub url: String,
    /// Characters of the query, where the plan sets its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_length: Option<u32>,
    /// Headers of the variant, `Name: value`, one after the other.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header: String,
    pub settings: Settings,
    pub requests: u64,
    pub users: u32,
    pub answered: u64,
    /// Requests without an answer, and answers with an unexpected status.
    pub failed: u64,
    /// Mean response, microseconds.
    #[serde(default)]
    pub avtime_us: f64,
    /// Answers a second; with several rounds their geometric mean.
    pub rps: f64,
    /// 95 %, from the rounds; absent with fewer than two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rps_interval: Option<[f64; 2]>,
    pub p50_us: f64,
    pub p99_us: f64,
    /// `each`: every initial worker had a request first; `15s`: this much load; `no`.
    pub warmed: String,
    /// Id of the run, of the last round; empty where the settings were refused.
    pub run: String,
    /// Ids of the runs of all rounds.
    #[serde(default)]
    pub runs: Vec<String>,
    /// Why there are no numbers, or what is wrong with them.
    pub note: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepDocument {
    pub schema: String,
    pub server: Option<String>,
    /// Names of the columns that differ between rows.
    pub varying: Vec<String>,
    /// Parameters that are the same in all rows.
    pub fixed: BTreeMap<String, Value>,
    pub rows: Vec<SweepRow>,
    /// Rounds in which all rows were measured, one after the other.
    #[serde(default)]
    pub rounds: u32,
    /// The column by which the rows are sorted; empty where they are in the order of the plan.
    #[serde(default)]
    pub sorted_by: String,
    /// All rows were measured.
    pub complete: bool,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneVerdict {
    Improved,
    NoGain,
    Infeasible,
    Inconclusive,
}

/// A measurement of the server with some settings over its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What was changed; empty is the server as it was.
    pub settings: Settings,
    /// Good answers per second.
    pub objective: f64,
    pub valid: bool,
    /// Why it does not count.
    pub why: String,
    pub p99_us: f64,
    pub unanswered: u64,
    pub real_memory_bytes: Option<u64>,
    pub warmed: String,
    /// What the trial was for: baseline, search, advice, race.
    pub role: String,
    /// Do clients keep their connections in this trial?
    pub keepalive: String,
    pub run: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    pub settings: Settings,
    pub objective: f64,
    pub p99_us: f64,
    pub run: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Winner {
    pub settings: Settings,
    /// Winner / baseline, geometric mean over the pairs of the race.
    pub ratio: f64,
    /// 95 %.
    pub interval: [f64; 2],
    pub objective: f64,
    pub p99_us: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub baseline: f64,
    pub best: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TuneDocument {
    pub schema: String,
    pub server: String,
    pub url: String,
    pub verdict: TuneVerdict,
    /// The verdict in a sentence.
    pub because: String,
    pub baseline: Option<Baseline>,
    pub winner: Option<Winner>,
    pub trials: Vec<Trial>,
    pub race: Vec<Pair>,
    /// The change of the configuration: lines that go with `-`, lines that come with `+`.
    pub diff: Vec<String>,
    pub kept: bool,
    /// Where kept settings are, and how the server is started with them.
    pub kept_in: Option<String>,
    /// Is everything back as it was found?
    pub restored: bool,
    pub interrupted: bool,
    pub notes: Vec<String>,
}

/// What a comparison says of one metric of B against A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compared {
    Better,
    Worse,
    NoDifference,
    Inconclusive,
}

/// What a comparison says altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareVerdict {
    Better,
    Worse,
    /// Some metrics better, others worse.
    Mixed,
    NoDifference,
    Inconclusive,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricComparison {
    pub a: f64,
    pub b: f64,
    /// B / A.
    pub ratio: f64,
    /// 95 %, of this metric alone.
    pub interval: [f64; 2],
    /// Holds for all metrics together.
    pub verdict: Compared,
    /// A difference of this share would have been seen (0.05 is 5 %).
    pub smallest_difference: f64,
}

/// Which comparison it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompareKind {
    /// Two runs that were made one after the other.
    Stored,
    /// Interleaved blocks.
    Live,
    /// Interleaved blocks of the same: what it finds is noise.
    Aa,
}

/// One side of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareSide {
    /// URL, plan file, or exported file.
    pub name: String,
    /// Ids of its runs.
    pub runs: Vec<String>,
}

/// A stretch of load at A beside one at B.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareBlock {
    pub a: BTreeMap<String, f64>,
    pub b: BTreeMap<String, f64>,
    pub b_first: bool,
    /// Why it does not count; empty where it does.
    pub spoiled: String,
}

/// What the noise of this machine does to a metric: with nothing changed, the ratio of two runs made one after the other
/// stays within 1 / (1 + floor) and 1 + floor in 95 of 100 cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NoiseFloor {
    /// By metric.
    pub floor: BTreeMap<String, f64>,
    /// Milliseconds since 1970, UTC; None for one that was not measured but assumed.
    pub measured_unix_ms: Option<u64>,
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareDocument {
    pub schema: String,
    pub kind: CompareKind,
    pub a: CompareSide,
    pub b: CompareSide,
    pub metrics: BTreeMap<String, MetricComparison>,
    pub verdict: CompareVerdict,
    /// The verdict in a sentence.
    pub because: String,
    /// Of the metric that the comparison is mainly about: `rps` in a closed loop, `p50_us` in an open one.
    pub smallest_difference: f64,
    pub blocks: Vec<CompareBlock>,
    /// The noise that was reckoned with (stored runs), or found (--aa).
    pub noise_floor: Option<NoiseFloor>,
    pub interrupted: bool,
    pub notes: Vec<String>,
}

/// One rate that was tried, or one number of users.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapacityStep {
    /// Requests a second that came due.
    pub rate: f64,
    /// The objective was met, and the server kept up.
    pub ok: bool,
    /// What the step was for: start, bracket, search, confirm.
    pub role: String,
    pub seconds: f64,
    pub answered_rps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Share of the requests due without a good answer.
    pub errors: f64,
    /// Why it is not ok.
    pub why: String,
    pub run: String,
}

/// A step of the closed-loop staircase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stair {
    pub users: u32,
    pub rps: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub errors: f64,
    pub run: String,
}

/// The knee of the staircase: the number of users with the highest power, throughput divided by response time
/// (Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications", 1979). Up
/// to it users add throughput, beyond it they mostly add waiting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    pub users: f64,
    /// 95 %, or the neighbouring steps.
    pub interval: [f64; 2],
    pub rps: f64,
    /// `usl`: from the fitted law; `measured`: the best of the steps.
    pub from: String,
}

/// Gunther's Universal Scalability Law, X(N) = λN / (1 + σ(N − 1) + κN(N − 1)).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Usl {
    pub lambda: f64,
    pub sigma: f64,
    pub kappa: f64,
    pub lambda_interval: [f64; 2],
    pub sigma_interval: [f64; 2],
    pub kappa_interval: [f64; 2],
    /// Users and throughput at the highest throughput of the law; None where it only grows.
    pub peak_users: Option<f64>,
    pub peak_rps: Option<f64>,
    /// Measured / law − 1 of each step.
    pub residuals: Vec<f64>,
    /// Does the law describe the steps?
    pub fits: bool,
    /// Why not.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapacityDocument {
    pub schema: String,
    pub url: String,
    pub objective: Vec<crate::Objective>,
    /// Some rate meets the objective.
    pub met: bool,
    /// The highest rate that met it and was held.
    pub capacity_rps: f64,
    /// The rate that was held, and the lowest that failed.
    pub interval: [f64; 2],
    /// The verdict in a sentence.
    pub because: String,
    /// The answer was held for so long.
    pub held_s: f64,
    pub steps: Vec<CapacityStep>,
    pub stairs: Vec<Stair>,
    pub knee: Option<Knee>,
    pub usl: Option<Usl>,
    /// The lowest rate at which requests wait for a connection of ours: from there response and service are not the same.
    pub departure_rps: Option<f64>,
    /// The lowest rate that failed did so because the generator was at its limit.
    #[serde(default)]
    pub generator_limited: bool,
    pub interrupted: bool,
    pub notes: Vec<String>,
}

pub const WATCH_SCHEMA: &str = "lastdrop.watch/1";

/// A server at one moment, as `watch` shows it; differences cover `span_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchDocument {
    pub schema: String,
    pub server: String,
    pub software: String,
    pub master: i32,
    /// Milliseconds since 1970, UTC.
    pub unix_ms: u64,
    pub workers: Vec<WorkerLook>,
    #[serde(flatten)]
    pub look: Look,
    /// What could not be read, and why.
    pub unread: Vec<String>,
    /// Processors that looking takes.
    pub cost_cores: f64,
}

pub const TRACE_SCHEMA: &str = "lastdrop.trace/1";

/// System calls of a request, as `trace` finds them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceDocument {
    pub schema: String,
    pub server: String,
    pub url: String,
    /// Requests that were answered while it was traced.
    pub requests: u64,
    pub calls_per_request: f64,
    /// Time in calls that a request pays for, without waits for the client.
    pub us_per_request: f64,
    /// What tracing itself added to each call, taken off where a time is tracing's: the fastest call that was seen.
    pub floor_us: f64,
    /// The costliest first.
    pub calls: Vec<TraceRow>,
    /// What is worth a word, the costliest first.
    pub kinds: Vec<TraceKind>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceRow {
    pub call: String,
    /// The file or the peer; `client` is the connection that the request came over.
    pub path: String,
    pub per_request: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub us_per_request: f64,
    /// The time is tracing's: the median less the floor. Calls on files are timed again without it.
    pub traced: bool,
}

/// Calls that have a common cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceKind {
    /// `htaccess`, `virtual-path`, `missing-file`, `path-components`, `dns`, `new-connection`.
    pub kind: String,
    pub per_request: f64,
    pub us_per_request: f64,
    pub title: String,
    pub advice: String,
}

pub const PROFILE_SCHEMA: &str = "lastdrop.profile/1";

/// Where a server's CPU goes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileDocument {
    pub schema: String,
    pub server: String,
    /// `perf (cycles)`, `perf (cpu-clock)`, or `/proc`.
    pub how: String,
    pub seconds: f64,
    pub samples: u64,
    /// CPU time of the server meanwhile, by the kernel's count.
    pub cpu_s: f64,
    /// Requests meanwhile: those of the load, else by the status page.
    pub requests: Option<u64>,
    pub us_per_request: Option<f64>,
    /// The costliest by themselves first; empty without perf.
    pub functions: Vec<ProfileFunction>,
    /// Programs and libraries; without perf: what the kernel had the processes at.
    pub libraries: Vec<ProfileShare>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileFunction {
    pub function: String,
    pub library: String,
    pub self_share: f64,
    /// With all that it calls.
    pub total_share: f64,
    pub us_per_request: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileShare {
    pub name: String,
    pub share: f64,
    pub us_per_request: Option<f64>,
}
