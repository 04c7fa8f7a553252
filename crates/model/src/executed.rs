//! Programs that lastdrop executed, for documents.

use serde::{Deserialize, Serialize};

/// An executed program, the user id that it ran with, and its purpose.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExecutedProgram {
    pub program: String,
    pub uid: u32,
    pub why: String,
}
