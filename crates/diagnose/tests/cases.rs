//! Examinations of real servers with one known fault each, as `./x lab doctor` and labs of others stored them, and healthy ones: what the rules
//! say of each. A rule has a case that fires it; all others are cases in which it must not, those that look like it among
//! them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lastdrop_diagnose::findings::{all_about, diagnose};
use lastdrop_model::examination::{Examination, StepKind};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    limit: Option<String>,
    found: BTreeSet<String>,
    examination: Examination,
}

fn cases() -> Vec<(String, Case)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut all: Vec<(String, Case)> = fs::read_dir(folder)
        .expect("cases")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let case = serde_json::from_str(&fs::read_to_string(&path).expect("readable"));
            (name.clone(), case.unwrap_or_else(|e| panic!("{name}: {e}")))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn each_stored_examination_shows_what_was_planted_and_nothing_else() {
    let mut wrong = Vec::new();
    for (name, case) in cases() {
        let said = diagnose(&case.examination);
        let found: BTreeSet<String> =
            said.findings.iter().map(|f| f.id.clone()).filter(|id| Some(id) != said.limit.as_ref()).collect();
        if (&said.limit, &found) != (&case.limit, &case.found) {
            wrong.push(format!("{name}: {:?} {found:?}, not {:?} {:?}", said.limit, case.limit, case.found));
        }
        for finding in &said.findings {
            assert!(!finding.evidence.is_empty() && !finding.title.is_empty(), "{name}: {finding:?}");
            assert!((0.0..=1.0).contains(&finding.confidence), "{name}: {finding:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_is_concluded_where_the_load_that_is_asked_about_lost_an_agent() {
    for (name, mut case) in cases() {
        let all = &mut case.examination;
        let Some(main) = all.main().map(|step| step.kind) else { continue };
        all.steps.iter_mut().filter(|s| s.kind == main).for_each(|s| s.lost.push("b".into()));
        let said = diagnose(all);
        assert!(all.has_lost_main() && said.limit.is_none() && said.findings.is_empty(), "{name}: {said:?}");
    }
}

#[test]
fn nearly_every_finding_has_a_stored_case() {
    let all = cases();
    let shown: BTreeSet<&str> =
        all.iter().flat_map(|(_, c)| c.found.iter().chain(&c.limit)).map(String::as_str).collect();
    let without: Vec<&str> = all_about().iter().map(|a| a.id).filter(|id| !shown.contains(id)).collect();
    // What no machine of ours could make so far; each has to be found on a real server before it leaves this list.
    let not_yet = NOT_YET.to_vec();
    assert_eq!(without, not_yet);
    assert!(all.iter().filter(|(name, c)| name.starts_with("healthy") && c.limit.is_none()).count() >= 3);
}

const NOT_YET: &[&str] = &["memory-pressure", "single-worker-cpu", "softirq-one-core", "unshared-memory"];

/// An ordinary user sees the threads of others run or sleep, and not what they wait for.
#[test]
fn threads_that_may_not_be_seen_are_not_taken_for_busy_ones_and_are_told() {
    let all = cases();
    for name in ["db-locked", "slow-upstream.fpm", "session-lock", "workers-exhausted"] {
        let (_, case) = all.iter().find(|(n, _)| n == name).expect(name);
        let mut examination = case.examination.clone();
        for server in examination.steps.iter_mut().flat_map(|step| &mut step.servers) {
            let asleep: f64 = server.waits.iter().filter(|(at, _)| *at != "running").map(|(_, n)| n).sum();
            server.waits.retain(|at, _| at == "running");
            server.waits.insert("unseen".into(), asleep);
            server.status_busy = None;
            server.scoreboard.clear();
        }
        let said = diagnose(&examination);
        assert_eq!(said.limit, None, "{name}: {:#?}", said.findings);
        assert!(
            said.unseen.iter().any(|u| u.contains("threads of") && u.contains("root may see it")),
            "{:?}",
            said.unseen
        );
    }
}

/// Whoever is turned away at once asks again at once, and has a core of its own to do so on a quiet machine.
#[test]
fn a_load_that_is_busy_with_being_turned_away_is_not_the_limit() {
    let all = cases();
    let (_, case) = all.iter().find(|(name, _)| name == "nginx-connections-exhausted").expect("stored");
    let mut examination = case.examination.clone();
    let main = examination.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load");
    assert!(main.unanswered() > main.answered);
    (main.generator.saturated, main.generator.cores) = (true, 0.98);
    assert_eq!(diagnose(&examination).limit.as_deref(), Some("nginx-connections-exhausted"));
    // One that is busy with answers is.
    let main = examination.steps.iter_mut().find(|step| step.kind == StepKind::Main).expect("the load");
    main.answered += main.unanswered() + 1;
    assert_eq!(diagnose(&examination).limit.as_deref(), Some("generator-saturated"));
}
