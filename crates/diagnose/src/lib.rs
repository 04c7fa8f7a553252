//! Judges whether a run is valid, and finds what limits an examined server. All functions are pure: the same stored
//! evidence gives the same result.
//!
//! To add a validity rule, write one constant in a file under `rules`, and list it in `VALIDITY`. To add a finding,
//! write a function under `findings`, list it in the table of its file, and describe it in `findings::kinds`.

pub mod findings;
pub mod fold;
mod rule;
mod rules;

use lastdrop_model::{Reason, Validity};

pub use rule::RunEvidence;
pub use rules::{others_threshold_cores, saturated};

use rule::OTHERS_BUSY;

/// Returns the reason that shows a disturbed machine during a run, if there is one.
#[must_use]
pub fn disturbance(validity: &Validity) -> Option<&Reason> {
    let disturbs = |reason: &&Reason| rules::VALIDITY.iter().any(|rule| rule.disturbs && rule.name == reason.rule);
    validity.reasons.iter().find(disturbs)
}

/// Returns the reason about other programs' CPU use, if it exceeded the threshold.
#[must_use]
pub fn others_busy(validity: &Validity) -> Option<&Reason> {
    validity.reasons.iter().find(|r| r.rule == OTHERS_BUSY)
}

/// Applies every validity rule.
#[must_use]
pub fn judge(evidence: &RunEvidence<'_>) -> Validity {
    Validity::of(
        rules::VALIDITY
            .iter()
            .filter_map(|rule| {
                let (verdict, what, advice) = (rule.look)(evidence)?;
                Some(Reason { rule: rule.name.into(), verdict, what, advice })
            })
            .collect(),
    )
}

/// True if the rule judges a load-generating machine, and not the server's answers.
#[must_use]
pub fn is_of_generator(rule: &str) -> bool {
    rules::VALIDITY.iter().any(|r| r.of_generator && r.name == rule)
}

#[cfg(test)]
mod tests;
