//! The counts of http_load, and its progress lines.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use lastdrop_analyze::samples::Samples;
use lastdrop_load::answer_parts;
use lastdrop_model::{Exchange, Failure, Micros, Plan, RequestOutcome};

use super::flags::HttpLoadOptions;
use crate::personality::number::g;
use crate::stdio::note;

/// Interval of the progress lines.
const PROGRESS_US: Micros = 60_000_000;

#[derive(Debug, Default)]
pub struct HttpLoadCounts {
    pub fetches: u64,
    pub bytes: u64,
    pub connect: Samples,
    pub first: Samples,
    pub timeouts: u64,
    /// Fetches whose size, or with -checksum whose content, differs from the first fetch of the URL.
    pub wrong: u64,
    /// Size or checksum of the first fetch of each URL.
    firsts: HashMap<u32, u64>,
    pub status: BTreeMap<u16, u64>,
    told: Micros,
    start: Option<Micros>,
}

/// A hash of the body.
fn checksum(e: &Exchange) -> u64 {
    let mut hasher = DefaultHasher::new();
    answer_parts(e.raw.as_deref().unwrap_or_default()).pieces.concat().hash(&mut hasher);
    hasher.finish()
}

impl HttpLoadCounts {
    pub fn take(&mut self, e: &Exchange, o: &HttpLoadOptions, plan: &Plan) {
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
            RequestOutcome::TimedOut => {
                self.timeouts += 1;
                note!("{}: timed out", url());
            }
            RequestOutcome::Answered => *self.status.entry(e.status).or_default() += 1,
            RequestOutcome::Failed(Failure::Connect) => {
                note!("{}: {}", url(), e.error.as_deref().unwrap_or("Connection failed"));
            }
            _ => {}
        }
        // http_load also compares failed fetches.
        let got = if o.checksum { checksum(e) } else { e.body_bytes };
        if got != *self.firsts.entry(e.request).or_insert(got) {
            self.wrong += 1;
            note!("{}: {} wrong", url(), if o.checksum { "checksum" } else { "byte count" });
        }
        if o.verbose && done.saturating_sub(start) / PROGRESS_US > self.told {
            self.told += 1;
            let now = done.saturating_sub(start) as f64 / 1e6;
            note!("--- {} secs, {} fetches started, {} completed, 0 current", g(now), self.fetches, self.fetches);
        }
    }
}
