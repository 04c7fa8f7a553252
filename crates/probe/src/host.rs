//! The machine as a whole: CPU time, steal, memory.

use std::fs;
use std::time::Duration;

use procfs::{Current, CurrentSI};

/// CPU time of the host since boot, in ticks; only differences mean anything.
#[derive(Debug, Clone, Copy)]
pub struct CpuTicks {
    pub total: u64,
    pub steal: u64,
    pub idle: u64,
}

impl CpuTicks {
    /// Reads /proc/stat. None where it cannot be read or has no steal column.
    #[must_use]
    pub fn now() -> Option<CpuTicks> {
        let t = procfs::KernelStats::current().ok()?.total;
        let steal = t.steal?;
        let idle = t.idle + t.iowait.unwrap_or(0);
        // guest time is part of user time already.
        let busy = t.user + t.nice + t.system + t.irq.unwrap_or(0) + t.softirq.unwrap_or(0);
        Some(CpuTicks { total: busy + idle + steal, steal, idle })
    }

    /// Share of all CPU time since `earlier` that the hypervisor gave to others (0 to 1).
    #[must_use]
    pub fn steal_since(&self, earlier: &CpuTicks) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|t| *t > 0)?;
        Some(self.steal.saturating_sub(earlier.steal) as f64 / total as f64)
    }
}

/// Memory of the machine, bytes.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    pub total: u64,
    /// What new work could have without swapping.
    pub available: u64,
}

impl HostMemory {
    #[must_use]
    pub fn now() -> Option<HostMemory> {
        let m = procfs::Meminfo::current().ok()?;
        Some(HostMemory { total: m.mem_total, available: m.mem_available? })
    }
}

/// Three clocks at one moment, seconds: only differences mean anything.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    monotonic: f64,
    /// Goes on while the machine is suspended.
    boot: f64,
    /// The time of day; can be set.
    real: f64,
}

impl Clocks {
    /// Reads them. None where the system refuses.
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

    /// Since `earlier`: by how many seconds the time of day was set, and for how many the machine was suspended.
    #[must_use]
    pub fn faults_since(&self, earlier: &Clocks) -> (f64, f64) {
        let slept = (self.boot - earlier.boot) - (self.monotonic - earlier.monotonic);
        let stepped = (self.real - earlier.real) - (self.boot - earlier.boot);
        (stepped, slept.max(0.0))
    }
}

/// CPUs that this process may use.
#[must_use]
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Kernel release, as `uname -r` says it.
#[must_use]
pub fn kernel() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|s| s.trim().to_string()).unwrap_or_default()
}

/// Most memory that this process has had, bytes.
#[must_use]
pub fn own_peak_rss() -> u64 {
    procfs::process::Process::myself().and_then(|p| p.status()).ok().and_then(|s| s.vmhwm).map_or(0, |kb| kb * 1024)
}

/// Local ports that connections to one address and port can use, from one address of ours. 0 where it cannot be read.
#[must_use]
pub fn local_ports() -> u64 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = text.split_whitespace().filter_map(|w| w.parse::<u64>().ok());
    match (words.next(), words.next()) {
        (Some(first), Some(last)) if last >= first => last - first + 1,
        _ => 0,
    }
}

/// TCP sockets in TIME_WAIT in our network namespace.
#[must_use]
pub fn time_wait() -> u64 {
    let text = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("TCP: ")).unwrap_or_default();
    let mut words = line.split_whitespace().skip_while(|w| *w != "tw");
    words.nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// For how long our own cgroup has been throttled since it was made: cgroup v2, or the cpu hierarchy of v1. None where
/// neither can be read, as on a machine without limits.
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
