//! HTTP/2 on real servers, and on one that does by hand what they do seldom: GOAWAY, refusals, small windows, broken rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_http::h2::frame::{self, FrameHead, flag, kind, raw, setting};
use lastdrop_http::h2::{PREFACE, hpack};
use serde_json::Value;

use crate::common::servers::{Daemon, nginx_of};
use crate::common::{Folder, assert_sums, free_port, get, n, number, signal, wait_until};

/// What a server by hand has seen of all its connections.
#[derive(Debug, Default)]
struct ServerCounts {
    connections: usize,
    requests: usize,
    /// The most requests in flight on a connection.
    most: usize,
    resets: Vec<u32>,
    goaways: Vec<u32>,
    body_bytes: BTreeMap<(usize, u32), usize>,
}

/// One connection of a server by hand.
struct Conversation {
    out: TcpStream,
    /// Requests on this connection so far.
    nth: usize,
    open: BTreeSet<u32>,
}

impl Conversation {
    fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        let _ = self.out.write_all(&bytes);
    }

    fn answer(&mut self, stream: u32) {
        self.open.remove(&stream);
        self.send(|out| {
            frame::write_headers(out, stream, &block(&[(":status", "200")]), false, 16_384);
            frame::write_data(out, stream, b"ok", true);
        });
    }
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    fields.iter().for_each(|(name, value)| hpack::encode(&mut out, name.as_bytes(), value.as_bytes(), false));
    out
}

fn goaway(last: u32) -> Vec<u8> {
    raw(kind::GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

/// Serves HTTP/2 in clear text. `respond` is called for each frame, after the frame has been counted.
fn serve(
    settings: &'static [(u16, u32)],
    respond: impl Fn(&mut Conversation, &FrameHead, &[u8]) + Send + Sync + 'static,
) -> (String, Arc<Mutex<ServerCounts>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("its address"));
    let seen = Arc::<Mutex<ServerCounts>>::default();
    let (all, respond) = (Arc::clone(&seen), Arc::new(respond));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (seen, respond) = (Arc::clone(&all), Arc::clone(&respond));
            thread::spawn(move || converse(stream, &seen, settings, &*respond));
        }
    });
    (url, seen)
}

fn converse(
    mut input: TcpStream,
    seen: &Mutex<ServerCounts>,
    settings: &[(u16, u32)],
    respond: &dyn Fn(&mut Conversation, &FrameHead, &[u8]),
) -> Option<()> {
    let connection = {
        let mut seen = seen.lock().expect("nobody panicked");
        seen.connections += 1;
        seen.connections
    };
    let out = input.try_clone().ok()?;
    let mut c = Conversation { out, nth: 0, open: BTreeSet::new() };
    let mut preface = [0; 24];
    input.read_exact(&mut preface).ok()?;
    assert_eq!(preface, PREFACE);
    c.send(|out| frame::write_settings(out, settings));
    loop {
        let mut head = [0; frame::HEAD_BYTES];
        input.read_exact(&mut head).ok()?;
        let head = FrameHead::read(&head)?;
        let mut payload = vec![0; head.length];
        input.read_exact(&mut payload).ok()?;
        {
            let mut seen = seen.lock().expect("nobody panicked");
            match head.kind {
                kind::HEADERS => {
                    c.nth += 1;
                    c.open.insert(head.stream);
                    seen.requests += 1;
                    seen.most = seen.most.max(c.open.len());
                }
                kind::DATA => *seen.body_bytes.entry((connection, head.stream)).or_default() += payload.len(),
                kind::RST_STREAM => {
                    c.open.remove(&head.stream);
                    seen.resets.push(frame::number(&payload));
                }
                kind::GOAWAY => seen.goaways.push(frame::number(&payload[4..])),
                kind::SETTINGS if !head.has(flag::ACK) => c.send(frame::write_settings_ack),
                _ => {}
            }
        }
        respond(&mut c, &head, &payload);
    }
}

fn main_phase(run: &Value) -> &Value {
    run["phases"].as_array().and_then(|phases| phases.last()).expect("a phase")
}

fn load(folder: &Folder, url: &str, more: &[&str], code: i32) -> Value {
    let run = folder.json(&[&["run", url, "--http", "2"], more].concat(), code);
    assert_sums(&run);
    run
}

fn answered(run: &Value) -> u64 {
    n(&main_phase(run)["requests"]["answered"])
}

