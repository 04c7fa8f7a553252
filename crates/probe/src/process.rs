//! Processes: their identity, their children, and everything needed to start one again in the same way.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ProbeError;
use crate::identity::Identity;
use crate::stat::{self, Stat};
use crate::status_file::StatusFile;

/// A process as read from /proc at one moment.
#[derive(Debug, Clone)]
pub struct ProcessInfo {
    pub pid: i32,
    pub parent: i32,
    /// Ticks since boot when it started; together with the pid it identifies a process.
    pub start_ticks: u64,
    pub state: char,
    pub exe: Option<PathBuf>,
    pub argv: Vec<String>,
}

impl ProcessInfo {
    /// Returns the seconds since the process was started.
    #[must_use]
    pub fn age_s(&self) -> f64 {
        stat::uptime() - self.start_ticks as f64 / stat::ticks_per_second()
    }
}

/// Reads one process; None if it has ended.
#[must_use]
pub fn look(pid: i32) -> Option<ProcessInfo> {
    let (stat, _) = Stat::of_any(pid)?;
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    Some(ProcessInfo {
        pid,
        parent: stat.parent,
        start_ticks: stat.start_ticks,
        state: stat.state,
        exe: exe.or_else(|| SEEN.get().filter(|seen| seen.pid == pid).map(|seen| seen.exe.clone())),
        argv: command_line(pid).unwrap_or_default(),
    })
}

/// Returns the words of the command line of a process, without empty ones.
fn command_line(pid: i32) -> std::io::Result<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?;
    Ok(text.split('\0').filter(|word| !word.is_empty()).map(String::from).collect())
}

/// Returns true if a process has ended, even if its parent has not waited for it yet.
#[must_use]
pub fn has_ended(pid: i32) -> bool {
    look(pid).is_none_or(|seen| matches!(seen.state, 'Z' | 'X'))
}

/// Returns all visible processes without zombies.
#[must_use]
pub fn all() -> Vec<ProcessInfo> {
    stat::all_pids().filter_map(look).filter(|p| p.state != 'Z').collect()
}

/// Returns the living children of a process.
#[must_use]
pub fn children(pid: i32) -> Vec<ProcessInfo> {
    child_pids(pid).into_iter().filter_map(look).filter(|p| p.parent == pid).collect()
}

/// Bytes that a new worker may have written before its first response, such as a log line about its start.
const WRITTEN_AT_BIRTH: u64 = 128;
/// Nanoseconds of processor time that a worker needs to be forked and to wait for its first request.
const RAN_AT_BIRTH: u64 = 20_000_000;

/// Returns true if a worker has written and computed next to nothing since it was forked. False if that may not be
/// read.
#[must_use]
pub fn is_untouched(pid: i32) -> bool {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let written = io.lines().find_map(|l| l.strip_prefix("wchar:")?.trim().parse::<u64>().ok());
    let ran = stat::ran_ns(pid);
    written.is_some_and(|n| n < WRITTEN_AT_BIRTH) && ran.is_some_and(|n| n < RAN_AT_BIRTH)
}

/// Returns true if a process has mapped a file whose name begins with one of these, such as `libphp`.
#[must_use]
pub fn maps_any(pid: i32, names: &[&str]) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.rsplit('/').next());
    files.into_iter().any(|file| names.iter().any(|name| file.starts_with(name)))
}

/// Returns the pids of the living children of a process, at much less cost than [`children`].
#[must_use]
pub fn child_pids(pid: i32) -> Vec<i32> {
    stat::child_pids(pid)
}

/// Children that serve no requests of clients, by how the title they set begins and ends.
pub type Helpers = &'static [(&'static str, &'static str)];

/// Returns true if this is the title of a helper. Right after the fork, a child still has its parent's title.
pub(crate) fn is_helper_title(helpers: Helpers, title: &str) -> bool {
    helpers.iter().any(|(begins, ends)| title.starts_with(begins) && title.ends_with(ends))
}

/// Returns the command line of a process, which some programs overwrite with a title. Empty if it cannot be read.
pub(crate) fn title(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_string()
}

/// Returns the name of a process from the kernel: at most 15 bytes.
#[must_use]
pub fn name(pid: i32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_string())
}

/// A child that runs another program than its master and is younger than this is short-lived, and no worker.
const MOMENT_S: f64 = 2.0;

