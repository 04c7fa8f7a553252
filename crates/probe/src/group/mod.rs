//! Samples a server's processes at low cost: cheap files in every sample, the expensive one in turn.
//!
//! smaps_rollup takes the kernel about 0.4 ms for a worker of 30 MB, and locks its memory map meanwhile. So each sample
//! spends a bounded time on it, reads the worker with the oldest number first, and reports the age of each number.
//!
//! A sample first updates the list of processes (`members`, by their `stat`). Then it reads `memory` and counts open
//! `files` within its budget, and sums up what is known.

mod files;
mod members;
mod memory;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::time::{Duration, Instant};

use lastdrop_model::{Sample, WorkerSample};

pub use self::files::{count_fds, fds_limit};
use crate::memory::ProcessMemory;
use crate::process::{self, Helpers};
use crate::stat::{Stat, of_ticks, page_bytes, ran_ns, schedule, ticks_per_second, uptime};

/// After this time, a process's limit of open files and its title do not change any more.
const SETTLED: Duration = Duration::from_secs(10);

/// Numbers that are cheap to read. While none of them changes, the memory does not change either.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MemoryInputs {
    faults: u64,
    rss_pages: u64,
    /// Page faults of the whole group so far.
    group_faults: u64,
    /// Processes of the group started and ended so far.
    group_changes: u64,
}

#[derive(Debug)]
struct MemberProcess {
    /// Nanoseconds that the process had run when it was first sampled, and the time of that sample.
    first: (u64, Instant),
    ran_ns: u64,
    stat: Stat,
    file: Option<File>,
    /// A child of the master that serves no clients.
    helper: bool,
    /// Nanoseconds on a processor and waiting for one; only for processes with one thread.
    run_ns: Option<(u64, u64)>,
    cpu_cores: Option<f64>,
    run_delay: Option<f64>,
    /// The memory as last read, and when it was last known to be current.
    memory: Option<(ProcessMemory, Instant)>,
    /// When the memory was read, and the numbers that would change with it.
    read: Option<(Instant, MemoryInputs)>,
    fds: Option<u64>,
    fds_limit: Option<u64>,
    /// The process ended after this sample had found it.
    ended: bool,
}

/// A master process and all its descendants.
#[derive(Debug)]
pub struct ProcessGroup {
    master: i32,
    /// Measure each process's processor time to the nanosecond, and how long it waited for a processor.
    precise: bool,
    /// Which of the master's children are not workers.
    helpers: Helpers,
    members: BTreeMap<i32, MemberProcess>,
    /// Processes that are not in the group.
    others: HashSet<i32>,
    scanned: Option<Instant>,
    newest_pid: Option<i32>,
    looked: Option<Instant>,
    ran: Option<u64>,
    memory_owed: f64,
    allowance: memory::Allowance,
    changes: u64,
    files_counted_to: i32,
    /// Samples that knew the memory of all processes, samples that did not, and the most processes that were unread in
    /// one of them.
    known_looks: u64,
    unknown_looks: u64,
    most_unread: usize,
    /// Why memory could not be read.
    pub refused: Option<String>,
}

impl ProcessGroup {
    #[must_use]
    pub fn new(master: i32, precise: bool, helpers: Helpers) -> ProcessGroup {
        ProcessGroup {
            master,
            precise,
            helpers,
            members: BTreeMap::new(),
            others: HashSet::new(),
            scanned: None,
            newest_pid: None,
            looked: None,
            ran: None,
            memory_owed: 0.0,
            allowance: memory::Allowance::default(),
            changes: 0,
            files_counted_to: 0,
            known_looks: 0,
            unknown_looks: 0,
            most_unread: 0,
            refused: None,
        }
    }

