//! Did a run reach what it was to reach?

use lastdrop_model::objective::{Judged, Metric, Objective};
use lastdrop_model::run::Results;
use lastdrop_model::{Classes, PhaseReport, Plan};

/// Judges the measured phase of a run, or classes of its requests. A percentile that is only a lower bound does not show
/// that a limit was kept.
#[must_use]
pub fn judge(objectives: &[Objective], plan: &Plan, phase: Option<&PhaseReport>) -> Vec<Judged> {
    objectives
        .iter()
        .map(|objective| {
            let nothing = || Judged {
                objective: objective.clone(),
                met: false,
                value: None,
                seen: "nothing was measured".into(),
            };
            let class = objective.class.as_deref();
            let Some(results) = phase.and_then(|p| p.of_class(class)).filter(|r| class.is_none() || r.requests.due > 0)
            else {
                return nothing();
            };
            let (value, bound) = match &objective.metric {
                Metric::Latency { kind, field } => match results.latency(*kind, field) {
                    Some(value) => (value, results.is_lower_bound(field) && *kind == lastdrop_model::Kind::Response),
                    None => return nothing(),
                },
                Metric::Errors => (bad_share(expects_of(plan, class), results), false),
                Metric::Rate => (results.rate.answered_rps, false),
            };
            let met = objective.allows(value) && !bound;
            let why = if bound { "at least, as too many requests have no answer: " } else { "" };
            Judged {
                objective: objective.clone(),
                met,
                value: Some(value),
                seen: why.to_string() + &objective.show(value),
            }
        })
        .collect()
}

/// Requests due without a good answer, as a share (0 to 1): those without any, and those with an error status (400 and
/// up) or, where the plan says what it expects, with an answer that misses it.
#[must_use]
pub fn error_share(plan: &Plan, phase: &PhaseReport) -> f64 {
    bad_share(expects(plan), phase)
}

fn bad_share(expects: bool, results: &Results) -> f64 {
    match results.requests.due {
        0 => 0.0,
        due => (results.unanswered_share() + bad(expects, results) as f64 / due as f64).min(1.0),
    }
}

/// Does the plan say what it expects of answers to requests of this class?
fn expects_of(plan: &Plan, class: Option<&str>) -> bool {
    match class {
        None => expects(plan),
        Some(name) => {
            Classes::of(plan).requests(name).any(|at| plan.requests.get(at).is_some_and(|r| !r.expect.is_empty()))
        }
    }
}

/// Does the plan say what it expects of answers?
#[must_use]
pub fn expects(plan: &Plan) -> bool {
    plan.requests.iter().any(|r| !r.expect.is_empty())
}

/// Answers that are no good: those that miss what the plan expects or, where it expects nothing, with an error status.
#[must_use]
pub fn bad_answers(plan: &Plan, phase: &PhaseReport) -> u64 {
    bad(expects(plan), phase)
}

fn bad(expects: bool, results: &Results) -> u64 {
    if expects { results.expectations.missed } else { error_statuses(results) }
}

/// Answers with an error status, 400 and up.
#[must_use]
pub fn error_statuses(results: &Results) -> u64 {
    results.status.iter().filter(|(code, _)| code.parse().is_ok_and(|c: u32| c >= 400)).map(|(_, n)| n).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::run::RunBuilder;
    use lastdrop_model::{ClassAnswer, Counts, Kind, Slice};

    fn phase(counts: Counts, errors: u64) -> (Plan, PhaseReport) {
        let plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        let mut b = RunBuilder::new(&plan);
        let mut s = Slice::new(0, 0);
        s.counts = counts;
        s.status[200] = counts.answered - errors;
        s.status[503] = errors;
        for _ in 0..counts.answered {
            s.record(Kind::Response, 1000);
        }
        b.add(&s);
        b.end_phase(0, 1_000_000, 1);
        (plan, b.into_reports().remove(0))
    }

    fn met(text: &str, counts: Counts, errors: u64) -> Vec<bool> {
        let (plan, phase) = phase(counts, errors);
        judge(&Objective::list(text).expect("valid"), &plan, Some(&phase)).iter().map(|j| j.met).collect()
    }

    #[test]
    fn each_metric_is_judged() {
        let counts = Counts { due: 1000, sent: 1000, answered: 1000, answered_in_time: 1000, ..Counts::default() };
        assert_eq!(met("p99<2ms,errors<0.1%,rate>900", counts, 0), [true, true, true]);
        assert_eq!(met("p99<1ms,errors<0.1%,rate>1000", counts, 1), [false, false, false]);
        assert_eq!(met("connect.p99<1s", counts, 0), [false]);
    }

    #[test]
    fn a_lower_bound_proves_nothing() {
        let counts = Counts { due: 1000, sent: 1000, answered: 950, ..Counts::default() };
        assert_eq!(met("p99<2ms,p90<2ms,errors<6%,errors<4%", counts, 0), [false, true, true, false]);
    }

    #[test]
    fn a_class_is_judged_by_its_own_numbers() {
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        plan.requests = vec![plan.requests[0].clone(); 2];
        (plan.requests[0].name, plan.requests[1].name) = ("fast".into(), "slow".into());
        let mut builder = RunBuilder::new(&plan);
        let mut slice = Slice::new(0, 0);
        slice.by_class.counts = vec![Counts::default(); 2];
        for class in 0..2u16 {
            for _ in 0..100 {
                slice.count_sent(class);
                slice.count(class, |c| {
                    c.answered += 1;
                    c.answered_in_time += 1;
                });
                let us = 1000 + 9000 * u64::from(class);
                slice.record_class(ClassAnswer::new(class, 200 + 300 * class, us, us, us));
            }
        }
        builder.add(&slice);
        builder.end_phase(0, 1_000_000, 1);
        let phase = builder.into_reports().remove(0);
        let text = "fast.p99<2ms,slow.p99<2ms,slow.p99<11ms,slow.errors<50%,fast.errors<=0%,fast.rate>99,other.p99<1s";
        let judged = judge(&Objective::list(text).expect("valid"), &plan, Some(&phase));
        let met: Vec<bool> = judged.iter().map(|j| j.met).collect();
        assert_eq!(met, [true, false, true, false, true, true, false]);
        assert_eq!(judged[6].seen, "nothing was measured");
    }

    #[test]
    fn without_a_phase_nothing_is_met() {
        let (plan, _) = phase(Counts::default(), 0);
        assert!(!judge(&Objective::list("errors<1%").expect("valid"), &plan, None)[0].met);
    }
}
