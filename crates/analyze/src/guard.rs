//! Which workers of a pool are to be replaced, and how many at once.

/// What a worker may be. None is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// Resident size, bytes.
    pub max_size: Option<u64>,
    pub max_private: Option<u64>,
    pub min_shared: Option<u64>,
    /// CPU seconds of its life.
    pub max_cpu_s: Option<f64>,
    pub max_age_s: Option<f64>,
    /// Seconds at one request.
    pub stuck_s: Option<f64>,
    /// Real memory of the whole group, bytes.
    pub memory: Option<u64>,
}

/// When the group comes as close to its limit as this, the largest workers have to go.
const ALARM: f64 = 0.9;

impl Limits {
    /// Is there any?
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Limits::default()
    }
}

/// A worker as it is now; what could not be read is None and breaks no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Worker {
    pub pid: i32,
    pub size: Option<u64>,
    pub private: Option<u64>,
    pub shared: Option<u64>,
    pub cpu_s: f64,
    pub age_s: f64,
    /// Seconds at the request that it is at.
    pub request_s: Option<f64>,
}

/// Why a worker is to go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Why {
    Size(u64, u64),
    Private(u64, u64),
    Shared(u64, u64),
    Cpu(f64, f64),
    Age(f64, f64),
    /// At one request for so long; it will not become idle.
    Stuck(f64, f64),
    /// The largest, while the group has too much: real memory and the limit.
    Memory(u64, u64),
}

/// Workers that break a limit, the most urgent first: stuck ones, then the largest.
#[must_use]
pub fn judge(workers: &[Worker], real_memory: Option<u64>, limits: &Limits) -> Vec<(Worker, Why)> {
    let above = |value: Option<u64>, limit: Option<u64>| value.zip(limit).filter(|(v, l)| v > l);
    let beyond = |value: Option<f64>, limit: Option<f64>| value.zip(limit).filter(|(v, l)| v > l);
    let mut all: Vec<(Worker, Why)> = workers
        .iter()
        .filter_map(|w| {
            let why = beyond(w.request_s, limits.stuck_s)
                .map(|(v, l)| Why::Stuck(v, l))
                .or_else(|| above(w.private, limits.max_private).map(|(v, l)| Why::Private(v, l)))
                .or_else(|| above(w.size, limits.max_size).map(|(v, l)| Why::Size(v, l)))
                .or_else(|| w.shared.zip(limits.min_shared).filter(|(v, l)| v < l).map(|(v, l)| Why::Shared(v, l)))
                .or_else(|| beyond(Some(w.cpu_s), limits.max_cpu_s).map(|(v, l)| Why::Cpu(v, l)))
                .or_else(|| beyond(Some(w.age_s), limits.max_age_s).map(|(v, l)| Why::Age(v, l)))?;
            Some((*w, why))
        })
        .collect();
    let tight = real_memory.zip(limits.memory).filter(|(used, limit)| *used as f64 > *limit as f64 * ALARM);
    if let Some((used, limit)) = tight {
        // By how much: one after the other goes until the rest is below the mark. What a fresh worker needs is not known
        // here; the smallest is the best guess.
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
                all.push((*worker, Why::Memory(used, limit)));
            }
        }
    }
    let stuck = |why: &Why| matches!(why, Why::Stuck(..));
    all.sort_by_key(|(w, why)| (!stuck(why), std::cmp::Reverse(w.private)));
    all
}

/// How many more may be replaced now, of a pool of `pool` workers with `under_way` being replaced: never more than `share`
/// of them at once, but one.
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
        let why = |limits: Limits| judge(&[w], Some(1000), &limits).first().map(|(_, why)| *why);
        let none = Limits::default();
        assert_eq!(why(none), None);
        assert_eq!(why(Limits { max_private: Some(99), ..none }), Some(Why::Private(100, 99)));
        assert_eq!(why(Limits { max_private: Some(100), ..none }), None);
        assert_eq!(why(Limits { max_size: Some(149), ..none }), Some(Why::Size(150, 149)));
        assert_eq!(why(Limits { min_shared: Some(51), ..none }), Some(Why::Shared(50, 51)));
        assert_eq!(why(Limits { max_cpu_s: Some(9.0), ..none }), Some(Why::Cpu(10.0, 9.0)));
        assert_eq!(why(Limits { max_age_s: Some(99.0), ..none }), Some(Why::Age(100.0, 99.0)));
        assert_eq!(why(Limits { stuck_s: Some(4.0), max_private: Some(1), ..none }), Some(Why::Stuck(5.0, 4.0)));
    }

    #[test]
    fn what_could_not_be_read_breaks_no_limit() {
        let unknown = Worker { pid: 1, ..Worker::default() };
        let limits = Limits {
            max_private: Some(1),
            max_size: Some(1),
            min_shared: Some(9),
            stuck_s: Some(1.0),
            ..Limits::default()
        };
        assert_eq!(judge(&[unknown], None, &limits), []);
    }

    #[test]
    fn a_group_that_has_too_much_loses_its_largest_until_it_fits() {
        let workers = [worker(1, 100), worker(2, 300), worker(3, 200), worker(4, 250)];
        let limits = Limits { memory: Some(1000), ..Limits::default() };
        let pids = |real| judge(&workers, Some(real), &limits).iter().map(|(w, _)| w.pid).collect::<Vec<_>>();
        assert_eq!(pids(890), Vec::<i32>::new());
        // 50 too much: the largest frees 200. 250 too much: the second as well.
        assert_eq!(pids(950), [2]);
        assert_eq!(pids(1150), [2, 4]);
    }

    #[test]
    fn stuck_ones_come_first_and_never_more_than_a_share_at_once() {
        let stuck = Worker { request_s: Some(100.0), ..worker(9, 1) };
        let limits = Limits { stuck_s: Some(60.0), max_private: Some(50), ..Limits::default() };
        let order: Vec<i32> =
            judge(&[worker(1, 100), stuck, worker(2, 200)], None, &limits).iter().map(|(w, _)| w.pid).collect();
        assert_eq!(order, [9, 2, 1]);
        assert_eq!((room(50, 0.1, 0), room(50, 0.1, 5), room(50, 0.1, 9), room(3, 0.1, 0)), (5, 0, 0, 1));
    }
}
