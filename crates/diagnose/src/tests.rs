use super::*;
use lastdrop_model::plan::Load;
use lastdrop_model::run::Pool;
use lastdrop_model::run::RunBuilder;
use lastdrop_model::{Arrival, Counts, Generator, Kind, PhaseReport, Plan, Slice, Verdict};

fn judge_counts(counts: Counts, generator: &Generator, open: bool) -> Validity {
    let mut plan = Plan::new("http://10.0.0.1/".parse().expect("valid"), 1);
    if open {
        plan.phases[0].load = Load::open(1.0, Arrival::Uniform, 1);
    }
    let mut b = RunBuilder::new(&plan);
    let mut s = Slice::new(0, 0);
    s.counts = counts;
    b.add(&s);
    let reports = b.into_reports();
    judge(&RunEvidence { plan: &plan, phase: reports.first(), generator, pool: None })
}

fn counts(due: u64, answered: u64) -> Counts {
    Counts { due, sent: due, answered, ..Counts::default() }
}

#[test]
fn other_programs_count_from_a_share_of_the_processors_on() {
    use lastdrop_model::run::OtherProgram;
    let hog = OtherProgram { name: "hog".into(), pid: 7, cores: 0.0 };
    let with = |cores: f64, processors: u64| {
        let others = vec![OtherProgram { cores, ..hog.clone() }];
        let g = Generator { processors, others_cores: Some(cores), others, ..Generator::default() };
        judge_counts(counts(10_000, 10_000), &g, false)
    };
    // With two processors the threshold is a tenth of a core; with many it is half a core.
    for (cores, processors, fires) in [(0.09, 2, false), (0.11, 2, true), (0.45, 64, false), (1.0, 64, true)] {
        let v = with(cores, processors);
        assert_eq!(rules(&v) == ["others-busy"], fires, "{cores} of {processors}: {v:?}");
        assert_eq!(others_busy(&v).is_some(), fires);
    }
    let v = with(1.0, 2);
    assert!(v.verdict == Verdict::Doubtful && v.reasons[0].what.contains("hog 1.00 (process 7)"), "{v:?}");
    assert_eq!(disturbance(&v), others_busy(&v));
    // Old runs did not record other programs.
    assert_eq!(rules(&judge_counts(counts(10_000, 10_000), &Generator::default(), false)), [""; 0]);
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
        let mut b = RunBuilder::new(&plan);
        let mut s = Slice::new(0, 0);
        s.counts = Counts { opened: 5000, ..counts(5000, 5000) };
        b.add(&s);
        b.end_phase(0, 1_000_000, 950);
        (plan, b)
    };
    for (generator, rule) in [(&few, "descriptors"), (&used_up, "ports")] {
        let (plan, b) = many();
        let reports = b.into_reports();
        assert_eq!(rules(&judge(&RunEvidence { plan: &plan, phase: reports.first(), generator, pool: None })), [rule]);
    }
    assert_eq!(rules(&judge_counts(counts(5000, 5000), &held, false)), ["throttled"]);
    let late = || {
        let plan = Plan::new("http://10.0.0.1/".parse().expect("valid"), 1);
        let mut b = RunBuilder::new(&plan);
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
        rules(&judge(&RunEvidence { plan: &plan, phase: reports.first(), generator: &calm, pool: None })),
        ["late"]
    );
    assert_eq!(rules(&judge_counts(counts(0, 0), &calm, false)), ["nothing-answered"]);
    assert_eq!(rules(&judge_counts(counts(5000, 5000), &hot, false)), ["generator-saturated"]);
    assert_eq!(rules(&judge_counts(counts(5000, 5000), &here, false)), ["co-located"]);
    assert_eq!(rules(&judge_counts(counts(5000, 5000), &stolen, false)), ["steal"]);
    assert_eq!(rules(&judge_counts(counts(500, 500), &calm, false)), ["few-samples"]);
    assert_eq!(rules(&judge_counts(counts(5000, 4000), &calm, false)), ["unanswered"]);
}

/// Makes a phase in which second `t` has the median response and the number of answers that `of(t)` returns.
fn seconds(plan: &Plan, n: u32, of: impl Fn(u32) -> (u64, u64)) -> PhaseReport {
    let mut b = RunBuilder::new(plan);
    for t in 0..n {
        let (us, answered) = of(t);
        let mut s = Slice::new(0, t);
        s.counts = Counts { answered_in_time: answered, ..counts(answered, answered) };
        s.status[200] = answered;
        // Real seconds scatter, too.
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
    let v = judge(&RunEvidence { plan, phase: Some(phase), generator, pool });
    v.reasons.iter().map(|r| format!("{}: {}", r.rule, r.advice)).collect()
}

#[test]
fn rules_about_the_course_of_a_run() {
    let (plan, calm) = (closed(10), Generator::default());
    // 10 users at 10 ms give 1000 answers per second.
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
    // A ramp is supposed to change.
    let mut ramp = plan.clone();
    ramp.phases[0].load = Load::Closed { users: 10, to_users: Some(20), connections: None };
    assert_eq!(fired(&ramp, &warming, &calm, None), [""; 0]);
    // 400 answers per second at 10 ms keep four users busy, not ten.
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
    let pool = |start, end, shares_cpus| Pool { master: 1, workers_at_start: start, workers_at_end: end, shares_cpus };
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
        let v = judge(&RunEvidence { plan: &plan, phase: Some(&steady), generator: &broken, pool: None });
        assert_eq!((v.verdict, rules(&v)), (Verdict::Invalid, vec!["clock"]));
    }
    let mut failing = steady.clone();
    failing.results.status.insert("503".into(), 1000);
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
