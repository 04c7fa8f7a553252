//! The validity rules: one constant each, in the file of its subject, listed in [`VALIDITY`].

mod answers;
mod course;
mod generator;
mod machine;

pub use generator::saturated;
pub use machine::others_threshold_cores;

use crate::rule::ValidityRule;

/// All validity rules by weight: reports print the first ones first.
pub(crate) const VALIDITY: &[ValidityRule] = &[
    answers::NOTHING_ANSWERED,
    generator::GENERATOR_SATURATED,
    machine::CO_LOCATED,
    machine::STEAL,
    machine::OTHERS_BUSY,
    generator::THROTTLED,
    generator::LATE,
    generator::PORTS,
    generator::DESCRIPTORS,
    machine::CLOCK,
    course::GROWING_POOL,
    course::WARM_UP,
    course::UNSTEADY,
    course::LITTLES_LAW,
    answers::ANSWERS_DIFFER,
    answers::ERRORS,
    answers::IN_DOUBT,
    answers::FEW_SAMPLES,
    answers::UNANSWERED,
];
