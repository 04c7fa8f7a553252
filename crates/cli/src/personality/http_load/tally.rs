//! What http_load counts of each fetch, and what it says meanwhile.

use std::collections::{BTreeMap, HashMap};

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, Fate, Micros, Plan};

use super::flags::Order;
use super::number::g;
use crate::stdio::note;

/// Progress is told so often.
const PROGRESS_US: Micros = 60_000_000;

#[derive(Debug, Default)]
pub struct Tally {
    pub fetches: u64,
    pub bytes: u64,
    pub connect: Samples,
    pub first: Samples,
    pub timeouts: u64,
    pub bad_lengths: u64,
    lengths: HashMap<u32, u64>,
    pub status: BTreeMap<u16, u64>,
    told: Micros,
    start: Option<Micros>,
}

impl Tally {
    pub fn take(&mut self, e: &Exchange, o: &Order, plan: &Plan) {
        let (Some(sent), Some(done)) = (e.sent, e.done) else { return };
        let start = *self.start.get_or_insert(sent);
        let url = || &plan.requests[e.request as usize].url;
        self.fetches += 1;
        self.bytes += e.body_bytes;
        if let Some(connected) = e.connected {
            self.connect.record(connected.saturating_sub(sent));
            if let Some(first) = e.first_byte {
                self.first.record(first.saturating_sub(connected));
            }
        }
        match e.fate {
            Fate::TimedOut => {
                self.timeouts += 1;
                note!("{}: timed out", url());
            }
            Fate::Answered => {
                *self.status.entry(e.status).or_default() += 1;
                let expected = *self.lengths.entry(e.request).or_insert(e.body_bytes);
                if !o.checksum && expected != e.body_bytes {
                    self.bad_lengths += 1;
                    note!("{}: byte count wrong", url());
                }
            }
            _ => {}
        }
        if o.verbose && done.saturating_sub(start) / PROGRESS_US > self.told {
            self.told += 1;
            let now = done.saturating_sub(start) as f64 / 1e6;
            note!("--- {} secs, {} fetches started, {} completed, 0 current", g(now), self.fetches, self.fetches);
        }
    }
}
