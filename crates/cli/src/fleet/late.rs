//! What agents had to tell when nobody listened any more: it waits in the broker, and is added to the kept runs.

use std::time::Duration;

use anyhow::Result;
use lastdrop_fleet::{Departure, Fleet, News, RecordId};
use lastdrop_lab::fleet::put_together;
use lastdrop_model::Run;
use lastdrop_store::{KeptWord, Store, Word};

use crate::stdio::note;

/// Nothing more waits when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(1500);

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
        let id = |w: KeptWord| RecordId { run: run.clone(), agent: w.agent, epoch: w.epoch, seq: w.seq };
        let have: Vec<RecordId> = store.words(&run)?.into_iter().map(id).collect();
        // Of a run that is whole all was taken; that it was, never reached the broker.
        let again = have.is_empty() && store.load(&run)?.agents.iter().filter(|a| a.complete).count() == names.len();
        let mut flight = fleet.resume(&run, &names, &have, &Departure::default())?;
        while let Some(news) = flight.next(QUIET)? {
            let (id, what) = match news {
                News::Arrived(arrived) => (arrived.id, Word::Record(arrived.bytes)),
                News::Ended(end) => (end.id, Word::Last(end.error)),
                News::Lost { .. } | News::Back { .. } | News::Status(_) => continue,
            };
            if !again {
                store.keep_word(&run, &KeptWord { agent: id.agent.clone(), epoch: id.epoch, seq: id.seq, what })?;
            }
            flight.commit(&id);
        }
        flight.close();
        if again {
            continue;
        }
        changed.extend(put_together(store, &run)?);
    }
    for run in &changed {
        let whole = if run.agents.iter().all(|a| a.complete) { "it is whole now" } else { "it is not whole yet" };
        note!("lastdrop: run {} was added to by what its agents told late; {whole}", run.id);
    }
    Ok(changed)
}
