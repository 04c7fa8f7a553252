//! The adapters, a line each; and what settings a server has, whether it has an adapter or is the host.

use std::path::PathBuf;

use lastdrop_model::Knob;
use lastdrop_probe::process::Birth;

use crate::adapter::{Adapter, EffectiveSettings};
use crate::apache::Apache;
use crate::container::Contained;
use crate::described::Described;
use crate::fpm::Fpm;
use crate::haproxy::Haproxy;
use crate::host::Host;
use crate::kind::AdapterName;
use crate::kinds;
use crate::leftovers::or_restore;
use crate::nginx::Nginx;
use crate::target::Target;
use crate::{ServerError, ServerRef};

/// Finds the running server that a name means.
///
/// # Errors
/// When there is none, more than one, or it may not be looked at.
pub fn discover(server: &ServerRef) -> Result<Box<dyn Adapter>, ServerError> {
    not_elsewhere(server)?;
    find_adapter(server)
        .or_else(|e| {
            let may_be_contained = matches!(e, ServerError::NotFound { .. } | ServerError::Io { .. });
            let contained = may_be_contained.then(|| Contained::discover(server)).flatten();
            contained.map_or(Err(e), |found| found.map(|found| Box::new(found) as Box<dyn Adapter>))
        })
        .map_err(|e| or_restore(e, server))
}

/// A server of another machine is not looked for on this one.
pub(crate) fn not_elsewhere(server: &ServerRef) -> Result<(), ServerError> {
    let Some(agent) = server.agents().first() else { return Ok(()) };
    Err(ServerError::Setting(format!(
        "'{server}' is on another machine: this is done there (on {agent}: {}). watch, knobs, doctor, run --server, sweep, tune and restore \
         reach it from here",
        server.there()
    )))
}

/// Folders whose files a running server serves, or names to those behind it: empty for kinds of which that is not known.
///
/// # Errors
/// When there is no such server, or its configuration cannot be read.
pub fn served_folders(server: &ServerRef) -> Result<Vec<PathBuf>, ServerError> {
    Ok(match server.kind.adapter {
        Some(AdapterName::Nginx) => Nginx::discover(server)?.served_folders()?,
        Some(AdapterName::Apache) => Apache::discover(server)?.served_folders(),
        _ => Vec::new(),
    })
}

pub(crate) fn find_adapter(server: &ServerRef) -> Result<Box<dyn Adapter>, ServerError> {
    let adapter = server.kind.adapter.ok_or_else(|| {
        if server.kind.database.is_some() {
            return ServerError::Setting(format!(
                "'{server}' is a database: it is looked at as the end of a chain (lastdrop watch nginx php-fpm {server}), and its \
                 settings are never read for change or changed; those of {} are",
                kinds::changeable()
            ));
        }
        ServerError::Setting(format!(
            "the settings of '{server}' cannot be read or changed yet; those of {} can. Any server can be loaded \
             (lastdrop run URL) and looked at (lastdrop watch {server})",
            kinds::changeable()
        ))
    })?;
    Ok(match adapter {
        AdapterName::Apache => Box::new(Apache::discover(server)?),
        AdapterName::Described => Box::new(Described::discover(server)?),
        AdapterName::Haproxy => Box::new(Haproxy::discover(server)?),
        AdapterName::Nginx => Box::new(Nginx::discover(server)?),
        AdapterName::PhpFpm => Box::new(Fpm::discover(server)?),
        AdapterName::Target => Box::new(Target::discover(server)?),
        AdapterName::Host => return Err(no_program(server)),
    })
}

/// Tests the configuration that a server has when it is started with a command line, whatever it runs on now. None: its kind is
/// tested only as it runs.
pub(crate) fn test_start(server: &ServerRef, birth: &Birth) -> Option<Result<(), ServerError>> {
    // Nobody knows a command line behind a title.
    if birth.argv.is_empty() {
        return None;
    }
    match server.kind.adapter? {
        AdapterName::Apache => Some(crate::apache::test_start(birth)),
        AdapterName::Described => crate::described::test_start(server, birth),
        AdapterName::Haproxy => Some(crate::haproxy::test_start(birth)),
        AdapterName::Nginx => Some(crate::nginx::test_start(birth)),
        AdapterName::Target => Some(crate::target::test_start(birth)),
        // A journal of an earlier version does not say what else root would read.
        AdapterName::PhpFpm => (!birth.code.is_empty()).then(|| crate::fpm::test_start(birth)),
        AdapterName::Host => None,
    }
}

/// What is wanted of the host and only a program can give.
pub(crate) fn no_program(server: &ServerRef) -> ServerError {
    ServerError::Setting(format!(
        "'{server}' has settings, and no process that is it: name the server that runs there (lastdrop knobs {server} lists \
         its settings)"
    ))
}

/// The settings of a running server.
#[derive(Debug)]
pub struct ServerKnobs {
    /// The server, as it is named on a command line.
    pub server: String,
    /// Each with what a change of it needs here.
    pub knobs: Vec<Knob>,
    pub effective: EffectiveSettings,
    /// Directives that are no settings, by name.
    pub directives: std::collections::BTreeMap<String, String>,
}

/// Reads the settings that a server, or the host, has now. Changes nothing.
///
/// # Errors
/// As [`discover`]; or when they cannot be read.
pub fn knobs_of(server: &ServerRef) -> Result<ServerKnobs, ServerError> {
    not_elsewhere(server)?;
    if server.kind.is_host() {
        let host = Host::find(server)?;
        return Ok(ServerKnobs {
            server: host.name().into(),
            knobs: host.knobs().into_iter().copied().collect(),
            effective: host.effective()?,
            directives: std::collections::BTreeMap::new(),
        });
    }
    let adapter = discover(server)?;
    let effective = adapter.effective()?;
    let here = |knob: &Knob| Knob { needs: adapter.needs(knob.name).unwrap_or(knob.needs), ..*knob };
    let knobs = adapter.knobs().iter().map(here).collect();
    Ok(ServerKnobs { server: adapter.facts().name.clone(), knobs, effective, directives: adapter.directives() })
}
