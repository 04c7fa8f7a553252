//! Rules about risks: what will cause trouble later.

use lastdrop_analyze::memory_model::is_falling;
use lastdrop_model::documents::Finding;

use super::Rule;
use super::clients;
use super::evidence::{FindingBuilder, LoadEvidence, finding};

pub(super) const ALL: &[Rule] = &[
    Rule { id: "held-listener", look: held },
    Rule { id: "zombie-children", look: zombies },
    Rule { id: "time-wait-overflow", look: time_wait },
    Rule { id: "memory-overcommit", look: overcommit },
    Rule { id: "memory-leak", look: leak },
    Rule { id: "greedy-client", look: greedy },
    Rule { id: "obsolete-setting", look: obsolete },
    clients::TURNED_AWAY,
];

fn held(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| !v.about.foreign_listeners.is_empty())?;
    Some(
        finding(0.95, format!("a process that is not {} holds its listening socket", v.about.server))
            .of(&v)
            .evidence("/proc/PID/fd", "process", v.about.foreign_listeners.join(", "), "none")
            .ruled_out("only the server's own processes have it open")
            .fix(Vec::new(), "end it, or have it close its descriptors (close-on-exec) before it is started from the server; a restart fails with EADDRINUSE until then")
            .verify("ss -ltnp shows the server alone"),
    )
}

fn zombies(case: &LoadEvidence<'_>) -> Option<Finding> {
    let steps = case.all.whole_steps().filter(|s| !s.servers.is_empty());
    let most = steps.flat_map(|s| s.servers.iter().map(|v| (v.zombies, v.server.clone()))).collect::<Vec<_>>();
    let name = most.iter().max_by_key(|(n, _)| *n)?.1.clone();
    // Zombies at the end of two steps are not about to be reaped.
    let lasting = most.iter().filter(|(n, server)| *n >= 2 && *server == name).count();
    let v = case.servers().into_iter().find(|v| v.about.server == name)?;
    (lasting >= 2 || v.seen.zombies >= 5).then(|| {
        finding(0.9, "children have ended and nobody has waited for them")
            .of(&v)
            .evidence("/proc/PID/stat", "zombies", v.seen.zombies, 2)
            .ruled_out("none of them at the next look")
            .fix(
                Vec::new(),
                "the parent has to wait for its children (SIGCHLD); in a container a PID 1 that does (--init)",
            )
            .verify("no Z in ps")
    })
}

fn time_wait(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let n = v.moved("TCPTimeWaitOverflow");
    (n > 0).then(|| {
        finding(0.9, "the table of closed connections is full")
            .evidence("TcpExt", "TCPTimeWaitOverflow", n, 1)
            .ruled_out("thousands in TIME_WAIT alone are no fault")
            .fix(Vec::new(), "raise net.ipv4.tcp_max_tw_buckets to what the kernel has by default; it is memory only")
            .verify("TCPTimeWaitOverflow stands still")
    })
}

fn overcommit(case: &LoadEvidence<'_>) -> Option<Finding> {
    let memory = case.all.memory_bytes as f64;
    case.servers().into_iter().find_map(|v| {
        let real = v.seen.real_memory_bytes? as f64;
        let workers = v.seen.workers_most as f64;
        if workers < 2.0 || !v.one_thread_each() {
            return None;
        }
        // Shared memory exists once, however many workers there are. A control group may have less memory than the
        // machine.
        let memory = v.seen.memory_limit_bytes.map_or(memory, |limit| memory.min(limit as f64));
        let each = v.seen.private_bytes.map_or(real, |bytes| bytes as f64) / workers;
        let whole = real + each * (v.size() - workers).max(0.0);
        (whole > 0.9 * memory && v.size() > workers).then(|| {
            finding(0.85, "the pool at its limit would not fit into memory")
                .of(&v)
                .evidence("configuration", v.about.pool.as_deref().unwrap_or("workers"), v.size(), 0)
                .evidence("smaps_rollup", "MB a worker", each / 1048576.0, 0)
                .evidence("model", "MB of the whole pool", whole / 1048576.0, 0.9 * memory / 1048576.0)
                .fix(
                    v.more_workers((workers + (0.8 * memory - real) / each.max(1.0)).floor().max(1.0)),
                    "lastdrop size says how many fit",
                )
                .verify("lastdrop size")
        })
    })
}

/// Minimum growth of a leaking worker per request, in every step; and of all workers in total.
const LEAK_BYTES: f64 = 1024.0;
const LEAKED_BYTES: f64 = 4_000_000.0;
/// A garbage-collected heap grows by more than this before a collection, and not evenly in each step.
const UNCOLLECTED_BYTES: f64 = 16_000_000.0;
const EVENLY: f64 = 0.3;

