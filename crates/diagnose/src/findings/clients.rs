//! Rules about clients: they hold workers, read slowly, or are rejected by a configured limit.

use lastdrop_model::documents::Finding;
use lastdrop_model::examination::{LoadShape, StepKind};
use serde_json::json;

use super::Rule;
use super::advice::holders_of_clients;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding};

pub(super) const HOLDING: &[Rule] =
    &[Rule { id: "keepalive-hogging", look: keepalive }, Rule { id: "slow-clients", look: slow }];

/// Share of a pool that idle connections hold, from which on they limit the next client, though no client waits now.
const HELD: f64 = 0.7;

/// True if visitors' connections hold most of a pool. A few users of ours need not wait then.
pub(super) fn visitors_hold_workers(case: &LoadEvidence<'_>) -> bool {
    case.servers().iter().any(|v| held_by_visitors(case, v))
}

fn held_by_visitors(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>) -> bool {
    let beside = case.all.load == LoadShape::Foreign || case.main.kind == StepKind::Few;
    let are_there = v.seen.other_clients >= 2.0;
    beside && are_there && v.has_pool() && case.cpu_idle() && v.size() >= 2.0 && v.held_by_idle() >= HELD * v.size()
}

fn keepalive(case: &LoadEvidence<'_>) -> Option<Finding> {
    if case.main.shares_connections {
        // A worker that holds such a connection may have requests of several users on it.
        return None;
    }
    case.servers().into_iter().find_map(|v| {
        let places: f64 = v.seen.scoreboard.iter().filter(|(l, _)| *l != ".").map(|(_, n)| n).sum();
        let kept = v.seen.scoreboard.get("K").copied().unwrap_or(0.0);
        let by_board = places >= 1.0 && kept >= 0.5 * places;
        // If thread states show whether a worker waits for a request or for the next one, they decide.
        let told = v.seen.waiting("client kept") + v.seen.waiting("client request") > 0.0;
        let in_poll = v.seen.waiting(if told { "client kept" } else { "client" });
        let workers = if v.one_thread_each() { v.seen.workers_most.max(1) as f64 } else { v.size().max(1.0) };
        let by_threads = (told || v.one_thread_each()) && v.has_pool() && in_poll >= 0.55 * workers;
        // Without keep-alive the same workers serve more requests.
        let other = case.all.step(StepKind::OtherKeepalive).filter(|o| !o.keepalive && case.main.keepalive);
        let gain = other.map_or(1.0, |o| o.answered_rps / case.main.answered_rps.max(1e-9));
        // The status page is requested while others run. The state of single-threaded processes says more than its
        // letters.
        let by_board = by_board
            && !(v.one_thread_each()
                && v.has_pool()
                && v.seen.threads >= 1.0
                && v.seen.waiting("client") < 0.3 * workers);
        let is_on = v.setting("KeepAlive").is_none_or(|s| !s.eq_ignore_ascii_case("off"));
        let by_visitors = held_by_visitors(case, &v);
        let waits = v.queue() >= 0.7 || case.main.timed_out > 0 || by_visitors;
        // If throughput did not rise without keep-alive, it is not the limit.
        if other.is_some() && gain < 1.05 {
            return None;
        }
        ((by_board || by_threads || by_visitors) && is_on && waits && case.cpu_idle() && !v.is(&["nginx", "haproxy"]))
            .then(|| {
                let knob =
                    if v.about.settings.contains_key("KeepAliveTimeout") { "KeepAliveTimeout" } else { "KeepAlive" };
                finding(
                    if gain > 1.3 { 0.95 } else { 0.85 },
                    "workers wait for the next request of clients who keep their connection",
                )
                .of(&v)
                .evidence("scoreboard", "places with K", v.letters("K"), 0.5 * places)
                .evidence(
                    "/proc/PID/syscall",
                    "workers that wait for the next request of a client",
                    in_poll,
                    0.55 * workers,
                )
                .evidence("configuration", v.about.pool.as_deref().unwrap_or("workers"), v.size(), 0)
                .evidence("sock_diag", "connections of visitors, on average", v.seen.other_clients, 0)
                .evidence("listen queue", "connections that wait", v.seen.queue_mean, 0.7)
                .evidence("load", "throughput without keep-alive, against with it", gain, 1.3)
                .ruled_out("a server that holds no worker for an idle connection; workers that send")
                .fix(
                    if knob == "KeepAlive" {
                        vec![v.fix("KeepAlive", json!("Off"))]
                    } else {
                        vec![v.fix("KeepAliveTimeout", json!(1)), v.fix("KeepAlive", json!("Off"))]
                    },
                    format!("either the shortest time, or none, or {}", holders_of_clients(&v)),
                )
                .verify("places with K in the scoreboard, connections that wait")
            })
    })
}

