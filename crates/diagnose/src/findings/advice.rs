//! Advice that cannot help here is not given: each finding's changes are checked against what the rest of the chain can do and what the
//! application needs, whatever rule proposed them.

use lastdrop_model::documents::{Finding, Fix, WorkersCeiling};
use serde_json::json;

use super::case::{Case, View};

/// What becomes of a proposed change.
#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    Helps,
    /// Another value does as much as can be done, and why no more.
    Instead(i64, String),
    Useless(String),
}

/// The finding with those of its changes that can help, and a word about the others.
pub(super) fn checked(case: &Case<'_>, mut finding: Finding) -> Finding {
    let mut reasons: Vec<String> = Vec::new();
    let mut kept: Vec<Fix> = Vec::new();
    for fix in std::mem::take(&mut finding.fix) {
        let servers = case.servers();
        let Some(view) = servers.iter().find(|v| v.about.server == fix.server) else {
            kept.push(fix);
            continue;
        };
        // A pool that does not fit is to have fewer.
        let is_less = finding.id == "memory-overcommit";
        match verdict(case, view, &fix, is_less) {
            Verdict::Helps => kept.push(fix),
            Verdict::Instead(to, why) => {
                kept.push(Fix { to: json!(to), ..fix });
                reasons.push(why);
            }
            Verdict::Useless(why) => reasons.push(why),
        }
    }
    finding.fix = kept;
    // A number that nothing is left to be set to promises nothing.
    if finding.fix.is_empty() && !reasons.is_empty() {
        finding.expect = None;
    }
    reasons.dedup();
    for why in reasons {
        let so_far = std::mem::take(&mut finding.advice);
        finding.advice = if so_far.is_empty() { why } else { format!("{why}; {so_far}") };
    }
    finding
}

fn verdict(case: &Case<'_>, v: &View<'_>, fix: &Fix, is_less: bool) -> Verdict {
    let to = fix.to.as_i64();
    let is_pool = v.about.pool.as_ref() == Some(&fix.knob);
    if let Some(to) = to.filter(|_| is_pool) {
        return workers(v, to, is_less);
    }
    let keeps = ["http-reuse", "keepalive", "keepalive_requests"].contains(&fix.knob.as_str());
    if let Some(why) = keeps.then(|| behind_closes(case, v)).flatten() {
        return Verdict::Useless(why);
    }
    Verdict::Helps
}

/// More workers than a ceiling allows do not help, nor do as many as there are.
fn workers(v: &View<'_>, to: i64, is_less: bool) -> Verdict {
    let now = v.size() as i64;
    let lowest = v.about.ceilings.iter().min_by_key(|c| c.number);
    let why = |c: &WorkersCeiling| format!("no more than {} workers: {}", c.number, c.because);
    match lowest {
        Some(ceiling) if !is_less && ceiling.number as i64 <= now.min(to) => {
            Verdict::Useless(format!("more workers would not help, {}", why(ceiling)))
        }
        Some(ceiling) if (ceiling.number as i64) < to => Verdict::Instead(ceiling.number.max(1) as i64, why(ceiling)),
        // The cores are busy with as many as there are.
        _ if !is_less && to <= now => {
            Verdict::Useless(format!("more workers would not help: {to} keep the processors busy, and there are {now}"))
        }
        _ => Verdict::Helps,
    }
}

/// Does the server behind close each connection after its answer, whatever the one before it does? Then why.
pub(super) fn behind_closes(case: &Case<'_>, v: &View<'_>) -> Option<String> {
    let all = case.servers();
    let behind = all.iter().filter(|b| b.place > v.place && v.about.to.contains(&b.about.server));
    behind.into_iter().find_map(closes)
}

fn closes(b: &View<'_>) -> Option<String> {
    let class = b.setting("worker_class").unwrap_or_default().to_lowercase();
    let threads = b.count("threads").unwrap_or(1.0);
    let is_sync = b.is(&["gunicorn"]) && !b.is_async() && class != "gthread" && threads <= 1.0;
    let name = &b.about.server;
    if is_sync {
        return Some(format!(
            "sync workers of {name} close each connection after its answer: nothing before it can keep one; worker_class gthread (threads) can"
        ));
    }
    b.is(&["uwsgi"])
        .then(|| format!("{name} closes each connection after its answer, unless it is told http-keepalive"))
}

/// What holds clients' idle connections without a worker for each, of what this application allows.
pub(super) fn holders_of_clients(v: &View<'_>) -> &'static str {
    if v.needs_prefork() || !v.is(&["apache"]) {
        "a proxy in front that holds the clients (nginx)"
    } else {
        "an event MPM, or a proxy in front that holds the clients (nginx)"
    }
}
