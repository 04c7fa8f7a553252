//! A small search over pool size, recycling and keep-alive, one thing at a time, in the order of what usually matters.
//!
//! Trials are few and noisy: a candidate has to be better by a margin to become the best so far, so that noise does not
//! walk the settings about; what is left of luck is taken out by the race that follows.

/// A change against the server as it is; None leaves a thing alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Candidate {
    pub pool: Option<u64>,
    pub recycle: Option<u64>,
    pub keepalive: Option<bool>,
}

impl Candidate {
    #[must_use]
    pub fn is_baseline(&self) -> bool {
        *self == Candidate::default()
    }
}

/// What may be searched.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// Present pool size; None where it cannot be changed.
    pub pool: Option<u64>,
    /// Most workers that fit into memory.
    pub fits: u64,
    /// Requests that can be in flight at once: more workers than that stay idle.
    pub concurrency: u64,
    /// The smallest pool worth trying. A load from next door makes a pool of a few workers look best, because it has no
    /// slow clients: four workers a CPU leave room for those that wait.
    pub smallest: u64,
    /// The server's pool comes in multiples of this (threads of a process).
    pub granule: u64,
    /// Present recycling age; None where there is none to change.
    pub recycle: Option<u64>,
    /// Present keep-alive, if this load can tell the difference.
    pub keepalive: Option<bool>,
}

impl Space {
    /// Can the load keep the present pool busy? One that cannot says nothing about what the size is good for.
    #[must_use]
    pub fn load_fills_pool(&self) -> bool {
        self.pool.is_none_or(|present| self.concurrency >= present.min(self.fits))
    }
}

/// Recycling below this costs more than it saves; above it the cost of a new worker is spread over enough requests.
const CHURN: u64 = 1000;
/// An age that still bounds a leak and whose cost is not measurable.
const CALM: u64 = 10_000;
/// What a candidate must be better by to replace the best so far: about the noise of one trial.
const MARGIN: f64 = 1.02;
/// Pool sizes on the first look, from the largest down in factors of two.
const SIZES: u32 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Baseline,
    Recycle,
    Pool,
    Refine,
    KeepAlive,
    Again,
    Done,
}

#[derive(Debug)]
pub struct Search {
    space: Space,
    stage: Stage,
    queue: Vec<Candidate>,
    /// Scores of each candidate tried; None where the trial did not count.
    tried: Vec<(Candidate, Vec<f64>)>,
    best: Candidate,
}

impl Search {
    #[must_use]
    pub fn new(space: Space) -> Search {
        Search {
            space,
            stage: Stage::Baseline,
            queue: vec![Candidate::default()],
            tried: Vec::new(),
            best: Candidate::default(),
        }
    }

    /// The next candidate to try; None when the search is over.
    pub fn next_candidate(&mut self) -> Option<Candidate> {
        loop {
            if let Some(candidate) = self.queue.pop() {
                return Some(candidate);
            }
            if self.stage == Stage::Done {
                return None;
            }
            self.next_stage();
        }
    }

    /// What came of a candidate: its score (higher is better), or None if it does not count.
    pub fn learn(&mut self, candidate: Candidate, score: Option<f64>) {
        let index = match self.tried.iter().position(|(c, _)| *c == candidate) {
            Some(index) => index,
            None => {
                self.tried.push((candidate, Vec::new()));
                self.tried.len() - 1
            }
        };
        self.tried[index].1.extend(score);
        let ahead = match (self.score(candidate), self.score(self.best)) {
            (Some(new), Some(best)) => new > best * MARGIN,
            (Some(_), None) => true,
            _ => false,
        };
        if ahead {
            self.best = candidate;
        }
    }

    /// The candidate to race against the baseline: the best that is not the baseline itself.
    #[must_use]
    pub fn challenger(&self) -> Option<Candidate> {
        self.ranked().into_iter().find(|c| !c.is_baseline())
    }

    /// Mean score of a candidate.
    #[must_use]
    pub fn score(&self, candidate: Candidate) -> Option<f64> {
        let (_, scores) = self.tried.iter().find(|(c, _)| *c == candidate)?;
        (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64)
    }

