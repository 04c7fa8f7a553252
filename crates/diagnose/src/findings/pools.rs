//! Rules about pools: every worker is busy while requests wait and processors are idle.

use lastdrop_model::documents::Finding;

use super::Rule;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding};

pub(super) const EXHAUSTED: &[Rule] = &[
    Rule { id: "server-limit-clamp", look: clamp },
    Rule {
        id: "fpm-children-exhausted",
        look: |c| exhausted(c, &["php-fpm"], "every child of the PHP-FPM pool is at work"),
    },
    Rule {
        id: "sync-workers-waiting",
        look: |c| {
            exhausted(c, &["gunicorn", "puma", "uwsgi"], "every synchronous worker waits while the processors idle")
        },
    },
    Rule { id: "workers-exhausted", look: |c| exhausted(c, &[], "every worker is at work while connections wait") },
];

/// Returns the full pool that is furthest back in the chain, if it is of one of these kinds.
fn full<'a>(case: &'a LoadEvidence<'a>, kinds: &[&str]) -> Option<ServerEvidence<'a>> {
    let mine = |v: &ServerEvidence<'_>| {
        if kinds.is_empty() {
            !v.is(&["php-fpm", "gunicorn", "puma", "uwsgi", "nginx", "haproxy"])
        } else {
            v.is(kinds)
        }
    };
    case.servers().into_iter().rev().find(|v| v.has_pool() && v.is_full() && v.busy() >= 0.8).filter(|v| mine(v))
}

fn exhausted(case: &LoadEvidence<'_>, kinds: &[&str], title: &str) -> Option<Finding> {
    let v = full(case, kinds).filter(|_| case.cpu_idle())?;
    let waits = v.queue() >= 0.5 || case.slower().is_some_and(|t| t > 1.5) || v.seen.status_waits_s.is_some();
    waits.then(|| {
        let mut at: Vec<(&String, &f64)> =
            v.seen.waits.iter().filter(|(w, _)| *w != "idle" && *w != "events").collect();
        at.sort_by(|a, b| b.1.total_cmp(a.1));
        let (what, n) = at.first().map_or(("unknown", 0.0), |(w, n)| (w.as_str(), **n));
        let to = v.wanted_workers();
        let title = if what == "running" { "every worker computes, and they are fewer than processors" } else { title };
        finding(0.9, title)
            .of(&v)
            .evidence("/proc/PID/syscall", "workers at work", v.busy(), 0.85 * v.size())
            .evidence("configuration", v.about.pool.as_deref().unwrap_or("workers"), v.size(), 0)
            .evidence("sock_diag", "connections that wait to be accepted", v.seen.queue_mean, 0.5)
            .evidence("/proc/PID/syscall", &format!("most of them are in: {what}"), n, 0)
            // Fewer busy cores support this finding more; there is no threshold.
            .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
            .ruled_out("an idle worker in the same second; full processors")
            .fix(
                v.more_workers(to),
                "as many as memory holds (lastdrop size), and no more than what is behind them bears",
            )
            .expected(case.bound(Some(to)))
            .verify("connections that wait: none; answers as fast as for one user alone")
    })
}

/// Finds a pool with more workers configured than another limit allows.
fn clamp(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = full(case, &[]).filter(|v| v.is(&["apache"]) && case.cpu_idle())?;
    let asked =
        v.about.directives.get("MaxRequestWorkers").or(v.about.directives.get("MaxClients"))?.parse::<f64>().ok()?;
    let seen = if v.one_thread_each() { v.seen.workers_most as f64 } else { v.apache_threads() };
    let real = v.seen.scoreboard.values().sum::<f64>().max(seen).min(v.size().max(1.0));
    (asked > real * 1.05).then(|| {
        finding(0.93, "fewer workers than configured can exist: another limit clamps them")
            .of(&v)
            .evidence("configuration", "MaxRequestWorkers", asked, real)
            .evidence("scoreboard", "places", real, asked)
            .ruled_out("as many places as configured")
            .fix(
                // The effective value is that of the limit. Setting the wanted value again starts the rest of the pool.
                vec![
                    v.fix("ServerLimit", (v.processes_for(asked) as i64).into()),
                    v.fix("MaxRequestWorkers", (asked as i64).into()),
                ],
                "ServerLimit (and ThreadLimit) bound MaxRequestWorkers and need a restart",
            )
            .expected(case.bound(Some(asked)))
            .verify("places in the scoreboard")
    })
}