#[test]
fn what_a_goaway_leaves_behind_is_sent_again_once_with_its_due_time() {
    let folder = Folder::new();
    // Each connection takes 40 requests, says so once it has seen five more, and ends.
    let (url, seen) = serve(&[], |c, head, _| {
        if head.kind != kind::HEADERS {
            return;
        }
        if c.nth <= 40 {
            c.answer(head.stream);
        } else if c.nth == 45 {
            c.send(|out| out.extend(goaway(79)));
        }
    });
    let run = load(&folder, &url, &["-n", "1000", "-c", "25", "--connections", "1"], 0);
    let p = main_phase(&run);
    assert_eq!((answered(&run), n(&p["requests"]["sent"])), (1000, 1000));
    let (again, ends) = (n(&p["connections"]["sent_again"]), n(&p["connections"]["goaway"]));
    assert_eq!(seen.lock().expect("nobody panicked").requests as u64, 1000 + again);
    assert!(ends >= 24 && again >= 120, "{}", p["connections"]);
    assert_eq!(n(&p["connections"]["by_version"]["2"]), n(&p["connections"]["opened"]));
    // The first try counts towards the response, not towards the service.
    let (response, service) = (number(&p["latency_us"]["response"]["max"]), number(&p["latency_us"]["service"]["max"]));
    assert!(response >= service, "{response} {service}");
}

#[test]
fn a_refused_request_is_sent_again_once() {
    let folder = Folder::new();
    let refuse = |c: &mut Conversation, stream: u32| {
        c.open.remove(&stream);
        c.send(|out| frame::write_reset(out, stream, lastdrop_http::h2::ErrorCode::REFUSED_STREAM));
    };
    let (url, seen) = serve(&[], move |c, head, _| match head.kind {
        kind::HEADERS if c.nth % 2 == 1 => refuse(c, head.stream),
        kind::HEADERS => c.answer(head.stream),
        _ => {}
    });
    let run = load(&folder, &url, &["-n", "50", "-c", "1"], 0);
    let p = main_phase(&run);
    assert_eq!((answered(&run), n(&p["connections"]["sent_again"]), n(&p["connections"]["opened"])), (50, 50, 1));
    assert_eq!(seen.lock().expect("nobody panicked").requests, 100);
    let (url, _) = serve(&[], move |c, head, _| {
        if head.kind == kind::HEADERS {
            refuse(c, head.stream);
        }
    });
    let run = load(&folder, &url, &["-n", "50", "-c", "5"], 1);
    let p = main_phase(&run);
    assert_eq!((n(&p["requests"]["failed"]["refused"]), n(&p["connections"]["sent_again"])), (50, 50));
}

#[test]
fn a_timeout_ends_its_stream_and_the_connection_lives() {
    let folder = Folder::new();
    let (url, seen) = serve(&[], |c, head, _| {
        if head.kind == kind::HEADERS && c.nth % 10 != 0 {
            c.answer(head.stream);
        }
    });
    let run = load(&folder, &url, &["-n", "100", "-c", "4", "--timeout", "300ms"], 0);
    let p = main_phase(&run);
    assert_eq!((answered(&run), n(&p["requests"]["timed_out"]), n(&p["connections"]["opened"])), (90, 10, 1));
    wait_until("the resets", || seen.lock().expect("nobody panicked").resets == [8; 10]);
}

#[test]
fn the_servers_limit_of_streams_is_kept_and_the_wait_is_blocked() {
    let folder = Folder::new();
    // Each answer takes 10 ms, two at a time: 8 users wait for 30 ms before each of theirs.
    let (url, seen) = serve(&[(setting::MAX_CONCURRENT_STREAMS, 2)], |c, head, _| {
        if head.kind == kind::HEADERS && c.open.len() == 2 {
            thread::sleep(Duration::from_millis(10));
            c.open.clone().into_iter().for_each(|stream| c.answer(stream));
        }
    });
    let run = load(&folder, &url, &["-n", "200", "-c", "8", "--connections", "1"], 0);
    let p = main_phase(&run);
    assert_eq!((answered(&run), seen.lock().expect("nobody panicked").most), (200, 2));
    let (blocked, late) = (&p["latency_us"]["blocked"], &p["latency_us"]["lateness"]);
    let p50 = number(&blocked["p50"]);
    assert!((28_000.0..40_000.0).contains(&p50), "{blocked}");
    assert!(number(&late["p50"]) < 5_000.0, "{late}");
    let text = folder.run(&["run", &url, "--http", "2", "-n", "20", "-c", "8", "--connections", "1", "--streams", "3"]);
    assert!(text.stdout.contains("8 users over at most 1 connections, each with at most 3 streams"), "{text:?}");
}

