//! Chooses the workers of a pool to replace, and how many at once.

/// Limits for a worker; `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WorkerLimits {
    /// Resident size, bytes.
    pub max_size: Option<u64>,
    pub max_private: Option<u64>,
    pub min_shared: Option<u64>,
    /// CPU seconds since its start.
    pub max_cpu_s: Option<f64>,
    pub max_age_s: Option<f64>,
    /// Seconds spent on one request.
    pub stuck_s: Option<f64>,
    /// Real memory of the whole pool, bytes.
    pub memory: Option<u64>,
}

/// If the pool uses more than this fraction of its memory limit, the largest workers are replaced.
const ALARM: f64 = 0.9;

impl WorkerLimits {
    /// Returns whether there is any limit.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != WorkerLimits::default()
    }
}

/// A worker's current state. A value that could not be read is `None` and breaks no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Worker {
    pub pid: i32,
    pub size: Option<u64>,
    pub private: Option<u64>,
    pub shared: Option<u64>,
    pub cpu_s: f64,
    pub age_s: f64,
    /// Seconds spent on its current request.
    pub request_s: Option<f64>,
    /// Requests that it has served, if known.
    pub requests: Option<u64>,
}

impl Worker {
    /// Returns whether the worker is still as small as workers get. Its size settles with the second request.
    /// A worker that breaks a limit within its first moments would be replaced again and again, however many
    /// requests it had.
    fn is_fresh(&self) -> bool {
        self.age_s <= YOUNG_S || self.requests.is_some_and(|n| n <= 2)
    }

    /// Returns whether it has served enough to have its working size.
    fn has_served(&self) -> bool {
        self.requests.map_or(self.cpu_s > 0.05, |n| n > 0)
    }
}

/// A worker is young for this many seconds after its start.
pub const YOUNG_S: f64 = 1.0;

/// The broken limit of a worker, with the value and the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BrokenLimit {
    Size(u64, u64),
    Private(u64, u64),
    Shared(u64, u64),
    Cpu(f64, f64),
    Age(f64, f64),
    /// It has spent too long on one request and will not become idle.
    Stuck(f64, f64),
    /// It is the largest while the pool uses too much: real memory and the limit.
    Memory(u64, u64),
}

impl BrokenLimit {
    /// Returns whether only the memory of this worker matters.
    #[must_use]
    pub fn is_own_memory(&self) -> bool {
        matches!(self, BrokenLimit::Size(..) | BrokenLimit::Private(..) | BrokenLimit::Shared(..))
    }

    /// Returns whether the worker must go even if the pool has not recovered yet.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        matches!(self, BrokenLimit::Stuck(..) | BrokenLimit::Memory(..))
    }
}

/// Detects a limit that workers break as soon as they work. Enforcing it would replace the pool's workers
/// endlessly.
#[derive(Debug, Clone, Default)]
pub struct FreshWorkerCheck {
    /// Fresh workers over the limit, since the last worker that has served and stays within it.
    beyond: Vec<i32>,
}

/// One fresh worker over a limit may have got a heavy request first; this many in a row have not.
const ENOUGH: usize = 3;

impl FreshWorkerCheck {
    /// Takes the state of some workers of a pool with `pool` workers. Returns a fresh one that breaks a
    /// memory limit, once it is clear that all do.
    pub fn learn(&mut self, workers: &[Worker], pool: usize, limits: &WorkerLimits) -> Option<(Worker, BrokenLimit)> {
        // The pool's memory limit says nothing about a single worker.
        let WorkerLimits { max_size, max_private, min_shared, .. } = *limits;
        let broken =
            judge(workers, None, &WorkerLimits { max_size, max_private, min_shared, ..WorkerLimits::default() });
        for worker in workers {
            match broken.iter().find(|(w, _)| w.pid == worker.pid) {
                // It breaks the limit before its first request.
                Some(found) if worker.requests == Some(0) => return Some(*found),
                Some(_) if worker.is_fresh() && !self.beyond.contains(&worker.pid) => self.beyond.push(worker.pid),
                Some(_) => {}
                None if worker.has_served() => self.beyond.clear(),
                None => {}
            }
        }
        let found = broken.iter().filter(|(w, _)| self.beyond.contains(&w.pid)).min_by_key(|(w, _)| w.private);
        found.filter(|_| self.beyond.len() >= ENOUGH.min(pool)).copied()
    }
}

