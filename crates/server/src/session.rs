//! A session: a server whose settings are being changed, from the lock to the last restart.
//!
//! Every trial restarts the server: it is stopped until no process is left, the override is written, and it is started
//! as it had been started. That is slower than a reload, but leaves no doubt about which settings a measurement belongs
//! to.
//!
//! Two kinds of servers are reloaded instead. A server in use by others (`--live`) is reloaded gracefully wherever the
//! changed settings allow it, and measured when the last worker of the old generation is gone. The other kind are
//! servers for which a reload replaces every serving process. nginx's master serves no requests; when its old workers
//! are gone, only its listening sockets and shared zones are older than the settings. Stopping it would prove nothing
//! more.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use lastdrop_files::input;
use lastdrop_model::{Knob, Printable, ReloadClass, Settings, Url};
use lastdrop_probe::namespace::wait_for_empty_queues;
use lastdrop_probe::process::Birth;
use lastdrop_probe::{memory, process};

use crate::abilities::check_changes;
use crate::adapter::{Adapter, EffectiveSettings, Placement};
use crate::change::Change;
use crate::health::{Health, look_at_health, wait_healthy};
use crate::journal::{JOURNAL_SCHEMA, Journal, Lock, StackPlace, Stage, StateFiles};
use crate::other_traffic::{OtherTrafficPolicy, TrafficDetector};
use crate::page_cache::{CacheOffer, PageCache};
use crate::persisted_in::PersistedIn;
use crate::private::{Readers, remove_if_there, write_durably_for};
use crate::restart::Launch;
use crate::restore::{RestoreReport, RestoredServer, put_back_files, reload, restore_files, switch, verify_health};
use crate::streams::Streams;
use crate::systemd::DropIn;
use crate::{ServerError, edited, execution, kept_cache, launch, page_cache, restart, systemd};

mod ours;

pub struct Session {
    adapter: Box<dyn Adapter>,
    files: StateFiles,
    journal: Journal,
    health: Option<Health>,
    original: EffectiveSettings,
    master: i32,
    /// The change in force on top of the server's own settings, and how the server was started.
    current: Change,
    launch: Launch,
    /// True if the next change needs a restart, whatever it is.
    anew: bool,
    /// True once everything is undone or kept.
    closed: bool,
    // Last field: released after everything else.
    _lock: Lock,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("server", &self.journal.server).finish_non_exhaustive()
    }
}

/// Checks that these settings are knobs and that they can take these values.
pub(crate) fn check_names(knobs: &[&Knob], settings: &Settings) -> Result<(), ServerError> {
    for (name, value) in settings {
        let knob = knobs.iter().find(|k| k.name == name).ok_or_else(|| {
            let known: Vec<&str> = knobs.iter().map(|k| k.name).collect();
            ServerError::Setting(format!(
                "{name} is not a setting that lastdrop changes; it knows {}",
                known.join(", ")
            ))
        })?;
        knob.check(value).map_err(ServerError::Setting)?;
    }
    Ok(())
}

/// Refuses a server of which several run with the same command line.
fn check_only_one(birth: &Birth) -> Result<(), ServerError> {
    let family = restart::family(birth, &[&birth.argv]);
    let masters = restart::masters(&family);
    if masters.len() == 1 {
        return Ok(());
    }
    Err(ServerError::NotFound {
        what: format!("{} servers run with the command line '{}'", masters.len(), birth.argv.join(" ")),
        advice: "end the ones that are not meant".into(),
    })
}

/// Drop-ins next to the unit, if they change how it starts the server.
fn drop_ins(unit: Option<&str>, placement: &Placement) -> Result<Vec<DropIn>, ServerError> {
    match (unit, placement) {
        (Some(unit), Placement::OwnFile | Placement::StartedWith) => {
            Ok(vec![DropIn::of_trial(unit)?, DropIn::of_kept(unit)?])
        }
        _ => Ok(Vec::new()),
    }
}

impl Session {
    /// Takes the lock, checks that the server is healthy and not used by others, and writes the journal. Changes
    /// nothing.
    ///
    /// # Errors
    /// If the server is locked, left changed by a killed run, in use by others (unless that is allowed), or not
    /// healthy.
    pub fn open(
        adapter: Box<dyn Adapter>,
        url: Option<&Url>,
        others: &OtherTrafficPolicy,
    ) -> Result<Session, ServerError> {
        let lock = Lock::take(&StateFiles::of(&adapter.facts().name)?.lock)?;
        Session::open_in(None, &[], adapter, lock, url, others)
    }

