//! The counts of wrk.

use std::collections::BTreeMap;

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, Failure, Micros, RequestOutcome};

/// Interval over which wrk computes a thread's rate.
const RATE_INTERVAL_US: Micros = 100_000;

#[derive(Debug, Default)]
pub struct WrkCounts {
    pub complete: u64,
    pub bytes: u64,
    pub connect: u64,
    pub read: u64,
    pub timeout: u64,
    pub status: u64,
    pub latency: Samples,
    /// Times from when each request was sent, even if it was due earlier.
    pub uncorrected: Samples,
    /// Responses by thread and interval.
    rates: BTreeMap<(u64, u64), u64>,
}

impl WrkCounts {
    pub fn take(&mut self, e: &Exchange, open: bool) {
        self.bytes += e.bytes_received;
        match e.fate {
            RequestOutcome::Answered => {
                self.complete += 1;
                self.status += u64::from(e.status > 399);
                let done = e.done.unwrap_or(e.due);
                // In an open loop latency starts at the due time.
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

    /// Requests per second of each thread in each complete interval.
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
