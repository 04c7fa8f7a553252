//! Rules about the course of a run: did it stay in one state?

use lastdrop_analyze::series::{LevelChange, change_point, levels};
use lastdrop_model::plan::Load;
use lastdrop_model::units::show_us;
use lastdrop_model::{Kind, Verdict};

use super::answers::MOST_UNANSWERED;
use crate::rule::{RunEvidence, ValidityRule};

/// Level changes smaller than this are ignored.
const CHANGE: f64 = 0.1;
/// Tolerance for Little's law.
const LITTLE: f64 = 0.05;
/// Growth above which a pool counts as still starting.
const GROWTH: f64 = 0.1;

/// The server was still starting workers.
pub(super) const GROWING_POOL: ValidityRule = ValidityRule {
    name: "growing-pool",
    of_generator: false,
    disturbs: false,
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
};

/// The level changed in the first half of the phase.
pub(super) const WARM_UP: ValidityRule = ValidityRule {
    name: "warm-up",
    of_generator: false,
    disturbs: false,
    look: |e| {
        let (change, what, n) = level_change(e)?;
        (change.at * 2 <= n).then(|| {
            (
                Verdict::Doubtful,
                format!("the first {} s were different: {what}", change.at),
                format!("leave them out: --warm-up {}s", change.at + longest_warm_up(e).unwrap_or(0.0) as usize + 1),
            )
        })
    },
};

/// The level changed in the second half of the phase.
pub(super) const UNSTEADY: ValidityRule = ValidityRule {
    name: "unsteady",
    of_generator: false,
    disturbs: false,
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
};

/// Users, rate and response times contradict Little's law.
pub(super) const LITTLES_LAW: ValidityRule = ValidityRule {
    name: "littles-law",
    of_generator: false,
    disturbs: false,
    look: |e| {
        let (phase, plan) = (e.phase?, e.plan);
        let Load::Closed { users, to_users: None, .. } = e.load()? else { return None };
        let simple = plan.page.is_none() && plan.http.pipeline == 1 && plan.requests.iter().all(|r| r.think.is_none());
        let mean_s = phase.latency(Kind::Response, "mean")? / 1e6;
        let cycle_s = mean_s + plan.think.map_or(0.0, |t| t.mean().as_secs_f64());
        // The phase cuts off each user's first and last cycle: the law needs many cycles to hold.
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
};

/// Returns the seconds of load before the measured phase, if there are any.
fn longest_warm_up(e: &RunEvidence<'_>) -> Option<f64> {
    let before = e.plan.phases.iter().take_while(|p| !p.measured);
    let seconds: f64 = before.filter_map(|p| p.duration).map(|d| d.as_secs_f64()).sum();
    (seconds > 0.0).then_some(seconds)
}

/// Returns the clearest level change of a constant load: its position, a description, and the number of seconds.
fn level_change(e: &RunEvidence<'_>) -> Option<(LevelChange, String, usize)> {
    let closed = match e.load()? {
        Load::Closed { to_users: None, .. } => true,
        Load::Open { to_rps: None, .. } => false,
        _ => return None,
    };
    let seconds = levels(e.phase?);
    let n = seconds.len();
    let far = |c: &LevelChange| (c.after / c.before.max(1e-9) - 1.0).abs() > CHANGE;
    let medians: Vec<f64> = seconds.iter().filter_map(|(_, p50)| *p50).collect();
    // A second without an answer has no median, and leaving it out would shift the others.
    if medians.len() == n
        && let Some(c) = change_point(&medians).filter(far)
    {
        return Some((c, format!("the median response went from {} to {}", show_us(c.before), show_us(c.after)), n));
    }
    let answered: Vec<f64> = seconds.iter().map(|(answered, _)| *answered).collect();
    let c = change_point(&answered).filter(|c| closed && far(c))?;
    Some((c, format!("answers went from {:.0} to {:.0} a second", c.before, c.after), n))
}
