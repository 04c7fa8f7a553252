//! Finds a running server for looking at it: its processes, its listeners, its status page. Any server, tunable or not.

use std::net::SocketAddr;
use std::path::PathBuf;

use lastdrop_probe::identity::Identity;
use lastdrop_probe::listeners::{self, Endpoint};
use lastdrop_probe::process::{self, Helpers, ProcessInfo};
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;

use crate::adapters::{find_adapter, no_program, not_elsewhere};
use crate::kind::{AdapterName, Kind, Leave, program_of};
use crate::kinds;
use crate::leftovers::or_restore;
use crate::resolve::{Candidate, choose, listeners_of, masters_anywhere};
use crate::status_page::status_of;
use crate::{ServerError, ServerRef, container};

/// A server that runs.
#[derive(Debug, Clone)]
pub struct FoundServer {
    /// As it is named on a command line.
    pub name: String,
    pub kind: &'static Kind,
    /// `Apache/2.4.62 (Debian), prefork`; the program's name where no more is known.
    pub software: String,
    pub master: i32,
    /// Workers are processes of one request each.
    pub prefork: bool,
    /// Which of its children are no workers: told by the program, also where the server is named by a process.
    pub helpers: Helpers,
    pub listeners: Vec<SocketAddr>,
    pub status: Option<StatusSource>,
}

impl FoundServer {
    /// Ports that it listens on.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.listeners.iter().map(SocketAddr::port).collect()
    }

    /// Process ids of its workers.
    #[must_use]
    pub fn workers(&self) -> Vec<i32> {
        process::worker_pids(self.master, self.helpers)
    }

    /// The signal at which one worker finishes what it does and leaves, its master putting another in its place.
    ///
    /// # Errors
    /// In words, where one worker cannot be replaced alone.
    pub fn leave_signal(&self) -> Result<Signal, String> {
        match &self.kind.leave {
            Leave::Gracefully(signal) => Ok(*signal),
            Leave::IfOneRequest { signal, .. } if self.prefork => Ok(*signal),
            Leave::IfOneRequest { otherwise, .. } => Err(format!(
                "{} is not prefork: one process of it serves many requests at once and cannot be replaced alone; {otherwise}",
                self.name
            )),
            Leave::Never(why) => Err((*why).into()),
            Leave::Unknown => {
                Err(format!("how a worker of {} is replaced gracefully is not known yet", self.kind.title))
            }
        }
    }
}

/// Finds the running server that a name means.
///
/// # Errors
/// When there is none, more than one, or it may not be looked at.
pub fn find(server: &ServerRef) -> Result<FoundServer, ServerError> {
    not_elsewhere(server)?;
    let found = find_any(server).map_err(|e| match e {
        ServerError::NotFound { what, advice } if !nix::unistd::geteuid().is_root() => ServerError::NotFound {
            what,
            advice: format!("{advice}; one of another user is found as root (sudo), or by its process: pid:1234"),
        },
        other => other,
    });
    found.map_err(|e| or_restore(e, server))
}

fn find_any(server: &ServerRef) -> Result<FoundServer, ServerError> {
    match (server.pid, server.kind.adapter) {
        (Some(pid), _) => {
            let info = process::look(pid).ok_or_else(|| ServerError::NotFound {
                what: format!("no process has the id {pid}"),
                advice: server.kind.advice.into(),
            })?;
            Ok(FoundServer { name: server.unnamed().to_string(), kind: server.kind, master: pid, ..by_process(&info) })
        }
        // These tell all that a look needs, also to those who may not read their configuration.
        (None, Some(AdapterName::Nginx | AdapterName::PhpFpm) | None) => from_outside(server),
        // One that writes a title over its command line is known by its adapter alone.
        (None, Some(AdapterName::Described)) => from_outside(server).or_else(|e| {
            let one_request = server.kind.one_request_a_worker;
            by_adapter(server).map(|found| FoundServer { prefork: one_request, ..found }).map_err(|_| e)
        }),
        (None, Some(AdapterName::Apache | AdapterName::Target)) => by_adapter(server).or_else(|e| {
            // One that is not asked, or is another user's and tells nothing, can be looked at all the same.
            let unasked = matches!(e, ServerError::NotAsked { .. } | ServerError::Timeout { .. });
            let outside = from_outside(server).ok();
            let can =
                |found: &FoundServer| unasked || !is_roots(found.master) || container::root_of(found.master).is_some();
            outside.filter(can).ok_or(e)
        }),
        (None, Some(AdapterName::Host)) => Err(no_program(server)),
        // Its configuration tells where its stats socket is.
        (None, Some(AdapterName::Haproxy)) => by_adapter(server).or_else(|_| from_outside(server)),
    }
}

