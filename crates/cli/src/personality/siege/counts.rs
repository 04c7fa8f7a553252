//! The counts of siege.

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, Failure, RequestOutcome};

/// Statuses that siege counts as failures.
pub const FAILURES: [u16; 11] = [408, 500, 501, 502, 503, 504, 505, 506, 507, 508, 509];

#[derive(Debug, Default)]
pub struct SiegeCounts {
    pub hits: u64,
    pub ok: u64,
    pub ok200: u64,
    pub failed: u64,
    /// Failed responses that were not HTTP; siege counts them as hits, too.
    pub garbage: u64,
    pub bytes: u64,
    pub times: Samples,
}

impl SiegeCounts {
    pub fn take(&mut self, e: &Exchange) {
        match e.fate {
            RequestOutcome::Censored | RequestOutcome::Unsent => return,
            RequestOutcome::Answered if FAILURES.contains(&e.status) => self.failed += 1,
            RequestOutcome::Answered => {
                self.hits += 1;
                self.ok += u64::from(e.status < 400 || matches!(e.status, 401 | 407));
                self.ok200 += u64::from(e.status == 200);
            }
            RequestOutcome::Failed(_) | RequestOutcome::TimedOut => {
                self.failed += 1;
                self.garbage += u64::from(e.fate == RequestOutcome::Failed(Failure::Protocol));
                return;
            }
        }
        self.bytes += e.body_bytes;
        self.times.record(e.service_us());
    }
}
