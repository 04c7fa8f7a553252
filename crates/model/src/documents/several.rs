//! Documents of several servers in one.

use serde::{Deserialize, Serialize};

/// What a command says of each of several servers, in the order in which they were named; of one it says just that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DocumentList<T> {
    /// That of each.
    pub schema: String,
    pub servers: Vec<T>,
}
