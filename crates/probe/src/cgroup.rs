//! Control groups of a server: version 1, version 2 and both at once. All groups up to the root are read, because any
//! group on the path may hold the limit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lastdrop_model::CgroupSample;

/// A control group on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    /// Path of the group below the root of its hierarchy.
    pub path: String,
    /// Controllers of a v1 hierarchy; `v2` for the unified one.
    pub controller: String,
    pub folder: PathBuf,
    /// True if the process itself is in this group, not only in a group below it.
    pub own: bool,
}

/// Returns the groups of a process, from its own to the visible root of each hierarchy.
#[must_use]
pub fn groups(pid: i32) -> Vec<ControlGroup> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mut all = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if controllers.starts_with("name=") {
            continue;
        }
        let Some((root, at)) = mount_of(&mounts, controllers) else { continue };
        // A container sees its own group as the root of the mount.
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
        let mut folder = at.join(below.trim_start_matches('/'));
        let mut shown = path.to_string();
        let controller = if controllers.is_empty() { "v2" } else { controllers }.to_string();
        let mut own = true;
        loop {
            if folder.is_dir() {
                let (path, controller) = (shown.clone(), controller.clone());
                all.push(ControlGroup { path, controller, folder: folder.clone(), own });
                own = false;
            }
            if folder == at || !folder.pop() {
                break;
            }
            let up = shown.rfind('/').unwrap_or(0);
            shown.truncate(up.max(1));
        }
    }
    all
}

/// Returns the group that accounts for a process's memory, if all processes in it are among `pids`: its path, and the
/// anonymous bytes that the kernel counts for it.
#[must_use]
pub fn memory_of_its_own(pid: i32, pids: &[i32]) -> Option<(String, u64)> {
    let group = groups(pid).into_iter().find(|g| {
        g.own && (g.controller.split(',').any(|c| c == "memory") || g.folder.join("memory.current").exists())
    })?;
    let inside = fs::read_to_string(group.folder.join("cgroup.procs")).ok()?;
    let alone = inside.lines().filter_map(|l| l.parse::<i32>().ok()).all(|p| pids.contains(&p));
    let anonymous = group.read().look.anonymous_bytes?;
    alone.then_some((group.path, anonymous))
}

/// Finds where a hierarchy is mounted: (root of the mount within the hierarchy, mount point).
fn mount_of(mounts: &str, controllers: &str) -> Option<(String, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let matches = if controllers.is_empty() {
            kind == "cgroup2"
        } else {
            let wanted = controllers.split(',').next()?;
            kind == "cgroup" && options.split(',').any(|o| o == wanted)
        };
        let mut fields = left.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        matches.then(|| (root.to_string(), PathBuf::from(at)))
    })
}

