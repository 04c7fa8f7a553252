//! Profiles the functions of the language that a server's workers execute, by a profiler of that language.
//!
//! The same load is put on without the profiler and with it: the difference in CPU time per request is what the profiler
//! costs. Nothing is loaded into a process that serves visitors: a second instance of the server is profiled, or its
//! processes are read from outside.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lastdrop_analyze::code_stacks::CodeStacks;
use lastdrop_model::documents::{PROFILE_SCHEMA, ProfileDocument};
use lastdrop_model::plan::ConnectTo;
use lastdrop_model::{Load, Plan};
use lastdrop_probe::group::ProcessGroup;
use lastdrop_server::code::{self, Clock, CodeRequest, Language, ProfiledServer};
use lastdrop_server::{ServerRef, remove_leftover_folders};

use super::profile::{MOST_STACKS, Profile, answered_of, cpu_s};
use crate::lab::LabError;

/// Most workers of a second instance: each has the memory of a worker of the server's.
pub const MOST_WORKERS: u32 = 8;
/// Bounds of the time in which the workers get warm.
const WARM: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));
/// How often a load is put on until something is answered: a request may take longer than a stretch.
const MOST_TIMES: u32 = 5;
/// Rows of the document.
const MOST_FUNCTIONS: usize = 500;

/// What is profiled, and how long.
#[derive(Debug, Clone, Copy)]
pub struct CodeOptions {
    /// None: the server's.
    pub language: Option<Language>,
    pub clock: Clock,
    pub time: Duration,
}

/// A stretch of load and what it took.
#[derive(Debug, Clone, Copy)]
struct LoadedStretch {
    requests: u64,
    cpu_s: f64,
    seconds: f64,
}

impl LoadedStretch {
    fn add(&mut self, other: LoadedStretch) {
        self.requests += other.requests;
        self.cpu_s += other.cpu_s;
        self.seconds += other.seconds;
    }

    fn us_per_request(self) -> f64 {
        self.cpu_s * 1e6 / self.requests.max(1) as f64
    }
}

/// Profiles the code that answers the requests of a plan.
///
/// # Errors
/// If the server or the profiler is not there, or the code cannot be profiled.
pub fn profile_code(
    server: &ServerRef,
    plan: &Plan,
    options: &CodeOptions,
    stop: &AtomicBool,
) -> Result<Profile, LabError> {
    remove_leftover_folders();
    let workers = most_at_once(plan);
    let CodeOptions { language, clock, time } = *options;
    let request = CodeRequest { url: &plan.url, language, clock, workers, time };
    let template = code::template(server, &request)?;
    let warm = (options.time / 4).clamp(WARM.0, WARM.1);
    let load =
        |loaded: &dyn ProfiledServer, time| stretch(server, loaded, &plan_for(plan, loaded.address(), time), stop);
    let mut without = {
        let plain = template.start(false)?;
        load(&*plain, warm)?;
        load(&*plain, (options.time / 2).max(WARM.0))?
    };
    let mut profiled = template.start(true)?;
    load(&*profiled, warm)?;
    profiled.begin()?;
    let with = load(&*profiled, options.time)?;
    let is_the_server = profiled.address().is_none();
    let stacks = CodeStacks::of_records(&profiled.finish()?);
    if is_the_server {
        // It gets warmer, and its machine busier: what it took after the profile counts like what it took before.
        without.add(load(&*template.start(false)?, (options.time / 2).max(WARM.0))?);
    }
    profile_of(
        template.server().into(),
        template.language(),
        options.clock,
        stacks,
        without,
        with,
        vec![template.note()],
    )
}

/// Users of a closed loop, or connections of an open one, as [`plan_for`] limits them.
fn most_at_once(plan: &Plan) -> u32 {
    match plan.phases.iter().find(|p| p.measured).map(|p| &p.load) {
        Some(Load::Closed { users, .. }) => (*users).clamp(1, MOST_WORKERS),
        _ => MOST_WORKERS,
    }
}

