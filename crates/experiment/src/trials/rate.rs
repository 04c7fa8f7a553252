//! A trial as a short search for capacity: the highest rate at which a server with some settings meets the objectives.
//!
//! The first rate is that of the best settings so far. Settings that clearly miss the objectives at that rate cannot
//! win, and by how much does not matter: the trial is cut short.

use std::borrow::Cow;
use std::time::Duration;

use lastdrop_analyze::capacity::{FALL, Purpose, RateSearch, Rules, SearchStep, falls_behind, tail};
use lastdrop_analyze::objective::judge as judge_objectives;
use lastdrop_model::documents::CapacityStep;
use lastdrop_model::event::Outcome;
use lastdrop_model::objective::Metric;
use lastdrop_model::plan::{Arrival, Load};
use lastdrop_model::{Event, Kind, Objective, ObjectiveResult, Plan, Run};
use lastdrop_server::Stack;
use lastdrop_server::operations::Drain;

use crate::lab::{Lab, LabError};
use crate::trials::capacity::{HORIZON_S, cool_down, step_of};
use crate::trials::trial::{TrialResult, TrialSpec, expected_status, judge, memory, spoiled, start};

/// Where a search begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RateStart {
    /// At this rate, with no evidence that it can be met.
    Nothing { rate: f64 },
    /// At the rate of the best so far; the search ends if that is out of reach.
    Best { rate: f64 },
    /// Near the rate that the same settings reached before.
    Known { rate: f64 },
    /// At this rate, which is the only one tried.
    Held { rate: f64 },
}

/// The second rate, as a multiple of the rate of the best.
const HOPE: f64 = 1.25;
/// The first rate, as a share of a known rate.
const BELOW: f64 = 0.9;
/// Factor to the next lower rate if the search starts near the result.
const NEAR: f64 = 1.15;
/// The rate is found once the highest met and the lowest missed rate are this close.
const PRECISION: f64 = 0.05;
/// Most rates of one trial; and most misses before any rate is met, if the trial has to reach the best.
pub(crate) const MOST_STEPS: usize = 9;
const MOST_MISSES: usize = 3;
/// A limit exceeded by this factor is clearly missed.
const CLEARLY: f64 = 1.25;
/// A step is long enough for one request beyond the percentile, but not longer than `LONGEST_STEP_S` for that alone. It
/// is at least `SHORTEST_STEP_S` long: otherwise requests still in flight at its end would look like a server that
/// falls behind.
const LONGEST_STEP_S: f64 = 10.0;
const SHORTEST_STEP_S: f64 = 1.0;
/// No rate above this.
const CEILING: f64 = 1e6;
/// Longest wait for recovery from overload.
const MOST_COOLING: Duration = Duration::from_secs(10);

impl RateStart {
    fn most_steps(self) -> usize {
        if matches!(self, RateStart::Held { .. }) { 1 } else { MOST_STEPS }
    }

    fn rules(self, objectives: &[Objective]) -> Rules {
        let (start, hint, fall) = match self {
            RateStart::Nothing { rate } => (0.6 * rate, Some(rate), FALL / 2.0),
            RateStart::Best { rate } => (rate, Some(HOPE * rate), NEAR),
            RateStart::Known { rate } => (BELOW * rate, Some(rate), NEAR),
            RateStart::Held { rate } => (rate, None, NEAR),
        };
        let start = start.max(0.1);
        Rules {
            start,
            hint,
            fall,
            ceiling: CEILING,
            precision: PRECISION,
            rechecks: 0,
            hold_s: 0.0,
            tail: tail(objectives),
        }
    }
}

/// Returns true if an objective limits the rate.
pub(crate) fn bounds_a_rate(objectives: &[Objective]) -> bool {
    objectives.iter().any(|o| o.metric != Metric::Rate)
}

/// Returns the length of a step at a rate, seconds.
pub(crate) fn step_s(block: Duration, objectives: &[Objective], rate: f64, samples: f64, longest_s: f64) -> f64 {
    let enough = samples / (tail(objectives) * rate.max(1e-3));
    enough.min(longest_s).max(block.as_secs_f64()).max(SHORTEST_STEP_S)
}

/// Returns the plan with the same requests at a rate.
fn at_rate(plan: &Plan, rate: f64, seconds: f64) -> Plan {
    let mut plan = plan.clone();
    for phase in &mut plan.phases {
        phase.load = Load::open(rate, Arrival::Uniform, phase.load.most_concurrent());
        (phase.requests, phase.duration) = (None, Some(Duration::from_secs_f64(seconds)));
    }
    plan
}

