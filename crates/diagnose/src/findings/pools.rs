//! Pools of which everybody is at work while somebody waits and processors idle.

use lastdrop_model::documents::Finding;

use super::Rule;
use super::case::{Case, Says, View, finding};

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

/// The pool furthest behind that is full.
fn full<'a>(case: &'a Case<'a>, kinds: &[&str]) -> Option<View<'a>> {
    let mine = |v: &View<'_>| {
        if kinds.is_empty() {
            !v.is(&["php-fpm", "gunicorn", "puma", "uwsgi", "nginx", "haproxy"])
        } else {
            v.is(kinds)
        }
    };
    case.servers().into_iter().rev().find(|v| v.has_pool() && v.is_full() && v.busy() >= 0.8).filter(|v| mine(v))
}

fn exhausted(case: &Case<'_>, kinds: &[&str], title: &str) -> Option<Finding> {
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
            .seen("/proc/PID/syscall", "workers at work", v.busy(), 0.85 * v.size())
            .seen("configuration", v.about.pool.as_deref().unwrap_or("workers"), v.size(), 0)
            .seen("sock_diag", "connections that wait to be accepted", v.seen.queue_mean, 0.5)
            .seen("/proc/PID/syscall", &format!("most of them are in: {what}"), n, 0)
            // The fewer the better for this finding: there is no number from which they speak for it.
            .seen("/proc/stat", "cores busy", case.busy_cores(), 0)
            .unless("an idle worker in the same second; full processors")
            .do_this(
                v.more_workers(to),
                "as many as memory holds (lastdrop size), and no more than what is behind them bears",
            )
            .brings(case.bound(Some(to)))
            .check_by("connections that wait: none; answers as fast as for one user alone")
    })
}

/// More workers are configured than can be.
fn clamp(case: &Case<'_>) -> Option<Finding> {
    let v = full(case, &[]).filter(|v| v.is(&["apache"]) && case.cpu_idle())?;
    let asked =
        v.about.directives.get("MaxRequestWorkers").or(v.about.directives.get("MaxClients"))?.parse::<f64>().ok()?;
    let seen = if v.one_thread_each() { v.seen.workers_most as f64 } else { v.apache_threads() };
    let real = v.seen.scoreboard.values().sum::<f64>().max(seen).min(v.size().max(1.0));
    (asked > real * 1.05).then(|| {
        finding(0.93, "fewer workers than configured can exist: another limit clamps them")
            .of(&v)
            .seen("configuration", "MaxRequestWorkers", asked, real)
            .seen("scoreboard", "places", real, asked)
            .unless("as many places as configured")
            .do_this(
                // What is in force of it is the limit's; that it is asked for again starts the rest of the pool.
                vec![
                    v.fix("ServerLimit", (v.processes_for(asked) as i64).into()),
                    v.fix("MaxRequestWorkers", (asked as i64).into()),
                ],
                "ServerLimit (and ThreadLimit) bound MaxRequestWorkers and need a restart",
            )
            .brings(case.bound(Some(asked)))
            .check_by("places in the scoreboard")
    })
}
