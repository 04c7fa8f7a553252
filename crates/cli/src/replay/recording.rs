//! Writes the requests of a log, as they will be sent, into a file that agents get before the run.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result, bail};
use lastdrop_load::files::MOST_BYTES;
use lastdrop_load::share::Share;
use lastdrop_load::tape_file::{self, TapeFile, TapeSplit};
use lastdrop_load::{RecordedRequest, files};
use lastdrop_model::bounds::REQUESTS;
use lastdrop_model::plan::Pace;
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Micros, Plan, Run};
use tempfile::NamedTempFile;

/// The file for the requests; deleted on drop.
#[derive(Debug)]
pub struct Recording {
    file: NamedTempFile,
    dealt: TapeSplit,
}

/// Requests that are written to a file.
#[derive(Debug)]
pub struct RecordedRequests {
    /// Keeps the file until the end of the run.
    _file: NamedTempFile,
    tape: TapeFile,
    /// The number of the last one.
    last: u64,
}

impl Recording {
    /// Creates the file and changes the plan to replay it.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn new(plan: &mut Plan) -> Result<Recording> {
        let file = NamedTempFile::new().context("cannot make a file for the requests of the log")?;
        let mut dealt = TapeSplit::ByPlace;
        if let Some(replay) = &mut plan.replay {
            replay.tape = Some(file.path().into());
            if let Pace::Sessions { .. } = replay.pace {
                dealt = TapeSplit::BySession;
                // Sessions are not dealt out by number of requests: they end with the recording.
                let endless = |d| if d { None } else { Some(REQUESTS.most as u64) };
                plan.phases.iter_mut().for_each(|p| p.requests = endless(p.duration.is_some()));
            }
        }
        Ok(Recording { file, dealt })
    }

    /// Writes the requests of the plan: at most `requests` of them, and only those due before its end. Returns None if `stop`
    /// was set.
    ///
    /// # Errors
    /// When they cannot be written, or exceed the size that agents read.
    pub fn record(
        mut self,
        played: Receiver<Vec<RecordedRequest>>,
        plan: &Plan,
        requests: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<Option<RecordedRequests>> {
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
                if self.dealt == TapeSplit::BySession {
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
        Ok(Some(RecordedRequests { _file: self.file, tape, last }))
    }
}

impl RecordedRequests {
    /// The number of requests of the log that are certainly done after the run: all before the first that no agent is known to
    /// have sent.
    pub fn next(&self, run: &Run) -> u64 {
        let weights: Vec<u32> = run.agents.iter().map(|a| a.weight).collect();
        let shares = Share::by_weight(&weights).unwrap_or_default();
        let each = run.agents.iter().zip(&shares).map(|(agent, share)| match agent.played_up_to {
            // It may have sent more than it has reported.
            None if !agent.complete => self.first_untold(share, agent.requests.sent),
            behind => behind.unwrap_or(self.last),
        });
        each.min().unwrap_or(0)
    }

    /// The number of requests of the log before the first that an agent has not reported, if it reported `told` of them.
    fn first_untold(&self, share: &Share, told: u64) -> u64 {
        // With sessions, the count does not say which requests are done.
        let first = if self.tape.split() == TapeSplit::ByPlace { told } else { 0 };
        self.tape.of(share).nth(first as usize).map_or(self.last, |p| p.number.saturating_sub(1))
    }
}
