//! Those behind a server that it waits for: other servers, databases, name servers, locks.

use lastdrop_analyze::services::service_at;
use lastdrop_model::documents::Finding;
use lastdrop_model::examination::{Step, StepKind};
use lastdrop_model::{DatabaseLook, SessionState};
use serde_json::json;

use super::Rule;
use super::case::{Case, ONE_CORE, Says, View, finding};

pub(super) const REFUSED: &[Rule] = &[
    Rule { id: "upstream-backlog-overflow", look: upstream_full },
    Rule { id: "proxy-connect-retries", look: connect_retries },
    Rule { id: "upstream-refused", look: upstream_refused },
    Rule { id: "db-pool-exhausted", look: database_refuses },
];
pub(super) const WAITING: &[Rule] = &[
    Rule { id: "session-lock", look: session_lock },
    Rule { id: "session-lock", look: sessions_apart },
    Rule { id: "db-pool-exhausted", look: own_pool },
    Rule { id: "db-pool-exhausted", look: pooler },
    Rule { id: "serialized", look: serialized },
    Rule { id: "perl-interpreters-exhausted", look: perl_interpreters },
    Rule { id: "dns-lookup", look: |c| names(c, true) },
    Rule { id: "resolver-slow", look: |c| names(c, false) },
    Rule { id: "db-locked", look: |c| database(c, true) },
    Rule { id: "db-slow", look: |c| database(c, false) },
    Rule { id: "slow-log", look: slow_log },
    Rule { id: "slow-log", look: slow_fsync },
    Rule { id: "slow-upstream", look: slow_upstream },
];

/// Those that take as long for one user as for many.
pub(super) const LONG: &[Rule] = &[
    Rule { id: "dns-lookup", look: |c| names(c, true) },
    Rule { id: "resolver-slow", look: |c| names(c, false) },
    Rule { id: "db-slow", look: |c| database(c, false) },
    Rule { id: "slow-upstream", look: slow_upstream },
];

/// Workers at work that have to be at the same thing.
const MOST: f64 = 0.5;
/// What helps where requests of one session wait for each other.
const SESSIONS: &str = "session_write_close() as soon as the session is read; read_and_close; a session store without locks; the load is that \
                        of one visitor: real ones have sessions of their own";
/// A connect is tried again after a second, by the kernel and by HAProxy.
const SECOND_TRY_US: f64 = 950_000.0;
/// A statement that reads so many has no index that would do.
const MANY_ROWS: u64 = 1_000;

fn upstream_full(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("upstream-full");
        let tried = v.calls("connect-full");
        let behind = case.servers().into_iter().find(|b| v.about.to.contains(&b.about.server));
        // By TCP nobody is refused: the kernel drops what is beyond the limit, and tells of the whole network. It is his whose queue is full.
        let is_full = |v: &View<'_>| v.seen.queue_limit.is_some_and(|limit| v.seen.queue_most.unwrap_or(0) >= limit.max(1));
        let dropped = v.moved("ListenOverflows");
        let tcp = dropped >= 5 && behind.is_some_and(|b| is_full(&b) && !b.seen.queue_at.starts_with("unix:")) && !is_full(&v);
        (lines > 0 || tried > 0.02 || tcp).then(|| {
            let limit = behind.and_then(|b| b.seen.queue_limit).unwrap_or(0);
            let found =
                finding(0.95, format!("the listen queue behind {} is full: it refuses to wait", v.about.server))
                    .of(&v)
                    .seen("error log", v.line("upstream-full"), lines, 1)
                    .seen("trace", "connects a request that the kernel refused (EAGAIN)", tried, 0.02)
                    .seen(
                        "load",
                        "answers 502 and 503, share",
                        case.main.share_of_status(|s| s == "502" || s == "503"),
                        0.01,
                    )
                    .seen("sock_diag", "limit of that queue", limit, 0)
                    .seen("sock_diag", "most that waited in it", behind.and_then(|b| b.seen.queue_most).unwrap_or(0), limit)
                    .seen("TcpExt", "ListenOverflows", dropped, 5)
                    .unless("ECONNREFUSED: nobody listens there")
                    .check_by("no more errno 11 in the log of the front");
            match behind {
                Some(b) => {
                    let knob = match b.kind() {
                        "php-fpm" => "listen.backlog",
                        "uwsgi" => "listen",
                        _ => "backlog",
                    };
                    let mut fix = vec![b.fix(knob, json!((limit * 8).clamp(511, 4096)))];
                    fix.extend(
                        b.more_workers(b.wanted_workers()).into_iter().filter(|_| b.is_full() && case.cpu_idle()),
                    );
                    found.do_this(fix, "a longer queue only makes them wait there; the pool behind it has to keep up")
                }
                None => found.do_this(Vec::new(), "a longer backlog (and net.core.somaxconn), more workers behind it"),
            }
        })
    })
}

