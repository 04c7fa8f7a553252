//! Folds samples of a server into one step of an examination: means weighted by the time that each sample covers, sums
//! of counters, maxima of gauges.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::Sample;
use lastdrop_model::examination::{
    ClassMeasurements, Examination, ExaminationStep, ExaminedServer, LatencySummary, LoadShape, ServerMeasurements,
    StepKind,
};
use lastdrop_model::plan::Load;
use lastdrop_model::run::{ClassReport, Results};
use lastdrop_model::{Kind, PhaseReport, Run};

/// Returns the mean over samples, each weighted by the time that it covers.
fn mean(looks: &[Sample], of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    let (mut sum, mut time) = (0.0, 0.0);
    for look in looks {
        if let Some(value) = of(look) {
            sum += value * look.span_s.max(1e-3);
            time += look.span_s.max(1e-3);
        }
    }
    (time > 0.0).then_some(sum / time)
}

/// Writes the machine's samples into a step.
pub fn machine(looks: &[Sample], step: &mut ExaminationStep) {
    let processors = looks.iter().map(|l| l.host.cores.len()).max().unwrap_or(0);
    step.cores = (0..processors).map(|i| mean(looks, |l| l.host.cores.get(i).copied()).unwrap_or(0.0)).collect();
    step.steal = mean(looks, |l| l.host.steal).unwrap_or(0.0);
    let names: BTreeSet<&String> = looks.iter().flat_map(|l| l.pressure.keys()).collect();
    step.pressure = names
        .into_iter()
        .filter_map(|name| Some((name.clone(), mean(looks, |l| l.pressure.get(name).copied())?)))
        .collect();
    let sum = |of: fn(&Sample) -> Option<u64>| looks.iter().filter_map(of).sum::<u64>();
    step.swapped_pages = sum(|l| l.host.swap_in_pages) + sum(|l| l.host.swap_out_pages);
    step.oom_kills = sum(|l| l.host.oom_kills);
    step.memory_available_bytes = looks.iter().filter_map(|l| l.host.memory_available_bytes).min();
    step.kernel_log = looks.iter().flat_map(|l| l.log.iter().cloned()).take(10).collect();
}

/// Folds the samples of one server.
#[must_use]
pub fn server(called: &str, looks: &[Sample]) -> ServerMeasurements {
    let most = |of: fn(&Sample) -> Option<u64>| looks.iter().filter_map(of).max();
    let mut seen = ServerMeasurements {
        server: called.into(),
        workers_first: looks.first().map_or(0, |l| l.worker_count),
        workers_last: looks.last().map_or(0, |l| l.worker_count),
        workers_most: most(|l| Some(l.worker_count)).unwrap_or(0),
        cpu_cores: mean(looks, |l| l.cpu_cores),
        status_busy: mean(looks, |l| l.scoreboard.as_ref().and(l.busy).map(|n| n as f64)),
        queued: most(|l| l.queued),
        status_waits_s: looks.iter().filter_map(|l| l.status_waits_s).reduce(f64::max),
        local_ports: most(|l| l.local_ports),
        conntrack: most(|l| l.conntrack),
        conntrack_limit: most(|l| l.conntrack_limit),
        real_memory_bytes: most(|l| l.real_memory_bytes),
        private_bytes: most(|l| l.private_bytes),
        ..ServerMeasurements::default()
    };
    for look in looks {
        for (name, n) in &look.kernel {
            *seen.kernel.entry(name.clone()).or_default() += n;
        }
        for (name, n) in &look.sockets {
            let so_far = seen.sockets.entry(name.clone()).or_default();
            *so_far = so_far.max(*n as f64);
        }
        if let Some(fds) = look.fds.filter(|n| seen.fds.is_none_or(|m| m < *n)) {
            (seen.fds, seen.fds_limit) = (Some(fds), look.fds_limit);
        }
        if let Some(held) = &look.ports_held
            && seen.ports_held.is_none_or(|n| n < held.time_wait)
        {
            (seen.ports_held, seen.ports_held_to) = (Some(held.time_wait), held.to.clone());
        }
        // A task that stalls in a group also counts in the groups above it, but not the reverse. So the smallest share
        // is the server's own.
        let stalled = look.cgroups.iter().filter_map(|group| group.pressure.get("memory_some").copied());
        seen.memory_stalled += stalled.reduce(f64::min).unwrap_or(0.0) / looks.len() as f64;
        for group in &look.cgroups {
            seen.throttled_us += group.throttled_us.unwrap_or(0);
            seen.throttled_periods += group.throttled_periods.unwrap_or(0);
            seen.memory_high += group.memory_high.unwrap_or(0);
            seen.memory_max += group.memory_max.unwrap_or(0);
            seen.refaulted_pages += group.refaulted_pages.unwrap_or(0);
            if let Some(limit) = group.memory_limit_bytes {
                seen.memory_limit_bytes = Some(seen.memory_limit_bytes.map_or(limit, |l| l.min(limit)));
            }
            seen.group_oom_kills += group.oom_kills.unwrap_or(0);
            seen.pids_refused += group.pids_refused.unwrap_or(0);
            if let Some(limit) = group.cpu_limit_cores {
                seen.cpu_limit_cores = Some(seen.cpu_limit_cores.map_or(limit, |l: f64| l.min(limit)));
            }
        }
    }
    queue(looks, &mut seen);
    scoreboard(looks, &mut seen);
    seen
}