#[test]
fn an_upload_keeps_to_the_windows_of_the_server() {
    let folder = Folder::new();
    let body = folder.join("body");
    fs::write(&body, vec![b'x'; 300_000]).expect("written");
    // The window of a stream is 1,000 bytes; the server gives back what it has read, and never more.
    let (url, seen) = serve(&[(setting::INITIAL_WINDOW_SIZE, 1000)], |c, head, payload| {
        if head.kind != kind::DATA {
            return;
        }
        // The first request goes out before the server's settings are known.
        assert!(payload.len() <= 1000 || head.stream == 1);
        if head.has(flag::END_STREAM) {
            return c.answer(head.stream);
        }
        let (stream, bytes) = (head.stream, payload.len() as u32);
        c.send(|out| {
            frame::write_window_update(out, stream, bytes);
            frame::write_window_update(out, 0, bytes);
        });
    });
    let file = format!("@{}", body.display());
    let run = load(&folder, &url, &["-n", "12", "-c", "3", "--body", &file], 0);
    assert_eq!(answered(&run), 12);
    let seen = seen.lock().expect("nobody panicked");
    assert!(seen.body_bytes.len() == 12 && seen.body_bytes.values().all(|bytes| *bytes == 300_000), "{seen:?}");
    assert!(n(&main_phase(&run)["bytes"]["sent"]) > 3_600_000);
}

#[test]
fn a_server_may_send_ahead_what_the_window_says() {
    let folder = Folder::new();
    for (options, stream) in [(&[][..], 6u32 << 20), (&["--window", "100k"], 102_400), (&["--window", "1000"], 1000)] {
        let windows = Arc::<Mutex<Vec<u32>>>::default();
        let said = Arc::clone(&windows);
        // Each answer is 100,000 bytes, as the windows allow them.
        let rest = Mutex::new((0, 65_535, 65_535));
        let (url, seen) = serve(&[], move |c, head, payload| {
            let (left, window, connection) = &mut *rest.lock().expect("nobody panicked");
            match head.kind {
                kind::SETTINGS if !head.has(flag::ACK) => {
                    for one in payload.chunks_exact(6).filter(|one| one[1] == setting::INITIAL_WINDOW_SIZE as u8) {
                        said.lock().expect("nobody panicked").push(frame::number(&one[2..]));
                    }
                }
                kind::WINDOW_UPDATE if head.stream == 0 => {
                    if *left == 0 {
                        said.lock().expect("nobody panicked").push(frame::number(payload));
                    }
                    *connection += frame::number(payload) as usize;
                }
                kind::WINDOW_UPDATE => *window += frame::number(payload) as usize,
                kind::HEADERS => {
                    (*left, *window) = (100_000, said.lock().expect("nobody panicked")[0] as usize);
                    c.send(|out| frame::write_headers(out, head.stream, &block(&[(":status", "200")]), false, 16_384));
                }
                _ => {}
            }
            let stream = c.open.first().copied().unwrap_or(0);
            while *left > 0 && *window > 0 && *connection > 0 {
                let piece = 16_384.min(*left).min(*window).min(*connection);
                (*left, *window, *connection) = (*left - piece, *window - piece, *connection - piece);
                let ends = *left == 0;
                if ends {
                    c.open.remove(&stream);
                }
                c.send(|out| frame::write_data(out, stream, &vec![b'x'; piece], ends));
            }
        });
        let run = load(&folder, &url, &[&["-n", "3", "-c", "1"], options].concat(), 0);
        assert_eq!(answered(&run), 3, "{options:?}");
        assert_eq!(seen.lock().expect("nobody panicked").connections, 1);
        let windows = windows.lock().expect("nobody panicked");
        assert_eq!(windows[0], stream, "{options:?}");
        // A connection's window begins with 65,535 bytes, and never has fewer.
        let more = (u64::from(stream) * 5 / 2).checked_sub(65_535);
        assert!(more.is_none_or(|more| windows.get(1).is_some_and(|w| u64::from(*w) == more)), "{windows:?}");
    }
}

