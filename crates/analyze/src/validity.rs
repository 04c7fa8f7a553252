//! Can a run be believed? One table of rules; each looks at the run and gives at most one reason.

use lastdrop_model::histogram::PERCENTILES;
use lastdrop_model::objective::Metric;
use lastdrop_model::plan::Load;
use lastdrop_model::run::{Pool, Run};
use lastdrop_model::units::show_us;
use lastdrop_model::{Generator, Kind, PhaseReport, Plan, Reason, Validity, Verdict};

use crate::objective::{bad_answers, expects};
use crate::series::{Change, change_point, levels};

/// What the rules look at.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub plan: &'a Plan,
    pub phase: Option<&'a PhaseReport>,
    pub generator: &'a Generator,
    pub pool: Option<&'a Pool>,
}

impl<'a> Evidence<'a> {
    /// What a run, also one from the store, has to show.
    #[must_use]
    pub fn of(run: &'a Run) -> Evidence<'a> {
        Evidence { plan: &run.plan, phase: run.measured(), generator: &run.generator, pool: run.pool.as_ref() }
    }

    /// The load of the measured phase.
    fn load(&self) -> Option<&'a Load> {
        self.plan.phases.iter().find(|p| p.measured).map(|p| &p.load)
    }
}

/// A name, and a look at the evidence that may give a verdict, what was seen, and what to do.
struct Rule {
    name: &'static str,
    look: fn(&Evidence<'_>) -> Option<(Verdict, String, String)>,
}

/// Share of a core above which a load thread counts as saturated.
const SATURATED_CORES: f64 = 0.95;
/// kernel-limits: repeat a trial when steal exceeds 2 to 3 %.
const MOST_STEAL: f64 = 0.02;
/// Share of the time for which the generator may be throttled.
const MOST_THROTTLED: f64 = 0.01;
/// Lateness below this is that of any machine.
const MOST_LATE_US: f64 = 1000.0;
/// Samples beyond a percentile that make it more than an anecdote.
const SAMPLES_BEYOND: f64 = 10.0;
/// Unanswered requests beyond this share make the latencies those of the lucky.
const MOST_UNANSWERED: f64 = 0.01;
/// The same for answers with an error status.
const MOST_ERRORS: f64 = 0.01;
/// A clock of the day that is set by more than this, or a machine that sleeps for longer, spoils times.
const MOST_CLOCK_STEP_S: f64 = 0.1;
/// A change of level smaller than this is not worth a word.
const CHANGE: f64 = 0.1;
/// Little's law holds within this.
const LITTLE: f64 = 0.05;
/// A pool that grows by more than this is still being made.
const GROWTH: f64 = 0.1;

const RULES: &[Rule] = &[
    Rule {
        name: "nothing-answered",
        look: |e| {
            let answered = e.phase.map_or(0, |p| p.requests.answered);
            (answered == 0).then(|| {
                (
                    Verdict::Invalid,
                    "no request was answered".into(),
                    "check that the server runs and that the URL is right: curl -v URL".into(),
                )
            })
        },
    },
    Rule {
        name: "generator-saturated",
        look: |e| {
            let cores = e.generator.busiest_thread_cores;
            if !e.generator.saturated {
                return None;
            }
            let open = e.plan.phases.iter().any(|p| p.measured && matches!(p.load, Load::Open { .. }));
            let verdict = if open { Verdict::Invalid } else { Verdict::Doubtful };
            Some((
                verdict,
                format!(
                    "a load thread used {:.0} % of a core: this is the generator's limit, not the server's",
                    cores * 100.0
                ),
                format!("use more threads (-t {}) or load from another machine", e.plan.threads + 1),
            ))
        },
    },
    Rule {
        name: "co-located",
        look: |e| {
            let apart = e.pool.is_some_and(|p| !p.shares_cpus);
            (e.generator.co_located && !apart).then(|| {
                (
                    Verdict::Doubtful,
                    "generator and server share this machine".into(),
                    "good for comparing settings; for absolute numbers load from another machine, or give each its own \
                     cores (taskset)"
                        .into(),
                )
            })
        },
    },
    Rule {
        name: "steal",
        look: |e| {
            let steal = e.generator.steal?;
            (steal > MOST_STEAL).then(|| {
                (
                    Verdict::Doubtful,
                    format!("the hypervisor took {:.1} % of the CPU time", steal * 100.0),
                    "repeat the run, or compare in interleaved blocks".into(),
                )
            })
        },
    },
    Rule {
        name: "throttled",
        look: |e| {
            let throttled = e.generator.throttled_s?;
            let share = throttled / e.phase?.duration_s.max(0.001);
            (share > MOST_THROTTLED).then(|| {
                (
                    Verdict::Doubtful,
                    format!("the generator's own cgroup was throttled for {throttled:.2} s"),
                    "give it more CPU (cpu.max), or run it outside that group".into(),
                )
            })
        },
    },
    Rule {
        name: "late",
        look: |e| {
            let phase = e.phase?;
            let (late, service) = (phase.latency(Kind::Lateness, "p99")?, phase.latency(Kind::Service, "p50")?);
            (late > MOST_LATE_US && late > service).then(|| {
                (
                    Verdict::Doubtful,
                    format!("1 % of the requests left {:.1} ms or more after they were due", late / 1000.0),
                    "use more threads (-t) or a quieter machine; response latency includes the delay".into(),
                )
            })
        },
    },
    Rule {
        name: "ports",
        look: |e| {
            let (ports, sources) = (e.generator.local_ports, e.plan.network.sources.len().max(1) as u64);
            let used = e.generator.time_wait + e.phase.map_or(0, |p| p.connections.peak);
            let opens = e.phase.is_some_and(|p| p.connections.opened > p.connections.peak);
            (ports > 0 && opens && used * 10 > ports * sources * 8).then(|| {
                (
                    Verdict::Doubtful,
                    format!("{used} of {} local ports are in use or in TIME_WAIT", ports * sources),
                    "keep connections (--keepalive on), or add addresses: --source 127.0.0.2,127.0.0.3".into(),
                )
            })
        },
    },
    Rule {
        name: "descriptors",
        look: |e| {
            let (limit, peak) = (e.generator.descriptor_limit, e.phase?.connections.peak);
            (limit > 0 && peak * 10 > limit * 9).then(|| {
                (
                    Verdict::Doubtful,
                    format!("{peak} connections are close to the limit of {limit} open files"),
                    "raise it: ulimit -n".into(),
                )
            })
        },
    },
    Rule {
        name: "clock",
        look: |e| {
            let (step, slept) = (e.generator.clock_step_s, e.generator.suspended_s);
            if slept > MOST_CLOCK_STEP_S {
                return Some((
                    Verdict::Invalid,
                    format!("the machine was suspended for {slept:.1} s during the run"),
                    "repeat the run".into(),
                ));
            }
            (step.abs() > MOST_CLOCK_STEP_S).then(|| {
                (
                    Verdict::Invalid,
                    format!("the clock was set by {step:+.2} s during the run"),
                    "repeat the run; see whether the clock is disciplined (chrony, ntpd)".into(),
                )
            })
        },
    },
    Rule {
        name: "growing-pool",
        look: |e| {
            let p = e.pool?;
            let (start, end) = (f64::from(p.workers_at_start), f64::from(p.workers_at_end));
            (end - start >= 1.0 && end > start * (1.0 + GROWTH)).then(|| {
                (
                    Verdict::Doubtful,
                    format!("the server's pool grew from {start} to {end} processes while it was measured"),
                    match longest_warm_up(e) {
                        Some(d) => format!("warm up for longer than {d:.0} s (--warm-up), or start with more workers"),
                        None => "let it grow first: --warm-up 10s".into(),
                    },
                )
            })
        },
    },
    Rule {
        name: "warm-up",
        look: |e| {
            let (change, what, n) = level_change(e)?;
            (change.at * 2 <= n).then(|| {
                (
                    Verdict::Doubtful,
                    format!("the first {} s were different: {what}", change.at),
                    format!(
                        "leave them out: --warm-up {}s",
                        change.at + longest_warm_up(e).unwrap_or(0.0) as usize + 1
                    ),
                )
            })
        },
    },
    Rule {
        name: "unsteady",
        look: |e| {
            let (change, what, n) = level_change(e)?;
            (change.at * 2 > n).then(|| {
                (
                    Verdict::Doubtful,
                    format!("after {} s the level changed: {what}", change.at),
                    "look at what happened then, and run longer (-d)".into(),
                )
            })
        },
    },
    Rule {
        name: "littles-law",
        look: |e| {
            let (phase, plan) = (e.phase?, e.plan);
            let Load::Closed { users, to_users: None } = e.load()? else { return None };
            let simple =
                plan.page.is_none() && plan.http.pipeline == 1 && plan.requests.iter().all(|r| r.think.is_none());
            let mean_s = phase.latency(Kind::Response, "mean")? / 1e6;
            let cycle_s = mean_s + plan.think.map_or(0.0, |t| t.mean().as_secs_f64());
            // The first and the last cycle of each user are cut: it takes many for the law to hold.
            let cycles = phase.duration_s / cycle_s.max(1e-9);
            if !simple || cycles < 4.0 / LITTLE || phase.unanswered_share() > MOST_UNANSWERED {
                return None;
            }
            let busy = phase.rate.answered_rps * cycle_s;
            let users = f64::from(*users);
            ((busy / users - 1.0).abs() > LITTLE).then(|| {
                (
                    Verdict::Doubtful,
                    format!(
                        "Little's law does not hold: {:.0} answers/s × {} are {busy:.1} users, not {users}",
                        phase.rate.answered_rps,
                        show_us(cycle_s * 1e6)
                    ),
                    "the generator does not keep its users busy: more threads (-t), or fewer users (-c)".into(),
                )
            })
        },
    },
    Rule {
        name: "errors",
        look: |e| {
            let phase = e.phase?;
            let share = bad_answers(e.plan, phase) as f64 / phase.requests.answered.max(1) as f64;
            (share > MOST_ERRORS).then(|| {
                (
                    Verdict::Doubtful,
                    format!(
                        "{:.1} % of the answers {}",
                        share * 100.0,
                        if expects(e.plan) { "are not what was expected" } else { "have an error status" }
                    ),
                    "errors are often faster than answers: look at them first (curl -v URL)".into(),
                )
            })
        },
    },
    Rule {
        name: "few-samples",
        look: |e| {
            let n = e.phase?.requests.answered as f64;
            let (name, tail) = rarest_percentile(e.plan);
            (n > 0.0 && n * tail < SAMPLES_BEYOND - 1e-9).then(|| {
                (
                    Verdict::Doubtful,
                    format!("{name} rests on {n:.0} answers; it takes {:.0}", SAMPLES_BEYOND / tail),
                    "run longer (-d) or with more requests (-n)".into(),
                )
            })
        },
    },
    Rule {
        name: "unanswered",
        look: |e| {
            let phase = e.phase?;
            let share = phase.unanswered_share();
            (share > MOST_UNANSWERED && phase.requests.answered > 0).then(|| {
                (
                    Verdict::Doubtful,
                    format!("{:.1} % of the requests due got no answer", share * 100.0),
                    "look at the failures first; percentiles marked ≥ are lower bounds".into(),
                )
            })
        },
    },
];

/// Rules that tell of a disturbed machine: what was measured meanwhile says nothing about the server.
const DISTURBING: [&str; 4] = ["steal", "late", "throttled", "clock"];

/// What disturbed the machine during a run, in words.
#[must_use]
pub fn disturbance(validity: &Validity) -> Option<&str> {
    validity.reasons.iter().find(|r| DISTURBING.contains(&r.rule.as_str())).map(|r| r.what.as_str())
}

/// Applies every rule.
#[must_use]
pub fn judge(evidence: &Evidence<'_>) -> Validity {
    Validity::of(
        RULES
            .iter()
            .filter_map(|rule| {
                let (verdict, what, advice) = (rule.look)(evidence)?;
                Some(Reason { rule: rule.name.into(), verdict, what, advice })
            })
            .collect(),
    )
}

/// The rarest percentile that is asked for, and the share beyond it: p99, or what an objective is about.
fn rarest_percentile(plan: &Plan) -> (String, f64) {
    let asked = plan.objectives.iter().filter_map(|o| match &o.metric {
        Metric::Latency { field, .. } => {
            let q = PERCENTILES.iter().find(|(name, _)| name == field)?.1;
            Some((o.metric.to_string(), 1.0 - q))
        }
        _ => None,
    });
    asked.fold(("p99".to_string(), 0.01), |rarest, x| if x.1 < rarest.1 { x } else { rarest })
}

/// Seconds of load before the measured phase.
fn longest_warm_up(e: &Evidence<'_>) -> Option<f64> {
    let before = e.plan.phases.iter().take_while(|p| !p.measured);
    let seconds: f64 = before.filter_map(|p| p.duration).map(|d| d.as_secs_f64()).sum();
    (seconds > 0.0).then_some(seconds)
}

/// The clearest change of level of a load that was to stay the same: where, in words, and of how many seconds.
fn level_change(e: &Evidence<'_>) -> Option<(Change, String, usize)> {
    let closed = match e.load()? {
        Load::Closed { to_users: None, .. } => true,
        Load::Open { to_rps: None, .. } => false,
        _ => return None,
    };
    let seconds = levels(e.phase?);
    let n = seconds.len();
    let far = |c: &Change| (c.after / c.before.max(1e-9) - 1.0).abs() > CHANGE;
    let medians: Vec<f64> = seconds.iter().filter_map(|(_, p50)| *p50).collect();
    // A second without an answer would shift the others.
    if medians.len() == n
        && let Some(c) = change_point(&medians).filter(far)
    {
        return Some((c, format!("the median response went from {} to {}", show_us(c.before), show_us(c.after)), n));
    }
    let answered: Vec<f64> = seconds.iter().map(|(answered, _)| *answered).collect();
    let c = change_point(&answered).filter(|c| closed && far(c))?;
    Some((c, format!("answers went from {:.0} to {:.0} a second", c.before, c.after), n))
}

/// Was the generator the bottleneck? `cores` is the CPU use of its busiest thread.
#[must_use]
pub fn saturated(cores: f64) -> bool {
    cores >= SATURATED_CORES
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::run::RunBuilder;
    use lastdrop_model::{Arrival, Counts, Slice};

    fn judge_counts(counts: Counts, generator: &Generator, open: bool) -> Validity {
        let mut plan = Plan::new("http://10.0.0.1/".parse().expect("valid"), 1);
        if open {
            plan.phases[0].load = Load::open(1.0, Arrival::Uniform, 1);
        }
        let mut b = RunBuilder::new(plan.clone());
        let mut s = Slice::new(0, 0);
        s.counts = counts;
        b.add(&s);
        let reports = b.into_reports();
        judge(&Evidence { plan: &plan, phase: reports.first(), generator, pool: None })
    }

    fn counts(due: u64, answered: u64) -> Counts {
        Counts { due, sent: due, answered, ..Counts::default() }
    }

    fn rules(v: &Validity) -> Vec<&str> {
        v.reasons.iter().map(|r| r.rule.as_str()).collect()
    }

    #[test]
    fn a_healthy_run_is_valid() {
        let v = judge_counts(counts(5000, 5000), &Generator { steal: Some(0.001), ..Generator::default() }, true);
        assert_eq!((v.verdict, v.reasons.len()), (Verdict::Valid, 0));
    }

    #[test]
    fn each_rule_fires_on_its_case_alone() {
        let calm = Generator::default();
        let hot = Generator { saturated: true, busiest_thread_cores: 0.99, ..Generator::default() };
        let here = Generator { co_located: true, ..Generator::default() };
        let stolen = Generator { steal: Some(0.06), ..Generator::default() };
        let held = Generator { throttled_s: Some(0.5), ..Generator::default() };
        let few = Generator { descriptor_limit: 1000, ..Generator::default() };
        let used_up = Generator { local_ports: 100, time_wait: 90, ..Generator::default() };
        let many = || {
            let mut plan = Plan::new("http://10.0.0.1/".parse().expect("valid"), 1);
            plan.phases[0].load = Load::closed(1);
            let mut b = RunBuilder::new(plan.clone());
            let mut s = Slice::new(0, 0);
            s.counts = Counts { opened: 5000, ..counts(5000, 5000) };
            b.add(&s);
            b.end_phase(0, 1_000_000, 950);
            (plan, b)
        };
        for (generator, rule) in [(&few, "descriptors"), (&used_up, "ports")] {
            let (plan, b) = many();
            let reports = b.into_reports();
            assert_eq!(rules(&judge(&Evidence { plan: &plan, phase: reports.first(), generator, pool: None })), [rule]);
        }
        assert_eq!(rules(&judge_counts(counts(5000, 5000), &held, false)), ["throttled"]);
        let late = || {
            let plan = Plan::new("http://10.0.0.1/".parse().expect("valid"), 1);
            let mut b = RunBuilder::new(plan.clone());
            let mut s = Slice::new(0, 0);
            s.counts = counts(5000, 5000);
            for _ in 0..100 {
                s.record(Kind::Lateness, 9000);
                s.record(Kind::Service, 1000);
            }
            b.add(&s);
            (plan, b)
        };
        let (plan, b) = late();
        let reports = b.into_reports();
        assert_eq!(
            rules(&judge(&Evidence { plan: &plan, phase: reports.first(), generator: &calm, pool: None })),
            ["late"]
        );
        assert_eq!(rules(&judge_counts(counts(0, 0), &calm, false)), ["nothing-answered"]);
        assert_eq!(rules(&judge_counts(counts(5000, 5000), &hot, false)), ["generator-saturated"]);
        assert_eq!(rules(&judge_counts(counts(5000, 5000), &here, false)), ["co-located"]);
        assert_eq!(rules(&judge_counts(counts(5000, 5000), &stolen, false)), ["steal"]);
        assert_eq!(rules(&judge_counts(counts(500, 500), &calm, false)), ["few-samples"]);
        assert_eq!(rules(&judge_counts(counts(5000, 4000), &calm, false)), ["unanswered"]);
    }

    /// A phase of which second `t` has the median response and number of answers that `of` says.
    fn seconds(plan: &Plan, n: u32, of: impl Fn(u32) -> (u64, u64)) -> PhaseReport {
        let mut b = RunBuilder::new(plan.clone());
        for t in 0..n {
            let (us, answered) = of(t);
            let mut s = Slice::new(0, t);
            s.counts = Counts { answered_in_time: answered, ..counts(answered, answered) };
            s.status[200] = answered;
            // Some scatter, as every second has.
            let scatter = u64::from((t * 7919) % 13);
            for _ in 0..answered {
                s.record(Kind::Response, us + scatter * us / 1000);
            }
            b.add(&s);
        }
        b.end_phase(0, u64::from(n) * 1_000_000, 10);
        b.into_reports().remove(0)
    }

    fn closed(users: u32) -> Plan {
        let mut plan = Plan::new("http://10.0.0.1/".parse().expect("valid"), 1);
        plan.phases[0].load = Load::closed(users);
        plan
    }

    fn fired(plan: &Plan, phase: &PhaseReport, generator: &Generator, pool: Option<&Pool>) -> Vec<String> {
        let v = judge(&Evidence { plan, phase: Some(phase), generator, pool });
        v.reasons.iter().map(|r| format!("{}: {}", r.rule, r.advice)).collect()
    }

    #[test]
    fn rules_about_the_course_of_a_run() {
        let (plan, calm) = (closed(10), Generator::default());
        // 10 users at 10 ms are 1000 answers a second.
        let steady = seconds(&plan, 20, |_| (10_000, 1000));
        assert_eq!(fired(&plan, &steady, &calm, None), [""; 0]);
        let warming = seconds(&plan, 20, |t| if t < 6 { (20_000, 500) } else { (10_000, 1000) });
        let reasons = fired(&plan, &warming, &calm, None);
        assert!(
            reasons.len() == 1 && reasons[0].starts_with("warm-up") && reasons[0].contains("--warm-up 7s"),
            "{reasons:?}"
        );
        let changed = seconds(&plan, 20, |t| if t < 14 { (10_000, 1000) } else { (14_000, 714) });
        let reasons = fired(&plan, &changed, &calm, None);
        assert!(reasons.len() == 1 && reasons[0].starts_with("unsteady"), "{reasons:?}");
        // A ramp is to change.
        let mut ramp = plan.clone();
        ramp.phases[0].load = Load::Closed { users: 10, to_users: Some(20) };
        assert_eq!(fired(&ramp, &warming, &calm, None), [""; 0]);
        // 400 answers a second at 10 ms are four users and not ten.
        let idle = seconds(&plan, 20, |_| (10_000, 400));
        let reasons = fired(&plan, &idle, &calm, None);
        assert!(reasons.len() == 1 && reasons[0].starts_with("littles-law"), "{reasons:?}");
        let mut thinking = plan.clone();
        thinking.think = Some("15ms".parse().expect("valid"));
        assert_eq!(fired(&thinking, &idle, &calm, None), [""; 0]);
    }

    #[test]
    fn rules_about_server_and_clock() {
        let (plan, calm) = (closed(10), Generator::default());
        let steady = seconds(&plan, 20, |_| (10_000, 1000));
        let pool =
            |start, end, shares_cpus| Pool { master: 1, workers_at_start: start, workers_at_end: end, shares_cpus };
        let grew = fired(&plan, &steady, &calm, Some(&pool(5, 12, true)));
        assert!(grew.len() == 1 && grew[0].starts_with("growing-pool") && grew[0].contains("--warm-up"), "{grew:?}");
        // Recycling replaces workers and adds none.
        assert_eq!(fired(&plan, &steady, &calm, Some(&pool(12, 12, true))), [""; 0]);
        let here = Generator { co_located: true, ..Generator::default() };
        assert_eq!(fired(&plan, &steady, &here, Some(&pool(5, 5, false))), [""; 0]);
        assert_eq!(fired(&plan, &steady, &here, Some(&pool(5, 5, true))).len(), 1);
        for broken in [
            Generator { clock_step_s: -2.0, ..Generator::default() },
            Generator { suspended_s: 30.0, ..Generator::default() },
        ] {
            let v = judge(&Evidence { plan: &plan, phase: Some(&steady), generator: &broken, pool: None });
            assert_eq!((v.verdict, rules(&v)), (Verdict::Invalid, vec!["clock"]));
        }
        let mut failing = steady.clone();
        failing.status.insert("503".into(), 1000);
        let reasons = fired(&plan, &failing, &calm, None);
        assert!(reasons.len() == 1 && reasons[0].starts_with("errors"), "{reasons:?}");
    }

    #[test]
    fn the_percentile_that_is_asked_for_needs_its_answers() {
        let mut plan = closed(10);
        let phase = seconds(&plan, 5, |_| (10_000, 1000));
        assert_eq!(fired(&plan, &phase, &Generator::default(), None), [""; 0]);
        plan.objectives = lastdrop_model::Objective::list("p99.9<1s").expect("valid");
        let reasons = fired(&plan, &phase, &Generator::default(), None);
        assert!(reasons.len() == 1 && reasons[0].starts_with("few-samples"), "{reasons:?}");
    }

    #[test]
    fn saturation_makes_an_open_loop_invalid_and_a_closed_one_doubtful() {
        let hot = Generator { saturated: true, busiest_thread_cores: 1.0, ..Generator::default() };
        assert_eq!(judge_counts(counts(5000, 5000), &hot, true).verdict, Verdict::Invalid);
        assert_eq!(judge_counts(counts(5000, 5000), &hot, false).verdict, Verdict::Doubtful);
    }
}
