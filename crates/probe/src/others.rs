//! Processor time between two moments: of the server's [`Chain`], and of programs that do not take part in a
//! measurement.
//!
//! Two snapshots of the times of all processes show which process used how much in between. A process also reports the
//! time of children that it has waited for, so the time of compilers that live for a second appears in their parent.
//! The time those children had used before the first snapshot is subtracted.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::chain::Chain;
use crate::host::CpuTicks;
use crate::stat::{self, Stat, of_ticks, ran_ns};

/// Parent of the kernel's own threads, which belong to no program.
const KERNEL_THREADS: i32 = 2;
/// Programs below this are left out: a tick is a hundredth of a second.
const LEAST_CORES: f64 = 0.005;

/// A worker that has used less has served nothing: to be forked takes some milliseconds.
const WORKED_NS: u64 = 20_000_000;

#[derive(Debug, Clone)]
struct ProcessTimes {
    stat: Stat,
    name: String,
    /// Nanoseconds that it has run. A tick, a hundredth of a second, is too coarse if a pool of many workers serves a
    /// few short requests.
    ran_ns: u64,
}

impl ProcessTimes {
    fn of(pid: i32) -> Option<ProcessTimes> {
        let (stat, name) = Stat::of_any(pid)?;
        // For a zombie, the kernel gives only ticks.
        let ran_ns = ran_ns(pid).unwrap_or(0).max(of_ticks(stat.ticks));
        Some(ProcessTimes { stat, name, ran_ns })
    }

    /// Returns the nanoseconds of the process and of its children that it has waited for.
    fn all(&self) -> u64 {
        self.ran_ns + of_ticks(self.stat.reaped_ticks)
    }
}

/// The processor time of every visible process since its start.
#[derive(Debug)]
pub struct Snapshot {
    at: Instant,
    machine: Option<CpuTicks>,
    processes: HashMap<i32, ProcessTimes>,
}

/// The pid of a worker, and when it was born.
type StartedWorker = (i32, u64);

/// Workers that began to work between two snapshots.
#[derive(Debug, Clone, Default)]
pub struct StartedWorkers(Vec<StartedWorker>);

impl StartedWorkers {
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A program that does not belong to the measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    pub name: String,
    /// The process of the program that used the most.
    pub pid: i32,
    pub cores: f64,
}

/// What other programs used between two snapshots.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OtherProcesses {
    pub cores: f64,
    /// Sorted by use, highest first.
    pub programs: Vec<Program>,
}

impl Snapshot {
    /// Takes a snapshot, which costs about 12 µs per process.
    #[must_use]
    pub fn now() -> Snapshot {
        let processes = stat::all_pids().filter_map(|pid| Some((pid, ProcessTimes::of(pid)?))).collect();
        Snapshot { at: Instant::now(), machine: CpuTicks::now(), processes }
    }

    /// Returns the time between `earlier` and this snapshot.
    #[must_use]
    pub fn after(&self, earlier: &Snapshot) -> Duration {
        self.at.saturating_duration_since(earlier.at)
    }

