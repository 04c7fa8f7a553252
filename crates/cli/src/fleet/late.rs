//! What agents had to tell when nobody listened any more: it waits in the broker, and is added to the kept runs.

use std::time::Duration;

use anyhow::Result;
use lastdrop_fleet::{Fleet, RecordId, RemoteRunEvent, StartOptions};
use lastdrop_lab::fleet::rebuild_run;
use lastdrop_model::Run;
use lastdrop_store::{AgentRecord, RecordBody, Store};

use crate::stdio::note;

/// When nothing has come for so long the broker is asked whether anything waits still.
const QUIET: Duration = Duration::from_millis(500);
/// What waits and does not come within so many of these is of no use: parts of a record of which the others never came.
const QUIETS: u32 = 20;

/// Adds to kept runs what came late of them. Says which are another than they were.
///
/// # Errors
/// When the broker or the store fails; what was taken from the broker is in the store.
pub fn catch_up(fleet: &Fleet, store: &Store) -> Result<Vec<Run>> {
    let mut changed = Vec::new();
    for waiting in fleet.waiting()? {
        let run = waiting.run;
        let names: Vec<String> = store.agents(&run)?.into_iter().map(|a| a.name).collect();
        // Of somebody else, with a store of their own; or one that goes on.
        if names.is_empty() || fleet.agents()?.iter().any(|a| a.busy.as_deref() == Some(&run)) {
            continue;
        }
        let id = |w: AgentRecord| RecordId { run: run.clone(), agent: w.agent, epoch: w.epoch, seq: w.seq };
        let have: Vec<RecordId> = store.agent_records(&run)?.into_iter().map(id).collect();
        // Of a run that is whole all was taken; that it was, never reached the broker.
        let again = have.is_empty() && store.load(&run)?.agents.iter().filter(|a| a.complete).count() == names.len();
        let mut flight = fleet.resume(&run, &names, &have, &StartOptions::default())?;
        let mut quiet = 0;
        while quiet < QUIETS {
            let (id, what) = match flight.next(QUIET)? {
                Some(RemoteRunEvent::Arrived(arrived)) => (arrived.id, RecordBody::Record(arrived.bytes)),
                Some(RemoteRunEvent::Ended(end)) => (end.id, RecordBody::Last(end.error)),
                Some(RemoteRunEvent::Lost { .. } | RemoteRunEvent::Back { .. } | RemoteRunEvent::Status(_)) => continue,
                None if fleet.waiting()?.iter().any(|w| w.run == run) => {
                    quiet += 1;
                    continue;
                }
                None => break,
            };
            quiet = 0;
            if !again {
                store.keep_agent_record(
                    &run,
                    &AgentRecord { agent: id.agent.clone(), epoch: id.epoch, seq: id.seq, what },
                )?;
            }
            flight.commit(&id);
        }
        flight.close();
        if again {
            continue;
        }
        changed.extend(rebuild_run(store, &run)?);
    }
    for run in &changed {
        let whole = if run.agents.iter().all(|a| a.complete) { "it is whole now" } else { "it is not whole yet" };
        note!("lastdrop: run {} was added to by what its agents told late; {whole}", run.id);
    }
    Ok(changed)
}
