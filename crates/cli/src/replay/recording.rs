//! A log that goes to other machines before it is played: its requests, as they will be sent, in a file.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result, bail};
use lastdrop_load::files::MOST_BYTES;
use lastdrop_load::share::Share;
use lastdrop_load::tape_file::{self, Dealt, TapeFile};
use lastdrop_load::{Played, files};
use lastdrop_model::bounds::REQUESTS;
use lastdrop_model::plan::Pace;
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Micros, Plan, Run};
use tempfile::NamedTempFile;

/// Where they will be. Dropped, the file is gone.
#[derive(Debug)]
pub struct Recording {
    file: NamedTempFile,
    dealt: Dealt,
}

/// Requests that are written down.
#[derive(Debug)]
pub struct Recorded {
    /// It is there for as long as the run.
    _file: NamedTempFile,
    tape: TapeFile,
    /// The number of the last one.
    last: u64,
}

impl Recording {
    /// Makes the file, and the plan one that plays it.
    ///
    /// # Errors
    /// When there is no place for it.
    pub fn new(plan: &mut Plan) -> Result<Recording> {
        let file = NamedTempFile::new().context("cannot make a file for the requests of the log")?;
        let mut dealt = Dealt::ByPlace;
        if let Some(replay) = &mut plan.replay {
            replay.tape = Some(file.path().into());
            if let Pace::Sessions { .. } = replay.pace {
                dealt = Dealt::BySession;
                // They are not dealt out by users: the end of what is recorded is theirs.
                let endless = |d| if d { None } else { Some(REQUESTS.most as u64) };
                plan.phases.iter_mut().for_each(|p| p.requests = endless(p.duration.is_some()));
            }
        }
        Ok(Recording { file, dealt })
    }

    /// Writes down what the plan plays: so many requests, where that is said, and those that are due before its end. None where it was
    /// told to stop.
    ///
    /// # Errors
    /// When they cannot be written, or are more than agents read.
    pub fn record(
        mut self,
        played: Receiver<Vec<Played>>,
        plan: &Plan,
        requests: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<Option<Recorded>> {
        let end: Option<Micros> = plan.phases.iter().map(|p| p.duration.map(|d| d.as_micros() as Micros)).sum();
        let mut sessions: HashMap<u64, u64> = HashMap::new();
        let mut out = BufWriter::new(&mut self.file);
        let (mut line, mut bytes, mut left, mut last) = (Vec::new(), 0, requests.unwrap_or(u64::MAX), 0);
        'log: for some in played {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            for mut request in some {
                if left == 0 || end.is_some_and(|end| request.due >= end) {
                    break 'log;
                }
                if self.dealt == Dealt::BySession {
                    let next = sessions.len() as u64;
                    request.who = *sessions.entry(request.who).or_insert(next);
                }
                line.clear();
                tape_file::write(&request, &mut line)?;
                bytes += line.len() as u64;
                if bytes > MOST_BYTES {
                    bail!(
                        "the requests that are to be replayed are more than the {} that go to agents: replay a part of the log \
                         (--from, and -n or -d)",
                        show_bytes(MOST_BYTES)
                    );
                }
                out.write_all(&line).context("cannot write the requests of the log")?;
                (left, last) = (left - 1, request.number);
            }
        }
        out.flush().context("cannot write the requests of the log")?;
        drop(out);
        let bytes = files::read(self.file.path()).context("cannot read the requests of the log again")?;
        let tape = TapeFile::new(bytes, plan.requests.len(), self.dealt).map_err(anyhow::Error::msg)?;
        Ok(Some(Recorded { _file: self.file, tape, last }))
    }
}

impl Recorded {
    /// How many requests of the log are behind, after the run: all up to the first that was not sent by anybody, as far as is known.
    pub fn next(&self, run: &Run) -> u64 {
        let weights: Vec<u32> = run.agents.iter().map(|a| a.weight).collect();
        let shares = Share::by_weight(&weights).unwrap_or_default();
        let each = run.agents.iter().zip(&shares).map(|(agent, share)| match agent.played_up_to {
            // It may have sent more than it has told.
            None if !agent.complete => self.first_untold(share, agent.requests.sent),
            behind => behind.unwrap_or(self.last),
        });
        each.min().unwrap_or(0)
    }

    /// How many requests of the log are in front of the first that an agent has not told, which has told so many.
    fn first_untold(&self, share: &Share, told: u64) -> u64 {
        // Of sessions nobody knows which.
        let first = if self.tape.is_dealt() == Dealt::ByPlace { told } else { 0 };
        self.tape.of(share).nth(first as usize).map_or(self.last, |p| p.number.saturating_sub(1))
    }
}
