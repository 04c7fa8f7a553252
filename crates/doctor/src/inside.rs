//! A look inside the servers while they are under load: the system calls of a worker or two of each for a moment, then
//! where all of them spend their processor time.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use lastdrop_analyze::inside::sorts;
use lastdrop_analyze::stacks;
use lastdrop_model::Url;
use lastdrop_model::examination::Inside;
use lastdrop_probe::namespace::Namespace;
use lastdrop_probe::perf::Perf;
use lastdrop_probe::process;
use lastdrop_probe::strace::Strace;

use crate::behind::{Member, Members};

/// Tracing stops a process at each call: as few as possible, for a moment.
const TRACED: usize = 2;
const TRACE: Duration = Duration::from_millis(2000);
const PROFILE: Duration = Duration::from_secs(2);
/// Of libraries and functions those with the largest shares are kept.
const KEPT: usize = 15;

pub fn look(members: &Members, url: &Url) -> Vec<Inside> {
    let mut all: Vec<Inside> =
        members.all.iter().map(|m| Inside { server: m.called.clone(), ..Inside::default() }).collect();
    // All of them at once, while the load is on.
    thread::scope(|scope| {
        for (member, inside) in members.all.iter().zip(&mut all) {
            // Of databases their own views tell more, of what is not known nothing is to be told.
            if !member.found.kind.programs.is_empty() && member.found.kind.database.is_none() {
                scope.spawn(|| trace(member, url, inside));
            }
        }
    });
    thread::scope(|scope| {
        for (member, inside) in members.all.iter().zip(&mut all) {
            scope.spawn(|| profile(member, inside));
        }
    });
    all
}

/// Workers at random places of the pool: the first ones of some servers get most of the work.
fn some_workers(member: &Member, n: usize) -> Vec<i32> {
    let workers = member.found.workers();
    if workers.is_empty() {
        return vec![member.found.master];
    }
    let step = (workers.len() / n).max(1);
    workers.into_iter().step_by(step).take(n).collect()
}

fn trace(member: &Member, url: &Url, inside: &mut Inside) {
    let Ok(file) = tempfile::NamedTempFile::new() else { return };
    let pids = some_workers(member, TRACED);
    let namespace = Namespace::of(member.found.master).ok();
    let connections = || namespace.as_ref().and_then(|n| n.unix_connections().ok()).unwrap_or_default();
    let mut known = connections();
    let Ok(strace) = Strace::attach(&pids, file.path()) else { return };
    thread::sleep(TRACE);
    known.extend(connections());
    let Ok(calls) = strace.finish(&known) else { return };
    let mut ports = member.found.ports();
    if ports.is_empty() {
        ports.push(url.port);
    }
    let found = sorts(&calls, &ports);
    (inside.requests, inside.calls) = (found.requests, found.calls);
    (inside.objects, inside.waits_s) = (found.objects, found.waits_s);
}

fn profile(member: &Member, inside: &mut Inside) {
    let Ok(file) = tempfile::NamedTempFile::new() else { return };
    let mut pids = process::child_pids(member.found.master);
    pids.truncate(64);
    pids.push(member.found.master);
    let Ok(perf) = Perf::start(&pids, file.path()) else { return };
    thread::sleep(PROFILE);
    let Ok((script, _)) = perf.finish(file.path()) else { return };
    let stacks = stacks::read_perf_script(&script);
    let largest = |mut all: Vec<(String, f64)>| -> BTreeMap<String, f64> {
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.into_iter().take(KEPT).collect()
    };
    inside.libraries = largest(stacks::libraries(&stacks, None).into_iter().map(|l| (l.name, l.share)).collect());
    inside.functions =
        largest(stacks::functions(&stacks, None).into_iter().map(|f| (f.function, f.self_share)).collect());
}