/// HAProxy tries again after a second, so that a server that refuses, or whose packets are lost, shows in steps of that and not only in
/// errors.
fn connect_retries(case: &Case<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| v.is(&["haproxy"]))?;
    let failed = v.moved("AttemptFails");
    // Connections of the load are made at once: those whose first packet is sent again are HAProxy's own.
    let ours_are_quick = case.main.connect.max < SECOND_TRY_US && v.moved("ListenOverflows") == 0;
    let unanswered = if ours_are_quick { v.moved("TCPSynRetrans") } else { 0 };
    let slowest = case.alone.map_or(case.main.response.p99, |s| s.response.max.max(s.response.p99));
    // A time limit of less than a second ends the first try.
    let slow = slowest >= SECOND_TRY_US || unanswered > 0;
    let tries = case.per_request(failed + unanswered);
    let (_, opening, whom) = v.made();
    let in_flight = case.main.answered_rps * case.main.response.mean / 1e6;
    let most_wait = opening >= 1.0 && opening >= 0.3 * in_flight;
    ((tries >= 0.1 || most_wait) && slow).then(|| {
        finding(0.88, "a server behind HAProxy takes no connections; it tries again, a second each time")
            .of(&v)
            .seen("sock_diag", &format!("connections that are not answered yet, most of them to {}", if whom.is_empty() { "nobody" } else { whom }), opening, 0.3 * in_flight)
            .seen("Tcp", "connects that were refused, a request", case.per_request(failed), 0.1)
            .seen("TcpExt", "first packets that were sent again, a request", case.per_request(unanswered), 0.1)
            .seen("load", "the slowest answer for one user alone, ms", slowest / 1e3, SECOND_TRY_US / 1e3)
            .seen("load", "answers 503, share", case.main.share_of_status(|s| s == "503"), 0.01)
            .unless("connects that succeed at once; a server that answers slowly")
            .do_this(Vec::new(), "health checks (option httpchk, check) take a server out that is down; option redispatch and retries say what happens meanwhile; \
                                  packets that are dropped: a firewall, a wrong address")
            .check_by("wretr and econ on its stats page")
    })
}

fn upstream_refused(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("upstream-refused");
        let errors = case.main.share_of_status(|s| s == "502" || s == "503");
        (lines > 0 && errors > 0.01).then(|| {
            finding(0.95, format!("what is behind {} refuses connections, or is down", v.about.server))
                .of(&v)
                .seen("error log", v.line("upstream-refused"), lines, 1)
                .seen("load", "answers 502 and 503, share", errors, 0.01)
                .unless("EAGAIN: a full queue of somebody who is there")
                .do_this(Vec::new(), "start it, or mend the address; a server that comes and goes: its own error log")
                .check_by("answers 200")
        })
    })
}

fn database_refuses(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("database-connections");
        let refused: u64 = case.main.databases.iter().filter_map(DatabaseLook::refused_connections).sum();
        let errors = case.main.share_of_status(|s| s.starts_with('5')) > 0.01;
        (((lines > 0 && errors) || refused > 10) && v.has_pool()).then(|| {
            finding(0.9, "the database takes no more connections")
                .of(&v)
                .seen("error log", v.line("database-connections"), lines, 1)
                .seen("database", "connections that it refused", refused, 10)
                .seen("load", "answers 5xx, share", case.main.share_of_status(|s| s.starts_with('5')), 0.01)
                .do_this(
                    Vec::new(),
                    "fewer workers than the database has connections, or raise max_connections; a pooler before it",
                )
                .check_by("no more of these lines")
        })
    })
}

/// The server furthest behind whose workers are mostly at something, with its share.
fn waiting<'a>(case: &'a Case<'a>, what: &[&str]) -> Option<(View<'a>, f64)> {
    let share = |v: &View<'_>| what.iter().map(|w| v.share(w)).sum::<f64>();
    let all = case.servers().into_iter().rev();
    all.map(|v| (v, share(&v))).find(|(v, share)| *share >= MOST && v.busy() >= 0.8 && v.has_pool())
}

fn session_lock(case: &Case<'_>) -> Option<Finding> {
    let (v, share) = waiting(case, &["lock"])?;
    let (file, n) = v.seen.most_of("lock")?;
    let name = file.rsplit('/').next().unwrap_or(file);
    (name.starts_with("sess_") || file.contains("/sessions/")).then(|| {
        finding(0.93, "requests of one session wait for each other")
            .of(&v)
            .seen("/proc/PID/syscall", "share of the busy workers that wait for a lock", share, MOST)
            .seen("/proc/PID/fd", &format!("workers that wait for {file}"), n, 1)
            .seen("/proc/stat", "cores busy", case.busy_cores(), 0)
            .unless("workers that wait for different files, or one that is no session's")
            .do_this(
                Vec::new(),
                SESSIONS,
            )
            .check_by("throughput with a cookie for each user (a data file)")
    })
}

/// Could it be that those wait for each other who have the same cookie? They are served one after the other, nobody computes, and no file
/// is locked that would say it.
pub(super) fn may_share_a_session(case: &Case<'_>) -> bool {
    case.cpu_idle() && one_at_a_time(case) && session_lock(case).is_none()
}

/// As many answers as one user alone gets, or little more.
fn one_at_a_time(case: &Case<'_>) -> bool {
    case.alone.is_some_and(|alone| alone.answered_rps > 0.0 && case.main.answered_rps <= 2.0 * alone.answered_rps)
}