    /// Candidates that count, best first.
    fn ranked(&self) -> Vec<Candidate> {
        let mut all: Vec<(Candidate, f64)> =
            self.tried.iter().filter_map(|(c, _)| Some((*c, self.score(*c)?))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.into_iter().map(|(c, _)| c).collect()
    }

    fn next_stage(&mut self) {
        let (stage, proposals) = match self.stage {
            Stage::Baseline => (Stage::Recycle, self.recycling()),
            Stage::Recycle => (Stage::Pool, self.pool_sizes()),
            Stage::Pool => (Stage::Refine, self.between()),
            Stage::Refine => (Stage::KeepAlive, self.other_keepalive()),
            Stage::KeepAlive => (Stage::Again, self.once_more()),
            Stage::Again | Stage::Done => (Stage::Done, Vec::new()),
        };
        self.stage = stage;
        self.queue = proposals;
        self.queue.reverse();
        if stage != Stage::Again {
            let tried: Vec<Candidate> = self.tried.iter().map(|(c, _)| *c).collect();
            self.queue.retain(|c| !tried.contains(c));
        }
    }

    fn recycling(&self) -> Vec<Candidate> {
        match self.space.recycle {
            Some(age) if age > 0 && age < CHURN => vec![Candidate { recycle: Some(CALM), ..self.best }],
            _ => Vec::new(),
        }
    }

    fn pool_sizes(&self) -> Vec<Candidate> {
        let Some(present) = self.space.pool else { return Vec::new() };
        let granule = self.space.granule.max(1);
        if !self.space.load_fills_pool() {
            return vec![Candidate { pool: Some(present), ..self.best }];
        }
        // A pool larger than the load can use is no better; one larger than memory is worse than any.
        let largest = self.space.concurrency.max(1).min(self.space.fits);
        let mut sizes: Vec<u64> =
            (0..SIZES).map(|halvings| (largest >> halvings).div_ceil(granule) * granule).filter(|n| *n > 0).collect();
        if present <= self.space.fits {
            // The present size too, in its all-alive form: spawning may be what costs.
            sizes.push(present);
        }
        let fits = self.space.fits;
        let smallest = self.space.smallest.min(present).min(largest);
        sizes.retain(|n| *n <= fits.max(granule) && *n >= smallest.max(1));
        sizes.sort_unstable();
        sizes.dedup();
        sizes.into_iter().rev().map(|n| Candidate { pool: Some(n), ..self.best }).collect()
    }

    /// Sizes half way (in ratio) between the best and its neighbours.
    fn between(&self) -> Vec<Candidate> {
        let Some(best) = self.best.pool else { return Vec::new() };
        let granule = self.space.granule.max(1);
        let mut sizes: Vec<u64> = self.tried.iter().filter_map(|(c, _)| c.pool).collect();
        sizes.sort_unstable();
        let below = sizes.iter().rev().find(|n| **n < best);
        let above = sizes.iter().find(|n| **n > best);
        [below, above]
            .into_iter()
            .flatten()
            .map(|n| (((best * n) as f64).sqrt() / granule as f64).round() as u64 * granule)
            .filter(|n| *n > 0 && *n != best && !sizes.contains(n))
            .map(|n| Candidate { pool: Some(n), ..self.best })
            .collect()
    }

    fn other_keepalive(&self) -> Vec<Candidate> {
        self.space.keepalive.map(|on| Candidate { keepalive: Some(!on), ..self.best }).into_iter().collect()
    }

    /// The two best once more: the luckiest of many is not the best of many.
    fn once_more(&self) -> Vec<Candidate> {
        self.ranked().into_iter().filter(|c| !c.is_baseline()).take(2).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        Space {
            pool: Some(4),
            fits: 1000,
            concurrency: 64,
            smallest: 4,
            granule: 1,
            recycle: Some(10),
            keepalive: None,
        }
    }

    /// Runs a search on a server without noise.
    fn search(space: Space, score: impl Fn(Candidate) -> Option<f64>) -> (Search, usize) {
        let mut s = Search::new(space);
        let mut trials = 0;
        while let Some(c) = s.next_candidate() {
            trials += 1;
            assert!(trials < 30, "it ends");
            s.learn(c, score(c));
        }
        (s, trials)
    }

    #[test]
    fn the_planted_best_is_found() {
        // X(w) of the USL with its peak at 16, and half of it lost to recycling.
        let (s, trials) = search(space(), |c| {
            let w = c.pool.unwrap_or(4) as f64;
            let x = w / (0.04 * (1.0 + w * (w - 1.0) / 256.0));
            Some(if c.recycle.is_some() { x } else { x / 2.0 })
        });
        let c = s.challenger().expect("one");
        assert!((12..=23).contains(&c.pool.expect("a pool")), "{c:?}");
        assert_eq!(c.recycle, Some(10_000));
        assert!(trials <= 14, "{trials}");
    }

    #[test]
    fn a_server_that_is_at_its_best_keeps_its_size() {
        let at_best = Space { pool: Some(16), recycle: Some(0), ..space() };
        let (s, _) = search(at_best, |c| Some(if c.is_baseline() { 100.0 } else { 100.5 }));
        assert_eq!(s.best, Candidate::default());
        assert!(s.challenger().is_some(), "there is still something to race");
    }

    #[test]
    fn candidates_that_do_not_count_never_win() {
        let (s, _) = search(space(), |c| if c.pool.is_some() { None } else { Some(1.0) });
        assert_eq!(s.challenger().expect("recycling alone").pool, None);
    }

    #[test]
    fn a_small_load_does_not_shrink_a_large_pool() {
        let light = Space { pool: Some(150), concurrency: 10, recycle: Some(0), ..space() };
        search(light, |c| {
            assert!(c.pool.is_none_or(|n| n == 150), "{c:?}");
            Some(1.0)
        });
    }

    #[test]
    fn no_pool_is_larger_than_memory_allows() {
        let small = Space { fits: 10, pool: Some(50), ..space() };
        search(small, |c| {
            assert!(c.pool.is_none_or(|n| n <= 10), "{c:?}");
            Some(1.0)
        });
    }

    #[test]
    fn pools_of_threads_come_whole() {
        let threads = Space { granule: 25, concurrency: 100, pool: Some(150), ..space() };
        search(threads, |c| {
            assert!(c.pool.is_none_or(|n| n % 25 == 0), "{c:?}");
            Some(1.0)
        });
    }
}
