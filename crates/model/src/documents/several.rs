//! A list of documents, one per server.

use serde::{Deserialize, Serialize};

/// Documents of several servers, in the order in which they were named. For a single server a command prints just its
/// document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DocumentList<T> {
    /// Schema of each document.
    pub schema: String,
    pub servers: Vec<T>,
}
