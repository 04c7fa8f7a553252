//! Finds a running server to read it: its processes, listeners and status page. Works for any server, tunable or not.

use std::net::SocketAddr;
use std::path::PathBuf;

use lastdrop_probe::identity::Identity;
use lastdrop_probe::listeners::{self, Endpoint};
use lastdrop_probe::namespace::ConnectionTables;
use lastdrop_probe::process::{self, Helpers, ProcessInfo};
use lastdrop_probe::sampler::SampledServer;
use lastdrop_probe::status::StatusSource;
use nix::sys::signal::Signal;

use crate::adapters::{find_adapter, no_program, not_elsewhere};
use crate::kind::{AdapterName, Kind, LeaveMethod, program_of};
use crate::kinds;
use crate::leftovers::or_restore;
use crate::resolve::{Candidate, choose, listeners_of, masters_anywhere};
use crate::status_page::status_of;
use crate::{ServerError, ServerRef, container};

/// A running server.
#[derive(Debug, Clone)]
pub struct FoundServer {
    /// The name for a command line.
    pub name: String,
    pub kind: &'static Kind,
    /// `Apache/2.4.62 (Debian), prefork`; the program's name if no more is known.
    pub software: String,
    pub master: i32,
    /// True if each worker is a process that serves one request at a time.
    pub prefork: bool,
    /// How to tell child processes that are not workers; taken from the program, even if the server is named by a
    /// process.
    pub helpers: Helpers,
    pub listeners: Vec<SocketAddr>,
    pub status: Option<StatusSource>,
}

impl FoundServer {
    /// True if it runs on a JVM, which fills its configured heap.
    #[must_use]
    pub fn is_jvm(&self) -> bool {
        self.kind.name == "tomcat" || self.software.contains("java")
    }

    /// Ports it listens on.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.listeners.iter().map(SocketAddr::port).collect()
    }

    /// The server as the probe samples it. `url`: the address that a load connects to; `walks` may be shared with samplers of other
    /// servers.
    #[must_use]
    pub fn to_sample(&self, url: Option<Endpoint>, walks: ConnectionTables) -> SampledServer {
        SampledServer {
            master: self.master,
            helpers: self.helpers,
            listeners: self.listeners.clone(),
            status: self.status.clone(),
            url,
            walks,
        }
    }

    /// Process ids of its workers.
    #[must_use]
    pub fn workers(&self) -> Vec<i32> {
        process::worker_pids(self.master, self.helpers)
    }

    /// The signal at which one worker finishes its work and leaves, so that its master starts another.
    ///
    /// # Errors
    /// In words, if a single worker cannot be replaced.
    pub fn leave_signal(&self) -> Result<Signal, String> {
        match &self.kind.leave {
            LeaveMethod::Gracefully(signal) => Ok(*signal),
            LeaveMethod::IfOneRequest { signal, .. } if self.prefork => Ok(*signal),
            LeaveMethod::IfOneRequest { otherwise, .. } => Err(format!(
                "{} is not prefork: one process of it serves many requests at once and cannot be replaced alone; {otherwise}",
                self.name
            )),
            LeaveMethod::Never(why) => Err((*why).into()),
            LeaveMethod::Unknown => {
                Err(format!("how a worker of {} is replaced gracefully is not known yet", self.kind.title))
            }
        }
    }
}

/// Finds the running server with this name.
///
/// # Errors
/// If there is none, if there are several, or if lastdrop may not read it.
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
        // For these kinds, everything needed is visible from outside, even without access to the configuration.
        (None, Some(AdapterName::Nginx | AdapterName::PhpFpm | AdapterName::Described) | None) => from_outside(server),
        (None, Some(AdapterName::Apache | AdapterName::Target)) => by_adapter(server).or_else(|e| {
            // A server whose program is not executed, or that belongs to another user, can still be read from outside.
            let unasked = matches!(e, ServerError::NotAsked { .. } | ServerError::Timeout { .. });
            let outside = from_outside(server).ok();
            let can =
                |found: &FoundServer| unasked || !is_roots(found.master) || container::root_of(found.master).is_some();
            outside.filter(can).ok_or(e)
        }),
        (None, Some(AdapterName::Host)) => Err(no_program(server)),
        // Its configuration names its stats socket.
        (None, Some(AdapterName::Haproxy)) => by_adapter(server).or_else(|_| from_outside(server)),
    }
}

