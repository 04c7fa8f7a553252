//! Nodes of a site: the same server on several machines, and the differences between them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Kind of difference between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeDifferenceKind {
    Settings,
    Memory,
    Rate,
    Errors,
}

/// A node that differs from the others of its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeDifference {
    /// Name of the node: `web-2/apache`.
    pub server: String,
    pub what: NodeDifferenceKind,
    /// The setting or the number: `MaxRequestWorkers`, `real_memory_bytes`, `requests_rps`, `ListenOverflows`.
    pub name: String,
    /// The node's value; null if it does not have the setting.
    pub value: Value,
    /// The others' value: the most frequent setting, or the median of their numbers.
    pub others: Value,
}
