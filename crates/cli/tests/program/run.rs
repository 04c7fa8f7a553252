//! `lastdrop run` against servers of known behaviour: every request is accounted for.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Folder, Target, assert_sums, free_port, n, signal};
use serde_json::Value;

fn main_phase(run: &Value) -> &Value {
    run["phases"].as_array().expect("phases").iter().find(|p| p["measured"] == true).expect("a measured one")
}

/// Asserts that the counts of the run equal those of the target exactly.
fn assert_equal_to_target(run: &Value, counts: &Value) {
    assert_sums(run);
    let p = main_phase(run);
    let r = &p["requests"];
    assert_eq!(n(&r["sent"]), n(&counts["requests"]), "requests: {r} {counts}");
    assert_eq!(n(&r["answered"]), n(&counts["answered"]), "answers: {r} {counts}");
    assert_eq!(n(&r["failed"]["reset"]), n(&counts["resets"]), "resets: {r} {counts}");
    assert_eq!(n(&r["failed"]["closed"]), n(&counts["closes"]), "closes: {r} {counts}");
    assert_eq!(n(&r["timed_out"]), n(&counts["hangs"]), "hangs: {r} {counts}");
    let errors = p["status"].get("500").map_or(0, n);
    assert_eq!(errors, n(&counts["errors"]), "errors: {p} {counts}");
    assert!(errors > 0 && n(&counts["hangs"]) > 0 && n(&counts["resets"]) > 0, "the case is no case: {counts}");
}

const FAULTS: &[&str] =
    &["--workers", "20", "--reset-every", "7", "--close-every", "11", "--hang-every", "101", "--error-every", "13"];

#[test]
fn counts_equal_the_servers_own_for_a_number_of_requests() {
    for (keepalive, threads) in [("on", "1"), ("off", "2"), ("5", "1")] {
        let folder = Folder::new();
        let target = Target::start(&folder, FAULTS);
        let args = [
            "run",
            &target.url(),
            "-n",
            "1000",
            "-c",
            "10",
            "-t",
            threads,
            "--keepalive",
            keepalive,
            "--timeout",
            "1500ms",
        ];
        let run = folder.json(&args, 0);
        assert_eq!(n(&main_phase(&run)["requests"]["due"]), 1000);
        assert_equal_to_target(&run, &target.counts());
    }
}

#[test]
fn counts_equal_the_servers_own_for_a_length_of_time() {
    for keepalive in ["on", "off"] {
        let folder = Folder::new();
        let target = Target::start(&folder, FAULTS);
        let run = folder.json(&["run", &target.url(), "-d", "2s", "--keepalive", keepalive, "--timeout", "1500ms"], 0);
        assert_equal_to_target(&run, &target.counts());
        assert_eq!(main_phase(&run)["duration_s"].as_f64(), Some(2.0));
    }
}

#[test]
fn an_open_loop_is_due_at_its_rate_whatever_the_server_does() {
    let folder = Folder::new();
    // Two workers of 50 ms answer 40 requests per second: of 200 due per second most have to wait.
    let target = Target::start(&folder, &["--workers", "2", "--service", "50ms"]);
    let args = ["run", &target.url(), "-r", "200", "-d", "2s", "--connections", "2", "--drain", "0s", "--seed", "3"];
    let run = folder.json(&args, 0);
    assert_sums(&run);
    let p = main_phase(&run);
    assert_eq!(n(&p["requests"]["due"]), 400);
    assert!(n(&p["requests"]["unsent"]) > 250, "{p}");
    let blocked = p["latency_us"]["blocked"]["p50"].as_u64().expect("blocked");
    assert!(blocked > 300_000, "requests waited for a connection: {blocked}");
    assert_eq!(p["latency_us"]["response"]["lower_bound"], true);
}

#[test]
fn a_server_that_never_answers_is_all_timeouts_and_ends_in_time() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--hang-every", "1"]);
    let started = Instant::now();
    let run = folder.json(&["run", &target.url(), "-d", "1s", "-c", "3", "--timeout", "300ms"], 1);
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_sums(&run);
    let r = &main_phase(&run)["requests"];
    assert!(n(&r["timed_out"]) >= 9 && n(&r["answered"]) == 0, "{r}");
    assert_eq!(run["validity"]["verdict"], "invalid");
}

