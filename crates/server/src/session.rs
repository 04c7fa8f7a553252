//! A server whose settings are being changed, from the lock to the last restart.
//!
//! Every trial starts the server afresh: stopped until no process of it is left, its override written, started as it
//! had been started. That is slower than a reload and leaves no doubt about which settings a measurement belongs to. A
//! server that other people are using (`--live`) is reloaded gracefully instead wherever the changed settings allow it,
//! and measured when the last worker of the old generation is gone.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::{ReloadClass, ServerRef, Setting, Settings, Url};
use lastdrop_probe::status::{self, StatusPage};
use lastdrop_probe::{listeners, process};

use crate::adapter::{Adapter, Effective, Placement, discover};
use crate::journal::{JOURNAL_SCHEMA, Journal, Lock, Stage, StateFiles, remove_if_there, write_durably};
use crate::{ServerError, restart};

/// How long a restarted server may take to answer as before.
const HEALTHY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long workers of an old generation may take to finish what they do.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// How long visitors are looked for before a server is touched.
const VISITOR_WATCH: Duration = Duration::from_secs(2);

/// The server answers this URL with this status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub url: Url,
    pub status: u16,
}

/// What `restore` did to a server.
#[derive(Debug, Clone)]
pub struct Restored {
    pub server: String,
    /// False: the killed run had not changed anything yet.
    pub was_changed: bool,
    /// Settings that are not what they were, `name: was X, is Y`.
    pub differences: Vec<String>,
}

/// Where settings that are meant to stay are.
#[derive(Debug, Clone)]
pub struct Kept {
    pub file: PathBuf,
    pub argv: Vec<String>,
    /// The server's own configuration does not know of the file: its next start by other hands would be without it.
    pub needs_argv: bool,
}

pub struct Session {
    adapter: Box<dyn Adapter>,
    files: StateFiles,
    journal: Journal,
    health: Option<Health>,
    original: Effective,
    master: i32,
    /// Settings over its own that the server has now, and the command line it runs with.
    current: Settings,
    current_argv: Vec<String>,
    /// Set once everything is undone or kept.
    closed: bool,
    // Last: let go of after everything else.
    _lock: Lock,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("server", &self.journal.server).finish_non_exhaustive()
    }
}

impl Session {
    /// Takes the lock, makes sure that the server is healthy and nobody else's, and writes the journal. Changes nothing.
    ///
    /// # Errors
    /// When the server is locked, left changed by a killed run, in use by others (unless `live`), or not healthy.
    pub fn open(adapter: Box<dyn Adapter>, url: Option<&Url>, live: bool) -> Result<Session, ServerError> {
        let facts = adapter.facts().clone();
        let files = StateFiles::of(&facts.name)?;
        let lock = Lock::take(&files.lock)?;
        if files.journal.exists() {
            return Err(ServerError::Unrestored);
        }
        let unit = restart::systemd_unit(&facts.birth);
        let family = restart::family(&facts.birth, &[&facts.birth.argv]);
        let masters = restart::masters(&family);
        if masters.len() != 1 {
            return Err(ServerError::NotFound {
                what: format!("{} servers run with the command line '{}'", masters.len(), facts.birth.argv.join(" ")),
                advice: "end the ones that are not meant".into(),
            });
        }
        let placement = adapter.placement(&Settings::new());
        if let (Some(unit), Placement::OwnFile) = (&unit, &placement) {
            return Err(ServerError::Setting(format!(
                "systemd keeps this server ({unit}) and its configuration includes no folder for an override: add a \
                 line such as 'IncludeOptional conf.d/*.conf' to it"
            )));
        }
        // A configuration that was broken since the server started must be found while it still runs.
        adapter.check(&Settings::new(), &files.test)?;
        let original = adapter.effective()?;
        let health = url.map(|url| look_at_health(url, facts.birth.pid)).transpose()?;
        if !live {
            watch_for_visitors(&facts)?;
        }
        let (included_file, included_before) = match &placement {
            Placement::IncludedFile(file) => (Some(file.clone()), fs::read_to_string(file).ok()),
            Placement::OwnFile => (None, None),
        };
        let journal = Journal {
            schema: JOURNAL_SCHEMA.into(),
            server: facts.name.clone(),
            stage: Stage::Armed,
            created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            daemonizes: adapter.daemonizes(),
            reload_signal: adapter.reload_signal() as i32,
            unit,
            changed_argv: match &placement {
                Placement::IncludedFile(_) => facts.birth.argv.clone(),
                Placement::OwnFile => adapter.argv_with(&files.trial),
            },
            included_file,
            included_before,
            own_file: files.trial.clone(),
            settings: original.settings.clone(),
            live,
            restarted: false,
            url: url.cloned(),
            status: health.as_ref().map(|h| h.status),
            path: files.journal.clone(),
            birth: facts.birth.clone(),
        };
        journal.write()?;
        let master = facts.birth.pid;
        let current_argv = journal.birth.argv.clone();
        let current = Settings::new();
        Ok(Session {
            adapter,
            files,
            journal,
            health,
            original,
            master,
            current,
            current_argv,
            closed: false,
            _lock: lock,
        })
    }