/// Returns the workers that break a limit, most urgent first: stuck ones, then the largest.
#[must_use]
pub fn judge(workers: &[Worker], real_memory: Option<u64>, limits: &WorkerLimits) -> Vec<(Worker, BrokenLimit)> {
    let above = |value: Option<u64>, limit: Option<u64>| value.zip(limit).filter(|(v, l)| v > l);
    let beyond = |value: Option<f64>, limit: Option<f64>| value.zip(limit).filter(|(v, l)| v > l);
    let mut all: Vec<(Worker, BrokenLimit)> = workers
        .iter()
        .filter_map(|w| {
            let why = beyond(w.request_s, limits.stuck_s)
                .map(|(v, l)| BrokenLimit::Stuck(v, l))
                .or_else(|| above(w.private, limits.max_private).map(|(v, l)| BrokenLimit::Private(v, l)))
                .or_else(|| above(w.size, limits.max_size).map(|(v, l)| BrokenLimit::Size(v, l)))
                .or_else(|| {
                    w.shared.zip(limits.min_shared).filter(|(v, l)| v < l).map(|(v, l)| BrokenLimit::Shared(v, l))
                })
                .or_else(|| beyond(Some(w.cpu_s), limits.max_cpu_s).map(|(v, l)| BrokenLimit::Cpu(v, l)))
                .or_else(|| beyond(Some(w.age_s), limits.max_age_s).map(|(v, l)| BrokenLimit::Age(v, l)))?;
            Some((*w, why))
        })
        .collect();
    let tight = real_memory.zip(limits.memory).filter(|(used, limit)| *used as f64 > *limit as f64 * ALARM);
    if let Some((used, limit)) = tight {
        // Replace one after the other until the pool is below the threshold. The size of a fresh worker is
        // unknown here; the smallest worker is the best guess.
        let fresh = workers.iter().filter_map(|w| w.private).min().unwrap_or(0);
        let mut excess = used as f64 - limit as f64 * ALARM;
        let mut by_size: Vec<&Worker> = workers.iter().filter(|w| w.private.is_some_and(|p| p > fresh)).collect();
        by_size.sort_by_key(|w| std::cmp::Reverse(w.private));
        for worker in by_size {
            if excess <= 0.0 {
                break;
            }
            excess -= worker.private.unwrap_or(0).saturating_sub(fresh) as f64;
            if !all.iter().any(|(w, _)| w.pid == worker.pid) {
                all.push((*worker, BrokenLimit::Memory(used, limit)));
            }
        }
    }
    let stuck = |why: &BrokenLimit| matches!(why, BrokenLimit::Stuck(..));
    all.sort_by_key(|(w, why)| (!stuck(why), std::cmp::Reverse(w.private)));
    all
}

