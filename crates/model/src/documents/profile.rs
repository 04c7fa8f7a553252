//! `lastdrop.profile/1`: a CPU profile of a server.

use serde::{Deserialize, Serialize};

pub const PROFILE_SCHEMA: &str = "lastdrop.profile/1";

/// A CPU profile of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileDocument {
    pub schema: String,
    pub server: String,
    /// `perf (cycles)`, `perf (cpu-clock)`, or `/proc`.
    pub how: String,
    pub seconds: f64,
    pub samples: u64,
    /// CPU time of the server during the profile, by the kernel's count.
    pub cpu_s: f64,
    /// Requests during the profile: those of the load, otherwise by the status page.
    pub requests: Option<u64>,
    pub us_per_request: Option<f64>,
    /// Functions by self time, the costliest first; empty without perf.
    pub functions: Vec<ProfileFunction>,
    /// Programs and libraries; without perf, states of the processes as the kernel shows them.
    pub libraries: Vec<ProfileShare>,
    /// The most frequent stacks, the outermost caller first, with their samples; empty without perf.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<(Vec<String>, u64)>,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileFunction {
    pub function: String,
    pub library: String,
    pub self_share: f64,
    /// Share including the functions that it calls.
    pub total_share: f64,
    pub us_per_request: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileShare {
    pub name: String,
    pub share: f64,
    pub us_per_request: Option<f64>,
}
