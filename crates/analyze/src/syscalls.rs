//! System calls put together by what a request does: how often, on what, at what cost, and what would spare them.

use std::collections::{BTreeMap, BTreeSet};

use lastdrop_model::documents::{TraceKind, TraceRow};
use lastdrop_model::look::Syscall;

use crate::series::median;

/// Calls and their causes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calls {
    pub rows: Vec<TraceRow>,
    pub kinds: Vec<TraceKind>,
    pub floor_us: f64,
}

/// Calls that look at a path without opening it.
const LOOKS: &[&str] = &["stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink"];

/// What the call is about, with what differs from request to request taken out.
fn object(call: &Syscall, ports: &[u16]) -> String {
    let Some(inside) = call.path.split_once('[').and_then(|(_, r)| r.strip_suffix(']')) else {
        return call.path.clone();
    };
    let kind = call.path.split(':').next().unwrap_or_default();
    match inside.split_once("->") {
        Some((local, peer)) if kind.starts_with("TCP") => {
            let port = local.rsplit(':').next().and_then(|p| p.parse().ok());
            if port.is_some_and(|p: u16| ports.contains(&p)) { "client".into() } else { peer.to_string() }
        }
        _ if kind.starts_with("TCP") && inside.contains(':') => "listener".into(),
        _ => kind.to_lowercase(),
    }
}

/// Does the time of this call belong to somebody else: waiting for the client or for a connection?
fn waits(call: &str, object: &str) -> bool {
    call.starts_with("accept") || (object == "client" && (call.starts_with("read") || call.starts_with("recv")))
}

/// Times of calls on files that were measured without tracing, seconds: by call and path.
pub type Timings = BTreeMap<(String, String), f64>;

/// Adds up `calls` over `requests`. `ports` are those that the server listens on. A call costs what `timed` says;
/// without that, the median of what tracing saw less the fastest call of all, which is what tracing adds.
#[must_use]
pub fn per_request(calls: &[Syscall], requests: u64, ports: &[u16], timed: &Timings) -> Calls {
    let n = requests.max(1) as f64;
    let floor = calls.iter().map(|c| c.seconds).fold(f64::INFINITY, f64::min);
    let floor_us = if floor.is_finite() { floor * 1e6 } else { 0.0 };
    let mut rows: BTreeMap<(String, String, Option<String>), Vec<f64>> = BTreeMap::new();
    for call in calls {
        let key = (call.call.clone(), object(call, ports), call.error.clone());
        rows.entry(key).or_default().push(call.seconds * 1e6);
    }
    let mut rows: Vec<TraceRow> = rows
        .into_iter()
        .map(|((call, path, error), us)| {
            let own = timed.get(&(call.clone(), path.clone())).map(|s| s * 1e6);
            let each = match own {
                _ if waits(&call, &path) => 0.0,
                Some(us) => us,
                None => (median(&us) - floor_us).max(0.0),
            };
            let per_request = us.len() as f64 / n;
            TraceRow {
                call,
                path,
                error,
                per_request: round(per_request),
                us_per_request: round(per_request * each),
                traced: own.is_none(),
            }
        })
        .collect();
    rows.sort_by(|a, b| b.us_per_request.total_cmp(&a.us_per_request).then(b.per_request.total_cmp(&a.per_request)));
    let kinds = kinds(&rows);
    Calls { rows, kinds, floor_us: round(floor_us) }
}

fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

/// Rows with a common cause, a sum each.
fn kinds(rows: &[TraceRow]) -> Vec<TraceKind> {
    let looks = |r: &&TraceRow| LOOKS.contains(&r.call.as_str());
    let missing = |r: &TraceRow| matches!(r.error.as_deref(), Some("ENOENT" | "ENOTDIR"));
    let htaccess = |r: &TraceRow| r.path.ends_with("/.htaccess");
    let opens = |r: &TraceRow| r.call.starts_with("open");
    let per_file = |r: &TraceRow| r.path.starts_with('/') && r.per_request >= 0.5;
    // A path that is looked for and is not there, and what leads to it: of /a/b/c all of /a/b/c, /a/b, /a.
    let virtual_paths: BTreeSet<&str> =
        rows.iter().filter(looks).filter(|r| missing(r) && !htaccess(r)).map(|r| r.path.as_str()).collect();
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
        "keep connections open (Apache::DBI, persistent connections of PHP, keepalive of a proxy)",
        found,
    );
    all.sort_by(|a, b| b.us_per_request.total_cmp(&a.us_per_request));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, path: &str, error: Option<&str>, us: f64) -> Syscall {
        Syscall { pid: 1, call: name.into(), path: path.into(), error: error.map(Into::into), seconds: us / 1e6 }
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
        let c = per_request(&calls, 10, &[80], &timed);
        let row = |name: &str, path: &str| {
            c.rows.iter().find(|r| r.call == name && r.path == path).unwrap_or_else(|| panic!("{name} {path}"))
        };
        assert_eq!(c.floor_us, 5.0);
        assert_eq!((row("write", "client").per_request, row("write", "client").us_per_request), (1.0, 20.0));
        let real = row("newfstatat", "/srv/www/real.html");
        assert_eq!((real.us_per_request, real.traced), (2.0, false));
        // Waits are the client's.
        assert_eq!((row("read", "client").us_per_request, row("accept4", "listener").us_per_request), (0.0, 0.0));
        assert_eq!(c.rows[0].call, "connect");
        let kind = |name: &str| c.kinds.iter().find(|k| k.kind == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((kind("htaccess").per_request, kind("htaccess").us_per_request), (4.0, 40.0));
        assert_eq!(kind("virtual-path").per_request, 3.0);
        assert_eq!(kind("new-connection").per_request, 1.0);
        assert_eq!(c.kinds.len(), 3, "{:?}", c.kinds);
    }

    #[test]
    fn nothing_traced_is_no_calls() {
        assert_eq!(per_request(&[], 0, &[], &Timings::new()), Calls::default());
    }
}
