//! Experiments in a simulated world: the same code as on real machines, in virtual time, with a truth to compare with.
//!
//! `machine` is what an experiment is given of a simulated machine. `stacks` draws servers and noise by seed. `compare`, `capacity`
//! and `tune` carry out one experiment of a seed and check what it says; `shares` counts how often each claim held.

pub mod capacity;
pub mod compare;
pub mod machine;
pub mod shares;
pub mod stacks;
pub mod tune;

use std::panic::catch_unwind;

use shares::{Claim, ExperimentResult};

/// A kind of experiment.
#[derive(Debug)]
pub struct ExperimentKind {
    pub name: &'static str,
    pub one: fn(u64) -> Result<ExperimentResult, String>,
    /// Describes a scenario and the document of its experiment.
    pub show: fn(u64) -> String,
    pub claims: &'static [Claim],
    /// Share of the time that goes to it, in parts.
    pub weight: u64,
}

/// All kinds.
pub const KINDS: &[ExperimentKind] = &[
    ExperimentKind { name: "compare", one: compare::one, show: compare::show, claims: &compare::CLAIMS, weight: 6 },
    ExperimentKind { name: "capacity", one: capacity::one, show: capacity::show, claims: &capacity::CLAIMS, weight: 1 },
    ExperimentKind { name: "tune", one: tune::one, show: tune::show, claims: &tune::CLAIMS, weight: 1 },
];

impl ExperimentKind {
    /// Returns the kind of a seed's experiment.
    #[must_use]
    pub fn of(seed: u64) -> &'static ExperimentKind {
        let all: u64 = KINDS.iter().map(|kind| kind.weight).sum();
        let mut place = seed % all;
        for kind in KINDS {
            if place < kind.weight {
                return kind;
            }
            place -= kind.weight;
        }
        &KINDS[0]
    }
}

/// Carries out the experiment of a seed. A panic is an error.
///
/// # Errors
/// When it cannot be carried out.
pub fn one(seed: u64) -> Result<ExperimentResult, String> {
    let kind = ExperimentKind::of(seed);
    catch_unwind(|| (kind.one)(seed))
        .unwrap_or_else(|_| Err("a panic".into()))
        .map_err(|e| format!("{}: {e}", kind.name))
}

/// Describes the experiment of a seed, and what it said, for people.
#[must_use]
pub fn show(seed: u64) -> String {
    (ExperimentKind::of(seed).show)(seed)
}
