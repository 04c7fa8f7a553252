//! `lastdrop.capacity/1`: the highest rate that meets an objective, the knee, and the scalability law.

use serde::{Deserialize, Serialize};

use crate::objective::Objective;

pub const CAPACITY_SCHEMA: &str = "lastdrop.capacity/1";

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
pub struct StaircaseStep {
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CapacityDocument {
    pub schema: String,
    pub url: String,
    pub objective: Vec<Objective>,
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
    pub stairs: Vec<StaircaseStep>,
    pub knee: Option<Knee>,
    pub usl: Option<Usl>,
    /// The lowest rate at which requests wait for a connection of ours: from there response and service are not the same.
    pub departure_rps: Option<f64>,
    /// The lowest rate that failed did so because the generator was at its limit.
    #[serde(default)]
    pub generator_limited: bool,
    /// The time was over before a rate was found that meets the objective: there may be one.
    #[serde(default)]
    pub out_of_time: bool,
    pub interrupted: bool,
    pub notes: Vec<String>,
}
