//! Rules about wastes: what costs time or memory without being the limit.

use std::collections::BTreeMap;

use lastdrop_model::documents::{ExpectedGain, Finding};
use lastdrop_model::examination::{ExaminationStep, ModuleTrial, StepKind};
use lastdrop_model::units::show_us;
use serde_json::json;

use super::Rule;
use super::advice::behind_closes;
use super::databases::is_database;
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding, round};

/// Private memory of a worker, as a share of its master's resident memory, from which on it has written to all that it
/// can. A good half of the master's memory is files, which stay shared.
const INHERITED: f64 = 0.45;

/// Private bytes of a worker, and of all workers, from which on they have loaded for themselves.
const LOADED_EACH: f64 = 24e6;
const LOADED_ALL: f64 = 150e6;
/// Shortest time for which Linux delays an acknowledgement (TCP_DELACK_MIN), µs.
const DELAYED_ACK_US: f64 = 40_000.0;
/// This many calls are no coincidence.
const ENOUGH_CALLS: f64 = 8.0;

pub(super) const ALL: &[Rule] = &[
    Rule { id: "htaccess-lookups", look: htaccess },
    Rule { id: "db-connect-per-request", look: database_connects },
    Rule { id: "upstream-connect-per-request", look: upstream_connects },
    Rule { id: "keepalive-off", look: keepalive_off },
    Rule { id: "process-churn", look: churn_without_keepalive },
    Rule { id: "fpm-spawn-lag", look: |c| growing(c, true) },
    Rule { id: "spawn-ramp", look: |c| growing(c, false) },
    Rule { id: "buffering-to-disk", look: buffering },
    Rule { id: "access-log-unbuffered", look: unbuffered },
    Rule { id: "delayed-ack", look: delayed_ack },
    Rule { id: "unshared-memory", look: unshared },
    Rule { id: "unused-modules", look: unused_modules },
    // Both may occur: an Apache in front of a PHP-FPM.
    Rule { id: "unused-modules", look: unused_extensions },
];

/// Returns servers with at least this many traced calls of a kind per request; with the number and the object.
fn all_calls<'a>(
    case: &'a LoadEvidence<'a>,
    sort: &str,
    least: f64,
) -> impl Iterator<Item = (ServerEvidence<'a>, f64, String)> {
    case.servers().into_iter().filter_map(move |v| {
        // One or two requests are enough if each has many such calls.
        let inside = case.inside(&v.about.server).filter(|i| i.requests >= 1.0)?;
        let enough = |n: f64| inside.requests >= 3.0 || n * inside.requests >= ENOUGH_CALLS;
        let n = inside.calls.get(sort).copied().filter(|n| *n >= least && enough(*n))?;
        Some((v, n, inside.objects.get(sort).cloned().unwrap_or_default()))
    })
}

/// Returns the first such server of one of these kinds; of any kind if none is given.
fn calls<'a>(
    case: &'a LoadEvidence<'a>,
    sort: &str,
    least: f64,
    kinds: &[&str],
) -> Option<(ServerEvidence<'a>, f64, String)> {
    all_calls(case, sort, least).find(|(v, _, _)| kinds.is_empty() || v.is(kinds))
}

fn htaccess(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (v, n, path) = calls(case, "htaccess", 0.9, &["apache"])?;
    Some(
        finding(0.95, "Apache looks for .htaccess in every folder of the path, for each request")
            .of(&v)
            .evidence("trace", "looks a request", n, 0.9)
            .evidence("trace", "such as", path, ".htaccess")
            .ruled_out("no look for .htaccess while it was traced")
            .fix(
                vec![v.fix("AllowOverride", json!("None"))],
                "and what the files say into the configuration, in <Directory>",
            )
            .expected(case.without_cpu(
                [1e-6, 3e-6, 6e-6].map(|each| each * n),
                format!("{n:.0} looks per request, some microseconds each"),
            ))
            .verify("lastdrop trace --with '<Directory />; AllowOverride None; </Directory>'"),
    )
}

