//! The machine as a whole: CPU time, steal, memory.

use std::fs;
use std::time::Duration;

use lastdrop_model::HostSample;

use crate::status_file::StatusFile;

/// CPU time of the host since boot, in ticks; only differences are meaningful.
#[derive(Debug, Clone, Copy)]
pub struct CpuTicks {
    pub total: u64,
    pub steal: u64,
    pub idle: u64,
}

impl CpuTicks {
    /// Reads /proc/stat. None if it cannot be read or has no steal column.
    #[must_use]
    pub fn now() -> Option<CpuTicks> {
        // The line of all processors comes first.
        let mut buffer = [0u8; 512];
        let line = crate::stat::read_into("/proc/stat", &mut buffer)?.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        // Guest time, which follows, is part of user time already.
        let [user, nice, system, idle, iowait, irq, softirq, steal] = *ticks.first_chunk()?;
        let idle = idle + iowait;
        Some(CpuTicks { total: user + nice + system + irq + softirq + idle + steal, steal, idle })
    }

    /// Returns the ticks in which a processor of this machine was running something.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.total - self.idle - self.steal
    }

    /// Returns the share (0 to 1) of all CPU time since `earlier` that the hypervisor gave to other machines.
    #[must_use]
    pub fn steal_since(&self, earlier: &CpuTicks) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|t| *t > 0)?;
        Some(self.steal.saturating_sub(earlier.steal) as f64 / total as f64)
    }
}

/// Returns, per processor, the ticks in softirqs (mainly the network's) and all ticks since boot.
#[must_use]
pub fn softirq_ticks() -> Vec<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let cores = stat.lines().take_while(|l| l.starts_with("cpu")).filter(|l| !l.starts_with("cpu "));
    let ticks = |line: &str| {
        let all: Vec<u64> = line.split_ascii_whitespace().skip(1).take(8).filter_map(|w| w.parse().ok()).collect();
        (all.get(6).copied().unwrap_or(0), all.iter().sum())
    };
    cores.map(ticks).collect()
}

/// Returns how many processes and threads were started since boot.
#[must_use]
pub fn started_tasks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("processes "))?.trim().parse().ok()
}

/// Counters of the machine since boot, whose differences make a [`HostSample`].
#[derive(Debug, Clone)]
pub struct HostCounters {
    /// (busy, all) ticks of each processor.
    cores: Vec<(u64, u64)>,
    ticks: CpuTicks,
    swap_in: Option<u64>,
    swap_out: Option<u64>,
    major_faults: Option<u64>,
    oom_kills: Option<u64>,
    backlog_dropped: Option<u64>,
    running: Option<u64>,
    blocked: Option<u64>,
    available: Option<u64>,
    files: Option<(u64, u64)>,
}

impl HostCounters {
    /// Reads the counters. None without /proc/stat.
    #[must_use]
    pub fn now() -> Option<HostCounters> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let mut all = None;
        let mut cores = Vec::new();
        for line in stat.lines().take_while(|l| l.starts_with("cpu")) {
            let mut words = line.split_ascii_whitespace();
            let name = words.next()?;
            // user nice system idle iowait irq softirq steal; guest time is part of user time already.
            let t: Vec<u64> = words.take(8).filter_map(|w| w.parse().ok()).collect();
            let total: u64 = t.iter().sum();
            let idle = t.get(3)? + t.get(4)?;
            let steal = t.get(7).copied().unwrap_or(0);
            if name == "cpu" {
                all = Some(CpuTicks { total, steal, idle });
            } else {
                cores.push((total - idle - steal, total));
            }
        }
        let number = |text: &str, name: &str| -> Option<u64> {
            text.lines().find_map(|l| l.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
        };
        let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let softnet = fs::read_to_string("/proc/net/softnet_stat").ok();
        let files = fs::read_to_string("/proc/sys/fs/file-nr").unwrap_or_default();
        let files: Vec<u64> = files.split_ascii_whitespace().filter_map(|w| w.parse().ok()).collect();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Some(HostCounters {
            cores,
            ticks: all?,
            swap_in: number(&vmstat, "pswpin "),
            swap_out: number(&vmstat, "pswpout "),
            major_faults: number(&vmstat, "pgmajfault "),
            oom_kills: number(&vmstat, "oom_kill "),
            // The second column, hexadecimal, one row per processor.
            backlog_dropped: softnet.map(|t| {
                t.lines().filter_map(|l| u64::from_str_radix(l.split_ascii_whitespace().nth(1)?, 16).ok()).sum()
            }),
            running: number(&stat, "procs_running "),
            blocked: number(&stat, "procs_blocked "),
            available: number(&meminfo, "MemAvailable:").map(|kb| kb * 1024),
            files: files.first().copied().zip(files.get(2).copied()),
        })
    }

