//! What costs without being the bound.

use std::collections::BTreeMap;

use lastdrop_model::documents::{ExpectedGain, Finding};
use lastdrop_model::examination::{ExaminationStep, ModuleTrial, StepKind};
use lastdrop_model::units::show_us;
use serde_json::json;

use super::Rule;
use super::advice::behind_closes;
use super::case::{Case, Says, View, finding, round};
use super::databases::is_database;

/// Of what a master has resident a good half is files, which stay shared; a worker that has this much of it for itself has written to
/// the rest.
const INHERITED: f64 = 0.45;

/// What a worker has loaded for itself, and all of them together, bytes.
const LOADED_EACH: f64 = 24e6;
const LOADED_ALL: f64 = 150e6;
/// The shortest time for which Linux holds an acknowledgement back (TCP_DELACK_MIN), µs.
const DELAYED_ACK_US: f64 = 40_000.0;
/// So many calls are no chance.
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
    // Both may be there: an Apache before a PHP-FPM.
    Rule { id: "unused-modules", look: unused_extensions },
];

/// Servers whose traced calls have so many of a sort in each request; with the number and the object.
fn all_calls<'a>(case: &'a Case<'a>, sort: &str, least: f64) -> impl Iterator<Item = (View<'a>, f64, String)> {
    case.servers().into_iter().filter_map(move |v| {
        // One or two requests tell as well where there are many such calls in each.
        let inside = case.inside(&v.about.server).filter(|i| i.requests >= 1.0)?;
        let enough = |n: f64| inside.requests >= 3.0 || n * inside.requests >= ENOUGH_CALLS;
        let n = inside.calls.get(sort).copied().filter(|n| *n >= least && enough(*n))?;
        Some((v, n, inside.objects.get(sort).cloned().unwrap_or_default()))
    })
}

/// The first of them that is of one of these kinds; of any where none is given.
fn calls<'a>(case: &'a Case<'a>, sort: &str, least: f64, kinds: &[&str]) -> Option<(View<'a>, f64, String)> {
    all_calls(case, sort, least).find(|(v, _, _)| kinds.is_empty() || v.is(kinds))
}

fn htaccess(case: &Case<'_>) -> Option<Finding> {
    let (v, n, path) = calls(case, "htaccess", 0.9, &["apache"])?;
    Some(
        finding(0.95, "Apache looks for .htaccess in every folder of the path, for each request")
            .of(&v)
            .seen("trace", "looks a request", n, 0.9)
            .seen("trace", "such as", path, ".htaccess")
            .unless("no look for .htaccess while it was traced")
            .do_this(
                vec![v.fix("AllowOverride", json!("None"))],
                "and what the files say into the configuration, in <Directory>",
            )
            .brings(case.without_cpu(
                [1e-6, 3e-6, 6e-6].map(|each| each * n),
                format!("{n:.0} looks per request, some microseconds each"),
            ))
            .check_by("lastdrop trace --with '<Directory />; AllowOverride None; </Directory>'"),
    )
}

fn database_connects(case: &Case<'_>) -> Option<Finding> {
    // One that listens where no database does by default is known by its program.
    let elsewhere = || all_calls(case, "connect", 0.7).find(|(v, _, peer)| is_database(case, v, peer));
    let (v, n, peer) = calls(case, "database-connect", 0.7, &[]).or_else(elsewhere)?;
    Some(
        finding(0.93, format!("each request opens a connection of its own to the database {peer}"))
            .of(&v)
            .seen("trace", "connects to it a request", n, 0.7)
            .unless("connections that are kept")
            .brings(kept_database_connection(case, n))
            .do_this(Vec::new(), "persistent connections (mysqli 'p:', PDO::ATTR_PERSISTENT, Apache::DBI, CONN_MAX_AGE) or a pooler; no more workers than it has connections")
            .check_by("connects a request in lastdrop trace"),
    )
}

