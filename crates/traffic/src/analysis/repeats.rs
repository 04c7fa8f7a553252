//! How often a cache would answer: requests for a URL that was answered a short while before.

use lastdrop_model::documents::LogRepeat;

/// Lifetimes of an answer in the cache, seconds.
const LIFETIMES_S: [u32; 3] = [1, 10, 60];
/// URLs that are remembered; a power of two. Of two that share a place the later one counts, so the shares are lower
/// bounds.
const REMEMBERED: usize = 1 << 16;
const SECOND_US: i64 = 1_000_000;

/// A URL, and when each of the caches has fetched it last.
#[derive(Debug, Clone, Copy, Default)]
struct Fetched {
    url: u64,
    at_us: [i64; LIFETIMES_S.len()],
}

#[derive(Debug)]
pub(super) struct Repeats {
    fetched: Vec<Fetched>,
    hits: [u64; LIFETIMES_S.len()],
}

impl Default for Repeats {
    fn default() -> Repeats {
        Repeats { fetched: vec![Fetched::default(); REMEMBERED], hits: [0; LIFETIMES_S.len()] }
    }
}

impl Repeats {
    /// Counts a GET that was answered with 200. `url` is the hash of its host, path and query, and not 0.
    pub(super) fn take(&mut self, url: u64, time_us: i64) {
        let known = &mut self.fetched[url as usize % REMEMBERED];
        if known.url != url {
            *known = Fetched { url, at_us: [time_us; LIFETIMES_S.len()] };
            return;
        }
        for ((at_us, hits), lifetime_s) in known.at_us.iter_mut().zip(&mut self.hits).zip(LIFETIMES_S) {
            if time_us - *at_us < i64::from(lifetime_s) * SECOND_US {
                *hits += 1;
            } else {
                *at_us = time_us;
            }
        }
    }

    pub(super) fn document(&self, requests: u64) -> Vec<LogRepeat> {
        let share = |hits: u64| (hits as f64 / requests.max(1) as f64 * 1e4).round() / 1e4;
        let all = LIFETIMES_S.into_iter().zip(self.hits);
        all.map(|(lifetime_s, hits)| LogRepeat { lifetime_s, share: share(hits) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_within_the_lifetime_of_the_last_one_that_was_fetched_is_a_hit() {
        let mut repeats = Repeats::default();
        // One URL every 0.4 s for 12 s, and another one once.
        (0..30).for_each(|n| repeats.take(7, n * 400_000));
        repeats.take(8, 0);
        let shares: Vec<f64> = repeats.document(31).iter().map(|r| r.share * 31.0).collect();
        // Fetched at 0, 1.2, 2.4 … s; at 0 and 10 s; at 0 s.
        assert_eq!(shares.iter().map(|n| n.round()).collect::<Vec<_>>(), [20.0, 28.0, 29.0]);
    }
}