    #[must_use]
    pub fn adapter(&self) -> &dyn Adapter {
        self.adapter.as_ref()
    }

    /// What the server's settings were when the session began.
    #[must_use]
    pub fn original(&self) -> &Effective {
        &self.original
    }

    #[must_use]
    pub fn health(&self) -> Option<&Health> {
        self.health.as_ref()
    }

    /// The master process of the server as it runs now.
    #[must_use]
    pub fn master(&self) -> i32 {
        self.master
    }

    /// Worker processes of the server as it runs now.
    #[must_use]
    pub fn workers(&self) -> Vec<i32> {
        self.adapter.workers(self.master)
    }

    /// Are these settings that the server has, with values that they can take?
    ///
    /// # Errors
    /// With the name that is not one, or the range.
    pub fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        for (name, value) in settings {
            let knob = self.adapter.knobs().iter().find(|k| k.name == name).ok_or_else(|| {
                let known: Vec<&str> = self.adapter.knobs().iter().map(|k| k.name).collect();
                ServerError::Setting(format!(
                    "{name} is not a setting that lastdrop changes; it knows {}",
                    known.join(", ")
                ))
            })?;
            knob.check(value).map_err(ServerError::Setting)?;
        }
        Ok(())
    }

    /// Would the server take these settings as they are?
    ///
    /// # Errors
    /// With the reason why not.
    pub fn check(&self, settings: &Settings) -> Result<(), ServerError> {
        self.check_names(settings)?;
        self.adapter.check(settings, &self.files.test)
    }

    /// Starts the server afresh with these settings over its own; with none, as it was.
    ///
    /// # Errors
    /// When it does not take them or does not come back healthy. The session can still be restored.
    pub fn apply(&mut self, settings: &Settings) -> Result<(), ServerError> {
        if self.journal.stage == Stage::Changed {
            // The test shall not see what the last trial left in an included folder.
            put_back_files(&self.journal)?;
        }
        self.check(settings)?;
        self.apply_checked(settings)
    }

    /// Starts the server afresh with directives that lastdrop does not know, `;` or a new line between them. They have to
    /// pass the server's own test.
    ///
    /// # Errors
    /// As [`Session::apply`].
    pub fn apply_directives(&mut self, directives: &str) -> Result<(), ServerError> {
        if directives.trim().is_empty() {
            return self.apply(&Settings::new());
        }
        // One line for the override, whatever directives are in it.
        let text = directives.split(';').map(str::trim).collect::<Vec<_>>().join("\n");
        let lines = &Settings::from([(text, Setting::Text(String::new()))]);
        if self.journal.stage == Stage::Changed {
            put_back_files(&self.journal)?;
        }
        self.adapter.check(lines, &self.files.test)?;
        self.apply_checked(lines)
    }

    fn apply_checked(&mut self, settings: &Settings) -> Result<(), ServerError> {
        if self.journal.stage == Stage::Armed {
            self.journal.stage = Stage::Changed;
            self.journal.write()?;
        }
        let argv = if settings.is_empty() {
            self.journal.birth.argv.clone()
        } else {
            let placement = self.placement();
            let text = self.render(settings, &placement);
            let file = match &placement {
                Placement::IncludedFile(file) => file,
                Placement::OwnFile => &self.files.trial,
            };
            write_override(file, &text)?;
            self.journal.changed_argv.clone()
        };
        self.bring_into_force(settings, argv)
    }

    /// Makes the server take what is on disk now: by a graceful reload for a server in use, where that is enough, by a
    /// fresh start otherwise.
    fn bring_into_force(&mut self, settings: &Settings, argv: Vec<String>) -> Result<(), ServerError> {
        if self.journal.live && argv == self.current_argv && self.reload_is_enough(settings) {
            reload(&self.journal, self.master)?;
        } else {
            if !self.journal.restarted {
                self.journal.restarted = true;
                self.journal.write()?;
            }
            self.master = switch(&self.journal, &argv)?;
        }
        self.current = settings.clone();
        self.current_argv = argv;
        wait_healthy(self.health.as_ref(), self.master)
    }

    /// Do all settings that differ from the present ones take effect with a reload?
    fn reload_is_enough(&self, settings: &Settings) -> bool {
        let differs = |name: &str| settings.get(name) != self.current.get(name);
        let knobs = self.adapter.knobs();
        knobs.iter().filter(|k| differs(k.name)).all(|k| k.needs == ReloadClass::Reload)
    }

    /// The override for these settings, over what an earlier `--keep` left and not over what the last trial left.
    fn render(&self, settings: &Settings, placement: &Placement) -> String {
        let kept = match placement {
            Placement::IncludedFile(_) => self.journal.included_before.clone(),
            Placement::OwnFile => self.adapter.kept_override().and_then(|file| fs::read_to_string(file).ok()),
        };
        self.adapter.render(settings, placement, kept.as_deref())
    }

    fn placement(&self) -> Placement {
        match &self.journal.included_file {
            Some(file) => Placement::IncludedFile(file.clone()),
            None => Placement::OwnFile,
        }
    }

    /// Puts everything back as it was found.
    ///
    /// # Errors
    /// When the server does not come back as it was; the journal stays, so that `lastdrop restore` can try again.
    pub fn restore(&mut self) -> Result<Restored, ServerError> {
        // Whatever comes of it: trying again at once would end the same way.
        self.closed = true;
        self.undo_if_it_starts().map_err(|e| ServerError::NotRestored(Box::new(e)))
    }

    /// A server that runs with other settings is better than one that does not start with its own.
    fn undo_if_it_starts(&self) -> Result<Restored, ServerError> {
        if self.journal.stage == Stage::Changed {
            self.adapter.check(&Settings::new(), &self.files.test)?;
        }
        undo(&self.journal)
    }

    /// Leaves the server running with these settings.
    ///
    /// # Errors
    /// When they cannot be brought into force; the session can still be restored.
    pub fn keep(&mut self, settings: &Settings) -> Result<Kept, ServerError> {
        self.check(settings)?;
        let placement = self.placement();
        let text = self.render(settings, &placement);
        self.journal.stage = Stage::Changed;
        let kept = match &placement {
            Placement::IncludedFile(file) => {
                self.journal.write()?;
                write_override(file, &text)?;
                Kept { file: file.clone(), argv: self.journal.birth.argv.clone(), needs_argv: false }
            }
            Placement::OwnFile => {
                // An earlier kept file is part of the state to which a kill must be able to go back: write another.
                let in_use = self.adapter.kept_override();
                let other = self.files.kept.with_extension("2.conf");
                let file = if in_use.as_ref() == Some(&self.files.kept) { other } else { self.files.kept.clone() };
                let argv = self.adapter.argv_with(&file);
                let changed = std::mem::replace(&mut self.journal.changed_argv, argv.clone());
                let own = self.journal.birth.argv.clone();
                let trial_or_own: [&[String]; 2] = [&own, &changed];
                // From here on the changed server may run on the new file; the one on the trial file has to be gone first.
                restart::stop(&self.journal.birth, &trial_or_own)?;
                self.journal.restarted = true;
                self.journal.write()?;
                write_override(&file, &text)?;
                Kept { file, argv, needs_argv: true }
            }
        };
        self.bring_into_force(settings, kept.argv.clone())?;
        self.journal.remove()?;
        self.closed = true;
        let _ = remove_if_there(&self.files.trial);
        if let Some(old) = self.adapter.kept_override().filter(|old| kept.needs_argv && *old != kept.file) {
            let _ = remove_if_there(&old);
        }
        Ok(kept)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.closed {
            // An error on the way out must not leave a changed server. If this fails too, the journal is there.
            if let Err(e) = self.undo_if_it_starts() {
                eprintln!("lastdrop: {}", ServerError::NotRestored(Box::new(e)));
            }
        }
    }
}

