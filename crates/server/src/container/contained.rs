//! The adapter of a server in a container. Its settings are read inside the container, where paths and ids have their
//! meaning. A change is printed as a patch for the person who maintains the container.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;

use lastdrop_model::settings::SpareWorkers;
use lastdrop_model::{Knob, ReloadClass, Settings};
use lastdrop_probe::process::Birth;
use nix::sys::signal::Signal;

use super::inquiry::{Inquiry, NextStep, PlannedChange, Portrait, Reply};
use super::within::within;
use super::{refusal, root_of};
use crate::adapter::{Adapter, EffectiveSettings, Facts, Placement};
use crate::change::Change;
use crate::edited::EditedFile;
use crate::find::{Master, master_of};
use crate::patch::Rewrite;
use crate::{ServerError, ServerRef};

const UNEXPECTED: &str = "it answered another question";

/// A server in a container.
#[derive(Debug)]
pub struct ContainedServer {
    /// The server's name inside the container.
    inside: ServerRef,
    facts: Facts,
    seen: Portrait,
    knobs: &'static [Knob],
}

impl ContainedServer {
    /// The server with this name, if it runs in a container.
    pub fn discover(server: &ServerRef) -> Option<Result<ContainedServer, ServerError>> {
        let Master { info, config, listeners } = master_of(server).ok()?;
        let root = root_of(info.pid)?;
        let named =
            ServerRef { name: None, url: None, config: config.or_else(|| server.config.clone()), ..server.clone() };
        let own =
            |path: &std::path::PathBuf| path.strip_prefix(&root).map(|rest| std::path::Path::new("/").join(rest)).ok();
        let inside = ServerRef { config: named.config.as_ref().and_then(own), ..named.clone() };
        let name = named.to_string();
        let seen = within(info.pid, &inside, Inquiry::Look).and_then(|reply| match reply {
            Reply::Look(portrait) => Ok(*portrait),
            _ => Err(UNEXPECTED.into()),
        });
        let refused = |why: String| ServerError::Setting(refusal(&name, info.pid, &why));
        Some(seen.map_err(refused).and_then(|seen| {
            let facts = Facts {
                kind: server.kind,
                name: name.clone(),
                version: seen.version.clone(),
                model: seen.model.clone(),
                config: named.config.clone(),
                birth: Birth::of(info.pid)?,
                listeners,
                status_url: server.url.clone(),
            };
            let knobs = Box::leak(seen.knobs.clone().into_boxed_slice());
            Ok(ContainedServer { inside, facts, seen, knobs })
        }))
    }

    /// Asks the adapter inside which settings follow from some; `None` if it cannot answer.
    fn settings(&self, inquiry: Inquiry<'_>) -> Option<Settings> {
        match within(self.facts.birth.pid, &self.inside, inquiry) {
            Ok(Reply::Settings(settings)) => Some(settings),
            _ => None,
        }
    }

    /// Returns a change as a patch. For an empty change, the error says how to make one inside the container.
    pub fn tell(&self, change: &Change) -> ServerError {
        let (name, master) = (&self.facts.name, self.facts.birth.pid);
        if change.is_empty() {
            return ServerError::Setting(refusal(name, master, "its own start is its container's"));
        }
        let planned = match within(master, &self.inside, Inquiry::Plan(Cow::Borrowed(change))) {
            Ok(Reply::Plan(planned)) => planned,
            Ok(_) => return ServerError::Setting(UNEXPECTED.into()),
            Err(why) => return ServerError::Setting(why),
        };
        let then = match planned.then {
            NextStep::Reload => format!("kill -{} {master}", self.seen.reload_signal),
            NextStep::Restart => "start its container anew".into(),
            NextStep::StartWith(words) => format!("have its container start it with: {}", words.join(" ")),
        };
        ServerError::NotOurs {
            hindrance: format!("{name} runs in a container, process {master}; the paths are those within"),
            patch: planned.rewrites.iter().map(Rewrite::unified).collect(),
            then,
        }
    }
}

/// Works out what a change would do to a server's files and what brings it into force. Runs where the server is.
pub(super) fn plan(adapter: &dyn Adapter, change: &Change) -> Result<PlannedChange, ServerError> {
    let placement = adapter.placement();
    let mut rewrites: Vec<Rewrite> = match placement {
        Placement::StartedWith => Vec::new(),
        _ => adapter.edits(change)?.iter().map(EditedFile::rewrite).collect(),
    };
    let by_reload = change.settings.keys().all(|name| adapter.needs(name) == Some(ReloadClass::Reload));
    let mut then = if by_reload { NextStep::Reload } else { NextStep::Restart };
    match &placement {
        Placement::Edited => {}
        Placement::IncludedFile(file) => {
            let before = fs::read_to_string(file).ok();
            let after = adapter.render(change, &placement, before.as_deref());
            rewrites.push(Rewrite { path: file.clone(), before, after });
        }
        Placement::OwnFile => {
            let beside = adapter.facts().config.clone().unwrap_or_else(|| "/etc/x".into());
            let path = beside.with_file_name(format!("lastdrop-{}.conf", adapter.facts().kind.name));
            let kept = adapter.kept_override().and_then(|file| fs::read_to_string(file).ok());
            then = NextStep::StartWith(adapter.argv_with(&path));
            rewrites.push(Rewrite { path, before: None, after: adapter.render(change, &placement, kept.as_deref()) });
        }
        Placement::StartedWith => {
            let (birth, launch) = (&adapter.facts().birth, adapter.launch_with(change));
            let is_new = |variable: &&(String, String)| !birth.environment.contains(variable);
            let variables = launch.environment.iter().filter(is_new).map(|(name, value)| format!("{name}={value}"));
            then = NextStep::StartWith(variables.chain(launch.argv.iter().cloned()).collect());
        }
    }
    Ok(PlannedChange { rewrites, then })
}

impl Adapter for ContainedServer {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn knobs(&self) -> &'static [Knob] {
        self.knobs
    }

    fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        Ok(self.seen.effective.clone())
    }

    fn directives(&self) -> BTreeMap<String, String> {
        self.seen.directives.clone()
    }

    fn pool_settings(&self, size: u64, effective: &Settings) -> Settings {
        self.settings(Inquiry::Pool { size, effective: Cow::Borrowed(effective) }).unwrap_or_default()
    }

    fn spare_settings(&self, spares: SpareWorkers, effective: &Settings) -> Settings {
        let spares = [spares.start, spares.min_spare, spares.max_spare];
        self.settings(Inquiry::Spares { spares, effective: Cow::Borrowed(effective) }).unwrap_or_default()
    }

    fn complete(&self, settings: &Settings, effective: &Settings) -> Settings {
        let inquiry = Inquiry::Complete { settings: Cow::Borrowed(settings), effective: Cow::Borrowed(effective) };
        self.settings(inquiry).unwrap_or_else(|| settings.clone())
    }

    fn placement(&self) -> Placement {
        Placement::Edited
    }

    fn needs(&self, name: &str) -> Option<ReloadClass> {
        let at = self.knobs.iter().position(|knob| knob.name == name)?;
        self.seen.needs[at]
    }

    fn check(&self, change: &Change, _file: &std::path::Path) -> Result<(), ServerError> {
        if change.is_empty() { Ok(()) } else { Err(self.tell(change)) }
    }

    fn contained(&self) -> Option<&ContainedServer> {
        Some(self)
    }

    fn daemonizes(&self) -> bool {
        self.seen.daemonizes
    }

    fn reload_signal(&self) -> Signal {
        Signal::try_from(self.seen.reload_signal).unwrap_or(Signal::SIGHUP)
    }
}
