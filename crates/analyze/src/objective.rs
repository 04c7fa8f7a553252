//! Decides whether a run met its objectives.

use lastdrop_model::objective::{Metric, Objective, ObjectiveResult};
use lastdrop_model::run::Results;
use lastdrop_model::{Classes, PhaseReport, Plan, ServerTimeline};

/// Judges the objectives of a run's measured phase and of its classes, using the server's samples. If a
/// percentile is only a lower bound, it cannot show that a limit was met.
#[must_use]
pub fn judge(
    objectives: &[Objective],
    plan: &Plan,
    phases: &[PhaseReport],
    server: Option<&ServerTimeline>,
) -> Vec<ObjectiveResult> {
    let phase = phases.iter().find(|p| p.measured);
    objectives
        .iter()
        .map(|objective| {
            let nothing = || ObjectiveResult {
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
                Metric::Mismatch => match results.mismatch.as_ref().filter(|m| m.compared > 0) {
                    Some(mismatch) => (mismatch.share(), false),
                    None => {
                        return ObjectiveResult {
                            seen: "not known: the log does not say what its answers were".into(),
                            ..nothing()
                        };
                    }
                },
                Metric::Rate => (results.rate.answered_rps, false),
                metric @ (Metric::Cpu | Metric::CpuPerRequest) => match cpu(metric, phases, server) {
                    Some(value) => (value, false),
                    None => return ObjectiveResult { seen: UNSEEN.into(), ..nothing() },
                },
            };
            let met = objective.allows(value) && !bound;
            let why = if bound { "at least, as too many requests have no answer: " } else { "" };
            ObjectiveResult {
                objective: objective.clone(),
                met,
                value: Some(value),
                seen: why.to_string() + &objective.show(value),
            }
        })
        .collect()
}

/// The value if the server's CPU is unknown.
const UNSEEN: &str = "not known and cannot be judged: the server's processes could not be looked at from here (on another machine, or \
                      another user's)";

/// Returns the CPU of the measured phase in the metric's unit. CPU per request covers the server and its
/// backends over the whole phase, if they run on this machine. Otherwise the value comes from samples, each
/// weighted by its overlap with the phase.
fn cpu(metric: &Metric, phases: &[PhaseReport], server: Option<&ServerTimeline>) -> Option<f64> {
    let at = phases.iter().position(|p| p.measured)?;
    let counted = phases[at].server_cpu.map(|cpu| cpu.us_per_request).filter(|us| *us > 0.0);
    if let (Metric::CpuPerRequest, Some(us)) = (metric, counted) {
        return Some(us);
    }
    let server = server?;
    let start: f64 = phases[..at].iter().map(|p| p.duration_s).sum();
    let end = start + phases[at].duration_s;
    let (mut sum, mut seconds) = (0.0, 0.0);
    for look in server.samples.iter() {
        let within = look.t_s.min(end) - (look.t_s - look.span_s).max(start);
        let value = match metric {
            Metric::Cpu if look.host.cores.is_empty() => None,
            Metric::Cpu => Some(look.host.cores.iter().sum::<f64>() / look.host.cores.len() as f64),
            _ => look.cpu_cores,
        };
        if let Some(value) = value.filter(|_| within > 0.0) {
            (sum, seconds) = (sum + value * within, seconds + within);
        }
    }
    let mean = (seconds > 0.0).then(|| sum / seconds)?;
    if *metric == Metric::Cpu {
        return Some(mean);
    }
    let rate = phases[at].rate.answered_rps;
    (rate > 0.0).then(|| mean * 1e6 / rate)
}

/// Returns the fraction (0 to 1) of due requests without a good answer. It counts those without any answer.
/// It also counts those with an error status (400 and above) or, if the plan has expectations, those that
/// miss them.
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

/// Returns whether the plan has expectations for the answers of this class.
fn expects_of(plan: &Plan, class: Option<&str>) -> bool {
    match class {
        None => expects(plan),
        Some(name) => {
            Classes::of(plan).requests(name).any(|at| plan.requests.get(at).is_some_and(|r| !r.expect.is_empty()))
        }
    }
}

/// Returns whether the plan has expectations for any answers.
#[must_use]
pub fn expects(plan: &Plan) -> bool {
    plan.requests.iter().any(|r| !r.expect.is_empty())
}

/// Counts bad answers: those that miss the plan's expectations or, if there are none, those with an error
/// status.
#[must_use]
pub fn bad_answers(plan: &Plan, phase: &PhaseReport) -> u64 {
    bad(expects(plan), phase)
}

fn bad(expects: bool, results: &Results) -> u64 {
    if expects { results.expectations.missed } else { error_statuses(results) }
}

/// Counts answers with status 400 and above.
#[must_use]
pub fn error_statuses(results: &Results) -> u64 {
    results.status.iter().filter(|(code, _)| code.parse().is_ok_and(|c: u32| c >= 400)).map(|(_, n)| n).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::run::RunBuilder;
    use lastdrop_model::{ClassAnswer, Counts, HostSample, Kind, Sample, Slice};

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
        judge(&Objective::list(text).expect("valid"), &plan, &[phase], None).iter().map(|j| j.met).collect()
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
        let judged = judge(&Objective::list(text).expect("valid"), &plan, &[phase], None);
        let met: Vec<bool> = judged.iter().map(|j| j.met).collect();
        assert_eq!(met, [true, false, true, false, true, true, false]);
        assert_eq!(judged[6].seen, "nothing was measured");
    }

    #[test]
    fn without_a_phase_nothing_is_met() {
        let (plan, _) = phase(Counts::default(), 0);
        assert!(!judge(&Objective::list("errors<1%").expect("valid"), &plan, &[], None)[0].met);
    }

    #[test]
    fn cpu_is_that_of_the_measured_phase_and_unknown_where_nobody_looked() {
        let counts = Counts { due: 500, sent: 500, answered: 500, answered_in_time: 500, ..Counts::default() };
        let (plan, phase) = phase(counts, 0);
        let warm_up = PhaseReport { measured: false, duration_s: 2.0, ..phase.clone() };
        let look = |t_s: f64, cores: f64, server: f64| Sample {
            t_s,
            span_s: 1.0,
            cpu_cores: Some(server),
            host: HostSample { cores: vec![cores, 0.0], ..HostSample::default() },
            ..Sample::default()
        };
        // The warm-up used all CPU, the second after it half of one of two cores.
        let looks = vec![look(1.0, 1.0, 2.0), look(2.0, 1.0, 2.0), look(3.0, 0.5, 0.4), look(4.0, 1.0, 2.0)];
        let seen = ServerTimeline { samples: looks.into(), ..ServerTimeline::default() };
        let text = "cpu<26%,cpu<24%,cpu_per_request<900us,cpu_per_request<700us";
        let list = Objective::list(text).expect("valid");
        let phases = [warm_up, phase];
        let judged = judge(&list, &plan, &phases, Some(&seen));
        assert_eq!(judged.iter().map(|j| j.met).collect::<Vec<_>>(), [true, false, true, false], "{judged:?}");
        assert_eq!((judged[0].seen.as_str(), judged[2].seen.as_str()), ("25.0 %", "800 µs"));
        for blind in [None, Some(&ServerTimeline::default())] {
            let judged = judge(&list, &plan, &phases, blind);
            assert!(judged.iter().all(|j| !j.met && j.value.is_none() && j.seen.contains("cannot be judged")));
        }
    }
}