fn database_connects(case: &LoadEvidence<'_>) -> Option<Finding> {
    // A database on an unusual port is recognised by its program.
    let elsewhere = || all_calls(case, "connect", 0.7).find(|(v, _, peer)| is_database(case, v, peer));
    let (v, n, peer) = calls(case, "database-connect", 0.7, &[]).or_else(elsewhere)?;
    Some(
        finding(0.93, format!("each request opens a connection of its own to the database {peer}"))
            .of(&v)
            .evidence("trace", "connects to it a request", n, 0.7)
            .ruled_out("connections that are kept")
            .expected(kept_database_connection(case, n))
            .fix(Vec::new(), "persistent connections (mysqli 'p:', PDO::ATTR_PERSISTENT, Apache::DBI, CONN_MAX_AGE) or a pooler; no more workers than it has connections")
            .verify("connects a request in lastdrop trace"),
    )
}

/// Maximum processor time that a new connection costs a database. PostgreSQL forks a process and checks the password by
/// thousands of hashes (SCRAM); MariaDB takes a thread.
const CONNECT_S: [(&str, f64); 2] = [("postgresql", 20e-3), ("mariadb", 1e-3)];

/// Expected gain of persistent connections: the part of the database's time that connecting takes. For short statements
/// it is most.
fn kept_database_connection(case: &LoadEvidence<'_>, connects: f64) -> Option<ExpectedGain> {
    let db = case.servers().into_iter().find(|v| v.is(&["postgresql", "mariadb"]))?;
    let each = db.seen.cpu_cores? * case.main.duration_s / case.main.answered.max(1) as f64;
    let most = CONNECT_S.iter().find(|(kind, _)| db.is(&[kind])).map(|(_, s)| s * connects)?;
    let spared = each.min(most);
    let name = &db.about.server;
    case.without_cpu(
        [0.25 * spared, 0.85 * spared, spared],
        format!("{name} takes {} of processor time per request, of which connections are the larger part where statements are short", show_us(each * 1e6)),
    )
}

/// Connections that were opened in the server's network namespace per answer, without the load's, in a step whose
/// clients keep theirs.
fn opened_behind<'a>(case: &'a LoadEvidence<'a>) -> Option<(ServerEvidence<'a>, f64, String)> {
    let v = case.servers().into_iter().find(|v| v.is(&["nginx", "haproxy", "apache"]))?;
    let peer = v.about.connects.iter().find(|c| !c.starts_with("unix:"))?.clone();
    let kept = case.all.whole_steps().find(|s| s.keepalive && s.answered >= 100 && s.connections * 5 < s.answered)?;
    let opened =
        kept.server(&v.about.server)?.kernel.get("ActiveOpens").copied().unwrap_or(0).saturating_sub(kept.connections);
    let n = opened as f64 / kept.answered as f64;
    // The server behind may itself connect to a database.
    let passes_on =
        case.servers().iter().any(|b| b.place > v.place && b.about.connects.iter().any(|c| !c.starts_with("unix:")));
    (n >= 0.8 && !passes_on).then_some((v, n, peer))
}

fn upstream_connects(case: &LoadEvidence<'_>) -> Option<Finding> {
    // A connection to a FastCGI pool by a Unix socket costs next to nothing. An application that calls a server once
    // per request usually cannot keep the connection; several calls are worth reporting.
    let calls_often = |v: &ServerEvidence<'_>, n: f64| v.is(&["nginx", "haproxy", "apache"]) || n >= 3.0;
    let is_dear = |(v, n, peer): &(ServerEvidence<'_>, f64, String)| {
        !is_database(case, v, peer) && (!peer.starts_with("unix:") || v.is(&["haproxy"])) && calls_often(v, *n)
    };
    let traced = all_calls(case, "connect", 0.8).find(is_dear);
    let (v, n, peer) = traced.or_else(|| opened_behind(case).filter(is_dear))?;
    // If the server behind closes each connection, there is nothing to keep.
    let how = behind_closes(case, &v).unwrap_or_else(|| {
        "nginx: keepalive N in the upstream, proxy_http_version 1.1 and an empty Connection header; Apache: no disablereuse, ProxyPass … \
         enablereuse; HAProxy: http-reuse, without http-server-close or httpclose"
            .into()
    });
    let fix = match v.kind() {
        // HAProxy's default is `safe`.
        "haproxy" if v.setting("http-reuse").is_some_and(|s| s == "never") => vec![v.fix("http-reuse", json!("safe"))],
        _ => Vec::new(),
    };
    Some(
        finding(0.88, format!("{} opens a connection to {peer} for each request", v.about.server))
            .of(&v)
            .evidence("trace", "connects a request", n, 0.8)
            .evidence("sock_diag", "closed connections (TIME_WAIT)", v.seen.sockets.get("time_wait").copied(), 0)
            .ruled_out("connections to it that are kept")
            .fix(fix, how)
            .expected(case.without_cpu(
                BEHIND_CONNECT_S.map(|each| each * n),
                "to open and close a connection on one machine takes some 60 µs of processor time at both ends together",
            ))
            .verify("connects a request in lastdrop trace"),
    )
}

