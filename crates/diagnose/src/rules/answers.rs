//! Rules about the answers.

use lastdrop_analyze::objective::{bad_answers, expects};
use lastdrop_model::histogram::PERCENTILES;
use lastdrop_model::objective::Metric;
use lastdrop_model::{PhaseReport, Plan, Verdict};

use crate::rule::ValidityRule;

/// Maximum share of unanswered requests. Above it, the latencies describe only the lucky ones.
pub(super) const MOST_UNANSWERED: f64 = 0.01;

/// Samples needed beyond a percentile to make it more than an anecdote.
const SAMPLES_BEYOND: f64 = 10.0;
/// Maximum share of bad answers. Above it, the latencies measure other work than intended.
const MOST_ERRORS: f64 = 0.01;

/// No request was answered.
pub(super) const NOTHING_ANSWERED: ValidityRule = ValidityRule {
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

/// The answers of a replay differ from the log's: the server did other work.
pub(super) const ANSWERS_DIFFER: ValidityRule = ValidityRule {
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

/// Too many answers are errors, or not as expected.
pub(super) const ERRORS: ValidityRule = ValidityRule {
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

/// Answers of requests without an expectation suggest that the server did not do the work.
pub(super) const IN_DOUBT: ValidityRule = ValidityRule {
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
pub(super) const FEW_SAMPLES: ValidityRule = ValidityRule {
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

/// Unanswered requests are missing from the latencies.
pub(super) const UNANSWERED: ValidityRule = ValidityRule {
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

/// Returns the percentile with the fewest answers beyond it (p99, or that of an objective): its name, the share beyond
/// it and the number of answers.
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
