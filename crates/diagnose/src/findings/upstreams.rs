//! Rules about upstream servers: they refuse connections, their listen queue is full, or requests wait for them.

use lastdrop_model::documents::Finding;
use serde_json::json;

use super::databases::is_database;
use super::evidence::{FindingBuilder, LoadEvidence, ONE_CORE, ServerEvidence, UNANSWERED, finding, longer_queue};
use super::peers::{MOST, behind, peer};

/// A connect is retried after a second, by the kernel and by HAProxy. The threshold is slightly lower.
const SECOND_TRY_US: f64 = 950_000.0;

pub(super) fn upstream_full(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("upstream-full");
        let tried = v.calls("connect-full");
        let all = case.servers();
        // If no connection between them was sampled, the upstream is the next server of the chain.
        let behind = all.iter().find(|b| v.about.to.contains(&b.about.server)).or(all.get(v.place + 1)).copied();
        // TCP refuses no connection: the kernel drops what exceeds the limit, and counts it for the whole network
        // namespace. The server whose queue is full caused it.
        let is_full = |v: &ServerEvidence<'_>| {
            v.seen.queue_limit.is_some_and(|limit| v.seen.queue_most.unwrap_or(0) >= limit.max(1))
        };
        let dropped = v.moved("ListenOverflows");
        let tcp = dropped >= 5
            && behind.is_some_and(|b| is_full(&b) && !b.seen.queue_at.starts_with("unix:"))
            && !is_full(&v);
        (lines > 0 || tried > 0.02 || tcp).then(|| {
            let limit = behind.and_then(|b| b.seen.queue_limit).unwrap_or(0);
            let found =
                finding(0.95, format!("the listen queue behind {} is full: it refuses to wait", v.about.server))
                    .of(&v)
                    .evidence("error log", v.sample_line("upstream-full"), lines, 1)
                    .evidence("trace", "connects a request that the kernel refused (EAGAIN)", tried, 0.02)
                    .evidence(
                        "load",
                        "answers 502 and 503, share",
                        case.main.share_of_status(|s| s == "502" || s == "503"),
                        0.01,
                    )
                    .evidence("sock_diag", "limit of that queue", limit, 0)
                    .evidence(
                        "sock_diag",
                        "most that waited in it",
                        behind.and_then(|b| b.seen.queue_most).unwrap_or(0),
                        limit,
                    )
                    .evidence("TcpExt", "ListenOverflows", dropped, 5)
                    .ruled_out("ECONNREFUSED: nobody listens there")
                    .verify("no more errno 11 in the log of the front");
            match behind {
                Some(b) => {
                    let knob = match b.kind() {
                        "php-fpm" => "listen.backlog",
                        "uwsgi" => "listen",
                        _ => "backlog",
                    };
                    let mut fix = vec![b.fix(knob, json!(longer_queue(limit)))];
                    fix.extend(
                        b.more_workers(b.wanted_workers()).into_iter().filter(|_| b.is_full() && case.cpu_idle()),
                    );
                    found.fix(fix, "a longer queue only makes them wait there; the pool behind it has to keep up")
                }
                None => found.fix(Vec::new(), "a longer backlog (and net.core.somaxconn), more workers behind it"),
            }
        })
    })
}