fn is_roots(pid: i32) -> bool {
    Identity::of(pid).is_ok_and(|identity| identity.user() == 0)
}

/// A kind of server that can be changed: whoever does that knows it best.
fn by_adapter(server: &ServerRef) -> Result<FoundServer, ServerError> {
    let adapter = find_adapter(server)?;
    let facts = adapter.facts();
    Ok(FoundServer {
        name: facts.name.clone(),
        kind: server.kind,
        software: adapter.software(),
        master: facts.birth.pid,
        prefork: facts.model == "prefork",
        helpers: server.kind.helpers,
        listeners: facts.listeners.clone(),
        status: adapter.status(),
    })
}

/// The server that listens at an address or path of this machine, found by the owner of the socket. None where nobody
/// listens there or its owner may not be seen.
#[must_use]
pub fn find_listening_at(endpoint: &Endpoint) -> Option<FoundServer> {
    Some(by_process(&process::look(listeners::owner(endpoint)?)?))
}

/// What can be told of a process without asking the server anything, its status page included. None once it is gone.
#[must_use]
pub fn found_of_process(pid: i32) -> Option<FoundServer> {
    let listens = process::look(pid)?;
    let own = listeners_of(pid);
    let info = first_of_its_copies(listens);
    let pid = info.pid;
    let kind = kinds::of(&info);
    let mut found = by_process(&info);
    if kind.programs.is_empty() || kind.is_host() {
        return Some(found);
    }
    // Its own title may tell its configuration, where that is not certain enough to name it.
    let config = kind.named_by.likely(&info);
    let named = ServerRef { name: None, kind, config: config.clone(), pid: None, url: None, at: None };
    found.name = named.to_string();
    found.listeners = own;
    found.status = status_of(&named, pid, config.as_deref(), &found.listeners);
    // The adapter knows more, where there is one and it means the same process.
    match find(&named) {
        Ok(same) if same.master == pid => Some(same),
        _ => Some(found),
    }
}

/// The process that the others of one command line were forked from: HAProxy's master has no listener, its workers have them all.
fn first_of_its_copies(mut info: ProcessInfo) -> ProcessInfo {
    let is_copy = |parent: &ProcessInfo, of: &ProcessInfo| {
        of.exe.is_some() && parent.exe == of.exe && !of.argv.is_empty() && parent.argv == of.argv
    };
    while let Some(parent) = process::look(info.parent).filter(|parent| is_copy(parent, &info)) {
        info = parent;
    }
    info
}

/// What can be told of a process without asking the server anything.
fn by_process(info: &ProcessInfo) -> FoundServer {
    let kind = kinds::of(info);
    // A process of no kind is named by itself.
    let pid = kind.programs.is_empty().then_some(info.pid);
    FoundServer {
        name: ServerRef { name: None, kind, config: kind.named_by.certain(info), pid, url: None, at: None }.to_string(),
        kind,
        software: program_of(info),
        master: info.pid,
        prefork: kind.one_request_a_worker,
        helpers: kind.helpers,
        listeners: listeners::of_process(info.pid).unwrap_or_default(),
        status: None,
    }
}

/// A process that is a server's master.
pub(crate) struct Master {
    pub info: ProcessInfo,
    pub config: Option<PathBuf>,
    pub listeners: Vec<SocketAddr>,
}