    /// The same for a server whose lock is already taken. `stack` is its position among the servers changed with it,
    /// and `beside` are their masters.
    pub(crate) fn open_in(
        stack: Option<StackPlace>,
        beside: &[i32],
        adapter: Box<dyn Adapter>,
        lock: Lock,
        url: Option<&Url>,
        others: &OtherTrafficPolicy,
    ) -> Result<Session, ServerError> {
        check_changes()?;
        if let Some(contained) = adapter.contained() {
            return Err(contained.tell(&Change::default()));
        }
        let facts = adapter.facts().clone();
        let files = StateFiles::of(&facts.name)?;
        files.tidy();
        if files.journal.exists() {
            // A journal that cannot be read returns an error with advice.
            Journal::read(&files.journal)?;
            return Err(ServerError::Unrestored);
        }
        let unit = systemd::unit_of(&facts.birth);
        check_only_one(&facts.birth)?;
        // Checked before anything is changed: a server that may not be started from here is not stopped.
        execution::check_start(&facts.birth)?;
        let placement = adapter.placement();
        let drop_ins = drop_ins(unit.as_deref(), &placement)?;
        // A configuration that was broken after the server started must be found while it still runs.
        adapter.check(&Change::default(), &files.test)?;
        let lookout = (!others.live).then(|| TrafficDetector::start(adapter.as_ref(), others, beside)).transpose()?;
        let original = adapter.effective()?;
        let health = url.map(|url| look_at_health(url, facts.birth.pid)).transpose()?;
        if let Some(mut lookout) = lookout {
            // The settings of the running server were read from its status page.
            let asked = adapter.counts_looks() && facts.status_url.is_some();
            lookout.look_for_others(u64::from(asked) + u64::from(health.is_some()))?;
        }
        let (included_file, included_before) = match &placement {
            Placement::IncludedFile(file) => (Some(file.clone()), input::read_regular_text(file).ok()),
            Placement::OwnFile | Placement::Edited | Placement::StartedWith => (None, None),
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
                Placement::IncludedFile(_) | Placement::Edited | Placement::StartedWith => facts.birth.argv.clone(),
                Placement::OwnFile => adapter.argv_with(&files.trial),
            },
            tried_argvs: Vec::new(),
            stop_signal: Some(adapter.stop_signal() as i32),
            included_file,
            included_before,
            edited: Vec::new(),
            drop_ins,
            test_file: adapter.test_file(),
            cache_folders: Vec::new(),
            reloads: adapter.is_fresh_after_reload(),
            executes_itself: adapter.executes_itself(),
            launch_is_known: false,
            survives: adapter.survives_a_bad_reload(),
            error_log: adapter.error_log(),
            own_file: files.trial.clone(),
            listeners: facts.listeners.clone(),
            settings: original.settings.clone(),
            live: others.live,
            restarted: false,
            url: url.cloned(),
            status: health.as_ref().map(|h| h.status),
            trusted_users: execution::trusted_users(),
            stack,
            streams: Streams::of(&facts.birth),
            path: files.journal.clone(),
            birth: facts.birth.clone(),
        };
        journal.write()?;
        let master = facts.birth.pid;
        let launch = Launch::as_found(&journal.birth);
        let current = Change::default();
        Ok(Session {
            adapter,
            files,
            journal,
            health,
            original,
            master,
            current,
            launch,
            anew: false,
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
    pub fn original(&self) -> &EffectiveSettings {
        &self.original
    }

    #[must_use]
    pub fn health(&self) -> Option<&Health> {
        self.health.as_ref()
    }

    /// The current master process.
    #[must_use]
    pub fn master(&self) -> i32 {
        self.master
    }

    /// The current worker processes.
    #[must_use]
    pub fn workers(&self) -> Vec<i32> {
        self.adapter.workers(self.master)
    }

    /// Returns the sum of the PSS of master and workers in bytes; None if they may not be read.
    #[must_use]
    pub fn real_memory(&self) -> Option<u64> {
        let parent = memory::of_process(self.master).ok()?.pss;
        let workers = memory::of_group(&self.workers()).ok()?;
        Some(parent + workers.iter().map(|m| m.pss).sum::<u64>())
    }

    /// Waits until no connection waits to be accepted, some seconds at most. Returns true if none does.
    #[must_use]
    pub fn drain(&self) -> bool {
        wait_for_empty_queues(&[self.master]).0
    }

    /// Checks that the server has these settings and that they can take these values.
    ///
    /// # Errors
    /// With the unknown name, or the range.
    pub fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        check_names(&self.adapter.knobs().iter().collect::<Vec<_>>(), settings)
    }

    /// Checks that the server would accept this change unaltered.
    ///
    /// # Errors
    /// With the reason why not.
    pub fn check(&self, change: &Change) -> Result<(), ServerError> {
        self.check_names(&change.settings)?;
        let unknown = || change.directives.names().find(|name| self.adapter.needs(name).is_none());
        if let (true, Some(directive)) = (self.journal.live, unknown()) {
            return Err(ServerError::UnknownDirective { directive: directive.into() });
        }
        self.adapter.check(change, &self.files.test)
    }

    /// Brings a change of the server's own settings into force; with an empty change, the server is as it was. Restarts
    /// it; a server in use by others is reloaded gracefully if that is known to be enough.
    ///
    /// # Errors
    /// If it does not accept them or does not come back healthy. The session can still be restored.
    pub fn apply(&mut self, change: impl Into<Change>) -> Result<(), ServerError> {
        let mut change = change.into();
        if self.journal.stage == Stage::Changed {
            // The test must not see what the last trial left in an included folder.
            self.put_back_files()?;
        }
        self.make_cache_folder(&mut change)?;
        self.refuse_what_is_not_ours(&change)?;
        self.check(&change)?;
        if self.journal.stage == Stage::Armed {
            self.journal.stage = Stage::Changed;
            self.journal.write()?;
        }
        self.learn_launch(&change)?;
        let mut launch = Launch::as_found(&self.journal.birth);
        let placement = self.placement_of(&change);
        let is_edited = placement == Placement::Edited;
        match placement {
            _ if change.is_empty() => {}
            Placement::Edited => self.edit(&change)?,
            Placement::StartedWith => launch = self.launch_with(&change)?,
            placement => {
                // The part of the change that no override reaches.
                self.edit(&change)?;
                let text = self.render(&change, &placement);
                self.write_override(self.journal.included_file.as_ref().unwrap_or(&self.files.trial), &text)?;
                launch.argv.clone_from(&self.journal.changed_argv);
            }
        }
        if !change.is_empty()
            && !is_edited
            && let [trial, ..] = self.journal.drop_ins.as_slice()
        {
            trial.write(&self.journal.birth, &launch)?;
        }
        self.bring_into_force(change, launch)
    }

    /// Makes the folder of a change's cache, if it has none yet. The server's test of the change writes to it, too.
    fn make_cache_folder(&mut self, change: &mut Change) -> Result<(), ServerError> {
        let Some(cache) = change.cache.as_mut().filter(|_| !self.adapter.caches_in_memory()) else { return Ok(()) };
        if self.journal.cache_folders.is_empty() {
            self.add_cache_folder()?;
        }
        cache.folder = self.journal.cache_folders.first().cloned();
        Ok(())
    }

    /// Makes a folder for a cache, which a restore removes.
    fn add_cache_folder(&mut self) -> Result<PathBuf, ServerError> {
        let folder = page_cache::choose(&self.adapter.cache_homes(), &self.journal.birth)?;
        self.journal.cache_folders.push(folder.clone());
        self.journal.stage = Stage::Changed;
        self.journal.write()?;
        page_cache::make(&folder, &self.journal.birth, self.adapter.cache_writer())?;
        Ok(folder)
    }

    /// Removes the folders of caches that no process knows any more.
    fn remove_cache_folders(&self, except: Option<&Path>) -> Result<(), ServerError> {
        let gone = self.journal.cache_folders.iter().filter(|folder| Some(folder.as_path()) != except);
        page_cache::remove_all(gone, &self.journal.birth)
    }

    /// Makes all ready for a cache for all visitors, whom it does not answer yet. The cache of the trial goes.
    ///
    /// # Errors
    /// If the server has no such cache or cannot be changed; the session can still be restored.
    pub(crate) fn offer_cache(&mut self, cache: &PageCache) -> Result<CacheOffer, ServerError> {
        if !self.adapter.keeps_caches() {
            return Err(ServerError::Setting(format!("lastdrop keeps none on {}", self.adapter.facts().kind.name)));
        }
        self.put_back_files()?;
        // The pages of the trial are not those of visitors.
        let folder = self.add_cache_folder()?;
        let cache = PageCache { token: None, folder: Some(folder), ..cache.clone() };
        let lines = self.adapter.cache_lines(&cache)?;
        Ok(CacheOffer { cache, lines })
    }

    /// Leaves the server running with a cache for all visitors that was offered. `lastdrop restore` takes it away.
    ///
    /// # Errors
    /// If it cannot be brought into force; the session can still be restored.
    pub(crate) fn keep_cache(&mut self, cache: &PageCache) -> Result<(), ServerError> {
        let folder = cache.folder.clone().filter(|folder| self.journal.cache_folders.contains(folder));
        let folder = folder.ok_or_else(|| ServerError::Setting("a cache is kept only if it was offered".into()))?;
        let change = Change { cache: Some(cache.clone()), ..Change::default() };
        self.refuse_what_is_not_ours(&change)?;
        self.check(&change)?;
        self.edit(&change)?;
        self.bring_into_force(change, Launch::as_found(&self.journal.birth))?;
        // Somebody has taken the lines of an earlier one out of the configuration.
        self.journal.cache_folders.extend(kept_cache::folders(&self.files.cache));
        self.remove_cache_folders(Some(&folder))?;
        kept_cache::remember(&self.journal, &self.files.cache, &folder)?;
        self.journal.remove()?;
        self.closed = true;
        Ok(())
    }

    /// For a server that shows only a title, finds out how it was started, if a change needs a restart.
    fn learn_launch(&mut self, change: &Change) -> Result<(), ServerError> {
        // To run on lastdrop's file, it is started with another command line.
        let moves = self.placement_of(change) == Placement::OwnFile && !change.is_empty();
        if self.runs() && (self.anew || moves || !self.reload_is_enough(change)) {
            self.master = launch::learn(&mut self.journal, self.adapter.as_mut(), self.master)?;
        }
        Ok(())
    }

    /// False if it did not come up with the last trial's settings: then it must be started.
    fn runs(&self) -> bool {
        process::look(self.master).is_some_and(|p| p.state != 'Z')
    }

    /// Returns how the server is started with a change, and records the command line for a restore.
    fn launch_with(&mut self, change: &Change) -> Result<Launch, ServerError> {
        let launch = self.adapter.launch_with(change);
        if !self.journal.argvs().contains(&launch.argv.as_slice()) {
            self.journal.tried_argvs.push(launch.argv.clone());
            self.journal.write()?;
        }
        Ok(launch)
    }

    /// Makes the next change restart the server. Called when a host setting has changed that applies when the server
    /// begins to listen: a reload keeps its listeners. A server whose command line cannot be learned is not restarted.
    pub(crate) fn start_anew_next(&mut self) {
        self.anew = self.journal.birth.shown.is_none() || self.adapter.hands_over_by().is_some();
    }

    /// Undoes what the last trial wrote. From then on, changes to such a file are someone else's.
    fn put_back_files(&mut self) -> Result<(), ServerError> {
        put_back_files(&self.journal)?;
        if !self.journal.edited.is_empty() {
            self.journal.edited.clear();
            self.journal.write()?;
        }
        Ok(())
    }

    /// Edits the server's own files, which have their original content.
    fn edit(&mut self, change: &Change) -> Result<(), ServerError> {
        let edited = self.adapter.edits(change)?;
        if edited.is_empty() && self.journal.edited.is_empty() {
            return Ok(());
        }
        self.journal.edited = edited;
        self.journal.write()?;
        execution::write_for(&self.journal.birth, || edited::change(&self.journal.edited))
    }

    /// Makes the server read what is on disk now.
    fn bring_into_force(&mut self, change: Change, launch: Launch) -> Result<(), ServerError> {
        let anew = std::mem::take(&mut self.anew);
        let may_reload = self.runs() && !anew && (self.journal.live || self.journal.reloads);
        if may_reload && launch == self.launch && self.reload_is_enough(&change) {
            self.master = reload(&self.journal, self.master)?;
        } else {
            if !self.journal.restarted {
                self.journal.restarted = true;
                self.journal.write()?;
            }
            self.master = switch(&self.journal, &launch)?;
        }
        self.current = change;
        self.launch = launch;
        wait_healthy(self.health.as_ref(), self.master)?;
        self.adapter.in_force(&self.current.settings, self.master)
    }

    /// True if a reload is known to be enough for everything that differs from the present change.
    fn reload_is_enough(&self, change: &Change) -> bool {
        let own = &self.original.settings;
        // A setting that already has its value makes no difference.
        let value = |of: &Change, name: &str| of.settings.get(name).or_else(|| own.get(name)).cloned();
        let set = |of: &Change, name: &str| of.settings.contains_key(name);
        let mut names = self.current.differing(change).filter(|name| {
            let is_directive = !set(change, name) && !set(&self.current, name);
            is_directive || value(change, name) != value(&self.current, name)
        });
        names.all(|name| self.adapter.needs(name) == Some(ReloadClass::Reload))
    }

    /// Returns the override for this change. It keeps what an earlier `--keep` left, but not what the last trial left.
    fn render(&self, change: &Change, placement: &Placement) -> String {
        let kept = match placement {
            Placement::IncludedFile(_) => self.journal.included_before.clone(),
            Placement::OwnFile | Placement::Edited | Placement::StartedWith => {
                self.adapter.kept_override().and_then(|file| input::read_regular_text(&file).ok())
            }
        };
        self.adapter.render(change, placement, kept.as_deref())
    }

    /// Writes an override that the server can read.
    fn write_override(&self, file: &Path, text: &str) -> Result<(), ServerError> {
        let birth = &self.journal.birth;
        let readers = match &self.journal.included_file {
            Some(_) => Readers::AsBefore { or_like: self.adapter.facts().config.as_deref() },
            None => Readers::Server { uid: birth.uid, gid: birth.gid },
        };
        let write = || {
            write_durably_for(readers, file, text.as_bytes())
                .map_err(ServerError::io(format!("cannot write {}", file.display())))
        };
        // Other files are in lastdrop's own folder.
        if self.journal.included_file.is_some() { execution::write_for(birth, write) } else { write() }
    }

    /// A cache alone goes into the server's own files: no other start is needed for it.
    fn placement_of(&self, change: &Change) -> Placement {
        if change.is_cache_alone() { Placement::Edited } else { self.placement() }
    }

    fn placement(&self) -> Placement {
        match &self.journal.included_file {
            Some(file) => Placement::IncludedFile(file.clone()),
            None => self.adapter.placement(),
        }
    }

    /// Restores everything as it was found.
    ///
    /// # Errors
    /// If the server does not come back as it was; the journal stays, so that `lastdrop restore` can try again.
    pub fn restore(&mut self) -> Result<RestoreReport, ServerError> {
        self.restore_files().and_then(|half| self.verify_health(half))
    }

    /// True if the change is neither undone nor kept.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed
    }

