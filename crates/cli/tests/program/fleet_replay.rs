//! `replay --fleet`: several machines replay a log, each request once, on one of them, at its own time.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use crate::common::fleet::Fleet;
use crate::common::servers::{Daemon, nginx};
use crate::common::{Folder, assert_sums, free_port, n, number, signal, wait_until};
use serde_json::Value;

/// Two agents, and an nginx that logs each target.
struct Scene {
    folder: Folder,
    _fleet: Fleet,
    _server: Daemon,
    url: String,
}

impl Scene {
    fn new() -> Scene {
        let (folder, port) = (Folder::new(), free_port());
        let seen = folder.join("seen.log");
        fs::write(&seen, "").expect("a log");
        let http = format!(
            "log_format seen '$request_uri';\n server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;\n\
             location = / {{ return 200 ok; }}\n location / {{ access_log {0} seen; return 200 ok; }}\n location /5/ {{ access_log {0} seen; return 302 /login; }} }}",
            seen.display()
        );
        let server = nginx(&folder, &http, port);
        let fleet = Fleet::start(&folder, &[("a", &[]), ("b", &[])]);
        Scene { folder, _fleet: fleet, _server: server, url: format!("http://127.0.0.1:{port}/") }
    }

    /// Writes a log with twenty lines per second, from these addresses in turn, each with its number in the target.
    fn log(&self, lines: u64, addresses: u64) -> String {
        let line = |i: u64| {
            let (second, who) = (i / 20, i * 7 % addresses);
            let (minute, second) = (second / 60, second % 60);
            let request = format!("GET /{who}/item/{i} HTTP/1.1");
            format!(
                "10.0.0.{who} - - [10/Oct/2025:12:{minute:02}:{second:02} +0000] \"{request}\" 200 12 \"-\" \"-\"\n"
            )
        };
        let path = self.folder.join(&format!("{lines}-{addresses}.log"));
        fs::write(&path, (0..lines).map(line).collect::<String>()).expect("a log");
        path.display().to_string()
    }

    /// Addresses and numbers of the requests after the first `after` ones, in the server's order.
    fn saw(&self, after: usize, at_least: usize) -> Vec<(u64, u64)> {
        let lines = || fs::read_to_string(self.folder.join("seen.log")).expect("its log");
        wait_until("the server's log", || lines().lines().count() >= after + at_least);
        let number = |text: Option<&str>| text.and_then(|t| t.parse().ok()).expect("a number");
        let line = |l: &str| {
            let mut parts = l.split('/').skip(1);
            (number(parts.next()), number(parts.nth(1)))
        };
        lines().lines().skip(after).map(line).collect()
    }

    /// Waits until each of these numbers is in the server's log; returns the count of each.
    fn saw_each(&self, numbers: std::ops::Range<u64>) -> BTreeMap<u64, u64> {
        let mut seen = BTreeMap::new();
        wait_until("the server's log", || {
            seen = counted(&self.saw(0, 0));
            numbers.clone().all(|i| seen.contains_key(&i))
        });
        seen
    }

    fn replay(&self, log: &str, more: &[&str]) -> Value {
        self.folder.json(&[&["replay", log, "--to", &self.url], more].concat(), 0)
    }
}

/// The count of each number.
fn counted(seen: &[(u64, u64)]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    seen.iter().for_each(|(_, number)| *counts.entry(*number).or_default() += 1);
    counts
}

fn each_once(numbers: std::ops::Range<u64>) -> BTreeMap<u64, u64> {
    numbers.map(|i| (i, 1)).collect()
}

fn phase(run: &Value) -> &Value {
    &run["phases"][0]
}

