//! How far a run can be believed, and why.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Valid,
    Doubtful,
    Invalid,
}

/// One reason for a verdict: a rule that fired, what it saw, and what to do about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// Stable name of the rule.
    pub rule: String,
    pub verdict: Verdict,
    /// What was seen, with its number.
    pub what: String,
    /// What to do, in terms of the flags used.
    pub advice: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validity {
    pub verdict: Verdict,
    pub reasons: Vec<Reason>,
}

impl Validity {
    /// Returns the validity with the worst verdict of the reasons; valid without reasons.
    #[must_use]
    pub fn of(reasons: Vec<Reason>) -> Validity {
        let verdict = reasons.iter().map(|r| r.verdict).max().unwrap_or(Verdict::Valid);
        Validity { verdict, reasons }
    }
}

impl Default for Validity {
    fn default() -> Self {
        Validity { verdict: Verdict::Valid, reasons: Vec::new() }
    }
}
