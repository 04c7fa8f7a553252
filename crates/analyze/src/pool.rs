//! How many workers fit into memory: the classic formulas with numbers put in, and better ones.
//!
//! Sources: Bekman & Cholet, "Practical mod_perl", chapters 10 and 11 (no sharing, classic sharing, real
//! memory of a group). Real memory is Σ PSS; the classic formula Σ(size − shared) + largest shared assumes
//! that every shared page is shared by all workers.

use lastdrop_model::settings::SpareWorkers;

/// Memory of one worker, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerMemory {
    pub rss: u64,
    pub pss: u64,
    pub private: u64,
    pub shared: u64,
}

/// The number of workers that fit into a budget, by four estimates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolEstimates {
    /// budget / largest RSS: as if nothing were shared.
    pub no_sharing: u64,
    /// (budget − shared) / (largest RSS − shared), with a worker's mean shared memory.
    pub classic_sharing: u64,
    /// shared once + n·mean private + 1.645·s·√n ≤ budget: workers vary independently; safe in 95 of 100
    /// cases.
    pub independent: u64,
    /// shared once + n·largest private ≤ budget: all workers are at their largest at once.
    pub worst_case: u64,
}

/// What shows whether a worker has served requests. One that has not still shares nearly all memory with its
/// parent, so its size says nothing about its later need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerHistory {
    /// Private memory, bytes.
    pub private: u64,
    /// Requests served since its start, if the status page shows them.
    pub requests: Option<u64>,
    /// It has used almost no CPU time and written nothing since it was forked.
    pub untouched: bool,
}

/// The first request loads what the second one finds: with fewer, the worker's size means nothing.
const FIRST_REQUESTS: u64 = 2;
/// Reading the status page is itself a request to the pool, so up to this many may come from monitoring.
const FEW_REQUESTS: u64 = 10;
/// After this many requests a worker has its working size, however small it is.
const SURELY_WARM: u64 = 20;
/// Workers with less than this fraction of the next larger one's memory have not served: serving would have
/// made them grow.
const COLD_SHARE: f64 = 1.0 / 3.0;

/// Returns for each worker whether it has served. The number of requests decides where it is known. Otherwise
/// private memory does: workers below a gap of a factor of three have not served. In a pool that has served
/// nothing, none has.
#[must_use]
pub fn warm(workers: &[WorkerHistory]) -> Vec<bool> {
    let total: u64 = workers.iter().filter_map(|w| w.requests).sum();
    let all_told = workers.iter().all(|w| w.requests.is_some());
    let least = FEW_REQUESTS.min(FIRST_REQUESTS * workers.len() as u64);
    if all_told && total < least || workers.iter().all(|w| w.requests.is_none() && w.untouched) {
        return vec![false; workers.len()];
    }
    let has_served = |w: &WorkerHistory| if let Some(n) = w.requests { n >= FIRST_REQUESTS } else { !w.untouched };
    let mut sizes: Vec<u64> = workers.iter().filter(|w| has_served(w)).map(|w| w.private).collect();
    sizes.sort_unstable();
    // The highest gap; workers below it have not served.
    let gap = sizes.windows(2).rev().find(|pair| (pair[0] as f64) < COLD_SHARE * pair[1] as f64).map(|pair| pair[1]);
    let is_small =
        |w: &WorkerHistory| gap.is_some_and(|least| w.private < least) && w.requests.is_none_or(|n| n < SURELY_WARM);
    workers.iter().map(|w| has_served(w) && !is_small(w)).collect()
}

/// Real memory of a group: the sum of the proportional sizes.
#[must_use]
pub fn real_memory(workers: &[WorkerMemory]) -> u64 {
    workers.iter().map(|w| w.pss).sum()
}

/// Returns the classic estimate of real memory: Σ(size − shared) + the largest shared.
#[must_use]
pub fn classic_real_memory(workers: &[WorkerMemory]) -> u64 {
    workers.iter().map(|w| w.rss.saturating_sub(w.shared)).sum::<u64>()
        + workers.iter().map(|w| w.shared).max().unwrap_or(0)
}

/// Returns the workers that fit without sharing.
#[must_use]
pub fn fits_no_sharing(budget: u64, largest: u64) -> u64 {
    budget.checked_div(largest).unwrap_or(0)
}

/// Returns the workers that fit if `shared` is counted once: (budget − shared) / (largest − shared).
#[must_use]
pub fn fits_sharing(budget: u64, largest: u64, shared: u64) -> u64 {
    budget.saturating_sub(shared).checked_div(largest.saturating_sub(shared)).unwrap_or(0)
}

/// Returns all four estimates for a group whose shared pages take `shared_once` bytes in total, including the
/// parent. `None` without workers.
#[must_use]
pub fn fits(budget: u64, workers: &[WorkerMemory], shared_once: u64) -> Option<PoolEstimates> {
    let n = workers.len() as u64;
    let largest = workers.iter().map(|w| w.rss).max()?;
    let shared = workers.iter().map(|w| w.shared).sum::<u64>() / n;
    let mean = workers.iter().map(|w| w.private).sum::<u64>() as f64 / n as f64;
    let variance = workers.iter().map(|w| (w.private as f64 - mean).powi(2)).sum::<f64>() / (n.max(2) - 1) as f64;
    let worst = workers.iter().map(|w| w.private).max()?.max(1);
    let room = budget.saturating_sub(shared_once) as f64;
    Some(PoolEstimates {
        no_sharing: fits_no_sharing(budget, largest),
        classic_sharing: fits_sharing(budget, largest, shared),
        independent: largest_pool(room, mean.max(1.0), variance.sqrt()),
        worst_case: (room / worst as f64) as u64,
    })
}

