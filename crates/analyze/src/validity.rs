//! Can a run be believed? One table of rules; each looks at the run and gives at most one reason.

use lastdrop_model::plan::Load;
use lastdrop_model::{Generator, Kind, PhaseReport, Plan, Reason, Validity, Verdict};

/// What the rules look at.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    pub plan: &'a Plan,
    pub phase: Option<&'a PhaseReport>,
    pub generator: &'a Generator,
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
            e.generator.co_located.then(|| {
                (
                    Verdict::Doubtful,
                    "generator and server share this machine".into(),
                    "good for comparing settings; for absolute numbers load from another machine".into(),
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
        name: "few-samples",
        look: |e| {
            let n = e.phase?.requests.answered as f64;
            (n > 0.0 && n * 0.01 < SAMPLES_BEYOND).then(|| {
                (
                    Verdict::Doubtful,
                    format!("p99 rests on {n:.0} answers; it takes {:.0}", SAMPLES_BEYOND / 0.01),
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
        judge(&Evidence { plan: &plan, phase: reports.first(), generator })
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
            assert_eq!(rules(&judge(&Evidence { plan: &plan, phase: reports.first(), generator })), [rule]);
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
        assert_eq!(rules(&judge(&Evidence { plan: &plan, phase: reports.first(), generator: &calm })), ["late"]);
        assert_eq!(rules(&judge_counts(counts(0, 0), &calm, false)), ["nothing-answered"]);
        assert_eq!(rules(&judge_counts(counts(5000, 5000), &hot, false)), ["generator-saturated"]);
        assert_eq!(rules(&judge_counts(counts(5000, 5000), &here, false)), ["co-located"]);
        assert_eq!(rules(&judge_counts(counts(5000, 5000), &stolen, false)), ["steal"]);
        assert_eq!(rules(&judge_counts(counts(500, 500), &calm, false)), ["few-samples"]);
        assert_eq!(rules(&judge_counts(counts(5000, 4000), &calm, false)), ["unanswered"]);
    }

    #[test]
    fn saturation_makes_an_open_loop_invalid_and_a_closed_one_doubtful() {
        let hot = Generator { saturated: true, busiest_thread_cores: 1.0, ..Generator::default() };
        assert_eq!(judge_counts(counts(5000, 5000), &hot, true).verdict, Verdict::Invalid);
        assert_eq!(judge_counts(counts(5000, 5000), &hot, false).verdict, Verdict::Doubtful);
    }
}
