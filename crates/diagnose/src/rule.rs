//! What a rule is, and what it looks at.

use lastdrop_model::plan::Load;
use lastdrop_model::run::{Pool, Run};
use lastdrop_model::{Generator, PhaseReport, Plan, Verdict};

/// The rule that others ask for by its name.
pub(crate) const OTHERS_BUSY: &str = "others-busy";

/// What the rules look at.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub plan: &'a Plan,
    pub phase: Option<&'a PhaseReport>,
    pub generator: &'a Generator,
    pub pool: Option<&'a Pool>,
}

impl<'a> Evidence<'a> {
    /// What a run, also one from the store, has to show.
    #[must_use]
    pub fn of(run: &'a Run) -> Evidence<'a> {
        Evidence { plan: &run.plan, phase: run.measured(), generator: &run.generator, pool: run.pool.as_ref() }
    }

    /// The load of the measured phase.
    pub(crate) fn load(&self) -> Option<&'a Load> {
        self.plan.phases.iter().find(|p| p.measured).map(|p| &p.load)
    }
}

/// A name, and a look at the evidence that may give a verdict, what was seen, and what to do.
#[derive(Debug)]
pub(crate) struct Rule {
    pub name: &'static str,
    /// It is about a machine that puts load on: where there are several, each is judged by itself.
    pub of_generator: bool,
    /// It tells of a disturbed machine: what was measured meanwhile says nothing about the server.
    pub disturbs: bool,
    pub look: fn(&Evidence<'_>) -> Option<(Verdict, String, String)>,
}