/// Records the listener with the longest mean queue, its maximum and its limit.
fn queue(looks: &[Sample], seen: &mut ServerMeasurements) {
    let mut all: BTreeMap<&str, (f64, f64, u64, u64)> = BTreeMap::new();
    for look in looks {
        for listener in &look.listen {
            let (sum, n, most, limit) = all.entry(&listener.address).or_default();
            *sum += listener.queue_mean.unwrap_or(listener.queue as f64);
            *n += 1.0;
            *most = (*most).max(listener.queue);
            *limit = listener.limit;
        }
    }
    let longest = all.into_iter().max_by(|(_, a), (_, b)| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    if let Some((address, (sum, n, most, limit))) = longest {
        seen.queue_mean = Some(sum / n);
        seen.queue_most = Some(most);
        seen.queue_limit = Some(limit);
        seen.queue_at = address.into();
    }
}

fn scoreboard(looks: &[Sample], seen: &mut ServerMeasurements) {
    let boards: Vec<&String> = looks.iter().filter_map(|l| l.scoreboard.as_ref()).collect();
    for board in &boards {
        for letter in board.chars() {
            *seen.scoreboard.entry(letter.to_string()).or_default() += 1.0 / boards.len() as f64;
        }
    }
}

/// Makes an examination from a run whose server was sampled. Returns None without samples, or without a measured phase.
#[must_use]
pub fn run(run: &Run) -> Option<Examination> {
    let (observed, phase) = (run.server.as_ref()?, run.measured()?);
    let looks: Vec<Sample> = observed.samples.iter().collect();
    if looks.is_empty() {
        return None;
    }
    let name = if observed.name.is_empty() { "server" } else { observed.name.as_str() };
    let kind = name.split(':').next().unwrap_or_default();
    let mut step = ExaminationStep { kind: StepKind::Main, ..ExaminationStep::default() };
    self::phase(phase, &mut step);
    machine(&looks, &mut step);
    step.servers.push(server(name, &looks));
    let load = run.plan.phases.iter().find(|p| p.measured).map(|p| &p.load);
    Some(Examination {
        url: run.plan.url.to_string(),
        processors: run.generator.processors,
        load: if matches!(load, Some(Load::Open { .. })) { LoadShape::Open } else { LoadShape::Closed },
        servers: vec![ExaminedServer {
            server: name.into(),
            kind: kind.into(),
            named: name.into(),
            ..ExaminedServer::default()
        }],
        steps: vec![step],
        ..Examination::default()
    })
}

/// Makes an examination from a single sample, as `watch` takes it.
#[must_use]
pub fn look(name: &str, look: &Sample) -> Examination {
    let mut step = ExaminationStep { kind: StepKind::Observed, duration_s: look.span_s, ..ExaminationStep::default() };
    let looks = std::slice::from_ref(look);
    machine(looks, &mut step);
    step.servers.push(server(name, looks));
    let kind = name.split(':').next().unwrap_or_default();
    Examination {
        processors: look.host.cores.len() as u64,
        load: LoadShape::Foreign,
        servers: vec![ExaminedServer {
            server: name.into(),
            kind: kind.into(),
            named: name.into(),
            ..ExaminedServer::default()
        }],
        steps: vec![step],
        ..Examination::default()
    }
}

/// Writes the results of the load into a step.
pub fn phase(phase: &PhaseReport, step: &mut ExaminationStep) {
    let r = &phase.requests;
    step.rate_rps = phase.rate.due_rps;
    step.duration_s = phase.duration_s;
    (step.due, step.answered, step.timed_out) = (r.due, r.answered, r.timed_out);
    step.answered_rps = phase.rate.answered_rps;
    let failed = [
        ("connect", r.failed.connect),
        ("reset", r.failed.reset),
        ("closed", r.failed.closed),
        ("protocol", r.failed.protocol),
        ("refused", r.failed.refused),
    ];
    step.failed = failed.into_iter().filter(|(_, n)| *n > 0).map(|(what, n)| (what.to_string(), n)).collect();
    step.status = phase.status.clone().into_iter().collect();
    step.connections = phase.connections.opened;
    step.server_cpu_s = phase.server_cpu.map(|cpu| cpu.settled_s(r.answered));
    step.starting = phase.server_cpu.is_some_and(|cpu| cpu.has_starts());
    step.handshakes_full = phase.connections.handshakes_full;
    step.handshakes_resumed = phase.connections.handshakes_resumed;
    step.bytes_received = phase.bytes.received;
    step.response = times(phase, Kind::Response);
    step.service = times(phase, Kind::Service);
    step.first_byte = times(phase, Kind::FirstByte);
    step.connect = times(phase, Kind::Connect);
    if phase.classes.len() > 1 {
        step.classes = phase.classes.iter().map(class).collect();
    }
}

fn class(class: &ClassReport) -> ClassMeasurements {
    ClassMeasurements {
        name: class.name.clone(),
        answered: class.results.requests.answered,
        response: times(&class.results, Kind::Response),
        service: times(&class.results, Kind::Service),
    }
}

fn times(phase: &Results, kind: Kind) -> LatencySummary {
    let of = |field: &str| phase.latency(kind, field).unwrap_or(0.0);
    LatencySummary {
        count: of("count") as u64,
        mean: of("mean"),
        p50: of("p50"),
        p90: of("p90"),
        p99: of("p99"),
        max: of("max"),
    }
}
