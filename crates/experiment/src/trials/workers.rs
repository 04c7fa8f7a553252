//! Gathers on this machine what determines the number of workers: ceilings of a pool, and the cost of a request under
//! load.
//!
//! [`lastdrop_analyze::workers::advise`] computes the number from it, in the same way for `size`, `size --fit`,
//! `doctor` and `tune`.

use std::time::Duration;

use crate::lab::runs::starts_workers;
use crate::lab::{Lab, LabError};
use lastdrop_analyze::services::service_at;
use lastdrop_analyze::workers::{KeepAliveHold, RequestCost, WorkersEvidence};
use lastdrop_model::documents::{SizeDocument, WorkersCeiling};
use lastdrop_model::{Kind, Load, Plan, Role, Run, Settings};
use lastdrop_probe::chain::{Chain, connected_programs};
use lastdrop_probe::database::connection_limit;
use lastdrop_probe::{cgroup, group, process};
use lastdrop_server::Adapter;

/// Requests of a single user, and their longest duration, to measure a request that nothing delays.
const ALONE_REQUESTS: u64 = 40;
const ALONE_TIME: Duration = Duration::from_secs(3);
/// Users per processor, and the duration of their load, to measure the cost of a request when processors are busy.
const USERS_A_CORE: f64 = 2.0;
const LOAD_TIME: Duration = Duration::from_secs(3);
/// Files that a worker process has open besides those of requests: logs, listeners, libraries.
const OWN_FILES: u64 = 32;
/// Each request has a client connection and one to a backend open.
const FILES_A_REQUEST: u64 = 2;
/// Servers whose pool consists of event loops: their number says nothing about the number of concurrent requests.
const LOOPS: &[&str] = &["nginx", "haproxy", "lighttpd", "caddy", "node"];

/// Returns true if each worker (or thread) serves one request at a time, and their number can be set.
#[must_use]
pub fn has_workers(adapter: &dyn Adapter) -> bool {
    adapter.knob(Role::PoolSize).is_some() && !LOOPS.contains(&adapter.facts().kind.name)
}

/// Collects what is known about a pool without load: its ceilings, and its settings. `size` has the memory limit.
/// `members` are processes known to take part, such as a database. `master` is the server's process now, which may have
/// been started again since it was found.
#[must_use]
pub fn evidence(
    adapter: &dyn Adapter,
    master: i32,
    settings: &Settings,
    size: &SizeDocument,
    members: &[i32],
) -> WorkersEvidence {
    let threads = size.threads_per_worker.max(1);
    let model = adapter.facts().model.as_str();
    let is_apache = adapter.facts().kind.name == "apache";
    let count = |name: &str| settings.get(name).and_then(lastdrop_model::Setting::count).filter(|n| *n > 0);
    let mut ceilings = Vec::new();
    if let Some(fits) = size.fits {
        ceilings.push(WorkersCeiling {
            by: "memory".into(),
            number: fits.independent * threads,
            reason: format!("so many fit into {}", lastdrop_model::units::show_bytes(size.budget_bytes)),
        });
    }
    ceilings.extend(database(master, members));
    if let Some(limit) = count("ServerLimit").filter(|_| is_apache) {
        ceilings.push(WorkersCeiling {
            by: "ServerLimit".into(),
            number: limit as u64 * threads,
            reason: format!("ServerLimit is {limit}; a higher one needs a restart"),
        });
    }
    ceilings.extend(tasks(master, size.workers.count, threads));
    ceilings.extend(descriptors(master, threads));
    let keeps = settings.get("KeepAlive").is_some_and(lastdrop_model::Setting::is_on);
    let hold = is_apache && keeps && model != "event";
    WorkersEvidence {
        cores: cores(master),
        ceilings,
        together: threads,
        keep_alive: hold.then(|| KeepAliveHold {
            timeout_s: count("KeepAliveTimeout").unwrap_or(5) as f64,
            ..KeepAliveHold::default()
        }),
        event_mpm: is_apache && embedded(master).is_empty(),
        ..WorkersEvidence::default()
    }
}

/// Returns the application modules that run inside the worker and need a process per request. mod_php is not
/// thread-safe in common builds, mod_perl only with care.
#[must_use]
pub fn embedded(master: i32) -> Vec<String> {
    ["libphp", "mod_perl", "mod_php"]
        .into_iter()
        .filter(|name| process::maps_any(master, &[name]))
        .map(str::to_string)
        .collect()
}

