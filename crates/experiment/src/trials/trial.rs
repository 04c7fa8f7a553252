//! Measures a server with some settings once: start it fresh, warm up, load, judge.

use std::rc::Rc;
use std::time::Duration;

use lastdrop_model::documents::Trial;
use lastdrop_model::{Kind, PhaseReport, Plan, Role, Run, Verdict};
use lastdrop_server::operations::RealMemory;
use lastdrop_server::{Change, Server, Stack};

use crate::lab::warm::{WarmUpMethod, complete_pool, warmth};
use crate::lab::{Lab, LabError, Observer};
use crate::trials::early_stop::{EarlyStop, EarlyStopObserver};

/// A pool that grows with its load is measured so many times more at most, until it is grown. Against a pool that begins with all of its
/// workers, one that begins with 5 of 16 seemed slower by a third, and gave the same half a minute later.
const MOST_WHILE_GROWING: u32 = 3;

/// The definition of a trial.
#[derive(Debug, Clone)]
pub struct TrialSpec<'a> {
    /// The load; only its measured phase is used.
    pub plan: &'a Plan,
    pub change: Change,
    pub label: String,
    pub role: &'a str,
    /// Warm-up load if workers are recycled too fast to be warmed one by one.
    pub recycling_warm_up: Duration,
    /// Load before the measurement in all other cases; zero is none.
    pub settling: Duration,
    /// A pool that grows under the load is measured again once it is grown.
    pub until_grown: bool,
    /// Most memory that the group may use, in bytes.
    pub budget: Option<u64>,
    /// Share of requests that may go unanswered in a valid trial.
    pub most_unanswered: f64,
    /// The trial ends early if this is out of reach.
    pub early_stop: Option<EarlyStop>,
}

/// A trial and its run; no run if the settings were refused.
#[derive(Debug)]
pub struct TrialResult {
    pub trial: Trial,
    pub run: Option<Run>,
}

/// Starts the servers with the settings and measures them.
///
/// # Errors
/// When the experiment cannot go on: the user stopped it, or a server does not come back. Refused settings give a trial
/// that does not count.
pub fn trial(lab: &mut Lab<'_>, stack: &mut Stack, order: &TrialSpec<'_>) -> Result<TrialResult, LabError> {
    let mut trial = order.begun();
    let Some(settling) = start(lab, stack, order, &mut trial)? else { return Ok(TrialResult { trial, run: None }) };
    let mut plan = order.plan.clone();
    plan.warm_up("warm-up", settling);
    lab.check_stop()?;
    let watching = order.early_stop.map(|early_stop| EarlyStopObserver::new(early_stop, plan.phases.len() - 1));
    let over = watching.as_ref().map(|w| Rc::clone(&w.over));
    let others = lab.observers.len();
    lab.observers.extend(watching.map(|w| Box::new(w) as Box<dyn Observer>));
    let mut more = if order.until_grown { MOST_WHILE_GROWING } else { 0 };
    let ran = loop {
        let workers = count_pool(stack);
        let ran = lab.run_undisturbed(&plan, &order.label);
        let is_over = over.as_ref().is_some_and(|over| over.get() > 0);
        if more == 0 || is_over || lab.stopped() || ran.is_err() || 10 * count_pool(stack) <= 11 * workers {
            break ran;
        }
        more -= 1;
    };
    lab.observers.truncate(others);
    let (run, repeated) = ran?;
    lab.check_stop()?;
    trial.repeated = repeated;
    trial.real_memory_bytes = memory(stack);
    judge(&mut trial, &run, expected_status(stack), order);
    if let (Some(early_stop), Some(seconds @ 1..)) = (order.early_stop, over.map(|over| over.get())) {
        (trial.cut_short, trial.valid) = (true, false);
        let best = early_stop.best_rps;
        trial.why =
            format!("{:.1}/s after {seconds} s: the {best:.1}/s of the best so far are out of reach", trial.objective);
    }
    Ok(TrialResult { trial, run: Some(run) })
}

impl TrialSpec<'_> {
    /// Returns a trial without results.
    pub(crate) fn begun(&self) -> Trial {
        Trial {
            settings: self.change.settings.clone(),
            objective: 0.0,
            valid: false,
            why: String::new(),
            p99_us: 0.0,
            unanswered: 0,
            real_memory_bytes: None,
            warmed: String::new(),
            role: self.role.into(),
            keepalive: self.plan.keepalive.to_string(),
            run: String::new(),
            repeated: 0,
            cut_short: false,
            steps: Vec::new(),
        }
    }
}

