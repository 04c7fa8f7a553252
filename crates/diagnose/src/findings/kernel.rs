//! Rules about what the kernel refuses, takes away or kills, and about the generator's own limits.

use lastdrop_model::documents::{Finding, Fix};
use lastdrop_model::examination::LoadShape;

use super::Rule;
use super::evidence::{
    FindingBuilder, LoadEvidence, ONE_CORE, RETRANSMISSION_US, RETRANSMITTED, SWAPPED, finding, longer_queue,
};

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
/// Most answers are fast, and some wait for a lost segment: the clients are not slow.
pub(super) const LOST: &[Rule] = &[Rule { id: "retransmits", look: |c| retransmits(c).filter(|_| c.few_wait_long()) }];
/// Workers that wait for packets look like a full pool.
pub(super) const PACKETS: &[Rule] = &[Rule { id: "softirq-one-core", look: softirq }];
pub(super) const NETWORK: &[Rule] = &[Rule { id: "retransmits", look: retransmits }];

/// Pages per second that a control group gives up and soon reads again.
const REFAULTS: f64 = 500.0;

/// Throttled share of the time from which on the generator measures its own limit.
const HELD_BACK: f64 = 0.2;

/// Rules whose counters need no other evidence.
pub(super) const CERTAIN: &[Rule] = &[
    Rule { id: "conntrack-full", look: conntrack_full },
    Rule { id: "tasks-limit", look: tasks_limit },
    Rule { id: "oom-kill", look: oom_kill },
    Rule { id: "memory-pressure", look: memory_pressure },
    Rule { id: "cpu-throttled", look: cpu_throttled },
];

fn generator_saturated(case: &LoadEvidence<'_>) -> Option<Finding> {
    let g = &case.main.generator;
    let throttled = g.throttled_s.unwrap_or(0.0) / case.main.duration_s.max(1e-3);
    // Users who are rejected at once ask again at once. That keeps the generator busy, but the server causes it.
    let is_turned_away = case.main.unanswered() > case.main.answered;
    let by_cpu = (g.saturated || throttled >= HELD_BACK)
        && !is_turned_away
        && !case.servers().iter().any(|v| v.is_full() && v.has_pool())
        && !case.cpu_full()
        // Time spent on packets is charged to whatever runs on that processor.
        && packets_on_one_core(case).is_none();
    (by_cpu || g.no_descriptors > 0).then(|| {
        finding(0.9, "the load generator itself is the limit, not the server")
            .evidence("generator", "cores used by it", g.cores, if throttled >= HELD_BACK { 0.0 } else { 1.0 })
            .evidence("cpu.stat", "share of the time for which its control group was throttled", throttled, HELD_BACK)
            .evidence("generator", "requests without a descriptor", g.no_descriptors, 1)
            .ruled_out("the server's processors have time left")
            .fix(
                Vec::new(),
                "more threads (-t), fewer users, another machine for the load; more of a processor for its control group (cpu.max, cpu.cfs_quota_us); \
                 ulimit -n where descriptors lack",
            )
            .verify("run again: the report's validity says whether the generator was at its limit")
    })
}

fn port_exhaustion(case: &LoadEvidence<'_>) -> Option<Finding> {
    let own = case.main.generator.no_ports;
    if own > 0 {
        return Some(
            finding(0.95, "no local port is free for new connections on the side of the load")
                .evidence("connect()", "EADDRNOTAVAIL", own, 1)
                .fix(
                    Vec::new(),
                    "keep connections (--keepalive on), or load from several addresses; real clients have ports of their own: \
                     this is no limit of the server",
                )
                .verify("run again with --keepalive on"),
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
            .evidence("error log", "Cannot assign requested address", refused, 1)
            .evidence(
                "sock_diag",
                "closed connections that hold a port (TIME_WAIT) to one address",
                held,
                (0.9 * all as f64) as u64,
            )
            .evidence("ip_local_port_range", "ports", all, 0)
            .ruled_out("few ports in TIME_WAIT to that address")
            .fix(
                Vec::new(),
                "keep connections to what is behind (upstream keepalive); a wider net.ipv4.ip_local_port_range or \
                     net.ipv4.tcp_tw_reuse=1 only put it off",
            )
            .verify("connections in TIME_WAIT fall, no more 'Cannot assign requested address'")
        })
    })
}

