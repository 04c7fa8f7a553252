//! Finds the running process that a server name means.

use std::collections::HashSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use lastdrop_model::Url;
use lastdrop_probe::process::{self, ProcessInfo};
use lastdrop_probe::{ProbeError, listeners, namespace};

use crate::private::is_settings_file;
use crate::{ServerError, ServerRef, container, restart};

/// Master processes of a program: those whose parent is of another program or user. Excludes containers, because file
/// names have another meaning there.
pub(crate) fn masters(is_of: impl Fn(&ProcessInfo) -> bool) -> Vec<ProcessInfo> {
    let mut masters = masters_anywhere(is_of);
    masters.retain(|p| container::root_of(p.pid).is_none());
    masters
}

/// How often to look again for the parent of processes that seem to be masters side by side, and how long to wait before.
const LOOKS_FOR_PARENT: u32 = 3;
const BEFORE_NEXT_LOOK: Duration = Duration::from_millis(30);

/// The same including containers.
pub(crate) fn masters_anywhere(is_of: impl Fn(&ProcessInfo) -> bool) -> Vec<ProcessInfo> {
    let mut masters = masters_now(&is_of);
    for _ in 0..LOOKS_FOR_PARENT {
        if !share_a_parent(&masters) {
            break;
        }
        thread::sleep(BEFORE_NEXT_LOOK);
        masters = masters_now(&is_of);
    }
    leave_out_heirs(&mut masters);
    masters
}

fn masters_now(is_of: impl Fn(&ProcessInfo) -> bool) -> Vec<ProcessInfo> {
    let mut group = process::all();
    group.retain(is_of);
    restart::masters(&group).into_iter().cloned().collect()
}

/// True if several have one parent that runs their program: workers of a master that was not recognised, since it changed
/// its title at that moment.
fn share_a_parent(masters: &[ProcessInfo]) -> bool {
    let is_shared = |p: &&ProcessInfo| masters.iter().any(|other| other.pid != p.pid && other.parent == p.parent);
    let runs_it = |p: &ProcessInfo| process::look(p.parent).is_some_and(|parent| parent.exe == p.exe);
    masters.iter().filter(is_shared).any(|p| p.exe.is_some() && runs_it(p))
}

/// Removes processes that inherited all their listening sockets from an older master. Such a process was started by a
/// server, has left it, and still runs the server's own program. It holds the sockets but serves no requests.
fn leave_out_heirs(masters: &mut Vec<ProcessInfo>) {
    if masters.len() < 2 {
        return;
    }
    let own = |p: &ProcessInfo| (p.start_ticks, listeners::inodes_of_listeners(p.pid));
    let all: Vec<_> = masters.iter().map(own).collect();
    let is_heir = |(began, held): &(u64, HashSet<u64>)| {
        let older = all.iter().filter(|(other, _)| other < began);
        !held.is_empty() && older.into_iter().any(|(_, theirs)| held.is_subset(theirs))
    };
    let mut heirs = all.iter().map(is_heir);
    masters.retain(|_| !heirs.next().unwrap_or(false));
}

/// Listeners of a master. Its workers hold the same sockets, so they are used if the master belongs to another user or
/// has none, as HAProxy's.
pub(crate) fn listeners_of(master: i32) -> Vec<SocketAddr> {
    let own = listeners::of_process(master).ok().filter(|own| !own.is_empty());
    own.unwrap_or_else(|| {
        let workers = process::child_pids(master).into_iter();
        workers.filter_map(|pid| listeners::of_process(pid).ok()).find(|own| !own.is_empty()).unwrap_or_default()
    })
}

/// A master that may be the one that is meant, with what was found about it.
pub(crate) struct Candidate<T> {
    pub pid: i32,
    pub found: T,
    pub config: Option<PathBuf>,
    pub listeners: Vec<SocketAddr>,
}

/// Selects candidates that listen on the port of a URL. If there are several and the URL is local, prefers those in
/// lastdrop's own network namespace.
fn at<T>(url: &Url, candidates: &mut Vec<Candidate<T>>) {
    candidates.retain(|c| c.listeners.iter().any(|l| l.port() == url.port));
    if candidates.len() < 2 {
        return;
    }
    let ours = namespace::inode_of(std::process::id() as i32);
    let is_ours = |c: &Candidate<T>| namespace::inode_of(c.pid) == ours;
    if candidates.iter().any(is_ours) {
        let addresses = (url.host.as_str(), url.port).to_socket_addrs();
        if addresses.is_ok_and(|mut all| all.any(|a| listeners::is_local(&a))) {
            candidates.retain(is_ours);
        }
    }
}

