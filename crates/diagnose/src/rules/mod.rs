//! The rules of validity: one constant each, in the file of what it is about, and one line in [`VALIDITY`].

mod answers;
mod course;
mod generator;
mod machine;

pub use generator::saturated;
pub use machine::others_worth_a_word;

use crate::rule::Rule;

/// All of them, in the order of their weight: reports tell the first ones first.
pub(crate) const VALIDITY: &[Rule] = &[
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