fn conntrack_full(case: &LoadEvidence<'_>) -> Option<Finding> {
    let told = case.main.kernel_log.iter().find(|l| l.contains("conntrack") && l.contains("table full")).cloned();
    case.servers().into_iter().find_map(|v| {
        let (n, limit) = (v.seen.conntrack?, v.seen.conntrack_limit.filter(|l| *l > 0)?);
        let dropped = ["conntrack_drop", "conntrack_early_drop", "conntrack_insert_failed"];
        let dropped: u64 = dropped.iter().map(|name| v.moved(name)).sum();
        (n as f64 >= 0.98 * limit as f64 && (dropped > 0 || told.is_some())).then(|| {
            finding(0.95, "the kernel's connection table is full: packets of new connections are dropped")
                .of(&v)
                .evidence("nf_conntrack_count", "entries", n, limit)
                .evidence("nf_conntrack", "dropped", dropped, 1)
                .evidence("kernel log", "line", told.clone().unwrap_or_default(), "nf_conntrack: table full")
                .ruled_out("entries well below the limit")
                .fix(Vec::new(), "raise net.netfilter.nf_conntrack_max (and hashsize), shorten its timeouts, or leave web traffic out of tracking (notrack)")
                .verify("no more drops in `conntrack -S`")
        })
    })
}

fn nginx_connections(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("worker-connections");
        (lines > 0).then(|| {
            let now = v.count("worker_connections").unwrap_or(512.0);
            finding(0.97, "nginx closes connections: worker_connections are used up")
                .of(&v)
                .evidence("error log", "worker_connections are not enough", lines, 1)
                .evidence("configuration", "worker_connections", now, 0)
                .evidence("load", "requests without an answer", case.main.unanswered(), 1)
                .ruled_out("no such line while the load was on; accepts equal handled")
                .fix(
                    vec![v.fix("worker_connections", (now as u64 * 8).max(1024).into())],
                    "a proxied request takes two connections; worker_rlimit_nofile has to allow them",
                )
                .expected(case.bound(None))
                .verify("no more of these lines; accepts = handled in stub_status")
        })
    })
}

fn fd_limit(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("descriptors");
        let (fds, limit) = (v.seen.fds.unwrap_or(0), v.seen.fds_limit.unwrap_or(u64::MAX));
        let goes_without = case.main.unanswered() > 0 || case.errors() || v.queue() >= 1.0;
        let at_limit = fds.saturating_add(2) >= limit && goes_without;
        let more = v.seen.fds_limit.unwrap_or(0).saturating_mul(4).clamp(65_536, 1_048_576);
        (lines > 0 || at_limit).then(|| {
            finding(if lines > 0 { 0.97 } else { 0.8 }, format!("{} has no descriptors left", v.about.server))
                .of(&v)
                .evidence("error log", "Too many open files", lines, 1)
                .evidence("/proc/PID/fd", "open files of the worker closest to its limit", fds, limit)
                .ruled_out("open files far below the limit")
                .fix(
                    if v.is(&["nginx"]) { vec![v.fix("worker_rlimit_nofile", more.into())] } else { Vec::new() },
                    "raise the soft limit where the server is started: LimitNOFILE= of its unit (limits.conf does not count for \
                     services), worker_rlimit_nofile in nginx, rlimit_files in PHP-FPM",
                )
                .expected(case.bound(None))
                .verify("`Max open files` of a worker in /proc/PID/limits; no more errno 24")
        })
    })
}

fn tasks_limit(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let (refused, lines) = (v.seen.pids_refused, v.log("fork-failed"));
        (refused > 0 || lines > 0).then(|| {
            finding(0.95, "no more processes or threads may be made")
                .of(&v)
                .evidence("pids.events", "times that one was refused", refused, 1)
                .evidence("error log", "fork failed", lines, 1)
                .ruled_out("pids.events has not moved")
                .fix(
                    Vec::new(),
                    "raise TasksMax= of the unit (pids.max of its control group), LimitNPROC=, or kernel.pid_max",
                )
                .verify("pids.events stands still under the same load")
        })
    })
}

/// A connection that took as long was dropped and tried again: after a second.
const TRIED_AGAIN_US: f64 = 900e3;