fn is_roots(pid: i32) -> bool {
    Identity::of(pid).is_ok_and(|identity| identity.user() == 0)
}

/// Finds a server through its adapter, which knows most about it.
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

/// Finds the server that listens at an address or path of this machine, by the owner of the socket. `None` if nobody
/// listens there or the owner is not visible.
#[must_use]
pub fn find_listening_at(endpoint: &Endpoint) -> Option<FoundServer> {
    Some(by_process(&process::look(listeners::owner(endpoint)?)?))
}

/// Describes a process without asking the server anything, not even its status page. `None` once it is gone.
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
    // Its title may show its configuration, even if not reliably enough to name the server by it.
    let config = kind.named_by.likely(&info);
    let named = ServerRef { name: None, kind, config: config.clone(), pid: None, url: None, at: None };
    found.name = named.to_string();
    found.listeners = own;
    found.status = status_of(&named, pid, config.as_deref(), &found.listeners);
    // The adapter knows more, if there is one and it finds the same process.
    match find(&named) {
        Ok(same) if same.master == pid => Some(same),
        _ => Some(found),
    }
}

/// The process from which the others with the same command line were forked. HAProxy's master has no listener; its
/// workers have them all.
fn first_of_its_copies(mut info: ProcessInfo) -> ProcessInfo {
    let is_copy = |parent: &ProcessInfo, of: &ProcessInfo| {
        of.exe.is_some() && parent.exe == of.exe && !of.argv.is_empty() && parent.argv == of.argv
    };
    while let Some(parent) = process::look(info.parent).filter(|parent| is_copy(parent, &info)) {
        info = parent;
    }
    info
}

/// Describes a process without asking the server anything.
fn by_process(info: &ProcessInfo) -> FoundServer {
    let kind = kinds::of(info);
    // A process of unknown kind is named by its pid.
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

/// The master process of a server.
pub(crate) struct Master {
    pub info: ProcessInfo,
    pub config: Option<PathBuf>,
    pub listeners: Vec<SocketAddr>,
}

/// Finds the one master that is meant, in a container or not. Returns its configuration path as seen from here, and its
/// listeners.
pub(crate) fn master_of(server: &ServerRef) -> Result<Master, ServerError> {
    let kind = server.kind;
    let mut masters = masters_anywhere(|p| kind.runs(p));
    // A name without further detail means a server of this machine.
    let is_here = |p: &ProcessInfo| container::root_of(p.pid).is_none();
    if server.config.is_none() && server.url.is_none() && masters.iter().any(is_here) {
        masters.retain(is_here);
    }
    let candidate = |p: ProcessInfo| {
        let config = kind.config_of(&p).map(|config| container::seen_from_here(p.pid, &config));
        let listeners = listeners_of(p.pid);
        Candidate { pid: p.pid, found: p, config, listeners }
    };
    let not_found =
        || ServerError::NotFound { what: format!("no running {} is meant", kind.name), advice: kind.advice.into() };
    let meant = choose(masters.into_iter().map(candidate).collect(), server, not_found)?;
    Ok(Master { info: meant.found, config: meant.config, listeners: meant.listeners })
}

/// True if a server that is not asked has loaded the module by which a process serves one request at a time.
fn maps_prefork(kind: &Kind, pid: i32) -> bool {
    matches!(kind.leave, LeaveMethod::IfOneRequest { .. }) && process::maps_any(pid, &["mod_mpm_prefork.so"])
}

/// Describes a server by its kind's table entry alone.
fn from_outside(server: &ServerRef) -> Result<FoundServer, ServerError> {
    let kind = server.kind;
    let Master { info, config, listeners } = master_of(server)?;
    let status = match container::root_of(info.pid) {
        None => status_of(server, info.pid, config.as_deref(), &listeners),
        // File and listeners have their meaning inside the container; a URL is meant from here.
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
        // Two copies below the first wait for input that never comes.
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
