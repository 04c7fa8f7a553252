//! Drops advice that cannot help, whichever rule proposed it. Each change of a finding must suit the rest of the chain
//! and the application.

use lastdrop_model::documents::{Finding, Fix, WorkersCeiling};
use serde_json::json;

use super::evidence::{LoadEvidence, ServerEvidence};

/// Effect of a proposed change.
#[derive(Debug, Clone, PartialEq)]
enum FixEffect {
    Helps,
    /// Another value does as much as possible; with the reason why no more is.
    Instead(i64, String),
    Useless(String),
}

/// Returns the finding with the changes that can help, and the reasons against the others.
pub(super) fn checked(case: &LoadEvidence<'_>, mut finding: Finding) -> Finding {
    let mut reasons: Vec<String> = Vec::new();
    let mut kept: Vec<Fix> = Vec::new();
    for fix in std::mem::take(&mut finding.fix) {
        let servers = case.servers();
        let Some(view) = servers.iter().find(|v| v.about.server == fix.server) else {
            kept.push(fix);
            continue;
        };
        // A pool that does not fit into memory needs fewer workers.
        let is_less = finding.id == "memory-overcommit";
        match effect_of(case, view, &fix, is_less) {
            FixEffect::Helps => kept.push(fix),
            FixEffect::Instead(to, why) => {
                kept.push(Fix { to: json!(to), ..fix });
                reasons.push(why);
            }
            FixEffect::Useless(why) => reasons.push(why),
        }
    }
    finding.fix = kept;
    // If no change is left, the finding promises no gain.
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

fn effect_of(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, fix: &Fix, is_less: bool) -> FixEffect {
    let to = fix.to.as_i64();
    let is_pool = v.about.pool.as_ref() == Some(&fix.knob);
    if let Some(to) = to.filter(|_| is_pool) {
        return workers(v, to, is_less);
    }
    let keeps = ["http-reuse", "keepalive", "keepalive_requests"].contains(&fix.knob.as_str());
    if let Some(why) = keeps.then(|| behind_closes(case, v)).flatten() {
        return FixEffect::Useless(why);
    }
    FixEffect::Helps
}

/// Judges a new number of workers: more than a ceiling allows does not help, nor does the present number.
fn workers(v: &ServerEvidence<'_>, to: i64, is_less: bool) -> FixEffect {
    let now = v.size() as i64;
    let lowest = v.about.ceilings.iter().min_by_key(|c| c.number);
    let why = |c: &WorkersCeiling| format!("no more than {} workers: {}", c.number, c.reason);
    match lowest {
        Some(ceiling) if !is_less && ceiling.number as i64 <= now.min(to) => {
            FixEffect::Useless(format!("more workers would not help, {}", why(ceiling)))
        }
        Some(ceiling) if (ceiling.number as i64) < to => FixEffect::Instead(ceiling.number.max(1) as i64, why(ceiling)),
        // The present number of workers already keeps the cores busy.
        _ if !is_less && to <= now => FixEffect::Useless(format!(
            "more workers would not help: {to} keep the processors busy, and there are {now}"
        )),
        _ => FixEffect::Helps,
    }
}

/// Returns why the server behind closes each connection after its answer, whatever the one before it does. None if it
/// does not.
pub(super) fn behind_closes(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>) -> Option<String> {
    let all = case.servers();
    let behind = all.iter().filter(|b| b.place > v.place && v.about.to.contains(&b.about.server));
    behind.into_iter().find_map(closes)
}

fn closes(b: &ServerEvidence<'_>) -> Option<String> {
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

/// Names what can hold clients' idle connections without a worker for each, as far as the application allows.
pub(super) fn holders_of_clients(v: &ServerEvidence<'_>) -> &'static str {
    if v.needs_prefork() || !v.is(&["apache"]) {
        "a proxy in front that holds the clients (nginx)"
    } else {
        "an event MPM, or a proxy in front that holds the clients (nginx)"
    }
}
