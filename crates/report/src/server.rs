//! What was seen of the server beside a run, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lastdrop_model::units::show_bytes;
use lastdrop_model::{CgroupLook, Look, Observed, Run};

use crate::table::aligned;

/// So much of what there is counts as close to the limit.
const NEAR_LIMIT: f64 = 0.9;
/// Rows of a timeline beyond which seconds are put together.
const MOST_ROWS: usize = 40;
/// Counters that say something is wrong when they move at all; the others are told in the timeline's JSON.
const ALARMING: &[&str] = &[
    "ListenOverflows",
    "ListenDrops",
    "TCPReqQFullDoCookies",
    "TCPReqQFullDrop",
    "SyncookiesSent",
    "TCPTimeWaitOverflow",
    "TCPAbortOnMemory",
    "TCPMemoryPressures",
    "TCPBacklogDrop",
    "TCPRcvQDrop",
    "TCPZeroWindowDrop",
    "PruneCalled",
    "RcvPruned",
    "AttemptFails",
    "RetransSegs",
    "conntrack_drop",
    "conntrack_early_drop",
    "conntrack_insert_failed",
];

/// Events of a look that deserve a name: counters, groups that limited, lines of the kernel's log.
pub(crate) fn events(look: &Look) -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = ALARMING
        .iter()
        .filter_map(|name| Some(((*name).to_string(), *look.kernel.get(*name)?)))
        .filter(|(_, n)| *n > 0)
        .collect();
    for c in &look.cgroups {
        let where_ = format!("cgroup {}", c.path);
        let counts = [
            (c.throttled_us.map(|us| us.div_ceil(1000)), "throttled, ms"),
            (c.memory_high, "slowed at memory.high"),
            (c.memory_max, "at its memory limit"),
            (c.oom_kills, "killed for memory"),
            (c.pids_refused, "processes refused"),
        ];
        all.extend(
            counts.into_iter().filter_map(|(n, what)| Some((format!("{where_} {what}"), n.filter(|n| *n > 0)?))),
        );
    }
    let h = &look.host;
    let host = [
        (h.swap_in_pages, "pages swapped in"),
        (h.swap_out_pages, "pages swapped out"),
        (h.oom_kills, "processes killed for memory"),
        (h.backlog_dropped, "packets dropped from a processor's backlog"),
    ];
    all.extend(host.into_iter().filter_map(|(n, what)| Some((what.to_string(), n.filter(|n| *n > 0)?))));
    let levels = [
        (look.fds, look.fds_limit, "a process close to its limit of open files"),
        (look.conntrack, look.conntrack_limit, "the connection table close to full"),
        // Those that wait may belong to several addresses; all of one address is what the kernel refuses at.
        (look.sockets.get("time_wait").copied(), look.local_ports, "closed connections hold most local ports"),
    ];
    let near = |now: u64, limit: u64| limit > 0 && now as f64 >= NEAR_LIMIT * limit as f64;
    let levels = levels.into_iter().filter_map(|(now, limit, what)| near(now?, limit?).then_some(what));
    all.extend(levels.map(|what| (format!("{what}, s"), (look.span_s.round() as u64).max(1))));
    all.extend(look.log.iter().map(|line| (format!("kernel: {line}"), 1)));
    all
}

