//! What one request consists of, from the system calls of one or two workers traced briefly under load: not
//! single calls, but the number of each meaningful sort.

use std::collections::{BTreeMap, HashMap};

use lastdrop_model::sample::Syscall;

use crate::services::service_at;
use crate::waiting::{CallRole, object, parts};

/// Calls by sort, each with a typical object, and the waits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallSorts {
    /// Number of requests that the traced workers answered.
    pub requests: f64,
    /// Calls per request.
    pub calls: BTreeMap<String, f64>,
    pub objects: BTreeMap<String, String>,
    /// Seconds per request.
    pub waits_s: BTreeMap<String, f64>,
}

const OPENS: &[&str] = &["open", "openat", "openat2", "creat"];
/// Files that PHP compiles, by suffix.
const SOURCES: &[&str] =
    &[".php", ".inc", ".phtml", ".module", ".install", ".theme", ".engine", ".class", ".lib", ".tpl", ".ctp"];
const STATS: &[&str] = &["stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2"];
const WRITES: &[&str] = &["write", "writev", "pwrite64", "pwritev", "pwritev2"];
/// Folders in which servers and programs buffer what does not fit into memory.
const TEMPORARY: &[&str] =
    &["/proxy_temp", "/fastcgi_temp", "/uwsgi_temp", "/client_body", "/proxy/", "/fastcgi/", "/body/"];

/// Returns whether this is such a file: in one of these folders, or named with ten digits as nginx does
/// (`/srv/spool/7/00/0000000007`).
fn is_temporary(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    TEMPORARY.iter().any(|t| path.contains(t)) || name.len() == 10 && name.bytes().all(|b| b.is_ascii_digit())
}

/// Counts the calls of some workers of a server that listens on these ports.
#[must_use]
pub fn sorts(calls: &[Syscall], ports: &[u16]) -> CallSorts {
    let objects: Vec<String> = calls.iter().map(|c| object(c, ports)).collect();
    let mut found = CallSorts::default();
    let requests = requests(calls, &objects);
    found.requests = requests;
    let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
    let mut named: BTreeMap<&str, HashMap<&str, u64>> = BTreeMap::new();
    for ((call, object), part) in calls.iter().zip(&objects).zip(parts(calls, &objects)) {
        if let CallRole::Waits(what, which) = &part {
            let key = if which.is_empty() { (*what).to_string() } else { format!("{what} {which}") };
            *found.waits_s.entry(key).or_default() += call.seconds;
        }
        for sort in of(call, object) {
            *counts.entry(sort).or_default() += 1.0;
            *named.entry(sort).or_default().entry(object).or_default() += 1;
        }
    }
    // Zero is information, too: the opened files were not sources.
    if counts.contains_key("open") {
        counts.entry("open-source").or_default();
    }
    let n = requests.max(1.0);
    found.calls = counts.into_iter().map(|(sort, count)| (sort.to_string(), count / n)).collect();
    found.waits_s.values_mut().for_each(|s| *s /= n);
    let most =
        |all: HashMap<&str, u64>| all.into_iter().max_by_key(|(name, n)| (*n, *name)).map(|(name, _)| name.to_string());
    found.objects = named.into_iter().filter_map(|(sort, all)| Some((sort.to_string(), most(all)?))).collect();
    found
}

/// Counts answered requests: data read from a client, then written to it. A request that started before the
/// trace, or is answered after it, counts as half. A proxy has many of these if answers take as long as the
/// trace.
fn requests(calls: &[Syscall], objects: &[String]) -> f64 {
    let mut asked: HashMap<(i32, &str), bool> = HashMap::new();
    let (mut begun, mut answered) = (0.0, 0.0);
    for (call, object) in calls.iter().zip(objects) {
        if object != "client" || call.error.is_some() {
            continue;
        }
        let key = (call.pid, call.path.as_str());
        if call.call.starts_with("recv") || call.call == "read" || call.call == "readv" {
            if asked.insert(key, true) != Some(true) {
                begun += 1.0;
            }
        } else if (call.call.starts_with("send") || WRITES.contains(&call.call.as_str()))
            && asked.insert(key, false) != Some(false)
        {
            answered += 1.0;
        }
    }
    (begun + answered) / 2.0
}

