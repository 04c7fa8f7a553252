//! `lastdrop.size/1`: real memory of a server's workers, and how many fit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::WorkersAdvice;
use crate::settings::Settings;

pub const SIZE_SCHEMA: &str = "lastdrop.size/1";

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
    /// Of these, workers that have served next to nothing yet. The sizes below are those of the others; where all are cold, theirs.
    #[serde(default)]
    pub cold: u64,
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// None: no worker has served anything yet, and nobody knows what one will need.
    #[serde(default)]
    pub fits: Option<SizeFits>,
    /// Formulas with their numbers put in, by the name of the fit.
    pub formulas: BTreeMap<String, String>,
    /// How many workers the pool should have, where the server has one: `suggested` and `profiles` have the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_advice: Option<WorkersAdvice>,
    pub suggested: Settings,
    /// Suggestions for a dedicated, shared and bursty machine.
    pub profiles: BTreeMap<String, Settings>,
    pub effective: Settings,
    /// The memory model, where pool sizes were tried (`--fit`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<SizeFit>,
    /// What else than memory bounds the pool, where it was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<SizeBound>,
    /// What directives do to the size of a worker (`--variant`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<SizeVariant>,
    pub notes: Vec<String>,
}

impl SizeDocument {
    /// Worker processes that fit; as many as there are where none of them has served anything.
    #[must_use]
    pub fn fitting(&self) -> u64 {
        self.fits.map_or(self.workers.count, |fits| fits.independent)
    }
}

/// Something else than memory that more workers do not get beyond.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeBound {
    /// `database`, as in the ceilings of the advice.
    pub what: String,
    pub workers: u64,
    /// The reckoning, in words.
    pub because: String,
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
#[serde(default)]
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
    /// `settled`, `growing` (as fast at the end as before) or `slowing` (still growing, less and less).
    pub settling: String,
    /// Requests that each worker had served in the pools that were tried.
    pub warmed_requests: f64,
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