/// What the experiment showed in which each user has cookies of its own: a lock that is in no file (memcached, Redis, a database, the
/// program's own memory).
fn sessions_apart(case: &Case<'_>) -> Option<Finding> {
    let apart = case.all.step(StepKind::OtherSessions)?;
    // A visitor whom the server does not know may get another page.
    let most = |step: &Step| step.status.iter().max_by_key(|(_, n)| **n).map(|(status, _)| status.clone());
    let gain = apart.answered_rps / case.main.answered_rps.max(1e-9);
    let v = case.servers().into_iter().rev().find(|v| v.has_pool() && v.busy() >= 0.8).or_else(|| case.servers().into_iter().next())?;
    (gain >= 1.5 && most(apart) == most(case.main) && one_at_a_time(case) && case.cpu_idle()).then(|| {
        finding(0.9, "requests of one session wait for each other")
            .of(&v)
            .seen("load", "throughput with cookies of each user's own, against shared ones", gain, 1.5)
            .seen("load", "throughput against one user alone", case.main.answered_rps / case.alone.map_or(1.0, |s| s.answered_rps), 2)
            .seen("/proc/stat", "cores busy", case.busy_cores(), 0)
            .unless("as few answers with cookies of each user's own")
            .do_this(Vec::new(), SESSIONS)
            .check_by("throughput with a cookie for each user (a data file)")
    })
}

/// A server of threads that nearly all wait for each other while neither it nor anybody else computes.
fn waiting_inside<'a>(case: &'a Case<'a>) -> Option<View<'a>> {
    let waits = |v: &View<'_>| {
        v.seen.threads >= 1.8 * v.seen.workers_most.max(1) as f64
            && v.seen.waiting("futex") >= 0.6 * v.seen.threads
            && v.seen.hottest_process_cores < 0.5
            && v.seen.waiting("running") < 0.25 * v.seen.threads
    };
    let all = case.servers().into_iter().rev();
    all.into_iter()
        .find(|v| v.is(&["gunicorn", "uwsgi", "puma", "tomcat"]) && waits(v) && case.slower().is_some_and(|t| t >= 2.0))
}

/// An Apache of threads: those that have nothing to do wait for each other, too, and the scoreboard says how many these are.
fn apache_waiting_inside<'a>(case: &'a Case<'a>) -> Option<View<'a>> {
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

/// Programs between an application and its database that have fewer connections to that than there are to them.
const POOLERS: &[&str] = &["pgbouncer", "pgcat", "odyssey", "pgpool", "proxysql", "maxscale"];

/// Workers wait for a pooler, whose connections to the database are fewer than they are, while the database has time.
fn pooler(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().rev().find_map(|v| {
        let (peer, waiting) = v.seen.most_of("peer")?;
        let between = behind(case, &v, peer).filter(|b| POOLERS.iter().any(|p| b.about.software.starts_with(p)))?;
        let db = between.about.connects.first().and_then(|to| behind(case, &between, to));
        let look = view_of(case, db.as_ref())?;
        let (sessions, active) = (look.states.values().sum::<u64>() as f64, look.active_mean?);
        let lacks = waiting >= 1.5 * sessions.max(1.0) && active < MOST * waiting && look.lock_wait_mean.unwrap_or(0.0) < 0.8;
        (lacks && v.has_pool() && waiting >= MOST * v.busy() && case.cpu_idle()).then(|| {
            let name = &between.about.server;
            finding(0.88, format!("workers wait for one of the few connections that {name} has to the database"))
                .of(&v)
                .seen("/proc/PID/syscall", &format!("workers that wait for {peer}"), waiting, 1.5 * sessions)
                .seen(&look.service, "sessions", sessions, 0)
                .seen(&look.service, "sessions with a statement that runs, on average", active, MOST * waiting)
                .seen("/proc/stat", "cores busy", case.busy_cores(), 0)
                .unless("as many sessions as workers that wait; statements that run or wait for a lock")
                .do_this(Vec::new(), format!("a larger pool in {name} (default_pool_size, pool_size), as far as the database bears it; connections held for the statement alone: \
                                              shorter transactions, pool_mode = transaction"))
                .check_by("clients that wait in its own view (SHOW POOLS: cl_waiting)")
        })
    })
}

/// The application's own pool of connections.
fn own_pool(case: &Case<'_>) -> Option<Finding> {
    let Some(v) = waiting_inside(case) else { return pool_of_a_loop(case) };
    let peer = v.about.connects.iter().find(|peer| is_database(case, &v, peer))?;
    let db = behind(case, &v, peer);
    let cores = db.and_then(|b| b.seen.cpu_cores).unwrap_or(0.0);
    let active = view_of(case, db.as_ref()).and_then(|look| look.active_mean);
    (cores < 0.3 && active.is_none_or(|n| n < 0.5 * v.seen.waiting("futex"))).then(|| {
        finding(0.8, format!("requests wait inside {} for a connection to its database, which has time", v.about.server))
            .of(&v)
            .seen("/proc/PID/syscall", "threads that wait for each other (futex)", v.seen.waiting("futex"), 0.6 * v.seen.threads)
            .seen("/proc/PID/stat", "cores of the database", cores, 0)
            .seen("database", "statements that run, on average", active.unwrap_or(0.0), 0)
            .seen("load", "answers are so many times slower than for one user alone", case.slower().unwrap_or(0.0), 2)
            .unless("a database at work; threads that compute")
            .do_this(Vec::new(), "more connections in the application's pool (pool_size), held for the statement alone and not while something else is done")
            .check_by("threads in futex; statements that run")
    })
}

/// Processes whose requests wait in an event loop, where no thread shows it: with nothing to compute, before a database.
fn waiting_loop<'a>(case: &'a Case<'a>) -> Option<(View<'a>, &'a str)> {
    let all = case.servers().into_iter().rev();
    let mut loops = all.filter(|v| v.is(&["node"]) && v.seen.hottest_process_cores < 0.5);
    let (v, peer) = loops.find_map(|v| {
        let mut peers = v.about.connects.iter().filter(|peer| is_database(case, &v, peer));
        peers.next().map(|peer| (v, peer.as_str()))
    })?;
    (case.cpu_idle() && case.slower().is_some_and(|t| t >= 2.0)).then_some((v, peer))
}

