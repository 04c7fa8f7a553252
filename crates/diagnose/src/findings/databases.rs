//! Rules about databases behind a server: too few connections, statements that wait for a lock, slow statements.

use lastdrop_analyze::services::service_at;
use lastdrop_model::documents::Finding;
use lastdrop_model::{DatabaseSample, SessionState};

use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding};
use super::locks::waiting_inside;
use super::peers::{MOST, behind, peer};

/// A statement that reads this many rows has no suitable index.
const MANY_ROWS: u64 = 1_000;
/// Poolers between an application and its database, with fewer connections to the database than clients have to them.
const POOLERS: &[&str] = &["pgbouncer", "pgcat", "odyssey", "pgpool", "proxysql", "maxscale"];

pub(super) fn database_refuses(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let lines = v.log("database-connections");
        let refused: u64 = case.main.databases.iter().filter_map(DatabaseSample::refused_connections).sum();
        let errors = case.main.share_of_status(|s| s.starts_with('5')) > 0.01;
        // What a proxy reads may be a page about such errors.
        let read = if v.is(&["nginx", "haproxy", "caddy", "lighttpd"]) { 0.0 } else { v.calls("database-refused") };
        let told = v.logged_for_other_clients("database-connections");
        (((lines > 0 && errors) || told || refused > 10 || read >= 0.2) && (v.has_pool() || read >= 0.2)).then(|| {
            finding(0.9, "the database takes no more connections")
                .of(&v)
                .evidence("error log", v.sample_line("database-connections"), lines, 1)
                .evidence("database", "connections that it refused", refused, 10)
                .evidence("trace", "answers a request that say so", read, 0.2)
                .evidence("load", "answers 5xx, share", case.main.share_of_status(|s| s.starts_with('5')), 0.01)
                .fix(
                    Vec::new(),
                    "fewer workers than the database has connections, or raise max_connections; a pooler before it",
                )
                .verify("no more of these lines")
        })
    })
}

/// Finds workers that wait for a pooler which has too few connections to a database that is not busy.
pub(super) fn pooler(case: &LoadEvidence<'_>) -> Option<Finding> {
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
                .evidence("/proc/PID/syscall", &format!("workers that wait for {peer}"), waiting, 1.5 * sessions)
                .evidence(&look.service, "sessions", sessions, 0)
                .evidence(&look.service, "sessions with a statement that runs, on average", active, MOST * waiting)
                .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
                .ruled_out("as many sessions as workers that wait; statements that run or wait for a lock")
                .fix(Vec::new(), format!("a larger pool in {name} (default_pool_size, pool_size), as far as the database bears it; connections held for the statement alone: \
                                              shorter transactions, pool_mode = transaction"))
                .verify("clients that wait in its own view (SHOW POOLS: cl_waiting)")
        })
    })
}

/// Finds requests that wait for a connection of the application's own pool.
pub(super) fn own_pool(case: &LoadEvidence<'_>) -> Option<Finding> {
    let Some(v) = waiting_inside(case) else { return pool_of_a_loop(case) };
    let peer = v.about.connects.iter().find(|peer| is_database(case, &v, peer))?;
    let db = behind(case, &v, peer);
    let cores = db.and_then(|b| b.seen.cpu_cores);
    let active = view_of(case, db.as_ref()).and_then(|look| look.active_mean);
    (cores.unwrap_or(0.0) < 0.3 && active.is_none_or(|n| n < 0.5 * v.seen.waiting("futex"))).then(|| {
        finding(0.8, format!("requests wait inside {} for a connection to its database, which has time", v.about.server))
            .of(&v)
            .evidence("/proc/PID/syscall", "threads that wait for each other (futex)", v.seen.waiting("futex"), 0.6 * v.seen.threads)
            .evidence("/proc/PID/stat", "cores of the database", cores, 0)
            .evidence("database", "statements that run, on average", active, 0)
            .evidence("load", "answers are so many times slower than for one user alone", case.slower(), 2)
            .ruled_out("a database at work; threads that compute")
            .fix(Vec::new(), "more connections in the application's pool (pool_size), held for the statement alone and not while something else is done")
            .verify("threads in futex; statements that run")
    })
}

/// Returns an idle event loop before a database, whose requests wait though no thread shows it; and the database's
/// address.
fn waiting_loop<'a>(case: &'a LoadEvidence<'a>) -> Option<(ServerEvidence<'a>, &'a str)> {
    let all = case.servers().into_iter().rev();
    let mut loops = all.filter(|v| v.is(&["node"]) && v.seen.hottest_process_cores < 0.5);
    let (v, peer) = loops.find_map(|v| {
        let mut peers = v.about.connects.iter().filter(|peer| is_database(case, &v, peer));
        peers.next().map(|peer| (v, peer.as_str()))
    })?;
    (case.cpu_idle() && case.slower().is_some_and(|t| t >= 2.0)).then_some((v, peer))
}

