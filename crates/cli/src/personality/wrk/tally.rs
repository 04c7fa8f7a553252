//! What wrk counts of each request.

use std::collections::BTreeMap;

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, Failure, Micros, RequestOutcome};

/// Rates of a thread are those of so long.
const RATE_INTERVAL_US: Micros = 100_000;

#[derive(Debug, Default)]
pub struct Tally {
    pub complete: u64,
    pub bytes: u64,
    pub connect: u64,
    pub read: u64,
    pub timeout: u64,
    pub status: u64,
    pub latency: Samples,
    /// From when each was sent, whenever it was to be.
    pub uncorrected: Samples,
    /// Answers of each thread in each interval.
    rates: BTreeMap<(u64, u64), u64>,
}

impl Tally {
    pub fn take(&mut self, e: &Exchange, open: bool) {
        self.bytes += e.bytes_received;
        match e.fate {
            RequestOutcome::Answered => {
                self.complete += 1;
                self.status += u64::from(e.status > 399);
                let done = e.done.unwrap_or(e.due);
                // In an open loop what a person waits: from the time at which the request was to be sent.
                let sent = e.ready.filter(|_| e.first).or(e.sent).unwrap_or(e.due);
                self.uncorrected.record(done.saturating_sub(sent));
                self.latency.record(done.saturating_sub(if open { e.due } else { sent }));
                *self.rates.entry((e.connection >> 56, done / RATE_INTERVAL_US)).or_default() += 1;
            }
            RequestOutcome::Failed(Failure::Connect) => self.connect += 1,
            RequestOutcome::Failed(_) => self.read += 1,
            RequestOutcome::TimedOut => self.timeout += 1,
            RequestOutcome::Censored | RequestOutcome::Unsent => {}
        }
    }

    /// Requests a second of each thread in each whole interval.
    pub fn rates(&self) -> Samples {
        let mut samples = Samples::default();
        let last = self.rates.keys().map(|(_, at)| *at).max().unwrap_or(0);
        for ((_, at), n) in &self.rates {
            if *at < last {
                samples.record(n * 1_000_000 / RATE_INTERVAL_US);
            }
        }
        samples
    }
}