/// Processor time of a loopback connection at both ends (connect, accept, sockets, close): minimum, likely and maximum.
const BEHIND_CONNECT_S: [f64; 3] = [20e-6, 60e-6, 120e-6];

fn keepalive_off(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let knob = ["KeepAlive", "keepalive_timeout"].iter().find(|name| v.about.settings.contains_key(**name));
    let is_off = knob.is_some_and(|name| {
        if *name == "KeepAlive" { !v.about.settings[*name].is_on() } else { v.count(name) == Some(0.0) }
    });
    let asked =
        case.all.whole_steps().filter(|s| matches!(s.kind, StepKind::Main | StepKind::OtherKeepalive | StepKind::Few));
    // Each user opens a connection anyway, however few requests are answered.
    let tells =
        |s: &&ExaminationStep| s.keepalive && s.answered >= 20 && (is_off || s.answered >= 3 * u64::from(s.users));
    let step = asked.into_iter().find(tells)?;
    let a_request = step.connections as f64 / step.answered.max(1) as f64;
    // If keep-alive is on, something else closes: error answers, an application, or threads that are all busy.
    let is_on = knob.is_some_and(|name| *name == "KeepAlive" && v.about.settings[*name].is_on());
    (a_request >= 0.8 && !is_on).then(|| {
        finding(0.9, "the server closes the connection after each answer, though clients would keep it")
            .of(&v)
            .evidence("load", "connections a request with keep-alive on", a_request, 0.8)
            .evidence("configuration", knob.map_or("keep-alive", |n| *n), knob.and_then(|n| v.setting(n)).unwrap_or_default(), "on")
            .ruled_out("connections that are reused")
            .fix(
                knob.map(|name| v.fix(name, if *name == "KeepAlive" { json!("On") } else { json!(15) })).into_iter().collect(),
                "a browser loads a page with six connections instead of one a part; in prefork with a short KeepAliveTimeout only, or it \
                 holds the workers",
            )
            .expected(connection_kept(case, step, a_request))
            .verify("connections opened against requests in lastdrop run")
    })
}

/// Expected gain of keep-alive for clients: the time to connect.
fn connection_kept(case: &LoadEvidence<'_>, step: &ExaminationStep, connections: f64) -> Option<ExpectedGain> {
    let connect = step.connect.mean * connections;
    let all = step.response.mean;
    let ratio = round(1.0 / (1.0 - (connect / all).clamp(0.0, 0.9)));
    let reason = format!("to connect takes {} of {} per request", show_us(connect), show_us(all));
    if case.cpu_full() {
        let reason = "to open and close a connection takes some 60 µs of processor time at both ends together";
        return case.without_cpu(BEHIND_CONNECT_S.map(|each| each * connections), reason);
    }
    (connect > 0.0 && all > 0.0).then_some(ExpectedGain { ratio, interval: None, reason })
}

