//! Rules about what a server waits for, in the order in which they explain each other. It may wait for other servers
//! (`upstreams`), databases (`databases`), locks (`locks`), name servers or logs.

use lastdrop_model::documents::Finding;
use serde_json::json;

use super::Rule;
use super::databases::{database, database_refuses, own_pool, pooler};
use super::evidence::{FindingBuilder, LoadEvidence, ServerEvidence, finding};
use super::locks::{no_more_than_one, perl_interpreters, serialized, session_lock, sessions_apart};
use super::programs::starts_programs;
use super::upstreams::{
    connect_retries, few_connections, few_to_idle_database, slow_upstream, upstream_full, upstream_refused,
};

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
    Rule { id: "db-pool-exhausted", look: few_to_idle_database },
    Rule { id: "db-slow", look: |c| database(c, false) },
    Rule { id: "slow-log", look: slow_log },
    Rule { id: "slow-log", look: slow_fsync },
    Rule { id: "slow-upstream", look: slow_upstream },
];

/// Waits that take as long for one user as for many.
pub(super) const LONG: &[Rule] = &[
    Rule { id: "dns-lookup", look: |c| names(c, true) },
    Rule { id: "resolver-slow", look: |c| names(c, false) },
    Rule { id: "db-slow", look: |c| database(c, false) },
    Rule { id: "slow-upstream", look: slow_upstream },
];

/// Rules that conclude by exclusion, where no thread shows what requests wait for: a program with an event loop, or
/// with threads of its own making.
pub(super) const BY_EXCLUSION: &[Rule] = &[
    Rule { id: "db-pool-exhausted", look: |c| few_connections(c, true) },
    Rule { id: "slow-upstream", look: |c| few_connections(c, false) },
    Rule { id: "serialized", look: no_more_than_one },
];

/// Share of the busy workers that must be in the same state.
pub(super) const MOST: f64 = 0.5;

/// Returns the server furthest back whose workers are mostly in these states, with their share.
pub(super) fn waiting<'a>(case: &'a LoadEvidence<'a>, what: &[&str]) -> Option<(ServerEvidence<'a>, f64)> {
    let share = |v: &ServerEvidence<'_>| what.iter().map(|w| v.share(w)).sum::<f64>();
    let all = case.servers().into_iter().rev();
    all.map(|v| (v, share(&v))).find(|(v, share)| *share >= MOST && v.busy() >= 0.8 && v.has_pool())
}

fn names(case: &LoadEvidence<'_>, reverse: bool) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let asked = v.calls("dns");
        let share = v.names_asked() / v.busy().max(0.5);
        let letters = v.seen.scoreboard.get("D").copied().unwrap_or(0.0);
        let board: f64 = v.seen.scoreboard.values().sum();
        // A reverse lookup is followed by a lookup of the returned name, if the name has to be verified.
        let reversed = v.calls("dns-reverse");
        let asks_for_names = reversed >= 0.3 && reversed >= 0.15 * asked;
        let is_reverse = asks_for_names
            || v.is(&["apache"])
                && (letters >= 0.3 * board.max(1.0)
                    || v.setting("HostnameLookups").is_some_and(|s| s != "Off")
                    || v.about.directives.get("HostnameLookups").is_some_and(|s| !s.eq_ignore_ascii_case("off")));
        // An event loop waits for all peers in one call; the wait is counted for the peer that answers next.
        let (mut all_peers, mut waited) = (0.0, 0.0);
        for (what, seconds) in case.inside(&v.about.server).map(|i| &i.waits_s).into_iter().flatten() {
            all_peers += if what.starts_with("peer ") { *seconds } else { 0.0 };
            waited += if what.starts_with("peer ") && what.ends_with(":53") { *seconds } else { 0.0 };
        }
        let in_a_loop = !v.has_pool() && asked >= 0.3 * v.calls("client-write") && waited > 0.0 && waited >= MOST * all_peers;
        if in_a_loop && !reverse && !asks_for_names && case.alone_s().is_some_and(|s| s >= 0.02) {
            return Some(
                finding(0.8, format!("{} asks a name server for each request, and waits for it", v.about.server))
                    .of(&v)
                    .evidence("trace", "questions to it for each write to a client", asked / v.calls("client-write").max(1e-3), 0.3)
                    .evidence("trace", "share of it in what is waited for", waited / all_peers, MOST)
                    .evidence("load", "answers of one user alone, ms", case.alone_s().map(|s| s * 1e3), 20)
                    .ruled_out("no traffic to port 53")
                    .fix(Vec::new(), "resolver … valid=60s (nginx), a name in an upstream block instead of a variable, a caching resolver on this machine")
                    .verify("no questions to port 53 in lastdrop trace"),
            );
        }
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
            .evidence("/proc/PID/syscall", "share of the busy workers that wait for port 53", share, 0.4)
            .evidence("trace", "questions to it a request", asked, 0.5)
            .evidence("trace", "of them for the name of an address", reversed, 0.3)
            .evidence("scoreboard", "places with D", v.letters("D"), 0.3 * board.max(1.0))
            .ruled_out("no traffic to port 53");
            if reverse {
                found
                    .fix(
                        v.is(&["apache"]).then(|| v.fix("HostnameLookups", json!("Off"))).into_iter().collect(),
                        "addresses in logs become names later, with logresolve; Require ip instead of Require host; no gethostbyaddr in scripts",
                    )
                    .verify("no D in the scoreboard")
            } else {
                found
                    .fix(
                        Vec::new(),
                        "a caching resolver on this machine, addresses instead of names, connections that are kept",
                    )
                    .verify("no questions to port 53 in lastdrop trace")
            }
        })
    })
}

