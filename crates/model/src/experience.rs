//! What clients of a server experienced in some time: requests, requests without a good answer, and latencies.

use crate::documents::UserMetrics;
use crate::histogram::{Histogram, Kind};
use crate::slice::Slice;

/// Requests of some time. Latencies may be known for only some of the requests.
#[derive(Debug, Clone, Default)]
pub struct Experience {
    pub seconds: f64,
    pub requests: u64,
    /// Requests without a good answer: no answer, or a server error.
    pub errors: u64,
    /// Microseconds.
    pub latency: Histogram,
}

impl Experience {
    /// One second of lastdrop's own load; a good answer has the status `expected`.
    #[must_use]
    pub fn of_load(slice: &Slice, expected: u16) -> Experience {
        let c = &slice.counts;
        let good = slice.status.get(usize::from(expected)).copied().unwrap_or(0);
        let unanswered = c.failed.total() + c.timed_out;
        Experience {
            seconds: 1.0,
            requests: c.answered + unanswered,
            errors: unanswered + c.answered.saturating_sub(good),
            latency: slice.latencies[Kind::Response as usize].clone(),
        }
    }

    pub fn add(&mut self, other: &Experience) {
        self.seconds += other.seconds;
        self.requests += other.requests;
        self.errors += other.errors;
        self.latency.add(&other.latency);
    }

    /// Returns the sum of all.
    #[must_use]
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Experience>) -> Experience {
        let mut sum = Experience::default();
        all.into_iter().for_each(|one| sum.add(one));
        sum
    }

    /// Returns the numbers as documents report them.
    #[must_use]
    pub fn metrics(&self) -> UserMetrics {
        let at = |q| (self.latency.count() > 0).then(|| self.latency.quantile(q) as f64);
        UserMetrics {
            seconds: (self.seconds * 10.0).round() / 10.0,
            requests: self.requests,
            errors: self.errors,
            p50_us: at(0.5),
            p99_us: at(0.99),
        }
    }
}
