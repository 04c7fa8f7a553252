//! What lastdrop wants to know of a kind of server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lastdrop_model::{Knob, Role, ServerKind, ServerRef, Setting, Settings, Url};
use lastdrop_probe::process::{self, Birth};
use nix::sys::signal::Signal;

use crate::{ServerError, apache, target};

/// A running server, as found.
#[derive(Debug, Clone)]
pub struct Facts {
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

/// The settings that a running server has now.
#[derive(Debug, Clone, Default)]
pub struct Effective {
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
}

/// One kind of server software. Looks, computes and tests; changes nothing.
pub trait Adapter: Send {
    fn facts(&self) -> &Facts;

    fn knobs(&self) -> &'static [Knob];

    /// What the running server does.
    ///
    /// # Errors
    /// When neither the server nor its configuration can be read.
    fn effective(&self) -> Result<Effective, ServerError>;

    /// Settings for a pool of `size` workers that are all kept alive, as this kind spells it.
    fn pool_settings(&self, size: u64, effective: &Settings) -> Settings;

    /// Where an override of `settings` would go.
    fn placement(&self, settings: &Settings) -> Placement;

    /// The text of the override: what an earlier `--keep` left (`kept`, the text of its file), then `settings`. For a file
    /// of our own it begins with the inclusion of the original configuration.
    fn render(&self, settings: &Settings, placement: &Placement, kept: Option<&str>) -> String;

    /// The command line that starts the server on our file instead of its own.
    fn argv_with(&self, file: &Path) -> Vec<String>;

    /// The override of ours that a running server was started on, if it was (after an earlier `--keep`).
    fn kept_override(&self) -> Option<PathBuf>;

    /// Would the server take these settings as they are; with none, does its own configuration pass its test? `file` is
    /// a place for a temporary configuration.
    ///
    /// # Errors
    /// With the server's own words.
    fn check(&self, settings: &Settings, file: &Path) -> Result<(), ServerError>;

    /// Does the server detach itself from whoever starts it?
    fn daemonizes(&self) -> bool;

    /// Makes the server read its configuration again and replace its workers gracefully.
    fn reload_signal(&self) -> Signal;

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

/// Finds the running server that a name means.
///
/// # Errors
/// When there is none, more than one, or it may not be looked at.
pub fn discover(server: &ServerRef) -> Result<Box<dyn Adapter>, ServerError> {
    Ok(match server.kind {
        ServerKind::Apache => Box::new(apache::Apache::discover(server)?),
        ServerKind::Target => Box::new(target::Target::discover(server)?),
        ServerKind::Nginx | ServerKind::Fpm | ServerKind::Pid(_) => {
            return Err(ServerError::Setting(format!(
                "the settings of '{server}' cannot be read or changed yet; those of apache and target can. Any server can \
                 be loaded (lastdrop run URL) and looked at (lastdrop watch {server})"
            )));
        }
    })
}

/// Master processes whose program has one of these names: those whose parent has not.
pub(crate) fn masters(programs: &[&str]) -> Result<Vec<process::ProcessInfo>, ServerError> {
    let all = process::all();
    let named = |p: &process::ProcessInfo| {
        p.exe
            .as_ref()
            .and_then(|e| e.file_name())
            .map(|n| n.to_string_lossy().trim_end_matches(" (deleted)").to_string())
            .is_some_and(|n| programs.contains(&n.as_str()))
    };
    let group: Vec<_> = all.iter().filter(|p| named(p)).collect();
    let pids: Vec<i32> = group.iter().map(|p| p.pid).collect();
    let found: Vec<_> = group.into_iter().filter(|p| !pids.contains(&p.parent)).cloned().collect();
    if found.is_empty() {
        // Another user's processes show their command line but not their program.
        let hidden = all.iter().find(|p| {
            p.exe.is_none()
                && p.argv
                    .first()
                    .is_some_and(|a| Path::new(a).file_name().is_some_and(|n| programs.iter().any(|p| n == *p)))
        });
        if let Some(p) = hidden {
            return Err(ServerError::Permission {
                what: format!("cannot look at process {} ({})", p.pid, p.argv.join(" ")),
            });
        }
    }
    Ok(found)
}

/// Chooses the one master that is meant: by configuration, by the port of the URL, or because it is the only one.
pub(crate) fn choose<T>(
    mut candidates: Vec<(T, Option<PathBuf>, Vec<SocketAddr>)>,
    server: &ServerRef,
    not_found: impl FnOnce() -> ServerError,
) -> Result<(T, Option<PathBuf>, Vec<SocketAddr>), ServerError> {
    if let Some(wanted) = &server.config {
        let real =
            std::fs::canonicalize(wanted).map_err(ServerError::io(format!("cannot read {}", wanted.display())))?;
        candidates.retain(|(_, config, _)| {
            config.as_ref().is_some_and(|c| std::fs::canonicalize(c).is_ok_and(|c| c == real))
        });
    }
    if let Some(url) = &server.url {
        candidates.retain(|(_, _, listeners)| listeners.iter().any(|l| l.port() == url.port));
    }
    if candidates.len() > 1 {
        let names: Vec<String> = candidates
            .iter()
            .map(|(_, c, _)| c.as_ref().map_or("(no file)".to_string(), |c| format!("{}:{}", server.kind, c.display())))
            .collect();
        return Err(ServerError::NotFound {
            what: format!("'{server}' could be any of {} servers", candidates.len()),
            advice: format!("name one: {}", names.join(", ")),
        });
    }
    candidates.pop().ok_or_else(not_found)
}