fn write_override(file: &std::path::Path, text: &str) -> Result<(), ServerError> {
    write_durably(file, text.as_bytes()).map_err(ServerError::io(format!("cannot write {}", file.display())))
}

/// Takes our files away, or brings back what stood in their place.
fn put_back_files(journal: &Journal) -> Result<(), ServerError> {
    if let Some(file) = &journal.included_file {
        let result = match &journal.included_before {
            Some(text) => write_durably(file, text.as_bytes()),
            None => {
                let mut temporary = file.clone().into_os_string();
                temporary.push(".new");
                remove_if_there(std::path::Path::new(&temporary)).and_then(|()| remove_if_there(file))
            }
        };
        result.map_err(ServerError::io(format!("cannot put back {}", file.display())))?;
    }
    Ok(())
}

/// Ends the server and starts it with a command line. Returns the pid of the new master.
fn switch(journal: &Journal, argv: &[String]) -> Result<i32, ServerError> {
    if let Some(unit) = &journal.unit {
        restart::restart_unit(unit)?;
        let family = restart::family(&journal.birth, &[argv]);
        return restart::masters(&family).first().map(|p| p.pid).ok_or_else(|| ServerError::NotFound {
            what: format!("systemd restarted {unit}, but no server runs"),
            advice: format!("look at: journalctl -u {unit}"),
        });
    }
    restart::stop(&journal.birth, &[&journal.birth.argv, &journal.changed_argv])?;
    restart::start(&journal.birth, argv, journal.daemonizes)
}