/// Returns the peer that most of the busy workers wait for, and their share.
pub(super) fn peer<'a>(v: &ServerEvidence<'a>) -> Option<(&'a str, f64)> {
    let (peer, n) = v.seen.most_of("peer")?;
    Some((peer, n / v.busy().max(0.5)))
}

/// Returns the server that listens there, if it is known.
pub(super) fn behind<'a>(case: &'a LoadEvidence<'a>, v: &ServerEvidence<'_>, peer: &str) -> Option<ServerEvidence<'a>> {
    let by_link = v.about.connects.iter().position(|c| c == peer).and_then(|i| v.about.to.get(i));
    let all = case.servers();
    all.into_iter()
        .find(|b| by_link.is_some_and(|to| *to == b.about.server) || b.about.listens.iter().any(|l| l == peer))
}

fn slow_log(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().find_map(|v| {
        let letters = v.seen.scoreboard.get("L").copied().unwrap_or(0.0);
        let board: f64 = v.seen.scoreboard.values().filter(|n| **n > 0.0).sum::<f64>() - v.seen.scoreboard.get(".").copied().unwrap_or(0.0);
        let writes = v.seen.waiting("pipe-write") + v.seen.waiting("write");
        let share = writes / v.busy().max(0.5);
        // Apache waits for the end of a CGI program in this state, too.
        let by_letters = letters >= 0.4 * board.max(1.0) && !starts_programs(case, &v);
        ((share >= 0.4 && v.busy() >= 0.8) || by_letters).then(|| {
            let to = v.seen.most_of("write").map_or("a pipe", |(file, _)| file).to_string();
            finding(0.87, format!("workers wait until their log takes a line: {to}"))
                .of(&v)
                .evidence("/proc/PID/syscall", "share of the busy workers that wait to write", share, 0.4)
                .evidence("scoreboard", "places with L", v.letters("L"), 0.4 * board.max(1.0))
                .ruled_out("workers that write to clients")
                .fix(Vec::new(), "a program behind the pipe that keeps up, buffered logs (BufferedLogs On, buffer= in nginx), a faster disk")
                .verify("no L in the scoreboard")
        })
    })
}

/// Finds a log that must be on the disk before the answer goes out.
fn slow_fsync(case: &LoadEvidence<'_>) -> Option<Finding> {
    case.servers().into_iter().rev().filter(ServerEvidence::has_pool).find_map(|v| {
        let share = v.seen.waiting("disk") / v.busy().max(0.5);
        let inside = case.inside(&v.about.server)?;
        let (file, calls) = (inside.objects.get("fsync")?, inside.calls.get("fsync")?);
        (share >= MOST && v.busy() >= 0.8).then(|| {
            let waited: f64 = inside.waits_s.iter().filter(|(what, _)| what.starts_with("file ")).map(|(_, s)| s).sum();
            finding(0.85, format!("workers wait until a disk has what they write to {file}"))
                .of(&v)
                .evidence("/proc/PID/syscall", "share of the busy workers that wait for a disk", share, MOST)
                .evidence("trace", "seconds that one worker waited for files", waited, 0)
                .evidence("trace", "calls of fsync meanwhile", calls * inside.requests.max(1.0), 1)
                .ruled_out("workers that read, or wait for a peer")
                .fix(Vec::new(), "write without waiting for the disk (no fsync; a buffer; a log server or a queue), or a faster disk; more workers only wait there, too")
                .verify("no worker in fsync (lastdrop trace)")
        })
    })
}