/// The lines about the server in the report of a run.
#[must_use]
pub fn server_text(o: &Observed) -> String {
    let mut out = String::new();
    let name = if o.name.is_empty() { format!("process {}", o.master) } else { o.name.clone() };
    let max = |f: fn(&Look) -> Option<f64>| o.looks.iter().filter_map(f).reduce(f64::max);
    let span: f64 = o.looks.iter().map(|l| l.span_s).sum();
    let cpu: f64 = o.looks.iter().filter_map(|l| Some(l.cpu_cores? * l.span_s)).sum::<f64>() / span.max(1e-9);
    let workers = o.looks.last().map_or(o.workers.len() as u64, |l| l.worker_count);
    let mut parts = vec![format!("{workers} worker{}", if workers == 1 { "" } else { "s" })];
    parts.push(format!("{cpu:.2} cores"));
    if let Some(look) = o.looks.iter().rev().find(|l| l.real_memory_bytes.is_some()) {
        let real = look.real_memory_bytes.unwrap_or(0);
        let private = look.private_bytes.map_or(String::new(), |b| format!(" ({} private)", show_bytes(b)));
        parts.push(format!("{} real memory{private}", show_bytes(real)));
    }
    let queue = o.looks.iter().flat_map(|l| &l.listen).max_by_key(|q| q.queue);
    if let Some(q) = queue {
        parts.push(format!("listen queue at most {} of {}", q.queue, q.limit));
    }
    let _ = writeln!(out, "server: {name}: {}", parts.join(", "));
    if let Some(rate) = max(|l| l.requests_rps) {
        let busy = max(|l| l.busy.map(|b| b as f64)).unwrap_or(0.0);
        let _ = writeln!(out, "  by its status page at most {rate:.0} requests/s, at most {busy:.0} workers busy");
    }
    let mut totals: BTreeMap<String, (f64, u64)> = BTreeMap::new();
    for look in &o.looks {
        for (what, n) in events(look) {
            let entry = totals.entry(what).or_insert((look.t_s, 0));
            entry.1 += n;
        }
    }
    for (what, (first, n)) in totals {
        let _ = writeln!(out, "  {what}: {n}, first seen at {first:.0} s");
    }
    for c in o.looks.last().into_iter().flat_map(|l| &l.cgroups) {
        if let Some(text) = limits(c) {
            let _ = writeln!(out, "  cgroup {} ({}): {text}", c.path, c.controller);
        }
    }
    for what in &o.unread {
        let _ = writeln!(out, "  not read: {what}");
    }
    out
}

/// What a group may use, where it is limited.
fn limits(c: &CgroupLook) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(cores) = c.cpu_limit_cores {
        parts.push(format!("at most {cores:.2} cores"));
    }
    if let (Some(now), Some(limit)) = (c.memory_bytes, c.memory_limit_bytes) {
        parts.push(format!("{} of {} memory", show_bytes(now), show_bytes(limit)));
    }
    if let (Some(now), Some(limit)) = (c.pids, c.pids_limit) {
        parts.push(format!("{now} of {limit} processes"));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The server second by second beside the answers, for `show`.
#[must_use]
pub fn timeline_text(run: &Run) -> String {
    let Some(o) = run.server.as_ref().filter(|o| !o.looks.is_empty()) else { return String::new() };
    // Answers by second of the run: phases follow each other.
    let mut answered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut start = 0.0;
    for phase in &run.phases {
        for s in &phase.seconds {
            *answered.entry((start + f64::from(s.t)) as u64).or_default() += s.answered;
        }
        start += phase.duration_s;
    }
    let together = o.looks.len().div_ceil(MOST_ROWS);
    let rows: Vec<Vec<String>> = o
        .looks
        .chunks(together)
        .map(|looks| {
            let (first, last) = (&looks[0], &looks[looks.len() - 1]);
            let span: f64 = looks.iter().map(|l| l.span_s).sum();
            let (from, to) = ((first.t_s - first.span_s).round() as u64, last.t_s.round() as u64);
            let answers: u64 = answered.range(from..to.max(from + 1)).map(|(_, n)| n).sum();
            let cpu = looks.iter().filter_map(|l| Some(l.cpu_cores? * l.span_s)).sum::<f64>() / span.max(1e-9);
            let queue = looks.iter().flat_map(|l| &l.listen).max_by_key(|q| q.queue);
            let steal = looks.iter().filter_map(|l| l.host.steal).sum::<f64>() / looks.len() as f64;
            let mut what: BTreeMap<String, u64> = BTreeMap::new();
            for (name, n) in looks.iter().flat_map(events) {
                *what.entry(name).or_default() += n;
            }
            let what: Vec<String> = what.into_iter().map(|(name, n)| format!("{name} {n}")).collect();
            let dash = || "-".to_string();
            vec![
                format!("{:.0}", last.t_s),
                (answers as f64 / span.max(1e-9)).round().to_string(),
                last.worker_count.to_string(),
                last.busy.map_or_else(dash, |n| n.to_string()),
                format!("{cpu:.2}"),
                last.real_memory_bytes.map_or_else(dash, show_bytes),
                queue.map_or_else(dash, |q| format!("{}/{}", q.queue, q.limit)),
                format!("{:.1}", steal * 100.0),
                what.join("; "),
            ]
        })
        .collect();
    let heading = ["second", "answers/s", "workers", "busy", "cores", "real memory", "queue", "steal %", "events"];
    format!("\n{}", aligned(&heading, &rows))
}
