//! A server's processes, watched at little cost: cheap files at every look, the expensive one in turn.
//!
//! smaps_rollup takes the kernel about 0.4 ms for a worker of 30 MB, and holds its memory map meanwhile; so each look
//! spends a bounded time on it, the longest unread worker first, and says how old each number is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use lastdrop_model::{Look, WorkerLook};

use crate::ProbeError;
use crate::memory::{self, ProcessMemory};

/// Time that a look may spend on reading memory, once every process has been read.
const MEMORY_BUDGET: Duration = Duration::from_millis(3);
/// The same until then.
const FIRST_MEMORY_BUDGET: Duration = Duration::from_millis(7);
/// No number of a worker's memory gets older than this at one look a second, whatever the budget.
const OLDEST_MEMORY: f64 = 15.0;
/// Up to so many processes keep their file of numbers open between looks: opening it costs more than reading it.
const KEEP_OPEN: usize = 300;
/// Processes whose open files are counted at one look.
const FILES_COUNTED: usize = 40;
/// A process that has been seen for so long keeps its limit of open files.
const LIMIT_SETTLED: Duration = Duration::from_secs(10);
/// Memory that nothing was seen to change is read again after this all the same: processes outside of the group may have
/// come to share it.
const TRUST_UNCHANGED: Duration = Duration::from_secs(60);
/// Most that page faults of the others may have changed a worker's share, for it to count as unchanged.
const UNCHANGED_SHARE: f64 = 0.005;
/// All of /proc is looked through again this often: a process id may have come to mean another process.
const RESCAN: Duration = Duration::from_secs(15);

/// What /proc/PID/stat says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Stat {
    state: char,
    parent: i32,
    /// Page faults so far, with and without reading from a disk.
    faults: u64,
    /// Ticks of this process, and of its children that have ended and were waited for.
    ticks: u64,
    reaped_ticks: u64,
    threads: i64,
    start_ticks: u64,
    rss_pages: u64,
}

fn read_into<'a>(path: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
    let n = File::open(path).ok()?.read(buffer).ok()?;
    std::str::from_utf8(&buffer[..n]).ok()
}

impl Stat {
    fn open(pid: i32) -> Option<File> {
        File::open(format!("/proc/{pid}/stat")).ok()
    }

    /// Reads it again. An open file of a process that has ended gives an error, whoever has its id now.
    fn read(file: &File) -> Option<Stat> {
        let mut buffer = [0u8; 1024];
        let n = file.read_at(&mut buffer, 0).ok()?;
        Stat::parse(&buffer[..n]).filter(|s| s.state != 'Z')
    }

    fn parse(line: &[u8]) -> Option<Stat> {
        let after_name = line.iter().rposition(|b| *b == b')')? + 2;
        let rest = std::str::from_utf8(line.get(after_name..)?).ok()?;
        let mut words = rest.split_ascii_whitespace();
        let state = words.next()?.chars().next()?;
        // Fields as proc_pid_stat(5) numbers them; the state is the third. They are asked for in their order.
        let mut at = 3;
        let mut field = |n: usize| -> Option<u64> {
            let word = words.nth(n - at - 1)?;
            at = n;
            Some(word.parse::<i64>().ok()?.max(0) as u64)
        };
        Some(Stat {
            state,
            parent: field(4)? as i32,
            faults: field(10)? + field(12)?,
            ticks: field(14)? + field(15)?,
            reaped_ticks: field(16)? + field(17)?,
            threads: field(20)? as i64,
            start_ticks: field(22)?,
            rss_pages: field(24)?,
        })
    }
}

#[derive(Debug)]
struct Member {
    /// Its ticks when it was first seen, and when that was.
    first: (u64, Instant),
    stat: Stat,
    file: Option<File>,
    /// Nanoseconds on a processor and waiting for one, of a process of one thread.
    run_ns: Option<(u64, u64)>,
    cpu_cores: Option<f64>,
    run_delay: Option<f64>,
    /// As it was read, and when it was known to be so.
    memory: Option<(ProcessMemory, Instant)>,
    /// When it was read, and what would have to move for it to change.
    read: Option<(Instant, Unchanged)>,
    fds: Option<u64>,
    fds_limit: Option<u64>,
}

/// Numbers, cheap to read, without a change of which no memory changes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Unchanged {
    faults: u64,
    rss_pages: u64,
    /// Page faults of the whole group so far.
    group_faults: u64,
    /// Births and deaths in the group so far.
    group_changes: u64,
}

/// Process ids of the living children of a process.
pub(crate) fn child_pids(parent: i32) -> Vec<i32> {
    all_pids()
        .filter(|pid| Stat::open(*pid).as_ref().and_then(Stat::read).is_some_and(|s| s.parent == parent))
        .collect()
}

