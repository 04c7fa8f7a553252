//! The server's samples during a run, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lastdrop_model::printable::line;
use lastdrop_model::units::show_bytes;
use lastdrop_model::{CgroupSample, ListenQueue, Run, Sample, ServerTimeline};

use crate::table::aligned;

/// A resource used beyond this share of its limit counts as nearly exhausted.
const NEAR_LIMIT: f64 = 0.9;
/// If the timeline has more rows, several seconds share one.
const MOST_ROWS: usize = 40;
/// Counters that signal a problem as soon as they change. The others are only in the timeline's JSON.
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

/// Returns the named events of a sample: alarming counters, cgroup limits that took effect, lines of the
/// kernel log.
pub(crate) fn events(look: &Sample) -> Vec<(String, u64)> {
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
    let held = look.ports_held.as_ref();
    let to = held.map_or("", |h| &h.to);
    let levels = [
        (look.fds, look.fds_limit, "a process close to its limit of open files".to_string()),
        (look.conntrack, look.conntrack_limit, "the connection table close to full".into()),
        (held.map(|h| h.time_wait), look.local_ports, format!("closed connections to {to} hold most local ports")),
    ];
    let near = |now: u64, limit: u64| limit > 0 && now as f64 >= NEAR_LIMIT * limit as f64;
    let mut levels: Vec<String> =
        levels.into_iter().filter_map(|(now, limit, what)| near(now?, limit?).then_some(what)).collect();
    if look.status_waits_s.is_some() {
        let queued = look.listen.iter().any(|q| q.queue > 0);
        let why = if queued { "every worker is busy: the status page waits for one" } else { "the status page waits" };
        levels.push(why.into());
    }
    all.extend(levels.into_iter().map(|what| (format!("{what}, s"), (look.span_s.round() as u64).max(1))));
    all.extend(look.log.iter().map(|text| (format!("kernel: {text}"), 1)));
    all
}

/// Returns the listen queue of the run's URL; if the sample does not know it, the longest queue.
pub(crate) fn shown_queue(look: &Sample) -> Option<&ListenQueue> {
    let of_url = look.listen.iter().filter(|q| q.of_url).max_by_key(|q| q.queue);
    of_url.or_else(|| look.listen.iter().max_by_key(|q| q.queue))
}

/// Totals of all samples.
#[derive(Default)]
struct Totals {
    span_s: f64,
    cpu_s: f64,
    queue: Option<ListenQueue>,
    /// Sum and number of the mean lengths of the shown queues.
    queue_means: (f64, u32),
    requests_rps: Option<f64>,
    busy: Option<u64>,
    /// Named events: the time of the first, and how often.
    events: BTreeMap<String, (f64, u64)>,
    memory: Option<(u64, Option<u64>)>,
    last: Option<Sample>,
}

impl Totals {
    fn of(looks: impl Iterator<Item = Sample>) -> Totals {
        let mut t = Totals::default();
        for look in looks {
            t.span_s += look.span_s;
            t.cpu_s += look.cpu_cores.map_or(0.0, |c| c * look.span_s);
            let shown = shown_queue(&look);
            if let Some(mean) = shown.and_then(|q| q.queue_mean) {
                t.queue_means = (t.queue_means.0 + mean, t.queue_means.1 + 1);
            }
            t.queue = t.queue.into_iter().chain(shown.cloned()).max_by_key(|q| q.queue);
            t.requests_rps = t.requests_rps.into_iter().chain(look.requests_rps).reduce(f64::max);
            t.busy = t.busy.max(look.busy);
            for (what, n) in events(&look) {
                t.events.entry(what).or_insert((look.t_s, 0)).1 += n;
            }
            if let Some(real) = look.real_memory_bytes {
                t.memory = Some((real, look.private_bytes));
            }
            t.last = Some(look);
        }
        t
    }
}

/// The lines about the server in the report of a run.
#[must_use]
pub fn server_text(o: &ServerTimeline) -> String {
    let mut out = String::new();
    let name = if o.name.is_empty() { format!("process {}", o.master) } else { o.name.clone() };
    let all = Totals::of(o.samples.iter());
    let cpu = all.cpu_s / all.span_s.max(1e-9);
    let workers = all.last.as_ref().map_or(o.workers.len() as u64, |l| l.worker_count);
    let mut parts = vec![format!("{workers} worker{}", if workers == 1 { "" } else { "s" })];
    parts.push(format!("{cpu:.2} cores"));
    if let Some((real, private)) = all.memory {
        let private = private.map_or(String::new(), |b| format!(" ({} private)", show_bytes(b)));
        parts.push(format!("{} real memory{private}", show_bytes(real)));
    }
    if let Some(q) = all.queue {
        let (sum, looks) = all.queue_means;
        let mean =
            if q.queue > 0 && looks > 0 { format!(" (mean {:.1})", sum / f64::from(looks)) } else { String::new() };
        parts.push(format!("listen queue at most {} of {}{mean}", q.queue, q.limit));
    }
    let _ = writeln!(out, "server: {}: {}", line(&name), parts.join(", "));
    if let Some(rate) = all.requests_rps {
        let busy = all.busy.unwrap_or(0);
        let _ = writeln!(out, "  by its status page at most {rate:.0} requests/s, at most {busy:.0} workers busy");
    }
    for (what, (first, n)) in all.events {
        let _ = writeln!(out, "  {}: {n}, first seen at {first:.0} s", line(&what));
    }
    for c in all.last.iter().flat_map(|l| &l.cgroups) {
        if let Some(text) = limits(c) {
            let _ = writeln!(out, "  cgroup {} ({}): {text}", line(&c.path), c.controller);
        }
    }
    for what in &o.unread {
        let _ = writeln!(out, "  not read: {}", line(what));
    }
    out
}