#[test]
fn ctrl_c_still_reports() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "5ms"]);
    let out = folder.join("run.json");
    let mut child = folder
        .lastdrop(&["run", &target.url(), "-d", "60s", "--quiet", "--json", out.to_str().expect("text")])
        .spawn()
        .expect("runs");
    thread::sleep(Duration::from_millis(1500));
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    let run: Value = serde_json::from_str(&std::fs::read_to_string(out).expect("written")).expect("JSON");
    assert_sums(&run);
    assert!(n(&main_phase(&run)["requests"]["answered"]) > 100);
    assert_eq!(run["end"], "interrupted");
}

#[test]
fn a_killed_run_is_in_the_store_up_to_its_last_second() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "1ms"]);
    let mut child = folder.lastdrop(&["run", &target.url(), "-d", "60s", "--quiet"]).spawn().expect("runs");
    thread::sleep(Duration::from_millis(3600));
    signal(&child, libc::SIGKILL);
    child.wait().expect("ends");
    let run = folder.run(&["show", "last", "--json"]);
    let run: Value = serde_json::from_str(&run.stdout).expect("JSON");
    assert_sums(&run);
    assert_eq!(run["end"], "killed");
    let seconds = main_phase(&run)["seconds"].as_array().expect("seconds");
    // Killed in its fourth second, or in its third on a busy machine: at least two complete seconds are stored.
    assert!(seconds.len() >= 2, "{}", seconds.len());
    assert!(seconds.iter().all(|s| n(&s["answered"]) > 0));
    let text = folder.run(&["show", "last"]);
    assert!(text.stdout.contains("did not end by itself"), "{}", text.stdout);
    assert!(folder.run(&["history"]).stdout.contains("unfinished"));
}

#[test]
fn stored_runs_are_shown_as_they_were_reported() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let run = folder.json(&["run", &target.url(), "-n", "500", "--seed", "7"], 0);
    let id = run["id"].as_str().expect("an id");
    let shown = folder.run(&["show", &id[..5], "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&shown.stdout).expect("JSON"), run);
    assert!(folder.run(&["history"]).stdout.contains(id));
    assert_eq!(run["seed"], 7);
}

#[test]
fn ipv6_is_loaded_like_ipv4() {
    let folder = Folder::new();
    let port = free_port();
    let mut child = folder
        .lastdrop(&["target", "--listen", &format!("[::1]:{port}")])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    crate::common::wait_until("a listener on ::1", || std::net::TcpStream::connect(("::1", port)).is_ok());
    let run = folder.json(&["run", &format!("http://[::1]:{port}/"), "-n", "100"], 0);
    assert_eq!(n(&main_phase(&run)["requests"]["answered"]), 100);
    signal(&child, libc::SIGTERM);
    child.wait().expect("ends");
}

#[test]
fn errors_say_what_where_and_what_to_try() {
    let folder = Folder::new();
    let dead = format!("http://127.0.0.1:{}/", free_port());
    for (args, code, words) in [
        (vec!["run", dead.as_str(), "-n", "3"], 1, vec!["refused", "is the server running"]),
        (vec!["run", dead.as_str(), "-d", "30s"], 1, vec!["refused", "is the server running"]),
        (vec!["run", "http://no-such-host.invalid/"], 1, vec!["no-such-host.invalid", "check the spelling"]),
        (vec!["run", "ftp://h/"], 2, vec!["http://"]),
        (vec!["run", "https://127.0.0.1/", "--ca", "/no/such.pem"], 2, vec!["/no/such.pem"]),
        (vec!["run", dead.as_str(), "-c", "0"], 2, vec!["users"]),
        (vec!["run", dead.as_str(), "-d", "soon"], 2, vec!["30s"]),
        (vec!["run", dead.as_str(), "-r", "5", "-c", "5"], 2, vec!["cannot be used with"]),
        (vec!["run", dead.as_str(), "-H", "no colon"], 2, vec!["Name: value"]),
        (vec!["run"], 2, vec!["Usage"]),
        (vec!["show", "nothing"], 1, vec!["lastdrop history"]),
        (vec!["size", "iis"], 2, vec!["apache"]),
        (vec!["target", "--workers", "0"], 2, vec!["workers"]),
        (vec!["target", "--listen", "192.0.2.1:80"], 1, vec!["cannot listen on 192.0.2.1:80"]),
    ] {
        let started = Instant::now();
        let done = folder.run(&args);
        assert_eq!(done.code, code, "{done:?}");
        for word in words {
            assert!(done.stderr.contains(word), "'{word}' is missing: {done:?}");
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{done:?}");
    }
}

#[test]
fn a_store_that_cannot_be_written_is_said_at_the_start() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let done = folder.run(&["run", &target.url(), "-n", "10", "--store", "/proc/no/runs.sqlite"]);
    assert_eq!(done.code, 1);
    assert!(done.stderr.contains("--no-store"), "{done:?}");
    assert_eq!(target.counts()["requests"], 0, "no load without a place for its results");
    assert_eq!(folder.run(&["run", &target.url(), "-n", "10", "--no-store"]).code, 0);
}

/// A server that sends the same bytes on every connection and then does what the case says.
fn hostile(answer: &'static [u8], then: AfterResponse) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("its address"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut request = [0u8; 4096];
                if then == AfterResponse::CloseUnread {
                    return;
                }
                let _ = stream.read(&mut request);
                match then {
                    AfterResponse::OneByteASecond => {
                        for byte in answer {
                            if stream.write_all(&[*byte]).is_err() {
                                return;
                            }
                            thread::sleep(Duration::from_millis(100));
                        }
                    }
                    AfterResponse::Endless => while stream.write_all(answer).is_ok() {},
                    _ => {
                        let _ = stream.write_all(answer);
                    }
                }
                if then == AfterResponse::Wait {
                    let _ = stream.read(&mut request);
                }
            });
        }
    });
    url
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterResponse {
    Close,
    CloseUnread,
    Wait,
    OneByteASecond,
    Endless,
}