/// Processor time that a connection costs a database, at most: PostgreSQL forks a process for each and checks a password by thousands of
/// hashes (SCRAM), MariaDB takes a thread.
const CONNECT_S: [(&str, f64); 2] = [("postgresql", 20e-3), ("mariadb", 1e-3)];

/// What a kept connection should bring: of the database's time that part which connections take. Of short statements it is most.
fn kept_database_connection(case: &Case<'_>, connects: f64) -> Option<ExpectedGain> {
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

/// Connections that were opened in the server's network, without ours, for each answer: of a step whose clients keep theirs.
fn opened_behind<'a>(case: &'a Case<'a>) -> Option<(View<'a>, f64, String)> {
    let v = case.servers().into_iter().find(|v| v.is(&["nginx", "haproxy", "apache"]))?;
    let peer = v.about.connects.iter().find(|c| !c.starts_with("unix:"))?.clone();
    let kept = case.all.whole_steps().find(|s| s.keepalive && s.answered >= 100 && s.connections * 5 < s.answered)?;
    let opened =
        kept.server(&v.about.server)?.kernel.get("ActiveOpens").copied().unwrap_or(0).saturating_sub(kept.connections);
    let n = opened as f64 / kept.answered as f64;
    // Whoever is behind may connect on, to a database.
    let passes_on =
        case.servers().iter().any(|b| b.place > v.place && b.about.connects.iter().any(|c| !c.starts_with("unix:")));
    (n >= 0.8 && !passes_on).then_some((v, n, peer))
}

fn upstream_connects(case: &Case<'_>) -> Option<Finding> {
    // To one's own FastCGI pool by a path it costs next to nothing.
    // An application that calls somebody once a request has mostly no way to keep the connection; several times it is worth a word.
    let calls_often = |v: &View<'_>, n: f64| v.is(&["nginx", "haproxy", "apache"]) || n >= 3.0;
    let is_dear = |(v, n, peer): &(View<'_>, f64, String)| {
        !is_database(case, v, peer) && (!peer.starts_with("unix:") || v.is(&["haproxy"])) && calls_often(v, *n)
    };
    let traced = all_calls(case, "connect", 0.8).find(is_dear);
    let (v, n, peer) = traced.or_else(|| opened_behind(case).filter(is_dear))?;
    // Where the one behind closes each connection there is nothing to keep.
    let how = behind_closes(case, &v).unwrap_or_else(|| {
        "nginx: keepalive N in the upstream, proxy_http_version 1.1 and an empty Connection header; Apache: no disablereuse, ProxyPass … \
         enablereuse; HAProxy: http-reuse, without http-server-close or httpclose"
            .into()
    });
    let fix = match v.kind() {
        // That is its default.
        "haproxy" if v.setting("http-reuse").is_some_and(|s| s == "never") => vec![v.fix("http-reuse", json!("safe"))],
        _ => Vec::new(),
    };
    Some(
        finding(0.88, format!("{} opens a connection to {peer} for each request", v.about.server))
            .of(&v)
            .seen("trace", "connects a request", n, 0.8)
            .seen("sock_diag", "closed connections (TIME_WAIT)", v.seen.sockets.get("time_wait").copied(), 0)
            .unless("connections to it that are kept")
            .do_this(fix, how)
            .brings(case.without_cpu(
                BEHIND_CONNECT_S.map(|each| each * n),
                "to open and close a connection on one machine takes some 60 µs of processor time at both ends together",
            ))
            .check_by("connects a request in lastdrop trace"),
    )
}

/// Processor time of a connection over loopback: connect, accept, its sockets and their end, at both ends; least, likely and most.
const BEHIND_CONNECT_S: [f64; 3] = [20e-6, 60e-6, 120e-6];

