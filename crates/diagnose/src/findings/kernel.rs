//! What the kernel refuses, takes away or ends, and our own limits.

use lastdrop_model::documents::Finding;

use super::Rule;
use super::case::{Case, RETRANSMISSION_US, SENT_AGAIN, Says, finding};

pub(super) const OURSELVES: &[Rule] = &[
    Rule { id: "port-exhaustion", look: port_exhaustion },
    Rule { id: "generator-saturated", look: generator_saturated },
];
pub(super) const REFUSED: &[Rule] = &[
    Rule { id: "conntrack-full", look: conntrack_full },
    Rule { id: "nginx-connections-exhausted", look: nginx_connections },
    Rule { id: "fd-limit", look: fd_limit },
    Rule { id: "tasks-limit", look: tasks_limit },
    Rule { id: "accept-queue-overflow", look: accept_queue },
];
pub(super) const DEATHS: &[Rule] = &[
    Rule { id: "oom-kill", look: oom_kill },
    Rule { id: "worker-timeout", look: worker_timeout },
    Rule { id: "worker-crash", look: worker_crash },
];
pub(super) const TAKEN_AWAY: &[Rule] =
    &[Rule { id: "memory-pressure", look: memory_pressure }, Rule { id: "cpu-throttled", look: cpu_throttled }];
/// Most answers are fast, and some wait for a segment that was lost: the clients are not slow.
pub(super) const LOST: &[Rule] = &[Rule { id: "retransmits", look: |c| retransmits(c).filter(|_| c.few_wait_long()) }];
pub(super) const NETWORK: &[Rule] =
    &[Rule { id: "softirq-one-core", look: softirq }, Rule { id: "retransmits", look: retransmits }];

/// A generator that may not run for this share of the time is what it measures.
const HELD_BACK: f64 = 0.2;

/// Counters of these minutes that need nothing else to be believed.
pub(super) const CERTAIN: &[Rule] = &[
    Rule { id: "conntrack-full", look: conntrack_full },
    Rule { id: "tasks-limit", look: tasks_limit },
    Rule { id: "oom-kill", look: oom_kill },
    Rule { id: "memory-pressure", look: memory_pressure },
    Rule { id: "cpu-throttled", look: cpu_throttled },
];

fn generator_saturated(case: &Case<'_>) -> Option<Finding> {
    let g = &case.main.generator;
    let throttled = g.throttled_s.unwrap_or(0.0) / case.main.duration_s.max(1e-3);
    // Whoever is turned away at once asks again at once: that keeps us busy, and is the server's doing.
    let is_turned_away = case.main.unanswered() > case.main.answered;
    let by_cpu = (g.saturated || throttled >= HELD_BACK)
        && !is_turned_away
        && !case.servers().iter().any(|v| v.is_full() && v.has_pool())
        && !case.cpu_full();
    (by_cpu || g.no_descriptors > 0).then(|| {
        finding(0.9, "the load generator itself is the limit, not the server")
            .seen("generator", "cores used by it", g.cores, if throttled >= HELD_BACK { 0.0 } else { 1.0 })
            .seen("cpu.stat", "share of the time for which its control group was throttled", throttled, HELD_BACK)
            .seen("generator", "requests without a descriptor", g.no_descriptors, 1)
            .unless("the server's processors have time left")
            .do_this(
                Vec::new(),
                "more threads (-t), fewer users, another machine for the load; more of a processor for its control group (cpu.max, cpu.cfs_quota_us); \
                 ulimit -n where descriptors lack",
            )
            .check_by("run again: the report's validity says whether the generator was at its limit")
    })
}

fn port_exhaustion(case: &Case<'_>) -> Option<Finding> {
    let own = case.main.generator.no_ports;
    if own > 0 {
        return Some(
            finding(0.95, "no local port is free for new connections on the side of the load")
                .seen("connect()", "EADDRNOTAVAIL", own, 1)
                .do_this(
                    Vec::new(),
                    "keep connections (--keepalive on), or load from several addresses; real clients have ports of their own: \
                     this is no limit of the server",
                )
                .check_by("run again with --keepalive on"),
        );
    }
    case.servers().into_iter().find_map(|v| {
        let refused = v.log("no-ports");
        let (held, all) = (v.seen.ports_held.unwrap_or(0), v.seen.local_ports.unwrap_or(u64::MAX));
        let full = held as f64 >= 0.9 * all as f64 && case.main.share_of_status(|s| s.starts_with('5')) > 0.01;
        (refused > 0 || full).then(|| {
            finding(
                0.9,
                format!("{} has no local port left for connections to {}", v.about.server, v.seen.ports_held_to),
            )
            .of(&v)
            .seen("error log", "Cannot assign requested address", refused, 1)
            .seen(
                "sock_diag",
                "closed connections that hold a port (TIME_WAIT) to one address",
                held,
                (0.9 * all as f64) as u64,
            )
            .seen("ip_local_port_range", "ports", all, 0)
            .unless("few ports in TIME_WAIT to that address")
            .do_this(
                Vec::new(),
                "keep connections to what is behind (upstream keepalive); a wider net.ipv4.ip_local_port_range or \
                     net.ipv4.tcp_tw_reuse=1 only put it off",
            )
            .check_by("connections in TIME_WAIT fall, no more 'Cannot assign requested address'")
        })
    })
}