#[test]
fn hostile_servers_are_counted_and_never_hang_or_crash_us() {
    let folder = Folder::new();
    for (name, answer, then, kind) in [
        ("garbage", &b"\x00\x01\x02garbage\r\n\r\n"[..], AfterResponse::Close, "protocol"),
        ("half a head", b"HTTP/1.1 200 OK\r\nContent-", AfterResponse::Close, "closed"),
        ("half a head, then nothing", b"HTTP/1.1 200 OK\r\nContent-", AfterResponse::Wait, "timed_out"),
        ("short body", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", AfterResponse::Close, "closed"),
        (
            "two lengths",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            AfterResponse::Close,
            "protocol",
        ),
        (
            "broken chunk",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            AfterResponse::Close,
            "protocol",
        ),
        ("accept and close", b"", AfterResponse::CloseUnread, "reset or closed"),
        ("slow head", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", AfterResponse::OneByteASecond, "timed_out"),
        (
            "endless head",
            b"X-Header: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
            AfterResponse::Endless,
            "protocol",
        ),
        (
            "a whole answer and more",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1",
            AfterResponse::Close,
            "answered",
        ),
        ("until close", b"HTTP/1.1 200 OK\r\n\r\nall", AfterResponse::Close, "answered"),
    ] {
        let url = hostile(answer, then);
        let code = i32::from(kind != "answered");
        let run = folder.json(&["run", &url, "-n", "6", "-c", "3", "--timeout", "1s"], code);
        assert_sums(&run);
        let r = &main_phase(&run)["requests"];
        assert_eq!(n(&r["due"]), 6, "{name}");
        let count = match kind {
            "answered" | "timed_out" => n(&r[kind]),
            "reset or closed" => n(&r["failed"]["reset"]) + n(&r["failed"]["closed"]),
            kind => n(&r["failed"][kind]),
        };
        assert_eq!(count, 6, "{name}: {r}");
    }
}

#[test]
fn a_stall_of_a_second_is_in_the_response_latency() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "64", "--stall-at", "1s", "--stall-for", "1s"]);
    let run = folder.json(&["run", &target.url(), "-r", "500", "-d", "4s", "--connections", "64"], 0);
    let p = main_phase(&run);
    // A quarter of the requests came due in the stall and waited half a second on average.
    let p90 = p["latency_us"]["response"]["p90"].as_u64().expect("p90");
    assert!((400_000..900_000).contains(&p90), "{p90}");
    assert_eq!(n(&p["requests"]["answered"]), 2000);
}
