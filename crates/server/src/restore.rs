//! Restores a server from its journal, in the same process or long after lastdrop was killed.
//!
//! It handles all that may have happened in between. The server may run as lastdrop left it or may be down. Someone
//! else may have restarted it with another command line. Another server may have its address.

use std::cmp::Reverse;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_files::{input, step};
use lastdrop_probe::listeners::{self, Endpoint};
use lastdrop_probe::process::{self, Birth, ProcessInfo};
use serde::{Deserialize, Serialize};

use crate::adapter::Adapter;
use crate::adapters::{find_adapter, test_start};
use crate::change::Change;
use crate::complaints::Complaints;
use crate::health::{Health, wait_healthy};
use crate::journal::{Journal, Lock, Stage, StateFiles, lock_all, tidy_all};
use crate::private::{Readers, keep_to_ourselves, remove_if_there, unfinished, write_durably_for};
use crate::restart::Launch;
use crate::streams::Streams;
use crate::undo_step::{UndoStep, steps_of};
use crate::{
    ServerError, ServerRef, edited, execution, haproxy, host, kept_cache, leftover_folders, nginx, page_cache, restart,
    systemd,
};

/// How long workers of an old generation may take to finish their work.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum age in seconds: at a signal, a younger child still does what its master would. A younger uWSGI worker
/// ignores its termination signal.
const GROWN_S: f64 = 1.0;
/// After this long, a master without children, or without any old enough, counts as done with an earlier reload. Ruby
/// catches signals long before Puma handles them, and ends by them.
const SETTLED: Duration = Duration::from_secs(5);

/// The result of restoring a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreReport {
    pub server: String,
    /// False if the killed run had not changed anything yet.
    pub was_changed: bool,
    /// The command line with which someone else has started it in the meantime; it runs on with that.
    pub started_by_others: Option<String>,
    /// Settings that differ from the former ones, `name: was X, is Y`.
    pub differences: Vec<String>,
    /// The steps that a dry run would take.
    #[serde(default)]
    pub steps: Vec<UndoStep>,
    /// A cache that was kept for all visitors was taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub had_cache: bool,
}

impl RestoreReport {
    /// The report about a server on which nothing was changed.
    #[must_use]
    pub fn untouched(server: &str) -> RestoreReport {
        RestoreReport {
            server: server.into(),
            was_changed: false,
            started_by_others: None,
            differences: Vec::new(),
            steps: Vec::new(),
            had_cache: false,
        }
    }

    /// Notes about the restore for an experiment's report.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.differences.iter().map(|d| format!("after putting it back: {d}"))
    }
}

/// Removes lastdrop's files or restores their former content. Returns true if a file of lastdrop's was there.
pub fn put_back_files(journal: &Journal) -> Result<bool, ServerError> {
    let mut edited = execution::write_for(&journal.birth, || edited::put_back(&journal.edited))?;
    for file in &journal.drop_ins {
        edited |= file.put_back()?;
    }
    let Some(file) = &journal.included_file else { return Ok(edited) };
    execution::write_for(&journal.birth, || {
        let now = input::read_regular_text(file).ok();
        let result = match &journal.included_before {
            Some(text) => write_durably_for(Readers::AsBefore { or_like: None }, file, text.as_bytes()),
            None => remove_if_there(&unfinished(file)).and_then(|()| remove_if_there(file)),
        };
        result.map_err(ServerError::io(format!("cannot put back {}", file.display())))?;
        Ok(edited | (now != journal.included_before))
    })
}

/// Stops the server and starts it with `launch`. Returns the pid of the new master.
pub fn switch(journal: &Journal, launch: &Launch) -> Result<i32, ServerError> {
    if let Some(unit) = &journal.unit {
        return systemd::restart(journal, unit, launch);
    }
    restart::check_known(&journal.birth, launch)?;
    let family = restart::family(&journal.birth, &journal.argvs());
    let streams = journal.streams.or_of(restart::masters(&family).first().map(|master| master.pid));
    restart::stop(&journal.birth, &journal.argvs(), journal.stop_signal()?)?;
    restart::start(&journal.birth, launch, &streams, journal.daemonizes)
}

