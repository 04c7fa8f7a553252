//! The type of a validity rule, and the evidence that it examines.

use lastdrop_model::plan::Load;
use lastdrop_model::run::{Pool, Run};
use lastdrop_model::{Generator, PhaseReport, Plan, Verdict};

/// Name of the rule about other programs' CPU use, which [`crate::others_busy`] looks up.
pub(crate) const OTHERS_BUSY: &str = "others-busy";

/// Evidence of a run that the validity rules examine.
#[derive(Debug, Clone, Copy)]
pub struct RunEvidence<'a> {
    pub plan: &'a Plan,
    pub phase: Option<&'a PhaseReport>,
    pub generator: &'a Generator,
    pub pool: Option<&'a Pool>,
}

impl<'a> RunEvidence<'a> {
    /// Collects the evidence of a run, live or from the store.
    #[must_use]
    pub fn of(run: &'a Run) -> RunEvidence<'a> {
        RunEvidence { plan: &run.plan, phase: run.measured(), generator: &run.generator, pool: run.pool.as_ref() }
    }

    /// Returns the load of the measured phase.
    pub(crate) fn load(&self) -> Option<&'a Load> {
        self.plan.phases.iter().find(|p| p.measured).map(|p| &p.load)
    }
}

/// A validity rule: its name, and a function that returns a verdict, what was observed and what to do.
#[derive(Debug)]
pub(crate) struct ValidityRule {
    pub name: &'static str,
    /// True if the rule judges a load-generating machine. With several machines, each is judged by itself.
    pub of_generator: bool,
    /// True if the rule detects a disturbed machine, whose measurements say nothing about the server.
    pub disturbs: bool,
    pub look: fn(&RunEvidence<'_>) -> Option<(Verdict, String, String)>,
}
