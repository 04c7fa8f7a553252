//! System calls summed up per request: how often, on what object, at what cost, and how to avoid them.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::documents::{TraceKind, TraceRow, TraceWait};
use lastdrop_model::sample::Syscall;

use crate::series::median;
use crate::services::service_at;
use crate::waiting::{CallRole, object, parts, round_trips};

/// The calls of a request, and their causes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calls {
    pub rows: Vec<TraceRow>,
    pub waiting: Vec<TraceWait>,
    pub kinds: Vec<TraceKind>,
    pub floor_us: f64,
}

/// Times of calls on files measured without tracing, in seconds, by call and path.
pub type Timings = BTreeMap<(String, String), f64>;

/// A trace to evaluate.
#[derive(Debug, Clone, Copy)]
pub struct Trace<'a> {
    /// In the order in which they returned.
    pub calls: &'a [Syscall],
    pub requests: u64,
    /// The ports on which the server listens.
    pub ports: &'a [u16],
    /// Path of the requested URL, without its query.
    pub url_path: &'a str,
    pub timed: &'a Timings,
    /// This machine's programs by listening address.
    pub programs: &'a BTreeMap<String, String>,
}

/// Calls that inspect a path without opening it.
const LOOKS: &[&str] = &["stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink"];
/// Source files of programs, by suffix.
const SOURCES: &[&str] =
    &[".php", ".phtml", ".inc", ".pm", ".pl", ".py", ".rb", ".lua", ".js", ".mjs", ".twig", ".tpl"];
/// From this many opened source files on, they are reported: every program has an entry point and what that
/// loads.
const MANY_SOURCES: f64 = 5.0;
/// From the first number on, database round trips are reported; from the second on, there is advice to reduce
/// them.
const SOME_TRIPS: f64 = 2.0;
const MANY_TRIPS: f64 = 10.0;

/// Returns the addresses of the peers that a request talks to or waits for.
#[must_use]
pub fn peers(calls: &[Syscall], ports: &[u16]) -> BTreeSet<String> {
    let objects: Vec<String> = calls.iter().map(|c| object(c, ports)).collect();
    let waited = parts(calls, &objects).into_iter().filter_map(|p| match p {
        CallRole::Waits("peer", peer) => Some(peer),
        _ => None,
    });
    waited.chain(round_trips(calls, &objects).into_keys()).collect()
}

/// The key of a row: calls with the same values are added up.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey<'a> {
    call: &'a str,
    path: String,
    error: Option<&'a str>,
    /// The kind of its wait.
    what: Option<&'static str>,
    is_free: bool,
}

