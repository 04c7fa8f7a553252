//! Reads the settings of the chain's servers.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::trials::size::size_of;
use crate::trials::workers::{embedded, evidence, has_workers};
use lastdrop_model::documents::WorkersCeiling;
use lastdrop_model::examination::ExaminedServer;
use lastdrop_model::{Role, Url};
use lastdrop_probe::listeners;
use lastdrop_probe::namespace::Namespace;
use lastdrop_probe::process;
use lastdrop_server::{
    ServerError, ServerKnobs, ServerRef, discover, knobs_of, served_folders, unused_extensions, unused_modules,
};

use crate::doctor::site::ModuleTrials;
use crate::observe::members::{Member, Members};

/// Seconds after which a process that was started for one request has ended.
const HELD_S: f64 = 3.0;

/// Returns each server with its settings, as far as they can be read.
pub fn examined(members: &Members, unseen: &mut Vec<String>) -> Vec<ExaminedServer> {
    let of = |(place, member): (usize, &Member)| {
        let found = &member.found;
        let mut one = ExaminedServer {
            server: member.called.clone(),
            kind: found.kind.name.into(),
            named: member.named.as_ref().map_or_else(|| found.name.clone(), ToString::to_string),
            software: found.software.clone(),
            master: found.master,
            one_request_a_worker: found.prefork,
            ..ExaminedServer::default()
        };
        let own = found.listeners.iter().map(ToString::to_string);
        let listens = members.links.listens.get(place).into_iter().flatten().map(ToString::to_string);
        one.listens = own.chain(listens).collect();
        one.listens.sort();
        one.listens.dedup();
        for link in members.links.links.iter().filter(|l| l.from == place) {
            one.connects.push(link.via.to_string());
            one.to.push(members.all.get(link.to).map_or_else(String::new, |m| m.called.clone()));
        }
        let workers = found.workers();
        one.cpus = process::affinity(workers.first().copied().unwrap_or(found.master));
        one.foreign_listeners = foreign(found.master);
        one.embeds = if found.kind.name == "apache" { embedded(found.master) } else { Vec::new() };
        if found.kind.can_change() {
            let reference = member.named.clone().or_else(|| found.name.parse().ok());
            match reference.map(|r| knobs_of(&r)) {
                Some(Ok(knobs)) => {
                    let asked = members.links.links.iter().filter(|l| l.to == place).map(|l| l.via.to_string());
                    settle(&mut one, &knobs, &asked.collect::<Vec<_>>());
                }
                Some(Err(e)) => unseen.push(format!("the settings of {}: {e}", member.called)),
                None => unseen.push(format!("the settings of {}", member.called)),
            }
        }
        one
    };
    members.all.iter().enumerate().map(of).collect()
}

/// Copies the settings into an examined server. `asked` holds the addresses at which others connect to it: of several
/// pools, the one that listens there counts.
fn settle(one: &mut ExaminedServer, of: &ServerKnobs, asked: &[String]) {
    one.settings.clone_from(&of.effective.settings);
    one.directives.clone_from(&of.directives);
    one.sources = of.effective.sources.clone().into_iter().collect();
    for knob in &of.knobs {
        one.needs.insert(knob.name.into(), knob.needs.name().into());
        if knob.role == Some(Role::PoolSize) {
            let is_asked = |name: &str| {
                let listens = name.split_once('.').and_then(|(pool, _)| of.directives.get(&format!("{pool}.listen")));
                listens.is_some_and(|listens| asked.iter().any(|via| is_at(via, listens)))
            };
            if !one.pool.as_deref().is_some_and(is_asked) {
                one.pool = Some(knob.name.into());
            }
        }
    }
}

/// True if the address that a client connects to (`127.0.0.1:9000`, `unix:/run/x.sock`) is where a pool listens (the
/// same, `9000`, `[::]:9000`, `/run/x.sock`).
fn is_at(via: &str, listens: &str) -> bool {
    match via.strip_prefix("unix:") {
        Some(path) => path == listens,
        None => via.rsplit(':').next() == listens.rsplit(':').next(),
    }
}

/// Returns the ceilings for the number of workers of each server with a pool, after its workers have served.
pub fn ceilings(members: &Members) -> BTreeMap<String, Vec<WorkersCeiling>> {
    let masters: Vec<i32> = members.all.iter().map(|m| m.found.master).collect();
    let of = |member: &Member| {
        let adapter = discover(&reference(member).ok()?).ok().filter(|adapter| has_workers(adapter.as_ref()))?;
        let settings = adapter.effective().ok()?.settings;
        let size = size_of(adapter.as_ref(), &settings, None, Vec::new()).ok()?;
        Some((
            member.called.clone(),
            evidence(adapter.as_ref(), member.found.master, &settings, &size, &masters).ceilings,
        ))
    };
    members.all.iter().filter(|m| m.found.kind.can_change()).filter_map(of).collect()
}

