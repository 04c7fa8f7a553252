//! What somebody who watched a run had to say of a moment of it: a deployment, a cache that was emptied.

use serde::{Deserialize, Serialize};

/// A moment of a run that somebody marked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the run began; 0 for one that was made before, between two runs of an experiment.
    pub t_s: f64,
    pub text: String,
}