/// The same in an event loop: fewer sessions than requests, most of them in a transaction in which nothing runs.
fn pool_of_a_loop(case: &Case<'_>) -> Option<Finding> {
    let (v, peer) = waiting_loop(case)?;
    let look = view_of(case, behind(case, &v, peer).as_ref())?;
    let held = look.states.get(&SessionState::IdleInTransaction).copied().unwrap_or(0) as f64;
    let (all, active) = (look.states.values().sum::<u64>() as f64, look.active_mean?);
    // Little's law; where each had a connection, as many would be held.
    let requests = case.main.answered_rps * case.main.response.mean / 1e6;
    (held >= 1.0 && held >= MOST * all && active < MOST * all && requests >= 1.5 * all).then(|| {
        finding(0.85, format!("requests wait inside {} for one of its connections to its database, which has time", v.about.server))
            .of(&v)
            .seen(&look.service, "sessions in a transaction in which nothing runs", held, MOST * all)
            .seen(&look.service, "sessions with a statement that runs, on average", active, 0)
            .seen("load", "requests at once, on average", requests, 1.5 * all)
            .seen("load", "answers are so many times slower than for one user alone", case.slower().unwrap_or(0.0), 2)
            .unless("statements that run or wait for a lock; a session for each request")
            .do_this(Vec::new(), "hold a connection for the statements alone and not while something else is done; more connections in the application's pool (max, pool_size)")
            .check_by("sessions that are idle in transaction; throughput")
    })
}

fn serialized(case: &Case<'_>) -> Option<Finding> {
    let found = waiting(case, &["lock", "semaphore"]).or_else(|| {
        // A mutex between processes; threads of one process rest there.
        waiting(case, &["futex"]).filter(|(v, _)| v.one_thread_each())
    });
    let (v, share) = match found {
        Some(found) => found,
        // Idle threads wait for each other, too: one lock is told by the throughput.
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
            .seen("/proc/PID/syscall", "share of the busy workers that wait for a lock", share, MOST)
            .seen("/proc/PID/fd", &format!("workers that wait for {file}"), n, 1)
            .seen("/proc/stat", "cores busy", case.busy_cores(), 0)
            .seen(
                "load",
                "throughput against one user alone",
                case.main.answered_rps / case.alone.map_or(1.0, |s| s.answered_rps.max(1e-9)),
                1.5,
            )
            .unless("workers that wait for different things")
            .do_this(Vec::new(), "hold the lock for less, or have several of them; more workers change nothing")
            .check_by("throughput rises with users"),
    )
}

/// A lock inside a program of which no thread shows it: it has a loop, or threads of its own making. Told by what is left: one user gets as
/// much as many do, and nobody computes, waits for somebody else or is full.
pub(super) const BY_EXCLUSION: &[Rule] = &[
    Rule { id: "db-pool-exhausted", look: |c| few_connections(c, true) },
    Rule { id: "slow-upstream", look: |c| few_connections(c, false) },
    Rule { id: "serialized", look: no_more_than_one },
];

/// A program without a pool of workers that has a few connections to somebody, and answers as many times more than one user gets: each is
/// a place that requests wait for.
fn few_connections(case: &Case<'_>, to_database: bool) -> Option<Finding> {
    let alone = case.alone.filter(|s| s.answered >= 10)?;
    let in_flight = case.main.answered_rps * case.main.response.mean / 1e6;
    let times = case.main.answered_rps / alone.answered_rps.max(1e-9);
    let mut all = case.servers().into_iter().rev().filter(|v| !v.has_pool() || v.is_async());
    let (v, peer, open) = all.find_map(|v| {
        let mut own = v.about.connects.iter().filter_map(|to| Some((to.as_str(), v.seen.peers.get(to)?.open)));
        let (peer, open) = own.find(|(_, open)| *open >= 1.7 && (0.75..1.25).contains(&(times / open)))?;
        Some((v, peer, open)).filter(|_| !v.is(&["nginx", "haproxy", "mariadb", "postgresql"]))
    })?;
    let rests = v.seen.hottest_process_cores < 0.5 && case.cpu_idle();
    (rests && in_flight >= 1.5 * open && is_database(case, &v, peer) == to_database).then(|| {
        finding(0.78, format!("requests wait inside {} for one of its {open:.0} connections to {peer}", v.about.server))
            .of(&v)
            .seen("sock_diag", &format!("connections to {peer}, on average"), open, in_flight / 1.5)
            .seen("load", "requests at once, on average", in_flight, 1.5 * open)
            .seen("load", "throughput against one user alone", times, open)
            .seen("/proc/PID/stat", "cores of its busiest process", v.seen.hottest_process_cores, 0.5)
            .unless("a connection for each request; throughput that does not go with their number")
            .do_this(Vec::new(), "more connections in the program's own pool (pool size, MaxConnsPerHost, maxSockets), as far as the other side bears it; each held for less")
            .check_by("throughput rises with the size of the pool")
    })
}