/// Tries the Apache at the URL without the modules that it may not need, and each PHP-FPM without extensions.
pub fn try_modules(members: &Members, url: &Url) -> ModuleTrials {
    let mut all = ModuleTrials::default();
    for (place, member) in members.all.iter().enumerate() {
        let tried = match member.found.kind.name {
            "apache" if place == 0 => reference(member).and_then(|own| unused_modules(&own, url)),
            "php-fpm" => reference(member).and_then(|own| unused_extensions(&own, url, &sites(members, place)?)),
            _ => continue,
        };
        match tried {
            Ok(tried) => drop(all.modules.insert(member.called.clone(), tried)),
            Err(e) => all.unseen.push(format!("which modules {} could do without: {e}", member.called)),
        }
    }
    all
}

/// Returns the folders that servers serve which connect to this one.
fn sites(members: &Members, to: usize) -> Result<Vec<PathBuf>, ServerError> {
    let before = members.links.links.iter().filter(|link| link.to == to).filter_map(|link| members.all.get(link.from));
    let mut all = Vec::new();
    for member in before {
        all.extend(served_folders(&reference(member)?)?);
    }
    Ok(all)
}

fn reference(member: &Member) -> Result<ServerRef, ServerError> {
    member.named.clone().map_or_else(|| member.found.name.parse().map_err(ServerError::Setting), Ok)
}

/// Returns foreign processes that have a listener of the server open. They are neither below nor above its master; or
/// below it, of another program, and older than a request takes.
fn foreign(master: i32) -> Vec<String> {
    let related = |pid: i32, of: i32| process::ancestry(pid).any(|p| p == of);
    let exe = |pid: i32| process::look(pid).and_then(|p| p.exe);
    let own = exe(master);
    let is_another = |pid: i32| exe(pid).is_some_and(|exe| own.as_ref().is_some_and(|own| *own != exe));
    let stays = |pid: i32| process::look(pid).is_some_and(|p| p.age_s() >= HELD_S);
    let is_foreign = |pid: &i32| match (related(*pid, master), related(master, *pid)) {
        (false, false) => true,
        (true, _) => is_another(*pid) && stays(*pid),
        _ => false,
    };
    let holders = listeners::holders_of_listeners(master).into_iter().filter(|pid| *pid != 1 && *pid != master);
    holders.filter(is_foreign).map(|pid| format!("{pid} {}", process::name(pid).unwrap_or_default())).collect()
}

/// Kernel settings that old advice names, as the server at the URL has them: a container has a network of its own.
/// Settings that the kernel lacks are absent, and so are those of another network that may not be entered. If it is
/// unknown where the server is, ours are returned: most often it is here.
pub fn sysctls(members: &Members, unseen: &mut Vec<String>) -> BTreeMap<String, String> {
    let Some(front) = members.all.first() else { return sysctls_here() };
    let Ok(namespace) = Namespace::of(front.found.master) else { return sysctls_here() };
    namespace.apart(|| Ok(sysctls_here())).unwrap_or_else(|e| {
        unseen.push(format!("settings of the network that {} is in: {e}; root may enter it", front.called));
        let mut own = sysctls_here();
        own.retain(|name, _| !name.starts_with("net."));
        own
    })
}

fn sysctls_here() -> BTreeMap<String, String> {
    const NAMES: &[&str] = &[
        "net/ipv4/tcp_tw_recycle",
        "net/ipv4/tcp_tw_reuse",
        "net/ipv4/tcp_fin_timeout",
        "net/ipv4/tcp_max_tw_buckets",
        "net/ipv4/tcp_timestamps",
        "net/ipv4/tcp_syncookies",
        "net/ipv4/tcp_low_latency",
        "net/core/somaxconn",
        "net/ipv4/ip_local_port_range",
        "vm/swappiness",
    ];
    let read = |name: &&str| Some(((*name).to_string(), std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?));
    NAMES
        .iter()
        .filter_map(read)
        .map(|(name, value)| (name.replace('/', "."), value.trim().replace('\t', " ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_that_somebody_connects_to_is_known_by_where_it_listens() {
        let at = |via: &str, listens: &str| is_at(via, listens);
        assert!(at("unix:/run/php/www.sock", "/run/php/www.sock") && at("127.0.0.1:9000", "9000"));
        assert!(at("127.0.0.1:9000", "[::]:9000") && at("127.0.0.1:9000", "127.0.0.1:9000"));
        assert!(!at("unix:/run/php/www.sock", "/run/php/admin.sock") && !at("127.0.0.1:9000", "9001"));
        assert!(!at("unix:/run/9000", "9000"));
    }
}