fn all_pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|e| e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()))
}

/// A master process and all that descend from it.
#[derive(Debug)]
pub struct Group {
    master: i32,
    /// Read each process's time on a processor to the nanosecond, and how long it waited for one.
    precise: bool,
    members: BTreeMap<i32, Member>,
    /// Processes that are none of ours.
    others: HashSet<i32>,
    scanned: Option<Instant>,
    newest_pid: Option<i32>,
    looked: Option<Instant>,
    ticks: Option<u64>,
    memory_owed: f64,
    changes: u64,
    files_counted_to: i32,
    /// Why memory could not be read.
    pub refused: Option<String>,
}

/// The process id that was given out last.
fn newest_pid() -> Option<i32> {
    let mut buffer = [0u8; 128];
    read_into("/proc/loadavg", &mut buffer)?.split_ascii_whitespace().nth(4)?.parse().ok()
}

fn ticks_per_second() -> f64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64
}

fn page_bytes() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as u64
}

/// Seconds since boot.
fn uptime() -> f64 {
    let mut buffer = [0u8; 128];
    read_into("/proc/uptime", &mut buffer).and_then(|t| t.split(' ').next()?.parse().ok()).unwrap_or(0.0)
}

impl Group {
    #[must_use]
    pub fn new(master: i32, precise: bool) -> Group {
        Group {
            master,
            precise,
            members: BTreeMap::new(),
            others: HashSet::new(),
            scanned: None,
            newest_pid: None,
            looked: None,
            ticks: None,
            memory_owed: 0.0,
            changes: 0,
            files_counted_to: 0,
            refused: None,
        }
    }

