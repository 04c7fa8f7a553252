//! Rules about requests that wait for each other: for a session, a file, a semaphore or mutex, or an interpreter.

use lastdrop_model::documents::Finding;
use lastdrop_model::examination::{ExaminationStep, StepKind};
use serde_json::json;

use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding};
use super::peers::{MOST, waiting};

/// Advice for requests of one session that wait for each other.
const SESSIONS: &str = "session_write_close() as soon as the session is read; read_and_close; a session store without locks; the load is that \
                        of one visitor: real ones have sessions of their own";

pub(super) fn session_lock(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (v, share) = waiting(case, &["lock"])?;
    let (file, n) = v.seen.most_of("lock")?;
    let name = file.rsplit('/').next().unwrap_or(file);
    (name.starts_with("sess_") || file.contains("/sessions/")).then(|| {
        finding(0.93, "requests of one session wait for each other")
            .of(&v)
            .evidence("/proc/PID/syscall", "share of the busy workers that wait for a lock", share, MOST)
            .evidence("/proc/PID/fd", &format!("workers that wait for {file}"), n, 1)
            .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
            .ruled_out("workers that wait for different files, or one that is no session's")
            .fix(Vec::new(), SESSIONS)
            .verify("throughput with a cookie for each user (a data file)")
    })
}

/// True if requests with the same cookie may be waiting for each other. They are served one after the other, processors
/// are idle, and no file lock shows it.
pub(super) fn may_share_a_session(case: &LoadEvidence<'_>) -> bool {
    case.cpu_idle() && one_at_a_time(case) && session_lock(case).is_none()
}

/// True if the load gets at most twice the throughput of one user alone.
fn one_at_a_time(case: &LoadEvidence<'_>) -> bool {
    case.alone.is_some_and(|alone| alone.answered_rps > 0.0 && case.main.answered_rps <= 2.0 * alone.answered_rps)
}

/// Evaluates the experiment in which each user has its own cookies. It reveals a lock that is in no file: in memcached,
/// Redis, a database, or the program's own memory.
pub(super) fn sessions_apart(case: &LoadEvidence<'_>) -> Option<Finding> {
    let apart = case.all.step(StepKind::OtherSessions)?;
    // The server may send an unknown visitor another page.
    let most = |step: &ExaminationStep| step.status.iter().max_by_key(|(_, n)| **n).map(|(status, _)| status.clone());
    let gain = apart.answered_rps / case.main.answered_rps.max(1e-9);
    let v = case
        .servers()
        .into_iter()
        .rev()
        .find(|v| v.has_pool() && v.busy() >= 0.8)
        .or_else(|| case.servers().into_iter().next())?;
    (gain >= 1.5 && most(apart) == most(case.main) && one_at_a_time(case) && case.cpu_idle()).then(|| {
        finding(0.9, "requests of one session wait for each other")
            .of(&v)
            .evidence("load", "throughput with cookies of each user's own, against shared ones", gain, 1.5)
            .evidence(
                "load",
                "throughput against one user alone",
                case.main.answered_rps / case.alone.map_or(1.0, |s| s.answered_rps),
                2,
            )
            .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
            .ruled_out("as few answers with cookies of each user's own")
            .fix(Vec::new(), SESSIONS)
            .verify("throughput with a cookie for each user (a data file)")
    })
}

/// Returns a threaded server whose threads nearly all wait for each other while nothing computes.
pub(super) fn waiting_inside<'a>(case: &'a LoadEvidence<'a>) -> Option<ServerEvidence<'a>> {
    let waits = |v: &ServerEvidence<'_>| {
        v.seen.threads >= 1.8 * v.seen.workers_most.max(1) as f64
            && v.seen.waiting("futex") >= 0.6 * v.seen.threads
            && v.seen.hottest_process_cores < 0.5
            && v.seen.waiting("running") < 0.25 * v.seen.threads
    };
    let all = case.servers().into_iter().rev();
    all.into_iter()
        .find(|v| v.is(&["gunicorn", "uwsgi", "puma", "tomcat"]) && waits(v) && case.slower().is_some_and(|t| t >= 2.0))
}

/// Returns a threaded Apache whose busy threads wait for each other. Idle threads do so, too; the scoreboard says how
/// many are idle.
fn apache_waiting_inside<'a>(case: &'a LoadEvidence<'a>) -> Option<ServerEvidence<'a>> {
    case.servers().into_iter().find(|v| {
        let busy = v.seen.status_busy.unwrap_or(0.0);
        let idle = v.seen.scoreboard.get("_").copied().unwrap_or(0.0);
        v.is(&["apache"])
            && !v.one_thread_each()
            && busy >= 3.0
            && v.seen.waiting("futex") - idle >= 0.6 * busy
            && v.seen.hottest_process_cores < 0.5
            && one_at_a_time(case)
            && case.cpu_idle()
            && perl_interpreters(case).is_none()
    })
}

