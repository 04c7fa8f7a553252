//! What a run has to show and the rules that say what it is worth; what an examination of a server has to show and the rules
//! that say what limits it. Pure: the same from what is stored.
//!
//! A new rule of validity is one constant in a file under `rules`, and one line in the list there; one that names a limit, a
//! function under `findings`, with a line in the list of its file and one in `about`.

pub mod findings;
pub mod fold;
mod rule;
mod rules;

use lastdrop_model::{Reason, Validity};

pub use rule::Evidence;
pub use rules::{others_worth_a_word, saturated};

use rule::OTHERS_BUSY;

/// What disturbed the machine during a run.
#[must_use]
pub fn disturbance(validity: &Validity) -> Option<&Reason> {
    let disturbs = |reason: &&Reason| rules::VALIDITY.iter().any(|rule| rule.disturbs && rule.name == reason.rule);
    validity.reasons.iter().find(disturbs)
}

/// What other programs took from a run, where it was too much.
#[must_use]
pub fn others_busy(validity: &Validity) -> Option<&Reason> {
    validity.reasons.iter().find(|r| r.rule == OTHERS_BUSY)
}

/// Applies every rule.
#[must_use]
pub fn judge(evidence: &Evidence<'_>) -> Validity {
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

/// Is it a rule about a machine that puts load on, not about what the server answered?
#[must_use]
pub fn is_of_generator(rule: &str) -> bool {
    rules::VALIDITY.iter().any(|r| r.of_generator && r.name == rule)
}

#[cfg(test)]
mod tests;