fn accept_queue(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let overflows = v.moved("ListenOverflows");
    if overflows < 5 || case.per_second(overflows) < 0.5 {
        return None;
    }
    // The overflows are another server's in the same network namespace if this one's queue never filled, and none of our
    // connections was tried again.
    let is_its =
        case.servers().iter().skip(1).all(|b| b.seen.queue_most.unwrap_or(0) < b.seen.queue_limit.unwrap_or(u64::MAX))
            || v.queue() >= 0.5;
    let filled = v.seen.queue_most.zip(v.seen.queue_limit).is_none_or(|(most, limit)| 2 * most >= limit);
    if !is_its || !filled && case.main.connect.max < TRIED_AGAIN_US {
        return None;
    }
    // A full pool fills every queue, however long.
    let workers_busy = v.has_pool() && v.busy() >= 0.8 * v.size();
    // So does an event loop that has no time to accept.
    let no_time = v.seen.hottest_thread_cores >= ONE_CORE || v.one_computes();
    if workers_busy || no_time || case.cpu_full() {
        return None;
    }
    let limit = v.seen.queue_limit.unwrap_or(0);
    let knob = match v.kind() {
        "apache" => Some("ListenBacklog"),
        "nginx" | "gunicorn" => Some("backlog"),
        "php-fpm" => Some("listen.backlog"),
        "uwsgi" => Some("listen"),
        "lighttpd" => Some("server.listen-backlog"),
        _ => None,
    };
    let to = longer_queue(limit);
    let somaxconn = case.all.sysctls.get("net.core.somaxconn").and_then(|s| s.parse::<u64>().ok());
    let mut fix: Vec<Fix> = knob.map(|name| v.fix(name, to.into())).into_iter().collect();
    if let Some(now) = somaxconn.filter(|n| *n < to) {
        let of_the_host =
            Fix { server: "host".into(), needs: "sysctl".into(), place: "kernel".into(), ..Fix::default() };
        fix.push(Fix { knob: "net.core.somaxconn".into(), from: now.into(), to: to.into(), ..of_the_host });
    }
    let connect = case.main.connect;
    Some(
        finding(0.9, "connections are dropped: the listen queue is too short for how they come")
            .of(&v)
            .evidence("TcpExt", "ListenOverflows", overflows, 5)
            .evidence("sock_diag", "limit of the listen queue", limit, 0)
            .evidence("load", "longest connect, ms (1, 3, 7 s are tries again)", connect.max / 1e3, 1000)
            .evidence("workers", "share at work", v.busy() / v.size().max(1.0), 0.8)
            .ruled_out("all workers at work: then the queue is full because of them")
            .fix(
                fix,
                "the smaller of the server's backlog and net.core.somaxconn counts: raise both; the server has to listen anew",
            )
            .expected(case.bound(None))
            .verify("ListenOverflows stands still (nstat -az TcpExtListenOverflows)"),
    )
}

fn oom_kill(case: &LoadEvidence<'_>) -> Option<Finding> {
    let host = case.main.oom_kills;
    case.servers().into_iter().find_map(|v| {
        let (group, lines) = (v.seen.group_oom_kills, v.log("killed"));
        // The counter covers the whole machine: another program's process may have been killed.
        (group > 0 || (host > 0 && lines > 0)).then(|| {
            finding(0.95, "the kernel kills workers for lack of memory")
                .of(&v)
                .evidence("memory.events, vmstat", "oom_kill", group.max(host), 1)
                .evidence("error log", v.sample_line("killed"), lines, 1)
                .ruled_out("oom_kill has not moved: then somebody else sent the signal")
                .fix(
                    Vec::new(),
                    format!(
                        "fewer workers ({}), or more memory for the group; lastdrop size says how many fit",
                        v.about.pool.clone().unwrap_or_default()
                    ),
                )
                .verify("oom_kill stands still under the same load")
        })
    })
}

fn worker_timeout(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("worker-timeout");
        // One request among thousands that took too long limits no user; mostly it waits for the real limit.
        let goes_without = match case.all.load {
            LoadShape::Foreign => lines as f64 >= 0.1 * v.size().max(1.0),
            _ => case.errors() || case.main.unanswered() * 200 > case.main.due.max(1),
        };
        (lines > 0 && goes_without).then(|| {
            finding(0.9, "the master ends workers whose request takes too long")
                .of(&v)
                .evidence("error log", v.sample_line("worker-timeout"), lines, 1)
                .evidence("load", "answers of one user alone, ms", case.alone.map_or(0.0, |s| s.response.mean / 1e3), 0)
                .ruled_out("no such line; oom_kill has not moved")
                .fix(Vec::new(), "find out why the request takes so long (lastdrop trace); only then raise the limit (timeout, request_terminate_timeout, harakiri)")
                .verify("no more of these lines")
        })
    })
}

