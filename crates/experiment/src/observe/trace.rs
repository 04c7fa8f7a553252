//! Finds the system calls that make up a request, by tracing a running server while a few requests are sent to it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lastdrop_analyze::syscalls::{self, Timings, Trace};
use lastdrop_load::{PreparedPlan, RunClock};
use lastdrop_model::documents::{TRACE_SCHEMA, TraceDocument};
use lastdrop_model::sample::Syscall;
use lastdrop_model::{CaptureLevel, Event, KeepAlive, Knob, Plan};
use lastdrop_probe::listeners;
use lastdrop_probe::namespace::Namespace;
use lastdrop_probe::process;
use lastdrop_probe::socket_names::SocketNames;
use lastdrop_probe::strace::{self, Strace};
use lastdrop_server::{Change, FoundServer, OtherTrafficPolicy, ServerError, ServerRef, Session, discover, find};

use crate::lab::LabError;
use crate::lab::warm::warm_each;

/// At most this many processes are traced: attaching stops each for a moment.
const MOST_PROCESSES: usize = 400;
/// How often attaching is repeated because workers started meanwhile.
const ATTACH_TRIES: u32 = 5;
/// Most calls that are timed again without tracing.
const MOST_TIMED: usize = 1000;

/// Traces `plan`'s requests with the present configuration, then with other directives, separated by `;`, and restores
/// the configuration.
///
/// # Errors
/// As [`trace`], and when the server cannot be changed or does not come back.
pub fn trace_with(
    server: &ServerRef,
    plan: &Plan,
    directives: &str,
    others: &OtherTrafficPolicy,
    stop: &AtomicBool,
) -> Result<(TraceDocument, TraceDocument), LabError> {
    let found = find(server)?;
    let mut session = Session::open(discover(server)?, Some(&plan.url), others)?;
    let knobs: Vec<&Knob> = session.adapter().knobs().iter().collect();
    let change = Change::read(directives, true, &knobs).map_err(ServerError::Setting)?;
    let master = session.master();
    let outcome = trace_found(found.clone(), plan, stop).and_then(|before| {
        session.apply(change)?;
        // A changed server may run from another configuration file, so use the master that we started.
        let found = FoundServer { master: session.master(), ..found };
        Ok((before, trace_found(found, plan, stop)?))
    });
    let restarted = session.master() != master;
    let restored = session.restore()?;
    let (before, mut after) = outcome?;
    if others.live && restarted {
        after.notes.push("a reload would not have brought it into force: the server was started afresh, twice".into());
    }
    after.notes.extend(restored.notes());
    Ok((before, after))
}

/// Traces `plan`'s requests, sent one after the other on connections of their own.
///
/// # Errors
/// When the server is not found, strace cannot attach, or no request gets a response.
pub fn trace(server: &ServerRef, plan: &Plan, stop: &AtomicBool) -> Result<TraceDocument, LabError> {
    trace_found(find(server)?, plan, stop)
}

/// Attaches to a server's master and its workers. Returns the processes that are traced, too.
fn attach(master: i32, file: &Path, notes: &mut Vec<String>) -> Result<(Strace, Vec<i32>), LabError> {
    let mut tries = 0;
    loop {
        let mut pids = process::child_pids(master);
        if pids.len() > MOST_PROCESSES {
            notes.push(format!("only {MOST_PROCESSES} of {} workers were traced", pids.len()));
            pids.truncate(MOST_PROCESSES);
        }
        // The master comes first, so that workers it forks from then on are traced as well.
        pids.insert(0, master);
        let strace = Strace::attach(&pids, file)?;
        tries += 1;
        // A worker forked between listing and attaching would be missed.
        let all = process::child_pids(master).into_iter().take(MOST_PROCESSES).all(strace::is_traced);
        if all || tries == ATTACH_TRIES {
            if !all {
                notes.push("workers come and go too fast for all of them to be traced".into());
            }
            return Ok((strace, pids));
        }
    }
}

/// Leaves out the calls of a new worker before its first accept: they belong to no request.
fn calls_of_requests(calls: Vec<Syscall>, is_new: impl Fn(i32) -> bool) -> Vec<Syscall> {
    let mut at_work: HashSet<i32> = HashSet::new();
    let belongs = |c: &Syscall| {
        if c.call.starts_with("accept") {
            at_work.insert(c.pid);
        }
        !is_new(c.pid) || at_work.contains(&c.pid)
    };
    calls.into_iter().filter(belongs).collect()
}