/// Returns the pids of a master's workers: its living children without helpers.
#[must_use]
pub fn worker_pids(master: i32, helpers: Helpers) -> Vec<i32> {
    let program = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let mut pids = child_pids(master);
    if let Some(own) = program(master) {
        let is_young = |pid: i32| look(pid).is_none_or(|child| child.age_s() < MOMENT_S);
        let mut others: Vec<i32> = pids.clone();
        others.retain(|pid| program(*pid).is_some_and(|other| other != own));
        // If the master itself listens, children with another program are its loggers and jobs; otherwise they may be
        // the server.
        if !others.is_empty() && !crate::listeners::inodes_of_listeners(master).is_empty() {
            pids.retain(|pid| !others.contains(pid));
        } else {
            pids.retain(|pid| !others.contains(pid) || !is_young(*pid));
        }
    }
    if !helpers.is_empty() {
        pids.retain(|pid| !is_helper_title(helpers, &title(*pid)));
    }
    pids
}

/// Returns the zombies among the children and grandchildren of a process.
#[must_use]
pub fn zombies_of(parent: i32) -> BTreeSet<i32> {
    let mut parents: Vec<i32> = child_pids(parent);
    parents.push(parent);
    let ended = |pid: &i32| Stat::of_any(*pid).is_some_and(|(s, _)| s.state == 'Z' && parents.contains(&s.parent));
    stat::all_pids().filter(ended).collect()
}

/// Returns a process and its ancestors, without pid 1.
pub fn ancestry(pid: i32) -> impl Iterator<Item = i32> {
    let parent = |pid: &i32| Stat::of_any(*pid).map(|(stat, _)| stat.parent);
    std::iter::successors(Some(pid), parent).take_while(|pid| *pid > 1)
}

/// Returns true if the process with this pid is still the one that started at `start_ticks`.
#[must_use]
pub fn is_alive(pid: i32, start_ticks: u64) -> bool {
    look(pid).is_some_and(|p| p.start_ticks == start_ticks && p.state != 'Z')
}

/// Returns true if a process has a handler for this signal.
#[must_use]
pub fn catches(pid: i32, signal: i32) -> bool {
    let caught = StatusFile::read(pid).and_then(|status| status.bits("SigCgt"));
    caught.is_ok_and(|bits| bits >> (signal - 1) & 1 == 1)
}

/// Returns the auxiliary vector of a process, which contains addresses and so changes with each execve.
#[must_use]
pub fn execution(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/auxv")).ok()
}

/// A resource limit: number of the resource, soft and hard value; None is unlimited.
pub type ResourceLimit = (u32, Option<u64>, Option<u64>);

/// Everything needed to start a successor of a process in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    pub pid: i32,
    pub start_ticks: u64,
    pub exe: PathBuf,
    pub argv: Vec<String>,
    /// What the master shows before its command line, if its title contains both.
    #[serde(default)]
    pub title: Option<String>,
    /// What the master shows instead of its command line.
    #[serde(default)]
    pub shown: Option<String>,
    /// Options of its command line that change with each reload, with their values; they are ignored in comparisons.
    #[serde(default)]
    pub passing: Vec<String>,
    /// Its command line has paths relative to its directory: the same command line elsewhere belongs to another server.
    #[serde(default)]
    pub relative: bool,
    pub environment: Vec<(String, String)>,
    pub directory: PathBuf,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub umask: Option<u32>,
    pub nice: i64,
    pub limits: Vec<ResourceLimit>,
    pub cpus: Vec<usize>,
    /// Path of the cgroup in each hierarchy, as in /proc/PID/cgroup: (controllers, path).
    pub cgroups: Vec<(String, String)>,
    /// Its standard output and standard error, if these are files.
    pub output: Option<PathBuf>,
    pub errors: Option<PathBuf>,
    /// The rights with which the kernel ran it; None in a journal of an earlier version.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Files that decide what code it executes: its configuration, and the files named there. They are checked before
    /// it is started as root.
    #[serde(default)]
    pub code: Vec<PathBuf>,
    /// It runs as another user, and nothing shows that root started it.
    #[serde(default)]
    pub unknown_starter: bool,
}