/// The one master that is meant, in a container or not, its configuration as seen from here, and where it listens.
pub(crate) fn master_of(server: &ServerRef) -> Result<Master, ServerError> {
    let kind = server.kind;
    let mut masters = masters_anywhere(|p| kind.runs(p));
    // Who does not say which one means one of this machine.
    let is_here = |p: &ProcessInfo| container::root_of(p.pid).is_none();
    if server.config.is_none() && server.url.is_none() && masters.iter().any(is_here) {
        masters.retain(is_here);
    }
    let candidate = |p: ProcessInfo| {
        let config = kind.named_by.likely(&p).map(|config| container::seen_from_here(p.pid, &config));
        let listeners = listeners_of(p.pid);
        Candidate { pid: p.pid, found: p, config, listeners }
    };
    let not_found =
        || ServerError::NotFound { what: format!("no running {} is meant", kind.name), advice: kind.advice.into() };
    let meant = choose(masters.into_iter().map(candidate).collect(), server, not_found)?;
    Ok(Master { info: meant.found, config: meant.config, listeners: meant.listeners })
}

/// Has a server that is not asked loaded the module by which a process serves one request at a time?
fn maps_prefork(kind: &Kind, pid: i32) -> bool {
    matches!(kind.leave, Leave::IfOneRequest { .. }) && process::maps_any(pid, &["mod_mpm_prefork.so"])
}

/// It, with all that its row tells.
fn from_outside(server: &ServerRef) -> Result<FoundServer, ServerError> {
    let kind = server.kind;
    let Master { info, config, listeners } = master_of(server)?;
    let status = match container::root_of(info.pid) {
        None => status_of(server, info.pid, config.as_deref(), &listeners),
        // What its configuration and its listeners say is meant within; a URL is ours.
        Some(_) => status_of(server, info.pid, None, &[]),
    };
    Ok(FoundServer {
        kind,
        software: program_of(&info),
        master: info.pid,
        prefork: kind.one_request_a_worker || maps_prefork(kind, info.pid),
        helpers: kind.helpers,
        status,
        name: ServerRef { name: None, kind, config, pid: None, url: None, at: None }.to_string(),
        listeners,
    })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_asked_to_leave_as_its_kind_says_or_it_is_said_why_not() {
        let found = |kind: &str, prefork| FoundServer {
            name: kind.into(),
            kind: kinds::named(kind).expect("a kind"),
            software: String::new(),
            master: 1,
            prefork,
            helpers: &[],
            listeners: Vec::new(),
            status: None,
        };
        let told = |kind, prefork| found(kind, prefork).leave_signal();
        assert_eq!(told("apache", true), Ok(Signal::SIGUSR1));
        assert_eq!((told("nginx", false), told("php-fpm", true)), (Ok(Signal::SIGQUIT), Ok(Signal::SIGQUIT)));
        let threaded = told("apache", false).expect_err("threads");
        assert!(
            threaded.contains("apache is not prefork") && threaded.contains("MaxConnectionsPerChild"),
            "{threaded}"
        );
        assert!(told("pid", true).expect_err("unknown").contains("name the server by its kind"));
    }

    #[test]
    fn a_process_is_of_the_first_of_its_copies_and_of_no_other_parent() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        // Two copies below the first wait for what nobody writes.
        let script = format!("( ( read -r x <'{0}'; true ) & wait ) & wait", pipe.display());
        let mut first = std::process::Command::new("bash").args(["-c", &script]).spawn().expect("bash");
        let pid = i32::try_from(first.id()).expect("a pid");
        let last = loop {
            let below = |pid: i32| process::child_pids(pid).first().copied();
            if let Some(last) = below(pid).and_then(below) {
                break last;
            }
            assert!(first.try_wait().expect("its state").is_none(), "it ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        let master = found_of_process(last).map(|found| found.master);
        std::fs::OpenOptions::new().write(true).open(&pipe).expect("the pipe");
        first.wait().expect("it ends");
        assert_eq!(master, Some(pid));
    }
}
