//! A step of an examination: the plan of its load, and its result.

use std::time::Duration;

use lastdrop_diagnose::fold;
use lastdrop_model::examination::{ExaminationStep, GeneratorMeasurements, StepKind};
use lastdrop_model::plan::{KeepAlive, Load, Plan};
use lastdrop_model::{Kind, Run};

use crate::doctor::site::MachineFacts;

/// Returns the plan with this many users for this time; with its own load if `users` is None.
pub fn plan(plan: &Plan, users: Option<u32>, time: Duration) -> Plan {
    let mut plan = plan.clone();
    plan.phases.retain(|p| p.measured);
    for phase in &mut plan.phases {
        phase.requests = None;
        phase.duration = Some(time);
        match (&mut phase.load, users) {
            (Load::Closed { users: all, to_users, .. }, Some(users)) => (*all, *to_users) = (users, None),
            (load @ Load::Open { .. }, Some(users)) => *load = Load::closed(users),
            _ => {}
        }
    }
    plan
}

/// Returns the label of the step's run.
pub fn label(kind: StepKind) -> String {
    format!("doctor {}", name(kind))
}

pub fn name(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Alone => "one user",
        StepKind::Few => "a few users",
        StepKind::Main => "the load asked about",
        StepKind::Starting => "the load asked about, while workers started",
        StepKind::Beyond => "twice as many users",
        StepKind::OtherKeepalive => "keep-alive the other way",
        StepKind::Uncompressed => "without compression",
        StepKind::OtherSessions => "a session for each user",
        StepKind::Inside => "look inside",
        StepKind::Observed => "watched",
    }
}

/// Makes a step from its run, and from the samples of the servers under its load.
pub fn of(
    run: &Run,
    kind: StepKind,
    plan: &Plan,
    users: u32,
    seen: Option<ExaminationStep>,
    machine: &MachineFacts,
) -> ExaminationStep {
    let is_fleet = !run.agents.is_empty();
    // Steal on other machines does not matter to the servers.
    let steal = run.generator.steal.filter(|_| !is_fleet && !machine.away).unwrap_or(0.0);
    let own = ExaminationStep { steal, ..ExaminationStep::default() };
    let mut step = ExaminationStep {
        kind,
        users,
        keepalive: plan.keepalive != KeepAlive::Off,
        shares_connections: plan.http.is_http2() && plan.http.most_streams() > 1,
        run: run.id.clone(),
        anatomy: run.anatomy.clone(),
        lost: run.agents.iter().filter(|a| !a.complete).map(|a| a.name.clone()).collect(),
        ..seen.unwrap_or(own)
    };
    let Some(phase) = run.measured() else { return step };
    fold::phase(phase, &mut step);
    step.connect_errors = run.generator.connect_errors.clone();
    let cores = |cpu_s: f64| if phase.duration_s > 0.0 { cpu_s / phase.duration_s } else { 0.0 };
    // Agents on one machine count as other programs to each other.
    let share_a_machine = run.agents.iter().filter(|a| a.here).count() > 1;
    step.generator = GeneratorMeasurements {
        saturated: run.generator.saturated,
        cores: cores(run.generator.cpu_s),
        agents: run.agents.iter().map(|a| (a.name.clone(), cores(a.cpu_s))).collect(),
        cores_here: None,
        throttled_s: run.generator.throttled_s,
        no_ports: run.generator.shortage.ports,
        no_descriptors: run.generator.shortage.descriptors,
        lateness_p99_us: phase.latency(Kind::Lateness, "p99").unwrap_or(0.0),
        others_cores: run.generator.others_cores.filter(|_| !share_a_machine).unwrap_or(0.0),
    };
    // Agents on this machine are known by their addresses.
    let here = || run.agents.iter().filter(|a| a.here).map(|a| a.name.clone()).collect();
    let known = !machine.agents.is_empty() || machine.away;
    let machine = MachineFacts { agents: if known { machine.agents.clone() } else { here() }, ..machine.clone() };
    step.generator.cores_here = cores_beside(&step.generator, &machine);
    step
}

/// Cores that the load used on this machine. None means all of them.
pub fn cores_beside(generator: &GeneratorMeasurements, machine: &MachineFacts) -> Option<f64> {
    let own = generator.agents.iter().filter(|(name, _)| machine.agents.contains(name)).map(|(_, cores)| cores);
    (machine.away || !generator.agents.is_empty()).then(|| own.sum())
}
