//! `lastdrop replay`: sends all requests of a log again, at their times, to one server and no other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::servers::{Daemon, nginx};
use crate::common::{Folder, Target, alone, answer, assert_sums, free_port, n, number, serve, signal, wait_until};
use serde_json::Value;

fn main_phase(run: &Value) -> &Value {
    &run["phases"][0]
}

fn log(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a log");
    path.to_string_lossy().into_owned()
}

/// A line in the usual format, at a number of seconds after noon.
fn line(second: u64, address: &str, request: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    format!("{address} - - [10/Oct/2025:12:{minute:02}:{second:02} +0000] \"{request}\" 200 12 \"-\" \"Mozilla\"\n")
}

/// nginx that logs method, Host and target of each request.
struct Site {
    folder: Folder,
    port: u16,
    _daemon: Daemon,
}

impl Site {
    fn start() -> Site {
        let (folder, port) = (Folder::new(), free_port());
        let log = folder.join("seen.log");
        fs::write(&log, "").expect("a log");
        let http = format!(
            "log_format seen '$request_method $http_host $request_uri $http_x_more';
             server {{ listen 127.0.0.1:{port}; error_page 405 =200 /ok;
               location = / {{ return 200 ok; }}
               location / {{ access_log {} seen; return 200 ok; }} }}",
            log.display()
        );
        let daemon = nginx(&folder, &http, port);
        Site { folder, port, _daemon: daemon }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The logged lines and their counts, once there are enough.
    fn saw(&self, at_least: u64) -> BTreeMap<String, u64> {
        let lines = || fs::read_to_string(self.folder.join("seen.log")).expect("its log");
        wait_until("the server's log", || lines().lines().count() as u64 >= at_least);
        let mut seen = BTreeMap::new();
        lines().lines().for_each(|l| *seen.entry(l.trim_end_matches(" -").to_string()).or_insert(0) += 1);
        seen
    }
}

#[test]
fn all_of_a_log_is_sent_to_one_server_whatever_it_has() {
    let site = Site::start();
    let mut text = String::new();
    for i in 0..40 {
        text += &line(i / 20, "10.0.0.1", &format!("GET /item/{} HTTP/1.1", i % 4));
    }
    text += &line(1, "10.0.0.2", "HEAD /about HTTP/1.1");
    text += &line(1, "10.0.0.2", "POST /order HTTP/1.1");
    text += &line(1, "10.0.0.3", "GET http://elsewhere.invalid/absolute?x=1 HTTP/1.1");
    text += &line(1, "10.0.0.3", "CONNECT elsewhere.invalid:443 HTTP/1.1");
    text += &line(1, "10.0.0.3", r"GET /split\r\nHost:\x20evil HTTP/1.1");
    text += "rubbish that is no line\n";
    let path = log(&site.folder, "access.log", &text);
    let url = site.url();
    let args = ["replay", &path, "--to", &url, "--speed", "10"];
    let run = site.folder.json(&args, 0);
    assert_sums(&run);
    assert_eq!(n(&main_phase(&run)["requests"]["answered"]), 43, "{}", main_phase(&run)["requests"]);
    let here = format!("127.0.0.1:{}", site.port);
    let mut expected: BTreeMap<String, u64> = (0..4).map(|i| (format!("GET {here} /item/{i}"), 10)).collect();
    for one in ["HEAD {} /about", "GET {} /absolute?x=1"] {
        expected.insert(one.replace("{}", &here), 1);
    }
    let mut seen = site.saw(43);
    let split: Vec<String> = seen.keys().filter(|l| l.contains("/split")).cloned().collect();
    assert!(split.len() == 1 && !split[0].contains("elsewhere"), "{seen:?}");
    seen.remove(&split[0]);
    assert_eq!(seen, expected);
    let replay = &run["replay"];
    assert_eq!(
        ["requests", "unparsed", "unsafe_left_out", "unusable", "late", "next"].map(|k| n(&replay[k])),
        [45, 1, 1, 1, 0, 45],
        "{replay}"
    );
    assert!(replay["rejected"][0].as_str().expect("a line").contains("access.log:46: "), "{replay}");
    // Its requests can be told apart.
    let classes = main_phase(&run)["classes"].as_array().expect("classes");
    let items = classes.iter().find(|c| c["name"] == "GET /item/{n}").expect("a class");
    assert_eq!(n(&items["requests"]["answered"]), 40);
    let shown: Value = serde_json::from_str(&site.folder.run(&["show", "last", "--json"]).stdout).expect("JSON");
    assert_eq!(shown, run, "it is kept like a run");
    assert!(site.folder.run(&["show", "last"]).stdout.contains("replay of "));
}

#[test]
fn requests_are_changed_as_one_asks() {
    let site = Site::start();
    let text = line(0, "10.0.0.1", "GET /old/a?id=7 HTTP/1.1") + &line(0, "10.0.0.1", "DELETE /old/b HTTP/1.1");
    let path = log(&site.folder, "access.log", &text);
    let url = format!("{}base/", site.url());
    let done = site.folder.run(&[
        "replay",
        &path,
        "--to",
        &url,
        "--rewrite",
        "s#^/old/#/new/#",
        "--rewrite",
        r"s/id=(\d+)/key:$1/",
        "--host",
        "shop.example",
        "-H",
        "X-More: yes",
        "--unsafe",
        "--speed",
        "100",
    ]);
    assert_eq!(done.code, 0, "{done:?}");
    let seen = site.saw(2);
    assert_eq!(
        seen.keys().collect::<Vec<_>>(),
        ["DELETE shop.example /base/new/b yes", "GET shop.example /base/new/a?key:7 yes"]
    );
    // The log's own host, if it has one.
    let line =
        "www.example.com:80 10.0.0.1 - - [10/Oct/2025:12:00:00 +0000] \"GET /own HTTP/1.1\" 200 12 \"-\" \"-\"\n";
    let path = log(&site.folder, "vhost.log", line);
    let done = site.folder.run(&["replay", &path, "--to", &site.url(), "--host", "log", "--format", "vhost_combined"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        site.saw(3).keys().any(|l| l.starts_with("GET www.example.com") && l.ends_with(" /own")),
        "{:?}",
        site.saw(3)
    );
}

/// The time at which the target answered each path, µs.
fn answered(csv: &PathBuf) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(csv).unwrap_or_default();
    let line = |l: &str| {
        let mut words = l.splitn(3, ',');
        let (at, path) = (words.next()?.parse().ok()?, words.nth(1)?.to_string());
        Some((path, at))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn requests_come_as_far_apart_as_they_did() {
    let _alone = alone();
    let folder = Folder::new();
    let csv = folder.join("answers.csv");
    let target = Target::start(&folder, &["--workers", "8", "--log", &csv.to_string_lossy()]);
    // Microseconds: in bursts and with gaps.
    let mut at = 1_760_000_000_000_000u64;
    let (mut text, mut planned) = (String::new(), Vec::new());
    for i in 0..400u64 {
        at += [137, 2_311, 9_001, 20_503, 71][(i % 5) as usize];
        text += &format!("10.0.0.1 {at} \"GET /{i} HTTP/1.1\" 200\n");
        planned.push(at);
    }
    let exact = log(&folder, "exact.log", &text);
    // Whole seconds: twenty in each.
    let seconds: String = (0..400).map(|i| line(i / 20, "10.0.0.1", &format!("GET /{i} HTTP/1.1"))).collect();
    let whole = log(&folder, "whole.log", &seconds);
    for (args, planned) in [
        (
            vec!["replay", &exact, "--format", r#"%h %{usec}t "%r" %>s"#],
            planned.iter().map(|at| (at - planned[0]) as f64).collect::<Vec<_>>(),
        ),
        (vec!["replay", &whole, "--speed", "8"], (0..400).map(|i| f64::from(i) * 50_000.0 / 8.0).collect()),
        (vec!["replay", &whole, "-r", "200"], (0..400).map(|i| f64::from(i) * 5_000.0).collect()),
    ] {
        let mut seen = Vec::new();
        // A busy machine is late: one of a few attempts has to be undisturbed.
        let good = (0..6).any(|_| {
            fs::write(&csv, "").expect("emptied");
            let run = folder.json(&[&args[..], &["--to", &target.url(), "--no-store"]].concat(), 0);
            assert_eq!(n(&main_phase(&run)["requests"]["answered"]), 400);
            let times = answered(&csv);
            let mut errors: Vec<f64> = (0..400).map(|i| times[&format!("/{i}")] as f64 - planned[i]).collect();
            errors.sort_by(f64::total_cmp);
            // Each response came within its response time, which counts from the due time on the run's own clock. The target writes its
            // line a moment later.
            let response = &main_phase(&run)["latency_us"]["response"];
            let (middle, most) = (errors[200] - errors[0], errors[380] - errors[0]);
            let (p50, p95) = (number(&response["p50"]), number(&response["p95"]));
            seen.push((middle, p50, most, p95));
            middle < p50 + 500.0 && most < p95 + 3000.0
        });
        assert!(good, "{args:?}: median and 95 % of the errors in µs, each with that of the response times: {seen:?}");
    }
}

#[test]
fn users_do_what_theirs_did_one_after_the_other() {
    let folder = Folder::new();
    let read = |reader: &mut BufReader<TcpStream>| {
        let mut first = String::new();
        reader.read_line(&mut first).ok().filter(|n| *n > 0)?;
        let mut rest = String::new();
        while reader.read_line(&mut rest).ok()? > 2 {}
        Some(first.split(' ').nth(1)?.to_string())
    };
    let busy = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let inside = Arc::clone(&busy);
    let (address, seen) = serve(read, move |path: &String| {
        let who = path.split('/').nth(1).unwrap_or_default().to_string();
        *inside.lock().expect("unpoisoned").entry(who.clone()).or_insert(0) += 1;
        assert_eq!(inside.lock().expect("unpoisoned")[&who], 1, "two requests of {who} at once");
        std::thread::sleep(Duration::from_millis(2));
        *inside.lock().expect("unpoisoned").get_mut(&who).expect("there") -= 1;
        answer("200 OK", "", "ok")
    });
    let text: String = (0..300)
        .map(|i| {
            let who = i * 7 % 12;
            line(i / 10, &format!("10.0.0.{who}"), &format!("GET /{who}/{i} HTTP/1.1"))
        })
        .collect();
    let path = log(&folder, "access.log", &text);
    let run =
        folder.json(&["replay", &path, "--to", &format!("http://{address}/"), "-c", "5", "--sessions", "address"], 0);
    assert_sums(&run);
    assert_eq!(n(&main_phase(&run)["requests"]["answered"]), 300, "{}", main_phase(&run)["requests"]);
    let mut last = BTreeMap::new();
    for path in seen.lock().expect("unpoisoned").iter() {
        let words: Vec<&str> = path.split('/').collect();
        let number: u64 = words[2].parse().expect("a number");
        assert!(
            last.insert(words[1].to_string(), number).is_none_or(|before| before < number),
            "{path} is out of order"
        );
    }
    assert_eq!(last.len(), 12);
    assert_eq!(n(&run["replay"]["next"]), 300);
    assert!(main_phase(&run)["requests"]["unsent"] == 0);
}

#[test]
fn it_stops_and_goes_on_and_nothing_is_sent_twice() {
    let folder = Folder::new();
    let csv = folder.join("answers.csv");
    let target = Target::start(&folder, &["--workers", "8", "--log", &csv.to_string_lossy()]);
    let text: String = (0..600).map(|i| line(i / 20, "10.0.0.1", &format!("GET /{i} HTTP/1.1"))).collect();
    let path = log(&folder, "access.log", &text);
    let out = folder.join("first.json");
    let url = target.url();
    let args = ["replay", &path, "--to", &url, "-r", "150", "--quiet", "--json", &out.to_string_lossy()];
    let mut child = folder.lastdrop(&args).spawn().expect("runs");
    wait_until("the first hundred", || answered(&csv).len() >= 100);
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    let first: Value = serde_json::from_str(&fs::read_to_string(out).expect("written")).expect("JSON");
    assert_sums(&first);
    let next = n(&first["replay"]["next"]);
    assert!((100..600).contains(&next), "{next}");
    assert_eq!(answered(&csv).len() as u64, next);
    // The first run ends by -n, the second at the log's end.
    let second = folder.json(&["replay", &path, "--to", &url, "-r", "400", "--from", &next.to_string(), "-n", "50"], 0);
    assert_eq!((n(&second["replay"]["next"]), n(&main_phase(&second)["requests"]["sent"])), (next + 50, 50));
    let third = folder.json(&["replay", &path, "--to", &url, "-r", "900", "--from", &(next + 50).to_string()], 0);
    assert_sums(&third);
    assert_eq!(n(&third["replay"]["next"]), 600);
    let lines = fs::read_to_string(&csv).expect("its log").lines().count();
    assert_eq!((lines, answered(&csv).len()), (600, 600), "each once");
    // Begin at a time.
    let late = folder.json(&["replay", &path, "--to", &url, "-r", "900", "--from", "2025-10-10T12:00:29Z"], 0);
    assert_eq!((n(&late["replay"]["skipped"]), n(&main_phase(&late)["requests"]["sent"])), (580, 20));
}

/// nginx on which account pages redirect to the login, as they do without a session, orders redirect to other pages, and all
/// other pages exist.
fn changed_site(folder: &Folder) -> (Daemon, String) {
    let port = free_port();
    let http = format!(
        "server {{ listen 127.0.0.1:{port};
           location = / {{ return 200 ok; }}
           location /account/ {{ return 302 /login; }}
           location /order/ {{ return 302 http://127.0.0.1:{port}/thanks/77?order=9; }}
           location /gone/ {{ return 404; }}
           location /big/ {{ return 200 {}; }}
           location / {{ return 200 0123456789; }} }}",
        "x".repeat(900)
    );
    (nginx(folder, &http, port), format!("http://127.0.0.1:{port}/"))
}

/// A line with a status, a size and a Location.
fn answered_line(i: u64, target: &str, status: u16, bytes: u64, location: &str) -> String {
    format!(
        "10.0.0.1 - - [10/Oct/2025:12:00:{:02} +0000] \"GET {target} HTTP/1.1\" {status} {bytes} {location}\n",
        i / 100
    )
}

const WITH_LOCATION: &str = r#"%h %l %u %t "%r" %>s %b %{Location}o"#;

#[test]
fn a_log_of_200s_that_comes_back_as_the_login_is_not_good() {
    let folder = Folder::new();
    let (_nginx, url) = changed_site(&folder);
    let text: String = (0..40)
        .map(|i| line(0, "10.0.0.1", &format!("GET {}{i} HTTP/1.1", if i < 31 { "/account/" } else { "/item/" })))
        .collect();
    let path = log(&folder, "access.log", &text);
    let args = ["replay", &path, "--to", &url, "-r", "200"];
    let run = folder.json(&args, 0);
    assert_sums(&run);
    let phase = main_phase(&run);
    assert_eq!(["status", "size", "compared"].map(|k| n(&phase["mismatch"][k])), [31, 0, 40], "{}", phase["mismatch"]);
    let classes = phase["classes"].as_array().expect("classes");
    let of = |name: &str| n(&classes.iter().find(|c| c["name"] == name).expect("a class")["mismatch"]["status"]);
    assert_eq!((of("GET /account/{n}"), of("GET /item/{n}")), (31, 0));
    assert_eq!(run["validity"]["verdict"], "doubtful");
    assert!(run["validity"]["reasons"].as_array().expect("reasons").iter().any(|r| r["rule"] == "answers-differ"));
    let text = folder.run(&["show", "last"]).stdout;
    assert!(text.starts_with("Careful: 77.5 % of the answers are not those of the log (31 of 40"), "{text}");
    let second = text.lines().filter(|l| !l.is_empty()).nth(1).expect("a second line");
    assert!(second.starts_with("GET /account/{n}: 31 of 31 answers differ") && second.contains("31 × 302"), "{text}");
    let page = folder.join("page.html");
    let done = folder.run(&["report", "last", "-o", &page.to_string_lossy()]);
    let page = fs::read_to_string(page).unwrap_or_else(|_| panic!("{done:?}"));
    assert!(page.contains("GET /account/{n}: 31 of 31 answers differ"), "the page names it, too");
    let metrics = folder.run(&["export", "last", "--format", "prometheus"]);
    assert!(metrics.stdout.contains("lastdrop_answers_mismatched_total{phase=\"main\"} 31"), "{metrics:?}");
    // As an objective, for all requests and for a class.
    for (objective, code) in [
        ("mismatch<1%", 3),
        ("mismatch<80%", 0),
        ("GET /item/{n}.mismatch<=0%", 0),
        ("GET /account/{n}.mismatch<50%", 3),
    ] {
        folder.json(&[&args[..], &["--objective", objective]].concat(), code);
    }
    let refused = folder.run(&["run", &url, "--objective", "mismatch<1%", "-n", "1"]);
    assert!(refused.code == 2 && refused.stderr.contains("only a replay"), "{refused:?}");
}

#[test]
fn what_answers_as_the_log_has_it_is_good_whatever_its_status() {
    let folder = Folder::new();
    let (_nginx, url) = changed_site(&folder);
    let mut text = String::new();
    for i in 0..30 {
        text += &answered_line(i, &format!("/gone/{i}"), 404, 150, "-");
        // Responses from a browser's cache, and requests that clients gave up.
        text += &answered_line(i, &format!("/item/{i}"), 304, 0, "-");
        text += &answered_line(i, &format!("/item/{i}"), 200, 10, "-");
        text += &answered_line(i, &format!("/account/{i}"), 499, 0, "-");
        text += &answered_line(i, &format!("/order/{i}"), 303, 0, &format!("https://shop.example/thanks/{i}?order=1"));
    }
    let path = log(&folder, "access.log", &text);
    let run = folder.json(&["replay", &path, "--to", &url, "--format", WITH_LOCATION, "-r", "300"], 0);
    let mismatch = &main_phase(&run)["mismatch"];
    assert_eq!(["status", "size", "compared"].map(|k| n(&mismatch[k])), [0, 0, 120], "{mismatch}");
    let text = folder.run(&["show", "last"]).stdout;
    assert!(text.starts_with("Good: "), "{text}");
}

#[test]
fn a_redirect_to_elsewhere_and_another_size_are_told() {
    let folder = Folder::new();
    let (_nginx, url) = changed_site(&folder);
    let mut text = String::new();
    for i in 0..20 {
        text += &answered_line(i, &format!("/account/{i}"), 302, 0, "/account/welcome");
        text += &answered_line(i, &format!("/big/{i}"), 200, 100 + i, "-");
        text += &answered_line(i, &format!("/item/{i}"), 200, 30, "-");
    }
    let path = log(&folder, "access.log", &text);
    let run = folder.json(&["replay", &path, "--to", &url, "--format", WITH_LOCATION, "-r", "300"], 0);
    let mismatch = &main_phase(&run)["mismatch"];
    assert_eq!(["status", "size", "compared"].map(|k| n(&mismatch[k])), [20, 20, 60], "{mismatch}");
    let text = folder.run(&["show", "last"]).stdout;
    assert!(text.contains("  size               20   other answers are smaller than ¼"), "{text}");
}

#[test]
fn what_is_due_and_cannot_be_sent_is_counted_and_not_kept() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "1", "--service", "100ms"]);
    let mut text: String = (0..2000).map(|i| line(i / 1000, "10.0.0.1", &format!("GET /{i} HTTP/1.1"))).collect();
    // Outside the window.
    text += &line(300, "10.0.0.1", "GET /later HTTP/1.1");
    text += &line(0, "10.0.0.1", "GET /far-too-old HTTP/1.1");
    let path = log(&folder, "access.log", &text);
    let url = target.url();
    let args = ["replay", &path, "--to", &url, "-d", "2s", "--connections", "1", "--drain", "0s"];
    let run = folder.json(&args, 0);
    assert_sums(&run);
    let r = &main_phase(&run)["requests"];
    // The line that is too old came due at once.
    assert_eq!((n(&r["due"]), n(&run["replay"]["late"])), (2001, 1), "{r}");
    assert!(n(&r["unsent"]) > 1900, "{r}");
    let blocked = number(&main_phase(&run)["latency_us"]["blocked"]["p50"]);
    assert!(blocked > 100_000.0, "requests waited for the one connection: {blocked}");
    let classes = main_phase(&run)["classes"].as_array().expect("classes");
    assert_eq!(classes.iter().map(|c| n(&c["requests"]["due"])).sum::<u64>(), 2001);
}

#[test]
fn memory_is_the_same_for_a_long_log_and_a_short_one() {
    let site = Site::start();
    let word = |i: u32| i.to_string().bytes().map(|d| (d - b'0' + b'a') as char).collect::<String>();
    let text = |lines: u32| -> String {
        (0..lines).map(|i| line(u64::from(i / 2000), "10.0.0.1", &format!("GET /{} HTTP/1.1", word(i)))).collect()
    };
    let url = site.url();
    let peak = |name: &str, lines: u32| {
        let path = log(&site.folder, name, &text(lines));
        let run = site.folder.json(&["replay", &path, "--to", &url, "--speed", "4", "-d", "2s", "--no-store"], 0);
        assert_sums(&run);
        n(&run["generator"]["peak_rss_bytes"])
    };
    let (short, long) = (peak("short.log", 20_000), peak("long.log", 400_000));
    eprintln!("{short} and {long} bytes");
    assert!(long < 100 << 20 && long < short + (48 << 20), "{short} and {long} bytes");
}

#[test]
fn mistakes_are_told() {
    let folder = Folder::new();
    let path = log(&folder, "access.log", &line(0, "10.0.0.1", "POST /order HTTP/1.1"));
    let strange = log(&folder, "strange.log", "who knows\nwhat this is\n");
    let missing = folder.join("missing.log").to_string_lossy().into_owned();
    let to = "http://127.0.0.1:9/";
    for (args, code, words) in [
        (vec!["replay", path.as_str(), "--to", to], 1, "--unsafe"),
        (vec!["replay", strange.as_str(), "--to", to], 1, "who knows"),
        (vec!["replay", missing.as_str(), "--to", to], 1, "missing.log"),
        (vec!["replay", "-", "--to", to], 2, "read twice"),
        (vec!["replay", "/dev/zero", "--to", to], 2, "read twice"),
        (vec!["replay", path.as_str()], 2, "--to"),
        (vec!["replay", path.as_str(), "--to", to, "-c", "2"], 2, "--sessions"),
        (vec!["replay", path.as_str(), "--to", to, "-r", "2", "--speed", "2"], 2, "--speed"),
        (vec!["replay", path.as_str(), "--to", to, "--rewrite", "s/(/x/"], 2, "unclosed group"),
        (vec!["replay", path.as_str(), "--to", to, "--rewrite", "a=b"], 2, "s/REGEX/REPLACEMENT/"),
        (vec!["replay", path.as_str(), "--to", to, "--from", "noon"], 2, "2026-01-31T12:00:00Z"),
        (vec!["replay", path.as_str(), "--to", to, "--speed", "0"], 2, "the speed must be from 0.001"),
    ] {
        let done = folder.run(&args);
        assert!(done.code == code && done.stderr.contains(words), "{args:?}: {done:?}");
    }
}

#[test]
fn secrets_of_a_log_are_sent_and_not_kept() {
    let site = Site::start();
    let text = line(0, "10.0.0.1", "GET /login?token=hunter2&user=me HTTP/1.1")
        + "GET /?token=hunter2 is no line of this log\n";
    let path = log(&site.folder, "access.log", &text);
    let out = site.folder.join("run.json").to_string_lossy().into_owned();
    let done = site.folder.run(&[
        "replay",
        &path,
        "--to",
        &site.url(),
        "-H",
        "X-More: sent",
        "-H",
        "Authorization: Bearer hunter2",
        "--json",
        &out,
    ]);
    assert_eq!(done.code, 0, "{done:?}");
    let here = format!("127.0.0.1:{}", site.port);
    assert_eq!(site.saw(1).keys().collect::<Vec<_>>(), [&format!("GET {here} /login?token=hunter2&user=me sent")]);
    assert!(!done.stdout.contains("hunter2"), "{}", done.stdout);
    for file in fs::read_dir(site.folder.path()).expect("its files").map(|f| f.expect("a file").path()) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        if name.starts_with("runs.sqlite") || name == "run.json" {
            let bytes = fs::read(&file).expect("read");
            assert!(!bytes.windows(7).any(|w| w == b"hunter2"), "{name} has the secret");
        }
    }
}