#[test]
fn a_server_that_breaks_the_rules_fails_its_requests_and_hears_why() {
    let folder = Folder::new();
    let ok = || block(&[(":status", "200"), ("content-length", "3")]);
    let head = |fields: &[(&str, &str)], flags: u8| raw(kind::HEADERS, flags, 1, &block(fields));
    let cases: Vec<(&str, Vec<u8>, u32, i32)> = vec![
        // Of a stream: it is reset, and the connection lives.
        ("data before a head", raw(kind::DATA, 1, 1, b"x"), 1, 0),
        ("no status", head(&[("a", "b")], 5), 1, 0),
        ("a field of HTTP/1", head(&[(":status", "200"), ("connection", "close")], 5), 1, 0),
        ("a short body", [raw(kind::HEADERS, 4, 1, &ok()), raw(kind::DATA, 1, 1, b"ab")].concat(), 1, 0),
        ("a long body", [raw(kind::HEADERS, 4, 1, &ok()), raw(kind::DATA, 1, 1, b"abcd")].concat(), 1, 0),
        // Of the connection: it ends.
        ("a frame too large", raw(kind::DATA, 0, 1, &[0; 20_000]), 6, 1),
        ("a frame that nobody asked for", raw(kind::DATA, 0, 77, b"x"), 1, 1),
        ("a wrong block", raw(kind::HEADERS, 4, 1, &[0x80]), 9, 1),
        ("a push", raw(kind::PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82]), 1, 1),
        ("a window that overflows", raw(kind::WINDOW_UPDATE, 0, 0, &0x7fff_ffffu32.to_be_bytes()), 3, 1),
        ("continuations", [raw(1, 0, 1, &[0x88]), raw(9, 0, 1, &[]).repeat(100)].concat(), 11, 1),
        ("a flood", raw(kind::PRIORITY, 0, 1, &[0; 5]).repeat(10_100), 11, 1),
    ];
    for (name, wire, code, exit) in cases {
        let (url, seen) = serve(&[], move |c, head, _| {
            if head.kind == kind::HEADERS && head.stream == 1 {
                c.send(|out| out.extend_from_slice(&wire));
            } else if head.kind == kind::HEADERS {
                c.answer(head.stream);
            }
        });
        let began = Instant::now();
        let run = load(&folder, &url, &["-n", "3", "-c", "1", "--timeout", "2s"], exit);
        let failed = &main_phase(&run)["requests"]["failed"];
        assert!(n(&failed["protocol"]) >= 1 && began.elapsed() < Duration::from_secs(3), "{name}: {failed}");
        wait_until(name, || {
            let seen = seen.lock().expect("nobody panicked");
            seen.resets.iter().chain(&seen.goaways).any(|c| *c == code)
        });
    }
    // A server of the older version.
    let (url, _) = crate::common::serve(crate::common::head, |()| crate::common::answer("200 OK", "", "hello"));
    let run = load(&folder, &format!("http://{url}/"), &["-n", "3", "-c", "1", "--timeout", "2s"], 1);
    assert_eq!(n(&main_phase(&run)["requests"]["answered"]), 0);
}

#[test]
fn what_does_not_go_over_http2_is_refused() {
    let folder = Folder::new();
    for (options, why) in [
        (&["--pipeline", "3"][..], "pipelining"),
        (&["--chunked", "1k", "--body", "x"], "chunks"),
        (&["--expect-continue", "--body", "x"], "100-continue"),
        (&["--proxy", "http://127.0.0.1:1"], "a proxy"),
        (&["-H", "Transfer-Encoding: chunked", "--body", "x"], "in frames"),
        (&["--streams", "0"], "streams must be a whole number"),
    ] {
        let done = folder.run(&[&["run", "http://127.0.0.1:1/", "--http", "2", "-n", "1"], options].concat());
        assert!(done.code == 2 && done.stderr.contains(why), "{options:?}: {done:?}");
    }
    for command in ["sweep", "replay", "size", "trace", "profile"] {
        let done = folder.run(&[command, "http://127.0.0.1:1/", "--http", "2"]);
        assert!(done.code == 2 && done.stderr.contains("this command has no --http"), "{command}: {done:?}");
    }
    let plan = "url = \"http://127.0.0.1:1/\"\n[page]\n[http]\nversion = \"2\"\n";
    fs::write(folder.join("plan.toml"), plan).expect("written");
    let file = folder.join("plan.toml").display().to_string();
    for command in [
        &["capacity", &file, "--objective", "p99<1s"][..],
        &["compare", "--live", &file, &file],
        &["profile", "nginx", "--url", &file],
    ] {
        let done = folder.run(command);
        assert!(done.code == 2 && done.stderr.contains("over HTTP/2: pages"), "{command:?}: {done:?}");
    }
    let compare = ["compare", "--live", "http://127.0.0.1:1/", "--a", "-c 3", "--b", "--http 2"];
    let done = folder.run(&compare);
    assert!(done.code == 2 && done.stderr.contains("users and rate"), "{done:?}");
}

