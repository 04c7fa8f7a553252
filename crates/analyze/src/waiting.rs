//! Finds the system calls of a request that wait, and what they wait for: a service, a lock, a child, the
//! clock.
//!
//! A call belongs to a request while its process has a client's connection open. Idle workers wait as well
//! and are left out. For a call that waits for any of several things (epoll), the process's next call shows
//! what it waited for: it reads from that object.

use std::collections::{BTreeMap, HashMap, HashSet};

use lastdrop_model::sample::Syscall;

/// The role of a call in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallRole {
    Work,
    /// Its time belongs to the client, or to nobody.
    Free,
    /// It waits: the kind of wait and the object.
    Waits(&'static str, String),
    /// A process without a request waits for work.
    Idle,
}

const ANY_OF: &[&str] = &["poll", "ppoll", "select", "pselect6"];
const EVENTS: &[&str] = &["epoll_wait", "epoll_pwait", "epoll_pwait2"];
const SENDS: &[&str] = &["write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "sendfile"];

fn receives(call: &str) -> bool {
    call.starts_with("recv") || call == "read" || call == "readv"
}

/// Returns what a purely waiting call waits for, if its object does not tell.
fn waits_for(c: &Syscall) -> Option<&'static str> {
    let is = |names: &[&str]| names.contains(&c.call.as_str());
    let operation = c.operation.as_str();
    if is(ANY_OF) || is(EVENTS) {
        Some("event")
    } else if c.call == "futex" {
        (operation.contains("WAIT") || operation.contains("LOCK_PI")).then_some("futex")
    } else if c.call == "flock" {
        (!operation.contains("LOCK_UN") && !operation.contains("LOCK_NB")).then_some("lock")
    } else if c.call == "fcntl" {
        operation.ends_with("SETLKW").then_some("lock")
    } else if is(&["nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait"]) {
        Some("sleep")
    } else if is(&["wait4", "waitid"]) {
        Some("child")
    } else if is(&["semop", "semtimedop"]) {
        Some("semaphore")
    } else if is(&["fsync", "fdatasync", "io_getevents"]) {
        Some("file")
    } else {
        None
    }
}

/// Returns the object of a call, without the parts that differ between requests.
pub(crate) fn object(call: &Syscall, ports: &[u16]) -> String {
    if call.path.starts_with('/') || call.path.starts_with("unix:") {
        return call.path.clone();
    }
    let Some(inside) = call.path.split_once('[').and_then(|(_, r)| r.strip_suffix(']')) else {
        return call.path.clone();
    };
    let kind = call.path.split(':').next().unwrap_or_default();
    match inside.split_once("->") {
        Some((local, peer)) if kind.starts_with("TCP") => {
            let port = local.rsplit(':').next().and_then(|p| p.parse().ok());
            if port.is_some_and(|p: u16| ports.contains(&p)) { "client".into() } else { peer.to_string() }
        }
        Some((_, peer)) if kind == "UDP" => peer.to_string(),
        // An accepted unix socket has the name of its listener.
        Some(_) if kind.starts_with("UNIX") && inside.contains('"') => "client".into(),
        None if kind.starts_with("UNIX") && inside.contains('"') => "listener".into(),
        _ if kind.starts_with("TCP") && inside.contains(':') => "listener".into(),
        _ => kind.to_lowercase(),
    }
}

/// Returns whether this is the remote end of a connection that the server opened.
fn is_peer(object: &str) -> bool {
    let port = object.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    object.starts_with("unix:") || port
}

/// Returns the role of each call. Calls are in the order in which they returned; `objects` are their objects.
pub(crate) fn parts(calls: &[Syscall], objects: &[String]) -> Vec<CallRole> {
    let next = next_on_a_socket(calls, objects);
    // Open client connections by the process that serves them.
    let mut open: HashMap<i32, HashSet<&str>> = HashMap::new();
    let mut parts = Vec::with_capacity(calls.len());
    for (i, c) in calls.iter().enumerate() {
        let object = objects[i].as_str();
        if object == "client" {
            if c.call == "close" {
                // In a threaded server, another thread than the serving one may close the connection.
                open.values_mut().for_each(|sockets| _ = sockets.remove(c.path.as_str()));
            } else {
                open.entry(c.pid).or_default().insert(&c.path);
            }
        }
        let inside = open.get(&c.pid).is_some_and(|sockets| !sockets.is_empty());
        parts.push(part(c, object, next[i], inside));
    }
    parts
}