/// Times calls by making them again, where that is harmless.
fn timings(calls: &[Syscall]) -> Timings {
    let mut timed = Timings::new();
    for c in calls {
        let key = (c.call.clone(), c.path.clone());
        if timed.len() < MOST_TIMED
            && !timed.contains_key(&key)
            && let Some(seconds) = strace::time_again(&c.call, &c.path, c.error.as_deref())
        {
            timed.insert(key, seconds);
        }
    }
    timed
}

fn trace_found(found: FoundServer, plan: &Plan, stop: &AtomicBool) -> Result<TraceDocument, LabError> {
    let workers = found.workers().len().max(1);
    let mut notes = Vec::new();
    // A first request compiles, connects and caches, which later ones need not do.
    let warm_plan = Plan { keepalive: KeepAlive::Off, ..plan.clone() };
    if found.prefork && !plan.url.tls {
        let warmed = warm_each(&warm_plan, workers);
        if warmed < workers {
            notes.push(format!("{warmed} of {workers} workers had a request before; first requests cost more"));
        }
    }
    let file = tempfile::NamedTempFile::new().map_err(|e| LabError::Other(format!("no temporary file: {e}")))?;
    let (strace, pids) = attach(found.master, file.path(), &mut notes)?;
    let namespace = Namespace::of(found.master).ok();
    // Keep-alive connections were opened before tracing began.
    let mut sockets = socket_names(namespace.as_ref());
    let mut answered = 0;
    let prepared = PreparedPlan::new(&warm_plan)?;
    let (clock, halt) = (RunClock::start(), AtomicBool::new(false));
    let result = lastdrop_load::run(&warm_plan, &prepared, clock, stop, &halt, CaptureLevel::Nothing, |event| {
        if let Event::Second { slice } = event {
            answered += slice.counts.answered;
        }
    });
    // The last calls of a request come after its response.
    std::thread::sleep(Duration::from_millis(200));
    let workers_at_end = process::child_pids(found.master);
    sockets.extend(socket_names(namespace.as_ref()));
    let calls = strace.finish(sockets);
    result?;
    let calls = calls?;
    if stop.load(Ordering::Relaxed) && answered == 0 {
        return Err(LabError::Interrupted);
    }
    if answered == 0 {
        return Err(LabError::Other(format!(
            "{} answered nothing while it was traced; try: curl -v {}",
            plan.url, plan.url
        )));
    }
    if calls.is_empty() {
        return Err(LabError::Other(format!(
            "no system call of {} was seen while {answered} requests were answered; does it serve {}?",
            found.name, plan.url
        )));
    }
    let calls = calls_of_requests(calls, |pid| workers_at_end.contains(&pid) && !pids.contains(&pid));
    let timed = timings(&calls);
    let ports = found.ports();
    let programs = listeners::programs(syscalls::peers(&calls, &ports));
    let sums = syscalls::per_request(&Trace {
        calls: &calls,
        requests: answered,
        ports: &ports,
        url_path: &decoded(plan.url.path.split('?').next().unwrap_or("/")),
        timed: &timed,
        programs: &programs,
    });
    let round = |x: f64| (x * 1e3).round() / 1e3;
    let sum = |waits: bool| sums.rows.iter().filter(|r| r.waits == waits).map(|r| r.us_per_request).sum::<f64>();
    Ok(TraceDocument {
        schema: TRACE_SCHEMA.into(),
        server: found.name,
        url: plan.url.to_string(),
        requests: answered,
        calls_per_request: round(sums.rows.iter().map(|r| r.per_request).sum()),
        us_per_request: round(sum(false)),
        waiting_us_per_request: round(sum(true)),
        floor_us: sums.floor_us,
        calls: sums.rows,
        waiting: sums.waiting,
        kinds: sums.kinds,
        notes,
    })
}

/// Returns the peers of sockets. Without a namespace it is empty: sockets are then shown by number.
fn socket_names(namespace: Option<&Namespace>) -> SocketNames {
    namespace.and_then(|n| n.socket_names().ok()).unwrap_or_default()
}

/// Decodes the percent signs of a path, as a server does before looking for it.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = more.get(..2).and_then(|h| std::str::from_utf8(h).ok()).and_then(|h| u8::from_str_radix(h, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_looked_for_without_percent_signs() {
        assert_eq!(decoded("/a%20b/%zz%C3%A4%4"), "/a b/%zzä%4");
    }
}