fn leak(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let g = case.all.growth.iter().find(|g| g.server == v.about.server)?;
        // V8 and Go collect garbage; an unknown program may.
        let collects = v.is_node() || v.is(&["caddy", "pid"]);
        let enough = if collects { UNCOLLECTED_BYTES } else { LEAKED_BYTES };
        let evenly = !collects || g.least_private_bytes >= EVENLY * g.private_bytes;
        let grows = g.least_private_bytes >= LEAK_BYTES && g.gained_bytes >= enough && evenly;
        // Writing to shared pages makes them private, but the process does not grow.
        let own = g.resident_bytes >= 0.6 * g.private_bytes;
        // Growth that slows down from step to step ends by itself.
        let goes_on = !is_falling(&g.steps_private_bytes);
        (grows && own && goes_on).then(|| {
            let fix = v.recycling().filter(|(_, most)| *most == 0.0).map(|(name, _)| {
                let requests = (64e6 / g.private_bytes).clamp(500.0, 100_000.0);
                v.fix(name, ((requests / 100.0).round() as i64 * 100).into())
            });
            finding(0.88, "workers grow with each request")
                .of(&v)
                .evidence("smaps_rollup", "bytes of its own that a worker gains a request", g.private_bytes, LEAK_BYTES)
                .evidence("smaps_rollup", "the least of the steps", g.least_private_bytes, LEAK_BYTES)
                .evidence("smaps_rollup", "MB that all gained", g.gained_bytes / 1e6, enough / 1e6)
                .ruled_out("growth in the first step only, or of pages that were shared before")
                .fix(fix.into_iter().collect(), "find what is kept from request to request; until then replace workers after some thousand requests (lastdrop guard does it by size)")
                .verify("lastdrop size --fit")
        })
    })
}

fn greedy(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let (address, share) = v.seen.top_client.clone().filter(|(_, share)| *share >= 0.5)?;
        // Workers or connection slots that one client holds count; a few connections are not greed.
        let most = v.seen.other_clients * share;
        let room = if v.has_pool() { v.size() } else { v.count("worker_connections").unwrap_or(512.0) };
        // An idle connection holds nothing in an event loop.
        if v.has_pool() && v.busy() < 0.5 * v.size() {
            return None;
        }
        let least = if v.has_pool() { room.min(f64::from(case.main.users).max(10.0)) } else { room };
        if most < 3.0 || most < 0.4 * least {
            return None;
        }
        // Users behind one address who keep idle connections take only the workers that hold these.
        if v.has_pool() && v.held_by_idle() >= 0.5 * most {
            return None;
        }
        let with = match v.kind() {
            "nginx" => "limit_conn, limit_req",
            "apache" => "QS_SrvMaxConnPerIP (mod_qos), DOSSiteCount (mod_evasive)",
            "haproxy" => "stick-table with http-request deny",
            "lighttpd" => "evasive.max-conns-per-ip (mod_evasive)",
            _ => "a limit in the front",
        };
        Some(
            finding(0.7, format!("{address} holds most of the connections"))
                .of(&v)
                .evidence("sock_diag", "share of the connections that are not ours", share, 0.5)
                .evidence("sock_diag", "connections that it holds", most, 3)
                .ruled_out("many clients behind one proxy (X-Forwarded-For)")
                .fix(Vec::new(), format!("if it is no proxy of yours (whose clients are told apart by X-Forwarded-For: RemoteIPHeader, real_ip): throttle it by {with}"))
                .verify("its share of the connections"),
        )
    })
}

/// Finds settings from advice that is outdated, or was never true.
fn obsolete(case: &LoadEvidence<'_>) -> Option<Finding> {
    let value = |name: &str| case.all.sysctls.get(name).cloned();
    let mut found: Vec<(String, String, &str)> = Vec::new();
    if let Some(v) = value("net.ipv4.tcp_tw_recycle").filter(|v| v != "0") {
        found.push(("net.ipv4.tcp_tw_recycle".into(), v, "broke clients behind NAT; gone since Linux 4.12"));
    }
    if let Some(v) = value("net.ipv4.tcp_fin_timeout").filter(|v| v.parse::<u64>().is_ok_and(|n| n < 60)) {
        found.push((
            "net.ipv4.tcp_fin_timeout".into(),
            v,
            "does nothing for TIME_WAIT, which lasts 60 s whatever it says",
        ));
    }
    if let Some(v) = value("net.ipv4.tcp_timestamps").filter(|v| v == "0") {
        found.push((
            "net.ipv4.tcp_timestamps".into(),
            v,
            "without timestamps ports cannot be reused and sequence numbers wrap; no gain",
        ));
    }
    if let Some(v) = value("net.ipv4.tcp_max_tw_buckets").filter(|v| v.parse::<u64>().is_ok_and(|n| n < 5000)) {
        found.push(("net.ipv4.tcp_max_tw_buckets".into(), v, "kills closed connections early"));
    }
    if let Some(v) = value("net.ipv4.tcp_syncookies").filter(|v| v == "0") {
        found.push(("net.ipv4.tcp_syncookies".into(), v, "leaves the server open to a flood of SYNs; no gain"));
    }
    if let Some(v) = value("net.ipv4.tcp_low_latency").filter(|v| v != "0") {
        found.push(("net.ipv4.tcp_low_latency".into(), v, "does nothing since Linux 4.14"));
    }
    for server in &case.all.servers {
        for (old, new) in [
            ("MaxClients", "MaxRequestWorkers since Apache 2.4"),
            ("MaxRequestsPerChild", "MaxConnectionsPerChild since Apache 2.4"),
        ] {
            if let Some(at) = server.directives.get(old) {
                found.push((format!("{} {old}", server.server), at.clone(), new));
            }
        }
    }
    let (first, _, _) = found.first()?;
    let mut finding = finding(0.9, format!("{first}: old advice, no longer true"));
    for (name, now, why) in &found {
        let source = if name.starts_with("net.") { "sysctl" } else { "configuration" };
        finding = finding.evidence(source, name, now.clone(), *why);
    }
    let all: Vec<String> = found.iter().map(|(name, now, why)| format!("{name} = {now}: {why}")).collect();
    Some(
        finding.fix(Vec::new(), format!("take out {}", all.join("; "))).verify("the setting is the kernel's own again"),
    )
}