fn keepalive_off(case: &Case<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let knob = ["KeepAlive", "keepalive_timeout"].iter().find(|name| v.about.settings.contains_key(**name));
    let is_off = knob.is_some_and(|name| {
        if *name == "KeepAlive" { !v.about.settings[*name].is_on() } else { v.count(name) == Some(0.0) }
    });
    let asked =
        case.all.whole_steps().filter(|s| matches!(s.kind, StepKind::Main | StepKind::OtherKeepalive | StepKind::Few));
    // As many as there are users are opened anyway, however few are answered.
    let tells =
        |s: &&ExaminationStep| s.keepalive && s.answered >= 20 && (is_off || s.answered >= 3 * u64::from(s.users));
    let step = asked.into_iter().find(tells)?;
    let a_request = step.connections as f64 / step.answered.max(1) as f64;
    // Where it is on, something else closes: answers that are errors, an application, threads that are all busy.
    let is_on = knob.is_some_and(|name| *name == "KeepAlive" && v.about.settings[*name].is_on());
    (a_request >= 0.8 && !is_on).then(|| {
        finding(0.9, "the server closes the connection after each answer, though clients would keep it")
            .of(&v)
            .seen("load", "connections a request with keep-alive on", a_request, 0.8)
            .seen("configuration", knob.map_or("keep-alive", |n| *n), knob.and_then(|n| v.setting(n)).unwrap_or_default(), "on")
            .unless("connections that are reused")
            .do_this(
                knob.map(|name| v.fix(name, if *name == "KeepAlive" { json!("On") } else { json!(15) })).into_iter().collect(),
                "a browser loads a page with six connections instead of one a part; in prefork with a short KeepAliveTimeout only, or it \
                 holds the workers",
            )
            .brings(connection_kept(case, step, a_request))
            .check_by("connections opened against requests in lastdrop run")
    })
}

/// What a kept connection should bring clients: the time that it takes to make one.
fn connection_kept(case: &Case<'_>, step: &ExaminationStep, connections: f64) -> Option<ExpectedGain> {
    let connect = step.connect.mean * connections;
    let all = step.response.mean;
    let ratio = round(1.0 / (1.0 - (connect / all).clamp(0.0, 0.9)));
    let because = format!("to connect takes {} of {} per request", show_us(connect), show_us(all));
    if case.cpu_full() {
        let because = "to open and close a connection takes some 60 µs of processor time at both ends together";
        return case.without_cpu(BEHIND_CONNECT_S.map(|each| each * connections), because);
    }
    (connect > 0.0 && all > 0.0).then_some(ExpectedGain { ratio, interval: None, because })
}

/// Workers that are replaced all the time as soon as clients do not keep their connections: what the other steps show of it.
fn churn_without_keepalive(case: &Case<'_>) -> Option<Finding> {
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
        // Those that live for a millisecond nobody sees.
        let due = closing.connections as f64 / most;
        let born = (seen.born as f64).max(if name == "MaxConnectionsPerChild" { due } else { 0.0 });
        let a_request = born / closing.answered as f64;
        (ratio >= 1.5 && a_request >= 0.05 && a_request >= 3.0 * before).then(|| {
            let to = if v.is(&["apache"]) { 0 } else { 10_000 };
            finding(0.85, format!("workers of {} are replaced all the time for clients that do not keep their connections", v.about.server))
                .of(&v)
                .seen("load", "requests/s with keep-alive", kept.answered_rps, 0)
                .seen("load", "requests/s without", closing.answered_rps, 0)
                .seen("processes", "workers born a request without keep-alive", a_request, 0.05)
                .seen("processes", "workers born a second then", born / seconds, 0)
                .seen("configuration", name, most, 0)
                .unless("the same process ids before and after that step")
                .do_this(
                    vec![v.fix(name, json!(to))],
                    "a worker that leaks can serve thousands of requests before it matters; lastdrop size --fit says how much it grows",
                )
                .brings(Some(ExpectedGain {
                    ratio: round(ratio),
                    interval: Some([1.0, round(ratio)]),
                    because: format!(
                        "without keep-alive {:.1} requests/s, with it {:.1}: new workers take most of the difference",
                        closing.answered_rps, kept.answered_rps
                    ),
                }))
                .check_by("the same load with --keepalive off")
        })
    })
}

