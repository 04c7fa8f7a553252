//! Finds the running process that a server name means.

use std::collections::HashSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

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

/// The same including containers.
pub(crate) fn masters_anywhere(is_of: impl Fn(&ProcessInfo) -> bool) -> Vec<ProcessInfo> {
    let mut group = process::all();
    group.retain(is_of);
    let mut masters = restart::masters(&group).into_iter().cloned().collect();
    leave_out_heirs(&mut masters);
    masters
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
        let runs_on = |c: &Candidate<T>| c.config.as_ref().is_some_and(is_wanted);
        let also_named =
            |c: &Candidate<T>| process::look(c.pid).is_some_and(|info| server.kind.named_by.also_names(&info, wanted));
        // A title may hide which file it has.
        let may_have =
            |c: &Candidate<T>| c.config.is_none() && process::look(c.pid).is_some_and(|p| server.kind.shows_title(&p));
        // Only the surest sign that any of them has counts.
        let sureness = |c: &Candidate<T>| [runs_on(c), also_named(c), may_have(c)].iter().position(|is_so| *is_so);
        let found: Vec<Option<usize>> = candidates.iter().map(sureness).collect();
        let surest = found.iter().flatten().min();
        let mut each = found.iter();
        candidates.retain(|_| surest.is_some() && each.next().is_some_and(|sign| sign.as_ref() == surest));
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
        let files: Vec<Option<&PathBuf>> = candidates.iter().map(|c| c.config.as_ref()).collect();
        let name = |c: &Candidate<T>| {
            let file =
                c.config.as_ref().map_or("(no file)".into(), |f| format!("{}:{}", server.kind.name, f.display()));
            let is_shared = files.iter().filter(|f| **f == c.config.as_ref()).count() > 1;
            match c.listeners.first().filter(|_| is_shared && c.config.is_some()) {
                Some(address) => format!("{file}@{}", url_of(*address)),
                None => file,
            }
        };
        let names: Vec<String> = candidates.iter().map(name).collect();
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
