//! Marks that a user sets while watching a run: a deployment, an emptied cache.

use serde::{Deserialize, Serialize};

/// A marked moment of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds since the run began; 0 for a mark made before it, between two runs of an experiment.
    pub t_s: f64,
    pub text: String,
}