/// Starts the servers with the settings and warms up their workers. Returns how long to load them before measuring.
/// None if the settings are refused; the trial has the reason.
///
/// # Errors
/// As [`trial`].
pub(crate) fn start(
    lab: &mut Lab<'_>,
    stack: &mut Stack,
    order: &TrialSpec<'_>,
    trial: &mut Trial,
) -> Result<Option<Duration>, LabError> {
    lab.check_stop()?;
    match stack.apply(&order.change) {
        Ok(()) => {}
        Err(e) if e.is_refusal() && !order.change.is_empty() => {
            trial.why = e.to_string();
            return Ok(None);
        }
        Err(e) => return Err(e.into()),
    }
    lab.check_stop()?;
    let mut now = stack.original().settings.clone();
    now.extend(order.change.settings.clone());
    complete_pool(lab.clock, || stack.count_workers());
    let workers = count_pool(stack);
    let recycle = stack.value(Role::Recycle, &now);
    let warmed = warmth(recycle.as_ref(), workers, expected_requests(order.plan), order.recycling_warm_up);
    trial.warmed = warmed.to_string();
    Ok(Some(match warmed {
        WarmUpMethod::Each => {
            let answered = lab.warm_each(order.plan, workers);
            if answered < workers {
                trial.warmed = format!("{answered} of {workers}");
            }
            order.settling
        }
        WarmUpMethod::Load(d) => d,
    }))
}

/// Returns the number of workers of the pool; 0 without a pool.
fn count_pool(stack: &Stack) -> usize {
    stack.pool().map_or(0, Server::count_workers)
}

/// Returns the real memory of the pool in bytes.
pub(crate) fn memory(stack: &Stack) -> Option<u64> {
    stack.pool()?.operate(RealMemory).ok()?
}

/// Returns the status of the healthy server's response.
pub(crate) fn expected_status(stack: &Stack) -> u16 {
    stack.health().map_or(200, |h| h.status)
}

/// Returns the share of responses with the healthy server's status.
fn good_share(phase: &PhaseReport, expected: u16) -> f64 {
    match phase.requests.answered {
        0 => 0.0,
        answered => phase.status.get(&expected.to_string()).copied().unwrap_or(0) as f64 / answered as f64,
    }
}

/// Copies the measurements of a run into a trial. Its objective is good responses per second: those with the healthy
/// server's status before the end of the phase.
pub(crate) fn judge(trial: &mut Trial, run: &Run, expected: u16, order: &TrialSpec<'_>) {
    trial.run.clone_from(&run.id);
    let Some(phase) = run.measured() else {
        trial.why = "nothing was measured".into();
        return;
    };
    trial.objective = phase.rate.answered_rps * good_share(phase, expected);
    trial.p99_us = phase.latency(Kind::Response, "p99").unwrap_or(0.0);
    trial.unanswered = phase.requests.due - phase.requests.answered.min(phase.requests.due);
    let over = order.budget.zip(trial.real_memory_bytes).filter(|(budget, used)| used > budget);
    trial.why = match (spoiled(run, phase, expected, order), over) {
        (Some(why), _) => why,
        (None, Some((budget, used))) => format!("the workers used {} MB of {} MB", used >> 20, budget >> 20),
        (None, None) => missed(order.plan, run),
    };
    trial.valid = trial.why.is_empty();
}

/// Returns why a run says nothing about its settings.
pub(crate) fn spoiled(run: &Run, phase: &PhaseReport, expected: u16, order: &TrialSpec<'_>) -> Option<String> {
    let good = good_share(phase, expected);
    if run.validity.verdict == Verdict::Invalid {
        Some(run.validity.reasons.iter().map(|r| r.what.clone()).collect::<Vec<_>>().join("; "))
    } else if phase.unanswered_share() > order.most_unanswered {
        Some(format!("{:.1} % of the requests got no answer", phase.unanswered_share() * 100.0))
    } else if good < 0.99 {
        Some(format!("{:.1} % of the answers have another status than {expected}", (1.0 - good) * 100.0))
    } else {
        None
    }
}

/// Describes the objectives that a run misses; empty if there are none.
fn missed(plan: &Plan, run: &Run) -> String {
    let judged = lastdrop_analyze::objective::judge(&plan.objectives, plan, &run.phases, run.server.as_ref());
    let missed = judged.iter().filter(|j| !j.met).map(|j| format!("{} is missed: {}", j.objective, j.seen));
    missed.collect::<Vec<_>>().join("; ")
}

/// Estimates how many requests a plan makes. With a duration it is unknown; 2000 per second is a lot for a server whose
/// pool matters.
fn expected_requests(plan: &Plan) -> u64 {
    plan.phases.iter().map(|p| p.requests.or(p.duration.map(|d| (d.as_secs_f64() * 2000.0) as u64)).unwrap_or(0)).sum()
}
