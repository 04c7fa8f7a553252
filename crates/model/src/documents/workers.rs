//! How many workers a pool should have: one number, in the documents of every command that advises one.

use serde::{Deserialize, Serialize};

/// The advised number of workers, and what it follows from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkersAdvice {
    /// The server whose pool it is, where a document is about several.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// Requests that may be at work at once. Where the need is not known it is a ceiling: no more than that.
    pub number: u64,
    /// Workers that keep the processors busy, and those that idle connections hold. None: not known without load.
    pub need: Option<u64>,
    /// Of the need: workers that idle keep-alive connections hold.
    #[serde(skip_serializing_if = "is_zero")]
    pub held_by_idle_connections: u64,
    /// What allows no more workers than that, the lowest first.
    pub ceilings: Vec<WorkersCeiling>,
    /// `need`, or the ceiling that is below it.
    pub bound_by: String,
    /// The need is above a ceiling.
    pub too_few: bool,
    /// Processor time of the server and all that it talks to, per request, and for how long a request alone holds its worker: what the need
    /// follows from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_us_per_request: Option<f64>,
    /// How the need was reckoned, with its numbers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub because: String,
    /// What would lower the need, with what it would be then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lower: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde wants a reference
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Something that allows so many workers and no more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkersCeiling {
    /// `memory`, `database`, `ServerLimit`, `descriptors`, `tasks`.
    pub by: String,
    pub number: u64,
    /// The reckoning, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub because: String,
}

impl WorkersAdvice {
    /// The number, the need and the ceilings in a line.
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