/// The result of a rate.
struct RateAttempt {
    step: CapacityStep,
    run: Run,
    /// Largest factor by which a limit was missed; infinite if more was wrong than a limit.
    beyond: f64,
}

/// Starts the servers with the settings and searches the highest rate that meets the plan's objectives. The users of
/// `order.plan` define how many requests may be in flight.
///
/// # Errors
/// As [`crate::trials::trial::trial`].
pub(crate) fn rate_trial(
    lab: &mut Lab<'_>,
    stack: &mut Stack,
    order: &TrialSpec<'_>,
    from: RateStart,
) -> Result<TrialResult, LabError> {
    let mut trial = order.begun();
    let Some(mut settling) = start(lab, stack, order, &mut trial)? else { return Ok(TrialResult { trial, run: None }) };
    let objectives = &order.plan.objectives;
    let expected = expected_status(stack);
    let mut search = RateSearch::new(from.rules(objectives));
    let (mut best, mut nearest) = (None::<RateAttempt>, None::<RateAttempt>);
    while let SearchStep::Trial { rate, purpose, .. } = search.ask() {
        // Holding a rate is not part of a trial: the race shows it, and the winner is held once more.
        if matches!(purpose, Purpose::Confirm | Purpose::Recheck) || trial.steps.len() >= from.most_steps() {
            break;
        }
        let purpose = if matches!(from, RateStart::Held { .. }) { Purpose::Confirm } else { purpose };
        let tried = attempt(lab, order, rate, purpose, settling, expected, &mut trial.repeated)?;
        settling = order.settling;
        trial.steps.push(tried.step.clone());
        let ok = tried.step.ok;
        search.tell(rate, purpose, ok);
        if ok {
            best = Some(tried).filter(|new| best.as_ref().is_none_or(|old| new.step.rate > old.step.rate)).or(best);
            continue;
        }
        let clearly = tried.beyond > CLEARLY || trial.steps.len() >= MOST_MISSES;
        if best.is_none() && clearly && matches!(from, RateStart::Best { .. }) {
            trial.cut_short = true;
        }
        nearest = Some(tried);
        if trial.cut_short || trial.steps.len() >= from.most_steps() {
            break;
        }
        // Connections that still wait would be part of the next rate.
        stack.pool().map(|pool| pool.operate(Drain)).transpose()?;
        let calm_us = best.as_ref().map_or_else(|| limit_us(objectives), |b| 2.0 * b.step.p50_us + 1000.0);
        cool_down(lab, order.plan, calm_us, MOST_COOLING)?;
    }
    trial.real_memory_bytes = memory(stack);
    let Some(shown) = best.or(nearest) else {
        trial.why = "no rate was tried".into();
        return Ok(TrialResult { trial, run: None });
    };
    judge(&mut trial, &shown.run, expected, order);
    let rate = shown.step.rate;
    if shown.step.ok {
        trial.objective = rate;
    } else {
        let goal = objectives.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let which = if trial.cut_short { ", which the best so far comes to," } else { "" };
        trial.why = format!("{rate:.1}/s{which} do not meet {goal}: {}", shown.step.why);
        trial.valid = false;
        // A limit missed by a factor of two is met at about half the rate. If the server fell behind, its throughput
        // stands.
        let beyond = if shown.beyond.is_finite() { shown.beyond.clamp(1.0, FALL) } else { 1.0 };
        trial.objective = if trial.cut_short { trial.objective.min(rate) / beyond } else { 0.0 };
    }
    Ok(TrialResult { trial, run: Some(shown.run) })
}

fn attempt(
    lab: &mut Lab<'_>,
    order: &TrialSpec<'_>,
    rate: f64,
    purpose: Purpose,
    settling: Duration,
    expected: u16,
    repeated: &mut u32,
) -> Result<RateAttempt, LabError> {
    lab.check_stop()?;
    let objectives = &order.plan.objectives;
    let block = order.plan.phases.first().and_then(|p| p.duration).unwrap_or_default();
    let seconds = step_s(block, objectives, rate, 1.0, LONGEST_STEP_S);
    let mut plan = at_rate(order.plan, rate, seconds);
    plan.warm_up("warm-up", settling);
    let (run, again) = lab.run_undisturbed(&plan, &order.label)?;
    lab.check_stop()?;
    *repeated += again;
    let mut step = step_of(&run, rate, purpose, seconds);
    let (why, beyond) = verdict(&run, objectives, expected, order);
    (step.ok, step.why) = (why.is_empty(), why);
    let outcome = Outcome::Capacity { step: Cow::Borrowed(&step) };
    lab.tell(&Event::TrialDone { outcome });
    Ok(RateAttempt { step, run, beyond })
}