#[test]
fn experiments_speak_http2_to_nginx() {
    let folder = Folder::new();
    let (_nginx, port, log) = tls_nginx(&folder, 2);
    let url = format!("https://localhost:{port}/");
    let all = |version: &str| lines(&log).iter().all(|line| line.ends_with(version));
    let search = ["--no-staircase", "-r", "100", "--max-rate", "100", "-d", "1s", "--max-time", "20s"];
    let start = ["capacity", &url, "--http", "2", "--insecure", "--objective", "p99<2s"];
    let found = folder.json(&[&start[..], &search].concat(), 0);
    assert!(found["met"] == true && lines(&log).len() >= 100 && all("HTTP/2.0"), "{found}");
    let sides = ["--a", "--http 1.1", "--b", "--http 2"];
    let start = ["compare", "--live", &url, "--insecure", "-c", "8", "-d", "100ms", "--blocks", "4"];
    let compared = folder.json(&[&start[..], &sides].concat(), 0);
    assert_eq!(compared["a"]["connections"]["version"], "1.1");
    assert_eq!((n(&compared["a"]["connections"]["peak"]), n(&compared["a"]["connections"]["streams"])), (8, 1));
    assert_eq!(compared["b"]["connections"]["version"], "2");
    assert!(n(&compared["b"]["connections"]["peak"]) <= 3 && n(&compared["b"]["connections"]["streams"]) == 100);
    assert!(compared["b"]["name"].as_str().is_some_and(|name| name.ends_with("/ --http 2")), "{compared}");
    assert!(!all("HTTP/2.0"));
    let sweep =
        format!("url = \"{url}\"\nusers = [2, 4]\nduration = \"200ms\"\ninsecure = true\n[http]\nversion = \"auto\"\n");
    fs::write(folder.join("sweep.toml"), sweep).expect("written");
    let rows = folder.json(&["sweep", &folder.join("sweep.toml").display().to_string()], 0);
    assert!(rows["fixed"]["http"] == "2" && rows["fixed"]["keepalive"] == "on", "{rows}");
    assert!(rows["rows"].as_array().is_some_and(|rows| rows.len() == 2 && rows.iter().all(|r| n(&r["answered"]) > 0)));
}

/// nginx with TLS as Debian has it: GOAWAY after 1,000 requests of a connection.
fn tls_nginx(folder: &Folder, processes: usize) -> (Daemon, u16, std::path::PathBuf) {
    let script = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem \
                  -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().expect("openssl runs");
    assert!(made.status.success(), "{made:?}");
    let log = folder.join("access.log");
    fs::write(&log, "").expect("written");
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).expect("its mode");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let (plain, port, dir) = (free_port(), free_port(), folder.path().display());
    let http = format!(
        " log_format id '$request_uri $status $server_protocol';\n log_format users '$request_uri $connection $cookie_sid';\n server {{ listen 127.0.0.1:{plain}; }}\n server {{\n  listen 127.0.0.1:{port} ssl http2;\n  ssl_certificate {dir}/cert.pem;\n  \
         ssl_certificate_key {dir}/key.pem;\n  access_log {dir}/access.log id;\n  access_log {dir}/users.log users;\n  \
         location = /login {{ add_header Set-Cookie sid=$connection; return 200 in; }}\n  location = /old {{ return 302 /inside; }}\n  \
         location = /inside {{ if ($cookie_sid = '') {{ return 403; }} return 200 welcome; }}\n  location / {{ return 200 hello; }}\n }}"
    );
    let nginx = nginx_of(folder, processes, &http, plain);
    (nginx, port, log)
}