/// Adds up the calls per request. A call on a file costs what `timed` says. Any other costs the median time
/// in the trace minus the fastest call of all, which is the overhead of tracing. Waits use the mean, since
/// their durations are real.
#[must_use]
pub fn per_request(traced: &Trace<'_>) -> Calls {
    let calls = traced.calls;
    let n = traced.requests.max(1) as f64;
    let floor = calls.iter().map(|c| c.seconds).fold(f64::INFINITY, f64::min);
    let floor_us = if floor.is_finite() { floor * 1e6 } else { 0.0 };
    let objects: Vec<String> = calls.iter().map(|c| object(c, traced.ports)).collect();
    let mut rows: BTreeMap<RowKey<'_>, Vec<f64>> = BTreeMap::new();
    for ((c, object), part) in calls.iter().zip(&objects).zip(parts(calls, &objects)) {
        let (path, what, is_free) = match part {
            CallRole::Idle => continue,
            CallRole::Work => (object.clone(), None, false),
            CallRole::Free => (object.clone(), None, true),
            CallRole::Waits(what, which) => (which, Some(what), false),
        };
        let same = RowKey { call: &c.call, path, error: c.error.as_deref(), what, is_free };
        rows.entry(same).or_default().push(c.seconds * 1e6);
    }
    let mut waiting: BTreeMap<(String, &str, String), (f64, f64)> = BTreeMap::new();
    let mut all = Vec::new();
    for (RowKey { call, path, error, what, is_free }, us) in rows {
        let own = traced.timed.get(&(call.to_string(), path.clone())).map(|s| s * 1e6).filter(|_| what.is_none());
        let mean = us.iter().sum::<f64>() / us.len() as f64;
        let each = match own {
            _ if is_free => 0.0,
            _ if what.is_some() => (mean - floor_us).max(0.0),
            Some(us) => us,
            None => (median(&us) - floor_us).max(0.0),
        };
        let per_request = us.len() as f64 / n;
        if let Some(what) = what {
            let sum = waiting.entry((call.to_string(), what, path.clone())).or_default();
            *sum = (sum.0 + per_request, sum.1 + per_request * each);
        }
        all.push(TraceRow {
            call: call.to_string(),
            path,
            error: error.map(str::to_string),
            per_request: round(per_request),
            us_per_request: round(per_request * each),
            traced: own.is_none(),
            waits: what.is_some(),
        });
    }
    let rows = {
        all.sort_by(|a, b| b.us_per_request.total_cmp(&a.us_per_request).then(b.per_request.total_cmp(&a.per_request)));
        all
    };
    let mut waiting: Vec<TraceWait> = waiting
        .into_iter()
        .map(|((call, what, peer), (per_request, us))| {
            let process = traced.programs.get(&peer).cloned();
            let service = service_at(&peer, process.as_deref()).filter(|_| what == "peer").map(|s| s.name.to_string());
            let (per_request, us_per_request) = (round(per_request), round(us));
            TraceWait { call, what: what.into(), peer, process, service, per_request, us_per_request }
        })
        .collect();
    waiting.sort_by(|a, b| b.us_per_request.total_cmp(&a.us_per_request));
    let mut kinds = kinds(&rows, traced.url_path);
    let trips = round_trips(calls, &objects);
    kinds.extend(trips.iter().filter_map(|(peer, trips)| database(traced, &rows, peer, *trips as f64 / n)));
    kinds.sort_by(|a, b| b.us_per_request.total_cmp(&a.us_per_request));
    Calls { rows, waiting, kinds, floor_us: round(floor_us) }
}

/// Returns the round trips to a database, if there are enough.
fn database(traced: &Trace<'_>, rows: &[TraceRow], peer: &str, per_request: f64) -> Option<TraceKind> {
    let program = traced.programs.get(peer).map(String::as_str);
    let service = service_at(peer, program).filter(|s| s.is_database && per_request >= SOME_TRIPS)?;
    let us: f64 = rows.iter().filter(|r| r.path == peer).map(|r| r.us_per_request).sum();
    let advice = if per_request >= MANY_TRIPS {
        "fewer of them: read what belongs together in one query, keep what seldom changes in a cache; each costs its time \
         even where the database is idle"
    } else {
        ""
    };
    Some(TraceKind {
        kind: "database-round-trips".into(),
        per_request: round(per_request),
        us_per_request: round(us),
        title: format!(
            "{} round trips to the database {} at {peer}",
            round(per_request),
            program.unwrap_or(service.name)
        ),
        advice: advice.into(),
    })
}

fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// Returns whether a server looks up a file for the URL here: the path ends with the URL's path, or with what
/// remains of it after an alias prefix.
fn is_of_url(path: &str, url_path: &str) -> bool {
    // Skip source files: a virtual URL does not end in one, and programs look for theirs in many places.
    if SOURCES.iter().any(|end| path.ends_with(end)) {
        return false;
    }
    let mut rest = url_path.trim_end_matches('/');
    while !rest.is_empty() {
        if path.ends_with(rest) {
            return true;
        }
        rest = rest[1..].find('/').map_or("", |slash| &rest[slash + 1..]);
    }
    false
}