fn part(c: &Syscall, object: &str, next: Option<&str>, inside: bool) -> CallRole {
    let peer = |object: &str| CallRole::Waits("peer", object.to_string());
    match waits_for(c) {
        Some(_) if !inside => CallRole::Idle,
        Some("event") => match if EVENTS.contains(&c.call.as_str()) { next.unwrap_or("client") } else { object } {
            "client" | "listener" => CallRole::Free,
            "" => CallRole::Waits("sleep", String::new()),
            "pipe" => CallRole::Waits("pipe", String::new()),
            one if is_peer(one) => peer(one),
            other => CallRole::Waits("event", other.to_string()),
        },
        Some(what) => CallRole::Waits(what, object.to_string()),
        None if c.call.starts_with("accept") => CallRole::Free,
        None if receives(&c.call) && object.starts_with('/') => CallRole::Work,
        None if receives(&c.call) || c.call == "connect" => match object {
            _ if !inside && c.call != "connect" => CallRole::Free,
            "client" => CallRole::Free,
            "pipe" if inside => CallRole::Waits("pipe", String::new()),
            one if is_peer(one) && inside => peer(one),
            _ => CallRole::Work,
        },
        None => CallRole::Work,
    }
}

/// Returns for each call the object of its process's next call on a connection.
fn next_on_a_socket<'a>(calls: &[Syscall], objects: &'a [String]) -> Vec<Option<&'a str>> {
    let mut next: HashMap<i32, &str> = HashMap::new();
    let mut all = vec![None; calls.len()];
    for (i, c) in calls.iter().enumerate().rev() {
        all[i] = next.get(&c.pid).copied();
        let talks = receives(&c.call)
            || SENDS.contains(&c.call.as_str())
            || c.call.starts_with("accept")
            || c.call == "getsockopt";
        let object = objects[i].as_str();
        if talks && (matches!(object, "client" | "listener") || is_peer(object)) {
            next.insert(c.pid, object);
        }
    }
    all
}

