//! Processes: who they are, whose children they are, and everything needed to start one again as it was.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use procfs::process::{Process, all_processes};
use serde::{Deserialize, Serialize};

use crate::ProbeError;
use crate::identity::Identity;

/// A process as seen in one look at /proc.
#[derive(Debug, Clone)]
pub struct ProcessInfo {
    pub pid: i32,
    pub parent: i32,
    /// Ticks since boot when it started; with the pid it names a process for good.
    pub start_ticks: u64,
    pub state: char,
    pub exe: Option<PathBuf>,
    pub argv: Vec<String>,
}

impl ProcessInfo {
    /// How long ago it was started.
    #[must_use]
    pub fn age_s(&self) -> f64 {
        crate::stat::uptime() - self.start_ticks as f64 / crate::stat::ticks_per_second()
    }
}

/// Looks at one process; None when it is gone.
#[must_use]
pub fn look(pid: i32) -> Option<ProcessInfo> {
    info(&Process::new(pid).ok()?)
}

/// Has a process ended, be it that its parent has not waited for it yet?
#[must_use]
pub fn has_ended(pid: i32) -> bool {
    look(pid).is_none_or(|seen| matches!(seen.state, 'Z' | 'X'))
}

fn info(p: &Process) -> Option<ProcessInfo> {
    let stat = p.stat().ok()?;
    Some(ProcessInfo {
        pid: p.pid,
        parent: stat.ppid,
        start_ticks: stat.starttime,
        state: stat.state,
        exe: p.exe().ok().or_else(|| SEEN.get().filter(|seen| seen.pid == p.pid).map(|seen| seen.exe.clone())),
        argv: p.cmdline().unwrap_or_default(),
    })
}

/// All processes that can be seen, zombies left out.
#[must_use]
pub fn all() -> Vec<ProcessInfo> {
    all_processes()
        .map(|ps| ps.filter_map(Result::ok).filter_map(|p| info(&p)).filter(|p| p.state != 'Z').collect())
        .unwrap_or_default()
}

/// Living children of a process.
#[must_use]
pub fn children(pid: i32) -> Vec<ProcessInfo> {
    child_pids(pid).into_iter().filter_map(look).filter(|p| p.parent == pid).collect()
}

/// Bytes that a worker may have written since it was forked without having answered anything: a line of a log about its birth.
const WRITTEN_AT_BIRTH: u64 = 128;
/// Nanoseconds of processor time that a worker takes to be forked and to wait for its first request.
const RAN_AT_BIRTH: u64 = 20_000_000;

/// Has a worker done next to nothing since it was forked: neither written nor computed? False where that may not be read.
#[must_use]
pub fn is_untouched(pid: i32) -> bool {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let written = io.lines().find_map(|l| l.strip_prefix("wchar:")?.trim().parse::<u64>().ok());
    let ran = crate::stat::ran_ns(pid);
    written.is_some_and(|n| n < WRITTEN_AT_BIRTH) && ran.is_some_and(|n| n < RAN_AT_BIRTH)
}

/// Has a process mapped a file of one of these names, such as `libphp`?
#[must_use]
pub fn maps_any(pid: i32, names: &[&str]) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.rsplit('/').next());
    files.into_iter().any(|file| names.iter().any(|name| file.starts_with(name)))
}

/// Process ids of the living children of a process: much less work than [`children`].
#[must_use]
pub fn child_pids(pid: i32) -> Vec<i32> {
    crate::stat::child_pids(pid)
}

/// Children that serve no requests of visitors, by the title that they give themselves: how it begins and ends.
pub type Helpers = &'static [(&'static str, &'static str)];

/// Is this the title of a child that helps the others? Read right after the fork it is still its parent's.
pub(crate) fn is_helper_title(helpers: Helpers, title: &str) -> bool {
    helpers.iter().any(|(begins, ends)| title.starts_with(begins) && title.ends_with(ends))
}

/// The command line of a process, which some write a title over. Empty where it cannot be read.
pub(crate) fn title(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim_end().to_string()
}

/// The name of a process, as the kernel has it: at most 15 bytes.
#[must_use]
pub fn name(pid: i32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_string())
}

/// A child that runs another program than its master and is younger than this was called for a moment: it serves no visitors.
const MOMENT_S: f64 = 2.0;