fn no_more_than_one(case: &Case<'_>) -> Option<Finding> {
    let alone = case.alone.filter(|s| s.answered >= 10)?;
    let flat = |s: &Step| (0.8 * alone.answered_rps..=1.25 * alone.answered_rps).contains(&s.answered_rps);
    let few = case.all.step(StepKind::Few).is_none_or(flat);
    let is_pool = |v: &View<'_>| v.has_pool() && !v.is_async();
    let rests = |v: &View<'_>| v.seen.hottest_process_cores < 0.5 && v.made().0 < 2.0 && !(is_pool(v) && v.is_full());
    let all = case.servers();
    let v = all.iter().rev().find(|v| !v.is(&["mariadb", "postgresql", "nginx", "haproxy"]))?;
    let is_fast = case.main.unanswered() > 0 || case.errors();
    (few && flat(case.main) && case.main.users >= 5 && !is_fast && case.cpu_idle() && all.iter().all(rests) && !is_pool(v)).then(|| {
        finding(0.72, format!("{} serves one request at a time: a lock inside it, most likely", v.about.server))
            .of(v)
            .seen("load", "throughput against one user alone", case.main.answered_rps / alone.answered_rps.max(1e-9), 1.25)
            .seen("load", "answers are so many times slower than for one user alone", case.slower().unwrap_or(0.0), 1.3)
            .seen("/proc/PID/stat", "cores of its busiest process", v.seen.hottest_process_cores, 0.5)
            .seen("sock_diag", "connections that it has to others, on average", v.made().0, 2)
            .unless("throughput that rises with users; a loop that computes; a peer or a database that it waits for")
            .do_this(Vec::new(), "look for a mutex, a queue of one, or a pool of one connection around what a request does; more processes serve side by side where each has its own")
            .check_by("throughput rises with users")
    })
}

fn perl_interpreters(case: &Case<'_>) -> Option<Finding> {
    let v = case.servers().into_iter().find(|v| v.is(&["apache"]) && v.about.settings.contains_key("PerlInterpMax"))?;
    let most = v.count("PerlInterpMax")? * v.seen.workers_most.max(1) as f64;
    let busy = v.seen.status_busy.unwrap_or(0.0);
    (busy > most * 1.3 && busy >= 2.0 && case.cpu_idle()).then(|| {
        finding(0.85, "more requests than Perl interpreters: PerlInterpMax caps what runs at once")
            .of(&v)
            .seen("scoreboard", "requests at work", busy, most * 1.3)
            .seen("configuration", "interpreters of all processes", most, 0)
            .seen("/proc/PID/syscall", "threads in futex", v.seen.waiting("futex"), 1)
            .unless("prefork, or fewer requests than interpreters")
            .do_this(
                vec![v.fix("PerlInterpMax", json!(v.count("ThreadsPerChild").unwrap_or(25.0) as i64))],
                "each interpreter costs memory; lastdrop size says how much",
            )
            .check_by("requests at work and throughput")
    })
}

fn names(case: &Case<'_>, reverse: bool) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let asked = v.calls("dns");
        let share = v.names_asked() / v.busy().max(0.5);
        let letters = v.seen.scoreboard.get("D").copied().unwrap_or(0.0);
        let board: f64 = v.seen.scoreboard.values().sum();
        let asks_for_names = asked > 0.0 && v.calls("dns-reverse") >= 0.3 * asked;
        let is_reverse = asks_for_names
            || v.is(&["apache"])
                && (letters >= 0.3 * board.max(1.0)
                    || v.setting("HostnameLookups").is_some_and(|s| s != "Off")
                    || v.about.directives.get("HostnameLookups").is_some_and(|s| !s.eq_ignore_ascii_case("off")));
        let fires = (share >= 0.4 || letters >= 0.3 * board.max(1.0)) && v.busy() >= 0.5 && reverse == is_reverse;
        fires.then(|| {
            let found = finding(
                0.88,
                if reverse {
                    "each request looks the client's name up"
                } else {
                    "each request waits for the name server"
                },
            )
            .of(&v)
            .seen("/proc/PID/syscall", "share of the busy workers that wait for port 53", share, 0.4)
            .seen("trace", "questions to it a request", asked, 0.5)
            .seen("trace", "of them for the name of an address", v.calls("dns-reverse"), 0.3 * asked)
            .seen("scoreboard", "places with D", letters, 0.3 * board.max(1.0))
            .unless("no traffic to port 53");
            if reverse {
                found
                    .do_this(
                        v.is(&["apache"]).then(|| v.fix("HostnameLookups", json!("Off"))).into_iter().collect(),
                        "addresses in logs become names later, with logresolve; Require ip instead of Require host; no gethostbyaddr in scripts",
                    )
                    .check_by("no D in the scoreboard")
            } else {
                found
                    .do_this(
                        Vec::new(),
                        "a caching resolver on this machine, addresses instead of names, connections that are kept",
                    )
                    .check_by("no questions to port 53 in lastdrop trace")
            }
        })
    })
}

