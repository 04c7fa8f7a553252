//! The interface between lastdrop and one kind of server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lastdrop_model::settings::SpareWorkers;
use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings, Url};
use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::ServerError;
use crate::change::Change;
use crate::container::ContainedServer;
use crate::edited::EditedFile;
use crate::kind::{Kind, Status};
use crate::page_cache::PageCache;
use crate::restart::Launch;

/// What is known of a running server.
#[derive(Debug, Clone)]
pub struct Facts {
    pub kind: &'static Kind,
    /// The server's name for locks and journals: `apache:/etc/apache2/apache2.conf`.
    pub name: String,
    pub version: String,
    /// `prefork`, `worker` or `event`; the test target is always prefork.
    pub model: String,
    pub config: Option<PathBuf>,
    /// How the master process was started; needed to start it again.
    pub birth: Birth,
    pub listeners: Vec<SocketAddr>,
    pub status_url: Option<Url>,
}

impl Facts {
    /// True if the server's own machine reaches it at this address.
    pub(crate) fn is_own(&self, ip: std::net::IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_loopback() || self.listeners.iter().any(|l| l.ip().to_canonical() == ip)
    }
}

/// The settings that a running server has now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct EffectiveSettings {
    pub settings: Settings,
    /// Where each value comes from: the scoreboard, a file and line, the server's default.
    pub sources: BTreeMap<String, String>,
    /// What could not be determined, and what is contradictory.
    pub notes: Vec<String>,
}

/// Where a change of settings is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// A file in a folder that the configuration includes. The command line does not change.
    IncludedFile(PathBuf),
    /// A file of lastdrop's that includes the original configuration. The server is started with another command line.
    OwnFile,
    /// The server's own files, for a server that accepts no setting twice.
    Edited,
    /// The command line or the environment with which the server is started.
    StartedWith,
}

/// One kind of server software. An adapter reads, computes and tests; it changes nothing.
pub trait Adapter: Send {
    fn facts(&self) -> &Facts;

    /// Program, version and model, for display.
    fn software(&self) -> String {
        format!("{}, {}", self.facts().version, self.facts().model)
    }

    /// The server's status page, whether or not it answers.
    fn status(&self) -> Option<StatusSource> {
        let facts = self.facts();
        match facts.kind.status {
            Status::Http { format, .. } => Some(StatusSource::Page { format, url: facts.status_url.clone()? }),
            Status::Nowhere | Status::FastCgi { .. } | Status::StatsSocket => None,
        }
    }

    fn knobs(&self) -> &'static [Knob];

    /// Returns the settings of the running server.
    ///
    /// # Errors
    /// If neither the server nor its configuration can be read.
    fn effective(&self) -> Result<EffectiveSettings, ServerError>;

