//! Rules about what was answered.

use lastdrop_analyze::objective::{bad_answers, expects};
use lastdrop_model::histogram::PERCENTILES;
use lastdrop_model::objective::Metric;
use lastdrop_model::{PhaseReport, Plan, Verdict};

use crate::rule::Rule;

/// Unanswered requests beyond this share make the latencies those of the lucky.
pub(super) const MOST_UNANSWERED: f64 = 0.01;

/// Samples beyond a percentile that make it more than an anecdote.
const SAMPLES_BEYOND: f64 = 10.0;
/// Answers that are none beyond this share make the latencies those of something else.
const MOST_ERRORS: f64 = 0.01;

/// Nobody was there.
pub(super) const NOTHING_ANSWERED: Rule = Rule {
    name: "nothing-answered",
    of_generator: false,
    disturbs: false,
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
};

/// A replay whose answers are not the log's did other work than the log.
pub(super) const ANSWERS_DIFFER: Rule = Rule {
    name: "answers-differ",
    of_generator: false,
    disturbs: false,
    look: |e| {
        let mismatch = e.phase?.mismatch.as_ref()?;
        (mismatch.share() > MOST_ERRORS).then(|| {
            (
                Verdict::Doubtful,
                format!(
                    "{:.1} % of the answers have another status class or redirect target than in the log",
                    mismatch.share() * 100.0
                ),
                "the server did other work than it did for the log: it may need the log's logins, data or POSTs; see which classes \
                 differ"
                    .into(),
            )
        })
    },
};

/// Answers that are none.
pub(super) const ERRORS: Rule = Rule {
    name: "errors",
    of_generator: false,
    disturbs: false,
    look: |e| {
        let phase = e.phase.filter(|p| p.mismatch.as_ref().is_none_or(|m| m.compared == 0))?;
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
};

/// Answers that look as if the work was not done, of requests that nothing is expected of.
pub(super) const IN_DOUBT: Rule = Rule {
    name: "answers-in-doubt",
    of_generator: false,
    disturbs: false,
    look: |e| {
        let doubted = e.generator.doubted();
        let first = doubted.first()?;
        let more = match doubted.len() - 1 {
            0 => String::new(),
            n => format!(", and {n} more of this sort"),
        };
        Some((
            Verdict::Doubtful,
            format!("{first}{more}"),
            "see what comes back (curl -v URL); a page behind a login needs its session: lastdrop record, or -H 'Cookie: …'; a moved one \
             its new URL or --redirects 3; and if it is right, say so: --expect status=302, --expect text=…"
                .into(),
        ))
    },
};

/// A percentile of too few answers is an anecdote.
pub(super) const FEW_SAMPLES: Rule = Rule {
    name: "few-samples",
    of_generator: false,
    disturbs: false,
    look: |e| {
        let (name, tail, n) = least_supported(e.plan, e.phase?);
        (n > 0.0 && n * tail < SAMPLES_BEYOND - 1e-9).then(|| {
            (
                Verdict::Doubtful,
                format!("{name} rests on {n:.0} answers; it takes {:.0}", SAMPLES_BEYOND / tail),
                "run longer (-d) or with more requests (-n)".into(),
            )
        })
    },
};

/// What got no answer is not in the latencies.
pub(super) const UNANSWERED: Rule = Rule {
    name: "unanswered",
    of_generator: false,
    disturbs: false,
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
};

/// The percentile that rests on the fewest answers beyond it, the share beyond it and the answers: p99, or what an objective
/// is about.
fn least_supported(plan: &Plan, phase: &PhaseReport) -> (String, f64, f64) {
    let asked = plan.objectives.iter().filter_map(|o| match &o.metric {
        Metric::Latency { field, .. } => {
            let q = PERCENTILES.iter().find(|(name, _)| name == field)?.1;
            let answered = phase.of_class(o.class.as_deref())?.requests.answered;
            Some((o.what(), 1.0 - q, answered as f64))
        }
        _ => None,
    });
    let beyond = |x: &(String, f64, f64)| x.1 * x.2;
    asked.fold(("p99".to_string(), 0.01, phase.requests.answered as f64), |least, x| {
        if beyond(&x) < beyond(&least) { x } else { least }
    })
}
