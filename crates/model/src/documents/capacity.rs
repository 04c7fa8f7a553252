//! `lastdrop.capacity/1`: the highest rate that meets an objective, the knee, and the fitted scalability law.

use serde::{Deserialize, Serialize};

use crate::objective::Objective;

pub const CAPACITY_SCHEMA: &str = "lastdrop.capacity/1";

/// One rate that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CapacityStep {
    /// Requests per second that came due.
    pub rate: f64,
    /// True if the objective was met and the server kept up.
    pub ok: bool,
    /// Purpose of the step: `start`, `bracket`, `search`, `confirm`.
    pub role: String,
    pub seconds: f64,
    pub answered_rps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Share of the due requests without a good answer.
    pub errors: f64,
    /// Why `ok` is false.
    pub why: String,
    pub run: String,
}

/// A step of the closed-loop staircase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StaircaseStep {
    pub users: u32,
    pub rps: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub errors: f64,
    pub run: String,
}

/// The knee of the staircase: the number of users with the highest power, which is throughput divided by response time
/// (Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications", 1979).
/// Up to the knee more users add throughput; beyond it they mostly add waiting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    pub users: f64,
    /// 95 % interval, or the neighbouring steps.
    pub interval: [f64; 2],
    pub rps: f64,
    /// `usl`: from the fitted law; `measured`: the best step.
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
    /// Users and throughput at the law's highest throughput; `None` if it always grows.
    pub peak_users: Option<f64>,
    pub peak_rps: Option<f64>,
    /// Measured / law − 1, for each step.
    pub residuals: Vec<f64>,
    /// True if the law describes the steps.
    pub fits: bool,
    /// Why `fits` is false.
    pub why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CapacityDocument {
    pub schema: String,
    pub url: String,
    pub objective: Vec<Objective>,
    /// True if some rate meets the objective.
    pub met: bool,
    /// The highest rate that met the objective and was held.
    pub capacity_rps: f64,
    /// The held rate, and the lowest rate that failed.
    pub interval: [f64; 2],
    /// The verdict in a sentence.
    #[serde(rename = "because")]
    pub reason: String,
    /// Seconds for which the capacity was held.
    pub held_s: f64,
    pub steps: Vec<CapacityStep>,
    pub stairs: Vec<StaircaseStep>,
    pub knee: Option<Knee>,
    pub usl: Option<Usl>,
    /// The lowest rate at which requests wait for a free connection; from there response and service times differ.
    pub departure_rps: Option<f64>,
    /// True if the lowest failed rate failed because the generator was at its limit.
    #[serde(default)]
    pub generator_limited: bool,
    /// True if the time ran out before a rate was found that meets the objective; there may be one.
    #[serde(default)]
    pub out_of_time: bool,
    pub interrupted: bool,
    pub notes: Vec<String>,
}