/// The plan's measured load for some time, with no more connections than a second instance has workers.
fn plan_for(plan: &Plan, address: Option<SocketAddr>, time: Duration) -> Plan {
    let mut plan = plan.clone();
    plan.phases.retain(|p| p.measured);
    plan.phases.truncate(1);
    for phase in &mut plan.phases {
        (phase.duration, phase.requests) = (Some(time), None);
        match &mut phase.load {
            Load::Closed { users, .. } => *users = (*users).clamp(1, MOST_WORKERS),
            Load::Open { connections, .. } => *connections = (*connections).clamp(1, MOST_WORKERS),
        }
    }
    if let Some(address) = address {
        plan.network.connect_to = Some(ConnectTo { host: plan.url.host.clone(), port: plan.url.port, address });
    }
    plan
}

/// Puts the load of a plan on a server and measures the CPU time of its processes and of the profiler.
fn stretch(
    server: &ServerRef,
    loaded: &dyn ProfiledServer,
    plan: &Plan,
    stop: &AtomicBool,
) -> Result<LoadedStretch, LabError> {
    let helpers = server.kind.helpers;
    let groups = [Some(loaded.master()), loaded.profiler()].into_iter().flatten();
    let mut groups: Vec<ProcessGroup> = groups.map(|pid| ProcessGroup::new(pid, false, helpers)).collect();
    let mut cpu_of_all = || groups.iter_mut().map(cpu_s).sum::<f64>();
    let cpu_before = cpu_of_all();
    let start = Instant::now();
    let mut requests = 0;
    for _ in 0..MOST_TIMES {
        requests += answered_of(plan, stop)?;
        if stop.load(Ordering::Relaxed) {
            return Err(LabError::Interrupted);
        }
        if requests > 0 {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if requests == 0 {
        return Err(LabError::Other("nothing was answered while the code was profiled; is the URL right?".into()));
    }
    Ok(LoadedStretch { requests, cpu_s: (cpu_of_all() - cpu_before).max(0.0), seconds })
}

fn profile_of(
    server: String,
    language: Language,
    clock: Clock,
    stacks: CodeStacks,
    without: LoadedStretch,
    with: LoadedStretch,
    notes: Vec<String>,
) -> Result<Profile, LabError> {
    if stacks.total() == 0 {
        return Err(LabError::Other(format!(
            "{} has seen no function of {language}: the requests were answered without it, or in less time than it can see",
            language.tool()
        )));
    }
    let us_per_request = round(without.us_per_request(), 1);
    let (total, samples) = (stacks.total(), stacks.observations());
    let us_of_functions = match clock {
        Clock::Cpu => us_per_request,
        Clock::Wall => total as f64 / with.requests.max(1) as f64,
    };
    let mut functions = stacks.functions(Some(us_of_functions));
    functions.truncate(MOST_FUNCTIONS);
    let functions_s = total as f64 / 1e6;
    let stacks = stacks.by_names();
    let document = ProfileDocument {
        schema: PROFILE_SCHEMA.into(),
        server,
        how: format!("{} ({clock})", language.tool()),
        language: Some(language.name().into()),
        seconds: round(with.seconds, 3),
        samples,
        cpu_s: round(with.cpu_s, 3),
        requests: Some(with.requests),
        us_per_request: Some(us_per_request),
        overhead: Some(round((with.us_per_request() / without.us_per_request() - 1.0).max(0.0), 3)),
        functions_s: Some(round(functions_s, 3)),
        functions,
        stacks: stacks.iter().take(MOST_STACKS).cloned().collect(),
        notes,
        ..ProfileDocument::default()
    };
    Ok(Profile { document, stacks })
}

fn round(x: f64, digits: i32) -> f64 {
    let by = 10_f64.powi(digits);
    (x * by).round() / by
}