    /// Is the master still there?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.members.contains_key(&self.master)
    }

    /// Pids of the workers: the children of the master, or the master itself where it has none.
    #[must_use]
    pub fn workers(&self) -> Vec<i32> {
        let children: Vec<i32> =
            self.members.iter().filter(|(_, m)| m.stat.parent == self.master).map(|(pid, _)| *pid).collect();
        if children.is_empty() && self.is_alive() { vec![self.master] } else { children }
    }

    /// Everything that belongs to the server.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.members.keys().copied().collect()
    }

    /// Memory of every process that it has been read of, as of the last time.
    #[must_use]
    pub fn memory(&self) -> Vec<ProcessMemory> {
        self.members.values().filter_map(|m| m.memory.map(|(memory, _)| memory)).collect()
    }

    /// Looks again. With `all_memory`, the memory of every process is read now, whatever that takes.
    pub fn look(&mut self, all_memory: bool, look: &mut Look) {
        let now = Instant::now();
        let span = self.looked.map(|t| (now - t).as_secs_f64()).filter(|s| *s > 0.0);
        self.looked = Some(now);
        let before: Vec<i32> = self.pids();
        self.find(now);
        // Who dies or is born changes what the others share.
        self.changes += u64::from(!before.iter().eq(self.members.keys()));
        for (pid, member) in self.members.iter_mut().filter(|_| self.precise) {
            let before = member.run_ns;
            member.run_ns = (member.stat.threads == 1).then(|| schedule(*pid)).flatten();
            let rate =
                |f: fn(&(u64, u64)) -> u64| Some(f(&member.run_ns?).saturating_sub(f(&before?)) as f64 / 1e9 / span?);
            (member.cpu_cores, member.run_delay) = (rate(|r| r.0), rate(|r| r.1));
        }
        let ticks = self.total_ticks();
        look.cpu_cores = self
            .ticks
            .replace(ticks)
            .zip(span)
            // A child that ended takes its time to its parent; one that was not waited for yet may take it back.
            .map(|(before, span)| ticks.saturating_sub(before) as f64 / ticks_per_second() / span);
        self.read_memory(now, all_memory);
        self.count_files();
        self.sum_up(now, look);
    }

    /// CPU time of master, workers and all workers that have ended, seconds, as of the last look.
    #[must_use]
    pub fn cpu_s(&self) -> f64 {
        self.total_ticks() as f64 / ticks_per_second()
    }

    fn total_ticks(&self) -> u64 {
        let own: u64 = self.members.values().map(|m| m.stat.ticks).sum();
        own + self.members.get(&self.master).map_or(0, |m| m.stat.reaped_ticks)
    }

    /// Brings the list of processes up to date.
    fn find(&mut self, now: Instant) {
        // Descriptors that connections may need are not for us.
        let spare = i32::try_from(std::process::id()).ok().and_then(fds_limit).unwrap_or(0);
        let keep_open = self.members.len() <= KEEP_OPEN && spare > 8 * KEEP_OPEN as u64;
        let newest = newest_pid();
        if self.scanned.is_none_or(|t| now - t > RESCAN) {
            self.scanned = Some(now);
            self.others.clear();
        } else if newest.is_some() && newest == self.newest_pid {
            // Nothing was born since the last look: only the dead have to be found.
            self.members.retain(|pid, member| {
                let file = member.file.take().or_else(|| Stat::open(*pid));
                let stat = file.as_ref().and_then(Stat::read).filter(|s| s.start_ticks == member.stat.start_ticks);
                member.file = file.filter(|_| keep_open);
                stat.is_some_and(|s| {
                    member.stat = s;
                    true
                })
            });
            return;
        }
        self.newest_pid = newest;
        let mut seen = HashSet::new();
        let mut new: HashMap<i32, Stat> = HashMap::new();
        for pid in all_pids() {
            if self.others.contains(&pid) {
                seen.insert(pid);
                continue;
            }
            if let Some(member) = self.members.get_mut(&pid) {
                let file = member.file.take().or_else(|| Stat::open(pid));
                // Zombies have no numbers any more.
                match file.as_ref().and_then(Stat::read) {
                    Some(stat) if member.stat.start_ticks == stat.start_ticks => {
                        member.stat = stat;
                        member.file = file.filter(|_| keep_open);
                        seen.insert(pid);
                        continue;
                    }
                    _ => self.members.remove(&pid),
                };
            }
            if let Some(stat) = Stat::open(pid).as_ref().and_then(Stat::read) {
                seen.insert(pid);
                new.insert(pid, stat);
            }
        }
        self.others.retain(|pid| seen.contains(pid));
        self.members.retain(|pid, _| seen.contains(pid));
        loop {
            let ours: Vec<i32> = new
                .iter()
                .filter(|(pid, s)| **pid == self.master || self.members.contains_key(&s.parent))
                .map(|(pid, _)| *pid)
                .collect();
            if ours.is_empty() {
                break;
            }
            for pid in ours {
                if let Some(stat) = new.remove(&pid) {
                    let member = Member {
                        first: (stat.ticks, now),
                        stat,
                        file: None,
                        run_ns: None,
                        cpu_cores: None,
                        run_delay: None,
                        memory: None,
                        read: None,
                        fds: None,
                        fds_limit: None,
                    };
                    self.members.insert(pid, member);
                }
            }
        }
        self.others.extend(new.into_keys());
    }

    /// Marks the memory that cannot have changed since it was read as known now: its process had no page fault, and
    /// those of the others, each of which may have unshared a page, would not matter. In an idle pool that is all of it.
    fn trust_unchanged(&mut self, now: Instant, group_faults: u64) {
        for member in self.members.values_mut() {
            let (Some((memory, known)), Some((at, then))) = (&mut member.memory, &member.read) else { continue };
            // Of a page with two users, the one that stays gets the other half.
            let moved = group_faults.saturating_sub(then.group_faults) as f64 * page_bytes() as f64 / 2.0;
            if now - *at < TRUST_UNCHANGED
                && then.faults == member.stat.faults
                && then.rss_pages == member.stat.rss_pages
                && then.group_changes == self.changes
                && moved <= memory.pss as f64 * UNCHANGED_SHARE
            {
                *known = now;
            }
        }
    }

    fn read_memory(&mut self, now: Instant, all: bool) {
        let group_faults = self.members.values().map(|m| m.stat.faults).sum();
        self.trust_unchanged(now, group_faults);
        let mut order: Vec<(i32, Option<Instant>)> = self
            .members
            .iter()
            .map(|(pid, m)| (*pid, m.memory.map(|(_, at)| at)))
            .filter(|(_, at)| all || *at != Some(now))
            .collect();
        // Never read comes first, then the oldest.
        order.sort_by_key(|(_, at)| *at);
        let unread = order.iter().filter(|(_, at)| at.is_none()).count();
        let budget = if unread > 0 { FIRST_MEMORY_BUDGET } else { MEMORY_BUDGET };
        // What a look owes beyond a whole number is owed by the next ones.
        self.memory_owed = self.memory_owed.fract() + order.len() as f64 / OLDEST_MEMORY;
        let at_least = self.memory_owed as usize;
        for (done, (pid, _)) in order.into_iter().enumerate() {
            if !all && done >= at_least && now.elapsed() > budget {
                break;
            }
            match memory::of_process(pid) {
                Ok(memory) => {
                    if let Some(member) = self.members.get_mut(&pid) {
                        member.memory = Some((memory, Instant::now()));
                        let Stat { faults, rss_pages, .. } = member.stat;
                        let unchanged = Unchanged { faults, rss_pages, group_faults, group_changes: self.changes };
                        member.read = Some((now, unchanged));
                    }
                }
                Err(ProbeError::Gone(_)) => {}
                Err(e) => {
                    self.refused = Some(e.to_string());
                    break;
                }
            }
        }
    }

    /// Counts the open files of the next few processes.
    fn count_files(&mut self) {
        let after = self.files_counted_to;
        let next = self.members.range(after.saturating_add(1)..).chain(self.members.range(..=after));
        let pids: Vec<i32> = next.map(|(pid, _)| *pid).take(FILES_COUNTED).collect();
        for pid in pids {
            if let Some(member) = self.members.get_mut(&pid) {
                member.fds = count_fds(pid);
                // A server sets its workers' limit right after it has made them.
                if member.fds_limit.is_none() || member.first.1.elapsed() < LIMIT_SETTLED {
                    member.fds_limit = fds_limit(pid);
                }
            }
            self.files_counted_to = pid;
        }
    }

    fn sum_up(&self, now: Instant, look: &mut Look) {
        let workers = self.workers();
        look.worker_count = workers.len() as u64;
        look.states.clear();
        for pid in &workers {
            *look.states.entry(self.members[pid].stat.state.to_string()).or_default() += 1;
        }
        look.busy = Some(look.states.get("R").copied().unwrap_or(0) + look.states.get("D").copied().unwrap_or(0));
        let read: Vec<(ProcessMemory, Instant)> = self.members.values().filter_map(|m| m.memory).collect();
        // A sum over a part would be a number for something else.
        if read.len() == self.members.len() && !read.is_empty() {
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

    /// The workers as they were at the last look.
    #[must_use]
    pub fn worker_looks(&self) -> Vec<WorkerLook> {
        let (uptime, ticks) = (uptime(), ticks_per_second());
        let page = page_bytes();
        self.workers()
            .iter()
            .map(|pid| {
                let m = &self.members[pid];
                let memory = m.memory.map(|(memory, _)| memory);
                WorkerLook {
                    pid: *pid,
                    state: m.stat.state.to_string(),
                    rss_bytes: Some(memory.map_or(m.stat.rss_pages * page, |m| m.rss)),
                    pss_bytes: memory.map(|m| m.pss),
                    private_bytes: memory.map(|m| m.private),
                    shared_bytes: memory.map(|m| m.shared),
                    swap_bytes: memory.map(|m| m.swap),
                    memory_age_s: m.memory.map(|(_, at)| (at.elapsed().as_secs_f64() * 10.0).round() / 10.0),
                    cpu_cores: m.cpu_cores.or_else(|| {
                        let (ticks_then, then) = m.first;
                        let span = then.elapsed().as_secs_f64();
                        (!self.precise && span >= 1.0).then(|| (m.stat.ticks - ticks_then) as f64 / ticks / span)
                    }),
                    cpu_s: m.stat.ticks as f64 / ticks,
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

/// Nanoseconds that a process of one thread has run, and waited for a processor.
fn schedule(pid: i32) -> Option<(u64, u64)> {
    let mut buffer = [0u8; 128];
    let mut words = read_into(&format!("/proc/{pid}/schedstat"), &mut buffer)?.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Open files of a process.
#[must_use]
pub fn count_fds(pid: i32) -> Option<u64> {
    let path = format!("/proc/{pid}/fd");
    // Since Linux 6.2 the size of the folder is their number.
    let size = fs::metadata(&path).ok()?.len();
    if size > 0 { Some(size) } else { Some(fs::read_dir(path).ok()?.count() as u64) }
}

fn fds_limit(pid: i32) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: asks for a limit and sets none; the structure lives for the call.
    let result = unsafe { libc::prlimit64(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit) };
    if result == 0 {
        return Some(limit.rlim_cur);
    }
    // For another user's process the call wants a right (CAP_SYS_RESOURCE) that root in a container may lack; the file
    // does not.
    let mut buffer = [0u8; 4096];
    let text = read_into(&format!("/proc/{pid}/limits"), &mut buffer)?;
    text.lines().find_map(|l| l.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_confuse_the_fields() {
        let line = b"42 (a) b (c)) S 7 1 1 0 -1 0 5 0 6 0 11 22 33 44 20 0 3 0 555 1000 66 0";
        let s = Stat::parse(line).expect("valid");
        assert_eq!((s.state, s.parent, s.ticks, s.reaped_ticks), ('S', 7, 33, 77));
        assert_eq!(s.faults, 11);
        assert_eq!((s.threads, s.start_ticks, s.rss_pages), (3, 555, 66));
        assert_eq!(Stat::parse(b"42 (x"), None);
    }

    #[test]
    fn a_group_is_its_master_and_all_below_and_the_dead_leave() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 30 & sleep 30 & read x; kill $!; read y"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut group = Group::new(shell.id() as i32, true);
        let mut look = Look::default();
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