fn conntrack_full(case: &Case<'_>) -> Option<Finding> {
    let told = case.main.kernel_log.iter().find(|l| l.contains("conntrack") && l.contains("table full")).cloned();
    case.servers().into_iter().find_map(|v| {
        let (n, limit) = (v.seen.conntrack?, v.seen.conntrack_limit.filter(|l| *l > 0)?);
        let dropped = ["conntrack_drop", "conntrack_early_drop", "conntrack_insert_failed"];
        let dropped: u64 = dropped.iter().map(|name| v.moved(name)).sum();
        (n as f64 >= 0.98 * limit as f64 && (dropped > 0 || told.is_some())).then(|| {
            finding(0.95, "the kernel's connection table is full: packets of new connections are dropped")
                .of(&v)
                .seen("nf_conntrack_count", "entries", n, limit)
                .seen("nf_conntrack", "dropped", dropped, 1)
                .seen("kernel log", "line", told.clone().unwrap_or_default(), "nf_conntrack: table full")
                .unless("entries well below the limit")
                .do_this(Vec::new(), "raise net.netfilter.nf_conntrack_max (and hashsize), shorten its timeouts, or leave web traffic out of tracking (notrack)")
                .check_by("no more drops in `conntrack -S`")
        })
    })
}

fn nginx_connections(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("worker-connections");
        (lines > 0).then(|| {
            let now = v.count("worker_connections").unwrap_or(512.0);
            finding(0.97, "nginx closes connections: worker_connections are used up")
                .of(&v)
                .seen("error log", "worker_connections are not enough", lines, 1)
                .seen("configuration", "worker_connections", now, 0)
                .seen("load", "requests without an answer", case.main.unanswered(), 1)
                .unless("no such line while the load was on; accepts equal handled")
                .do_this(
                    vec![v.fix("worker_connections", (now as u64 * 8).max(1024).into())],
                    "a proxied request takes two connections; worker_rlimit_nofile has to allow them",
                )
                .brings(case.bound(None))
                .check_by("no more of these lines; accepts = handled in stub_status")
        })
    })
}

fn fd_limit(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("descriptors");
        let (fds, limit) = (v.seen.fds.unwrap_or(0), v.seen.fds_limit.unwrap_or(u64::MAX));
        let goes_without = case.main.unanswered() > 0 || case.errors() || v.queue() >= 1.0;
        let at_limit = fds.saturating_add(2) >= limit && goes_without;
        (lines > 0 || at_limit).then(|| {
            finding(if lines > 0 { 0.97 } else { 0.8 }, format!("{} has no descriptors left", v.about.server))
                .of(&v)
                .seen("error log", "Too many open files", lines, 1)
                .seen("/proc/PID/fd", "open files of the worker closest to its limit", fds, limit)
                .unless("open files far below the limit")
                .do_this(
                    if v.is(&["nginx"]) { vec![v.fix("worker_rlimit_nofile", 65_536.into())] } else { Vec::new() },
                    "raise the soft limit where the server is started: LimitNOFILE= of its unit (limits.conf does not count for \
                     services), worker_rlimit_nofile in nginx, rlimit_files in PHP-FPM",
                )
                .brings(case.bound(None))
                .check_by("`Max open files` of a worker in /proc/PID/limits; no more errno 24")
        })
    })
}

fn tasks_limit(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let (refused, lines) = (v.seen.pids_refused, v.log("fork-failed"));
        (refused > 0 || lines > 0).then(|| {
            finding(0.95, "no more processes or threads may be made")
                .of(&v)
                .seen("pids.events", "times that one was refused", refused, 1)
                .seen("error log", "fork failed", lines, 1)
                .unless("pids.events has not moved")
                .do_this(
                    Vec::new(),
                    "raise TasksMax= of the unit (pids.max of its control group), LimitNPROC=, or kernel.pid_max",
                )
                .check_by("pids.events stands still under the same load")
        })
    })
}