/// HAProxy retries after a second. A server that refuses connections, or whose packets are lost, therefore shows in
/// steps of a second, and not only in errors.
pub(super) fn connect_retries(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| v.is(&["haproxy"]))?;
    let failed = v.moved("AttemptFails");
    // The load's connects succeed at once, so the retransmitted SYNs are HAProxy's own.
    let ours_are_quick = case.main.connect.max < SECOND_TRY_US && v.moved("ListenOverflows") == 0;
    let unanswered = if ours_are_quick { v.moved("TCPSynRetrans") } else { 0 };
    let slowest = case.alone.map_or(case.main.response.p99, |s| s.response.max.max(s.response.p99));
    // A timeout below a second ends the first try.
    let slow = slowest >= SECOND_TRY_US || unanswered > 0;
    let tries = case.per_request(failed + unanswered);
    let (_, opening, whom) = v.outgoing_connections();
    let in_flight = case.in_flight();
    let most_wait = opening >= 1.0 && opening >= UNANSWERED * in_flight;
    ((tries >= 0.1 || most_wait) && slow).then(|| {
        finding(0.88, "a server behind HAProxy takes no connections; it tries again, a second each time")
            .of(&v)
            .evidence("sock_diag", &format!("connections that are not answered yet, most of them to {}", if whom.is_empty() { "nobody" } else { whom }), opening, UNANSWERED * in_flight)
            .evidence("Tcp", "connects that were refused, a request", case.per_request(failed), 0.1)
            .evidence("TcpExt", "first packets that were sent again, a request", case.per_request(unanswered), 0.1)
            .evidence("load", "the slowest answer for one user alone, ms", slowest / 1e3, SECOND_TRY_US / 1e3)
            .evidence("load", "answers 503, share", case.main.share_of_status(|s| s == "503"), 0.01)
            .ruled_out("connects that succeed at once; a server that answers slowly")
            .fix(Vec::new(), "health checks (option httpchk, check) take a server out that is down; option redispatch and retries say what happens meanwhile; \
                                  packets that are dropped: a firewall, a wrong address")
            .verify("wretr and econ on its stats page")
    })
}

pub(super) fn upstream_refused(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("upstream-refused");
        let errors = case.main.share_of_status(|s| s == "502" || s == "503");
        // If the log goes to a pipe, as in a container, the kernel still counts failed connects. Those of the load are
        // subtracted.
        let own = case.main.failed.get("connect").copied().unwrap_or(0);
        let refused = v.moved("AttemptFails").saturating_sub(own);
        let failed = case.per_request(refused).max(v.calls("connect-failed"));
        let is_front = v.place == 0 && v.is(&["nginx", "apache", "caddy"]);
        // HAProxy whose health checks are refused asks no server, and keeps no request waiting.
        let away =
            v.is(&["haproxy"]) && case.main.share_of_status(|s| s == "503") >= 0.3 && v.seen.queued.unwrap_or(0) == 0;
        let checks = case.per_second(refused);
        let seen = lines > 0 || is_front && failed >= 0.5 * errors.max(0.02) || away && checks >= 0.2;
        let told = v.logged_for_other_clients("upstream-refused");
        (seen && errors > 0.01 || told).then(|| {
            finding(0.95, format!("what is behind {} refuses connections, or is down", v.about.server))
                .of(&v)
                .evidence("error log", v.sample_line("upstream-refused"), lines, 1)
                .evidence("Tcp", "connects that were refused, a request", failed, 0.01)
                .evidence("Tcp", "connects that were refused, a second", checks, 0.2)
                .evidence("load", "answers 502 and 503, share", errors, 0.01)
                .ruled_out("EAGAIN: a full queue of somebody who is there")
                .fix(Vec::new(), "start it, or mend the address; a server that comes and goes: its own error log")
                .verify("answers 200")
        })
    })
}

/// Finds a program without a worker pool that has few connections to a peer, and serves only as many requests at once.
/// Requests wait for one of these connections.
pub(super) fn few_connections(case: &LoadEvidence<'_>, to_database: bool) -> Option<Finding> {
    few_of_many(case, to_database, 1.5)
}

/// Like [`few_connections`], for a database that is idle: it would answer more statements, whatever each takes. Several
/// times as many requests must wait as there are connections.
pub(super) fn few_to_idle_database(case: &LoadEvidence<'_>) -> Option<Finding> {
    let mut databases = case.servers().into_iter().filter(|v| v.is(&["mariadb", "mysql", "postgresql"])).peekable();
    databases.peek()?;
    let rest = databases.all(|v| v.seen.cpu_cores.is_some_and(|cores| cores < 0.3));
    if rest { few_of_many(case, true, 3.0) } else { None }
}

