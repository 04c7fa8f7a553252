//! `lastdrop.size/1`: real memory of a server's workers, and how many workers fit.

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
    /// Of these, workers that have served next to nothing yet. The sizes below are of the others, or of all if all are
    /// cold.
    #[serde(default)]
    pub cold: u64,
    pub rss_bytes: MeanMax,
    pub pss_bytes: MeanMax,
    pub private_bytes: MeanMax,
    pub shared_bytes: MeanMax,
}

/// Workers that fit the budget, by four formulas; see `lastdrop-analyze`'s `pool`.
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
    /// Σ RSS, which counts shared pages once per process.
    pub sum_rss_bytes: u64,
    /// Pages shared by the group, parent included, each counted once.
    pub shared_once_bytes: u64,
    pub budget_bytes: u64,
    pub budget_from: String,
    /// `None` if no worker has served anything yet, so that its size under load is unknown.
    #[serde(default)]
    pub fits: Option<SizeFits>,
    /// Formulas with their numbers, by the name of the fit.
    pub formulas: BTreeMap<String, String>,
    /// Advised number of workers, if the server has a pool; `suggested` and `profiles` use the same number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers_advice: Option<WorkersAdvice>,
    pub suggested: Settings,
    /// Suggestions for a dedicated, shared and bursty machine.
    pub profiles: BTreeMap<String, Settings>,
    pub effective: Settings,
    /// The memory model, if pool sizes were tried (`--fit`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<SizeFit>,
    /// Known limits of the pool other than memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<SizeBound>,
    /// Effect of directives on the size of a worker (`--variant`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<SizeVariant>,
    pub notes: Vec<String>,
}

impl SizeDocument {
    /// Returns the worker processes that fit; the present number if no worker has served anything.
    #[must_use]
    pub fn fitting(&self) -> u64 {
        self.fits.map_or(self.workers.count, |fits| fits.independent)
    }
}

/// A limit of the number of workers other than memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeBound {
    /// `database`, as in the ceilings of the advice.
    pub what: String,
    pub workers: u64,
    /// The calculation in words.
    #[serde(rename = "because")]
    pub reason: String,
}

/// A number with its 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub value: f64,
    pub interval: [f64; 2],
}

/// A pool size and its memory, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FitPoint {
    pub workers: u64,
    /// Real memory plus the kernel's memory for these processes; the model is fitted to it.
    pub total_bytes: u64,
    /// Real memory (Σ PSS), and its anonymous part.
    pub pss_bytes: u64,
    pub pss_anonymous_bytes: u64,
    /// The kernel's memory for the processes (page tables, stacks, maps), estimated.
    pub kernel_bytes: u64,
    /// Anonymous memory of the server's control group, if it contains only the server.
    pub cgroup_anonymous_bytes: Option<u64>,
}

/// Memory of workers at an age: means over the pool, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SharingPoint {
    /// Mean number of requests that a worker has served.
    pub requests: f64,
    pub size_bytes: u64,
    pub shared_bytes: u64,
    /// Size minus shared: the worker's private memory.
    pub private_bytes: u64,
}

/// Memory that each request adds to a worker, bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeGrowth {
    pub private_bytes: Interval,
    pub leaked_bytes: Interval,
    pub unshared_bytes: Interval,
    /// True if the growth is statistically significant.
    pub grows: bool,
    /// CPU seconds of a request, and of a new worker until its first answer.
    pub request_cpu_s: f64,
    pub replace_cpu_s: f64,
    /// Optimal number of requests after which to replace a worker.
    pub best_age: Option<u64>,
}

/// The memory model, total = shared + n · each, and the growth of workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeFit {
    pub points: Vec<FitPoint>,
    pub shared_bytes: Interval,
    pub per_worker_bytes: Interval,
    /// Standard deviation of workers' private memory.
    pub spread_bytes: f64,
    /// Requests after which a worker is replaced, as the numbers below assume.
    pub age: Option<u64>,
    pub independent_interval: [u64; 2],
    pub worst_case_interval: [u64; 2],
    pub growth: Option<SizeGrowth>,
    pub sharing: Vec<SharingPoint>,
    /// `settled`, `growing` (as fast at the end as before) or `slowing` (growing more and more slowly).
    pub settling: String,
    /// Requests that each worker had served in the tried pools.
    pub warmed_requests: f64,
    /// Anonymous Σ PSS divided by the control group's anonymous memory, at the largest pool.
    pub cgroup_ratio: Option<f64>,
}

/// Memory of workers with other directives, after their first and second request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeVariant {
    pub name: String,
    pub directives: String,
    pub first: SharingPoint,
    pub second: SharingPoint,
    /// Workers that fit the budget, after the second request.
    pub fits: SizeFits,
}