pub(super) fn serialized(case: &LoadEvidence<'_>) -> Option<Finding> {
    let found = waiting(case, &["lock", "semaphore"]).or_else(|| {
        // A mutex between processes. In a process of many threads, idle ones wait there, too.
        waiting(case, &["futex"]).filter(|(v, _)| v.one_thread_each())
    });
    let (v, share) = match found {
        Some(found) => found,
        // Idle threads wait for each other, too: a single lock shows in the throughput.
        None => waiting_inside(case)
            .filter(|_| one_at_a_time(case))
            .map(|v| (v, v.seen.waiting("futex") / v.seen.threads.max(1.0)))
            .or_else(|| apache_waiting_inside(case).map(|v| (v, v.seen.waiting("futex") / v.busy().max(1.0))))
            .map(|(v, share)| (v, share.min(1.0)))?,
    };
    let (file, n) = v
        .seen
        .most_of("lock")
        .unwrap_or(("a semaphore or mutex", v.seen.waiting("semaphore") + v.seen.waiting("futex")));
    Some(
        finding(0.9, format!("one lock lets one request through at a time: {file}"))
            .of(&v)
            .evidence("/proc/PID/syscall", "share of the busy workers that wait for a lock", share, MOST)
            .evidence("/proc/PID/fd", &format!("workers that wait for {file}"), n, 1)
            .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
            .evidence(
                "load",
                "throughput against one user alone",
                case.main.answered_rps / case.alone.map_or(1.0, |s| s.answered_rps.max(1e-9)),
                1.5,
            )
            .ruled_out("workers that wait for different things")
            .fix(Vec::new(), "hold the lock for less, or have several of them; more workers change nothing")
            .verify("throughput rises with users"),
    )
}

/// Finds a lock inside a program whose threads do not show it, as it has an event loop or threads of its own making. It
/// is found by exclusion: one user gets as much as many, and nothing computes, waits for a peer or is full.
pub(super) fn no_more_than_one(case: &LoadEvidence<'_>) -> Option<Finding> {
    let alone = case.alone.filter(|s| s.answered >= 10)?;
    let flat = |s: &ExaminationStep| (0.8 * alone.answered_rps..=1.25 * alone.answered_rps).contains(&s.answered_rps);
    let few = case.all.step(StepKind::Few).is_none_or(flat);
    let is_pool = |v: &ServerEvidence<'_>| v.has_pool() && !v.is_async();
    let rests = |v: &ServerEvidence<'_>| {
        v.seen.hottest_process_cores < 0.5 && v.outgoing_connections().0 < 2.0 && !(is_pool(v) && v.is_full())
    };
    let all = case.servers();
    let v = all.iter().rev().find(|v| !v.is(&["mariadb", "postgresql", "nginx", "haproxy"]))?;
    let fails = case.main.unanswered() > 0 || case.errors();
    (few && flat(case.main) && (case.main.users >= 5 || case.in_flight() >= 5.0) && !fails && case.cpu_idle() && all.iter().all(rests) && !is_pool(v)).then(|| {
        finding(0.72, format!("{} serves one request at a time: a lock inside it, most likely", v.about.server))
            .of(v)
            .evidence("load", "throughput against one user alone", case.main.answered_rps / alone.answered_rps.max(1e-9), 1.25)
            .evidence("load", "answers are so many times slower than for one user alone", case.slower(), 1.3)
            .evidence("/proc/PID/stat", "cores of its busiest process", v.seen.hottest_process_cores, 0.5)
            .evidence("sock_diag", "connections that it has to others, on average", v.outgoing_connections().0, 2)
            .ruled_out("throughput that rises with users; a loop that computes; a peer or a database that it waits for")
            .fix(Vec::new(), "look for a mutex, a queue of one, or a pool of one connection around what a request does; more processes serve side by side where each has its own")
            .verify("throughput rises with users")
    })
}

pub(super) fn perl_interpreters(case: &LoadEvidence<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| v.is(&["apache"]) && v.about.settings.contains_key("PerlInterpMax"))?;
    let most = v.count("PerlInterpMax")? * v.seen.workers_most.max(1) as f64;
    let busy = v.seen.status_busy.unwrap_or(0.0);
    (busy > most * 1.3 && busy >= 2.0 && case.cpu_idle()).then(|| {
        finding(0.85, "more requests than Perl interpreters: PerlInterpMax caps what runs at once")
            .of(&v)
            .evidence("scoreboard", "requests at work", busy, most * 1.3)
            .evidence("configuration", "interpreters of all processes", most, 0)
            .evidence("/proc/PID/syscall", "threads in futex", v.seen.waiting("futex"), 1)
            .ruled_out("prefork, or fewer requests than interpreters")
            .fix(
                vec![v.fix("PerlInterpMax", json!(v.count("ThreadsPerChild").unwrap_or(25.0) as i64))],
                "each interpreter costs memory; lastdrop size says how much",
            )
            .verify("requests at work and throughput")
    })
}