fn number(folder: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Refaulted pages of files plus those of anonymous memory. Kernels before 5.9 have one number for both, under the
/// plain name.
fn refaults(stat: &str, of: &str) -> Option<u64> {
    let one = |sort: &str| field(stat, &format!("{of}workingset_refault{sort}"));
    one("_file").map(|files| files + one("_anon").unwrap_or(0)).or_else(|| one(""))
}

/// Returns None for "no limit", which version 1 writes as a number close to 2^63.
fn limit(value: u64) -> Option<u64> {
    (value < 1 << 62).then_some(value)
}

/// Returns the total stall times of a pressure file in microseconds, by names such as `cpu_some`.
#[must_use]
pub fn stalls(text: &str, resource: &str) -> Vec<(String, u64)> {
    text.lines()
        .filter_map(|l| {
            let kind = l.split(' ').next()?;
            let total = l.rsplit_once("total=")?.1.parse().ok()?;
            Some((format!("{resource}_{kind}"), total))
        })
        .collect()
}

/// The numbers of a group at one moment; counters are totals.
#[derive(Debug, Clone, Default)]
pub struct CgroupReading {
    look: CgroupSample,
    stalls: BTreeMap<String, u64>,
}

impl ControlGroup {
    /// Reads all numbers of this group.
    #[must_use]
    pub fn read(&self) -> CgroupReading {
        let f = &self.folder;
        let text = |file: &str| fs::read_to_string(f.join(file)).ok();
        let mut look =
            CgroupSample { path: self.path.clone(), controller: self.controller.clone(), ..CgroupSample::default() };
        let mut stall = BTreeMap::new();
        let has = |c: &str| self.controller.split(',').any(|x| x == c);
        if self.controller == "v2" {
            if let Some(stat) = text("cpu.stat") {
                look.throttled_us = field(&stat, "throttled_usec");
                look.throttled_periods = field(&stat, "nr_throttled");
            }
            if let Some(max) = text("cpu.max") {
                let mut words = max.split_whitespace().map(str::parse::<f64>);
                if let (Some(Ok(quota)), Some(Ok(period))) = (words.next(), words.next()) {
                    look.cpu_limit_cores = Some(quota / period);
                }
            }
            look.memory_bytes = number(f, "memory.current");
            look.memory_limit_bytes = number(f, "memory.max");
            look.swap_bytes = number(f, "memory.swap.current");
            if self.own || look.memory_limit_bytes.is_some() {
                let stat = text("memory.stat").unwrap_or_default();
                look.anonymous_bytes = field(&stat, "anon");
                look.refaulted_pages = refaults(&stat, "");
            }
            // For a parent group, count only events caused by its own limits: the others may have happened to sibling
            // groups.
            let events = |file: &str| {
                let local = text(&format!("{file}.local")).filter(|_| !self.own);
                local.or_else(|| text(file))
            };
            if let Some(events) = events("memory.events") {
                look.memory_high = field(&events, "high");
                look.memory_max = field(&events, "max");
                look.oom_kills = field(&events, "oom_kill");
            }
            look.pids_refused = events("pids.events").and_then(|s| field(&s, "max"));
            look.pids = number(f, "pids.current");
            look.pids_limit = number(f, "pids.max");
            for resource in ["cpu", "memory", "io"] {
                if let Some(text) = text(&format!("{resource}.pressure")) {
                    stall.extend(stalls(&text, resource));
                }
            }
        }
        if has("cpu") {
            if let Some(stat) = text("cpu.stat") {
                look.throttled_us = field(&stat, "throttled_time").map(|ns| ns / 1000);
                look.throttled_periods = field(&stat, "nr_throttled");
            }
            // A quota of -1 means no limit.
            let quota = number(f, "cpu.cfs_quota_us").zip(number(f, "cpu.cfs_period_us"));
            look.cpu_limit_cores = quota.filter(|(_, period)| *period > 0).map(|(q, p)| q as f64 / p as f64);
        }
        if has("memory") {
            look.memory_bytes = number(f, "memory.usage_in_bytes");
            look.memory_limit_bytes = number(f, "memory.limit_in_bytes").and_then(limit);
            look.memory_max = number(f, "memory.failcnt");
            look.oom_kills = text("memory.oom_control").and_then(|s| field(&s, "oom_kill"));
            // The kernel sums this file up over all groups below, so it is read only where it matters.
            if self.own || look.memory_limit_bytes.is_some() {
                let stat = text("memory.stat").unwrap_or_default();
                look.anonymous_bytes = field(&stat, "total_rss");
                look.refaulted_pages = refaults(&stat, "total_");
                look.swap_bytes = field(&stat, "total_swap");
            }
        }
        if has("pids") {
            look.pids = number(f, "pids.current");
            look.pids_limit = number(f, "pids.max");
            look.pids_refused = text("pids.events").and_then(|s| field(&s, "max"));
        }
        CgroupReading { look, stalls: stall }
    }
}

impl CgroupReading {
    /// Returns the CPU time that the group may use, in cores; None is unlimited.
    #[must_use]
    pub fn cpu_limit_cores(&self) -> Option<f64> {
        self.look.cpu_limit_cores
    }

    /// Returns the number of processes and threads in the group and their limit. None without a limit.
    #[must_use]
    pub fn tasks(&self) -> Option<(u64, u64)> {
        self.look.pids.zip(self.look.pids_limit)
    }

    /// Returns what happened since an earlier reading of the same group, `span_s` seconds before.
    #[must_use]
    pub fn since(&self, earlier: &CgroupReading, span_s: f64) -> CgroupSample {
        let delta = |f: fn(&CgroupSample) -> Option<u64>| Some(f(&self.look)?.saturating_sub(f(&earlier.look)?));
        CgroupSample {
            throttled_us: delta(|l| l.throttled_us),
            throttled_periods: delta(|l| l.throttled_periods),
            memory_high: delta(|l| l.memory_high),
            memory_max: delta(|l| l.memory_max),
            refaulted_pages: delta(|l| l.refaulted_pages),
            oom_kills: delta(|l| l.oom_kills),
            pids_refused: delta(|l| l.pids_refused),
            pressure: shares(&self.stalls, &earlier.stalls, span_s),
            ..self.look.clone()
        }
    }

    /// Returns true if the group has no limit and nothing has happened in it.
    #[must_use]
    pub fn is_idle(look: &CgroupSample) -> bool {
        let silent = CgroupSample {
            path: look.path.clone(),
            controller: look.controller.clone(),
            memory_bytes: look.memory_bytes,
            anonymous_bytes: look.anonymous_bytes,
            pids: look.pids,
            swap_bytes: look.swap_bytes.filter(|b| *b == 0),
            throttled_us: look.throttled_us.filter(|n| *n == 0),
            throttled_periods: look.throttled_periods.filter(|n| *n == 0),
            memory_high: look.memory_high.filter(|n| *n == 0),
            memory_max: look.memory_max.filter(|n| *n == 0),
            refaulted_pages: look.refaulted_pages.filter(|n| *n == 0),
            oom_kills: look.oom_kills.filter(|n| *n == 0),
            pids_refused: look.pids_refused.filter(|n| *n == 0),
            pressure: if look.pressure.values().all(|p| *p < 0.01) { look.pressure.clone() } else { BTreeMap::new() },
            ..CgroupSample::default()
        };
        *look == silent
    }

    /// Returns the group's memory now, its limit, and its anonymous part.
    #[must_use]
    pub fn memory(&self) -> (Option<u64>, Option<u64>, Option<u64>) {
        (self.look.memory_bytes, self.look.memory_limit_bytes, self.look.anonymous_bytes)
    }
}

/// Returns stall times as shares of the time between two readings.
#[must_use]
pub fn shares(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>, span_s: f64) -> BTreeMap<String, f64> {
    now.iter()
        .filter_map(|(name, us)| {
            let stalled = us.saturating_sub(*before.get(name)?) as f64 / 1e6;
            (span_s > 0.0).then(|| (name.clone(), round(stalled / span_s)))
        })
        .collect()
}

fn round(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:38 /box /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn hierarchies_are_found_where_they_are_mounted() {
        let at = |c| mount_of(MOUNTS, c).map(|(root, p)| (root, p.display().to_string()));
        assert_eq!(at("cpu,cpuacct"), Some(("/".into(), "/sys/fs/cgroup/cpu,cpuacct".into())));
        assert_eq!(at(""), Some(("/box".into(), "/sys/fs/cgroup/unified".into())));
        assert_eq!(at("memory"), None);
    }

    #[test]
    fn stall_times_become_shares() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 total=500000\n";
        let now: BTreeMap<String, u64> = stalls(text, "memory").into_iter().collect();
        let before = BTreeMap::from([("memory_some".to_string(), 1_000_000), ("memory_full".to_string(), 500_000)]);
        let s = shares(&now, &before, 2.0);
        assert_eq!((s["memory_some"], s["memory_full"]), (0.25, 0.0));
    }

    #[test]
    fn our_own_groups_lead_to_the_root() {
        let all = groups(std::process::id() as i32);
        for group in &all {
            assert!(group.folder.is_dir(), "{group:?}");
        }
        for controller in all.iter().map(|g| &g.controller) {
            assert!(all.iter().any(|g| &g.controller == controller && g.path == "/"), "{all:?}");
        }
    }
}