fn few_of_many(case: &LoadEvidence<'_>, to_database: bool, many: f64) -> Option<Finding> {
    let alone = case.alone.filter(|s| s.answered >= 10)?;
    let in_flight = case.in_flight();
    let times = case.main.answered_rps / alone.answered_rps.max(1e-9);
    let mut all = case.servers().into_iter().rev().filter(|v| !v.has_pool() || v.is_async());
    let (v, peer, open) = all.find_map(|v| {
        let mut own = v.about.connects.iter().filter_map(|to| Some((to.as_str(), v.seen.peers.get(to)?.open)));
        let (peer, open) = own.find(|(_, open)| *open >= 1.7 && (0.75..1.25).contains(&(times / open)))?;
        Some((v, peer, open)).filter(|_| !v.is(&["nginx", "haproxy", "mariadb", "postgresql"]))
    })?;
    let rests = v.seen.hottest_process_cores < 0.5 && case.cpu_idle();
    (rests && in_flight >= many * open && is_database(case, &v, peer) == to_database).then(|| {
        finding(0.78, format!("requests wait inside {} for one of its {open:.0} connections to {peer}", v.about.server))
            .of(&v)
            .evidence("sock_diag", &format!("connections to {peer}, on average"), open, in_flight / many)
            .evidence("load", "requests at once, on average", in_flight, many * open)
            .evidence("load", "throughput against one user alone", times, open)
            .evidence("/proc/PID/stat", "cores of its busiest process", v.seen.hottest_process_cores, 0.5)
            .ruled_out("a connection for each request; throughput that does not go with their number")
            .fix(Vec::new(), "more connections in the program's own pool (pool size, MaxConnsPerHost, maxSockets), as far as the other side bears it; each held for less")
            .verify("throughput rises with the size of the pool")
    })
}

pub(super) fn slow_upstream(case: &LoadEvidence<'_>) -> Option<Finding> {
    // How long a request holds a worker.
    let held_s = |v: &ServerEvidence<'_>| v.busy() / case.main.answered_rps.max(1e-9);
    let found = case.servers().into_iter().rev().find_map(|v| {
        let (peer, share) = peer(&v)?;
        let next = behind(case, &v, peer);
        // A full server of the chain has its own finding. A call that comes back to an earlier server waits for that
        // server's own workers.
        let comes_back = next.is_some_and(|b| b.place < v.place);
        // Slow pages behind an Apache are its own application's.
        let is_ours = |b: &ServerEvidence<'_>| b.has_pool() && (b.is_full() || v.place == 0 && v.is(&["apache"]));
        let passes_on = comes_back || next.is_some_and(|b| is_ours(&b));
        // The time that a request takes longer than for one user alone is spent waiting there, whatever else it always
        // takes.
        let held = held_s(&v);
        let grows = |alone: f64| held >= 1.5 * alone && share >= 0.3 && share * held >= 0.8 * (held - alone);
        let waits = share >= MOST || case.alone_s().is_some_and(grows);
        (v.has_pool() && waits && v.busy() >= 0.8 && !peer.ends_with(":53") && !passes_on).then_some((v, peer, share))
    });
    if let Some((v, peer, share)) = found.filter(|_| case.cpu_idle()) {
        let times = case.alone_s().map_or(1.0, |alone| held_s(&v) / alone.max(1e-6));
        let more = times < 1.5 && v.is_full();
        let name = behind(case, &v, peer).map_or_else(|| peer.to_string(), |b| format!("{} ({peer})", b.about.server));
        let advice = if more {
            "it takes as long for one as for many: more workers would wait there side by side, until it is full; a time limit and a \
             cache before it"
        } else {
            "it takes longer the more ask at once: it is full itself, more workers would only queue there; look at that server"
        };
        return Some(
            finding(0.88, format!("workers of {} wait for {name}", v.about.server))
                .of(&v)
                .evidence(
                    "/proc/PID/syscall",
                    &format!("share of the busy workers that wait for {peer}"),
                    share,
                    MOST.min(share),
                )
                .evidence("load", "time a worker is held by a request, against one user alone", times, 1.5)
                .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
                .ruled_out("workers that compute, or wait for a lock")
                .fix(if more { v.more_workers(v.wanted_workers()) } else { Vec::new() }, advice)
                .expected(if more { case.bound(Some(v.wanted_workers())) } else { None })
                .verify("time that calls to it take (lastdrop trace)"),
        );
    }
    front_waits(case).or_else(|| loop_waits(case))
}

