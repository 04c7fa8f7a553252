//! The document of a run as it lies in the store: without what has a table of its own.

use lastdrop_model::{Observed, PhaseReport, Run, Timeline};

/// The run without its seconds, its looks and the requests of its plan. A long run has many of each.
pub(crate) fn without_lists(run: &Run) -> Run {
    let brief = |phase: &PhaseReport| PhaseReport { seconds: Timeline::default(), ..phase.clone() };
    Run {
        schema: run.schema.clone(),
        id: run.id.clone(),
        seed: run.seed,
        started_unix_ms: run.started_unix_ms,
        label: run.label.clone(),
        end: run.end,
        environment: run.environment.clone(),
        plan: run.plan.without_requests(),
        phases: run.phases.iter().map(brief).collect(),
        generator: run.generator.clone(),
        pool: run.pool.clone(),
        server: run.server.as_ref().map(|server| Observed { looks: Timeline::default(), ..server.clone() }),
        validity: run.validity.clone(),
        replay: run.replay.clone(),
        joined_log: run.joined_log.clone(),
        marks: run.marks.clone(),
        objectives: run.objectives.clone(),
    }
}
