//! The advised number of workers of a pool, in the documents of every command that advises one.

use serde::{Deserialize, Serialize};

/// The advised number of workers, and its derivation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkersAdvice {
    /// Name of the pool's server, in a document about several servers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// Requests that may be processed at once. If the need is unknown, it is only a ceiling.
    pub number: u64,
    /// Workers that keep the processors busy plus those that idle connections hold; `None` if unknown without load.
    pub need: Option<u64>,
    /// The part of the need that idle keep-alive connections hold.
    #[serde(skip_serializing_if = "is_zero")]
    pub held_by_idle_connections: u64,
    /// Ceilings of the number of workers, the lowest first.
    pub ceilings: Vec<WorkersCeiling>,
    /// What determines the number: `need`, or the ceiling below it.
    pub bound_by: String,
    /// True if the need exceeds a ceiling.
    pub too_few: bool,
    /// The inputs of the need: CPU time per request of the server and its backends, and how long a single request holds
    /// its worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_us_per_request: Option<f64>,
    /// The calculation of the need, with its numbers.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(rename = "because")]
    pub reason: String,
    /// What would lower the need, with the resulting need.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lower: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde wants a reference
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A ceiling of the number of workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkersCeiling {
    /// `memory`, `database`, `ServerLimit`, `descriptors`, `tasks`.
    pub by: String,
    pub number: u64,
    /// The calculation in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[serde(rename = "because")]
    pub reason: String,
}

impl WorkersAdvice {
    /// Returns the number, the need and the ceilings as one line.
    #[must_use]
    pub fn line(&self) -> String {
        let ceilings: Vec<String> = self.ceilings.iter().map(|c| format!("{} {}", c.by, c.number)).collect();
        let ceilings = if ceilings.is_empty() { "none known".into() } else { ceilings.join(", ") };
        match self.need {
            None => format!("no more than {} (need: unknown without load, --url …; ceilings: {ceilings})", self.number),
            Some(need) => {
                let held = match self.held_by_idle_connections {
                    0 => String::new(),
                    n => format!(", {n} of them held by idle keep-alive connections"),
                };
                let few = if self.too_few { format!(", TOO FEW, bound by {}", self.bound_by) } else { String::new() };
                format!("{}{few} (need: {need}{held}; ceilings: {ceilings})", self.number)
            }
        }
    }
}
