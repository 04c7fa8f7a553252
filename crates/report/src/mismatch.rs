//! How a replay's answers compare with the log's: how many differ, and in which classes.

use std::fmt::Write as _;

use lastdrop_model::printable::line;
use lastdrop_model::run::{ClassReport, PhaseReport};
use lastdrop_model::{Plan, Run};

use crate::classes::name_of;

/// If a larger share of the answers differs, the run did not do the log's work.
const MOST_DIFFERENT: f64 = 0.01;
/// Classes that are named in the text.
const NAMED: usize = 5;

/// Returns a sentence for each class in which at least half of the answers differ from the log, worst first.
pub(crate) fn different_classes(run: &Run) -> Vec<String> {
    let Some(phase) = run.measured().or(run.phases.first()) else { return Vec::new() };
    let differing =
        |c: &ClassReport| c.mismatch.as_ref().filter(|m| m.status * 2 >= m.compared).map_or(0, |m| m.status);
    let mut classes: Vec<&ClassReport> = phase.classes.iter().filter(|c| differing(c) > 0).collect();
    classes.sort_by_key(|c| std::cmp::Reverse(differing(c)));
    let left = classes.len().saturating_sub(NAMED);
    let mut out: Vec<String> = classes.iter().take(NAMED).map(|c| sentence(&run.plan, c)).collect();
    if left > 0 {
        out.push(format!("{left} more classes differ from the log in half of their answers or more."));
    }
    out
}

fn sentence(plan: &Plan, class: &ClassReport) -> String {
    let (different, compared) = class.mismatch.as_ref().map_or((0, 0), |m| (m.status, m.compared));
    let usual = plan.requests.iter().position(|r| r.name == class.name);
    let usual = usual.and_then(|at| plan.replay.as_ref()?.usual.get(at)).map_or(0, |usual| usual.status);
    let mut answers: Vec<(&String, &u64)> = class.status.iter().collect();
    answers.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let answers: Vec<String> = answers.iter().take(3).map(|(status, n)| format!("{n} × {status}")).collect();
    let logged = if usual > 0 { format!("mostly {usual}") } else { "other answers".into() };
    format!(
        "{}: {different} of {compared} answers differ from the log, which has {logged}; now {}.",
        name_of(class),
        answers.join(", ")
    )
}

/// Returns a warning if the replay's answers differ too often from the log's.
pub(crate) fn headline(run: &Run) -> Option<String> {
    let phase = run.measured().or(run.phases.first())?;
    let mismatch = phase.mismatch.as_ref()?;
    let differ = mismatch.share() > MOST_DIFFERENT || !different_classes(run).is_empty();
    differ.then(|| {
        format!(
            "{:.1} % of the answers are not those of the log ({} of {} differ in status class or redirect).",
            mismatch.share() * 100.0,
            mismatch.status,
            mismatch.compared
        )
    })
}

/// The lines about one phase.
pub(crate) fn mismatch_text(phase: &PhaseReport) -> String {
    let Some(mismatch) = &phase.mismatch else { return String::new() };
    let mut out = String::new();
    if mismatch.compared == 0 {
        return "  mismatch            –   the log does not say what its answers were\n".into();
    }
    let _ = writeln!(
        out,
        "  mismatch   {:>10}   {:.2} % of {} answers differ from the log in status class or redirect",
        mismatch.status,
        mismatch.share() * 100.0,
        mismatch.compared
    );
    if mismatch.size > 0 {
        let _ = writeln!(
            out,
            "  size       {:>10}   other answers are smaller than ¼ of the log's p5 for their class, or larger than 4 × its p95",
            mismatch.size
        );
        let mut classes: Vec<(&ClassReport, u64)> =
            phase.classes.iter().filter_map(|c| Some((c, c.mismatch.as_ref()?.size))).filter(|(_, n)| *n > 0).collect();
        classes.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        for (class, n) in classes.iter().take(NAMED) {
            let _ = writeln!(out, "             {n:>10}   of {}", line(&name_of(class)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::fixtures::run_of;
    use crate::run::run_text;
    use lastdrop_model::KeptPlan;
    use lastdrop_model::plan::{Pace, Replay, UsualAnswer};
    use lastdrop_model::run::{ClassReport, Mismatch};

    /// A replay of 1,000 requests of two classes, with this many mismatches in each.
    fn replay(item: u64, account: u64) -> Run {
        let mut run = run_of(1, 1000);
        let mut plan: Plan = (*run.plan).clone();
        plan.requests.push(plan.requests[0].clone());
        plan.requests[0].name = "GET /item/{n}".into();
        plan.requests[1].name = "GET /account".into();
        let usual = |status| UsualAnswer { status, bytes: None };
        plan.replay = Some(Replay {
            logs: vec!["access.log".into()],
            pace: Pace::Rate,
            tape: None,
            usual: vec![usual(404), usual(200)],
        });
        run.plan = KeptPlan::from(&plan);
        let phase = &mut run.phases[0];
        let mismatch = |status, compared| Some(Mismatch { status, size: 0, compared });
        phase.results.mismatch = mismatch(item + account, 1000);
        let class = |name: &str, different, compared: u64, status: &str| {
            let mut results = phase.results.clone();
            results.mismatch = mismatch(different, compared);
            results.status = [(status.to_string(), compared)].into();
            ClassReport { name: name.into(), patterns: 1, results }
        };
        phase.classes = vec![class("GET /item/{n}", item, 990, "404"), class("GET /account", account, 10, "302")];
        run
    }

    #[test]
    fn a_replay_with_other_answers_is_not_good_and_its_worst_class_is_named_first() {
        let text = run_text(&replay(300, 10));
        let lines: Vec<&str> = text.lines().filter(|l| !l.is_empty()).collect();
        assert!(lines[0].starts_with("Careful: 31.0 % of the answers are not those of the log (310 of 1000"), "{text}");
        assert_eq!(
            lines[1], "GET /account: 10 of 10 answers differ from the log, which has mostly 200; now 10 × 302.",
            "{text}"
        );
    }

    #[test]
    fn a_small_class_that_went_wrong_is_enough() {
        assert!(run_text(&replay(0, 5)).starts_with("Careful: 0.5 % of the answers"));
        assert!(run_text(&replay(0, 4)).starts_with("Good"), "4 of 10 and 0.4 % of all");
        assert!(run_text(&replay(20, 0)).starts_with("Careful: 2.0 %"));
    }

    #[test]
    fn errors_that_the_log_has_too_are_no_warning() {
        let text = run_text(&replay(0, 0));
        assert!(text.starts_with("Good") && text.contains("0.00 % of 1000 answers differ"), "{text}");
    }
}
