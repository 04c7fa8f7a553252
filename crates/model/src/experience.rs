//! What those who use a server have seen in some time: how many requests, how many without a good answer, how long they took.

use crate::documents::UserMetrics;
use crate::histogram::{Histogram, Kind};
use crate::slice::Slice;

/// Requests of some time. Times are those that are known, which need not be those of all requests.
#[derive(Debug, Clone, Default)]
pub struct Experience {
    pub seconds: f64,
    pub requests: u64,
    /// Without a good answer: none at all, or an error of the server.
    pub errors: u64,
    /// Microseconds.
    pub latency: Histogram,
}

impl Experience {
    /// A second of a load of ours, whose good answers have the status `expected`.
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

    /// All of them together.
    #[must_use]
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Experience>) -> Experience {
        let mut sum = Experience::default();
        all.into_iter().for_each(|one| sum.add(one));
        sum
    }

    /// As documents have it.
    #[must_use]
    pub fn seen(&self) -> UserMetrics {
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