/// Largest n with n·mean + 1.645·s·√n ≤ room: a quadratic in √n.
fn largest_pool(room: f64, mean: f64, s: f64) -> u64 {
    const Z95: f64 = 1.645;
    let b = Z95 * s;
    let root = (-b + (b * b + 4.0 * mean * room).sqrt()) / (2.0 * mean);
    // A billionth of slack, so that 40 workers of exactly one fortieth do not become 39.
    (root * root * (1.0 + 1e-9)) as u64
}

/// How the machine is used, which decides how many idle workers to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Dedicated,
    Shared,
    Bursty,
}

impl Profile {
    pub const ALL: [Profile; 3] = [Profile::Dedicated, Profile::Shared, Profile::Bursty];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Profile::Dedicated => "dedicated",
            Profile::Shared => "shared",
            Profile::Bursty => "bursty",
        }
    }
}

/// Returns the spare workers for a pool of at most `workers`, in the proportions of field-notes.md. Of 40, a
/// dedicated machine starts 20 and keeps 20 to 35 idle; one with other work starts 5 and keeps 5 to 10. A
/// bursty one keeps nearly all, so that children are ready for the burst.
#[must_use]
pub fn spares(profile: Profile, workers: u64) -> SpareWorkers {
    let part = |of_40: u64| (workers * of_40).div_ceil(40).clamp(1, workers.max(1));
    let (start, min_spare, max_spare) = match profile {
        Profile::Dedicated => (part(20), part(20), part(35)),
        Profile::Shared => (part(5), part(5), part(10)),
        Profile::Bursty => (part(40), part(30), part(40)),
    };
    // httpd silently raises MaxSpareServers to MinSpareServers + 1, so report that value.
    SpareWorkers { start, min_spare, max_spare: max_spare.max(min_spare + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    #[test]
    fn the_numbers_of_the_book_come_back() {
        assert_eq!(fits_no_sharing(400 * MB, 10 * MB), 40);
        assert_eq!(fits_sharing(500 * MB, 10 * MB, 4 * MB), 82);
        assert_eq!(fits_sharing(500 * MB, 10 * MB, 8 * MB), 246);
        assert_eq!(fits_no_sharing(500 * MB, 10 * MB), 50);
        // Preloaded modules 4,710,400/3,997,696 and not preloaded 4,706,304/2,134,016, in 256 MB.
        assert_eq!(fits_sharing(268_435_456, 4_710_400, 3_997_696), 371);
        assert_eq!(fits_sharing(268_435_456, 4_706_304, 2_134_016), 103);
    }

    #[test]
    fn equal_workers_fit_alike_by_both_new_ways() {
        let w = WorkerMemory { rss: 10 * MB, pss: 7 * MB, private: 6 * MB, shared: 4 * MB };
        let f = fits(244 * MB, &[w; 5], 4 * MB).expect("workers");
        assert_eq!((f.independent, f.worst_case), (40, 40));
    }

    #[test]
    fn workers_that_vary_fit_fewer_and_at_their_worst_fewest() {
        let w = |private| WorkerMemory { rss: private + 4 * MB, pss: private, private, shared: 4 * MB };
        let f = fits(404 * MB, &[w(5 * MB), w(10 * MB), w(15 * MB)], 4 * MB).expect("workers");
        assert!(f.independent < 40 && f.independent > f.worst_case, "{f:?}");
        assert_eq!(f.worst_case, 26);
        assert_eq!(fits(1, &[], 0), None);
    }

    #[test]
    fn workers_that_have_served_nothing_are_told_by_requests_and_by_memory() {
        let by_requests = |private, requests| WorkerHistory { private, requests: Some(requests), untouched: false };
        let by_memory = |private| WorkerHistory { private, ..WorkerHistory::default() };
        let untouched = |private| WorkerHistory { private, requests: None, untouched: true };
        let rows = [
            ("requests tell", vec![by_requests(69 * MB, 40), by_requests(MB, 0), by_requests(70 * MB, 1)], "wcc"),
            (
                "0.3 against 69 MB",
                vec![by_memory(69 * MB), by_memory(300_000), by_memory(320_000), by_memory(71 * MB)],
                "wccw",
            ),
            ("they differ, and none is cold", vec![by_memory(30 * MB), by_memory(69 * MB), by_memory(40 * MB)], "www"),
            ("it has served many small pages", vec![by_requests(MB, 500), by_requests(69 * MB, 400)], "ww"),
            ("it has answered the status page", vec![by_requests(MB, 3), by_requests(69 * MB, 400)], "cw"),
            ("a pool that has served nothing", vec![by_requests(300_000, 0); 3], "ccc"),
            (
                "but for its status page",
                vec![by_requests(300_000, 4), by_requests(300_000, 0), by_requests(300_000, 0)],
                "ccc",
            ),
            ("the same without a status page", vec![untouched(300_000), untouched(310_000)], "cc"),
            ("one worker that has served", vec![by_requests(MB, 2)], "w"),
            ("a new worker beside old ones", vec![by_memory(20 * MB), untouched(19 * MB)], "wc"),
            ("none", vec![], ""),
        ];
        for (what, workers, expected) in rows {
            let seen: String = warm(&workers).into_iter().map(|w| if w { 'w' } else { 'c' }).collect();
            assert_eq!(seen, expected, "{what}");
        }
    }

    #[test]
    fn spares_of_forty_are_those_of_the_field() {
        assert_eq!(spares(Profile::Dedicated, 40), SpareWorkers { start: 20, min_spare: 20, max_spare: 35 });
        assert_eq!(spares(Profile::Shared, 40), SpareWorkers { start: 5, min_spare: 5, max_spare: 10 });
        let one = spares(Profile::Shared, 1);
        assert_eq!((one.start, one.min_spare, one.max_spare), (1, 1, 2));
    }
}