fn growing(case: &Case<'_>, fpm: bool) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| v.is(&["php-fpm"]) == fpm && v.has_pool())?;
    let (first, last) = (v.seen.workers_first as f64, v.seen.workers_last as f64);
    let busy_lines = v.log("seems-busy");
    // Or in each step a little, and still afterwards.
    let seen = |kind: StepKind| {
        case.all
            .step(kind)
            .and_then(|s| s.server(&v.about.server))
            .map(|s| (s.workers_first as f64, s.workers_last as f64))
    };
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
            .seen("processes", "workers at the beginning", first, 0)
            .seen("processes", "workers at the end", last, first * 1.3)
            .seen("error log", "seems busy", busy_lines, 1)
            .seen("sock_diag", "connections that waited meanwhile", v.seen.queue_mean, 0)
            .unless("as many workers at the end as at the beginning")
            .do_this(
                if fpm { vec![v.fix("pm", json!("static"))] } else { Vec::new() },
                "as many workers from the start as the load needs: StartServers and MinSpareServers (Apache), pm = static or a higher \
                 pm.start_servers (PHP-FPM)",
            )
            .brings(grown(case))
            .check_by("the same number of workers before and after")
    })
}

/// What a pool of its full size should bring from the start: what it answered in the steps that came after it had grown.
fn grown(case: &Case<'_>) -> Option<ExpectedGain> {
    let now = case.main.answered_rps;
    let after = [StepKind::Beyond, StepKind::OtherKeepalive].into_iter().filter_map(|kind| case.all.step(kind));
    let best = after.map(|step| step.answered_rps).fold(now, f64::max);
    (now > 0.0).then(|| ExpectedGain {
        ratio: round((best / now).min(MOST_GROWN)),
        interval: None,
        because: format!("only while it grows: {now:.1} answers/s meanwhile, {best:.1} in the steps after"),
    })
}

/// A step with other users or without keep-alive tells no more of it.
const MOST_GROWN: f64 = 3.0;

fn buffering(case: &Case<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| {
        let traced = v.calls("temporary-file");
        v.log("temporary-file") > 0 || traced >= 0.5
    })?;
    let lines = v.log("temporary-file");
    let traced = v.calls("temporary-file");
    Some(
        finding(0.92, "answers or bodies go through temporary files")
            .of(&v)
            .seen("error log", "buffered to a temporary file", lines, 1)
            .seen("trace", "calls on temporary files a request", traced, 0.5)
            .do_this(Vec::new(), "buffers that hold an answer: proxy_buffers, fastcgi_buffers, client_body_buffer_size; or proxy_max_temp_file_size 0")
            .brings(case.without_cpu(
                [20e-6, 100e-6, 400e-6].map(|each| each * traced.max(case.per_request(lines)).min(1.0)),
                "a temporary file takes some 100 µs of processor time, more where it reaches the disk",
            ))
            .check_by("no such line in the log"),
    )
}

fn unbuffered(case: &Case<'_>) -> Option<Finding> {
    let (v, n, path) = calls(case, "access-log-write", 0.8, &["nginx", "apache"])?;
    // A write costs some microseconds: worth a word where there are thousands of them and time is short, or much of it.
    let cores = case.main.answered_rps * n * 6e-6;
    let much = cores >= 0.1 * v.seen.cpu_cores.unwrap_or(f64::INFINITY) && case.main.busy(&v.about.cpus) >= 0.8;
    let worth = cores >= 0.02 && (case.cpu_full() || v.seen.hottest_thread_cores >= 0.8 || much);
    worth.then(|| {
        finding(0.8, format!("a write to {path} for each request"))
            .of(&v)
            .seen("trace", "writes to the access log a request", n, 0.8)
            .seen("load", "requests a second", case.main.answered_rps, 0)
            .do_this(
                v.about
                    .settings
                    .contains_key("access_log_buffer")
                    .then(|| v.fix("access_log_buffer", json!(64)))
                    .into_iter()
                    .collect(),
                "access_log … buffer=64k flush=5s (nginx), BufferedLogs On (Apache)",
            )
            .brings(case.without_cpu([2e-6, 5e-6, 8e-6].map(|each| each * n), "a write takes some microseconds"))
            .check_by("writes a request in lastdrop trace")
    })
}