/// Process ids of a master's workers: its living children but for those that only help.
#[must_use]
pub fn worker_pids(master: i32, helpers: Helpers) -> Vec<i32> {
    let program = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let mut pids = child_pids(master);
    if let Some(own) = program(master) {
        let is_young = |pid: i32| look(pid).is_none_or(|child| child.age_s() < MOMENT_S);
        let mut others: Vec<i32> = pids.clone();
        others.retain(|pid| program(*pid).is_some_and(|other| other != own));
        // Beside a server that listens itself they are its loggers and jobs; below another they may be the server.
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

/// Children of a process, and of its children, that have ended and that nobody has waited for.
#[must_use]
pub fn zombies_of(parent: i32) -> BTreeSet<i32> {
    let mut parents: Vec<i32> = child_pids(parent);
    parents.push(parent);
    let ended =
        |pid: &i32| crate::stat::Stat::of_any(*pid).is_some_and(|(s, _)| s.state == 'Z' && parents.contains(&s.parent));
    crate::stat::all_pids().filter(ended).collect()
}

/// A process and those above it, but for the first of all.
pub fn ancestry(pid: i32) -> impl Iterator<Item = i32> {
    let parent = |pid: &i32| crate::stat::Stat::of_any(*pid).map(|(stat, _)| stat.parent);
    std::iter::successors(Some(pid), parent).take_while(|pid| *pid > 1)
}

/// Is the process with this pid still the one that started then?
#[must_use]
pub fn is_alive(pid: i32, start_ticks: u64) -> bool {
    look(pid).is_some_and(|p| p.start_ticks == start_ticks && p.state != 'Z')
}

/// Does a process catch this signal?
#[must_use]
pub fn catches(pid: i32, signal: i32) -> bool {
    let status = Process::new(pid).and_then(|p| p.status());
    status.is_ok_and(|s| s.sigcgt >> (signal - 1) & 1 == 1)
}

/// What differs between a program that a process executes and the next: where the kernel has put it.
#[must_use]
pub fn execution(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/auxv")).ok()
}

/// A resource limit: number of the resource, soft and hard value; None is unlimited.
pub type Limit = (u32, Option<u64>, Option<u64>);

/// Everything about a process that a successor needs in order to be started in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    pub pid: i32,
    pub start_ticks: u64,
    pub exe: PathBuf,
    pub argv: Vec<String>,
    /// What its master writes before its command line, where it shows both as a title instead of the command line.
    #[serde(default)]
    pub title: Option<String>,
    /// What its master shows instead of its command line.
    #[serde(default)]
    pub shown: Option<String>,
    /// Options of its command line that come and go with each reload, with what follows them: they do not count.
    #[serde(default)]
    pub passing: Vec<String>,
    /// Its command line names files by where it was started: the same one from elsewhere is of another server.
    #[serde(default)]
    pub relative: bool,
    pub environment: Vec<(String, String)>,
    pub directory: PathBuf,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub umask: Option<u32>,
    pub nice: i64,
    pub limits: Vec<Limit>,
    pub cpus: Vec<usize>,
    /// Path of the cgroup in each hierarchy, as /proc/PID/cgroup has it: (controllers, path).
    pub cgroups: Vec<(String, String)>,
    /// Files that are its standard output and standard error, where they are files.
    pub output: Option<PathBuf>,
    pub errors: Option<PathBuf>,
    /// The rights with which the kernel ran it; None in a journal of an earlier version.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// Files that decide what code it executes: its configuration, and what this names. Checked before it is started as root.
    #[serde(default)]
    pub code: Vec<PathBuf>,
    /// It runs as another user, and nothing shows that root started it.
    #[serde(default)]
    pub unknown_starter: bool,
}

/// What was seen of a process before this one took on its rights. A process that has changed its user is closed to that user.
#[derive(Debug, Clone)]
pub struct Seen {
    pub pid: i32,
    pub exe: PathBuf,
    pub directory: PathBuf,
    /// As /proc/PID/environ has it.
    pub environment: Vec<u8>,
}

static SEEN: OnceLock<Seen> = OnceLock::new();

/// Remembers it, for [`Birth::of`] where the kernel does not show it any more. Once.
pub fn remember(seen: Seen) {
    let _ = SEEN.set(seen);
}

impl Seen {
    fn variables(&self) -> Vec<(String, String)> {
        let words = self.environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words
            .filter_map(|word| word.split_once('=').map(|(name, value)| (name.to_string(), value.to_string())))
            .collect()
    }
}

impl Birth {
    /// Reads it from a running process.
    ///
    /// # Errors
    /// When the process is gone, or belongs to another user.
    pub fn of(pid: i32) -> Result<Birth, ProbeError> {
        let birth = Birth::read(pid)?;
        // It may have executed another program, or become another user, while it was read: a program of one user must not be
        // taken for another's.
        let is_the_same = look(pid)
            .is_some_and(|now| now.start_ticks == birth.start_ticks && now.exe == Some(birth.exe.clone()))
            && Identity::of(pid).is_ok_and(|now| Some(now) == birth.identity);
        if is_the_same { Ok(birth) } else { Err(ProbeError::Gone(pid)) }
    }

    /// The same of a process that was seen before: it is gone where its pid is another's, or it runs another program.
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
        let p = Process::new(pid).map_err(e("stat"))?;
        let stat = p.stat().map_err(e("stat"))?;
        let status = p.status().map_err(e("status"))?;
        let identity = Identity::of(pid)?;
        let seen = SEEN.get().filter(|seen| seen.pid == pid);
        let environment = match (p.environ(), seen) {
            (Ok(all), _) => all
                .into_iter()
                .map(|(k, v)| (k.to_string_lossy().into_owned(), v.to_string_lossy().into_owned()))
                .collect(),
            (Err(_), Some(seen)) => seen.variables(),
            (Err(why), None) => return Err(e("environ")(why)),
        };
        let target = |fd: &str| {
            std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok().filter(|f| f.is_absolute() && f.is_file())
        };
        Ok(Birth {
            pid,
            start_ticks: stat.starttime,
            exe: p.exe().or_else(|why| seen.map(|seen| seen.exe.clone()).ok_or(why)).map_err(e("exe"))?,
            argv: p.cmdline().map_err(e("cmdline"))?,
            title: None,
            shown: None,
            passing: Vec::new(),
            relative: false,
            environment,
            directory: p.cwd().or_else(|why| seen.map(|seen| seen.directory.clone()).ok_or(why)).map_err(e("cwd"))?,
            uid: identity.user(),
            gid: identity.group(),
            groups: identity.supplementary_groups.clone(),
            umask: status.umask,
            nice: stat.nice,
            limits: limits(pid)?,
            cpus: affinity(pid),
            cgroups: p
                .cgroups()
                .map(|c| c.into_iter().map(|c| (c.controllers.join(","), c.pathname)).collect())
                .unwrap_or_default(),
            output: target("1"),
            errors: target("2"),
            identity: Some(identity),
            code: Vec::new(),
            unknown_starter: false,
        })
    }

    /// Does a process that shows these words run with this command line?
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

/// The title of a master that names its configuration in brackets, as it is when started with this command line:
/// `php-fpm: master process (/etc/php-fpm.conf)`. Any other title stays as it is.
fn title_on(title: &str, argv: &[String]) -> String {
    let named = argv.windows(2).find(|pair| pair[0] == "--fpm-config" || pair[0] == "-y").map(|pair| &pair[1]);
    match (named, title.split_once('(')) {
        (Some(config), Some((before, _))) if title.ends_with(')') => format!("{before}({config})"),
        _ => title.into(),
    }
}

/// A command line without some options, each with the numbers or else the one word that follow it.
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

/// From the file that everybody may read: prlimit(2) wants CAP_SYS_RESOURCE for processes of other users, which root in a
/// container often lacks. Its lines are in the order of the numbers of the resources; the name takes 25 columns.
fn limits(pid: i32) -> Result<Vec<Limit>, ProbeError> {
    let path = format!("/proc/{pid}/limits");
    let text = std::fs::read_to_string(&path).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => ProbeError::Gone(pid),
        _ => ProbeError::Read { path, source },
    })?;
    let limit = |(resource, line): (usize, &str)| {
        let mut values = line.get(25..)?.split_whitespace().map(|word| word.parse::<u64>().ok());
        Some((resource as u32, values.next()?, values.next()?))
    };
    Ok(text.lines().skip(1).enumerate().filter_map(limit).collect())
}

/// What all threads of a process have run; None where it is gone.
#[must_use]
pub fn processor_time(pid: i32) -> Option<Duration> {
    crate::stat::ran_ns(pid).map(Duration::from_nanos)
}

/// Processors that a process may use.
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