/// Finds workers that are replaced all the time as soon as clients do not keep their connections, by the steps with and
/// without keep-alive.
fn churn_without_keepalive(case: &LoadEvidence<'_>) -> Option<Finding> {
    let steps = case.all.whole_steps().filter(|s| s.answered >= 20 && s.answered_rps > 0.0);
    let of_load = |s: &&ExaminationStep| matches!(s.kind, StepKind::Main | StepKind::OtherKeepalive);
    let (kept, closing): (Vec<&ExaminationStep>, Vec<&ExaminationStep>) =
        steps.filter(of_load).partition(|s| s.keepalive);
    let (kept, closing) = (kept.first()?, closing.first()?);
    let ratio = kept.answered_rps / closing.answered_rps;
    let seconds = closing.duration_s.max(1e-3);
    case.servers().into_iter().find_map(|v| {
        let (name, most) = v.recycling().filter(|(_, most)| (1.0..200.0).contains(most))?;
        let seen = closing.server(&v.about.server)?;
        let before = kept.server(&v.about.server).map_or(0.0, |s| s.born as f64 / kept.answered as f64);
        // Workers that live for a millisecond are never sampled.
        let due = closing.connections as f64 / most;
        let born = (seen.born as f64).max(if name == "MaxConnectionsPerChild" { due } else { 0.0 });
        let a_request = born / closing.answered as f64;
        (ratio >= 1.5 && a_request >= 0.05 && a_request >= 3.0 * before).then(|| {
            let to = if v.is(&["apache"]) { 0 } else { 10_000 };
            finding(0.85, format!("workers of {} are replaced all the time for clients that do not keep their connections", v.about.server))
                .of(&v)
                .evidence("load", "requests/s with keep-alive", kept.answered_rps, 0)
                .evidence("load", "requests/s without", closing.answered_rps, 0)
                .evidence("processes", "workers born a request without keep-alive", a_request, 0.05)
                .evidence("processes", "workers born a second then", born / seconds, 0)
                .evidence("configuration", name, most, 0)
                .ruled_out("the same process ids before and after that step")
                .fix(
                    vec![v.fix(name, json!(to))],
                    "a worker that leaks can serve thousands of requests before it matters; lastdrop size --fit says how much it grows",
                )
                .expected(Some(ExpectedGain {
                    ratio: round(ratio),
                    interval: Some([1.0, round(ratio)]),
                    reason: format!(
                        "without keep-alive {:.1} requests/s, with it {:.1}: new workers take most of the difference",
                        closing.answered_rps, kept.answered_rps
                    ),
                }))
                .verify("the same load with --keepalive off")
        })
    })
}

fn growing(case: &LoadEvidence<'_>, fpm: bool) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| v.is(&["php-fpm"]) == fpm && v.has_pool())?;
    let busy_lines = v.log("seems-busy");
    let seen = |kind: StepKind| {
        case.all
            .step(kind)
            .and_then(|s| s.server(&v.about.server))
            .map(|s| (s.workers_first as f64, s.workers_last as f64))
    };
    let main = (v.seen.workers_first as f64, v.seen.workers_last as f64);
    let (first, last) = seen(StepKind::Starting).unwrap_or(main);
    // Or the pool grows a little in each step, and still does afterwards.
    let goes_on = |kind: StepKind| seen(kind).is_none_or(|(first, last)| last > first);
    let slowly = last > first && goes_on(StepKind::Beyond) && goes_on(StepKind::OtherKeepalive) && {
        let from = seen(StepKind::Few).map_or(first, |(first, _)| first);
        let to = [StepKind::Beyond, StepKind::OtherKeepalive]
            .into_iter()
            .filter_map(seen)
            .map(|(_, last)| last)
            .fold(last, f64::max);
        to >= 2.0 * from && to - from >= 4.0 && v.queue() >= 1.0
    };
    let grows = last >= first * 1.3 && last - first >= 3.0 || slowly;
    (grows || (fpm && busy_lines > 0)).then(|| {
        finding(0.85, "the pool was still growing while the load was on")
            .of(&v)
            .evidence("processes", "workers at the beginning", first, 0)
            .evidence("processes", "workers at the end", last, first * 1.3)
            .evidence("error log", "seems busy", busy_lines, 1)
            .evidence("sock_diag", "connections that waited meanwhile", v.seen.queue_mean, 0)
            .ruled_out("as many workers at the end as at the beginning")
            .fix(
                if fpm { vec![v.fix("pm", json!("static"))] } else { Vec::new() },
                "as many workers from the start as the load needs: StartServers and MinSpareServers (Apache), pm = static or a higher \
                 pm.start_servers (PHP-FPM)",
            )
            .expected(grown(case))
            .verify("the same number of workers before and after")
    })
}