#[test]
fn in_a_session_each_user_has_its_own_connection_and_cookies() {
    let folder = Folder::new();
    let (_nginx, port, _) = tls_nginx(&folder, 2);
    let at = |path: &str| format!("[[request]]\nurl = \"https://localhost:{port}{path}\"\nexpect = [\"status=200\"]\n");
    let head = "pick = \"session\"\n[http]\nversion = \"2\"\nredirects = 2\n[tls]\ninsecure = true\n";
    fs::write(folder.join("plan.toml"), [head, &at("/login"), &at("/inside"), &at("/old")].concat()).expect("written");
    let run = folder.json(&["run", &folder.join("plan.toml").display().to_string(), "-c", "7", "-n", "210"], 0);
    assert_sums(&run);
    let p = main_phase(&run);
    let redirects = n(&p["followed"]["redirects"]);
    assert!(n(&p["expectations"]["missed"]) == 0 && redirects >= 60, "{p}");
    assert_eq!((answered(&run), n(&p["connections"]["opened"])), (n(&p["requests"]["due"]), 7), "{p}");
    let log = folder.join("users.log");
    wait_until("the log", || lines(&log).len() as u64 >= answered(&run));
    let all = lines(&log);
    let inside: Vec<Vec<&str>> =
        all.iter().map(|l| l.split(' ').collect()).filter(|l: &Vec<&str>| l[0] == "/inside").collect();
    // The cookie is the number of the connection on which the user logged in.
    assert!(inside.len() >= 120 && inside.iter().all(|l| l[1] == l[2]), "{inside:?}");
}

fn lines(log: &std::path::Path) -> Vec<String> {
    fs::read_to_string(log).expect("a log").lines().map(String::from).collect()
}

#[test]
fn nginx_as_it_comes_answers_every_request_over_new_connections() {
    let folder = Folder::new();
    let (_nginx, port, log) = tls_nginx(&folder, 2);
    let url = format!("https://localhost:{port}/");
    let run = load(
        &folder,
        &url,
        &["-n", "20000", "-c", "100", "--connections", "4", "--ca", &folder.join("cert.pem").display().to_string()],
        0,
    );
    let p = main_phase(&run);
    assert_eq!(answered(&run), 20_000, "{}", p["requests"]);
    wait_until("the log", || lines(&log).len() >= 20_000);
    let all = lines(&log);
    assert!(all.len() == 20_000 && all.iter().all(|line| line == "/ 200 HTTP/2.0"), "{}", all.len());
    // 1,000 requests a connection.
    let c = &p["connections"];
    assert!(n(&c["opened"]) >= 20 && n(&c["goaway"]) >= 16, "{c}");
    assert!(n(&c["handshakes_full"]) + n(&c["handshakes_resumed"]) == n(&c["opened"]), "{c}");
    // Agreed on before the run, by a handshake that asks for nothing.
    let run = folder.json(&["run", &url, "--http", "auto", "-n", "50", "-c", "5", "--insecure"], 0);
    assert_eq!((run["plan"]["http"]["agreed"].as_str(), answered(&run)), (Some("2"), 50));
    assert_eq!(n(&main_phase(&run)["connections"]["by_version"]["2"]), 1);
    wait_until("the log", || lines(&log).len() >= 20_050);
    assert_eq!(lines(&log).len(), 20_050);
    // An open loop, too.
    let more = ["-r", "2000", "-d", "2s", "--connections", "4", "--insecure"];
    let run = load(&folder, &url, &more, 0);
    assert_eq!((answered(&run), n(&main_phase(&run)["requests"]["due"])), (4000, 4000));
}

#[test]
fn nothing_is_lost_or_done_twice_while_nginx_reloads() {
    let folder = Folder::new();
    let (nginx, port, log) = tls_nginx(&folder, 2);
    fs::write(folder.join("plan.toml"), format!("[http]\nversion = \"2\"\n[tls]\ninsecure = true\n[[request]]\nurl = \"https://localhost:{port}/{{{{random}}}}\"\n")).expect("written");
    let child = folder
        .lastdrop(&["run", "plan.toml", "-c", "40", "--connections", "4", "-n", "30000", "--json", "run.json"])
        .current_dir(folder.path())
        .spawn()
        .expect("runs");
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(300));
        signal(&nginx.child, libc::SIGHUP);
    }
    assert!(child.wait_with_output().expect("ends").status.success());
    let run: Value = serde_json::from_slice(&fs::read(folder.join("run.json")).expect("a document")).expect("JSON");
    assert_sums(&run);
    let r = &main_phase(&run)["requests"];
    let failed = n(&r["due"]) - n(&r["answered"]);
    assert!(n(&r["due"]) == 30_000 && failed <= 30, "{r} {}", run["generator"]);
    thread::sleep(Duration::from_millis(300));
    let all = lines(&log).len() as u64;
    assert!((n(&r["answered"])..=30_000).contains(&all), "{all} lines, {r}");
}

