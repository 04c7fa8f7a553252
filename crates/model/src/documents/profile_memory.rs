//! The part of `lastdrop.profile/1` about memory: how much each class of requests makes the workers grow.

use serde::{Deserialize, Serialize};

use super::Interval;

/// Growth of a server's workers by request class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileMemory {
    /// Workers that lived through the measurement.
    pub workers: u64,
    /// Rounds in which each class had its turn.
    pub rounds: u64,
    /// Classes by growth per request, the largest first.
    pub classes: Vec<ClassMemory>,
    /// A growth per request of this many bytes would have been seen in every class.
    pub smallest_bytes: f64,
    /// What all these workers gained during the rounds.
    pub gained_bytes: f64,
    /// Functions by the bytes that they allocated and that are kept, for the class that grows most. Empty where the
    /// profiler of the language cannot tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<AllocatingFunction>,
}

/// A function and the memory that it allocated and that is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatingFunction {
    pub name: String,
    /// Empty for a function that is not written in this language.
    pub file: String,
    /// 0 if unknown.
    pub line: u32,
    /// Bytes per request that the function itself allocated.
    pub kept_bytes: f64,
    /// The same as a share of all functions.
    pub share: f64,
}

/// What the requests of one class do to the memory of the workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassMemory {
    pub class: String,
    pub verdict: ClassVerdict,
    /// Answered requests of the class during the rounds.
    pub requests: u64,
    /// Private memory gained per request, in all mappings.
    pub growth_bytes: Interval,
    /// Resident memory gained per request. A worker that writes to shared memory gains private memory only.
    pub resident_bytes: Interval,
    /// A growth per request of this many bytes would have been seen.
    pub smallest_bytes: f64,
    /// Growth per request by mapping, the largest first.
    pub mappings: Vec<MappingGrowth>,
}

/// Growth in the mappings of one name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MappingGrowth {
    /// `[heap]`, `anonymous`, `[stack]`, `shared memory`, or the path of a file.
    pub mapping: String,
    pub growth_bytes: Interval,
}

/// Whether a class makes a worker grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClassVerdict {
    /// No growth was seen.
    #[default]
    Steady,
    /// Each request adds memory, and this goes on.
    Grows,
    /// The worker writes to memory that it shared with others. This ends once nothing is left to unshare.
    Unshares,
    /// Each round adds less than the one before: a cache that fills.
    Slows,
}

impl ClassVerdict {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ClassVerdict::Steady => "steady",
            ClassVerdict::Grows => "grows",
            ClassVerdict::Unshares => "unshares",
            ClassVerdict::Slows => "slows",
        }
    }
}