/// The peer that most of the busy workers wait for, and the share of them.
fn peer<'a>(v: &View<'a>) -> Option<(&'a str, f64)> {
    let (peer, n) = v.seen.most_of("peer")?;
    Some((peer, n / v.busy().max(0.5)))
}

/// A view of the server that listens there, where it is known.
fn behind<'a>(case: &'a Case<'a>, v: &View<'_>, peer: &str) -> Option<View<'a>> {
    let by_link = v.about.connects.iter().position(|c| c == peer).and_then(|i| v.about.to.get(i));
    let all = case.servers();
    all.into_iter()
        .find(|b| by_link.is_some_and(|to| *to == b.about.server) || b.about.listens.iter().any(|l| l == peer))
}

pub(super) fn is_database(case: &Case<'_>, v: &View<'_>, peer: &str) -> bool {
    let behind = behind(case, v, peer);
    let traced = || case.inside(&v.about.server)?.programs.get(peer).cloned();
    let program = behind.map(|b| b.about.software.clone()).or_else(traced);
    behind.is_some_and(|b| b.is(&["mariadb", "mysql", "postgresql"]))
        || service_at(peer, program.as_deref()).is_some_and(|s| s.is_database)
}

/// Where workers of the furthest server wait for a database: itself, and the share. Of an event loop: that of its sessions in
/// which a statement runs.
fn at_database<'a>(case: &'a Case<'a>) -> Option<(View<'a>, &'a str, f64)> {
    let of_a_pool = case.servers().into_iter().rev().filter(View::has_pool).find_map(|v| {
        let (peer, share) = peer(&v)?;
        (share >= MOST && v.busy() >= 0.8 && is_database(case, &v, peer)).then_some((v, peer, share))
    });
    of_a_pool.or_else(|| {
        let (v, peer) = waiting_loop(case)?;
        let look = view_of(case, behind(case, &v, peer).as_ref())?;
        let active = look.active_mean.filter(|n| *n >= 0.8)?;
        let share = active / (look.states.values().sum::<u64>() as f64).max(active);
        (share >= MOST).then_some((v, peer, share))
    })
}

/// The database's own view: that of the server behind, else of the only one.
fn view_of<'a>(case: &Case<'a>, db: Option<&View<'_>>) -> Option<&'a DatabaseLook> {
    let all = &case.main.databases;
    let own = all.iter().find(|look| db.is_some_and(|v| look.server.as_deref() == Some(v.about.server.as_str())));
    own.or_else(|| all.first().filter(|_| all.len() == 1)).filter(|look| look.trouble.is_none())
}

/// One statement of a database fills the processors, and reads many rows each time: it has a cure of its own.
pub(super) fn one_statement(case: &Case<'_>) -> Option<Finding> {
    let (v, peer, _) = at_database(case).filter(|_| case.cpu_full())?;
    let db = behind(case, &v, peer)?;
    let top = view_of(case, Some(&db))?.statements.first()?;
    let reads = top.share >= 0.5 && top.rows_read.is_none_or(|rows| rows >= MANY_ROWS);
    let uses_most = db.seen.cpu_cores.unwrap_or(0.0) >= 0.6 * case.busy_cores();
    database(case, false).filter(|_| reads && uses_most)
}

