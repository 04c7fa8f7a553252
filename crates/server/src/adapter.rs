//! What lastdrop wants to know of a kind of server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lastdrop_model::settings::Spares;
use lastdrop_model::{Knob, ReloadClass, Role, Setting, Settings, Url};
use lastdrop_probe::process::{self, Birth};
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::ServerError;
use crate::change::Change;
use crate::container::Contained;
use crate::edited::EditedFile;
use crate::kind::{Kind, Status};
use crate::restart::Launch;

/// A running server, as found.
#[derive(Debug, Clone)]
pub struct Facts {
    pub kind: &'static Kind,
    /// `apache:/etc/apache2/apache2.conf`: names the server for locks and journals.
    pub name: String,
    pub version: String,
    /// `prefork`, `worker`, `event`; the target is always prefork.
    pub model: String,
    pub config: Option<PathBuf>,
    /// The master process: how it was started, for starting it again.
    pub birth: Birth,
    pub listeners: Vec<SocketAddr>,
    pub status_url: Option<Url>,
}

impl Facts {
    /// Is this an address by which the server's own machine reaches it?
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
    /// What could not be found out, and what contradicts what.
    pub notes: Vec<String>,
}

/// How a change comes into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// A file in a folder that the configuration includes; the command line stays as it is.
    IncludedFile(PathBuf),
    /// The server runs on a file of ours that includes the original: another command line.
    OwnFile,
    /// The server's own files, for one that takes no setting twice.
    Edited,
    /// The command line or the environment with which it is started.
    StartedWith,
}

/// One kind of server software. Looks, computes and tests; changes nothing.
pub trait Adapter: Send {
    fn facts(&self) -> &Facts;

    /// What it is, for a person: program, version, model.
    fn software(&self) -> String {
        format!("{}, {}", self.facts().version, self.facts().model)
    }

    /// Its status page, whether anybody answers there or not.
    fn status(&self) -> Option<StatusSource> {
        let facts = self.facts();
        match facts.kind.status {
            Status::Http { format, .. } => Some(StatusSource::Page { format, url: facts.status_url.clone()? }),
            Status::Nowhere | Status::FastCgi { .. } | Status::StatsSocket => None,
        }
    }

    fn knobs(&self) -> &'static [Knob];

    /// What the running server does.
    ///
    /// # Errors
    /// When neither the server nor its configuration can be read.
    fn effective(&self) -> Result<EffectiveSettings, ServerError>;