/// Returns why a rate is not met, and by which factor a limit is missed.
fn verdict(run: &Run, objectives: &[Objective], expected: u16, order: &TrialSpec<'_>) -> (String, f64) {
    let Some(phase) = run.measured() else { return ("nothing was measured".into(), f64::INFINITY) };
    if let Some(behind) = falls_behind(phase, objectives, HORIZON_S) {
        return (behind, f64::INFINITY);
    }
    let judged = judge_objectives(objectives, &run.plan, &run.phases, run.server.as_ref());
    let missed: Vec<&ObjectiveResult> = judged.iter().filter(|j| !j.met).collect();
    if missed.is_empty() {
        let why = spoiled(run, phase, expected, order);
        return (why.clone().unwrap_or_default(), if why.is_some() { f64::INFINITY } else { 0.0 });
    }
    let beyond = missed.iter().map(|j| j.value.map_or(f64::INFINITY, |v| v / j.objective.limit.max(1e-9)));
    let words = missed.iter().map(|j| format!("{} is {}", j.objective.what(), j.seen)).collect::<Vec<_>>().join("; ");
    (words, beyond.fold(0.0, f64::max))
}

/// Returns the shortest time that objectives allow for a response, microseconds; one second if they allow any time.
fn limit_us(objectives: &[Objective]) -> f64 {
    let of_answers = |o: &&Objective| matches!(&o.metric, Metric::Latency { kind: Kind::Response | Kind::Service, .. });
    objectives.iter().filter(of_answers).map(|o| o.limit).fold(1e6, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of a search if rates up to `capacity` meet the objectives, and the number of steps.
    fn found(from: RateStart, capacity: f64) -> (Option<f64>, usize) {
        let objectives = Objective::list("p99<300ms").expect("valid");
        let (mut search, mut steps) = (RateSearch::new(from.rules(&objectives)), 0);
        while let SearchStep::Trial { rate, purpose, .. } = search.ask() {
            if matches!(purpose, Purpose::Confirm | Purpose::Recheck) || steps == from.most_steps() {
                break;
            }
            search.tell(rate, purpose, rate <= capacity);
            steps += 1;
        }
        (search.capacity(), steps)
    }

    #[test]
    fn a_rate_is_found_in_a_few_steps() {
        let near = |rate: Option<f64>, capacity: f64| rate.is_some_and(|r| r <= capacity && r * 1.07 > capacity);
        // As good as the best, better by half, and four times as good.
        for (capacity, most) in [(101.0, 5), (150.0, 8), (400.0, 9)] {
            let (rate, steps) = found(RateStart::Best { rate: 100.0 }, capacity);
            assert!(near(rate, capacity) && steps <= most, "{capacity}: {rate:?} after {steps}");
        }
        // Known within a few percent.
        for capacity in [92.0, 97.0, 100.0, 104.0] {
            let (rate, steps) = found(RateStart::Known { rate: 100.0 }, capacity);
            assert!(near(rate, capacity) && steps <= 5, "{capacity}: {rate:?} after {steps}");
        }
        // The only known number is the throughput of closed-loop users.
        for capacity in [20.0, 55.0, 95.0] {
            let (rate, steps) = found(RateStart::Nothing { rate: 100.0 }, capacity);
            assert!(near(rate, capacity) && steps <= 9, "{capacity}: {rate:?} after {steps}");
        }
    }

    #[test]
    fn what_is_held_is_one_rate() {
        assert_eq!(found(RateStart::Held { rate: 100.0 }, 120.0), (Some(100.0), 1));
        assert_eq!(found(RateStart::Held { rate: 100.0 }, 90.0).0, None);
    }

    #[test]
    fn steps_are_long_enough_for_the_percentile_and_for_answers_on_their_way() {
        let objectives = Objective::list("errors<0.1%").expect("valid");
        let of = |block_ms, rate| step_s(Duration::from_millis(block_ms), &objectives, rate, 1.0, LONGEST_STEP_S);
        assert_eq!((of(300, 10_000.0), of(300, 400.0), of(5000, 400.0), of(300, 1.0)), (1.0, 2.5, 5.0, 10.0));
        assert!(bounds_a_rate(&objectives) && !bounds_a_rate(&Objective::list("rate>5").expect("valid")));
    }
}