fn database(case: &Case<'_>, locked: bool) -> Option<Finding> {
    let (v, peer, share) = at_database(case)?;
    let db = behind(case, &v, peer);
    let cores = db.and_then(|b| b.seen.cpu_cores).unwrap_or(0.0);
    let view = view_of(case, db.as_ref());
    let waits = view.and_then(|look| look.lock_wait_mean).unwrap_or(0.0);
    let active = view.and_then(|look| look.active_mean).unwrap_or(0.0);
    let is_locked = waits >= 0.8 && waits >= 0.4 * active;
    if is_locked != locked {
        return None;
    }
    let name = db.map_or_else(|| "the database".to_string(), |b| b.about.server.clone());
    let top = view.and_then(|look| look.statements.first());
    let title = if locked {
        format!("statements in {name} wait for a lock")
    } else {
        format!("workers wait for {name}: its statements take the time")
    };
    let confidence = match (view, locked) {
        (Some(_), _) => 0.93,
        (None, _) if cores >= 0.7 => 0.85,
        (None, _) => 0.65,
    };
    let (source, what) = if v.has_pool() {
        ("/proc/PID/syscall", format!("share of the busy workers that wait for {peer}"))
    } else {
        ("database", format!("share of the sessions at {peer} in which a statement runs"))
    };
    let mut found = finding(confidence, title).of(&v).seen(source, &what, share, MOST);
    if let Some(look) = view {
        found = found
            .seen(&look.service, "sessions that wait for a lock, on average", waits, if locked { 0.8 } else { 0.0 })
            .seen(&look.service, "sessions with a statement that runs, on average", active, 0);
    }
    if let Some(top) = top {
        found = found.seen("statement", &top.statement, top.share, 0.3);
    }
    let blocker = view.and_then(|look| look.lock_waits.first());
    if let Some(wait) = blocker.filter(|_| locked) {
        let session = wait.blocker.map_or_else(|| "unknown".into(), |id| id.to_string());
        let runs = wait.blocker_statement.clone().unwrap_or_default();
        found = found.seen(
            "blocker",
            &format!("session {session} has the lock on {}; it runs or ran", wait.on.clone().unwrap_or_default()),
            runs,
            "",
        );
    }
    if let Some(scan) = view.and_then(|look| look.table_scans.first()).filter(|scan| !locked && scan.rows > 1000) {
        found = found.seen("table", &format!("rows of {} read from end to end", scan.table), scan.rows, 1000);
    }
    found = found
        .seen("/proc/PID/stat", &format!("cores of {name}"), cores, if locked { 0.0 } else { 0.7 })
        .seen("/proc/stat", "cores busy", case.busy_cores(), 0)
        .unless(if locked { "sessions that compute" } else { "sessions that wait for locks; workers that compute" });
    let advice = if locked {
        "shorter transactions: take the lock last and commit at once, no calls to others meanwhile; smaller locks (rows by an index \
         instead of tables)"
    } else if view.is_some() {
        "the statement above: an index where it reads a whole table, fewer rows, a cache; more workers only queue there"
    } else {
        "look at the statements in its own views (--db URL); more workers only queue there"
    };
    Some(found.do_this(Vec::new(), advice).check_by("time that a statement takes"))
}

fn slow_log(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let letters = v.seen.scoreboard.get("L").copied().unwrap_or(0.0);
        let board: f64 = v.seen.scoreboard.values().filter(|n| **n > 0.0).sum::<f64>() - v.seen.scoreboard.get(".").copied().unwrap_or(0.0);
        let writes = v.seen.waiting("pipe-write") + v.seen.waiting("write");
        let share = writes / v.busy().max(0.5);
        ((share >= 0.4 && v.busy() >= 0.8) || letters >= 0.4 * board.max(1.0)).then(|| {
            let to = v.seen.most_of("write").map_or("a pipe", |(file, _)| file).to_string();
            finding(0.87, format!("workers wait until their log takes a line: {to}"))
                .of(&v)
                .seen("/proc/PID/syscall", "share of the busy workers that wait to write", share, 0.4)
                .seen("scoreboard", "places with L", letters, 0.4 * board.max(1.0))
                .unless("workers that write to clients")
                .do_this(Vec::new(), "a program behind the pipe that keeps up, buffered logs (BufferedLogs On, buffer= in nginx), a faster disk")
                .check_by("no L in the scoreboard")
        })
    })
}

/// A log that has to be on the disk before the answer goes out.
fn slow_fsync(case: &Case<'_>) -> Option<Finding> {
    case.servers().into_iter().rev().filter(View::has_pool).find_map(|v| {
        let share = v.seen.waiting("disk") / v.busy().max(0.5);
        let inside = case.inside(&v.about.server)?;
        let (file, calls) = (inside.objects.get("fsync")?, inside.calls.get("fsync")?);
        (share >= MOST && v.busy() >= 0.8).then(|| {
            let waited: f64 = inside.waits_s.iter().filter(|(what, _)| what.starts_with("file ")).map(|(_, s)| s).sum();
            finding(0.85, format!("workers wait until a disk has what they write to {file}"))
                .of(&v)
                .seen("/proc/PID/syscall", "share of the busy workers that wait for a disk", share, MOST)
                .seen("trace", "seconds that one worker waited for files", waited, 0)
                .seen("trace", "calls of fsync meanwhile", calls * inside.requests.max(1.0), 1)
                .unless("workers that read, or wait for a peer")
                .do_this(Vec::new(), "write without waiting for the disk (no fsync; a buffer; a log server or a queue), or a faster disk; more workers only wait there, too")
                .check_by("no worker in fsync (lastdrop trace)")
        })
    })
}

fn slow_upstream(case: &Case<'_>) -> Option<Finding> {
    let found = case.servers().into_iter().rev().find_map(|v| {
        let (peer, share) = peer(&v)?;
        let next = behind(case, &v, peer);
        // One that is in the chain and full has its own finding.
        // What comes back to the server before it waits for its own workers.
        let comes_back = next.is_some_and(|b| b.place < v.place);
        let passes_on = comes_back || next.is_some_and(|b| b.has_pool());
        (v.has_pool() && share >= MOST && v.busy() >= 0.8 && !peer.ends_with(":53") && !passes_on)
            .then_some((v, peer, share))
    });
    if let Some((v, peer, share)) = found.filter(|_| case.cpu_idle()) {
        let worker_s = v.busy() / case.main.answered_rps.max(1e-9);
        let times = case.alone_s().map_or(1.0, |alone| worker_s / alone.max(1e-6));
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
                .seen("/proc/PID/syscall", &format!("share of the busy workers that wait for {peer}"), share, MOST)
                .seen("load", "time a worker is held by a request, against one user alone", times, 1.5)
                .seen("/proc/stat", "cores busy", case.busy_cores(), 0)
                .unless("workers that compute, or wait for a lock")
                .do_this(if more { v.more_workers(v.wanted_workers()) } else { Vec::new() }, advice)
                .brings(if more { case.bound(Some(v.wanted_workers())) } else { None })
                .check_by("time that calls to it take (lastdrop trace)"),
        );
    }
    front_waits(case).or_else(|| loop_waits(case))
}