/// Expected gain of a full-size pool from the start: the throughput of the steps after it had grown.
fn grown(case: &LoadEvidence<'_>) -> Option<ExpectedGain> {
    let now = case.main.answered_rps;
    let after = [StepKind::Beyond, StepKind::OtherKeepalive].into_iter().filter_map(|kind| case.all.step(kind));
    let best = after.map(|step| step.answered_rps).fold(now, f64::max);
    (now > 0.0).then(|| ExpectedGain {
        ratio: round((best / now).min(MOST_GROWN)),
        interval: None,
        reason: format!("only while it grows: {now:.1} answers/s meanwhile, {best:.1} in the steps after"),
    })
}

/// Maximum expected gain: a step with other users or without keep-alive proves no more.
const MOST_GROWN: f64 = 3.0;

fn buffering(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| {
        let traced = v.calls("temporary-file");
        v.log("temporary-file") > 0 || traced >= 0.5
    })?;
    let lines = v.log("temporary-file");
    let traced = v.calls("temporary-file");
    Some(
        finding(0.92, "answers or bodies go through temporary files")
            .of(&v)
            .evidence("error log", "buffered to a temporary file", lines, 1)
            .evidence("trace", "calls on temporary files a request", traced, 0.5)
            .fix(Vec::new(), "buffers that hold an answer: proxy_buffers, fastcgi_buffers, client_body_buffer_size; or proxy_max_temp_file_size 0")
            .expected(case.without_cpu(
                [20e-6, 100e-6, 400e-6].map(|each| each * traced.max(case.per_request(lines)).min(1.0)),
                "a temporary file takes some 100 µs of processor time, more where it reaches the disk",
            ))
            .verify("no such line in the log"),
    )
}

fn unbuffered(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (v, n, path) = calls(case, "access-log-write", 0.8, &["nginx", "apache"])?;
    // A write costs some microseconds. It is worth reporting if there are thousands of them and time is short, or if
    // they take much of it.
    let cores = case.main.answered_rps * n * 6e-6;
    let much = cores >= 0.1 * v.seen.cpu_cores.unwrap_or(f64::INFINITY) && case.main.busy(&v.about.cpus) >= 0.8;
    let worth = cores >= 0.02 && (case.cpu_full() || v.seen.hottest_thread_cores >= 0.8 || much);
    worth.then(|| {
        finding(0.8, format!("a write to {path} for each request"))
            .of(&v)
            .evidence("trace", "writes to the access log a request", n, 0.8)
            .evidence("load", "requests a second", case.main.answered_rps, 0)
            .fix(
                v.about
                    .settings
                    .contains_key("access_log_buffer")
                    .then(|| v.fix("access_log_buffer", json!(64)))
                    .into_iter()
                    .collect(),
                "access_log … buffer=64k flush=5s (nginx), BufferedLogs On (Apache)",
            )
            .expected(case.without_cpu([2e-6, 5e-6, 8e-6].map(|each| each * n), "a write takes some microseconds"))
            .verify("writes a request in lastdrop trace")
    })
}

fn delayed_ack(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let alone = case.alone?;
    let plateau = |us: f64| (38_000.0..49_000.0).contains(&us);
    let again = v.moved("RetransSegs");
    let acks = case.per_request(v.moved("DelayedACKs"));
    // A page that takes 40 ms sends its whole answer after them. Here the first write reaches the client or the front
    // at once, and the worker has long gone on to the next request.
    let after = alone.service.p50 - alone.first_byte.p50;
    // A server that computes for that long does not wait for an acknowledgement.
    let computes = v.seen.cpu_cores.unwrap_or(0.0) / case.main.answered_rps.max(1e-9) >= 0.01;
    let at_the_client = alone.first_byte.count > 0 && (30_000.0..49_000.0).contains(&after) && !computes;
    let in_flight = case.in_flight();
    let at_rest = |b: &ServerEvidence<'_>| b.place > v.place && b.has_pool() && b.busy() < 0.3 * in_flight;
    let at_the_front = acks > 0.3 && case.servers().last().is_some_and(at_rest);
    (plateau(alone.response.p50)
        && case.cpu_idle()
        && case.per_request(again) < 0.02
        && (at_the_client || at_the_front))
        .then(|| {
            finding(0.8, "answers wait 40 ms for an acknowledgement between two small writes")
                .of(&v)
                .evidence("load", "median of one user alone, ms", alone.response.p50 / 1e3, 38)
                .evidence("load", "of that, ms after the first byte", after / 1e3, 30)
                .evidence("TcpExt", "delayed acknowledgements a request", acks, 0.3)
                .evidence("trace", "writes to the client a request", v.calls("client-write"), 1.8)
                .ruled_out("segments that are sent again; a server that is at work meanwhile")
                .fix(Vec::new(), "TCP_NODELAY on the server's socket, or one write for head and body")
                .expected(Some(ExpectedGain {
                    ratio: round(
                        alone.response.p50 / (alone.response.p50 - DELAYED_ACK_US).max(0.1 * alone.response.p50),
                    ),
                    interval: None,
                    reason: format!("40 ms of {} of one user alone are the wait", show_us(alone.response.p50)),
                }))
                .verify("the median of one user alone")
        })
}