    /// Directives of the configuration that are not knobs but help to understand it, with their values.
    fn directives(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Settings for a pool of `size` workers that are all kept alive, in this kind's directives.
    fn pool_settings(&self, size: u64, effective: &Settings) -> Settings;

    /// Settings for this many spare workers, in this kind's directives and units; empty if it keeps no spares.
    fn spare_settings(&self, _spares: SpareWorkers, _effective: &Settings) -> Settings {
        Settings::new()
    }

    /// Adds the settings that follow from the given ones: a pool of some size needs matching limits and spares.
    /// Settings that are already in force are left out.
    fn complete(&self, settings: &Settings, effective: &Settings) -> Settings {
        let size = self.knob(Role::PoolSize).and_then(|k| settings.get(k.name)?.count());
        let mut all = settings.clone();
        all.extend(size.map(|n| self.pool_settings(n.max(0) as u64, effective)).unwrap_or_default());
        all.retain(|name, value| effective.get(name) != Some(value));
        all
    }

    /// Where an override goes. The server must read it after everything that sets the same directive.
    fn placement(&self) -> Placement;

    /// Returns the text of the override: first the content of an earlier `--keep` (`kept`, the text of its file), then
    /// the change. A file on which the server is started begins by including the original configuration. Not called if
    /// the server's own files are edited.
    fn render(&self, _change: &Change, _placement: &Placement, _kept: Option<&str>) -> String {
        String::new()
    }

    /// Returns the server's own files with the change applied, where they are edited: for the whole change, or for what
    /// no override reaches.
    ///
    /// # Errors
    /// If they cannot be read or have no place for a setting.
    fn edits(&self, _change: &Change) -> Result<Vec<EditedFile>, ServerError> {
        Ok(Vec::new())
    }

    /// Describes what a change does to the configuration, a line for each place; empty if it changes nothing.
    ///
    /// # Errors
    /// With the place that is not there.
    fn preview(&self, change: &Change) -> Result<Vec<String>, ServerError> {
        Ok(change.lines().collect())
    }

    /// Folders in which a cache of pages may have its own, the best first; empty if it cannot try one.
    fn cache_homes(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The user and group of the workers, if they write the folder of a cache themselves.
    fn cache_writer(&self) -> Option<(u32, u32)> {
        None
    }

    /// True if a cache can be left to all visitors.
    fn keeps_caches(&self) -> bool {
        false
    }

    /// True if a cache of it has no folder and ends with its process.
    fn caches_in_memory(&self) -> bool {
        false
    }

    /// The lines of its configuration that make a cache on trial one for all visitors.
    ///
    /// # Errors
    /// If it has no such cache, or its configuration is not fit for one.
    fn cache_lines(&self, _cache: &PageCache) -> Result<Vec<String>, ServerError> {
        Err(ServerError::Setting(format!("no cache is tried on {}", self.facts().name)))
    }

    /// A temporary configuration that `check` writes next to the server's own; a killed lastdrop may leave it behind,
    /// and it is then removed.
    fn test_file(&self) -> Option<PathBuf> {
        None
    }

    /// What a setting or directive needs to take effect; `None` if that is not known.
    fn needs(&self, name: &str) -> Option<ReloadClass> {
        self.knobs().iter().find(|k| k.name == name).map(|k| k.needs)
    }

    /// The command line that starts the server on a file of lastdrop's instead of its own.
    fn argv_with(&self, _file: &Path) -> Vec<String> {
        self.facts().birth.argv.clone()
    }

    /// How the server is started with a change, if the change is made in the command line or the environment.
    fn launch_with(&self, _change: &Change) -> Launch {
        Launch::as_found(&self.facts().birth)
    }

    /// The override on which the running server was started after an earlier `--keep`, if any.
    fn kept_override(&self) -> Option<PathBuf> {
        None
    }

    /// Tests whether the server accepts this change unaltered. With an empty change, tests its own configuration.
    /// `file` is a path for a temporary configuration.
    ///
    /// # Errors
    /// With the server's own message.
    fn check(&self, change: &Change, file: &Path) -> Result<(), ServerError>;

    /// Checks that a changed, healthy server has the settings it was given, as far as its processes show.
    ///
    /// # Errors
    /// With what it has instead.
    fn in_force(&self, _settings: &Settings, _master: i32) -> Result<(), ServerError> {
        Ok(())
    }

    /// The same server if it runs in a container: it is read but not changed.
    fn contained(&self) -> Option<&ContainedServer> {
        None
    }

    /// True if the server's status page counts lastdrop's reads of it as requests.
    fn counts_looks(&self) -> bool {
        true
    }

    /// True if the master connects to the server itself, so that an idle worker wakes up and leaves a shrinking pool.
    fn connects_to_itself(&self) -> bool {
        false
    }

    /// True if the server detaches itself from the process that starts it.
    fn daemonizes(&self) -> bool;

    /// The signal at which the server reads its configuration again and replaces its workers gracefully.
    fn reload_signal(&self) -> Signal;

    /// The signal at which the whole server ends.
    fn stop_signal(&self) -> Signal {
        Signal::SIGTERM
    }

    /// True if a reload replaces every serving process and keeps nothing that depends on the settings. Such a server is
    /// never stopped.
    fn is_fresh_after_reload(&self) -> bool {
        false
    }

    /// True if the master executes itself at a reload, and ends if it cannot use its configuration.
    fn executes_itself(&self) -> bool {
        false
    }

    /// The environment variable in which a master that executes itself and shows a title passes its sockets on. With
    /// it, the original command line becomes visible at a reload.
    fn hands_over_by(&self) -> Option<&'static str> {
        None
    }

    /// Takes note of how the server was started, once that is known.
    fn learn(&mut self, _launch: &Launch) {}

    /// True if a master that executes itself keeps its old workers when the new configuration is bad.
    fn survives_a_bad_reload(&self) -> bool {
        false
    }

    /// The log in which the server explains why it did not use a configuration at a reload.
    fn error_log(&self) -> Option<PathBuf> {
        None
    }

    /// Process ids of the workers under a master.
    fn workers(&self, master: i32) -> Vec<i32> {
        process::child_pids(master)
    }

    /// The knob with this role.
    fn knob(&self, role: Role) -> Option<&'static Knob> {
        lastdrop_model::settings::knob_for(self.knobs(), role)
    }

    /// The present value of the knob with this role; its default if `settings` do not contain it.
    fn value(&self, role: Role, settings: &Settings) -> Option<Setting> {
        let knob = self.knob(role)?;
        settings.get(knob.name).cloned().or_else(|| Some(Setting::read(knob.default)))
    }
}