/// An event loop or a program of few threads that has as many connections to one peer as there are requests, and nothing else to do.
fn loop_waits(case: &Case<'_>) -> Option<Finding> {
    let in_flight = case.main.answered_rps * case.main.response.mean / 1e6;
    let all = case.servers().into_iter().rev();
    let mut loops = all.filter(|v| !v.has_pool() || v.is_async()).filter(|v| !v.is(&["mariadb", "postgresql"]));
    let (v, peer, open) = loops.find_map(|v| {
        let open = |peer: &String| v.seen.peers.get(peer).map_or(0.0, |p| p.open + p.opening);
        let peer = v.about.connects.iter().max_by(|a, b| open(a).total_cmp(&open(b)))?;
        Some((v, peer, open(peer))).filter(|(_, _, open)| *open >= MOST * in_flight)
    })?;
    let rests = v.seen.hottest_process_cores < 0.5 && v.seen.waiting("running") < 0.5;
    let passes_on = behind(case, &v, peer).is_some_and(|b| b.has_pool() || b.seen.cpu_cores.unwrap_or(0.0) >= 0.5);
    let long = case.main.service.mean > 5_000.0 && !case.few_wait_long();
    (rests && long && !passes_on && case.cpu_idle() && !is_database(case, &v, peer)).then(|| {
        let name = behind(case, &v, peer).map_or_else(|| peer.clone(), |b| format!("{} ({peer})", b.about.server));
        finding(0.78, format!("{} waits for {name}", v.about.server))
            .of(&v)
            .seen("sock_diag", &format!("connections to {peer}, on average"), open, MOST * in_flight)
            .seen("load", "requests at once, on average", in_flight, 0)
            .seen("/proc/PID/stat", "cores of its busiest process", v.seen.hottest_process_cores, 0.5)
            .seen("load", "answers are so many times slower than for one user alone", case.slower().unwrap_or(0.0), 0)
            .unless("a loop that computes; fewer connections to it than requests: a pool of its own, or another wait")
            .do_this(Vec::new(), "look at that server; a time limit and a cache before it; calls that do not depend on each other side by side")
            .check_by("time that calls to it take")
    })
}

/// A front without a pool of its own, before somebody of whom it can only be seen that he does not compute.
fn front_waits(case: &Case<'_>) -> Option<Finding> {
    let all = case.servers();
    let v =
        all.iter().rev().find(|v| v.is(&["nginx", "haproxy"]) && !v.about.connects.is_empty() && case.cpu_idle())?;
    let computes = |b: &View<'_>| b.seen.waiting("running") >= 1.0 || b.seen.hottest_process_cores >= 0.5;
    let behind_has_pool = all.iter().any(|b| v.about.to.contains(&b.about.server) && (b.has_pool() || computes(b)));
    let peer = v.about.connects.first()?;
    let named =
        v.about.to.first().filter(|to| !to.is_empty()).map_or_else(|| peer.clone(), |to| format!("{to} ({peer})"));
    let waits =
        case.inside(&v.about.server).and_then(|i| i.waits_s.get(&format!("peer {peer}"))).copied().unwrap_or(0.0);
    let rests = v.seen.waiting("events") >= 0.7 * v.seen.threads && v.seen.hottest_thread_cores < ONE_CORE;
    // The mean of a few that wait for lost packets tells nothing of the server behind.
    let lost = case.few_wait_long();
    (!behind_has_pool && rests && !lost && case.main.service.mean > 5_000.0).then(|| {
        finding(0.75, format!("{} waits for {named}", v.about.server))
            .of(v)
            .seen("trace", &format!("seconds a request waits for {peer}"), waits, 0)
            .seen(
                "/proc/PID/syscall",
                "its threads that wait for events",
                v.seen.waiting("events"),
                0.7 * v.seen.threads,
            )
            .seen("load", "answers are so many times slower than for one user alone", case.slower().unwrap_or(0.0), 1.3)
            .unless("a front that computes, or a pool behind it whose workers tell more")
            .do_this(Vec::new(), "look at that server: it answers one after the other, or waits itself")
            .check_by("$upstream_response_time in the log")
    })
}

/// Causes that cannot be told apart from what was seen.
pub(super) fn cannot_tell(case: &Case<'_>, limit: &Finding) -> Vec<[String; 2]> {
    let pair = |a: &str, b: &str| vec![[a.to_string(), b.to_string()]];
    match limit.id.as_str() {
        "db-slow" if case.main.databases.iter().all(|look| look.trouble.is_some()) => pair("db-slow", "db-locked"),
        _ => Vec::new(),
    }
}