fn unshared(case: &LoadEvidence<'_>) -> Option<Finding> {
    // Only workers that were forked, and have not executed another program, can share memory with their master.
    let forks = |v: &ServerEvidence<'_>| v.is(&["apache", "php-fpm", "gunicorn", "uwsgi", "puma", "target"]);
    case.servers().into_iter().filter(forks).find_map(|v| {
        let g = case.all.growth.iter().find(|g| g.server == v.about.server)?;
        let written = g.private_bytes - g.resident_bytes.max(0.0);
        let goes_on = written >= 1024.0 && written >= 0.5 * g.private_bytes && g.gained_bytes >= 8e6;
        // All shared pages have been written to already: the worker is as large as the master, and shares next to
        // nothing.
        let inherited = g.master_resident_bytes;
        let is_over = inherited > 0.0
            && g.worker_private_bytes >= 16e6
            && g.worker_private_bytes * g.workers as f64 >= 64e6
            && g.worker_private_bytes >= INHERITED * inherited
            && g.worker_resident_bytes <= 1.3 * inherited;
        // Nothing was ever shared: each worker loaded after the fork what its master could have loaded.
        let never = g.workers >= 3
            && g.worker_private_bytes >= LOADED_EACH
            && g.worker_private_bytes * g.workers as f64 >= LOADED_ALL
            && g.worker_private_bytes >= 0.7 * g.worker_resident_bytes
            && inherited > 0.0
            && g.worker_resident_bytes >= 2.0 * inherited
            && g.resident_bytes < 1024.0;
        let never = never && !v.is(&["php-fpm"]);
        (goes_on || is_over || never).then(|| {
            let title = if never { "each worker has loaded for itself what all of them could share" } else { "pages that workers shared become their own, request by request" };
            let mut said = finding(0.82, title).of(&v);
            if goes_on {
                said = said
                    .evidence("smaps_rollup", "bytes a request that are no longer shared", written, 1024)
                    .evidence("smaps_rollup", "bytes a request by which workers grow", g.resident_bytes, 0)
                    .evidence("smaps_rollup", "MB that all gained", g.gained_bytes / 1e6, 8);
            } else {
                said = said
                    .evidence("smaps_rollup", "MB of its own that a worker has", g.worker_private_bytes / 1e6, INHERITED * inherited / 1e6)
                    .evidence("smaps_rollup", "MB of a worker, shared pages included", g.worker_resident_bytes / 1e6, 0)
                    .evidence("smaps_rollup", "MB of the master that they were forked from", inherited / 1e6, 0);
            }
            said.ruled_out("memory of their own that grows with the process: a leak")
                .fix(Vec::new(), "load code and data before the fork (PerlModule, preload_app, opcache.preload), write to them once there, keep counters elsewhere")
                .expected(spares_memory(format!("{:.1} MB of its own a worker", g.worker_private_bytes / 1e6)))
                .verify("lastdrop size: shared memory of old and of young workers")
        })
    })
}

/// Expected gain of a change that saves memory, but no time.
fn spares_memory(what: impl std::fmt::Display) -> Option<ExpectedGain> {
    let reason = format!("it spares memory ({what}), and no time of a request");
    Some(ExpectedGain { ratio: 1.0, interval: None, reason })
}

