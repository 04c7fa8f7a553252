//! What else than memory bounds a pool: the processors, and how many connections the database takes.

use std::time::Duration;

use lastdrop_analyze::services::service_at;
use lastdrop_model::documents::SizeBound;
use lastdrop_model::{Kind, Load, Plan};
use lastdrop_probe::database::connection_limit;
use lastdrop_probe::{cgroup, process};
use lastdrop_server::Session;

use lastdrop_lab::{Lab, LabError};

/// One user asks so many times, for at most so long, to see what a request takes when nothing is in its way.
const ALONE_REQUESTS: u64 = 20;
const ALONE_TIME: Duration = Duration::from_secs(3);

/// Looks for the bounds of a pool that is under the load of `plan`. `request_cpu_s` is what a request takes of a processor.
pub(crate) fn find(
    lab: &mut Lab<'_>,
    session: &Session,
    plan: &Plan,
    request_cpu_s: f64,
    threads: u64,
) -> Result<Vec<SizeBound>, LabError> {
    let mut alone = plan.clone();
    alone.phases.retain(|p| p.measured);
    for phase in &mut alone.phases {
        phase.load = Load::closed(1);
        (phase.requests, phase.duration) = (Some(ALONE_REQUESTS), Some(ALONE_TIME));
    }
    let run = lab.run(&alone, "size alone")?;
    lab.check_stop()?;
    let response_s = run.measured().and_then(|p| p.latency(Kind::Response, "p50")).unwrap_or(0.0) / 1e6;
    let mut bounds = Vec::new();
    bounds.extend(processors(request_cpu_s, response_s, cores(session.master())).map(|(requests, because)| {
        SizeBound { what: "processors".into(), workers: requests.div_ceil(threads.max(1)), because }
    }));
    bounds.extend(database(lab, threads));
    Ok(bounds)
}

/// Processors that the server may use.
fn cores(master: i32) -> f64 {
    let allowed = process::affinity(master).len().max(1) as f64;
    let limits = cgroup::groups(master).into_iter().filter_map(|g| g.read().cpu_limit_cores());
    limits.fold(allowed, f64::min)
}

/// Requests at a time with which the processors are full, and why: each keeps one busy for a part of its time.
fn processors(cpu_s: f64, response_s: f64, cores: f64) -> Option<(u64, String)> {
    if cpu_s <= 0.0 || response_s <= 0.0 {
        return None;
    }
    let share = (cpu_s / response_s).min(1.0);
    let requests = (cores / share).ceil();
    let because = format!(
        "a request takes {:.1} ms of a processor in {:.1} ms when it is alone: about {requests:.0} at a time keep {cores:.1} \
         processors busy (what it has done elsewhere, as by a database, not counted); more of them wait",
        cpu_s * 1e3,
        response_s * 1e3,
    );
    Some((requests as u64, because))
}

/// The database that the workers talk to, where it was seen and has a limit.
fn database(lab: &Lab<'_>, threads: u64) -> Option<SizeBound> {
    let members = lab.members();
    let found = members.into_iter().find_map(|pid| {
        let name = process::name(pid)?;
        let service = service_at("", Some(&name)).filter(|s| s.is_database)?;
        Some((name, connection_limit(pid, service.name)?))
    })?;
    let (name, limit) = found;
    Some(SizeBound {
        what: "database-connections".into(),
        workers: limit.connections / threads.max(1),
        because: format!(
            "{name} takes {} connections at once ({}); of workers that each have one, those beyond that get errors",
            limit.connections, limit.source
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_share_the_processors() {
        let n = |cpu, response, cores| processors(cpu, response, cores).map(|(n, _)| n);
        assert_eq!(n(0.005, 0.005, 2.0), Some(2));
        assert_eq!(n(0.010, 0.210, 2.0), Some(42));
        // More than all of its time is a tick of the clock.
        assert_eq!(n(0.006, 0.005, 4.0), Some(4));
        assert_eq!(n(0.0, 0.005, 4.0), None);
    }
}
