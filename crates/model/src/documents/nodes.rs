//! Nodes of a site: the same server on several machines, and what of one is not as on the others.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// In what a node differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeDifferenceKind {
    Settings,
    Memory,
    Rate,
    Errors,
}

/// A node that is not as the others of its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeDifference {
    /// What it is called: `web-2/apache`.
    pub server: String,
    pub what: NodeDifferenceKind,
    /// The setting or the number: `MaxRequestWorkers`, `real_memory_bytes`, `requests_rps`, `ListenOverflows`.
    pub name: String,
    /// What it has there; null where it does not have that setting.
    pub value: Value,
    /// What the others have: the setting of most of them, the median of their numbers.
    pub others: Value,
}
