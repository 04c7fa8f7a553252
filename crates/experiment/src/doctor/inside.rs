//! Looks inside the servers under load. First it traces the system calls of one or two workers of each for a moment;
//! then it profiles where all of them spend their processor time.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_analyze::inside::sorts;
use lastdrop_analyze::stacks;
use lastdrop_model::Url;
use lastdrop_model::examination::ServerProfile;
use lastdrop_probe::host::{ended_children_cpu, timed};
use lastdrop_probe::listeners;
use lastdrop_probe::namespace::Namespace;
use lastdrop_probe::perf::Perf;
use lastdrop_probe::process;
use lastdrop_probe::socket_names::SocketNames;
use lastdrop_probe::strace::Strace;

use crate::doctor::costs::Costs;
use crate::observe::members::{Member, Members};

/// Tracing stops a process at each call: it covers few processes, for a moment, and only until some requests were seen.
const TRACED: usize = 2;
const TRACE: Duration = Duration::from_millis(2000);
const LEAST_TRACE: Duration = Duration::from_millis(200);
const ENOUGH: usize = 20;
/// Answers after which tracing stops at once.
const MANY: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// Processor time that strace may use once a few answers were seen, which tell most; and in any case. On a server that
/// makes thousands of calls it fills a core.
const TRACE_COST: Duration = Duration::from_millis(80);
const A_FEW: usize = 8;
const MOST_TRACE_COST: Duration = Duration::from_millis(300);
/// A worker that uses no processor time for this long has no client, and makes no calls.
const AT_WORK: Duration = Duration::from_millis(250);
const PROFILE: Duration = Duration::from_millis(1200);
/// Minimum time of a profile: perf takes part of a second until it records.
const LEAST_PROFILE: Duration = Duration::from_millis(700);
/// Processor time that perf may use: if processes end while it records, it fills a core.
const PROFILE_COST: Duration = Duration::from_millis(300);
/// Maximum number of processes of one server to profile: perf reads the memory map of each.
const MOST_PROFILED: usize = 24;
/// Connects per request from which on it matters who the peer is.
pub const CONNECTS_EACH: f64 = 0.5;
/// Number of libraries and functions to keep: those with the largest shares.
const KEPT: usize = 25;

/// Traces each server, and profiles those that `profiled` marks. Returns the results, and the processor time used, with
/// the tools.
pub fn look(members: &Members, url: &Url, profiled: &[bool]) -> (Vec<ServerProfile>, Costs) {
    let tools = ended_children_cpu();
    let mut all: Vec<ServerProfile> =
        members.all.iter().map(|m| ServerProfile { server: m.called.clone(), ..ServerProfile::default() }).collect();
    // All at once, while the load is on.
    let traced: Duration = thread::scope(|scope| {
        let mut traces = Vec::new();
        for (member, inside) in members.all.iter().zip(&mut all) {
            // A database's own statistics tell more than its calls, and the calls of an unknown program tell nothing.
            if !member.found.kind.programs.is_empty() && member.found.kind.database.is_none() {
                traces.push(scope.spawn(|| timed(|| trace(member, url, inside)).1));
            }
        }
        traces.into_iter().filter_map(|one| one.join().ok()).sum()
    });
    let mut costs = Costs::default();
    let strace = ended_children_cpu();
    costs.timed("profile", || profile(members, profiled, &mut all));
    costs.add("trace", traced + strace.saturating_sub(tools));
    costs.add("profile", ended_children_cpu().saturating_sub(strace));
    (all, costs)
}

/// Returns workers spread over those that are busy. In some servers the first workers get most requests; if clients
/// keep their connections, others get none at all.
fn some_workers(member: &Member, n: usize) -> Vec<i32> {
    let mut workers = member.found.workers();
    if workers.is_empty() {
        return vec![member.found.master];
    }
    let ran = |pid: &i32| process::processor_time(*pid).unwrap_or_default();
    let before: Vec<Duration> = workers.iter().map(ran).collect();
    thread::sleep(AT_WORK);
    let busy: Vec<i32> =
        workers.iter().zip(before).filter(|(pid, then)| ran(pid) > *then).map(|(pid, _)| *pid).collect();
    if !busy.is_empty() {
        workers = busy;
    }
    let step = (workers.len() / n).max(1);
    workers.into_iter().step_by(step).take(n).collect()
}

fn trace(member: &Member, url: &Url, inside: &mut ServerProfile) {
    if let Err(why) = try_trace(member, url, inside) {
        inside.unseen.push(format!("the system calls of {}: {why}", member.called));
    }
}