    /// Returns true while the master exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.members.contains_key(&self.master)
    }

    /// Returns the pids of the workers: the master's children without helpers, or the master itself if it has none.
    #[must_use]
    pub fn workers(&self) -> Vec<i32> {
        let is_worker = |m: &MemberProcess| m.stat.parent == self.master && !m.helper;
        let children: Vec<i32> = self.members.iter().filter(|(_, m)| is_worker(m)).map(|(pid, _)| *pid).collect();
        if children.is_empty() && self.is_alive() { vec![self.master] } else { children }
    }

    /// Returns all processes of the server.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.members.keys().copied().collect()
    }

    /// Returns the memory of every process that has been read, as last read.
    #[must_use]
    pub fn memory(&self) -> Vec<ProcessMemory> {
        self.members.values().filter_map(|m| m.memory.map(|(memory, _)| memory)).collect()
    }

    /// Takes a sample. With `all_memory`, reads the memory of every process now, whatever that takes.
    pub fn look(&mut self, all_memory: bool, look: &mut Sample) {
        let now = Instant::now();
        let span = self.looked.map(|t| (now - t).as_secs_f64()).filter(|s| *s > 0.0);
        self.looked = Some(now);
        let before: Vec<i32> = self.pids();
        self.find(now);
        if !self.helpers.is_empty() {
            // A child sets its title some time after it was forked.
            for (pid, member) in self.members.iter_mut().filter(|(_, m)| now - m.first.1 < SETTLED) {
                member.helper = process::is_helper_title(self.helpers, &process::title(*pid));
            }
        }
        // A process that starts or ends changes what the others share.
        self.changes += u64::from(!before.iter().eq(self.members.keys()));
        for (pid, member) in self.members.iter_mut().filter(|_| self.precise) {
            let before = member.run_ns;
            member.run_ns = (member.stat.threads == 1).then(|| schedule(*pid)).flatten();
            let rate =
                |f: fn(&(u64, u64)) -> u64| Some(f(&member.run_ns?).saturating_sub(f(&before?)) as f64 / 1e9 / span?);
            (member.cpu_cores, member.run_delay) = (rate(|r| r.0), rate(|r| r.1));
        }
        for (pid, member) in &mut self.members {
            // For a process that has just ended, the last known time stays.
            member.ran_ns = ran_ns(*pid).unwrap_or(0).max(member.ran_ns);
        }
        let ran = self.total_ns();
        look.cpu_cores = self
            .ran
            .replace(ran)
            .zip(span)
            // A child that ends hands its time to its parent. Until it was waited for, the sum may drop, so the
            // difference saturates.
            .map(|(before, span)| ran.saturating_sub(before) as f64 / 1e9 / span);
        self.read_memory(now, all_memory);
        self.count_files();
        self.sum_up(now, look);
    }

    /// Returns the CPU time of the master, its workers and all workers that have ended, in seconds, as of the last
    /// sample.
    #[must_use]
    pub fn cpu_s(&self) -> f64 {
        self.total_ns() as f64 / 1e9
    }

    fn total_ns(&self) -> u64 {
        let own: u64 = self.members.values().map(|m| m.ran_ns).sum();
        own + self.members.get(&self.master).map_or(0, |m| of_ticks(m.stat.reaped_ticks))
    }

    /// Explains why most samples have no sum of memory, if that is so.
    #[must_use]
    pub fn unread_memory(&self) -> Option<String> {
        let looks = self.known_looks + self.unknown_looks;
        (self.refused.is_none() && self.unknown_looks > self.known_looks).then(|| {
            format!(
                "real memory at {} of {looks} looks: up to {} new processes had not been read in the time that a look may take",
                self.unknown_looks, self.most_unread
            )
        })
    }

    fn sum_up(&mut self, now: Instant, look: &mut Sample) {
        let workers = self.workers();
        look.worker_count = workers.len() as u64;
        look.states.clear();
        for pid in &workers {
            *look.states.entry(self.members[pid].stat.state.to_string()).or_default() += 1;
        }
        look.busy = Some(look.states.get("R").copied().unwrap_or(0) + look.states.get("D").copied().unwrap_or(0));
        let living = || self.members.values().filter(|m| !m.ended);
        let read: Vec<(ProcessMemory, Instant)> = living().filter_map(|m| m.memory).collect();
        let unread = living().count() - read.len();
        if unread > 0 {
            self.unknown_looks += 1;
            self.most_unread = self.most_unread.max(unread);
        }
        // A sum over some of the processes would be misleading.
        if unread == 0 && !read.is_empty() {
            self.known_looks += 1;
            let sum = |f: fn(&ProcessMemory) -> u64| read.iter().map(|(m, _)| f(m)).sum::<u64>();
            look.real_memory_bytes = Some(sum(|m| m.pss));
            look.private_bytes = Some(sum(|m| m.private));
            look.swap_bytes = Some(sum(|m| m.swap));
            look.memory_age_s =
                read.iter().map(|(_, at)| now.saturating_duration_since(*at).as_secs_f64()).reduce(f64::max);
        }
        let fullest = self
            .members
            .values()
            .filter_map(|m| Some((m.fds?, m.fds_limit?)))
            .max_by(|a, b| (a.0 as f64 / a.1 as f64).total_cmp(&(b.0 as f64 / b.1 as f64)));
        (look.fds, look.fds_limit) = fullest.unzip();
    }

    /// Returns the workers as of the last sample.
    #[must_use]
    pub fn worker_looks(&self) -> Vec<WorkerSample> {
        let (uptime, ticks) = (uptime(), ticks_per_second());
        let page = page_bytes();
        self.workers()
            .iter()
            .map(|pid| {
                let m = &self.members[pid];
                let memory = m.memory.map(|(memory, _)| memory);
                WorkerSample {
                    pid: *pid,
                    state: m.stat.state.to_string(),
                    rss_bytes: Some(memory.map_or(m.stat.rss_pages * page, |m| m.rss)),
                    pss_bytes: memory.map(|m| m.pss),
                    private_bytes: memory.map(|m| m.private),
                    shared_bytes: memory.map(|m| m.shared),
                    swap_bytes: memory.map(|m| m.swap),
                    memory_age_s: m.memory.map(|(_, at)| (at.elapsed().as_secs_f64() * 10.0).round() / 10.0),
                    cpu_cores: m.cpu_cores.or_else(|| {
                        let (ran_then, then) = m.first;
                        let span = then.elapsed().as_secs_f64();
                        (!self.precise && span >= 1.0).then(|| (m.ran_ns - ran_then) as f64 / 1e9 / span)
                    }),
                    cpu_s: m.ran_ns as f64 / 1e9,
                    run_delay: m.run_delay,
                    age_s: ((uptime - m.stat.start_ticks as f64 / ticks).max(0.0) * 10.0).round() / 10.0,
                    requests: None,
                    request_s: None,
                    fds: m.fds,
                    fds_limit: m.fds_limit,
                }
            })
            .collect()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Starts a shell with some sleeping children.
    fn shell(children: usize) -> std::process::Child {
        let script = format!("for i in $(seq {children}); do sleep 30 & done; wait");
        Command::new("sh").args(["-c", &script]).spawn().expect("a shell")
    }

    /// Returns a group that has found this many processes.
    fn found(shell: &std::process::Child, processes: usize) -> ProcessGroup {
        let mut group = ProcessGroup::new(shell.id().cast_signed(), false, &[]);
        let deadline = Instant::now() + Duration::from_secs(20);
        while group.pids().len() != processes {
            assert!(Instant::now() < deadline, "{:?}", group.pids());
            group.find(Instant::now());
        }
        group
    }

    fn end(group: &ProcessGroup, shell: &mut std::process::Child) {
        for pid in group.pids() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = shell.wait();
    }

    #[test]
    fn a_look_that_took_long_to_find_new_processes_reads_their_memory_all_the_same() {
        let mut shell = shell(5);
        let mut group = found(&shell, 6);
        group.read_memory(Instant::now() - Duration::from_secs(1), false);
        let mut look = Sample::default();
        group.sum_up(Instant::now(), &mut look);
        assert!(group.memory().len() == 6 && look.real_memory_bytes.is_some_and(|n| n > 0), "{look:?}");
        assert_eq!(group.unread_memory(), None);
        end(&group, &mut shell);
    }

    #[test]
    fn one_that_ends_during_a_look_is_not_missing_and_one_that_was_not_read_is() {
        let mut shell = shell(2);
        let mut group = found(&shell, 3);
        let mut look = Sample::default();
        group.sum_up(Instant::now(), &mut look);
        assert!(look.real_memory_bytes.is_none());
        assert!(group.unread_memory().is_some_and(|why| why.contains("1 of 1 looks: up to 3")), "{group:?}");
        let child = group.workers()[0];
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::Signal::SIGKILL).expect("ours");
        while !process::has_ended(child) {
            std::thread::sleep(Duration::from_millis(1));
        }
        group.read_memory(Instant::now(), false);
        group.sum_up(Instant::now(), &mut look);
        assert!(group.memory().len() == 2 && look.real_memory_bytes.is_some(), "{look:?}");
        end(&group, &mut shell);
    }

    #[test]
    fn a_group_is_its_master_and_all_below_and_the_dead_leave() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 30 & sleep 30 & read x; kill $!; read y"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut group = ProcessGroup::new(shell.id() as i32, true, &[]);
        let mut look = Sample::default();
        let deadline = Instant::now() + Duration::from_secs(20);
        while look.worker_count != 2 || group.pids().len() != 3 {
            assert!(Instant::now() < deadline, "{:?}", group.pids());
            group.look(true, &mut look);
        }
        assert!(look.real_memory_bytes.is_some_and(|b| b > 0), "{look:?} {:?}", group.refused);
        let w = &group.worker_looks()[0];
        assert!(w.private_bytes <= w.rss_bytes && w.fds.is_some_and(|n| n > 0), "{w:?}");
        use std::io::Write;
        let input = shell.stdin.as_mut().expect("piped");
        input.write_all(b"\n").expect("read");
        while look.worker_count != 1 {
            assert!(Instant::now() < deadline, "{:?}", group.pids());
            group.look(true, &mut look);
        }
        for pid in group.pids() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = shell.wait();
        group.look(true, &mut look);
        assert!(!group.is_alive() && look.worker_count == 0);
    }
}
