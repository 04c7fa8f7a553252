//! A session on the host: from the lock to the last restored value.
//!
//! As with a server, everything needed to undo a change is on disk before the first value is written. Values that one
//! trial sets and the next does not are restored before the next.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use lastdrop_model::{Printable, Setting, Settings};

use super::Host;
use super::journal::{HostJournal, SCHEMA, ValueBefore, files_of, is_of_a_host, lock_of_the_machine};
use super::kept::{KeptFile, named_folder};
use super::knobs::{self, HostKnob, NOFILE, Scope};
use super::limits::{self, LimitBefore};
use super::namespace_access::{denied, in_words};
use super::undo::{boot, undo};
use crate::adapter::EffectiveSettings;
use crate::change::Change;
use crate::journal::{Journal, Lock, Stage};
use crate::other_traffic::OtherTrafficPolicy;
use crate::persisted_in::PersistedIn;
use crate::restore::RestoreReport;
use crate::{ServerError, kinds};

#[derive(Debug)]
pub struct HostSession {
    host: Host,
    journal: HostJournal,
    original: EffectiveSettings,
    /// True once everything is undone or kept.
    closed: bool,
    // Last field: released after everything else.
    _locks: Vec<Lock>,
}

/// A value to be written.
struct PendingWrite {
    knob: &'static HostKnob,
    value: String,
}

impl HostSession {
    /// Takes the lock and writes the journal. Changes nothing.
    ///
    /// # Errors
    /// If another lastdrop is at work there, or a killed one left it changed.
    pub fn open(host: Host, others: &OtherTrafficPolicy) -> Result<HostSession, ServerError> {
        crate::abilities::check_changes()?;
        let cannot = || denied("cannot enter the server's network namespace".into());
        let namespace = host.place.id().map_err(cannot())?;
        let files = files_of(namespace.inode)?;
        let mut locks = Vec::new();
        if others.host_wide {
            locks.push(Lock::take(&lock_of_the_machine()?)?);
        }
        locks.push(Lock::take(&files.lock)?);
        files.tidy();
        if files.journal.exists() {
            // A journal that cannot be read returns an error with advice.
            HostJournal::read(&files.journal)?;
            return Err(ServerError::Unrestored);
        }
        if others.host_wide {
            for other in Journal::all()?.iter().filter(|path| is_of_a_host(path)) {
                if HostJournal::read(other)?.host_wide {
                    return Err(ServerError::Unrestored);
                }
            }
        }
        let original = host.effective()?;
        let journal = HostJournal {
            schema: SCHEMA.into(),
            server: host.name.clone(),
            stage: Stage::Armed,
            created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            boot: boot(),
            namespace,
            process: host.process,
            host_wide: others.host_wide,
            values: Vec::new(),
            limits: Vec::new(),
            our_limits: Vec::new(),
            kept: None,
            path: files.journal,
        };
        journal.write()?;
        Ok(HostSession { host, journal, original, closed: false, _locks: locks })
    }

    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// What the settings were when the session began.
    #[must_use]
    pub fn original(&self) -> &EffectiveSettings {
        &self.original
    }

    /// Checks that the host has these settings, that they may be changed, and that they can take these values.
    ///
    /// # Errors
    /// With the unknown name, the range, or why it is not changed.
    pub fn check_names(&self, settings: &Settings) -> Result<(), ServerError> {
        settings.iter().try_for_each(|(name, value)| self.check_one(name, value).map_err(ServerError::Setting))
    }

    fn check_one(&self, name: &str, value: &Setting) -> Result<(), String> {
        let rows = || knobs::KNOBS.iter().filter(|row| self.host.has(row));
        let row = rows().find(|row| row.knob.name == name).ok_or_else(|| {
            if name == NOFILE {
                return format!(
                    "{NOFILE} is a limit of processes: name the host by where its server listens: host@http://127.0.0.1:80/"
                );
            }
            let known: Vec<&str> = rows().filter(|row| row.refused.is_none()).map(|row| row.knob.name).collect();
            format!("{name} is not a setting that lastdrop changes; it knows {}", known.join(", "))
        })?;
        if let Some(why) = row.refused {
            return Err(format!("{name} is not changed: {why}"));
        }
        if row.scope == Scope::Machine && !self.journal.host_wide {
            return Err(format!(
                "{name} belongs to the whole machine, not to this server alone; --host-wide changes it all the same"
            ));
        }
        row.knob.check(value)?;
        if self.original.settings.contains_key(name) {
            return Ok(());
        }
        Err(format!(
            "{name} is not there: the kernel shows no {} here (no connection tracking, or not the machine's own network namespace)",
            row.file
        ))
    }

