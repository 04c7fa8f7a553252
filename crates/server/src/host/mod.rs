//! The host as a server: settings of a server's network namespace, of the whole machine, and of the server's processes.
//!
//! The host has no process of its own, no configuration file and no restart. The kernel applies a value at once, and
//! /proc is all there is to read. So it has its own session type ([`HostSession`]). It has what every session has: a
//! lock, a journal on disk before the first change, and a restore that needs only the journal.

mod journal;
mod kept;
pub mod knobs;
mod limits;
mod namespace_access;
mod session;
mod undo;

use std::net::{SocketAddr, ToSocketAddrs};

use lastdrop_model::{Knob, Setting};
use lastdrop_probe::{listeners, process};

pub use journal::{HostJournal, is_of_a_host};
pub(crate) use knobs::SOMAXCONN;
use knobs::{HostKnob, KNOBS, Scope};
use namespace_access::{NamespaceAccess, Process};
pub use session::HostSession;
pub use undo::restore;

use crate::adapter::EffectiveSettings;
use crate::{ServerError, ServerRef};

/// The host of a server.
#[derive(Debug)]
pub struct Host {
    name: String,
    place: NamespaceAccess,
    /// A process in the namespace: the one that listens at the URL, otherwise lastdrop itself.
    process: Process,
    /// True if the limits of that process and its children are among the settings.
    has_limits: bool,
}

impl Host {
    /// Finds the network namespace that a name means: that of the process that listens at its URL, otherwise lastdrop's
    /// own.
    ///
    /// # Errors
    /// If no process listens there, or it may not be inspected.
    pub fn find(server: &ServerRef) -> Result<Host, ServerError> {
        Host::beside(server, None)
    }

    /// Like [`Host::find`]; without a URL in the name, uses the namespace of `process` and its children.
    ///
    /// # Errors
    /// As [`Host::find`].
    pub(crate) fn beside(server: &ServerRef, process: Option<i32>) -> Result<Host, ServerError> {
        let pid = match (&server.url, process) {
            (Some(url), _) => listener(server, (url.host.as_str(), url.port))?,
            (None, Some(pid)) => pid,
            (None, None) => std::process::id() as i32,
        };
        let has_limits = server.url.is_some() || process.is_some();
        let info = process::look(pid).ok_or(lastdrop_probe::ProbeError::Gone(pid))?;
        let (place, process) = (NamespaceAccess::of(pid)?, (pid, info.start_ticks));
        Ok(Host { name: server.to_string(), place, process, has_limits })
    }

    /// The name from the command line.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The available settings. Those of connection tracking exist if the kernel's module is loaded.
    #[must_use]
    pub fn knobs(&self) -> Vec<&'static Knob> {
        self.rows().map(|(row, _)| &row.knob).collect()
    }

    /// Returns the present values in the kernel.
    ///
    /// # Errors
    /// If they may not be read.
    pub fn effective(&self) -> Result<EffectiveSettings, ServerError> {
        let mut effective = EffectiveSettings::default();
        let mut left_out = Vec::new();
        for row in KNOBS.iter().filter(|row| self.has(row)) {
            let name = row.knob.name;
            let Some((value, source)) = self.value(row)? else {
                left_out.push(name);
                continue;
            };
            effective.settings.insert(name.into(), value);
            effective.sources.insert(name.into(), source);
        }
        if !self.place.is_ours() {
            let (pid, _) = self.process;
            let program = process::name(pid).unwrap_or_default();
            effective.notes.push(format!("its network namespace is that of process {pid} ({program}), not ours"));
        }
        if !left_out.is_empty() {
            effective.notes.push(format!(
                "not there (no connection tracking, or not to be seen from here): {}",
                left_out.join(", ")
            ));
        }
        Ok(effective)
    }

    /// True if the setting exists for this host.
    fn has(&self, row: &HostKnob) -> bool {
        row.scope != Scope::Processes || self.has_limits
    }

    fn rows(&self) -> impl Iterator<Item = (&'static HostKnob, Setting)> {
        KNOBS.iter().filter(|row| self.has(row)).filter_map(|row| Some((row, self.value(row).ok()??.0)))
    }

    /// The present value, and its source.
    fn value(&self, row: &HostKnob) -> Result<Option<(Setting, String)>, ServerError> {
        let whose = match row.scope {
            Scope::Namespace => "of this network namespace",
            Scope::Machine => "of the whole machine",
            Scope::Processes => {
                let (pid, _) = self.process;
                return Ok(limits::shown(pid).map(|(soft, hard)| {
                    let source = format!("/proc/{pid}/limits, of the server's processes; hard limit {hard}");
                    (Setting::from(soft), source)
                }));
            }
        };
        let value = self.place.read(row)?;
        Ok(value.map(|text| (Setting::read(&text), format!("{}, {whose}", row.file))))
    }
}

/// Why the kernel would shorten the listen queue that a process wants; `None` if it would not or that is unknown.
pub(crate) fn queue_beyond(pid: i32, wanted: u64) -> Option<String> {
    let row = KNOBS.iter().find(|row| row.knob.name == SOMAXCONN)?;
    let most: u64 = NamespaceAccess::of(pid).ok()?.read(row).ok()??.parse().ok()?;
    (wanted > most).then(|| format!("{SOMAXCONN} is {most}: no queue gets longer than that"))
}

/// The process that listens at a host and port, in any namespace.
fn listener(server: &ServerRef, at: (&str, u16)) -> Result<i32, ServerError> {
    let addresses: Vec<SocketAddr> =
        at.to_socket_addrs().map_err(ServerError::io(format!("cannot find '{}'", at.0)))?.collect();
    let owners = addresses.into_iter().map(listeners::owners_anywhere).find(|owners| !owners.is_empty());
    match owners.unwrap_or_default()[..] {
        [one] => Ok(one),
        [] => Err(ServerError::NotFound {
            what: format!("nobody who can be seen listens where '{server}' says"),
            advice: format!("{}; other users' processes are seen as root", server.kind.advice),
        }),
        ref several => Err(ServerError::NotFound {
            what: format!("'{server}' is in several network namespaces, of the processes {several:?}"),
            advice: "run lastdrop in the one that is meant: nsenter -n -t PROCESS lastdrop …".into(),
        }),
    }
}