/// Kernel log messages about a process that is killed for a fault.
const FAULTS: &[&str] = &["segfault at", "general protection fault", "trap invalid opcode", "trap divide error"];

fn worker_crash(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        // If it is unknown where the log goes, the kernel log names the process by its first letters.
        let programs = if v.is(&["apache"]) { vec!["apache", "httpd"] } else { vec![v.kind()] };
        let is_its = |line: &&String| programs.iter().any(|p| line.starts_with(p)) && FAULTS.iter().any(|f| line.contains(f));
        let faults: Vec<&String> = case.main.kernel_log.iter().filter(is_its).collect();
        let lines = v.log("crash");
        // A server that logs nothing: workers are replaced whose requests were cut off, and no recycling explains it.
        let broken = ["closed", "reset"].iter().filter_map(|what| case.main.failed.get(*what)).sum::<u64>();
        let recycles = v.recycling().is_some_and(|(_, most)| most > 0.0);
        let killed = v.seen.group_oom_kills + case.main.oom_kills > 0 || v.log("killed") + v.log("worker-timeout") > 0;
        let stays = v.seen.workers_last <= v.seen.workers_first + 1;
        let replaced = v.has_pool() && v.seen.born >= 5 && stays && !recycles && !killed && broken * 3 >= v.seen.born;
        (lines > 0 || (!faults.is_empty() && v.seen.born > 0) || replaced).then(|| {
            finding(0.92, "workers die by a signal")
                .of(&v)
                .evidence("error log", v.sample_line("crash"), lines, 1)
                .evidence("kernel log", faults.first().map_or("faults of its processes", |line| line), faults.len() as u64, 1)
                .evidence("processes", "workers born", v.seen.born, 1)
                .evidence("load", "requests whose connection was closed or reset", broken, 1)
                .ruled_out("no exit by a signal in the log, no fault in the kernel's; oom_kill has not moved")
                .fix(Vec::new(), "a core dump says where (CoreDumpDirectory, ulimit -c, coredumpctl); an extension or module is the usual suspect")
                .verify("no more exit signals in the log")
        })
    })
}

fn memory_pressure(case: &LoadEvidence<'_>) -> Option<Finding> {
    let swapped = case.per_second(case.main.swapped_pages);
    // Another control group of the machine may be short of memory, and not this one.
    let plenty = case.has_free_memory();
    let pressure = |of: &str| case.main.pressure.get(of).copied().unwrap_or(0.0);
    let stalled = if plenty { 0.0 } else { pressure("memory_full") };
    case.servers().into_iter().find_map(|v| {
        // A group at its limit gives up any pages. It lacks memory only if they are read again and tasks wait for them.
        // Version 1 of control groups does not report which tasks wait: then the machine's count.
        let again = case.per_second(v.seen.refaulted_pages);
        let waits = if v.seen.memory_stalled > 0.0 { v.seen.memory_stalled } else { pressure("memory_some") };
        let is_tight = v.seen.memory_max > 10 && again > REFAULTS && waits > 0.1;
        // Another group may be the one that swaps.
        let swaps = swapped > SWAPPED && (!plenty || v.seen.memory_max > 10 && waits > 0.1);
        (swaps || stalled > 0.1 || v.seen.memory_high > 10 || is_tight).then(|| {
            let limit = v.seen.memory_limit_bytes.filter(|_| is_tight).map(|bytes| bytes as f64 / 1e6);
            let said = match limit {
                Some(limit) => format!("memory is short: {limit:.0} MB are its control group's, pages that it gave up are read again while requests wait"),
                None => "memory is short: pages are swapped or reclaimed while requests wait".into(),
            };
            // A number is evidence only if its whole sign is present.
            let with = |sign: bool, value: f64| if sign { value } else { 0.0 };
            finding(0.9, said)
                .of(&v)
                .evidence("/proc/vmstat", "pages swapped a second", with(swaps, swapped), SWAPPED)
                .evidence("pressure", "share of the time in which all wait for memory", stalled, 0.1)
                .evidence("memory.events", "high", v.seen.memory_high, 10)
                .evidence("memory.stat", "pages given up and soon wanted again, a second", with(is_tight, again), REFAULTS)
                .evidence("memory.events", "times at the limit", with(is_tight, v.seen.memory_max as f64), 10)
                .evidence("pressure", "share of the time in which some wait for memory", with(is_tight, waits), 0.1)
                .ruled_out("no swap traffic (swap that is only used is no fault), and no page that was given up is wanted again")
                .fix(
                    Vec::new(),
                    if is_tight {
                        "a higher limit of its control group (MemoryMax= of the unit, memory.max, the container's --memory), or fewer workers: what is left caches files"
                    } else {
                        "fewer workers (lastdrop size says how many fit), or more memory"
                    },
                )
                .verify("pswpin and pswpout, and workingset_refault of the group, stand still")
        })
    })
}

