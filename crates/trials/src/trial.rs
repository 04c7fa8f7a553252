//! One measurement of a server with some settings: started afresh, warmed, loaded, judged.

use std::time::Duration;

use lastdrop_model::documents::Trial;
use lastdrop_model::{Kind, PhaseReport, Plan, Role, Run, Settings, Verdict};
use lastdrop_server::Stack;

use crate::size::real_memory;
use lastdrop_lab::warm::{Warmth, complete_pool, warm_each, warmth};
use lastdrop_lab::{Lab, LabError};

/// What a trial is to be.
#[derive(Debug, Clone)]
pub struct TrialOrder<'a> {
    /// The load; its measured phase alone.
    pub plan: &'a Plan,
    pub settings: Settings,
    pub label: String,
    pub role: &'a str,
    /// Load before the measurement where workers are recycled too fast to be warmed one by one.
    pub recycling_warm_up: Duration,
    /// Load before the measurement in any other case; zero is none.
    pub settling: Duration,
    /// Most memory that the group may use, bytes.
    pub budget: Option<u64>,
    /// Requests without an answer up to this share do not spoil the trial.
    pub most_unanswered: f64,
}

/// A trial and the run that it rests on; without a run when the settings were refused.
#[derive(Debug)]
pub struct Measured {
    pub trial: Trial,
    pub run: Option<Run>,
}

/// Starts the servers with the settings and measures them.
///
/// # Errors
/// When the experiment cannot go on: the user stopped it, or a server does not come back. Settings that one refuses are a trial that does not count.
pub fn trial(lab: &mut Lab<'_>, stack: &mut Stack, order: &TrialOrder<'_>) -> Result<Measured, LabError> {
    lab.check_stop()?;
    let mut trial = Trial {
        settings: order.settings.clone(),
        objective: 0.0,
        valid: false,
        why: String::new(),
        p99_us: 0.0,
        unanswered: 0,
        real_memory_bytes: None,
        warmed: String::new(),
        role: order.role.into(),
        keepalive: order.plan.keepalive.to_string(),
        run: String::new(),
        repeated: 0,
    };
    match stack.apply(&order.settings) {
        Ok(()) => {}
        Err(e) if e.is_refusal() && !order.settings.is_empty() => {
            trial.why = e.to_string();
            return Ok(Measured { trial, run: None });
        }
        Err(e) => return Err(e.into()),
    }
    lab.check_stop()?;
    let mut now = stack.original().settings.clone();
    now.extend(order.settings.clone());
    complete_pool(|| stack.count_workers());
    let workers = stack.pool().map_or(0, |server| server.workers().len());
    let recycle = stack.value(Role::Recycle, &now);
    let warmed = warmth(recycle.as_ref(), workers, expected_requests(order.plan), order.recycling_warm_up);
    trial.warmed = warmed.to_string();
    let mut plan = order.plan.clone();
    let settling = match warmed {
        Warmth::Each => {
            let answered = warm_each(&plan, workers);
            if answered < workers {
                trial.warmed = format!("{answered} of {workers}");
            }
            order.settling
        }
        Warmth::Load(d) => d,
    };
    plan.warm_up("warm-up", settling);
    lab.check_stop()?;
    let (run, repeated) = lab.run_undisturbed(&plan, &order.label)?;
    lab.check_stop()?;
    trial.repeated = repeated;
    trial.run = run.id.clone();
    trial.real_memory_bytes = stack.pool().and_then(|s| real_memory(s.master(), &s.workers()).ok());
    let expected = stack.health().map_or(200, |h| h.status);
    judge(&mut trial, &run, expected, order);
    Ok(Measured { trial, run: Some(run) })
}

/// Good answers a second: those with the status that the healthy server gives, before the end of the phase.
fn judge(trial: &mut Trial, run: &Run, expected: u16, order: &TrialOrder<'_>) {
    let Some(phase) = run.measured() else {
        trial.why = "nothing was measured".into();
        return;
    };
    let answered = phase.requests.answered;
    let good = phase.status.get(&expected.to_string()).copied().unwrap_or(0);
    let good_share = if answered == 0 { 0.0 } else { good as f64 / answered as f64 };
    trial.objective = phase.rate.answered_rps * good_share;
    trial.p99_us = phase.latency(Kind::Response, "p99").unwrap_or(0.0);
    trial.unanswered = phase.requests.due - answered.min(phase.requests.due);
    let over = order.budget.zip(trial.real_memory_bytes).filter(|(budget, used)| used > budget);
    trial.why = if run.validity.verdict == Verdict::Invalid {
        run.validity.reasons.iter().map(|r| r.what.clone()).collect::<Vec<_>>().join("; ")
    } else if phase.unanswered_share() > order.most_unanswered {
        format!("{:.1} % of the requests got no answer", phase.unanswered_share() * 100.0)
    } else if good_share < 0.99 {
        format!("{:.1} % of the answers have another status than {expected}", (1.0 - good_share) * 100.0)
    } else if let Some((budget, used)) = over {
        format!("the workers used {} MB of {} MB", used >> 20, budget >> 20)
    } else {
        missed(order.plan, phase)
    };
    trial.valid = trial.why.is_empty();
}

/// The objectives that a phase misses, in words; empty when there is none.
fn missed(plan: &Plan, phase: &PhaseReport) -> String {
    let judged = lastdrop_analyze::objective::judge(&plan.objectives, plan, Some(phase));
    let missed = judged.iter().filter(|j| !j.met).map(|j| format!("{} is missed: {}", j.objective, j.seen));
    missed.collect::<Vec<_>>().join("; ")
}

/// About how many requests a plan makes: for -d it is not known, and 2000 a second is a lot for a server whose pool
/// matters.
fn expected_requests(plan: &Plan) -> u64 {
    plan.phases.iter().map(|p| p.requests.or(p.duration.map(|d| (d.as_secs_f64() * 2000.0) as u64)).unwrap_or(0)).sum()
}