    /// Directives of its configuration that are no settings of ours and that tell something of it, with their value.
    fn directives(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Settings for a pool of `size` workers that are all kept alive, as this kind spells it.
    fn pool_settings(&self, size: u64, effective: &Settings) -> Settings;

    /// Settings for so many spare workers, as this kind counts and spells them; none where it keeps no spares.
    fn spare_settings(&self, _spares: Spares, _effective: &Settings) -> Settings {
        Settings::new()
    }

    /// Settings with all that follows from them: a pool of a size needs limits and spares that go with it. Those that are
    /// in force anyway are left out.
    fn complete(&self, settings: &Settings, effective: &Settings) -> Settings {
        let size = self.knob(Role::PoolSize).and_then(|k| settings.get(k.name)?.count());
        let mut all = settings.clone();
        all.extend(size.map(|n| self.pool_settings(n.max(0) as u64, effective)).unwrap_or_default());
        all.retain(|name, value| effective.get(name) != Some(value));
        all
    }

    /// Where an override goes: it has to be read after everything that sets the same.
    fn placement(&self) -> Placement;

    /// The text of the override: what an earlier `--keep` left (`kept`, the text of its file), then the change. For a file
    /// of our own it begins with the inclusion of the original configuration. Not asked where the server's own files are
    /// edited.
    fn render(&self, _change: &Change, _placement: &Placement, _kept: Option<&str>) -> String {
        String::new()
    }

    /// Its own files as the change makes them, where they are what is edited: all of it, or what no override reaches.
    ///
    /// # Errors
    /// When they cannot be read, or have no place for a setting.
    fn edits(&self, _change: &Change) -> Result<Vec<EditedFile>, ServerError> {
        Ok(Vec::new())
    }

    /// A temporary configuration beside its own that `check` makes: what a kill may leave of it is taken away.
    fn test_file(&self) -> Option<PathBuf> {
        None
    }

    /// What a setting or directive needs to take effect. None: it is not known.
    fn needs(&self, name: &str) -> Option<ReloadClass> {
        self.knobs().iter().find(|k| k.name == name).map(|k| k.needs)
    }

    /// The command line that starts the server on our file instead of its own.
    fn argv_with(&self, _file: &Path) -> Vec<String> {
        self.facts().birth.argv.clone()
    }

    /// How the server is started with a change, where that is what is changed.
    fn launch_with(&self, _change: &Change) -> Launch {
        Launch::as_found(&self.facts().birth)
    }

    /// The override of ours that a running server was started on, if it was (after an earlier `--keep`).
    fn kept_override(&self) -> Option<PathBuf> {
        None
    }

    /// Would the server take this change as it is; with an empty one, does its own configuration pass its test? `file`
    /// is a place for a temporary configuration.
    ///
    /// # Errors
    /// With the server's own words.
    fn check(&self, change: &Change, file: &Path) -> Result<(), ServerError>;

    /// Has a server that was changed and is healthy the settings that it was given, as far as its processes tell?
    ///
    /// # Errors
    /// With what it has instead.
    fn in_force(&self, _settings: &Settings, _master: i32) -> Result<(), ServerError> {
        Ok(())
    }

    /// The same server as one in a container, if it is: read and not changed.
    fn contained(&self) -> Option<&Contained> {
        None
    }

    /// Does its status page count the looks at it as requests?
    fn counts_looks(&self) -> bool {
        true
    }

    /// Does its master connect to it, so that an idle worker wakes up and leaves a pool that shrinks?
    fn connects_to_itself(&self) -> bool {
        false
    }

    /// Does the server detach itself from whoever starts it?
    fn daemonizes(&self) -> bool;

    /// Makes the server read its configuration again and replace its workers gracefully.
    fn reload_signal(&self) -> Signal;

    /// At this signal the whole of it ends.
    fn stop_signal(&self) -> Signal {
        Signal::SIGTERM
    }

    /// Is it as new after a reload: is everything that serves replaced, and nothing of it kept but what stays with the
    /// settings? Then it is never stopped.
    fn is_fresh_after_reload(&self) -> bool {
        false
    }

    /// Does its master execute itself at a reload, and end where it cannot take its configuration?
    fn executes_itself(&self) -> bool {
        false
    }

    /// The variable by which a master that executes itself and shows a title hands itself its sockets: with it there, what it
    /// was started with is seen at a reload.
    fn hands_over_by(&self) -> Option<&'static str> {
        None
    }

    /// How it was started is known now.
    fn learn(&mut self, _launch: &Launch) {}

    /// Does one that executes itself run on with the workers that it has instead?
    fn survives_a_bad_reload(&self) -> bool {
        false
    }

    /// Where it says why it did not take a configuration at a reload.
    fn error_log(&self) -> Option<PathBuf> {
        None
    }

    /// Process ids of the workers under a master.
    fn workers(&self, master: i32) -> Vec<i32> {
        process::child_pids(master)
    }

    /// The knob that has a role.
    fn knob(&self, role: Role) -> Option<&'static Knob> {
        lastdrop_model::settings::knob_for(self.knobs(), role)
    }

    /// The present value of the knob that has a role; its default where `settings` do not say.
    fn value(&self, role: Role, settings: &Settings) -> Option<Setting> {
        let knob = self.knob(role)?;
        settings.get(knob.name).cloned().or_else(|| Some(Setting::read(knob.default)))
    }
}