/// Returns how many more workers may be replaced now, in a pool of `pool` with `under_way` being replaced. At
/// most `share` of them at once, but at least one.
#[must_use]
pub fn room(pool: usize, share: f64, under_way: usize) -> usize {
    ((pool as f64 * share) as usize).max(1).saturating_sub(under_way)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(pid: i32, private: u64) -> Worker {
        Worker { pid, private: Some(private), size: Some(private + 50), shared: Some(50), ..Worker::default() }
    }

    #[test]
    fn every_limit_is_kept() {
        let w = Worker { cpu_s: 10.0, age_s: 100.0, request_s: Some(5.0), ..worker(1, 100) };
        let why = |limits: WorkerLimits| judge(&[w], Some(1000), &limits).first().map(|(_, why)| *why);
        let none = WorkerLimits::default();
        assert_eq!(why(none), None);
        assert_eq!(why(WorkerLimits { max_private: Some(99), ..none }), Some(BrokenLimit::Private(100, 99)));
        assert_eq!(why(WorkerLimits { max_private: Some(100), ..none }), None);
        assert_eq!(why(WorkerLimits { max_size: Some(149), ..none }), Some(BrokenLimit::Size(150, 149)));
        assert_eq!(why(WorkerLimits { min_shared: Some(51), ..none }), Some(BrokenLimit::Shared(50, 51)));
        assert_eq!(why(WorkerLimits { max_cpu_s: Some(9.0), ..none }), Some(BrokenLimit::Cpu(10.0, 9.0)));
        assert_eq!(why(WorkerLimits { max_age_s: Some(99.0), ..none }), Some(BrokenLimit::Age(100.0, 99.0)));
        assert_eq!(
            why(WorkerLimits { stuck_s: Some(4.0), max_private: Some(1), ..none }),
            Some(BrokenLimit::Stuck(5.0, 4.0))
        );
    }

    #[test]
    fn a_limit_that_every_fresh_worker_breaks_is_found_out() {
        let limits = WorkerLimits { max_private: Some(99), ..WorkerLimits::default() };
        let after = |pid, private, requests| Worker { requests: Some(requests), age_s: 60.0, ..worker(pid, private) };
        let learn = |fresh: &mut FreshWorkerCheck, worker| fresh.learn(&[worker], 8, &limits).map(|(w, _)| w.pid);
        // Before its first request there is no doubt. Old workers prove nothing, however large they are.
        assert_eq!(learn(&mut FreshWorkerCheck::default(), after(1, 100, 0)), Some(1));
        let old: Vec<Worker> = (1..9).map(|pid| after(pid, 900, 50)).collect();
        assert_eq!(FreshWorkerCheck::default().learn(&old, 8, &limits), None);
        // After its first request that request may be the cause; three workers with few requests, or young
        // ones, are proof.
        let mut fresh = FreshWorkerCheck::default();
        assert_eq!(learn(&mut fresh, after(1, 100, 1)), None);
        assert_eq!(learn(&mut fresh, after(1, 100, 2)), None, "the same one again");
        assert_eq!(learn(&mut fresh, Worker { age_s: 0.5, ..worker(2, 100) }), None);
        assert_eq!(learn(&mut fresh, after(3, 110, 2)), Some(3));
        // A worker that has served and is within the limit shows that the limit can be kept; one that has not
        // served shows nothing.
        for (between, found) in [(after(9, 60, 40), None), (after(9, 60, 0), Some(3))] {
            let mut fresh = FreshWorkerCheck::default();
            learn(&mut fresh, after(1, 100, 1));
            learn(&mut fresh, after(2, 100, 1));
            learn(&mut fresh, between);
            assert_eq!(learn(&mut fresh, after(3, 100, 1)), found);
        }
        // A pool of one never has three.
        assert_eq!(FreshWorkerCheck::default().learn(&[after(1, 100, 1)], 1, &limits).map(|(w, _)| w.pid), Some(1));
    }

    #[test]
    fn what_could_not_be_read_breaks_no_limit() {
        let unknown = Worker { pid: 1, ..Worker::default() };
        let limits = WorkerLimits {
            max_private: Some(1),
            max_size: Some(1),
            min_shared: Some(9),
            stuck_s: Some(1.0),
            ..WorkerLimits::default()
        };
        assert_eq!(judge(&[unknown], None, &limits), []);
    }

    #[test]
    fn a_group_that_has_too_much_loses_its_largest_until_it_fits() {
        let workers = [worker(1, 100), worker(2, 300), worker(3, 200), worker(4, 250)];
        let limits = WorkerLimits { memory: Some(1000), ..WorkerLimits::default() };
        let pids = |real| judge(&workers, Some(real), &limits).iter().map(|(w, _)| w.pid).collect::<Vec<_>>();
        assert_eq!(pids(890), Vec::<i32>::new());
        // 50 too much: replacing the largest frees 200. 250 too much: the second largest goes, too.
        assert_eq!(pids(950), [2]);
        assert_eq!(pids(1150), [2, 4]);
    }

    #[test]
    fn stuck_ones_come_first_and_never_more_than_a_share_at_once() {
        let stuck = Worker { request_s: Some(100.0), ..worker(9, 1) };
        let limits = WorkerLimits { stuck_s: Some(60.0), max_private: Some(50), ..WorkerLimits::default() };
        let order: Vec<i32> =
            judge(&[worker(1, 100), stuck, worker(2, 200)], None, &limits).iter().map(|(w, _)| w.pid).collect();
        assert_eq!(order, [9, 2, 1]);
        assert_eq!((room(50, 0.1, 0), room(50, 0.1, 5), room(50, 0.1, 9), room(3, 0.1, 0)), (5, 0, 0, 1));
    }
}