    /// Checks that this change could be made. Changes nothing.
    ///
    /// # Errors
    /// With the reason why not.
    pub fn check(&self, change: &Change) -> Result<(), ServerError> {
        self.check_names(&change.settings)?;
        if let Some(line) = change.directives.lines().first() {
            return Err(ServerError::Setting(format!(
                "the host takes no lines of a configuration ('{line}'), only settings; lines are for {}",
                kinds::titles(|k| k.directives)
            )));
        }
        for row in change.settings.keys().filter_map(|name| knobs::named(name)) {
            if row.scope != Scope::Processes {
                self.host.place.check_writable(row)?;
            }
        }
        if let Some(soft) = limit_in(&change.settings) {
            limits::check(self.host.process, soft)?;
        }
        Ok(())
    }

    /// Brings these settings into force at once; with none, the host is as it was.
    ///
    /// # Errors
    /// If they may not be set, or others have set them in the meantime. The session can still be restored.
    pub fn apply(&mut self, change: impl Into<Change>) -> Result<(), ServerError> {
        let change = change.into();
        self.check(&change)?;
        let writes = self.writes(&change)?;
        let limit = limit_in(&change.settings);
        if let Some(soft) = limit {
            self.note_limits(&limits::family(self.host.process)?)?;
            self.journal.our_limits.extend(Some(soft).filter(|soft| !self.journal.our_limits.contains(soft)));
        }
        if writes.is_empty() && self.journal.limits.is_empty() {
            return Ok(());
        }
        self.journal.stage = Stage::Changed;
        self.journal.write()?;
        for write in writes {
            self.host.place.write(write.knob, &write.value)?;
        }
        match limit {
            Some(soft) => self.limit_all(soft),
            None => limits::put_back(&self.journal.limits, &self.journal.our_limits).map(drop),
        }
    }

    /// Returns the writes after which exactly the settings of a change are in force. Records them in the journal, which
    /// still has to be written to disk.
    fn writes(&mut self, change: &Change) -> Result<Vec<PendingWrite>, ServerError> {
        let mut writes = Vec::new();
        for knob in knobs::KNOBS.iter().filter(|knob| knob.scope != Scope::Processes) {
            let name = knob.knob.name;
            let wanted = change.settings.get(name).map(|value| in_words(&value.to_string()));
            let known = self.journal.values.iter().position(|v| v.name == name);
            if wanted.is_none() && known.is_none() {
                continue;
            }
            let now = self.host.place.read(knob)?.unwrap_or_default();
            let at = known.unwrap_or_else(|| {
                let before = now.clone();
                self.journal.values.push(ValueBefore { name: name.into(), before, ours: Vec::new() });
                self.journal.values.len() - 1
            });
            let value = &mut self.journal.values[at];
            if now != value.before && !value.ours.contains(&now) {
                return Err(changed_meanwhile(name, &now, &value.before));
            }
            let wanted = wanted.unwrap_or_else(|| value.before.clone());
            if now != wanted {
                value.ours = vec![now, wanted.clone()];
                writes.push(PendingWrite { knob, value: wanted });
            }
        }
        Ok(writes)
    }

    /// Adds processes with their own limits to the journal. A process forked from a master with our limit has none: it
    /// will get the master's former limit. Returns true if the journal has grown.
    fn note_limits(&mut self, family: &[LimitBefore]) -> Result<bool, ServerError> {
        let HostJournal { limits, our_limits, .. } = &mut self.journal;
        let before = limits.len();
        for of in family.iter().filter(|of| !our_limits.contains(&of.soft)) {
            match limits.iter().find(|known| known.process == of.process) {
                None => limits.push(*of),
                Some(known) if known.soft == of.soft => {}
                Some(known) => {
                    return Err(changed_meanwhile(
                        &format!("{NOFILE} of process {}", of.process.0),
                        &of.soft.to_string(),
                        &known.soft.to_string(),
                    ));
                }
            }
        }
        Ok(limits.len() > before)
    }

