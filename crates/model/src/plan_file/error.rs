//! The error for a mistake in a plan file: what is wrong, where, and what to try.

use std::fmt;

/// A plan file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanFileError {
    /// Line number, from 1.
    pub line: usize,
    pub column: usize,
    pub what: String,
    pub advice: String,
}

impl fmt::Display for PlanFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}; {}", self.line, self.column, self.what, self.advice)
    }
}

impl std::error::Error for PlanFileError {}

/// Returns what to try for a mistake that serde reported.
pub(super) fn suggestion(what: &str) -> String {
    let quoted: Vec<&str> = what.split('`').skip(1).step_by(2).collect();
    if what.starts_with("unknown") && quoted.len() > 1 {
        let best = quoted[1..]
            .iter()
            .map(|known| (strsim::jaro_winkler(quoted[0], known), known))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(likeness, _)| *likeness > 0.75);
        if let Some((_, known)) = best {
            return format!("did you mean {known}?");
        }
        return format!("there are: {}", quoted[1..].join(", "));
    }
    if what.contains("; ") {
        "correct it".into()
    } else {
        "see docs/plan-file.md, or lastdrop run --plan-schema".into()
    }
}
