//! What siege counts of each request.

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, Fate};

#[derive(Debug, Default)]
pub struct Tally {
    pub hits: u64,
    pub ok: u64,
    pub ok200: u64,
    pub failed: u64,
    pub bytes: u64,
    pub times: Samples,
}

impl Tally {
    pub fn take(&mut self, e: &Exchange) {
        match e.fate {
            Fate::Censored | Fate::Unsent => return,
            // siege counts an error of the server as a failure.
            Fate::Answered if e.status >= 500 => self.failed += 1,
            Fate::Answered => {
                self.hits += 1;
                self.ok += u64::from(e.status < 400 || matches!(e.status, 401 | 407));
                self.ok200 += u64::from(e.status == 200);
            }
            Fate::Failed(_) | Fate::TimedOut => {
                self.failed += 1;
                return;
            }
        }
        self.bytes += e.body_bytes;
        self.times.record(e.service_us());
    }
}