/// Returns the sorts that a call belongs to.
fn of(call: &Syscall, object: &str) -> Vec<&'static str> {
    let is = |names: &[&str]| names.contains(&call.call.as_str());
    let file = object.starts_with('/');
    let mut sorts = Vec::new();
    if file && (is(OPENS) || is(STATS)) {
        if object.ends_with("/.htaccess") {
            sorts.push("htaccess");
        } else if call.error.is_none() {
            sorts.push(if is(OPENS) { "open" } else { "stat" });
            if is(OPENS) && SOURCES.iter().any(|end| object.ends_with(end)) {
                sorts.push("open-source");
            }
        }
        if is(OPENS) && (object.ends_with("/hosts") || object.ends_with("/resolv.conf")) {
            sorts.push("resolver-file");
        }
    }
    if file && (is(WRITES) || is(OPENS)) && is_temporary(object) {
        sorts.push("temporary-file");
    } else if file && is(WRITES) {
        sorts.push(if object.contains("access") { "access-log-write" } else { "file-write" });
    }
    if call.call == "connect" {
        let failed = call.error.as_deref().is_some_and(|e| e != "EINPROGRESS");
        if failed {
            sorts.push(if call.error.as_deref() == Some("EAGAIN") { "connect-full" } else { "connect-failed" });
        } else if object.ends_with(":53") {
            sorts.push("dns");
        } else if service_at(object, None).is_some_and(|s| s.is_database) {
            sorts.push("database-connect");
        } else {
            sorts.push("connect");
        }
    }
    if matches!(call.call.as_str(), "sendto" | "sendmmsg") && object.ends_with(":53") {
        sorts.push("dns");
    }
    if call.operation == "refused" && object != "client" {
        sorts.push("database-refused");
    }
    if call.operation == "reverse" {
        sorts.push("dns-reverse");
    }
    if is(&["clone", "fork", "vfork", "clone3"]) {
        sorts.push("fork");
    }
    if call.call == "execve" && call.error.is_none() {
        sorts.push("exec");
        let shell = ["/sh", "/bash", "/dash"].iter().any(|name| object.ends_with(name));
        sorts.push(if shell { "exec-shell" } else { "exec-program" });
    }
    if object == "client" && (is(WRITES) || call.call.starts_with("send")) && call.error.is_none() {
        sorts.push("client-write");
    }
    if is(&["fsync", "fdatasync"]) {
        sorts.push("fsync");
    }
    sorts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, path: &str, error: Option<&str>) -> Syscall {
        let error = error.map(str::to_string);
        Syscall { pid: 1, call: name.into(), path: path.into(), operation: String::new(), error, seconds: 0.01 }
    }

    #[test]
    fn calls_are_told_by_what_they_are_to_a_request() {
        let client = "TCP:[127.0.0.1:80->127.0.0.1:4000]";
        let one = [
            call("read", client, None),
            call("openat", "/srv/.htaccess", Some("ENOENT")),
            call("openat", "/srv/www/.htaccess", Some("ENOENT")),
            call("openat", "/srv/www/page.php", None),
            call("connect", "127.0.0.1:3306", None),
            call("poll", "TCP:[127.0.0.1:5->127.0.0.1:3306]", None),
            call("connect", "unix:/run/fpm.sock", Some("EAGAIN")),
            call("writev", client, None),
            call("write", "/var/log/access.log", None),
            call("pwritev", "/srv/spool/7/00/0000000007", None),
        ];
        let calls: Vec<Syscall> = one.iter().chain(&one).cloned().collect();
        let found = sorts(&calls, &[80]);
        let a = |what: &str| found.calls.get(what).copied().unwrap_or(0.0);
        assert_eq!(found.requests, 2.0);
        assert_eq!(a("open-source"), 1.0);
        assert_eq!((a("htaccess"), a("open"), a("access-log-write"), a("client-write")), (2.0, 1.0, 1.0, 1.0));
        assert_eq!((a("temporary-file"), a("file-write")), (1.0, 0.0));
        assert_eq!((a("database-connect"), a("connect-full"), a("connect")), (1.0, 1.0, 0.0));
        assert_eq!(found.objects["database-connect"], "127.0.0.1:3306");
        // A proxy was traced for as long as one answer takes: of four requests it received two and answered
        // two others.
        let of = |n: u16| format!("TCP:[127.0.0.1:80->127.0.0.1:{n}]");
        let mut front = Vec::new();
        for n in [4001, 4002] {
            front.extend([call("recvfrom", &of(n), None), call("connect", "127.0.0.1:8000", None)]);
            front.extend([call("sendto", &of(n + 10), None), call("sendto", &of(n + 10), None)]);
        }
        let found_in_front = sorts(&front, &[80]);
        assert_eq!((found_in_front.requests, found_in_front.calls["connect"]), (2.0, 1.0));
        assert!((found.waits_s["peer 127.0.0.1:3306"] - 0.02).abs() < 1e-9, "{:?}", found.waits_s);
    }
}