fn slow(case: &LoadEvidence<'_>) -> Option<Finding> {
    if case.main.shares_connections {
        return None;
    }
    case.servers().into_iter().find_map(|v| {
        let at_client = v.seen.waiting("client") - v.seen.waiting("client kept") + v.seen.waiting("client-write");
        let share = at_client / v.busy().max(0.5);
        let letters = v.seen.scoreboard.get("R").copied().unwrap_or(0.0);
        let places: f64 = v.seen.scoreboard.iter().filter(|(l, _)| *l != ".").map(|(_, n)| n).sum();
        let reading = places >= 1.0 && letters >= 0.5 * places;
        ((share >= 0.55 || reading) && v.is_full() && case.cpu_idle() && v.has_pool()).then(|| {
            finding(0.85, "workers wait for slow clients")
                .of(&v)
                .evidence(
                    "/proc/PID/syscall",
                    "share of the busy workers that read from or write to a client",
                    share,
                    0.55,
                )
                .evidence("scoreboard", "places with R", v.letters("R"), 0.5 * places)
                .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
                .ruled_out("workers that compute or wait for others")
                .fix(
                    Vec::new(),
                    format!("RequestReadTimeout (mod_reqtimeout), {}, or more workers", holders_of_clients(&v)),
                )
                .verify("places with R in the scoreboard")
        })
    })
}

/// A configured limit rejects clients. It is not a fault of the server, nor does it bound what the server does serve.
pub(super) const TURNED_AWAY: Rule = Rule { id: "rate-limited", look: rate_limited };

/// Share of the answers that are rejections by such a limit.
fn turned_away(case: &LoadEvidence<'_>) -> f64 {
    // Apache's modules answer 403 or 500, nginx 503 by default. Other causes answer the same, but do not log such a
    // line.
    let is_logged = case.logs_rejections();
    case.main.share_of_status(|s| s == "429" || is_logged && ["503", "403", "500"].contains(&s))
}

/// True if a configured limit rejects most requests.
pub(super) fn turns_most_away(case: &LoadEvidence<'_>) -> bool {
    turned_away(case) >= 0.5
}

fn rate_limited(case: &LoadEvidence<'_>) -> Option<Finding> {
    let servers = case.servers();
    let logged = servers.iter().find(|v| v.log("rate-limited") > 0);
    let told = turned_away(case);
    let v: &ServerEvidence<'_> = logged.or(servers.first())?;
    // Only the log shows how other clients are answered.
    let share = match case.all.load {
        LoadShape::Foreign => "some".to_string(),
        _ => format!("{:.0} %", told * 100.0),
    };
    (told > 0.01 || case.all.load == LoadShape::Foreign && v.log("rate-limited") >= 5).then(|| {
        finding(0.9, format!("{share} of the answers are those of a limit that is configured: it does what it was told to"))
            .of(v)
            .evidence("load", "answers that turn away (429, 503, 403, 500), share", told, 0.01)
            .evidence("error log", v.sample_line("rate-limited"), v.log("rate-limited"), 0)
            .ruled_out("errors of a server that is down or full: 502, 504, and lines that say so")
            .fix(
                Vec::new(),
                "nothing, where these are the clients that it is meant for; else limit_req, limit_conn (nginx), mod_qos, mod_evasive, \
                 mod_ratelimit (Apache), stick-table (HAProxy), or the application's own. Behind a proxy it has to count clients, not the proxy",
            )
            .verify("the same load from several addresses")
    })
}

/// Returns notes about what is not a fault, but worth mentioning.
pub(super) fn notes(case: &LoadEvidence<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let others = case.main.generator.others_cores;
    if others > 0.3 {
        let whose = case.main.generator.cores_here.map_or("", |_| " of the machines that the load comes from");
        notes.push(format!("programs that have nothing to do with it took {others:.1} cores{whose} meanwhile"));
    }
    if case.main.share_of_status(|s| s.starts_with('4') && s != "429") > 0.5 {
        notes.push("most answers are 4xx: is the URL right?".into());
    }
    if case.main.share_of_status(|s| s.starts_with('3') && s != "304") > 0.5 {
        let what = "most answers are redirects, and that is what was examined, not the page they lead to: one behind a login needs its \
                    session (--url PLAN of lastdrop record), one that has moved its new URL or --redirects 3";
        notes.push(what.into());
    }
    notes
}