/// Like [`own_pool`], in an event loop: fewer sessions than requests, most of them in a transaction in which no
/// statement runs.
fn pool_of_a_loop(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (v, peer) = waiting_loop(case)?;
    let look = view_of(case, behind(case, &v, peer).as_ref())?;
    let held = look.states.get(&SessionState::IdleInTransaction).copied().unwrap_or(0) as f64;
    let (all, active) = (look.states.values().sum::<u64>() as f64, look.active_mean?);
    // If each request had a connection, there would be as many sessions.
    let requests = case.in_flight();
    (held >= 1.0 && held >= MOST * all && active < MOST * all && requests >= 1.5 * all).then(|| {
        finding(0.85, format!("requests wait inside {} for one of its connections to its database, which has time", v.about.server))
            .of(&v)
            .evidence(&look.service, "sessions in a transaction in which nothing runs", held, MOST * all)
            .evidence(&look.service, "sessions with a statement that runs, on average", active, 0)
            .evidence("load", "requests at once, on average", requests, 1.5 * all)
            .evidence("load", "answers are so many times slower than for one user alone", case.slower(), 2)
            .ruled_out("statements that run or wait for a lock; a session for each request")
            .fix(Vec::new(), "hold a connection for the statements alone and not while something else is done; more connections in the application's pool (max, pool_size)")
            .verify("sessions that are idle in transaction; throughput")
    })
}

pub(super) fn is_database(case: &LoadEvidence<'_>, v: &ServerEvidence<'_>, peer: &str) -> bool {
    let behind = behind(case, v, peer);
    let traced = || case.inside(&v.about.server)?.programs.get(peer).cloned();
    let program = behind.map(|b| b.about.software.clone()).or_else(traced);
    behind.is_some_and(|b| b.is(&["mariadb", "mysql", "postgresql"]))
        || service_at(peer, program.as_deref()).is_some_and(|s| s.is_database)
}

/// Returns the server furthest back whose workers wait for a database, the database's address, and their share. For an
/// event loop it is the share of its sessions in which a statement runs.
fn at_database<'a>(case: &'a LoadEvidence<'a>) -> Option<(ServerEvidence<'a>, &'a str, f64)> {
    let of_a_pool = case.servers().into_iter().rev().filter(ServerEvidence::has_pool).find_map(|v| {
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

/// Returns the database's own statistics: those of the server `db`, otherwise those of the only database.
pub(super) fn view_of<'a>(case: &LoadEvidence<'a>, db: Option<&ServerEvidence<'_>>) -> Option<&'a DatabaseSample> {
    let all = &case.main.databases;
    let own = all.iter().find(|look| db.is_some_and(|v| look.server.as_deref() == Some(v.about.server.as_str())));
    own.or_else(|| all.first().filter(|_| all.len() == 1)).filter(|look| look.trouble.is_none())
}

/// Finds a single statement that fills the processors and reads many rows each time. It has a remedy of its own.
pub(super) fn one_statement(case: &LoadEvidence<'_>) -> Option<Finding> {
    let (v, peer, _) = at_database(case).filter(|_| case.cpu_full())?;
    let db = behind(case, &v, peer)?;
    let top = view_of(case, Some(&db))?.statements.first()?;
    let reads = top.share >= 0.5 && top.rows_read.is_none_or(|rows| rows >= MANY_ROWS);
    let uses_most = db.seen.cpu_cores.unwrap_or(0.0) >= 0.6 * case.busy_cores();
    database(case, false).filter(|_| reads && uses_most)
}

pub(super) fn database(case: &LoadEvidence<'_>, locked: bool) -> Option<Finding> {
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
    let mut found = finding(confidence, title).of(&v).evidence(source, &what, share, MOST);
    if let Some(look) = view {
        found = found
            .evidence(
                &look.service,
                "sessions that wait for a lock, on average",
                look.lock_wait_mean,
                if locked { 0.8 } else { 0.0 },
            )
            .evidence(&look.service, "sessions with a statement that runs, on average", look.active_mean, 0);
    }
    if let Some(top) = top {
        found = found.evidence("statement", &top.statement, top.share, 0.3);
    }
    let blocker = view.and_then(|look| look.lock_waits.first());
    if let Some(wait) = blocker.filter(|_| locked) {
        let session = wait.blocker.map_or_else(|| "unknown".into(), |id| id.to_string());
        let runs = wait.blocker_statement.clone().unwrap_or_default();
        found = found.evidence(
            "blocker",
            &format!("session {session} has the lock on {}; it runs or ran", wait.on.clone().unwrap_or_default()),
            runs,
            "",
        );
    }
    if let Some(scan) = view.and_then(|look| look.table_scans.first()).filter(|scan| !locked && scan.rows > 1000) {
        found = found.evidence("table", &format!("rows of {} read from end to end", scan.table), scan.rows, 1000);
    }
    found = found
        .evidence(
            "/proc/PID/stat",
            &format!("cores of {name}"),
            db.and_then(|b| b.seen.cpu_cores),
            if locked { 0.0 } else { 0.7 },
        )
        .evidence("/proc/stat", "cores busy", case.busy_cores(), 0)
        .ruled_out(if locked { "sessions that compute" } else { "sessions that wait for locks; workers that compute" });
    let advice = if locked {
        "shorter transactions: take the lock last and commit at once, no calls to others meanwhile; smaller locks (rows by an index \
         instead of tables)"
    } else if view.is_some() {
        "the statement above: an index where it reads a whole table, fewer rows, a cache; more workers only queue there"
    } else {
        "look at the statements in its own views (--db URL); more workers only queue there"
    };
    Some(found.fix(Vec::new(), advice).verify("time that a statement takes"))
}

/// Returns pairs of causes that the evidence cannot tell apart.
pub(super) fn cannot_tell(case: &LoadEvidence<'_>, limit: &Finding) -> Vec<[String; 2]> {
    let pair = |a: &str, b: &str| vec![[a.to_string(), b.to_string()]];
    match limit.id.as_str() {
        "db-slow" if case.main.databases.iter().all(|look| look.trouble.is_some()) => pair("db-slow", "db-locked"),
        _ => Vec::new(),
    }
}
