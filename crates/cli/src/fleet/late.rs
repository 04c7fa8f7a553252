//! Late reports of agents. They wait in the broker, and lastdrop adds them to the stored runs.

use std::time::Duration;

use anyhow::Result;
use lastdrop_experiment::lab::fleet::rebuild_run;
use lastdrop_fleet::{Fleet, RecordId, RemoteRunEvent, StartOptions};
use lastdrop_model::Run;
use lastdrop_store::{AgentRecord, RecordBody, Store};

use crate::stdio::note;

/// After this long without a message, lastdrop asks the broker whether any still wait.
const QUIET: Duration = Duration::from_millis(500);
/// After this many times QUIET, messages that wait but do not arrive are given up: parts of a record that is incomplete.
const QUIETS: u32 = 20;

/// Adds late reports to stored runs. Prints and returns the runs that changed.
///
/// # Errors
/// When the broker or the store fails. All reports taken from the broker are then in the store.
pub fn catch_up(fleet: &Fleet, store: &Store) -> Result<Vec<Run>> {
    let mut changed = Vec::new();
    for waiting in fleet.waiting()? {
        let run = waiting.run;
        let names: Vec<String> = store.agents(&run)?.into_iter().map(|a| a.name).collect();
        // Skip a run from another store, and one that is still going on.
        if names.is_empty() || fleet.agents()?.iter().any(|a| a.busy.as_deref() == Some(&run)) {
            continue;
        }
        let id = |w: AgentRecord| RecordId { run: run.clone(), agent: w.agent, epoch: w.epoch, seq: w.seq };
        let have: Vec<RecordId> = store.agent_records(&run)?.into_iter().map(id).collect();
        // All reports of a complete run are stored already, but the broker did not get the acknowledgement.
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
