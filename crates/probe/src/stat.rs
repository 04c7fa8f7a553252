//! Files of /proc about a process and the kernel that cost next to nothing to read.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;

/// Content of /proc/PID/stat.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Stat {
    pub state: char,
    pub parent: i32,
    /// Page faults so far, with and without reading from a disk.
    pub faults: u64,
    /// Ticks of this process, and of its children that have ended and were waited for.
    pub ticks: u64,
    pub reaped_ticks: u64,
    pub threads: i64,
    pub start_ticks: u64,
    pub rss_pages: u64,
}

pub(crate) fn read_into<'a>(path: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
    let n = File::open(path).ok()?.read(buffer).ok()?;
    std::str::from_utf8(&buffer[..n]).ok()
}

impl Stat {
    pub fn open(pid: i32) -> Option<File> {
        File::open(format!("/proc/{pid}/stat")).ok()
    }

    /// Reads the numbers and the name of any process, including zombies.
    pub fn of_any(pid: i32) -> Option<(Stat, String)> {
        let mut buffer = [0u8; 1024];
        let n = Stat::open(pid)?.read_at(&mut buffer, 0).ok()?;
        let line = &buffer[..n];
        let (from, to) = (line.iter().position(|b| *b == b'(')? + 1, line.iter().rposition(|b| *b == b')')?);
        Some((Stat::parse(line)?, String::from_utf8_lossy(line.get(from..to)?).into_owned()))
    }

    /// Reads the state alone. None once the process has ended.
    pub fn state(file: &File) -> Option<char> {
        Some(Stat::read(file)?.state)
    }

    /// Reads the file again. The open file of a process that has ended returns an error even if its pid was reused.
    pub(crate) fn read(file: &File) -> Option<Stat> {
        let mut buffer = [0u8; 1024];
        let n = file.read_at(&mut buffer, 0).ok()?;
        Stat::parse(&buffer[..n]).filter(|s| s.state != 'Z')
    }

    fn parse(line: &[u8]) -> Option<Stat> {
        let after_name = line.iter().rposition(|b| *b == b')')? + 2;
        let rest = std::str::from_utf8(line.get(after_name..)?).ok()?;
        let mut words = rest.split_ascii_whitespace();
        let state = words.next()?.chars().next()?;
        // Field numbers as in proc_pid_stat(5); the state is the third. Fields must be read in ascending order.
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

/// Returns the pids of the living children of a process.
pub(crate) fn child_pids(parent: i32) -> Vec<i32> {
    all_pids()
        .filter(|pid| Stat::open(*pid).as_ref().and_then(Stat::read).is_some_and(|s| s.parent == parent))
        .collect()
}

pub(crate) fn all_pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter_map(|e| e.file_name().to_str().and_then(|n| n.parse::<i32>().ok()))
}

/// Returns the pid that the kernel assigned last.
pub(crate) fn newest_pid() -> Option<i32> {
    let mut buffer = [0u8; 128];
    read_into("/proc/loadavg", &mut buffer)?.split_ascii_whitespace().nth(4)?.parse().ok()
}

pub(crate) fn ticks_per_second() -> f64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64
}

/// Converts ticks to nanoseconds.
pub(crate) fn of_ticks(ticks: u64) -> u64 {
    (ticks as f64 * 1e9 / ticks_per_second()) as u64
}

pub(crate) fn page_bytes() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as u64
}

/// Returns the nanoseconds that all threads of a process have run. A tick would be far too coarse if requests take
/// microseconds.
pub(crate) fn ran_ns(pid: i32) -> Option<u64> {
    let clock = nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(pid)).ok()?;
    let time = clock.now().ok()?;
    u64::try_from(time.tv_sec()).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::try_from(time.tv_nsec()).ok()?)
}

/// Returns the seconds since boot.
pub(crate) fn uptime() -> f64 {
    let mut buffer = [0u8; 128];
    read_into("/proc/uptime", &mut buffer).and_then(|t| t.split(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// Returns the nanoseconds that a single-threaded process has run and has waited for a processor.
pub(crate) fn schedule(pid: i32) -> Option<(u64, u64)> {
    schedule_in(&format!("/proc/{pid}/schedstat"))
}

/// Like `schedule`, for one thread of a process.
pub(crate) fn schedule_of_thread(pid: i32, tid: i32) -> Option<(u64, u64)> {
    schedule_in(&format!("/proc/{pid}/task/{tid}/schedstat"))
}

fn schedule_in(path: &str) -> Option<(u64, u64)> {
    let mut buffer = [0u8; 128];
    let mut words = read_into(path, &mut buffer)?.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_run_is_counted_by_the_nanosecond() {
        let own = std::process::id() as i32;
        let before = ran_ns(own).expect("we run");
        let began = std::time::Instant::now();
        while ran_ns(own).expect("we run") == before {
            assert!(began.elapsed().as_secs() < 60, "nothing is counted");
        }
        // A tick is at least a millisecond long.
        assert!((1..=20).any(|_| {
            let before = ran_ns(own).expect("we run");
            ran_ns(own).expect("we run") - before < 1_000_000
        }));
    }

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_confuse_the_fields() {
        let line = b"42 (a) b (c)) S 7 1 1 0 -1 0 5 0 6 0 11 22 33 44 20 0 3 0 555 1000 66 0";
        let s = Stat::parse(line).expect("valid");
        assert_eq!((s.state, s.parent, s.ticks, s.reaped_ticks), ('S', 7, 33, 77));
        assert_eq!(s.faults, 11);
        assert_eq!((s.threads, s.start_ticks, s.rss_pages), (3, 555, 66));
        assert_eq!(Stat::parse(b"42 (x"), None);
    }
}
