//! A program that lastdrop executed, as documents name it.

use serde::{Deserialize, Serialize};

/// Which program, with whose rights, and what for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ExecutedProgram {
    pub program: String,
    pub uid: u32,
    pub why: String,
}
