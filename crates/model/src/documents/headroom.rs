//! `lastdrop.headroom/1`: the demand of logs against the capacity of a server.

use serde::{Deserialize, Serialize};

use super::{CapacityDocument, LogMoment};
use crate::objective::Objective;

pub const HEADROOM_SCHEMA: &str = "lastdrop.headroom/1";

/// What users ask for. Times are seconds since 1970, days are those of UTC.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Demand {
    /// Requests of the busiest second.
    pub peak_rps: f64,
    /// Requests of the busiest minute, per second.
    pub busiest_minute_rps: f64,
    pub busiest_hour_rps: f64,
    pub mean_rps: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_second: Option<LogMoment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_minute: Option<LogMoment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_hour: Option<LogMoment>,
    pub requests: u64,
    pub begin_unix_s: i64,
    pub end_unix_s: i64,
    /// Days that the logs have from midnight to midnight, without a gap.
    pub whole_days: u64,
    /// Days that begin or end within, or have a gap.
    pub partial_days: u64,
    /// Bytes per second in the busiest minute, if the size of an answer is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<DemandGrowth>,
    /// Requests of each day of the week against the mean of the week, Monday first; 0 where the logs have no such day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rhythm: Vec<f64>,
}

/// How demand grows from week to week: 0.02 is 2 % per week.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DemandGrowth {
    pub per_week: f64,
    /// 80 % interval.
    pub interval: [f64; 2],
    /// True if it is not chance: one-sided, at the 5 % level.
    pub significant: bool,
    /// Standard deviation of a day from trend and rhythm, as a share.
    pub noise: f64,
    /// How well compound growth fits beside linear growth: 1 is certainly compound, 0.5 undecided.
    pub compound: f64,
}

/// An 80 % interval of days, such as `2027-01-31`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DayInterval {
    pub from: String,
    pub to: String,
}

/// How long the user waits who is at this rank of a burst.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BurstWait {
    pub rank: u64,
    pub wait_s: f64,
}

/// What a step changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// Nothing has to be done.
    #[default]
    None,
    /// One more machine.
    Machine,
    /// More workers.
    Workers,
    /// A capacity that the load generator does not limit.
    Measure,
}

/// The single step that brings most, from what is known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadroomStep {
    pub what: StepKind,
    #[serde(rename = "because")]
    pub reason: String,
    /// The headroom afterwards, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headroom: Option<f64>,
    /// When the limit is reached afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<DayInterval>,
}

/// Demand against capacity. What needs a capacity is null without one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadroomDocument {
    pub schema: String,
    pub url: String,
    pub objective: Vec<Objective>,
    /// Where the demand comes from: the files, or the option.
    pub logs: Vec<String>,
    pub demand: Demand,
    pub capacity_rps: Option<f64>,
    /// Capacity against the busiest minute.
    pub headroom: Option<f64>,
    /// True if the capacity may be higher than what was measured.
    pub at_least: bool,
    /// Workers that are busy in the busiest minute, rounded up.
    pub workers: Option<u64>,
    /// Seconds that a request holds a worker, and where that is from.
    pub held_s: Option<f64>,
    pub held_from: String,
    /// Machines for the busiest minute with one of them down.
    pub machines: Option<u64>,
    pub burst: Vec<BurstWait>,
    /// The days between which demand reaches the capacity.
    pub reached: Option<DayInterval>,
    /// Why `reached` is null.
    pub cannot_tell: String,
    pub step: Option<HeadroomStep>,
    pub assumptions: Vec<String>,
    pub notes: Vec<String>,
    /// The search for the capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityDocument>,
}