/// True if the server computes for requests: then it does not wait for an upstream.
fn computes(v: &ServerEvidence<'_>) -> bool {
    let most = (0.5 * v.case.in_flight()).clamp(0.8, 1.5);
    v.one_computes() || v.seen.waiting("running") >= most || v.seen.cpu_cores.unwrap_or(0.0) >= 0.5
}

/// Finds an event loop, or a program of few threads, that has as many connections to one peer as requests in flight,
/// and is otherwise idle.
fn loop_waits(case: &LoadEvidence<'_>) -> Option<Finding> {
    let in_flight = case.in_flight();
    let all = case.servers().into_iter().rev();
    let mut loops = all.filter(|v| !v.has_pool() || v.is_async()).filter(|v| !v.is(&["mariadb", "postgresql"]));
    let (v, peer, open) = loops.find_map(|v| {
        let open = |peer: &String| v.seen.peers.get(peer).map_or(0.0, |p| p.open + p.opening);
        let peer = v.about.connects.iter().max_by(|a, b| open(a).total_cmp(&open(b)))?;
        Some((v, peer, open(peer))).filter(|(_, _, open)| *open >= MOST * in_flight)
    })?;
    let rests = v.seen.hottest_process_cores < 0.5 && v.seen.waiting("running") < 0.5;
    let passes_on = behind(case, &v, peer).is_some_and(|b| b.has_pool() || computes(&b));
    let long = case.main.service.mean > 5_000.0 && !case.few_wait_long();
    (rests && long && !passes_on && case.cpu_idle() && !is_database(case, &v, peer)).then(|| {
        let name = behind(case, &v, peer).map_or_else(|| peer.clone(), |b| format!("{} ({peer})", b.about.server));
        finding(0.78, format!("{} waits for {name}", v.about.server))
            .of(&v)
            .evidence("sock_diag", &format!("connections to {peer}, on average"), open, MOST * in_flight)
            .evidence("load", "requests at once, on average", in_flight, 0)
            .evidence("/proc/PID/stat", "cores of its busiest process", v.seen.hottest_process_cores, 0.5)
            .evidence("load", "answers are so many times slower than for one user alone", case.slower(), 0)
            .ruled_out("a loop that computes; fewer connections to it than requests: a pool of its own, or another wait")
            .fix(Vec::new(), "look at that server; a time limit and a cache before it; calls that do not depend on each other side by side")
            .verify("time that calls to it take")
    })
}

/// Finds a front without a pool that waits for a server of which only the lack of CPU use is known.
fn front_waits(case: &LoadEvidence<'_>) -> Option<Finding> {
    let all = case.servers();
    let v =
        all.iter().rev().find(|v| v.is(&["nginx", "haproxy"]) && !v.about.connects.is_empty() && case.cpu_idle())?;
    let behind_has_pool = all.iter().any(|b| v.about.to.contains(&b.about.server) && (b.has_pool() || computes(b)));
    let peer = v.about.connects.first()?;
    let named =
        v.about.to.first().filter(|to| !to.is_empty()).map_or_else(|| peer.clone(), |to| format!("{to} ({peer})"));
    let waits =
        case.inside(&v.about.server).and_then(|i| i.waits_s.get(&format!("peer {peer}"))).copied().unwrap_or(0.0);
    let rests = v.seen.waiting("events") >= 0.7 * v.seen.threads && v.seen.hottest_thread_cores < ONE_CORE;
    // If a few requests wait for lost packets, the mean says nothing about the server behind.
    let lost = case.few_wait_long();
    (!behind_has_pool && rests && !lost && case.main.service.mean > 5_000.0).then(|| {
        finding(0.75, format!("{} waits for {named}", v.about.server))
            .of(v)
            .evidence("trace", &format!("seconds a request waits for {peer}"), waits, 0)
            .evidence(
                "/proc/PID/syscall",
                "its threads that wait for events",
                v.seen.waiting("events"),
                0.7 * v.seen.threads,
            )
            .evidence("load", "answers are so many times slower than for one user alone", case.slower(), 1.3)
            .ruled_out("a front that computes, or a pool behind it whose workers tell more")
            .fix(Vec::new(), "look at that server: it answers one after the other, or waits itself")
            .verify("$upstream_response_time in the log")
    })
}
