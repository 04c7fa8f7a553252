//! Rebuilds a stored run from everything its agents have reported by now: records that came too late for the report, or
//! after the coordinator was killed.

use lastdrop_analyze::objective;
use lastdrop_diagnose::RunEvidence;
use lastdrop_load::MergedEvent;
use lastdrop_load::schedule::DueCounter;
use lastdrop_load::share::Share;
use lastdrop_model::run::{End, RunBuilder};
use lastdrop_model::{Micros, Run, Validity};
use lastdrop_store::{RecordBody, Store};

use super::{Member, RunAssembler};
use crate::lab::runs::LabError;

/// Rebuilds a stored run and stores the result. None if it is no run of a fleet, if it is complete already, or if the
/// stored records cover less than its report.
///
/// # Errors
/// When the store fails.
pub fn rebuild_run(store: &Store, id: &str) -> Result<Option<Run>, LabError> {
    let failed = |e: lastdrop_store::StoreError| LabError::Other(e.to_string());
    let agents = store.agents(id).map_err(failed)?;
    let words = store.agent_records(id).map_err(failed)?;
    if agents.is_empty() || words.is_empty() {
        return Ok(None);
    }
    let before = store.load(id).map_err(failed)?;
    let members: Vec<Member> = agents
        .into_iter()
        .map(|a| Member { name: a.name, weight: a.weight, offset_us: a.offset_us, error_us: a.error_us, address: None })
        .collect();
    // Tapes are not stored, so an agent's share of one comes from the earlier report.
    let of_tape = |member: &Member, phase: usize| {
        let due = before.agents.iter().find(|a| a.name == member.name).map_or(0, |a| a.requests.due);
        let end_us = before.phases.get(phase).map_or(0.0, |p| p.duration_s * 1e6);
        DueCounter::by(due, end_us.round() as Micros)
    };
    let due = |member: &Member, phase: usize, share: &Share| match before.plan.replay {
        Some(_) => of_tape(member, phase),
        None => DueCounter::of(&before.plan, phase, share),
    };
    let mut assembler = RunAssembler::with_dues(&before.plan, &members, due)
        .ok_or_else(|| LabError::Other(format!("run {id}: the weights of its agents mean nothing")))?;
    if before.end == End::Interrupted {
        assembler.stopping();
    }
    for word in words {
        let Some(member) = members.iter().position(|m| m.name == word.agent) else { continue };
        match word.what {
            RecordBody::Record(bytes) => {
                if let Err(why) = assembler.take(member, word.epoch, word.seq, &bytes) {
                    assembler.distrust(member, &why);
                }
            }
            RecordBody::Last(error) => assembler.ended(member, word.epoch, word.seq, error),
        }
    }
    let mut told: Vec<MergedEvent> = std::iter::from_fn(|| assembler.pop()).collect();
    told.extend(assembler.rest(&before.plan));
    let carried = assembler.finish(before.end == End::Interrupted);
    let whole = carried.agents.iter().all(|a| a.complete);
    if !whole && !before.agents.is_empty() && before.agents.iter().all(|a| a.complete) {
        // The earlier report was made from more records than could be stored; the others are still to come.
        return Ok(None);
    }
    // If we are killed here, the agents' records are still stored, and this is repeated.
    store.forget_seconds(id).map_err(failed)?;
    let mut builder = RunBuilder::new(&before.plan);
    for merged in &told {
        match merged {
            MergedEvent::Second(slice) => {
                builder.add(slice);
                store.second(id, slice).map_err(failed)?;
            }
            MergedEvent::PhaseEnd { phase, duration_us, peak } => {
                builder.end_phase(*phase, *duration_us, *peak);
                store.phase_end(id, *phase, *duration_us, *peak).map_err(failed)?;
            }
        }
    }
    let phases = builder.into_reports();
    let evidence = RunEvidence {
        plan: &before.plan,
        phase: phases.iter().find(|p| p.measured),
        generator: &carried.generator,
        pool: before.pool.as_ref(),
    };
    let validity = of_fleet(carried.reasons, lastdrop_diagnose::judge(&evidence));
    let objectives = objective::judge(&before.plan.objectives, &before.plan, &phases, before.server.as_ref());
    let end = if before.end == End::Killed && whole { End::Finished } else { before.end };
    let run = Run { phases, validity, objectives, end, agents: carried.agents, generator: carried.generator, ..before };
    store.finish(&run).map_err(failed)?;
    if whole {
        store.forget_agent_records(id).map_err(failed)?;
    }
    Ok(Some(run))
}

/// Combines the judgements of a run on many machines: each machine has been judged by itself, and the responses are
/// judged together.
pub(crate) fn of_fleet(mut of_machines: Vec<lastdrop_model::Reason>, together: Validity) -> Validity {
    of_machines.extend(together.reasons.into_iter().filter(|r| !lastdrop_diagnose::is_of_generator(&r.rule)));
    Validity::of(of_machines)
}
