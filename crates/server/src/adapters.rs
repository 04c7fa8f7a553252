//! The table of adapters, and the settings of any server, including the host.

use std::path::PathBuf;

use lastdrop_model::Knob;
use lastdrop_probe::process::Birth;

use crate::adapter::{Adapter, EffectiveSettings};
use crate::apache::Apache;
use crate::container::ContainedServer;
use crate::described::DescribedServer;
use crate::fpm::Fpm;
use crate::haproxy::Haproxy;
use crate::host::Host;
use crate::kind::AdapterName;
use crate::kinds;
use crate::leftovers::or_restore;
use crate::nginx::Nginx;
use crate::target::Target;
use crate::{ServerError, ServerRef};

/// Finds the running server with this name.
///
/// # Errors
/// If there is none, if there are several, or if lastdrop may not read it.
pub fn discover(server: &ServerRef) -> Result<Box<dyn Adapter>, ServerError> {
    not_elsewhere(server)?;
    find_adapter(server)
        .or_else(|e| {
            let may_be_contained = matches!(e, ServerError::NotFound { .. } | ServerError::Io { .. });
            let contained = may_be_contained.then(|| ContainedServer::discover(server)).flatten();
            contained.map_or(Err(e), |found| found.map(|found| Box::new(found) as Box<dyn Adapter>))
        })
        .map_err(|e| or_restore(e, server))
}

/// Refuses a server of another machine: it is not searched for on this one.
pub(crate) fn not_elsewhere(server: &ServerRef) -> Result<(), ServerError> {
    let Some(agent) = server.agents().first() else { return Ok(()) };
    Err(ServerError::Setting(format!(
        "'{server}' is on another machine: this is done there (on {agent}: {}). watch, knobs, doctor, run --server, sweep, tune and restore \
         reach it from here",
        server.there()
    )))
}

/// Folders whose files a running server serves or names to its backends; empty for kinds where this is unknown.
///
/// # Errors
/// If there is no such server, or its configuration cannot be read.
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
        AdapterName::Described => Box::new(DescribedServer::discover(server)?),
        AdapterName::Haproxy => Box::new(Haproxy::discover(server)?),
        AdapterName::Nginx => Box::new(Nginx::discover(server)?),
        AdapterName::PhpFpm => Box::new(Fpm::discover(server)?),
        AdapterName::Target => Box::new(Target::discover(server)?),
        AdapterName::Host => return Err(no_program(server)),
    })
}

/// Tests the configuration that a command line would start the server with, whatever it runs on now. Returns `None` if
/// the kind can only be tested as it runs.
pub(crate) fn test_start(server: &ServerRef, birth: &Birth) -> Option<Result<(), ServerError>> {
    // The command line behind a process title is unknown.
    if birth.argv.is_empty() {
        return None;
    }
    match server.kind.adapter? {
        AdapterName::Apache => Some(crate::apache::test_start(birth)),
        AdapterName::Described => crate::described::test_start(server, birth),
        AdapterName::Haproxy => Some(crate::haproxy::test_start(birth)),
        AdapterName::Nginx => Some(crate::nginx::test_start(birth)),
        AdapterName::Target => Some(crate::target::test_start(birth)),
        // The journal of an earlier version does not list what else root would read.
        AdapterName::PhpFpm => (!birth.code.is_empty()).then(|| crate::fpm::test_start(birth)),
        AdapterName::Host => None,
    }
}

/// The error for a request to the host that needs a program.
pub(crate) fn no_program(server: &ServerRef) -> ServerError {
    ServerError::Setting(format!(
        "'{server}' has settings, and no process that is it: name the server that runs there (lastdrop knobs {server} lists \
         its settings)"
    ))
}

/// The settings of a running server.
#[derive(Debug)]
pub struct ServerKnobs {
    /// The server's name as on a command line.
    pub server: String,
    /// The knobs, each with what a change of it needs on this server.
    pub knobs: Vec<Knob>,
    pub effective: EffectiveSettings,
    /// Values of directives that are not knobs, by name.
    pub directives: std::collections::BTreeMap<String, String>,
}

/// Reads the present settings of a server or of the host. Changes nothing.
///
/// # Errors
/// Those of [`discover`], or the settings cannot be read.
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