/// Measures the cost of a request: with one user alone, then with some users per processor. None if no request got a
/// response, or the server's processor time may not be read.
///
/// # Errors
/// When no load can be generated, or the user stops it.
pub fn request_cost(lab: &mut Lab<'_>, plan: &Plan, cores: f64) -> Result<Option<RequestCost>, LabError> {
    let load = |users: u32, requests: Option<u64>, time: Duration| {
        let mut plan = plan.clone();
        plan.phases.retain(|p| p.measured);
        for phase in &mut plan.phases {
            phase.load = Load::closed(users);
            (phase.requests, phase.duration) = (requests, Some(time));
        }
        plan
    };
    // A request that waits for a processor also occupies its worker. Beside other programs the same page seemed to need 7
    // to 35 workers.
    let (alone, _) = lab.run_undisturbed(&load(1, Some(ALONE_REQUESTS), ALONE_TIME), "size alone")?;
    lab.check_stop()?;
    let held_s = alone.measured().and_then(|p| p.latency(Kind::Service, "mean")).unwrap_or(0.0) / 1e6;
    let users = (cores * USERS_A_CORE).ceil().clamp(1.0, 64.0) as u32;
    let busy = lab.run_started(&load(users, None, LOAD_TIME), "size load")?;
    lab.check_stop()?;
    let cpu = |run: &Run| run.measured().and_then(|p| p.server_cpu).map(|cpu| cpu.us_per_request / 1e6);
    // If workers start in every run, one user alone met fewer of them.
    let tells_more = starts_workers(&busy) && !starts_workers(&alone);
    let [first, second] = if tells_more { [&alone, &busy] } else { [&busy, &alone] };
    let cpu_s = cpu(first).filter(|s| *s > 0.0).or_else(|| cpu(second)).filter(|s| *s > 0.0);
    Ok(cpu_s.filter(|_| held_s > 0.0).map(|cpu_s| RequestCost { cpu_s, held_s }))
}

/// Returns the processors that a server may use.
#[must_use]
pub fn cores(master: i32) -> f64 {
    let allowed = process::affinity(master).len().max(1) as f64;
    let limits = cgroup::groups(master).into_iter().filter_map(|g| g.read().cpu_limit_cores());
    limits.fold(allowed, f64::min)
}

/// Returns the limit set by the workers' database, if it runs on this machine and has one. Connections reserved for
/// administrators and those of single programs are subtracted; the rest is divided equally among the pools connected to
/// it.
fn database(master: i32, members: &[i32]) -> Option<WorkersCeiling> {
    // Programs connected now, and those known from a run.
    let mut chain = Chain::of_server(master);
    chain.look(None);
    let all: Vec<i32> = chain.members().into_iter().chain(members.iter().copied()).collect();
    let (pid, name, limit) = all.into_iter().find_map(|pid| {
        let name = process::name(pid)?;
        let service = service_at("", Some(&name)).filter(|s| s.is_database)?;
        Some((pid, name, connection_limit(pid, service.name)?))
    })?;
    let programs = connected_programs(pid);
    let is_pool =
        |p: &&lastdrop_probe::chain::ConnectedProgram| p.pid == master || p.processes > 1 || p.connections > 1;
    let singles: u64 = programs.iter().filter(|p| !is_pool(p)).map(|p| p.connections).sum();
    let others = programs.iter().filter(is_pool).filter(|p| p.pid != master).count() as u64;
    let (usable, pools) = (limit.usable().saturating_sub(singles), others + 1);
    let mut reason = format!("{name} takes {} connections at once ({})", limit.connections, limit.source);
    if limit.reserved > 0 {
        reason += &format!(", {} of them reserved", limit.reserved);
    }
    if singles > 0 {
        reason += &format!(", {singles} in use by other programs");
    }
    if pools > 1 {
        reason += &format!(", shared by {pools} pools");
    }
    reason += "; of workers that each have one, those beyond that get errors";
    Some(WorkersCeiling { by: "database".into(), number: usable / pools, reason })
}

/// Returns the limit set by the control groups' number of tasks.
fn tasks(master: i32, processes: u64, threads: u64) -> Option<WorkersCeiling> {
    let looks = cgroup::groups(master).into_iter().filter_map(|g| {
        let (tasks, limit) = g.read().tasks()?;
        Some((limit.saturating_sub(tasks), limit, g.path.clone()))
    });
    let (left, limit, path) = looks.min_by_key(|(left, ..)| *left)?;
    // A threaded process has two threads of its own.
    let each = if threads > 1 { threads + 2 } else { 1 };
    Some(WorkersCeiling {
        by: "tasks".into(),
        number: (processes + left / each) * threads,
        reason: format!("control group {path} allows {limit} tasks"),
    })
}

/// Returns how many requests a threaded process has files for. A single-threaded process has enough for its one
/// request.
fn descriptors(master: i32, threads: u64) -> Option<WorkersCeiling> {
    if threads <= 1 {
        return None;
    }
    let limit = group::fds_limit(master)?;
    let each = limit.saturating_sub(OWN_FILES) / FILES_A_REQUEST;
    (each < threads).then(|| WorkersCeiling {
        by: "descriptors".into(),
        number: each.max(1),
        reason: format!("a process may have {limit} files open, which is enough for {each} requests at once"),
    })
}