/// A process as read before lastdrop took on its rights. After a process has changed its user, that user may not
/// inspect it.
#[derive(Debug, Clone)]
pub struct RememberedProcess {
    pub pid: i32,
    pub exe: PathBuf,
    pub directory: PathBuf,
    /// Raw content of /proc/PID/environ.
    pub environment: Vec<u8>,
}

static SEEN: OnceLock<RememberedProcess> = OnceLock::new();

/// Remembers a process for [`Birth::of`], once, in case the kernel does not show it any more.
pub fn remember(seen: RememberedProcess) {
    let _ = SEEN.set(seen);
}

/// Returns the variables in the content of /proc/PID/environ.
fn variables(environment: &[u8]) -> Vec<(String, String)> {
    let words = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    words.filter_map(|word| word.split_once('=').map(|(name, value)| (name.to_string(), value.to_string()))).collect()
}

impl Birth {
    /// Reads it from a running process.
    ///
    /// # Errors
    /// When the process has ended, or belongs to another user.
    pub fn of(pid: i32) -> Result<Birth, ProbeError> {
        let birth = Birth::read(pid)?;
        // The process may have executed another program, or changed its user, while it was read. Never mix a program of
        // one user with the rights of another.
        let is_the_same = look(pid)
            .is_some_and(|now| now.start_ticks == birth.start_ticks && now.exe == Some(birth.exe.clone()))
            && Identity::of(pid).is_ok_and(|now| Some(now) == birth.identity);
        if is_the_same { Ok(birth) } else { Err(ProbeError::Gone(pid)) }
    }

    /// Like `of`, for a process that was read before. Fails if its pid was reused or it now runs another program.
    ///
    /// # Errors
    /// As [`Birth::of`].
    pub fn of_seen(seen: &ProcessInfo) -> Result<Birth, ProbeError> {
        let birth = Birth::of(seen.pid)?;
        let is_the_same =
            birth.start_ticks == seen.start_ticks && seen.exe.as_ref().is_none_or(|exe| *exe == birth.exe);
        if is_the_same { Ok(birth) } else { Err(ProbeError::Gone(seen.pid)) }
    }

    fn read(pid: i32) -> Result<Birth, ProbeError> {
        let e = |what: &'static str| move |e| ProbeError::of(pid, what, e);
        let path = |file: &str| format!("/proc/{pid}/{file}");
        let (stat, _) = Stat::of_any(pid).ok_or(ProbeError::Gone(pid))?;
        let umask = StatusFile::read(pid)?.number("Umask", 8);
        let identity = Identity::of(pid)?;
        let seen = SEEN.get().filter(|seen| seen.pid == pid);
        let environment = match (std::fs::read(path("environ")), seen) {
            (Ok(all), _) => variables(&all),
            (Err(_), Some(seen)) => variables(&seen.environment),
            (Err(why), None) => return Err(e("environ")(why)),
        };
        let link = |file: &'static str, seen: Option<&PathBuf>| match (std::fs::read_link(path(file)), seen) {
            (Ok(target), _) => Ok(target),
            (Err(_), Some(seen)) => Ok(seen.clone()),
            (Err(why), None) => Err(e(file)(why)),
        };
        let target = |fd: &str| {
            std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok().filter(|f| f.is_absolute() && f.is_file())
        };
        Ok(Birth {
            pid,
            start_ticks: stat.start_ticks,
            exe: link("exe", seen.map(|seen| &seen.exe))?,
            argv: command_line(pid).map_err(e("cmdline"))?,
            title: None,
            shown: None,
            passing: Vec::new(),
            relative: false,
            environment,
            directory: link("cwd", seen.map(|seen| &seen.directory))?,
            uid: identity.user(),
            gid: identity.group(),
            groups: identity.supplementary_groups.clone(),
            umask: umask.map(|mask| mask as u32),
            nice: stat.nice,
            limits: limits(pid)?,
            cpus: affinity(pid),
            cgroups: cgroups(pid),
            output: target("1"),
            errors: target("2"),
            identity: Some(identity),
            code: Vec::new(),
            unknown_starter: false,
        })
    }

    /// Returns true if a process that shows the words `shown` runs with the command line `argv`.
    #[must_use]
    pub fn is_shown_as(&self, argv: &[String], shown: &[String]) -> bool {
        match (&self.shown, &self.title) {
            (Some(instead), _) => shown.join(" ").trim_end() == title_on(instead, argv),
            (None, Some(title)) => shown.join(" ") == format!("{title}{}", argv.join(" ")),
            (None, None) if self.passing.is_empty() => shown == argv,
            (None, None) => {
                let passing: Vec<&str> = self.passing.iter().map(String::as_str).collect();
                without(shown, &passing) == without(argv, &passing)
            }
        }
    }
}