/// Counts the answered questions to each peer: something was sent, then something came back.
pub(crate) fn round_trips(calls: &[Syscall], objects: &[String]) -> BTreeMap<String, u64> {
    let mut asked: HashSet<(i32, &str)> = HashSet::new();
    let mut trips = BTreeMap::new();
    for (c, object) in calls.iter().zip(objects).filter(|(c, o)| c.error.is_none() && is_peer(o)) {
        if SENDS.contains(&c.call.as_str()) {
            asked.insert((c.pid, object));
        } else if c.call == "connect" || c.call == "close" {
            // A final message is not a question, and a greeting is not an answer.
            asked.remove(&(c.pid, object.as_str()));
        } else if receives(&c.call) && asked.remove(&(c.pid, object.as_str())) {
            *trips.entry(object.clone()).or_default() += 1;
        }
    }
    trips
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(pid: i32, name: &str, path: &str, operation: &str) -> Syscall {
        let (call, path, operation) = (name.into(), path.into(), operation.into());
        Syscall { pid, call, path, operation, error: None, seconds: 0.1 }
    }

    fn parts_of(calls: &[Syscall]) -> Vec<CallRole> {
        let objects: Vec<String> = calls.iter().map(|c| object(c, &[80])).collect();
        parts(calls, &objects)
    }

    const CLIENT: &str = "TCP:[127.0.0.1:80->127.0.0.1:4000]";
    const DATABASE: &str = "TCP:[127.0.0.1:5000->127.0.0.1:3306]";

    #[test]
    fn waits_of_a_request_have_a_name_and_idle_ones_are_left_out() {
        let waits = |what, which: &str| CallRole::Waits(what, which.into());
        let database = "127.0.0.1:3306";
        let rows = [
            (call(1, "poll", "TCP:[127.0.0.1:80]", ""), CallRole::Idle),
            (call(1, "accept4", "TCP:[127.0.0.1:80]", ""), CallRole::Free),
            (call(1, "read", CLIENT, ""), CallRole::Free),
            (call(1, "poll", DATABASE, ""), waits("peer", database)),
            (call(1, "recvfrom", DATABASE, ""), waits("peer", database)),
            (call(1, "flock", "/srv/lock", "LOCK_EX"), waits("lock", "/srv/lock")),
            (call(1, "flock", "/srv/lock", "LOCK_EX|LOCK_NB"), CallRole::Work),
            (call(1, "fcntl", "/srv/lock", "F_SETLKW"), waits("lock", "/srv/lock")),
            (call(1, "fcntl", "/srv/lock", "F_GETFL"), CallRole::Work),
            (call(1, "futex", "", "FUTEX_WAIT_PRIVATE"), waits("futex", "")),
            (call(1, "futex", "", "FUTEX_WAKE_PRIVATE"), CallRole::Work),
            (call(1, "clock_nanosleep", "", ""), waits("sleep", "")),
            (call(1, "wait4", "", ""), waits("child", "")),
            (call(1, "read", "pipe:[7]", ""), waits("pipe", "")),
            (call(1, "read", "/srv/page", ""), CallRole::Work),
            (call(1, "write", CLIENT, ""), CallRole::Work),
            // Another process, then the first one after its client has left.
            (call(2, "clock_nanosleep", "", ""), CallRole::Idle),
            (call(1, "close", CLIENT, ""), CallRole::Work),
            (call(1, "futex", "", "FUTEX_WAIT_PRIVATE"), CallRole::Idle),
            (call(1, "read", "pipe:[7]", ""), CallRole::Free),
        ];
        let (calls, expected): (Vec<Syscall>, Vec<CallRole>) = rows.into_iter().unzip();
        for ((c, seen), expected) in calls.iter().zip(parts_of(&calls)).zip(expected) {
            assert_eq!(seen, expected, "{c:?}");
        }
    }

    #[test]
    fn a_wait_for_any_event_is_told_by_what_is_read_next() {
        let upstream = "unix:/run/fpm.sock";
        let calls = [
            call(1, "epoll_wait", "anon_inode:[eventpoll]", ""),
            call(1, "recvfrom", CLIENT, ""),
            call(1, "epoll_wait", "anon_inode:[eventpoll]", ""),
            call(1, "setsockopt", CLIENT, ""),
            call(1, "recvfrom", upstream, ""),
            call(1, "epoll_wait", "anon_inode:[eventpoll]", ""),
            call(1, "recvfrom", CLIENT, ""),
        ];
        let seen = parts_of(&calls);
        assert_eq!(
            [&seen[0], &seen[2], &seen[5]],
            [&CallRole::Idle, &CallRole::Waits("peer", upstream.into()), &CallRole::Free]
        );
    }

    #[test]
    fn clients_of_a_unix_socket_are_clients() {
        assert_eq!(object(&call(1, "read", "UNIX-STREAM:[2->1,\"/run/fpm.sock\"]", ""), &[]), "client");
        assert_eq!(object(&call(1, "accept", "UNIX-STREAM:[2,\"/run/fpm.sock\"]", ""), &[]), "listener");
        assert_eq!(object(&call(1, "read", "TCPv6:[[::1]:80->[::1]:9]", ""), &[80]), "client");
        assert_eq!(object(&call(1, "read", "TCPv6:[[::1]:9->[::1]:80]", ""), &[]), "[::1]:80");
    }

    #[test]
    fn a_round_trip_is_a_question_and_what_comes_back() {
        let ask = |pid| [call(pid, "sendto", DATABASE, ""), call(pid, "poll", DATABASE, "")];
        let take = |pid| call(pid, "recvfrom", DATABASE, "");
        let mut calls = Vec::new();
        for pid in [1, 2] {
            // A greeting is no answer, and a final message no question; an answer in two pieces is one.
            calls.push(take(pid));
            calls.extend(ask(pid));
            calls.extend([take(pid), take(pid)]);
            calls.extend(ask(pid));
            calls.extend(ask(pid));
            calls.push(take(pid));
            calls.extend(ask(pid));
            calls.extend([call(pid, "close", DATABASE, ""), call(pid, "connect", "127.0.0.1:3306", ""), take(pid)]);
        }
        let objects: Vec<String> = calls.iter().map(|c| object(c, &[80])).collect();
        assert_eq!(round_trips(&calls, &objects), BTreeMap::from([("127.0.0.1:3306".to_string(), 4)]));
    }
}