/// Chooses the one master that is meant: by configuration, by the port of the URL, or because it is the only one.
pub(crate) fn choose<T>(
    mut candidates: Vec<Candidate<T>>,
    server: &ServerRef,
    not_found: impl FnOnce() -> ServerError,
) -> Result<Candidate<T>, ServerError> {
    if let Some(wanted) = &server.config {
        std::fs::metadata(wanted).map_err(ServerError::io(format!("cannot read {}", wanted.display())))?;
        let is_wanted = |config: &PathBuf| container::is_same_file(config, wanted) == Some(true);
        let also_named =
            |c: &Candidate<T>| process::look(c.pid).is_some_and(|info| server.kind.named_by.also_names(&info, wanted));
        let by_its_name = candidates.iter().any(|c| c.config.as_ref().is_some_and(is_wanted));
        candidates.retain(|c| match by_its_name {
            true => c.config.as_ref().is_some_and(is_wanted),
            false => also_named(c),
        });
        for candidate in &mut candidates {
            candidate.config.get_or_insert_with(|| wanted.clone());
        }
    }
    if let Some(url) = &server.url {
        at(url, &mut candidates);
    }
    // A process that only tests a configuration listens nowhere. For another user's process, listeners are unknown.
    if candidates.iter().any(|c| !c.listeners.is_empty()) {
        candidates.retain(|c| !c.listeners.is_empty());
    }
    if candidates.len() > 1 {
        let names: Vec<String> = candidates
            .iter()
            .map(|c| {
                c.config.as_ref().map_or("(no file)".to_string(), |c| format!("{}:{}", server.kind.name, c.display()))
            })
            .collect();
        return Err(ServerError::NotFound {
            what: format!("'{server}' could be any of {} servers", candidates.len()),
            advice: format!("name one: {}", names.join(", ")),
        });
    }
    candidates.pop().ok_or_else(not_found)
}

/// Returns why a master cannot be asked, if it may be the one that is meant. A process that ended in the meantime is
/// ignored.
pub(crate) fn why_not_asked(why: ServerError, info: &ProcessInfo, server: &ServerRef) -> Option<ServerError> {
    let is_gone = matches!(why, ServerError::Probe(ProbeError::Gone(_)));
    (!is_gone && may_be_meant(info, server)).then_some(why)
}

/// True if a master that cannot be asked may be the one that is meant. It is not if its command line names another
/// file, or if it listens on other ports.
fn may_be_meant(info: &ProcessInfo, server: &ServerRef) -> bool {
    if let Some(wanted) = &server.config {
        let words: Vec<&str> = info.argv.iter().flat_map(|word| word.split(' ')).collect();
        let names =
            |pair: &[&str]| matches!(pair[0], "-f" | "-c" | "--config" | "--fpm-config") && pair[1].starts_with('/');
        let mut files = words.windows(2).filter(|pair| names(pair)).map(|pair| Path::new(pair[1])).peekable();
        // During a trial it runs on a file of lastdrop's.
        let is_wanted = |file: &Path| {
            container::is_same_file(file, wanted) == Some(true) || is_settings_file(&file.to_string_lossy())
        };
        if files.peek().is_some() && !files.any(is_wanted) {
            return false;
        }
    }
    let ports = listeners::of_process(info.pid).unwrap_or_default();
    server.url.as_ref().is_none_or(|url| ports.is_empty() || ports.iter().any(|l| l.port() == url.port))
}

/// The root URL of a listener, as the server's own machine reaches it.
pub(crate) fn url_of(address: SocketAddr) -> Url {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    Url { tls: false, host: ip.to_string(), port: address.port(), path: "/".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_beside_each_other_have_a_master_if_their_parent_runs_their_program() {
        let own = process::look(std::process::id() as i32).expect("this process");
        let child = |pid, exe: Option<&str>| ProcessInfo {
            pid,
            parent: own.pid,
            exe: exe.map_or_else(|| own.exe.clone(), |path| Some(path.into())),
            ..own.clone()
        };
        assert!(share_a_parent(&[child(-2, None), child(-3, None)]));
        // One alone may be a server that another of its kind has started, and servers of a shell are its own.
        assert!(!share_a_parent(&[child(-2, None)]));
        assert!(!share_a_parent(&[child(-2, Some("/usr/sbin/nginx")), child(-3, Some("/usr/sbin/nginx"))]));
    }
}
