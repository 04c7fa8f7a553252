//! `lastdrop.profile/1`: where a server's CPU goes.

use serde::{Deserialize, Serialize};

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
    /// Stacks, the outermost caller first, with their samples: those that were seen most; none without perf.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<(Vec<String>, u64)>,
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