    /// First half of `restore`: files and processes.
    pub(crate) fn restore_files(&mut self) -> Result<RestoredServer, ServerError> {
        // Set even if it fails: an immediate second try would end the same way.
        self.closed = true;
        self.put_back_if_it_starts().map_err(|e| ServerError::NotRestored(Box::new(e)))
    }

    /// Second half of `restore`: checks that the server answers as before.
    pub(crate) fn verify_health(&self, half: RestoredServer) -> Result<RestoreReport, ServerError> {
        verify_health(&self.journal, half).map_err(|e| ServerError::NotRestored(Box::new(e)))
    }

    /// Restores the server if it would start: one that runs with other settings is better than one that does not start.
    fn put_back_if_it_starts(&self) -> Result<RestoredServer, ServerError> {
        if self.journal.stage == Stage::Changed && self.journal.has_to_pass() {
            self.adapter.check(&Change::default(), &self.files.test)?;
        }
        restore_files(&self.journal)
    }

    /// Leaves the server running with these settings.
    ///
    /// # Errors
    /// If they cannot be brought into force; the session can still be restored.
    pub fn keep(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        let kept = self.persist(settings)?;
        self.commit(&kept)?;
        Ok(kept)
    }

    /// First half of `keep`: the settings are in force where they can stay, and can still be undone.
    pub(crate) fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        let change = Change::from(settings.clone());
        let placement = self.placement();
        let is_put_back = placement != Placement::StartedWith || !self.journal.drop_ins.is_empty();
        if is_put_back && self.journal.stage == Stage::Changed {
            self.put_back_files()?;
        }
        self.refuse_what_is_not_ours(&change)?;
        self.check(&change)?;
        self.journal.stage = Stage::Changed;
        self.journal.write()?;
        self.learn_launch(&change)?;
        let mut launch = Launch::as_found(&self.journal.birth);
        let kept = match &placement {
            Placement::Edited => {
                self.edit(&change)?;
                let config = self.adapter.facts().config.clone().unwrap_or_default();
                PersistedIn::InFile(self.journal.edited.first().map_or(config, |edited| edited.path.clone()))
            }
            Placement::IncludedFile(file) => {
                let text = self.render(&change, &placement);
                self.journal.write()?;
                self.edit(&change)?;
                self.write_override(file, &text)?;
                PersistedIn::InFile(file.clone())
            }
            Placement::StartedWith => {
                self.journal.write()?;
                launch = self.launch_with(&change)?;
                if let Some(kept) = self.keep_beside_the_unit(&launch)? {
                    self.bring_into_force(change, launch)?;
                    return Ok(kept);
                }
                let own = &self.journal.birth.environment;
                let environment = launch.environment.iter().filter(|v| !own.contains(v)).cloned().collect();
                PersistedIn::Running { argv: launch.argv.clone(), environment }
            }
            Placement::OwnFile => {
                // A kill must be able to go back to an earlier kept file, so a second one is written.
                let in_use = self.adapter.kept_override();
                let other = self.files.kept.with_extension("2.conf");
                let file = if in_use.as_ref() == Some(&self.files.kept) { other } else { self.files.kept.clone() };
                launch.argv = self.adapter.argv_with(&file);
                let before = self.journal.clone();
                self.journal.changed_argv.clone_from(&launch.argv);
                // From here on the changed server may run on the new file; the server on the trial file must have ended
                // before.
                if before.unit.is_none() {
                    execution::check_start(&before.birth)?;
                    restart::stop(&before.birth, &before.argvs(), before.stop_signal()?)?;
                }
                self.journal.restarted = true;
                // A restore removes this file.
                self.journal.own_file.clone_from(&file);
                self.journal.write()?;
                let text = self.render(&change, &placement);
                self.edit(&change)?;
                self.write_override(&file, &text)?;
                self.keep_beside_the_unit(&launch)?;
                PersistedIn::OnFile { file, argv: launch.argv.clone() }
            }
        };
        self.bring_into_force(change, launch)?;
        if matches!(kept, PersistedIn::OnFile { .. }) {
            let _ = remove_if_there(&self.files.trial);
        }
        Ok(kept)
    }

    /// Second half of `keep`: from now on the settings are not undone.
    pub(crate) fn commit(&mut self, kept: &PersistedIn) -> Result<(), ServerError> {
        // What is kept has no cache.
        self.remove_cache_folders(None)?;
        self.journal.remove()?;
        self.closed = true;
        let _ = remove_if_there(&self.files.trial);
        if let (Some(old), PersistedIn::OnFile { file, .. }) = (self.adapter.kept_override(), kept)
            && old != *file
        {
            let _ = remove_if_there(&old);
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.closed {
            // If an error ends the session, the server must not stay changed. If this fails too, the journal remains.
            if let Err(e) = self.restore() {
                tell_on_the_way_out(&e);
            }
        }
    }
}

/// Prints an error that no caller can handle any more.
pub(crate) fn tell_on_the_way_out(error: &ServerError) {
    let text = Printable::from(format!("lastdrop: {error}\n"));
    #[allow(clippy::disallowed_methods)]
    let _ = std::io::stderr().write_all(text.as_str().as_bytes());
}
