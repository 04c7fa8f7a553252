//! `lastdrop.profile/1`: a CPU profile of a server.

use serde::{Deserialize, Serialize};

use super::ProfileMemory;

pub const PROFILE_SCHEMA: &str = "lastdrop.profile/1";

/// A CPU profile of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileDocument {
    pub schema: String,
    pub server: String,
    /// `perf (cycles)`, `perf (cpu-clock)`, `/proc`, `smaps` (memory), or the profiler of a language and its clock.
    pub how: String,
    /// The language whose functions these are; none for functions of programs and libraries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    pub seconds: f64,
    pub samples: u64,
    /// CPU time of the server during the profile, by the kernel's count.
    pub cpu_s: f64,
    /// Requests during the profile: those of the load, otherwise by the status page.
    pub requests: Option<u64>,
    pub us_per_request: Option<f64>,
    /// CPU time per request that the profiler of a language added, as a share of the time without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<f64>,
    /// Time in the functions of a language, by the profiler's clock: the whole of their shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub functions_s: Option<f64>,
    /// Functions by self time, the costliest first; empty without perf.
    pub functions: Vec<ProfileFunction>,
    /// Programs and libraries; without perf, states of the processes as the kernel shows them.
    pub libraries: Vec<ProfileShare>,
    /// The most frequent stacks, the outermost caller first, with their samples; empty without perf.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<(Vec<String>, u64)>,
    /// Growth of the workers by request class (`--memory`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<ProfileMemory>,
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
    /// For functions of a language.
    #[serde(flatten)]
    pub code: Option<CodeFunction>,
}

/// A function of the program's own language. The shares are of the time in all its functions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CodeFunction {
    pub name: String,
    /// Empty for a function that is not written in this language.
    pub file: String,
    /// Line of its definition, or of its code that was seen first; 0 if unknown.
    pub line: u32,
    pub exclusive_share: f64,
    pub cumulative_share: f64,
    /// None if the profiler samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
}

impl ProfileDocument {
    /// Unit of the numbers of its stacks.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        if self.language.is_some() { "µs" } else { "samples" }
    }

    /// What `samples` counts: only a profiler that times each call counts calls.
    #[must_use]
    pub fn counted(&self) -> &'static str {
        let is_timed = |f: &ProfileFunction| f.code.as_ref().is_some_and(|c| c.calls.is_some());
        if self.functions.iter().any(is_timed) { "calls" } else { "samples" }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileShare {
    pub name: String,
    pub share: f64,
    pub us_per_request: Option<f64>,
}