fn accept_queue(case: &Case<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let overflows = v.moved("ListenOverflows");
    if overflows < 5 || case.per_second(overflows) < 0.5 {
        return None;
    }
    // Another one's of the same network: its own never had anybody in it.
    let is_its =
        case.servers().iter().skip(1).all(|b| b.seen.queue_most.unwrap_or(0) < b.seen.queue_limit.unwrap_or(u64::MAX))
            || v.queue() >= 0.5;
    if !is_its {
        return None;
    }
    // A pool that is full fills every queue, however long.
    let workers_busy = v.has_pool() && v.busy() >= 0.8 * v.size();
    if workers_busy || case.cpu_full() {
        return None;
    }
    let limit = v.seen.queue_limit.unwrap_or(0);
    let knob = match v.kind() {
        "apache" => Some("ListenBackLog"),
        "nginx" | "gunicorn" => Some("backlog"),
        "php-fpm" => Some("listen.backlog"),
        "uwsgi" => Some("listen"),
        "lighttpd" => Some("server.listen-backlog"),
        _ => None,
    };
    let connect = case.main.connect;
    Some(
        finding(0.9, "connections are dropped: the listen queue is too short for how they come")
            .of(&v)
            .seen("TcpExt", "ListenOverflows", overflows, 5)
            .seen("sock_diag", "limit of the listen queue", limit, 0)
            .seen("load", "longest connect, ms (1, 3, 7 s are tries again)", connect.max / 1e3, 1000)
            .seen("workers", "share at work", v.busy() / v.size().max(1.0), 0.8)
            .unless("all workers at work: then the queue is full because of them")
            .do_this(
                knob.map(|name| v.fix(name, (limit * 8).clamp(511, 4096).into())).into_iter().collect(),
                "the smaller of the server's backlog and net.core.somaxconn counts: raise both; the server has to listen anew",
            )
            .brings(case.bound(None))
            .check_by("ListenOverflows stands still (nstat -az TcpExtListenOverflows)"),
    )
}

fn oom_kill(case: &Case<'_>) -> Option<Finding> {
    let host = case.main.oom_kills;
    case.servers().into_iter().find_map(|v| {
        let (group, lines) = (v.seen.group_oom_kills, v.log("killed"));
        // The counter is the whole machine's: somebody else's process may have been killed.
        (group > 0 || (host > 0 && lines > 0)).then(|| {
            finding(0.95, "the kernel kills workers for lack of memory")
                .of(&v)
                .seen("memory.events, vmstat", "oom_kill", group.max(host), 1)
                .seen("error log", v.line("killed"), lines, 1)
                .unless("oom_kill has not moved: then somebody else sent the signal")
                .do_this(
                    Vec::new(),
                    format!(
                        "fewer workers ({}), or more memory for the group; lastdrop size says how many fit",
                        v.about.pool.clone().unwrap_or_default()
                    ),
                )
                .check_by("oom_kill stands still under the same load")
        })
    })
}

fn worker_timeout(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("worker-timeout");
        (lines > 0).then(|| {
            finding(0.9, "the master ends workers whose request takes too long")
                .of(&v)
                .seen("error log", v.line("worker-timeout"), lines, 1)
                .seen("load", "answers of one user alone, ms", case.alone.map_or(0.0, |s| s.response.mean / 1e3), 0)
                .unless("no such line; oom_kill has not moved")
                .do_this(Vec::new(), "find out why the request takes so long (lastdrop trace); only then raise the limit (timeout, request_terminate_timeout, harakiri)")
                .check_by("no more of these lines")
        })
    })
}

/// What the kernel says of a process that it ends for what it did.
const FAULTS: &[&str] = &["segfault at", "general protection fault", "trap invalid opcode", "trap divide error"];

fn worker_crash(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        // Where a log goes to nobody knows the kernel tells, by the first letters of the process's name.
        let programs = if v.is(&["apache"]) { vec!["apache", "httpd"] } else { vec![v.kind()] };
        let is_its = |line: &&String| programs.iter().any(|p| line.starts_with(p)) && FAULTS.iter().any(|f| line.contains(f));
        let faults: Vec<&String> = case.main.kernel_log.iter().filter(is_its).collect();
        let lines = v.log("crash");
        // A server that writes nothing about it: others take the places of workers whose requests have no answer, and nothing recycles them.
        let broken = ["closed", "reset"].iter().filter_map(|what| case.main.failed.get(*what)).sum::<u64>();
        let recycles = ["MaxConnectionsPerChild", "pm.max_requests", "max_requests", "max-requests"].iter().any(|name| v.count(name).is_some_and(|n| n > 0.0));
        let killed = v.seen.group_oom_kills + case.main.oom_kills > 0 || v.log("killed") + v.log("worker-timeout") > 0;
        let stays = v.seen.workers_last <= v.seen.workers_first + 1;
        let replaced = v.has_pool() && v.seen.born >= 5 && stays && !recycles && !killed && broken * 3 >= v.seen.born;
        (lines > 0 || (!faults.is_empty() && v.seen.born > 0) || replaced).then(|| {
            finding(0.92, "workers die by a signal")
                .of(&v)
                .seen("error log", v.line("crash"), lines, 1)
                .seen("kernel log", faults.first().map_or("faults of its processes", |line| line), faults.len() as u64, 1)
                .seen("processes", "workers born", v.seen.born, 1)
                .seen("load", "requests whose connection was closed or reset", broken, 1)
                .unless("no exit by a signal in the log, no fault in the kernel's; oom_kill has not moved")
                .do_this(Vec::new(), "a core dump says where (CoreDumpDirectory, ulimit -c, coredumpctl); an extension or module is the usual suspect")
                .check_by("no more exit signals in the log")
        })
    })
}