fn try_trace(member: &Member, url: &Url, inside: &mut ServerProfile) -> Result<(), Box<dyn Error>> {
    let file = tempfile::NamedTempFile::new()?;
    let namespace = Namespace::of(member.found.master).ok();
    let sockets = || {
        let mut names = namespace.as_ref().and_then(|n| n.socket_names().ok()).unwrap_or_default();
        names.extend(SocketNames::of_udp(member.found.master));
        names
    };
    let mut known = sockets();
    let mut strace = Strace::attach_to(|| some_workers(member, TRACED), file.path())?;
    let (began, attached) = (Instant::now(), strace.cost());
    while began.elapsed() < TRACE {
        thread::sleep(PAUSE);
        let (requests, cost) = (strace.requests(), strace.cost().saturating_sub(attached));
        let is_enough = requests >= ENOUGH || strace.answers() >= A_FEW && cost >= TRACE_COST;
        let is_more = strace.answers() >= MANY;
        if is_enough && began.elapsed() >= LEAST_TRACE || is_more || cost >= MOST_TRACE_COST {
            break;
        }
    }
    known.extend(sockets());
    let calls = strace.finish(known)?;
    let mut ports = member.found.ports();
    if ports.is_empty() {
        ports.push(url.port);
    }
    let found = sorts(&calls, &ports);
    (inside.requests, inside.calls) = (found.requests, found.calls);
    (inside.objects, inside.waits_s) = (found.objects, found.waits_s);
    // A connection of some milliseconds may never have been sampled, but its peer listens all the time.
    let connects = inside.calls.get("connect").is_some_and(|n| *n >= CONNECTS_EACH);
    inside.programs = listeners::programs(inside.objects.get("connect").filter(|_| connects).cloned());
    Ok(())
}

fn profile(members: &Members, profiled: &[bool], all: &mut [ServerProfile]) {
    let wanted = members.all.iter().zip(profiled).zip(all).filter(|((_, wanted), _)| **wanted);
    let mut wanted: Vec<(&Member, &mut ServerProfile)> = wanted.map(|((member, _), inside)| (member, inside)).collect();
    // The error concerns all of them, and is reported once.
    if let Err(why) = try_profile(&mut wanted)
        && let Some((_, first)) = wanted.first_mut()
    {
        first.unseen.push(format!("where processors' time goes: {why}"));
    }
}

/// Uses one perf for all servers: each start reads all symbols of the kernel.
fn try_profile(of: &mut [(&Member, &mut ServerProfile)]) -> Result<(), Box<dyn Error>> {
    if of.is_empty() {
        return Ok(());
    }
    let file = tempfile::NamedTempFile::new()?;
    let processes = |member: &Member| {
        let children = process::child_pids(member.found.master);
        let step = children.len().div_ceil(MOST_PROFILED).max(1);
        children.into_iter().step_by(step).chain([member.found.master]).collect::<Vec<i32>>()
    };
    let masters: Vec<i32> = of.iter().map(|(member, _)| member.found.master).collect();
    let workers = || of.iter().flat_map(|(member, _)| processes(member)).collect::<Vec<i32>>();
    let pids: Vec<Vec<i32>> = of.iter().map(|(member, _)| processes(member)).collect();
    let mut perf = Perf::by_timer(&masters, &workers, file.path())?;
    let began = Instant::now();
    while began.elapsed() < PROFILE && (began.elapsed() < LEAST_PROFILE || perf.cost() < PROFILE_COST) {
        thread::sleep(PAUSE);
        perf.go_on(&masters, &workers)?;
    }
    let gaps = perf.gaps();
    let script = perf.finish()?;
    let largest = |mut all: Vec<(String, f64)>| -> BTreeMap<String, f64> {
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.into_iter().take(KEPT).collect()
    };
    let known: HashSet<i32> = pids.iter().flatten().copied().collect();
    for ((member, inside), own) in of.iter_mut().zip(pids) {
        // Processes that were forked meanwhile are below the master, too.
        let is_below = |pid: i32| process::ancestry(pid).any(|p| p == member.found.master);
        let is_its = |pid: i32| own.contains(&pid) || !known.contains(&pid) && is_below(pid);
        let stacks = stacks::perf_script_of(&script, is_its);
        if gaps > 0 {
            let what =
                format!("where processors' time of {} went while perf was started again ({gaps} times)", member.called);
            inside.unseen.push(what);
        }
        if stacks.is_empty() {
            inside.unseen.push(format!("where processors' time of {} goes: perf took no sample of it", member.called));
        }
        let libraries = stacks::libraries(&stacks, None).into_iter().map(|l| (l.name, l.share)).collect();
        let functions = stacks::functions(&stacks, None).into_iter().map(|f| (f.function, f.self_share)).collect();
        (inside.libraries, inside.functions) = (largest(libraries), largest(functions));
    }
    Ok(())
}
