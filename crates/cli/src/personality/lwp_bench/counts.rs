//! The counts of lwp-bench.

use std::collections::BTreeMap;

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, RequestOutcome};

#[derive(Debug, Default)]
pub struct LwpBenchCounts {
    pub good: u64,
    pub errors: BTreeMap<String, u64>,
    pub times: Samples,
}

impl LwpBenchCounts {
    pub fn take(&mut self, e: &Exchange) {
        if e.sent.is_none() || e.done.is_none() {
            return;
        }
        let error = match e.fate {
            // Count the response that the redirect leads to.
            RequestOutcome::Answered if (300..400).contains(&e.status) => return,
            RequestOutcome::Answered if e.status < 400 => {
                self.good += 1;
                None
            }
            RequestOutcome::Answered => Some(e.status.to_string()),
            RequestOutcome::TimedOut => Some("timeout".into()),
            fate => Some(fate.name().to_string()),
        };
        if let Some(error) = error {
            *self.errors.entry(error).or_default() += 1;
        }
        self.times.record(e.service_us());
    }
}