/// Makes the server read its configuration again, and waits until the workers of the old generation are gone.
fn reload(journal: &Journal, master: i32) -> Result<(), ServerError> {
    let old: Vec<(i32, u64)> = process::children(master).iter().map(|p| (p.pid, p.start_ticks)).collect();
    let signal = nix::sys::signal::Signal::try_from(journal.reload_signal)
        .map_err(|e| ServerError::Setting(format!("the journal's reload signal: {e}")))?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(master), signal)
        .map_err(|e| ServerError::io(format!("cannot reload process {master}"))(e.into()))?;
    let deadline = Instant::now() + RELOAD_TIMEOUT;
    while old.iter().any(|(pid, start)| process::is_alive(*pid, *start)) {
        if Instant::now() > deadline {
            return Err(ServerError::Timeout {
                what: "workers of the old generation did not leave".into(),
                limit: RELOAD_TIMEOUT,
                advice: "they serve long requests or slow clients; look at the scoreboard for G".into(),
            });
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Undoes what a journal describes. Doing it twice does no harm.
fn undo(journal: &Journal) -> Result<Restored, ServerError> {
    let was_changed = journal.stage == Stage::Changed;
    let mut differences = Vec::new();
    if was_changed {
        put_back_files(journal)?;
        let (pid, start) = (journal.birth.pid, journal.birth.start_ticks);
        let master = if journal.live && !journal.restarted && process::is_alive(pid, start) {
            reload(journal, pid)?;
            pid
        } else {
            switch(journal, &journal.birth.argv)?
        };
        let health = match (&journal.url, journal.status) {
            (Some(url), Some(status)) => Some(Health { url: url.clone(), status }),
            _ => None,
        };
        wait_healthy(health.as_ref(), master)?;
        differences = differences_from(journal);
    }
    let _ = remove_if_there(&journal.own_file);
    journal.remove()?;
    Ok(Restored { server: journal.server.clone(), was_changed, differences })
}

/// Compares the settings that the server has with those that it had.
fn differences_from(journal: &Journal) -> Vec<String> {
    let Ok(server) = journal.server.parse::<ServerRef>() else { return Vec::new() };
    match discover(&server).and_then(|a| a.effective()) {
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

/// Puts back everything that killed runs left changed.
///
/// # Errors
/// When the state folder cannot be read. What happened to each server is in the list.
pub fn restore_all(dry_run: bool) -> Result<Vec<Result<Restored, ServerError>>, ServerError> {
    let mut results = Vec::new();
    for path in Journal::all()? {
        let restored = Journal::read(&path).and_then(|journal| {
            let _lock = Lock::take(&StateFiles::of(&journal.server)?.lock)?;
            if dry_run {
                let was_changed = journal.stage == Stage::Changed;
                return Ok(Restored { server: journal.server, was_changed, differences: Vec::new() });
            }
            if journal.stage == Stage::Changed {
                // Where the server runs, its configuration is tested before it is stopped.
                if let Ok(adapter) = journal.server.parse().map_err(ServerError::Setting).and_then(|s| discover(&s)) {
                    adapter.check(&Settings::new(), &StateFiles::of(&journal.server)?.test)?;
                }
            }
            undo(&journal)
        });
        results.push(restored);
    }
    Ok(results)
}

fn look_at_health(url: &Url, pid: i32) -> Result<Health, ServerError> {
    let answer = status::get(url, ASK_TIMEOUT)
        .map_err(|e| ServerError::Unhealthy(format!("the server (process {pid}) is not healthy: {e}")))?;
    Ok(Health { url: url.clone(), status: answer.status })
}

/// Waits until the server answers as it did at the start.
fn wait_healthy(health: Option<&Health>, master: i32) -> Result<(), ServerError> {
    let Some(health) = health else { return Ok(()) };
    let deadline = Instant::now() + HEALTHY_TIMEOUT;
    loop {
        let seen = match status::get(&health.url, ASK_TIMEOUT) {
            Ok(answer) if answer.status == health.status => return Ok(()),
            Ok(answer) => format!("it answers {} instead of {}", answer.status, health.status),
            Err(e) => e.to_string(),
        };
        if Instant::now() > deadline {
            return Err(ServerError::Unhealthy(format!(
                "the server (process {master}) did not become healthy within {} s: {seen}",
                HEALTHY_TIMEOUT.as_secs()
            )));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Makes sure that nobody else uses the server: no open connections and no new ones for a moment.
fn watch_for_visitors(facts: &crate::Facts) -> Result<(), ServerError> {
    let ports: Vec<u16> = facts.listeners.iter().map(std::net::SocketAddr::port).collect();
    let accesses = || {
        let page = status::get(facts.status_url.as_ref()?, ASK_TIMEOUT).ok()?;
        StatusPage::parse(&String::from_utf8_lossy(&page.body))?.total_accesses
    };
    let mut others = 0;
    // Apache counts a request some time after its answer, on a busy machine after our next look: requests that no
    // connection explains must be seen twice.
    for _ in 0..2 {
        let before = accesses();
        // The connections of our own looks take a moment to end.
        thread::sleep(Duration::from_millis(200));
        watch_connections(facts, &ports)?;
        let after = accesses();
        others = match (before, after) {
            // Apache counts the first of our two looks; lastdrop's target counts neither.
            (Some(before), Some(after)) => (after - before.min(after)).saturating_sub(1),
            _ => 0,
        };
        if others == 0 {
            return Ok(());
        }
    }
    Err(ServerError::Busy { evidence: format!("{others} requests in {} s", VISITOR_WATCH.as_secs()) })
}

/// An error when somebody connects within the next moment, or is connected at its end.
fn watch_connections(facts: &crate::Facts, ports: &[u16]) -> Result<(), ServerError> {
    let known = listeners::visitors(facts.birth.pid, ports)?;
    let mut strangers = HashSet::new();
    let deadline = Instant::now() + VISITOR_WATCH;
    while Instant::now() < deadline {
        strangers.extend(listeners::visitors(facts.birth.pid, ports)?.difference(&known).copied());
        thread::sleep(Duration::from_millis(50));
    }
    if let Some(one) = strangers.iter().next() {
        return Err(ServerError::Busy {
            evidence: format!("{} new connections in {} s, one from {one}", strangers.len(), VISITOR_WATCH.as_secs()),
        });
    }
    let established = listeners::established(facts.birth.pid, ports)?;
    if let Some(one) = established.iter().next() {
        return Err(ServerError::Busy { evidence: format!("{} open connections, one from {one}", established.len()) });
    }
    Ok(())
}