fn delayed_ack(case: &Case<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let alone = case.alone?;
    let plateau = |us: f64| (38_000.0..49_000.0).contains(&us);
    let again = v.moved("RetransSegs");
    let acks = case.per_request(v.moved("DelayedACKs"));
    // A page that takes 40 ms has all of its answer after them: the first write is with the client at once, or else with the front,
    // while the worker has long gone on to wait for the next.
    let after = alone.service.p50 - alone.first_byte.p50;
    // Whoever computes for that long has no need of an acknowledgement.
    let computes = v.seen.cpu_cores.unwrap_or(0.0) / case.main.answered_rps.max(1e-9) >= 0.01;
    let at_the_client = alone.first_byte.count > 0 && (30_000.0..49_000.0).contains(&after) && !computes;
    let in_flight = case.in_flight();
    let at_rest = |b: &View<'_>| b.place > v.place && b.has_pool() && b.busy() < 0.3 * in_flight;
    let at_the_front = acks > 0.3 && case.servers().last().is_some_and(at_rest);
    (plateau(alone.response.p50)
        && case.cpu_idle()
        && case.per_request(again) < 0.02
        && (at_the_client || at_the_front))
        .then(|| {
            finding(0.8, "answers wait 40 ms for an acknowledgement between two small writes")
                .of(&v)
                .seen("load", "median of one user alone, ms", alone.response.p50 / 1e3, 38)
                .seen("load", "of that, ms after the first byte", after / 1e3, 30)
                .seen("TcpExt", "delayed acknowledgements a request", acks, 0.3)
                .seen("trace", "writes to the client a request", v.calls("client-write"), 1.8)
                .unless("segments that are sent again; a server that is at work meanwhile")
                .do_this(Vec::new(), "TCP_NODELAY on the server's socket, or one write for head and body")
                .brings(Some(ExpectedGain {
                    ratio: round(
                        alone.response.p50 / (alone.response.p50 - DELAYED_ACK_US).max(0.1 * alone.response.p50),
                    ),
                    interval: None,
                    because: format!("40 ms of {} of one user alone are the wait", show_us(alone.response.p50)),
                }))
                .check_by("the median of one user alone")
        })
}

fn unshared(case: &Case<'_>) -> Option<Finding> {
    // Workers that were forked and have not executed another program: only they have anything to share with their master.
    let forks = |v: &View<'_>| v.is(&["apache", "php-fpm", "gunicorn", "uwsgi", "puma", "target"]);
    case.servers().into_iter().filter(forks).find_map(|v| {
        let g = case.all.growth.iter().find(|g| g.server == v.about.server)?;
        let written = g.private_bytes - g.resident_bytes.max(0.0);
        let goes_on = written >= 1024.0 && written >= 0.5 * g.private_bytes && g.gained_bytes >= 8e6;
        // All that was shared has been written to already: as large as the master, and next to nothing of it is shared.
        let inherited = g.master_resident_bytes;
        let is_over = inherited > 0.0
            && g.worker_private_bytes >= 16e6
            && g.worker_private_bytes * g.workers as f64 >= 64e6
            && g.worker_private_bytes >= INHERITED * inherited
            && g.worker_resident_bytes <= 1.3 * inherited;
        // Nothing was ever shared: each has loaded for itself, after it was forked, what a master could have had.
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
                    .seen("smaps_rollup", "bytes a request that are no longer shared", written, 1024)
                    .seen("smaps_rollup", "bytes a request by which workers grow", g.resident_bytes, 0)
                    .seen("smaps_rollup", "MB that all gained", g.gained_bytes / 1e6, 8);
            } else {
                said = said
                    .seen("smaps_rollup", "MB of its own that a worker has", g.worker_private_bytes / 1e6, INHERITED * inherited / 1e6)
                    .seen("smaps_rollup", "MB of a worker, shared pages included", g.worker_resident_bytes / 1e6, 0)
                    .seen("smaps_rollup", "MB of the master that they were forked from", inherited / 1e6, 0);
            }
            said.unless("memory of their own that grows with the process: a leak")
                .do_this(Vec::new(), "load code and data before the fork (PerlModule, preload_app, opcache.preload), write to them once there, keep counters elsewhere")
                .brings(spares_memory(format!("{:.1} MB of its own a worker", g.worker_private_bytes / 1e6)))
                .check_by("lastdrop size: shared memory of old and of young workers")
        })
    })
}