/// The limits of a cgroup, if it has any.
fn limits(c: &CgroupSample) -> Option<String> {
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

/// Returns the second at whose end a sample was taken. Samples come a little late, and the last covers the
/// rest of a second.
fn second_of(look: &Sample) -> u64 {
    const LATE_S: f64 = 0.2;
    (look.t_s - LATE_S).ceil().max(1.0) as u64
}

/// Groups samples by stretches of `together` seconds; each group comes with its last second.
fn by_second(looks: impl Iterator<Item = Sample>, together: usize) -> impl Iterator<Item = (u64, Vec<Sample>)> {
    let mut looks = looks.peekable();
    let mut last = 0;
    std::iter::from_fn(move || {
        let (mut some, mut seconds) = (Vec::new(), 0);
        while let Some(look) = looks.next_if(|l| second_of(l) <= last || seconds < together) {
            if second_of(&look) > last {
                (last, seconds) = (second_of(&look), seconds + 1);
            }
            some.push(look);
        }
        (!some.is_empty()).then_some((last, some))
    })
}

/// The server's samples beside the answers, second by second, for `show`.
#[must_use]
pub fn timeline_text(run: &Run) -> String {
    let Some(o) = run.server.as_ref().filter(|o| !o.samples.is_empty()) else { return String::new() };
    // Answers by second of the run; phases follow each other.
    let mut answered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut start = 0.0;
    for phase in &run.phases {
        for s in phase.seconds.iter() {
            *answered.entry((start + f64::from(s.t)) as u64).or_default() += s.answered;
        }
        start += phase.duration_s;
    }
    let together = by_second(o.samples.iter(), 1).count().div_ceil(MOST_ROWS);
    let mut begins = 0;
    let rows: Vec<Vec<String>> = by_second(o.samples.iter(), together)
        .map(|(ends, looks)| {
            let last = &looks[looks.len() - 1];
            let span: f64 = looks.iter().map(|l| l.span_s).sum();
            // The row of second 3 covers 2 s to 3 s after the start.
            let answers: u64 = answered.range(begins..ends).map(|(_, n)| n).sum();
            begins = ends;
            let cpu = looks.iter().filter_map(|l| Some(l.cpu_cores? * l.span_s)).sum::<f64>() / span.max(1e-9);
            let queue = looks.iter().filter_map(|l| shown_queue(l)).max_by_key(|q| q.queue);
            let busy = looks.iter().filter_map(|l| l.busy).max();
            let steal = looks.iter().filter_map(|l| l.host.steal).sum::<f64>() / looks.len() as f64;
            let mut what: BTreeMap<String, u64> = BTreeMap::new();
            for (name, n) in looks.iter().flat_map(events) {
                *what.entry(name).or_default() += n;
            }
            let what: Vec<String> = what.into_iter().map(|(name, n)| format!("{name} {n}")).collect();
            let dash = || "-".to_string();
            vec![
                ends.to_string(),
                (answers as f64 / span.max(1e-9)).round().to_string(),
                last.worker_count.to_string(),
                busy.map_or_else(dash, |n| n.to_string()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn look(t_s: f64, queues: &[(u64, bool)]) -> Sample {
        let queue =
            |&(queue, of_url): &(u64, bool)| ListenQueue { queue, of_url, limit: 511, ..ListenQueue::default() };
        Sample { t_s, span_s: 1.0, listen: queues.iter().map(queue).collect(), ..Sample::default() }
    }

    #[test]
    fn no_second_is_shown_twice() {
        // Samples that come a little late, later still, and for the rest of a second at the end.
        let looks = || [1.003, 2.35, 3.0, 4.01, 4.16].into_iter().map(|t_s| look(t_s, &[]));
        let seconds = |together| by_second(looks(), together).map(|(s, l)| (s, l.len())).collect::<Vec<_>>();
        assert_eq!(seconds(1), [(1, 1), (3, 2), (4, 2)]);
        assert_eq!(seconds(2), [(3, 3), (4, 2)]);
    }

    #[test]
    fn the_queue_is_that_of_the_url_where_it_is_known() {
        let queue = |looks: &[Sample]| Totals::of(looks.iter().cloned()).queue.map(|q| q.queue);
        assert_eq!(queue(&[look(1.0, &[(2, true), (9, false)]), look(2.0, &[(1, true)])]), Some(2));
        assert_eq!(queue(&[look(1.0, &[(2, false), (9, false)])]), Some(9));
        assert_eq!(queue(&[look(1.0, &[])]), None);
    }

    #[test]
    fn ports_are_short_where_one_destination_has_them() {
        let mut l = look(1.0, &[]);
        l.sockets.insert("time_wait".into(), 36_115);
        l.local_ports = Some(28_232);
        assert_eq!(events(&l), []);
        l.ports_held = Some(lastdrop_model::PortsInUse { to: "10.0.0.1:80".into(), time_wait: 28_000 });
        assert!(events(&l)[0].0.contains("10.0.0.1:80"), "{:?}", events(&l));
    }
}