/// Groups rows with a common cause and sums them up.
fn kinds(rows: &[TraceRow], url_path: &str) -> Vec<TraceKind> {
    let looks = |r: &&TraceRow| LOOKS.contains(&r.call.as_str());
    let missing = |r: &TraceRow| matches!(r.error.as_deref(), Some("ENOENT" | "ENOTDIR"));
    let htaccess = |r: &TraceRow| r.path.ends_with("/.htaccess");
    let opens = |r: &TraceRow| r.call.starts_with("open");
    let per_file = |r: &TraceRow| r.path.starts_with('/') && r.per_request >= 0.5;
    // Paths that were looked up because of the URL and do not exist, with their parents: for /a/b/c all of
    // /a/b/c, /a/b, /a. Other missing files are the program's own affair.
    let virtual_paths: BTreeSet<&str> = rows
        .iter()
        .filter(looks)
        .filter(|r| missing(r) && !htaccess(r) && is_of_url(&r.path, url_path))
        .map(|r| r.path.as_str())
        .collect();
    let leads_to_missing =
        |r: &TraceRow| virtual_paths.iter().any(|v| *v == r.path || v.starts_with(&format!("{}/", r.path)));
    let mut all = Vec::new();
    let mut add = |kind: &str, title: String, advice: &str, rows: Vec<&TraceRow>| {
        let sum = |f: fn(&TraceRow) -> f64| round(rows.iter().map(|r| f(r)).sum());
        let per_request = sum(|r| r.per_request);
        if per_request > 0.0 {
            let (kind, advice) = (kind.into(), advice.into());
            all.push(TraceKind { kind, per_request, us_per_request: sum(|r| r.us_per_request), title, advice });
        }
    };
    let of = |rows: &[&TraceRow]| rows.iter().map(|r| r.path.as_str()).collect::<BTreeSet<_>>().len();
    let found: Vec<&TraceRow> = rows.iter().filter(|r| htaccess(r)).collect();
    add(
        "htaccess",
        format!(".htaccess looked for in {} folders on the way to the document", of(&found)),
        "AllowOverride None, and what the files say into the configuration",
        found,
    );
    let found: Vec<&TraceRow> =
        rows.iter().filter(looks).filter(|r| per_file(r) && leads_to_missing(r) && !htaccess(r)).collect();
    add(
        "virtual-path",
        format!("{} paths looked at for a URL that no file has", of(&found)),
        "map the URL to its handler directly (<Location>, Alias, ScriptAlias, try_files without $uri) so that no file is looked for",
        found,
    );
    let found: Vec<&TraceRow> = rows
        .iter()
        .filter(looks)
        .filter(|r| missing(r) && per_file(r) && !leads_to_missing(r) && !htaccess(r))
        .collect();
    add("missing-lookup", format!("{} paths that the program looks for and that are not there", of(&found)), "", found);
    let is_source = |r: &&TraceRow| SOURCES.iter().any(|end| r.path.ends_with(end));
    let found: Vec<&TraceRow> =
        rows.iter().filter(is_source).filter(|r| opens(r) && r.error.is_none() && per_file(r)).collect();
    let (files, php) = (of(&found), found.iter().all(|r| r.path.ends_with(".php")));
    if found.iter().map(|r| r.per_request).sum::<f64>() >= MANY_SOURCES {
        // PHP's opcode cache opens none of the files that it holds.
        let advice = "the opcode cache is off, full or told to forget them: opcache.enable=1, opcache.memory_consumption, \
                      opcache.max_accelerated_files";
        // A program may read the beginning of some of its files without compiling them.
        let opened = if php { "opened, and compiled," } else { "opened" };
        let title = format!("{files} source files are {opened} for each request");
        add("source-files", title, if php { advice } else { "" }, found);
    }
    let found: Vec<&TraceRow> = rows.iter().filter(|r| opens(r) && missing(r) && !htaccess(r) && per_file(r)).collect();
    add(
        "missing-file",
        format!("{} files opened that are not there", of(&found)),
        "take them out of the search path, or put them where they are looked for first",
        found,
    );
    let found: Vec<&TraceRow> = rows.iter().filter(|r| r.call == "lstat" && !missing(r) && per_file(r)).collect();
    add(
        "path-components",
        "each folder of the path looked at for symbolic links".into(),
        "Options FollowSymLinks instead of SymLinksIfOwnerMatch or none",
        found,
    );
    let dns = |r: &TraceRow| r.path.ends_with(":53") || r.path == "/etc/resolv.conf" || r.path == "/etc/hosts";
    let found: Vec<&TraceRow> = rows.iter().filter(|r| dns(r)).collect();
    add(
        "dns",
        "names are resolved".into(),
        "HostnameLookups Off; addresses instead of names; a caching resolver",
        found,
    );
    let found: Vec<&TraceRow> = rows
        .iter()
        .filter(|r| r.call == "connect" && !dns(r) && !r.path.contains("nscd") && r.per_request >= 0.5)
        .collect();
    add(
        "new-connection",
        format!("a new connection to {} for each request", found.first().map_or("", |r| r.path.as_str())),
        "keep connections open (Apache::DBI, persistent connections of PHP, keepalive of a proxy), where the other end keeps them: sync \
         workers of gunicorn close each",
        found,
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, path: &str, error: Option<&str>, us: f64) -> Syscall {
        let (call, path, operation) = (name.into(), path.into(), String::new());
        Syscall { pid: 1, call, path, operation, error: error.map(Into::into), seconds: us / 1e6 }
    }

    fn of(calls: &[Syscall], requests: u64, url_path: &str, timed: &Timings) -> Calls {
        let programs = BTreeMap::from([("127.0.0.1:3306".to_string(), "mariadbd".to_string())]);
        per_request(&Trace { calls, requests, ports: &[80], url_path, timed, programs: &programs })
    }

    fn kind<'a>(c: &'a Calls, name: &str) -> Option<&'a TraceKind> {
        c.kinds.iter().find(|k| k.kind == name)
    }

    #[test]
    fn what_a_request_does_is_counted_and_named() {
        let mut calls = Vec::new();
        for i in 0..10 {
            for folder in ["", "/srv", "/srv/www", "/srv/www/docs"] {
                calls.push(call("openat", &format!("{folder}/.htaccess"), Some("ENOENT"), 15.0));
            }
            calls.push(call("newfstatat", "/srv/www/app/list/7", Some("ENOENT"), 9.0));
            calls.push(call("newfstatat", "/srv/www/app/list", Some("ENOENT"), 9.0));
            calls.push(call("newfstatat", "/srv/www/app", Some("ENOENT"), 9.0));
            calls.push(call("newfstatat", "/srv/www/real.html", None, 9.0));
            calls.push(call("accept4", "TCP:[127.0.0.1:80]", None, 1e6));
            calls.push(call("read", &format!("TCP:[127.0.0.1:80->127.0.0.1:{}]", 4000 + i), None, 5e5));
            calls.push(call("write", &format!("TCP:[127.0.0.1:80->127.0.0.1:{}]", 4000 + i), None, 25.0));
            calls.push(call("connect", "127.0.0.1:3306", None, 105.0));
            calls.push(call("close", "", None, 5.0));
        }
        let timed = Timings::from([(("newfstatat".to_string(), "/srv/www/real.html".to_string()), 2e-6)]);
        let c = of(&calls, 10, "/app/list/7", &timed);
        let row = |name: &str, path: &str| {
            c.rows.iter().find(|r| r.call == name && r.path == path).unwrap_or_else(|| panic!("{name} {path}"))
        };
        assert_eq!(c.floor_us, 5.0);
        assert_eq!((row("write", "client").per_request, row("write", "client").us_per_request), (1.0, 20.0));
        let real = row("newfstatat", "/srv/www/real.html");
        assert_eq!((real.us_per_request, real.traced), (2.0, false));
        // Waits for the client are not the server's.
        assert_eq!((row("read", "client").us_per_request, row("accept4", "listener").us_per_request), (0.0, 0.0));
        assert_eq!(c.rows[0].call, "connect");
        let kind = |name: &str| kind(&c, name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((kind("htaccess").per_request, kind("htaccess").us_per_request), (4.0, 40.0));
        assert_eq!(kind("virtual-path").per_request, 3.0);
        assert_eq!(kind("new-connection").per_request, 1.0);
        assert_eq!(c.kinds.len(), 3, "{:?}", c.kinds);
    }

    #[test]
    fn nothing_traced_is_no_calls() {
        assert_eq!(of(&[], 0, "/", &Timings::new()), Calls::default());
    }

    #[test]
    fn what_a_program_looks_for_is_no_virtual_path() {
        let mut calls = vec![call("newfstatat", "/srv/www/blog/hello", Some("ENOENT"), 9.0)];
        for template in ["single-post-hello.php", "single-post.php", "single.html"] {
            calls.push(call("access", &format!("/srv/www/themes/x/{template}"), Some("ENOENT"), 9.0));
        }
        let c = of(&calls, 1, "/blog/hello", &Timings::new());
        assert_eq!(kind(&c, "virtual-path").map(|k| k.per_request), Some(1.0));
        let own = kind(&c, "missing-lookup").expect("its own");
        assert_eq!((own.per_request, own.advice.as_str()), (3.0, ""));
        let c = of(&calls[1..], 1, "/blog/hello", &Timings::new());
        assert_eq!(kind(&c, "virtual-path"), None);
        // Below an alias, the server looks for the rest of the path.
        assert!(is_of_url("/opt/app/list/7", "/shop/list/7") && !is_of_url("/opt/app/list/8", "/shop/list/7"));
        assert!(!is_of_url("/srv/www", "/") && !is_of_url("/srv/www/themes/index.php", "/index.php"));
    }

    #[test]
    fn waits_for_a_database_are_told_with_what_it_is_and_how_often() {
        let (client, db) = ("TCP:[127.0.0.1:80->127.0.0.1:4000]", "TCP:[127.0.0.1:5000->127.0.0.1:3306]");
        let mut calls = vec![call("read", client, None, 20.0)];
        for query in 0..12 {
            calls.push(call("sendto", db, None, 20.0));
            calls.push(call("poll", db, None, if query == 11 { 200_000.0 } else { 120.0 }));
            calls.push(call("recvfrom", db, None, 20.0));
        }
        let c = of(&calls, 1, "/", &Timings::new());
        let poll = &c.waiting[0];
        assert_eq!((poll.call.as_str(), poll.what.as_str(), poll.peer.as_str()), ("poll", "peer", "127.0.0.1:3306"));
        assert_eq!((poll.process.as_deref(), poll.service.as_deref()), (Some("mariadbd"), Some("mysql")));
        assert!((poll.us_per_request - 201_080.0).abs() < 1.0 && poll.per_request == 12.0, "{poll:?}");
        assert!(c.rows[0].waits && c.rows[0].call == "poll", "{:?}", c.rows);
        let trips = kind(&c, "database-round-trips").expect("there are");
        assert!(trips.per_request == 12.0 && !trips.advice.is_empty() && trips.title.contains("mariadbd"), "{trips:?}");
        // Two round trips get no advice, and one is not reported.
        let few = of(&calls[..7], 1, "/", &Timings::new());
        assert_eq!(kind(&few, "database-round-trips").map(|k| (k.per_request, k.advice.as_str())), Some((2.0, "")));
        assert_eq!(kind(&of(&calls[..4], 1, "/", &Timings::new()), "database-round-trips"), None);
    }

    #[test]
    fn source_files_that_are_opened_for_each_request_are_counted() {
        let opened = |n: usize| -> Vec<Syscall> {
            (0..n).map(|i| call("openat", &format!("/srv/www/inc{i}.php"), None, 9.0)).collect()
        };
        let many = of(&opened(8), 1, "/", &Timings::new());
        let found = kind(&many, "source-files").expect("they are many");
        assert!(found.per_request == 8.0 && found.advice.contains("opcache"), "{found:?}");
        assert_eq!(kind(&of(&opened(2), 1, "/", &Timings::new()), "source-files"), None);
    }
}