fn unused_modules(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (v, tried) = could_do_without(case, "apache")?;
    let title = format!("{} modules are loaded that nothing in the configuration refers to", tried.unused.len());
    let said = not_needed(
        finding(0.8, title).of(&v),
        case,
        tried,
        ["configuration", "modules", "the configuration fails its test"],
    );
    Some(
        said.fix(
            Vec::new(),
            "take their LoadModule lines out (a2dismod, apachectl -t), then try the other pages; each is mapped into every worker",
        )
        .verify("lastdrop size before and after"),
    )
}

fn unused_extensions(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (v, tried) = could_do_without(case, "php-fpm")?;
    let title = format!(
        "{} extensions of PHP are loaded that nothing in its settings or the site's files names",
        tried.unused.len()
    );
    let said = not_needed(
        finding(0.8, title).of(&v),
        case,
        tried,
        ["ini files, the site's files", "extensions", "it complains at its start"],
    );
    let names: Vec<&str> = tried.unused.iter().map(|m| m.name.as_str()).collect();
    let mut lines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (folder, line) in tried.unused.iter().filter_map(|m| m.line.as_deref()?.rsplit_once('/')) {
        lines.entry(folder).or_default().push(line);
    }
    let lines: Vec<String> = lines.iter().map(|(folder, all)| format!("{} in {folder}", all.join(", "))).collect();
    let how = format!(
        "phpdismod -s fpm {} (Debian, Ubuntu), or take out their lines ({}); php-fpm -t, a reload; then try the other pages, since a name \
         that is put together while a page is made is in no file. Another PHP that reads the same ini files loses them, too (php --ini)",
        names.join(" "),
        lines.join("; ")
    );
    Some(said.fix(Vec::new(), how).verify("lastdrop size before and after"))
}

/// Returns the first server of this kind that could do without some modules.
fn could_do_without<'a>(case: &'a LoadEvidence<'a>, kind: &str) -> Option<(ServerEvidence<'a>, &'a ModuleTrial)> {
    // One or two are some kB: not worth reporting, nor a restart.
    let many = |m: &&ModuleTrial| m.unused.len() >= 3;
    let mut of_kind = case.servers().into_iter().filter(|v| v.is(&[kind]));
    of_kind.find_map(|v| Some((v, v.about.modules.as_ref().filter(many)?)))
}

/// Adds what a second instance showed without the unused modules. The array holds where references were searched, what
/// the modules are called, and which failure would contradict the finding.
fn not_needed(
    said: Finding,
    case: &LoadEvidence<'_>,
    tried: &ModuleTrial,
    [source, what, wrong]: [&str; 3],
) -> Finding {
    let kb = |bytes: u64| bytes as f64 / 1024.0;
    let each = tried.unused.iter().map(|m| match m.bytes {
        Some(bytes) => format!("{} ({:.0} kB)", m.name, kb(bytes)),
        None => m.name.clone(),
    });
    let mut said = said.evidence(source, what, each.collect::<Vec<_>>().join(", "), "");
    if let (Some(with), Some(without)) = (tried.worker_bytes, tried.worker_bytes_without) {
        let sizes = format!("{:.0}, {:.0}", kb(with), kb(without));
        said = said.evidence("smaps_rollup", "kB of a worker with and without them", sizes, "");
    }
    let starts = format!("{:.0}, {:.0}", tried.start_s * 1e3, tried.start_without_s * 1e3);
    let url = &case.all.url;
    said = said.expected(spares_memory(match (tried.worker_bytes, tried.worker_bytes_without) {
        (Some(with), Some(without)) => format!("{:.0} kB a worker", kb(with.saturating_sub(without))),
        _ => "as measured above".into(),
    }));
    said = said
        .evidence("second instance", "ms to the first answer with and without them", starts, "")
        .ruled_out(format!("{wrong} without them, or {url} answers otherwise: neither happened"));
    if !tried.needed.is_empty() {
        let needed = tried.needed.join(", ");
        said =
            said.ruled_out(format!("{needed} would be named, too: without it, it does not start or answers otherwise"));
    }
    if !tried.undecided.is_empty() {
        said = said.ruled_out(format!("no time was left to try it without {}", tried.undecided.join(", ")));
    }
    said
}