    /// Returns the time since this snapshot.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    fn parent(&self, pid: i32) -> Option<i32> {
        self.processes.get(&pid).map(|t| t.stat.parent)
    }

    /// Returns this process in the other snapshot, unless its pid was reused.
    fn same<'a>(&'a self, pid: i32, then: &ProcessTimes) -> Option<&'a ProcessTimes> {
        self.processes.get(&pid).filter(|t| t.stat.start_ticks == then.stat.start_ticks)
    }

    /// Returns the nanoseconds that each process, and the children it has waited for, used since `earlier`.
    fn used_since(&self, earlier: &Snapshot) -> HashMap<i32, u64> {
        // The nearest living ancestor of an ended process reports all time that it ever used.
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
        let used = |(pid, now): (&i32, &ProcessTimes)| {
            let before = earlier.same(*pid, now).map_or(0, ProcessTimes::all) + known.get(pid).copied().unwrap_or(0);
            (*pid, now.all().saturating_sub(before))
        };
        self.processes.iter().map(used).collect()
    }

    /// Returns the seconds of processor time that the server and all programs it talks to used since `earlier`: user
    /// and system time of the chain's processes, including those that have ended. Excludes lastdrop and programs that
    /// it started.
    #[must_use]
    pub fn chain_since(&self, earlier: &Snapshot, chain: &Chain) -> f64 {
        let used = self.used_since(earlier).into_iter().filter(|(_, used)| *used > 0);
        let of_chain = used.filter(|(pid, _)| chain.serves(*pid, |p| self.parent(p))).map(|(_, used)| used);
        of_chain.sum::<u64>() as f64 / 1e9
    }

    /// Returns the processes of the chain that began to work since `earlier`: until then they had used next to nothing. Of
    /// several programs those of the one whose new processes used the most: a pool, not the sessions of its database.
    #[must_use]
    pub fn started_since(&self, earlier: &Snapshot, chain: &Chain) -> StartedWorkers {
        let mut programs: BTreeMap<&str, (u64, Vec<StartedWorker>)> = BTreeMap::new();
        for (pid, now) in &self.processes {
            let is_new = earlier.same(*pid, now).is_none_or(|then| then.all() < WORKED_NS);
            if is_new && now.all() >= WORKED_NS && chain.serves(*pid, |p| self.parent(p)) {
                let (used, workers) = programs.entry(&now.name).or_default();
                *used += now.all();
                workers.push((*pid, now.stat.start_ticks));
            }
        }
        let most = programs.into_values().max_by_key(|(used, _)| *used);
        StartedWorkers(most.map(|(_, workers)| workers).unwrap_or_default())
    }

    /// Returns the seconds of processor time that the newest of `started` had used at this snapshot, of those that used some
    /// until `later`. Infinite if none did.
    #[must_use]
    pub fn newest_until(&self, later: &Snapshot, started: &StartedWorkers) -> f64 {
        let used = |snapshot: &Snapshot, (pid, start_ticks): &StartedWorker| {
            snapshot.processes.get(pid).filter(|t| t.stat.start_ticks == *start_ticks).map_or(0, ProcessTimes::all)
        };
        let worked = started.0.iter().filter_map(|worker| {
            let (before, after) = (used(self, worker), used(later, worker));
            (after > before && after >= WORKED_NS).then_some(before as f64 / 1e9)
        });
        worked.fold(f64::INFINITY, f64::min)
    }

    /// Returns what programs outside the chain used since `earlier`.
    #[must_use]
    pub fn others_since(&self, earlier: &Snapshot, chain: &Chain) -> OtherProcesses {
        let span_ns = self.after(earlier).as_secs_f64().max(1e-6) * 1e9;
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
        // An orphan that ends reports time from long ago to a process other than its parent. The sum is therefore
        // limited to what the machine used.
        let machine =
            self.machine.zip(earlier.machine).map(|(now, then)| of_ticks(now.busy().saturating_sub(then.busy())));
        let others = machine.map_or(others, |busy| others.min(busy.saturating_sub(all - others)));
        let mut programs: Vec<Program> = programs
            .into_iter()
            .map(|(name, (sum, _, pid))| Program {
                name: name.to_string(),
                pid,
                cores: sum.min(others) as f64 / span_ns,
            })
            .filter(|p| p.cores >= LEAST_CORES)
            .collect();
        programs.sort_by(|a, b| b.cores.total_cmp(&a.cores));
        OtherProcesses { cores: others as f64 / span_ns, programs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(processes: &[(i32, i32, u64, u64)]) -> Snapshot {
        let times = |(pid, parent, ticks, reaped_ticks): &(i32, i32, u64, u64)| {
            let stat = Stat { parent: *parent, ticks: *ticks, reaped_ticks: *reaped_ticks, ..Stat::default() };
            (*pid, ProcessTimes { stat, name: format!("p{pid}"), ran_ns: of_ticks(*ticks) })
        };
        Snapshot { at: Instant::now(), machine: None, processes: processes.iter().map(times).collect() }
    }

    #[test]
    fn what_ended_in_between_counts_once_and_not_what_it_used_before() {
        // 10 waits for 11, which had used 500 ticks before and 30 more since; 12 was started and has ended: 20 ticks.
        let before = snapshot(&[(1, 0, 5, 0), (10, 1, 100, 0), (11, 10, 500, 0), (20, 1, 7, 0)]);
        let after = snapshot(&[(1, 0, 5, 0), (10, 1, 110, 550), (20, 1, 7, 0), (21, 20, 4, 0)]);
        let used = after.used_since(&before);
        assert_eq!([10, 20, 21, 1].map(|pid| used[&pid]), [60, 0, 4, 0].map(of_ticks));
        // Its parent ended too, and the grandparent waited for that.
        let after = snapshot(&[(1, 0, 5, 690), (20, 1, 7, 0)]);
        assert_eq!(after.used_since(&before)[&1], of_ticks(90));
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

    #[test]
    fn the_chain_is_the_server_with_its_children_living_and_dead_and_not_ourselves() {
        let own = std::process::id() as i32;
        // 20 is the server; its worker 21 has ended, 22 was started. Our own process and a program that we started do
        // not belong to it.
        let before = snapshot(&[(own, 1, 0, 0), (20, 1, 10, 0), (21, 20, 100, 0), (30, 1, 0, 0)]);
        let after = snapshot(&[(own, 1, 500, 0), (9, own, 70, 0), (20, 1, 15, 120), (22, 20, 40, 0), (30, 1, 300, 0)]);
        let mut chain = Chain::of_pids(&[own, 20]);
        assert_eq!(after.chain_since(&before, &chain), 65.0 / stat::ticks_per_second());
        // A server that we have started belongs to it all the same.
        chain.add(9);
        assert_eq!(after.chain_since(&before, &chain), 135.0 / stat::ticks_per_second());
    }
}