    /// Returns what happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &HostCounters) -> HostSample {
        let delta = |f: fn(&HostCounters) -> Option<u64>| Some(f(self)?.saturating_sub(f(earlier)?));
        let share = |busy: u64, all: u64| if all == 0 { 0.0 } else { (busy as f64 / all as f64 * 1e3).round() / 1e3 };
        HostSample {
            cores: self
                .cores
                .iter()
                .zip(&earlier.cores)
                .map(|(now, then)| share(now.0.saturating_sub(then.0), now.1.saturating_sub(then.1)))
                .collect(),
            steal: self.ticks.steal_since(&earlier.ticks).map(|s| (s * 1e4).round() / 1e4),
            running: self.running,
            blocked: self.blocked,
            memory_available_bytes: self.available,
            swap_in_pages: delta(|h| h.swap_in),
            swap_out_pages: delta(|h| h.swap_out),
            major_faults: delta(|h| h.major_faults),
            oom_kills: delta(|h| h.oom_kills),
            backlog_dropped: delta(|h| h.backlog_dropped),
            files: self.files.map(|f| f.0),
            files_limit: self.files.map(|f| f.1),
        }
    }
}

/// Memory of the machine in bytes.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    pub total: u64,
    /// Memory available to new work without swapping.
    pub available: u64,
}

impl HostMemory {
    #[must_use]
    pub fn now() -> Option<HostMemory> {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let bytes = |name: &str| Some(line(name)?.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024);
        Some(HostMemory { total: bytes("MemTotal")?, available: bytes("MemAvailable")? })
    }
}

/// Three clocks at one moment, in seconds; only differences are meaningful.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    monotonic: f64,
    /// Continues while the machine is suspended.
    boot: f64,
    /// The time of day, which can be set.
    real: f64,
}

impl Clocks {
    /// Reads the clocks. None if the system refuses.
    #[must_use]
    pub fn now() -> Option<Clocks> {
        use nix::time::{ClockId, clock_gettime};
        let read = |id| clock_gettime(id).ok().map(|t| t.tv_sec() as f64 + t.tv_nsec() as f64 / 1e9);
        Some(Clocks {
            monotonic: read(ClockId::CLOCK_MONOTONIC)?,
            boot: read(ClockId::CLOCK_BOOTTIME)?,
            real: read(ClockId::CLOCK_REALTIME)?,
        })
    }

    /// Returns by how many seconds the time of day was set since `earlier`, and for how many the machine was suspended.
    #[must_use]
    pub fn faults_since(&self, earlier: &Clocks) -> (f64, f64) {
        let slept = (self.boot - earlier.boot) - (self.monotonic - earlier.monotonic);
        let stepped = (self.real - earlier.real) - (self.boot - earlier.boot);
        (stepped, slept.max(0.0))
    }
}

/// Returns the CPUs that this process may use.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the processors that the machine has online.
#[must_use]
pub fn processors() -> u64 {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online.and_then(|n| u64::try_from(n).ok()).unwrap_or(1).max(1)
}

/// Returns the kernel release, like `uname -r`.
#[must_use]
pub fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|s| s.trim().to_string()).unwrap_or_default()
}

/// Returns the peak memory (RSS) of this process in bytes.
#[must_use]
pub fn own_peak_rss() -> u64 {
    let status = StatusFile::read(std::process::id() as i32).ok();
    status.and_then(|status| status.number("VmHWM", 10)).map_or(0, |kb| kb * 1024)
}

/// Returns the number of local ports for connections from one address of ours to one remote address and port. 0 if it
/// cannot be read.
#[must_use]
pub fn local_ports() -> u64 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = text.split_whitespace().filter_map(|w| w.parse::<u64>().ok());
    match (words.next(), words.next()) {
        (Some(first), Some(last)) if last >= first => last - first + 1,
        _ => 0,
    }
}

/// Returns how long our own cgroup has been throttled since it was created: cgroup v2, or the cpu hierarchy of v1. None
/// if neither can be read, as on a machine without limits.
#[must_use]
pub fn throttled() -> Option<Duration> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let stat = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let folder = match (id, controllers) {
            ("0", "") => "/sys/fs/cgroup",
            (_, c) if c.split(',').any(|c| c == "cpu") => "/sys/fs/cgroup/cpu",
            _ => return None,
        };
        fs::read_to_string(format!("{folder}{path}/cpu.stat")).ok().filter(|s| s.contains("throttled_"))
    })?;
    let field = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("throttled_usec ").map(Duration::from_micros).or_else(|| field("throttled_time ").map(Duration::from_nanos))
}

/// Runs `work` and measures the processor time that it took on this thread.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = thread_cpu();
    let done = work();
    (done, thread_cpu().saturating_sub(begun))
}

/// Returns the processor time of all programs that this process has started and that have ended.
#[must_use]
pub fn ended_children_cpu() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike;
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    let each = [usage.user_time(), usage.system_time()];
    each.iter().map(|time| Duration::from_micros(time.num_microseconds().unsigned_abs())).sum()
}

/// Returns the CPU time of the calling thread.
#[must_use]
pub fn thread_cpu() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}