/// Returns the title of a master that shows its configuration in brackets, for this command line: `php-fpm: master
/// process (/etc/php-fpm.conf)`. Any other title is returned unchanged.
fn title_on(title: &str, argv: &[String]) -> String {
    let named = argv.windows(2).find(|pair| pair[0] == "--fpm-config" || pair[0] == "-y").map(|pair| &pair[1]);
    match (named, title.split_once('(')) {
        (Some(config), Some((before, _))) if title.ends_with(')') => format!("{before}({config})"),
        _ => title.into(),
    }
}

/// Returns a command line without some options and their values: the numbers that follow an option, or otherwise one
/// word.
#[must_use]
pub fn without(argv: &[String], options: &[&str]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = argv.iter().peekable();
    while let Some(word) = words.next() {
        if !options.contains(&word.as_str()) {
            kept.push(word.clone());
            continue;
        }
        let mut numbers = 0;
        while words.next_if(|word| word.parse::<i32>().is_ok_and(|n| n >= 0)).is_some() {
            numbers += 1;
        }
        if numbers == 0 {
            words.next_if(|word| !word.starts_with('-'));
        }
    }
    kept
}

/// Reads the limits from the file that everybody may read: prlimit(2) needs CAP_SYS_RESOURCE for processes of other
/// users, which root in a container often lacks. Lines are in the order of the resource numbers; the name takes 25
/// columns.
fn limits(pid: i32) -> Result<Vec<ResourceLimit>, ProbeError> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).map_err(|e| ProbeError::of(pid, "limits", e))?;
    let limit = |(resource, line): (usize, &str)| {
        let mut values = line.get(25..)?.split_whitespace().map(|word| word.parse::<u64>().ok());
        Some((resource as u32, values.next()?, values.next()?))
    };
    Ok(text.lines().skip(1).enumerate().filter_map(limit).collect())
}

/// Reads the control groups of a process, as (controllers, path); none where the kernel has none.
fn cgroups(pid: i32) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = |line: &str| {
        let (_, group) = line.split_once(':')?;
        group.split_once(':').map(|(controllers, path)| (controllers.to_string(), path.to_string()))
    };
    text.lines().filter_map(group).collect()
}

/// Returns the processor time of all threads of a process; None if it has ended.
#[must_use]
pub fn processor_time(pid: i32) -> Option<Duration> {
    stat::ran_ns(pid).map(Duration::from_nanos)
}

/// Returns the processors that a process may use.
#[must_use]
pub fn affinity(pid: i32) -> Vec<usize> {
    nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(pid))
        .map(|set| (0..nix::sched::CpuSet::count()).filter(|i| set.is_set(*i).unwrap_or(false)).collect())
        .unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_file_are_those_of_the_system_call() {
        let read = limits(std::process::id() as i32).expect("our own");
        assert_eq!(read.len(), 16);
        for (resource, soft, hard) in read {
            let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: asks for a limit and sets none; the structure lives for the call.
            let result = unsafe { libc::prlimit64(0, resource, std::ptr::null(), &raw mut limit) };
            let value = |n: u64| (n != libc::RLIM64_INFINITY).then_some(n);
            assert_eq!((result, soft, hard), (0, value(limit.rlim_cur), value(limit.rlim_max)), "{resource}");
        }
    }

    #[test]
    fn who_is_called_for_a_moment_is_no_worker() {
        // A shell that waits for another program.
        let mut shell = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().expect("a shell");
        let master = shell.id() as i32;
        let program = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let child = loop {
            let runs_else = |child: &ProcessInfo| program(child.pid) != program(master);
            let before = child_pids(master).first().copied().and_then(look).filter(runs_else);
            let workers = worker_pids(master, &[]);
            match before {
                Some(child) if !workers.is_empty() => break child,
                _ => assert!(std::time::Instant::now() < deadline, "it stays"),
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        assert!(child.age_s() >= MOMENT_S, "{child:?}");
        for pid in [child.pid, master] {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = shell.wait();
    }
}
