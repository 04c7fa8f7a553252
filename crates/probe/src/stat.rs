//! Files of /proc about a process and the kernel that cost next to nothing to read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;

use crate::sock_diag::TcpSocket;

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
    pub nice: i64,
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
        let mut signed = |n: usize| -> Option<i64> {
            let word = words.nth(n - at - 1)?;
            at = n;
            word.parse().ok()
        };
        Some(Stat {
            state,
            parent: signed(4)? as i32,
            faults: (signed(10)? + signed(12)?).max(0) as u64,
            ticks: (signed(14)? + signed(15)?).max(0) as u64,
            reaped_ticks: (signed(16)? + signed(17)?).max(0) as u64,
            nice: signed(19)?,
            threads: signed(20)?,
            start_ticks: signed(22)?.max(0) as u64,
            rss_pages: signed(24)?.max(0) as u64,
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

/// Returns how often a thread has been put on a processor, from its open `schedstat`. None if it has ended.
pub(crate) fn times_run(schedule: &File) -> Option<u64> {
    let mut buffer = [0u8; 128];
    let length = schedule.read_at(&mut buffer, 0).ok()?;
    std::str::from_utf8(&buffer[..length]).ok()?.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Reads a table of sockets in the network namespace of a process: `tcp`, `tcp6`, `udp` or `udp6`.
///
/// # Errors
/// When the process has ended, or the kernel has no such table.
pub(crate) fn sockets(pid: i32, table: &str) -> io::Result<Vec<TcpSocket>> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/{table}"))?;
    Ok(text.lines().skip(1).filter_map(socket).collect())
}

/// Returns the UDP sockets in the network namespace of a process; none if they may not be read.
pub(crate) fn udp_sockets(pid: i32) -> impl Iterator<Item = TcpSocket> {
    ["udp", "udp6"].into_iter().flat_map(move |table| sockets(pid, table).unwrap_or_default())
}

/// Reads a line: `sl local remote state tx:rx tr:when retransmits uid timeout inode …`, addresses as hexadecimal words in the
/// order of bytes of this machine.
fn socket(line: &str) -> Option<TcpSocket> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let hex = |word: &str| u32::from_str_radix(word, 16).ok();
    let (to_send, to_read) = words.get(4)?.split_once(':')?;
    Some(TcpSocket {
        local: address(words.get(1)?)?,
        remote: address(words.get(2)?)?,
        state: u8::from_str_radix(words.get(3)?, 16).ok()?,
        queues: (hex(to_read)?, hex(to_send)?),
        inode: words.get(9)?.parse().ok()?,
    })
}

fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            <[u8; 16]>::try_from(words).ok()?.into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_line_of_a_table_is_a_socket() {
        let line = "   0: 0100007F:1F90 0200007F:0035 0A 00000005:00000002 00:00000000 00000000  1000        0 12345 1 00000000";
        let s = socket(line).expect("a socket");
        assert_eq!((s.local.to_string(), s.remote.to_string()), ("127.0.0.1:8080".into(), "127.0.0.2:53".into()));
        assert_eq!((s.state, s.queues, s.inode), (10, (2, 5), 12345));
        let (mapped, own) = ("0000000000000000FFFF00000100007F:0050", "B80D01200000000000000000010000FF:0051");
        let line = format!("1: {mapped} {own} 01 0:0 00:00000000 00000000 0 0 7 1");
        let s = socket(&line).expect("a socket");
        assert_eq!(s.local.to_string(), "[::ffff:127.0.0.1]:80");
        assert_eq!(s.remote.to_string(), "[2001:db8::ff00:1]:81");
        assert!(socket("  sl  local_address rem_address   st tx_queue rx_queue").is_none());
    }

    #[test]
    fn a_udp_socket_of_ours_is_in_the_table() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket.connect("127.0.0.1:53").expect("connected");
        let own = socket.local_addr().expect("an address");
        let found = udp_sockets(std::process::id() as i32).find(|s| s.local == own).expect("it is there");
        assert_eq!(found.remote.to_string(), "127.0.0.1:53");
    }

    #[test]
    fn niceness_may_be_below_zero() {
        let line = b"7 (a ) b) S 1 7 7 0 -1 4194560 10 0 2 0 30 4 5 6 20 -5 3 0 999 4096 12 0";
        let stat = Stat::parse(line).expect("a line");
        assert_eq!((stat.state, stat.parent, stat.nice, stat.threads), ('S', 1, -5, 3));
        assert_eq!((stat.faults, stat.ticks, stat.reaped_ticks), (12, 34, 11));
        assert_eq!((stat.start_ticks, stat.rss_pages), (999, 12));
    }

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