#[test]
fn each_request_of_a_log_is_sent_once_by_one_agent() {
    let scene = Scene::new();
    let log = scene.log(400, 12);
    let run = scene.replay(&log, &["--speed", "8", "--fleet", "a*2,b"]);
    assert_sums(&run);
    assert_eq!(counted(&scene.saw(0, 400)), each_once(0..400));
    assert_eq!((n(&phase(&run)["requests"]["due"]), n(&phase(&run)["requests"]["answered"])), (400, 400));
    let agents = run["agents"].as_array().expect("agents");
    let due = |i: usize| n(&agents[i]["requests"]["due"]);
    assert_eq!((agents.len(), due(0) + due(1)), (2, 400));
    assert!(due(0).abs_diff(2 * due(1)) <= 2, "{agents:#?}");
    // The last one is due after 20 s less a twentieth, at eightfold speed.
    assert!(number(&phase(&run)["duration_s"]) >= 2.49, "{}", phase(&run)["duration_s"]);
    let replay = &run["replay"];
    assert_eq!(["requests", "unparsed", "unusable", "next"].map(|k| n(&replay[k])), [400, 0, 0, 400], "{replay}");
    let classes = phase(&run)["classes"].as_array().expect("classes");
    assert_eq!(classes.iter().map(|c| n(&c["requests"]["answered"])).sum::<u64>(), 400);
    // Every twelfth request comes from address 5, which the server now redirects to the login.
    assert_eq!(
        ["status", "compared"].map(|k| n(&phase(&run)["mismatch"][k])),
        [33, 400],
        "{}",
        phase(&run)["mismatch"]
    );
    assert!(run["validity"]["reasons"].as_array().expect("reasons").iter().any(|r| r["rule"] == "answers-differ"));
    // Only the requests due in the first second: twenty per second, at eightfold speed.
    let run = scene.replay(&log, &["--speed", "8", "-d", "1s", "--fleet", "all"]);
    assert_eq!((n(&phase(&run)["requests"]["due"]), n(&run["replay"]["next"])), (160, 160), "{}", run["replay"]);
    assert_eq!(counted(&scene.saw(400, 160)), each_once(0..160));
    // A part of the log, at a given rate.
    let run = scene.replay(&log, &["-r", "200", "-n", "50", "--from", "100", "--fleet", "all"]);
    assert_eq!(counted(&scene.saw(560, 50)), each_once(100..150));
    assert_eq!(n(&run["replay"]["next"]), 150, "{}", run["replay"]);
    // The file with the requests for the agents is deleted.
    let shown = scene.folder.json(&["show", "last"], 0);
    assert_eq!(shown["plan"]["replay"]["tape"], Value::Null, "{}", shown["plan"]["replay"]);
    let lost = scene.folder.run(&["replay", &log, "--to", &scene.url, "--analyse", "--fleet", "all"]);
    assert_eq!(lost.code, 2, "{lost:?}");
}

#[test]
fn sessions_go_whole_to_one_agent_and_keep_their_order() {
    let scene = Scene::new();
    let log = scene.log(300, 12);
    let run = scene.replay(&log, &["-c", "6", "--sessions", "address", "--fleet", "all"]);
    assert_sums(&run);
    let seen = scene.saw(0, 300);
    assert_eq!(counted(&seen), each_once(0..300));
    let mut last = BTreeMap::new();
    for (who, number) in seen {
        assert!(last.insert(who, number).is_none_or(|before| before < number), "{who}: {number} is out of order");
    }
    assert_eq!((last.len(), n(&run["replay"]["next"])), (12, 300));
    let agents = run["agents"].as_array().expect("agents");
    assert!(agents.iter().all(|a| n(&a["requests"]["answered"]) == 150), "six sessions of 25 each: {agents:#?}");
    // A part of the log, with fewer users than agents.
    let run = scene.replay(&log, &["-c", "6", "--sessions", "address", "-n", "60", "--fleet", "all"]);
    assert_eq!((counted(&scene.saw(300, 60)), n(&run["replay"]["next"])), (each_once(0..60), 60));
    let few = ["replay", &log, "--to", &scene.url, "-c", "1", "--sessions", "address", "--fleet", "all"];
    let refused = scene.folder.run(&few);
    assert!(refused.code == 2 && refused.stderr.contains("1 users are too few"), "{refused:?}");
}

#[test]
fn a_replay_that_was_stopped_goes_on_where_the_first_agent_ended() {
    let scene = Scene::new();
    let log = scene.log(600, 3);
    let out = scene.folder.join("first.json").display().to_string();
    let args = ["replay", &log, "--to", &scene.url, "-r", "100", "--quiet", "--json", &out, "--fleet", "all"];
    let mut child = scene.folder.lastdrop(&args).stdout(Stdio::null()).spawn().expect("it starts");
    let so_far = scene.saw(0, 100).len();
    assert!(so_far < 600, "it is over already");
    signal(&child, libc::SIGINT);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    let first: Value = serde_json::from_str(&fs::read_to_string(out).expect("written")).expect("JSON");
    assert_sums(&first);
    let (next, sent) = (n(&first["replay"]["next"]), n(&phase(&first)["requests"]["sent"]));
    assert!((50..600).contains(&next) && sent >= next, "{next} of {sent}");
    let second = scene.replay(&log, &["-r", "400", "--from", &next.to_string(), "--fleet", "all"]);
    assert_eq!(n(&second["replay"]["next"]), 600);
    // A request that is cut off by the stop may have been read by the server, or not.
    let seen = scene.saw_each(0..600);
    assert!((0..next).all(|i| seen[&i] == 1), "{next}: {seen:?}");
    assert!((next..600).all(|i| seen[&i] <= 2), "{next}: {seen:?}");
    assert!(seen.values().sum::<u64>() <= sent + 600 - next, "{next} of {sent}: {seen:?}");
}