fn cpu_throttled(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        // A period is 100 ms by default.
        let share = v.seen.throttled_periods as f64 / (case.main.duration_s * 10.0).max(1.0);
        (share > 0.25 && v.seen.throttled_us > 0).then(|| {
            let used = v.seen.cpu_cores.unwrap_or(0.0);
            finding(0.95, "the quota of its control group takes the processor away")
                .of(&v)
                .evidence("cpu.stat", "share of the periods in which it was throttled", share, 0.25)
                .evidence("cpu.stat", "seconds throttled", v.seen.throttled_us as f64 / 1e6, 0)
                .evidence("cpu.max", "cores allowed", v.seen.cpu_limit_cores, 0)
                .evidence("/proc/PID/stat", "cores used", used, v.seen.cpu_limit_cores)
                .ruled_out("nr_throttled has not moved in the server's group nor in any above it")
                .fix(Vec::new(), "raise CPUQuota= of the unit (cpu.max, the container's limit); fewer threads make the steps smaller, not the limit larger")
                .verify("nr_throttled stands still")
        })
    })
}

/// Returns the softirq share of a processor that does hardly anything else, and the mean share of the others.
fn packets_on_one_core(case: &LoadEvidence<'_>) -> Option<(f64, f64)> {
    let all = &case.main.softirq;
    let most = all.iter().copied().fold(0.0, f64::max);
    let rest = (all.iter().sum::<f64>() - most) / (all.len().max(2) - 1) as f64;
    (all.len() > 1 && most > 0.9 && rest < 0.4).then_some((most, rest))
}

fn softirq(case: &LoadEvidence<'_>) -> Option<Finding> {
    packets_on_one_core(case).map(|(most, rest)| {
        finding(0.85, "one processor does all the packets")
            .evidence("/proc/stat", "share of the busiest processor in softirq", most, 0.9)
            .evidence("/proc/stat", "share of the others", rest, 0.4)
            .fix(
                Vec::new(),
                "spread the packets (queues of the card: ethtool -L, irqbalance; RPS: /sys/class/net/*/queues/rx-*/rps_cpus), or have each cost less (sets and maps in \
                 place of long chains: nft list ruleset, iptables-save)",
            )
            .verify("softirq is spread over processors (mpstat -P ALL)")
    })
}

fn retransmits(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().next()?;
    let again = case.retransmitted();
    let slow = case.main.response.p99 >= RETRANSMISSION_US
        && case.alone.is_none_or(|a| a.response.p50 < 0.5 * case.main.response.p99)
        || case.few_wait_long();
    // A worker blocked on anything but the next request cannot serve. Workers blocked in send mean slow clients; if
    // only a few answers are late, they wait for a lost segment, too.
    let unsent = if case.few_wait_long() { v.seen.waiting("client-write") } else { 0.0 };
    let is_elsewhere = v.has_pool() && v.is_full() && v.seen.waiting("client") + unsent < 0.5 * v.busy();
    (again > RETRANSMITTED && slow && case.cpu_idle() && !is_elsewhere).then(|| {
        finding(0.75, "packets are lost on the way: answers wait for retransmissions")
            .evidence("Tcp", "segments sent again, a request", again, RETRANSMITTED)
            .evidence("load", "p99, ms (200 ms and its doubles are retransmissions)", case.main.response.p99 / 1e3, 190)
            .ruled_out("no segment is sent again")
            .fix(Vec::new(), "look for drops: ethtool -S, tc -s qdisc, the switch; a policer or a bad cable")
            .verify("RetransSegs stands still")
    })
}