fn memory_pressure(case: &Case<'_>) -> Option<Finding> {
    let swapped = case.per_second(case.main.swapped_pages);
    // Another control group of the machine may be short of memory, and nobody else.
    let plenty =
        case.main.memory_available_bytes.is_some_and(|bytes| bytes as f64 >= 0.1 * case.all.memory_bytes as f64);
    let stalled = case.main.pressure.get("memory_full").copied().filter(|_| !plenty).unwrap_or(0.0);
    case.servers().into_iter().find_map(|v| {
        (swapped > 100.0 || stalled > 0.1 || v.seen.memory_high > 10).then(|| {
            finding(0.9, "memory is short: pages are swapped or reclaimed while requests wait")
                .of(&v)
                .seen("/proc/vmstat", "pages swapped a second", swapped, 100)
                .seen("pressure", "share of the time in which all wait for memory", stalled, 0.1)
                .seen("memory.events", "high", v.seen.memory_high, 10)
                .unless("no swap traffic (swap that is only used is no fault)")
                .do_this(Vec::new(), "fewer workers (lastdrop size says how many fit), or more memory")
                .check_by("pswpin and pswpout stand still")
        })
    })
}

fn cpu_throttled(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        // A period is 100 ms unless somebody has said otherwise.
        let share = v.seen.throttled_periods as f64 / (case.main.duration_s * 10.0).max(1.0);
        (share > 0.25 && v.seen.throttled_us > 0).then(|| {
            let used = v.seen.cpu_cores.unwrap_or(0.0);
            finding(0.95, "the quota of its control group takes the processor away")
                .of(&v)
                .seen("cpu.stat", "share of the periods in which it was throttled", share, 0.25)
                .seen("cpu.stat", "seconds throttled", v.seen.throttled_us as f64 / 1e6, 0)
                .seen("cpu.max", "cores allowed", v.seen.cpu_limit_cores.unwrap_or(0.0), 0)
                .seen("/proc/PID/stat", "cores used", used, v.seen.cpu_limit_cores.unwrap_or(0.0))
                .unless("nr_throttled has not moved in the server's group nor in any above it")
                .do_this(Vec::new(), "raise CPUQuota= of the unit (cpu.max, the container's limit); fewer threads make the steps smaller, not the limit larger")
                .check_by("nr_throttled stands still")
        })
    })
}

fn softirq(case: &Case<'_>) -> Option<Finding> {
    let all = &case.main.softirq;
    let most = all.iter().copied().fold(0.0, f64::max);
    let rest = (all.iter().sum::<f64>() - most) / (all.len().max(2) - 1) as f64;
    (all.len() > 1 && most > 0.9 && rest < 0.4).then(|| {
        finding(0.85, "one processor does all the packets")
            .seen("/proc/stat", "share of the busiest processor in softirq", most, 0.9)
            .seen("/proc/stat", "share of the others", rest, 0.4)
            .do_this(
                Vec::new(),
                "spread the interrupts (RSS queues, RPS: /sys/class/net/*/queues/rx-*/rps_cpus, irqbalance)",
            )
            .check_by("softirq is spread over processors (mpstat -P ALL)")
    })
}

fn retransmits(case: &Case<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let again = case.sent_again();
    let slow = case.main.response.p99 >= RETRANSMISSION_US
        && case.alone.is_none_or(|a| a.response.p50 < 0.5 * case.main.response.p99)
        || case.few_wait_long();
    // Workers that wait for something else than the next request have no time for it; of those that cannot send clients are slow.
    let is_elsewhere = v.has_pool() && v.is_full() && v.seen.waiting("client") < 0.5 * v.busy();
    (again > SENT_AGAIN && slow && case.cpu_idle() && !is_elsewhere).then(|| {
        finding(0.75, "packets are lost on the way: answers wait for retransmissions")
            .seen("Tcp", "segments sent again, a request", again, SENT_AGAIN)
            .seen("load", "p99, ms (200 ms and its doubles are retransmissions)", case.main.response.p99 / 1e3, 190)
            .unless("no segment is sent again")
            .do_this(Vec::new(), "look for drops: ethtool -S, tc -s qdisc, the switch; a policer or a bad cable")
            .check_by("RetransSegs stands still")
    })
}