/// What takes memory and no time.
fn spares_memory(what: impl std::fmt::Display) -> Option<ExpectedGain> {
    let because = format!("it spares memory ({what}), and no time of a request");
    Some(ExpectedGain { ratio: 1.0, interval: None, because })
}

fn unused_modules(case: &Case<'_>) -> Option<Finding> {
    let (v, tried) = could_do_without(case, "apache")?;
    let title = format!("{} modules are loaded that nothing in the configuration refers to", tried.unused.len());
    let said = not_needed(
        finding(0.8, title).of(&v),
        case,
        tried,
        ["configuration", "modules", "the configuration fails its test"],
    );
    Some(
        said.do_this(
            Vec::new(),
            "take their LoadModule lines out (a2dismod, apachectl -t), then try the other pages; each is mapped into every worker",
        )
        .check_by("lastdrop size before and after"),
    )
}

fn unused_extensions(case: &Case<'_>) -> Option<Finding> {
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
    Some(said.do_this(Vec::new(), how).check_by("lastdrop size before and after"))
}

/// The first server of a kind that could do without some modules.
fn could_do_without<'a>(case: &'a Case<'a>, kind: &str) -> Option<(View<'a>, &'a ModuleTrial)> {
    // One or two are some kB: not worth a word, nor a restart.
    let many = |m: &&ModuleTrial| m.unused.len() >= 3;
    let mut of_kind = case.servers().into_iter().filter(|v| v.is(&[kind]));
    of_kind.find_map(|v| Some((v, v.about.modules.as_ref().filter(many)?)))
}

/// What a second instance showed without what nothing refers to: where that was looked for, what it is, and what would speak against it.
fn not_needed(said: Finding, case: &Case<'_>, tried: &ModuleTrial, [source, what, wrong]: [&str; 3]) -> Finding {
    let kb = |bytes: u64| bytes as f64 / 1024.0;
    let each = tried.unused.iter().map(|m| match m.bytes {
        Some(bytes) => format!("{} ({:.0} kB)", m.name, kb(bytes)),
        None => m.name.clone(),
    });
    let mut said = said.seen(source, what, each.collect::<Vec<_>>().join(", "), "");
    if let (Some(with), Some(without)) = (tried.worker_bytes, tried.worker_bytes_without) {
        let sizes = format!("{:.0}, {:.0}", kb(with), kb(without));
        said = said.seen("smaps_rollup", "kB of a worker with and without them", sizes, "");
    }
    let starts = format!("{:.0}, {:.0}", tried.start_s * 1e3, tried.start_without_s * 1e3);
    let url = &case.all.url;
    said = said.brings(spares_memory(match (tried.worker_bytes, tried.worker_bytes_without) {
        (Some(with), Some(without)) => format!("{:.0} kB a worker", kb(with.saturating_sub(without))),
        _ => "as measured above".into(),
    }));
    said = said
        .seen("second instance", "ms to the first answer with and without them", starts, "")
        .unless(format!("{wrong} without them, or {url} answers otherwise: neither happened"));
    if !tried.needed.is_empty() {
        let needed = tried.needed.join(", ");
        said = said.unless(format!("{needed} would be named, too: without it, it does not start or answers otherwise"));
    }
    if !tried.undecided.is_empty() {
        said = said.unless(format!("no time was left to try it without {}", tried.undecided.join(", ")));
    }
    said
}