    /// Sets the limit of the master and of all its children, including those forked before the master had it.
    fn limit_all(&mut self, soft: u64) -> Result<(), ServerError> {
        /// A child that has set its own limit in the meantime needs another round. Processes forked later have our
        /// limit.
        const ROUNDS: u32 = 10;
        for _ in 0..ROUNDS {
            let family = limits::family(self.host.process)?;
            let others: Vec<LimitBefore> = family.into_iter().filter(|of| of.soft != soft).collect();
            if others.is_empty() {
                break;
            }
            if self.note_limits(&others)? {
                self.journal.write()?;
            }
            others.iter().try_for_each(|of| limits::set(of.process, soft))?;
        }
        Ok(())
    }

    /// Restores everything as it was found.
    ///
    /// # Errors
    /// If that fails; the journal stays, so that `lastdrop restore` can try again.
    pub fn restore(&mut self) -> Result<RestoreReport, ServerError> {
        // Set even if it fails: an immediate second try would end the same way.
        self.closed = true;
        undo(&self.journal, &self.host.place).map_err(|e| ServerError::NotRestored(Box::new(e)))
    }

    /// Leaves these settings in force, and writes the sysctls among them to the file that is read at every boot.
    ///
    /// # Errors
    /// If they cannot be brought into force or the file cannot be written; the session can still be restored.
    pub fn keep(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        let kept = self.persist(settings)?;
        self.commit()?;
        Ok(kept)
    }

    /// True if a change is neither undone nor kept.
    pub(crate) fn is_open(&self) -> bool {
        !self.closed
    }

    /// First half of `keep`: the settings are in force and in the file, and can still be undone.
    pub(crate) fn persist(&mut self, settings: &Settings) -> Result<PersistedIn, ServerError> {
        self.check(&settings.clone().into())?;
        let of_namespace = |name: &String| knobs::named(name).is_some_and(|knob| knob.scope == Scope::Namespace);
        if named_folder().is_none() && settings.keys().any(of_namespace) && !self.host.place.is_the_machines() {
            return Err(ServerError::Setting(format!(
                "the settings of another network namespace than the machine's are not those of /etc/sysctl.d: they belong \
                 where it is made (docker run --sysctl …), or into the folder that LASTDROP_SYSCTL_D names: {}",
                lastdrop_model::settings::describe(settings)
            )));
        }
        let file = KeptFile::with(settings)?;
        if !settings.is_empty() {
            self.journal.kept = Some(file.clone());
            self.journal.stage = Stage::Changed;
            self.journal.write()?;
        }
        self.apply(settings.clone())?;
        if !settings.is_empty() {
            file.write()?;
        }
        Ok(PersistedIn::InFile(file.path))
    }

    /// Second half of `keep`: from now on they are not undone.
    pub(crate) fn commit(&mut self) -> Result<(), ServerError> {
        self.journal.remove()?;
        self.closed = true;
        Ok(())
    }
}

fn changed_meanwhile(name: &str, now: &str, before: &str) -> ServerError {
    ServerError::Setting(format!(
        "somebody else has set {name} to {now} meanwhile (it was {before}): it is left as it is; see to it that nobody else \
         changes the host during an experiment"
    ))
}

fn limit_in(settings: &Settings) -> Option<u64> {
    settings.get(NOFILE)?.count()?.try_into().ok()
}

impl Drop for HostSession {
    fn drop(&mut self) {
        if !self.closed {
            // If an error ends the session, the host must not stay changed. If this fails too, the journal remains.
            if let Err(e) = undo(&self.journal, &self.host.place) {
                let text = Printable::from(format!("lastdrop: {}\n", ServerError::NotRestored(Box::new(e))));
                #[allow(clippy::disallowed_methods)]
                let _ = std::io::stderr().write_all(text.as_str().as_bytes());
            }
        }
    }
}
