//! Processor time of programs that have nothing to do with a measurement: neither ours nor of the server's [`Chain`].
//!
//! Two looks at the times of all processes tell who used how much in between. A process also tells what its children had
//! used when it waited for them: compilers that live for a second are told by their parent. What those had used before
//! the first look is taken off again.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::chain::Chain;
use crate::host::CpuTicks;
use crate::stat::{self, Stat};

/// The kernel's own threads are the children of this process, and are nobody's program.
const KERNEL_THREADS: i32 = 2;
/// Programs below this are left out: a tick is a hundredth of a second.
const LEAST_CORES: f64 = 0.005;

#[derive(Debug, Clone)]
struct Times {
    stat: Stat,
    name: String,
}

impl Times {
    /// Ticks of its life, and of its children that it has waited for.
    fn all(&self) -> u64 {
        self.stat.ticks + self.stat.reaped_ticks
    }
}

/// The processor time of every process that can be seen, since its start.
#[derive(Debug)]
pub struct Snapshot {
    at: Instant,
    machine: Option<CpuTicks>,
    processes: HashMap<i32, Times>,
}

/// A program that is none of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub name: String,
    /// The one of its processes that used most.
    pub pid: i32,
    pub cores: f64,
}

/// What others used between two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Others {
    pub cores: f64,
    /// The greediest first.
    pub programs: Vec<Program>,
}

impl Snapshot {
    /// Looks. It takes about 12 µs a process.
    #[must_use]
    pub fn now() -> Snapshot {
        let processes = stat::all_pids()
            .filter_map(|pid| {
                let (stat, name) = Stat::of_any(pid)?;
                Some((pid, Times { stat, name }))
            })
            .collect();
        Snapshot { at: Instant::now(), machine: CpuTicks::now(), processes }
    }

    /// The time between this look and `earlier`.
    #[must_use]
    pub fn after(&self, earlier: &Snapshot) -> Duration {
        self.at.saturating_duration_since(earlier.at)
    }

    fn parent(&self, pid: i32) -> Option<i32> {
        self.processes.get(&pid).map(|t| t.stat.parent)
    }

    /// The same process at another look. An id may have come to mean another process.
    fn same<'a>(&'a self, pid: i32, then: &Times) -> Option<&'a Times> {
        self.processes.get(&pid).filter(|t| t.stat.start_ticks == then.stat.start_ticks)
    }

    /// Ticks that each process, and what it has waited for, used since `earlier`.
    fn used_since(&self, earlier: &Snapshot) -> HashMap<i32, u64> {
        // Of those that have ended their next living ancestor tells all that they ever used.
        let mut known: HashMap<i32, u64> = HashMap::new();
        for (pid, then) in &earlier.processes {
            if self.same(*pid, then).is_some() {
                continue;
            }
            let mut heir = then.stat.parent;
            while heir > 1 && earlier.processes.get(&heir).is_some_and(|t| self.same(heir, t).is_none()) {
                heir = earlier.parent(heir).unwrap_or(1);
            }
            *known.entry(heir).or_default() += then.all();
        }
        let used = |(pid, now): (&i32, &Times)| {
            let before = earlier.same(*pid, now).map_or(0, Times::all) + known.get(pid).copied().unwrap_or(0);
            (*pid, now.all().saturating_sub(before))
        };
        self.processes.iter().map(used).collect()
    }

    /// What programs outside of the chain used since `earlier`.
    #[must_use]
    pub fn others_since(&self, earlier: &Snapshot, chain: &Chain) -> Others {
        let ticks = stat::ticks_per_second() * self.after(earlier).as_secs_f64().max(1e-6);
        let (mut all, mut others) = (0, 0);
        let mut programs: BTreeMap<&str, (u64, u64, i32)> = BTreeMap::new();
        for (pid, used) in self.used_since(earlier).into_iter().filter(|(_, used)| *used > 0) {
            all += used;
            let is_kernel = pid == KERNEL_THREADS || self.parent(pid) == Some(KERNEL_THREADS);
            if is_kernel || chain.has(pid, |p| self.parent(p)) {
                continue;
            }
            others += used;
            let name = self.processes.get(&pid).map_or("", |t| t.name.as_str());
            let (sum, most, greediest) = programs.entry(name).or_default();
            *sum += used;
            if used > *most {
                (*most, *greediest) = (used, pid);
            }
        }
        // An orphan that ends tells another than its parent what it had used long before: all together cannot have used
        // more than the machine did.
        let machine = self.machine.zip(earlier.machine).map(|(now, then)| now.busy().saturating_sub(then.busy()));
        let others = machine.map_or(others, |busy| others.min(busy.saturating_sub(all - others)));
        let mut programs: Vec<Program> = programs
            .into_iter()
            .map(|(name, (sum, _, pid))| Program { name: name.to_string(), pid, cores: sum.min(others) as f64 / ticks })
            .filter(|p| p.cores >= LEAST_CORES)
            .collect();
        programs.sort_by(|a, b| b.cores.total_cmp(&a.cores));
        Others { cores: others as f64 / ticks, programs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(processes: &[(i32, i32, u64, u64)]) -> Snapshot {
        let times = |(pid, parent, ticks, reaped_ticks): &(i32, i32, u64, u64)| {
            let stat = Stat { parent: *parent, ticks: *ticks, reaped_ticks: *reaped_ticks, ..Stat::default() };
            (*pid, Times { stat, name: format!("p{pid}") })
        };
        Snapshot { at: Instant::now(), machine: None, processes: processes.iter().map(times).collect() }
    }

    #[test]
    fn what_ended_in_between_counts_once_and_not_what_it_used_before() {
        // 10 waits for 11, which had used 500 ticks before and 30 more since; 12 was born and has ended: 20 ticks.
        let before = snapshot(&[(1, 0, 5, 0), (10, 1, 100, 0), (11, 10, 500, 0), (20, 1, 7, 0)]);
        let after = snapshot(&[(1, 0, 5, 0), (10, 1, 110, 550), (20, 1, 7, 0), (21, 20, 4, 0)]);
        let used = after.used_since(&before);
        assert_eq!((used[&10], used[&20], used[&21], used[&1]), (60, 0, 4, 0));
        // Its parent ended, too, and the grandparent waited for that.
        let after = snapshot(&[(1, 0, 5, 690), (20, 1, 7, 0)]);
        assert_eq!(after.used_since(&before)[&1], 90);
    }

    #[test]
    fn those_of_the_chain_are_no_others_nor_are_their_children() {
        let before =
            snapshot(&[(1, 0, 0, 0), (10, 1, 0, 0), (20, 1, 0, 0), (21, 20, 0, 0), (30, 1, 0, 0), (40, 2, 0, 0)]);
        let mut after =
            snapshot(&[(1, 0, 0, 0), (10, 1, 50, 0), (20, 1, 50, 0), (21, 20, 50, 0), (30, 1, 80, 0), (40, 2, 50, 0)]);
        after.at = before.at + Duration::from_secs(1);
        let others = after.others_since(&before, &Chain::of_pids(&[10, 20]));
        let rate = 80.0 / stat::ticks_per_second();
        assert_eq!(others.cores, rate);
        assert_eq!(others.programs, [Program { name: "p30".into(), pid: 30, cores: rate }]);
    }
}