/// Makes the server read its configuration again and waits until workers of the old generation are gone. If a reload
/// should replace every serving process but has not, the server did not use its configuration. Returns the master.
pub fn reload(journal: &Journal, master: i32) -> Result<i32, ServerError> {
    // A master may have children that are other programs.
    let is_worker = |p: &ProcessInfo| {
        !journal.survives || p.exe.as_ref().is_none_or(|exe| restart::same_program(exe, &journal.birth.exe))
    };
    let children = process::children(master);
    let old: Vec<(i32, u64)> = children.iter().filter(|p| is_worker(p)).map(|p| (p.pid, p.start_ticks)).collect();
    let log = journal.error_log.as_deref().map(|log| Complaints::from_now(log, &journal.birth));
    let signal = nix::sys::signal::Signal::try_from(journal.reload_signal)
        .map_err(|e| ServerError::Setting(format!("the journal's reload signal: {e}")))?;
    let executing = journal.executes_itself.then(|| ReexecWatch::begin(master, journal.reload_signal)).transpose()?;
    step();
    let by_unit = journal.unit.as_deref().map(systemd::reload).transpose()?.unwrap_or(false);
    if !by_unit {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(master), signal)
            .map_err(|e| ServerError::io(format!("cannot reload process {master}"))(e.into()))?;
    }
    let master = executing.map_or(Ok(master), |executing| executing.wait(&journal.birth, &journal.argvs()))?;
    let deadline = Instant::now() + RELOAD_TIMEOUT;
    let is_new = |p: ProcessInfo| !old.iter().any(|(known, _)| *known == p.pid);
    let has_new = || process::children(master).into_iter().filter(|p| is_worker(p)).any(is_new);
    // Such a master has started its new workers before it is ready again.
    if journal.survives && !has_new() {
        let said = log.as_ref().and_then(|log| haproxy::refusal(&log.text()?, master));
        let output = said.unwrap_or_else(|| "no new worker came; look at its log".into());
        return Err(ServerError::NotReloaded { output });
    }
    loop {
        let replaced = !journal.reloads || journal.executes_itself || has_new();
        if replaced && !old.iter().any(|(pid, start)| process::is_alive(*pid, *start)) {
            return Ok(master);
        }
        if let Some(output) = log.as_ref().and_then(|log| nginx::refusal(&log.text()?, master)) {
            return Err(ServerError::NotReloaded { output });
        }
        if Instant::now() > deadline && !replaced {
            return Err(ServerError::NotReloaded { output: "no new worker came; look at its error log".into() });
        }
        if Instant::now() > deadline {
            return Err(ServerError::Timeout {
                what: "workers of the old generation did not leave".into(),
                limit: RELOAD_TIMEOUT,
                advice: match journal.survives {
                    true => "they serve long requests or slow clients; hard-stop-after in global bounds that".into(),
                    false => "they serve long requests or slow clients".into(),
                },
            });
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Watches a master while it executes itself.
struct ReexecWatch {
    master: i32,
    start_ticks: u64,
    signal: i32,
    before: Option<Vec<u8>>,
}

impl ReexecWatch {
    /// Waits until it has finished an earlier reload: a signal that comes too early is lost on its workers, or ends the
    /// master.
    fn begin(master: i32, signal: i32) -> Result<ReexecWatch, ServerError> {
        let gone = || ServerError::Probe(lastdrop_probe::ProbeError::Gone(master));
        let start_ticks = process::look(master).ok_or_else(gone)?.start_ticks;
        let deadline = Instant::now() + RELOAD_TIMEOUT;
        let mut catching: Option<Instant> = None;
        while process::is_alive(master, start_ticks) {
            catching = process::catches(master, signal).then(|| catching.unwrap_or_else(Instant::now));
            let youngest_s = process::children(master).iter().map(ProcessInfo::age_s).reduce(f64::min);
            let is_grown = youngest_s.is_some_and(|age_s| age_s >= GROWN_S);
            if catching.is_some_and(|since| is_grown || since.elapsed() >= SETTLED) {
                break;
            }
            late(deadline)?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(ReexecWatch { master, start_ticks, signal, before: process::execution(master) })
    }

    /// Waits until the master has read its configuration: it catches signals again and has workers, unless it starts
    /// them on demand. Returns the master, which is a new process if it has detached itself again.
    fn wait(&self, birth: &Birth, argvs: &[&[String]]) -> Result<i32, ServerError> {
        const NO_WORKERS: Duration = Duration::from_secs(1);
        // While it detaches itself it is between two processes, for up to half a second on a busy machine.
        const MOST_LOOKS_WITHOUT: u32 = 25;
        let deadline = Instant::now() + RELOAD_TIMEOUT;
        let (mut up, mut looks_without): (Option<Instant>, u32) = (None, 0);
        loop {
            let same = process::is_alive(self.master, self.start_ticks);
            let family = if same { Vec::new() } else { restart::family(birth, argvs) };
            let master = if same { Some(self.master) } else { restart::masters(&family).first().map(|p| p.pid) };
            looks_without = if master.is_some() { 0 } else { looks_without + 1 };
            if looks_without > MOST_LOOKS_WITHOUT {
                let command = format!("a reload of process {}", self.master);
                return Err(ServerError::Ended { command, status: "it did not take its configuration".into() });
            }
            // In this order: it may execute itself between two checks, and what it caught before proves nothing.
            let is_up =
                |pid: &i32| (!same || process::execution(*pid) != self.before) && process::catches(*pid, self.signal);
            if let Some(pid) = master.filter(is_up) {
                let since = *up.get_or_insert_with(Instant::now);
                if since.elapsed() > NO_WORKERS || !process::child_pids(pid).is_empty() {
                    return Ok(pid);
                }
            }
            late(deadline)?;
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn late(deadline: Instant) -> Result<(), ServerError> {
    if Instant::now() < deadline {
        return Ok(());
    }
    Err(ServerError::Timeout {
        what: "the server did not read its configuration again".into(),
        limit: RELOAD_TIMEOUT,
        advice: "look at its error log; it may still finish long requests (process_control_timeout)".into(),
    })
}

/// What runs in the place of a journal's server.
pub enum ServerPresence {
    /// The server, with its own command line or with lastdrop's: its master.
    Known(i32),
    /// No process.
    Nobody,
    /// The same server, started by someone else in another way.
    Otherwise(Box<dyn Adapter>),
}

pub fn present(journal: &Journal) -> Result<ServerPresence, ServerError> {
    // A master that executes itself has no title for a moment.
    if journal.executes_itself && process::is_alive(journal.birth.pid, journal.birth.start_ticks) {
        return Ok(ServerPresence::Known(journal.birth.pid));
    }
    let family = restart::family(&journal.birth, &journal.argvs());
    if let Some(master) = restart::masters(&family).first() {
        return Ok(ServerPresence::Known(master.pid));
    }
    match find_again(journal)? {
        Some(adapter) if journal.executes_itself => Ok(ServerPresence::Known(adapter.facts().birth.pid)),
        Some(adapter) => Ok(ServerPresence::Otherwise(adapter)),
        None => {
            // systemd restarts a unit in any case.
            let taken = occupant(journal).filter(|_| journal.unit.is_none());
            taken.map_or(Ok(ServerPresence::Nobody), |evidence| Err(ServerError::Occupied { evidence }))
        }
    }
}

/// Finds the server of a journal by its name; `None` if it does not run. A program of its kind that cannot be asked may
/// have been started by anyone. It is not this server if nothing listens on the server's addresses.
fn find_again(journal: &Journal) -> Result<Option<Box<dyn Adapter>>, ServerError> {
    let server: ServerRef = journal.server.parse().map_err(ServerError::Setting)?;
    let is_down = || !journal.listeners.is_empty() && occupant(journal).is_none();
    match find_adapter(&server) {
        Ok(adapter) => Ok(Some(adapter)),
        Err(ServerError::NotFound { .. }) => Ok(None),
        Err(_) if is_down() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Another program that listens on one of the server's addresses.
fn occupant(journal: &Journal) -> Option<String> {
    journal.listeners.iter().find_map(|address| {
        let info = process::look(listeners::owner(&Endpoint::Tcp(*address))?)?;
        Some(format!("process {} ({}) listens at {address}", info.pid, info.argv.join(" ")))
    })
}

/// A server whose files and processes are restored. Two steps remain: check that it answers, and remove its journal.
#[derive(Debug)]
pub struct RestoredServer {
    restored: RestoreReport,
    /// The master that must be healthy, if it was touched.
    master: Option<i32>,
}

impl RestoredServer {
    /// Nothing is restored yet.
    fn none(journal: &Journal) -> RestoredServer {
        let restored =
            RestoreReport { was_changed: journal.stage == Stage::Changed, ..RestoreReport::untouched(&journal.server) };
        RestoredServer { restored, master: None }
    }

    /// Everything is restored, and no health check is needed.
    #[must_use]
    pub fn whole(restored: RestoreReport) -> RestoredServer {
        RestoredServer { restored, master: None }
    }

    #[must_use]
    pub fn into_restored(self) -> RestoreReport {
        self.restored
    }
}

/// Undoes what a journal describes, except [`verify_health`]: servers that need each other to answer are all restored
/// before any health check. Doing it twice does no harm.
pub fn restore_files(journal: &Journal) -> Result<RestoredServer, ServerError> {
    let half = restore_processes(journal)?;
    // Only now does no process of the server know the cache.
    page_cache::remove_all(&journal.cache_folders, &journal.birth)?;
    Ok(half)
}

/// Restores the server's files, and the processes that have read them.
fn restore_processes(journal: &Journal) -> Result<RestoredServer, ServerError> {
    let mut half = RestoredServer::none(journal);
    if !half.restored.was_changed {
        return Ok(half);
    }
    let present = match present(journal) {
        // Workers whose master was killed, or another program: the server's files are restored anyway.
        Err(occupied @ ServerError::Occupied { .. }) => return put_back_files(journal).and(Err(occupied)),
        present => present?,
    };
    let ours_was_there = put_back_files(journal)?;
    let (pid, start) = (journal.birth.pid, journal.birth.start_ticks);
    half.master = match present {
        // Whoever started it: a reload removes the settings that it has read from lastdrop's files.
        ServerPresence::Known(master) if journal.reloads && !journal.restarted => Some(reload(journal, master)?),
        ServerPresence::Known(_) if journal.live && !journal.restarted && process::is_alive(pid, start) => {
            Some(reload(journal, pid)?)
        }
        ServerPresence::Known(_) | ServerPresence::Nobody => Some(switch(journal, &Launch::as_found(&journal.birth))?),
        ServerPresence::Otherwise(adapter) if journal.reloads => {
            let birth = &adapter.facts().birth;
            half.restored.started_by_others = Some(birth.argv.join(" "));
            ours_was_there.then(|| reload(journal, birth.pid)).transpose()?
        }
        ServerPresence::Otherwise(adapter) => {
            let birth = &adapter.facts().birth;
            let on_our_file = birth.argv.iter().any(|word| Path::new(word) == journal.own_file);
            let launch = Launch::as_found(if on_our_file { &journal.birth } else { birth });
            half.restored.started_by_others = (!on_our_file).then(|| birth.argv.join(" "));
            // Only a server that has read the override needs another start.
            (on_our_file || ours_was_there).then(|| start_again(journal, adapter.as_ref(), &launch)).transpose()?
        }
    };
    Ok(half)
}

/// Waits until a restored server answers as before, and removes its journal.
pub fn verify_health(journal: &Journal, half: RestoredServer) -> Result<RestoreReport, ServerError> {
    let RestoredServer { mut restored, master } = half;
    let health = match (&journal.url, journal.status) {
        (Some(url), Some(status)) => Some(Health { url: url.clone(), status }),
        _ => None,
    };
    if let Some(master) = master {
        wait_healthy(health.as_ref(), master)?;
    }
    if restored.was_changed {
        restored.differences = differences_from(journal);
    }
    let _ = remove_if_there(&journal.own_file);
    if let Some(file) = &journal.test_file {
        let _ = remove_if_there(file);
    }
    journal.remove()?;
    if let Some(folder) = journal.path.parent() {
        // No server has to reach that file any more.
        let _ = keep_to_ourselves(folder);
    }
    Ok(restored)
}

/// Restarts a server that runs with someone else's command line.
fn start_again(journal: &Journal, adapter: &dyn Adapter, launch: &Launch) -> Result<i32, ServerError> {
    let birth: &Birth = &adapter.facts().birth;
    if journal.unit.is_some() && systemd::unit_of(birth) == journal.unit {
        return switch(journal, launch);
    }
    restart::check_known(birth, launch)?;
    let streams = Streams::of(birth);
    restart::stop(birth, &[&birth.argv], journal.stop_signal()?)?;
    restart::start(birth, launch, &streams, adapter.daemonizes())
}

/// Compares the server's settings with those in the journal.
fn differences_from(journal: &Journal) -> Vec<String> {
    let Ok(server) = journal.server.parse::<ServerRef>() else { return Vec::new() };
    match find_adapter(&server).and_then(|a| a.effective()) {
        Ok(now) => journal
            .settings
            .iter()
            .filter_map(|(name, was)| {
                let is = now.settings.get(name);
                (is != Some(was))
                    .then(|| format!("{name}: was {was}, is {}", is.map_or("unknown".into(), ToString::to_string)))
            })
            .collect(),
        Err(e) => vec![format!("its settings could not be read again: {e}")],
    }
}

/// Restores everything that killed runs left changed, and takes caches away that were kept for all visitors. Servers that were changed together are restored in reverse order,
/// and each one even if others fail.
///
/// # Errors
/// If the state folder cannot be read. The list contains each server's result.
pub fn restore_all(dry_run: bool) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
    if !dry_run {
        leftover_folders::remove();
    }
    let mut results = restore_journals(dry_run, true, |_| true)?;
    // A killed run began on files that had the lines of a kept cache.
    results.extend(kept_cache::restore_all(dry_run)?);
    Ok(results)
}

/// The same for some servers, by their names in [`crate::Stack::members`].
///
/// # Errors
/// If the state folder cannot be read.
pub fn restore_of(names: &[String]) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
    let is_host = |name: &String| name.parse::<ServerRef>().is_ok_and(|server| server.kind.is_host());
    restore_journals(false, names.iter().any(is_host), |server| names.iter().any(|name| name == server))
}

/// The same for servers that are selected by `is_meant`, given their names in journals.
///
/// # Errors
/// If the state folder cannot be read.
pub fn restore_like(
    dry_run: bool,
    is_meant: impl Fn(&ServerRef) -> bool,
) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
    let host = "host".parse::<ServerRef>().is_ok_and(|host| is_meant(&host));
    restore_journals(dry_run, host, |server| server.parse().is_ok_and(|server| is_meant(&server)))
}

fn restore_journals(
    dry_run: bool,
    host: bool,
    is_meant: impl Fn(&str) -> bool,
) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
    let (hosts, servers): (Vec<_>, Vec<_>) = Journal::all()?.into_iter().partition(|path| host::is_of_a_host(path));
    // The host is restored first, because a restarted server's listener keeps the limits of that moment.
    let mut results: Vec<_> = hosts.iter().filter(|_| host).map(|path| host::restore(path, dry_run)).collect();
    let mut together: Vec<Vec<Journal>> = Vec::new();
    for path in servers {
        match Journal::read(&path) {
            Ok(journal) if !is_meant(&journal.server) => {}
            Ok(journal) => {
                let stack = |j: &Journal| j.stack.as_ref().map(|s| s.stack.clone());
                let own = stack(&journal);
                match together.iter_mut().find(|group| own.is_some() && stack(&group[0]) == own) {
                    Some(group) => group.push(journal),
                    None => together.push(vec![journal]),
                }
            }
            Err(e) => results.push(Err(e)),
        }
    }
    for mut journals in together {
        journals.sort_by_key(|j| Reverse(j.stack.as_ref().map_or(0, |s| s.place)));
        results.extend(restore(&journals, dry_run));
    }
    if !dry_run {
        tidy_all()?;
    }
    Ok(results)
}

/// Restores servers that were changed together, in this order.
fn restore(journals: &[Journal], dry_run: bool) -> Vec<Result<RestoreReport, ServerError>> {
    let mut locks = lock_all(journals.iter().map(|j| j.server.as_str()));
    let begun: Vec<Result<(Lock, RestoredServer), ServerError>> = journals
        .iter()
        .map(|journal| {
            let lock = locks.remove(&journal.server).unwrap_or(Err(ServerError::Unrestored))?;
            let half = match dry_run {
                true => RestoredServer::whole(RestoreReport {
                    steps: steps_of(journal),
                    ..RestoredServer::none(journal).restored
                }),
                false => check_and_put_back(journal)?,
            };
            Ok((lock, half))
        })
        .collect();
    let end = |journal: &Journal, begun: Result<(Lock, RestoredServer), ServerError>| {
        let (_lock, half) = begun?;
        if dry_run { Ok(half.restored) } else { verify_health(journal, half) }
    };
    let told = |journal: &Journal, e: ServerError| match &journal.stack {
        Some(_) => e.of(&journal.server),
        None => e,
    };
    journals.iter().zip(begun).map(|(journal, begun)| end(journal, begun).map_err(|e| told(journal, e))).collect()
}

fn check_and_put_back(journal: &Journal) -> Result<RestoredServer, ServerError> {
    if journal.stage == Stage::Changed && journal.has_to_pass() {
        check_start(journal)?;
    }
    restore_files(journal)
}

/// Before a running server is stopped, tests the configuration on which it will be started. The override on which it
/// now runs may be lost and says nothing about that.
fn check_start(journal: &Journal) -> Result<(), ServerError> {
    let server: ServerRef = journal.server.parse().map_err(ServerError::Setting)?;
    let runs_as_known = !restart::family(&journal.birth, &journal.argvs()).is_empty();
    if runs_as_known && let Some(tested) = test_start(&server, &journal.birth) {
        return tested;
    }
    match find_again(journal)? {
        Some(adapter) => adapter.check(&Change::default(), &StateFiles::of(&journal.server)?.test),
        None => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_master_is_not_told_again_before_its_workers_have_their_own_way_with_signals() {
        let mut command = Command::new("sh");
        // Not SIGHUP: the process that started the tests may ignore it, and then no shell can catch it.
        command.args(["-c", "trap : USR1; sleep 60 & wait; wait"]).stdin(Stdio::null());
        let mut master = command.spawn().expect("sh runs");
        let pid = master.id() as i32;
        let told = ReexecWatch::begin(pid, libc::SIGUSR1);
        let ages: Vec<f64> = process::children(pid).iter().map(ProcessInfo::age_s).collect();
        for child in process::child_pids(pid) {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), nix::sys::signal::Signal::SIGKILL);
        }
        let _ = master.kill();
        let _ = master.wait();
        assert!(told.is_ok() && ages.len() == 1 && ages[0] >= GROWN_S, "{ages:?}");
    }
}
