//! The mix of a log's requests, by a fair sample of those that may be sent: algorithm R (Vitter, "Random Sampling with a
//! Reservoir", 1985).

use std::collections::BTreeMap;

use lastdrop_model::Url;
use lastdrop_model::request::RequestSpec;
use lastdrop_traffic::LogEntry;

use super::target::{ReplayRequest, SkipReason, Targets};

/// Requests of the sample: rarer ones than 1 of 2,000 may be missing.
const SAMPLE: usize = 2_000;

/// A sample of a log's requests.
#[derive(Debug)]
pub struct LogMix {
    targets: Targets,
    seen: u64,
    /// Requests that may change something, and those that cannot be sent.
    pub unsafe_left_out: u64,
    pub unusable: u64,
    kept: Vec<ReplayRequest>,
    random: u64,
}

impl LogMix {
    #[must_use]
    pub fn new(targets: Targets) -> LogMix {
        // Any seed will do: the same log gives the same mix.
        LogMix { targets, seen: 0, unsafe_left_out: 0, unusable: 0, kept: Vec::new(), random: 0x9e37_79b9_7f4a_7c15 }
    }

    pub fn take(&mut self, entry: &LogEntry) {
        match self.targets.read(entry) {
            Err(SkipReason::Unsafe) => self.unsafe_left_out += 1,
            Err(SkipReason::Unusable) => self.unusable += 1,
            Ok(request) => self.add(request),
        }
    }

    fn add(&mut self, request: ReplayRequest) {
        self.seen += 1;
        if self.kept.len() < SAMPLE {
            return self.kept.push(request);
        }
        // xorshift64*
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let place = (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 1) % self.seen;
        if let Some(kept) = self.kept.get_mut(place as usize) {
            *kept = request;
        }
    }

    /// The sample as the requests of a plan for a server; equal ones are one with their weight.
    #[must_use]
    pub fn requests(&self, to: &Url) -> Vec<RequestSpec> {
        let mut weights: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        for request in &self.kept {
            *weights.entry((&request.method, &request.target)).or_insert(0) += 1;
        }
        let spec = |((method, target), weight): ((&str, &str), u32)| RequestSpec {
            method: method.into(),
            weight: weight.into(),
            literal: true,
            ..RequestSpec::get(Url { path: target.into(), ..to.clone() })
        };
        weights.into_iter().map(spec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_the_mix_of_the_log() {
        let mut mix = LogMix::new(Targets::default());
        for i in 0..40_000 {
            let target = if i % 4 == 0 { "/rare?{x}" } else { "/" };
            mix.add(ReplayRequest { method: "GET".into(), target: target.into(), host: None });
        }
        let to: Url = "http://127.0.0.1:8080/".parse().expect("a URL");
        let requests = mix.requests(&to);
        assert_eq!(requests.iter().map(|r| r.url.path.as_str()).collect::<Vec<_>>(), ["/", "/rare?{x}"]);
        let share = requests[1].weight / SAMPLE as f64;
        assert!((0.2..0.3).contains(&share) && requests.iter().all(|r| r.literal && r.url.port == 8080), "{share}");
    }
}
