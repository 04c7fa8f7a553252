//! Reads the load of a plan file: users, rate and times at the top, or `[[phase]]`.

use std::time::Duration;

use super::format::{PhaseFile, PlanFile, Text, WithSpan};
use crate::bounds::{BoundedValue, row};
use crate::plan::{Arrival, Load, Phase, Plan};

const DEFAULT_CONNECTIONS: u32 = 256;

/// The offset in the file, what is wrong, and what to try.
type PhaseError = (usize, String, String);

fn arrivals_of(file: &PlanFile, own: Option<&Text<Arrival>>) -> Arrival {
    own.or(file.arrivals.as_ref()).map_or(Arrival::Uniform, |a| a.0)
}

fn connections_of(file: &PlanFile, own: Option<BoundedValue<row::Connections>>) -> u32 {
    own.or(file.connections).map_or(DEFAULT_CONNECTIONS, |c| c.0)
}

/// Returns the load of a phase.
fn load_of(file: &PlanFile, phase: &WithSpan<PhaseFile>) -> Result<Load, PhaseError> {
    let (start, p) = (phase.0.span().start, phase.0.get_ref());
    let wrong = |what: &str, advice: &str| Err((start, what.to_string(), advice.to_string()));
    match (p.users, p.rate) {
        (Some(_), Some(_)) => wrong("a phase has users or a rate, not both", "keep one of them"),
        (None, None) => wrong("a phase without load", "write users = 10 or rate = 100"),
        (Some(users), None) => {
            if p.to_rate.is_some() || p.steps.is_some() || p.burst.is_some() || p.arrivals.is_some() {
                return wrong(
                    "to_rate, steps, burst and arrivals belong to a rate",
                    "write to_users for a ramp of users",
                );
            }
            Ok(Load::Closed {
                users: users.0,
                to_users: p.to_users.map(|n| n.0),
                connections: p.connections.or(file.connections).map(|c| c.0),
            })
        }
        (None, Some(rate)) => {
            if p.to_users.is_some() {
                return wrong("to_users belongs to users", "write to_rate for a ramp of the rate");
            }
            Ok(Load::Open {
                rate_rps: rate.0,
                to_rps: p.to_rate.map(|r| r.0),
                steps: p.steps.map(|n| n.0),
                arrivals: arrivals_of(file, p.arrivals.as_ref()),
                burst: p.burst.or(file.burst).map_or(1, |b| b.0),
                connections: connections_of(file, p.connections),
            })
        }
    }
}

/// Sets the phases and returns whether the file specifies any load. An error has the offset in the file, what is
/// wrong, and what to try.
pub(super) fn read_phases(file: &PlanFile, plan: &mut Plan) -> Result<bool, PhaseError> {
    let has_rate = file.rate.is_some() || file.phase.iter().any(|p| p.0.get_ref().rate.is_some());
    if (file.arrivals.is_some() || file.burst.is_some()) && !has_rate {
        return Err((0, "arrivals and burst without a rate".into(), "write rate = 100, or leave them away".into()));
    }
    if file.phase.is_empty() {
        if file.users.is_some() && file.rate.is_some() {
            return Err((0, "users and rate exclude each other".into(), "keep one of them, or write [[phase]]".into()));
        }
        let load = match file.rate {
            Some(rate) => Load::Open {
                rate_rps: rate.0,
                to_rps: None,
                steps: None,
                arrivals: arrivals_of(file, None),
                burst: file.burst.map_or(1, |b| b.0),
                connections: connections_of(file, None),
            },
            None => Load::Closed {
                users: file.users.map_or(10, |u| u.0),
                to_users: None,
                connections: file.connections.map(|c| c.0),
            },
        };
        let duration = file.duration.map(|d| d.0);
        plan.phases = Vec::new();
        if let Some(warm_up) = &file.warm_up {
            plan.phases.push(Phase {
                name: "warm-up".into(),
                measured: false,
                load: load.clone(),
                requests: None,
                duration: Some(warm_up.0),
            });
        }
        plan.phases.push(Phase {
            name: "main".into(),
            measured: true,
            load,
            requests: file.requests.map(|r| r.0),
            duration: duration.or(if file.requests.is_some() { None } else { Some(Duration::from_secs(10)) }),
        });
        return Ok(file.users.is_some() || file.rate.is_some() || file.duration.is_some() || file.requests.is_some());
    }
    if file.users.is_some()
        || file.rate.is_some()
        || file.duration.is_some()
        || file.requests.is_some()
        || file.warm_up.is_some()
    {
        return Err((
            0,
            "users, rate, duration, requests and warm_up are said in the phases where there are some".into(),
            "move them into [[phase]]".into(),
        ));
    }
    plan.phases = Vec::new();
    for (i, phase) in file.phase.iter().enumerate() {
        let p = phase.0.get_ref();
        let load = load_of(file, phase)?;
        plan.phases.push(Phase {
            name: p.name.clone().unwrap_or_else(|| format!("phase {}", i + 1)),
            measured: p.measured.unwrap_or(true),
            load,
            requests: p.requests.map(|r| r.0),
            duration: p.duration.map(|d| d.0),
        });
    }
    Ok(true)
}