#[test]
fn a_server_without_http2_says_so_in_the_handshake() {
    let folder = Folder::new();
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost";
    assert!(
        Command::new("sh").args(["-ec", script]).current_dir(folder.path()).output().expect("runs").status.success()
    );
    let (plain, port, dir) = (free_port(), free_port(), folder.path().display());
    let http = format!(
        " server {{ listen 127.0.0.1:{plain}; }}\n server {{ listen 127.0.0.1:{port} ssl;\n  ssl_certificate {dir}/cert.pem;\n  \
         ssl_certificate_key {dir}/key.pem;\n }}"
    );
    let _nginx = nginx_of(&folder, 1, &http, plain);
    let run = load(&folder, &format!("https://localhost:{port}/"), &["-n", "4", "-c", "2", "--insecure"], 1);
    let p = main_phase(&run);
    assert_eq!(n(&p["requests"]["failed"]["connect"]), 4);
    assert!(run["generator"]["connect_errors"].to_string().contains("--http 1.1"), "{}", run["generator"]);
    for url in [format!("https://localhost:{port}/"), format!("http://localhost:{plain}/")] {
        let run = folder.json(&["run", &url, "--http", "auto", "-n", "4", "-c", "2", "--insecure"], 0);
        assert_eq!((run["plan"]["http"]["agreed"].as_str(), answered(&run)), (Some("1.1"), 4), "{url}");
        assert_eq!(n(&main_phase(&run)["connections"]["by_version"]["1.1"]), 2);
    }
    let done = folder.run(&["run", "https://127.0.0.1:1/", "--http", "auto", "-n", "1"]);
    assert!(done.code == 1 && done.stderr.contains("asks the server for the version before the run"), "{done:?}");
}

#[test]
fn apache_answers_over_http2_with_bodies_heads_and_compression() {
    let folder = Folder::new();
    let (port, dir) = (free_port(), folder.path().display());
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    fs::create_dir(folder.join("www")).expect("a folder");
    fs::write(folder.join("www/index.html"), "hello ".repeat(1000)).expect("written");
    let load_module = |name: &str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
    let modules: String =
        ["mpm_event", "authz_core", "dir", "mime", "http2", "deflate", "filter"].map(load_module).concat();
    let config = format!(
        "ServerRoot {dir}\nServerName localhost\nPidFile {dir}/apache.pid\nDefaultRuntimeDir {dir}\nListen 127.0.0.1:{port}\n{modules}\
         User www-data\nGroup www-data\nTypesConfig /etc/mime.types\nDocumentRoot {dir}/www\nErrorLog {dir}/error.log\nDirectoryIndex index.html\n\
         Protocols h2c http/1.1\nAddOutputFilterByType DEFLATE text/html\nMaxKeepAliveRequests 200\n"
    );
    fs::write(folder.join("apache.conf"), config).expect("written");
    let mut command = Command::new("/usr/sbin/apache2");
    command.args(["-D", "FOREGROUND", "-f"]).arg(folder.join("apache.conf"));
    let _apache = Daemon::start(command, "apache2", |_| get(port, "/").is_some());
    let url = format!("http://127.0.0.1:{port}/");
    for more in [
        &["-n", "2000", "-c", "20", "--connections", "2", "--expect", "text=hello hello"][..],
        &["-n", "200", "-c", "10", "--method", "HEAD"],
        &["-n", "200", "-c", "10", "--decode", "--expect", "text=hello hello"],
        &["-n", "50", "-c", "5", "--method", "POST", "--body", "a=b"],
        &["-n", "50", "-c", "5", "--keepalive", "10"],
    ] {
        let run = load(&folder, &url, more, 0);
        let p = main_phase(&run);
        assert_eq!(answered(&run), n(&p["requests"]["due"]), "{more:?}: {}", p["requests"]);
        assert_eq!(n(&p["expectations"]["missed"]), 0, "{more:?}");
    }
}
