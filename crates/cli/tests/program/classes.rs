//! Results by class of request: the numbers of each class match the server's, and add up to the whole run.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use crate::common::servers::{Daemon, nginx};
use crate::common::{Folder, Target, alone, assert_sums, free_port, n, number, signal, wait_until};
use serde_json::Value;

/// nginx that logs method, path, status and bytes of each response.
struct Site {
    port: u16,
    folder: Folder,
    _daemon: Daemon,
}

impl Site {
    fn start() -> Site {
        let (folder, port) = (Folder::new(), free_port());
        let log = folder.join("access.log");
        fs::write(&log, "").expect("a log");
        let http = format!(
            "log_format seen '$request_method $request_uri $status $bytes_sent';
             keepalive_requests 1000000;
             server {{
               listen 127.0.0.1:{port};
               location / {{ return 200 \"ok\\n\"; }}
               location /seen {{ access_log {log} seen; return 200 \"seen\\n\"; }}
               location /seen/item/ {{ access_log {log} seen; return 200 \"an item of some length\\n\"; }}
               location /seen/missing {{ access_log {log} seen; return 404 \"no\\n\"; }}
               location /page {{ default_type text/html; return 200 '<img src=\"/a.png\"><img src=\"/b.png\">'; }}
             }}",
            log = log.display()
        );
        let daemon = nginx(&folder, &http, port);
        Site { port, folder, _daemon: daemon }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn plan(&self, name: &str, text: &str) -> String {
        let path = self.folder.join(name);
        fs::write(&path, text.replace("SITE", &self.url(""))).expect("a plan");
        path.to_string_lossy().into_owned()
    }

    /// The number of log lines with this path, their statuses and bytes.
    fn saw(&self, is: impl Fn(&str) -> bool) -> (u64, BTreeMap<String, u64>, u64) {
        let text = fs::read_to_string(self.folder.join("access.log")).expect("the log");
        let (mut count, mut status, mut bytes) = (0, BTreeMap::new(), 0);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if is(words[1]) {
                count += 1;
                *status.entry(words[2].to_string()).or_insert(0) += 1;
                bytes += words[3].parse::<u64>().expect("a number");
            }
        }
        (count, status, bytes)
    }
}

fn main_phase(run: &Value) -> &Value {
    run["phases"].as_array().expect("phases").iter().find(|p| p["measured"] == true).expect("a measured one")
}

fn classes(run: &Value) -> &Vec<Value> {
    main_phase(run)["classes"].as_array().expect("classes")
}

fn class<'a>(run: &'a Value, name: &str) -> &'a Value {
    classes(run).iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no class {name}: {:?}", classes(run)))
}

/// Asserts that each count of the phase is the sum over its classes, and that each class adds up.
fn assert_classes_add_up(run: &Value) {
    assert_sums(run);
    let p = main_phase(run);
    for path in [
        "/requests/due",
        "/requests/unsent",
        "/requests/sent",
        "/requests/answered",
        "/requests/failed/connect",
        "/requests/failed/reset",
        "/requests/failed/closed",
        "/requests/timed_out",
        "/requests/censored",
        "/bytes/sent",
        "/bytes/received",
        "/expectations/missed",
        "/latency_us/response/count",
        "/latency_us/service/count",
        "/latency_us/first_byte/count",
    ] {
        let of = |v: &Value| v.pointer(path).map_or(0, n);
        let sum: u64 = classes(run).iter().map(of).sum();
        assert_eq!(of(p), sum, "{path}: {p}");
    }
    for c in classes(run) {
        let r = &c["requests"];
        let failed: u64 = r["failed"].as_object().expect("kinds").values().map(n).sum();
        assert_eq!(n(&r["due"]), n(&r["sent"]) + n(&r["unsent"]), "{c}");
        assert_eq!(n(&r["sent"]), n(&r["answered"]) + failed + n(&r["timed_out"]) + n(&r["censored"]), "{c}");
        let statuses: u64 = c["status"].as_object().expect("statuses").values().map(n).sum();
        assert_eq!(statuses, n(&r["answered"]), "{c}");
    }
}

const MIX: &str = r#"
[[request]]
url = "SITE/seen/item/7"
weight = 3
[[request]]
url = "SITE/seen/item/8"
weight = 3
[[request]]
url = "SITE/seen/missing?id=5"
weight = 1
[[request]]
name = "checkout"
method = "POST"
url = "SITE/seen"
body = "x=1"
weight = 2
"#;

#[test]
fn each_class_is_what_the_server_saw_of_it() {
    for load in
        [&["-n", "3000", "-c", "8", "-t", "2"][..], &["-r", "600", "-d", "2s"], &["-d", "1s", "--keepalive", "off"]]
    {
        let site = Site::start();
        let plan = site.plan("mix.toml", MIX);
        let args: Vec<&str> = [&["run", plan.as_str(), "--seed", "5"][..], load].concat();
        let run = site.folder.json(&args, 0);
        assert_classes_add_up(&run);
        let names: Vec<&str> = classes(&run).iter().map(|c| c["name"].as_str().expect("a name")).collect();
        assert_eq!(names, ["GET /seen/item/{n}", "GET /seen/missing?id", "checkout"]);
        for (name, path) in [
            ("GET /seen/item/{n}", "/seen/item/"),
            ("GET /seen/missing?id", "/seen/missing?id=5"),
            ("checkout", "/seen"),
        ] {
            let c = class(&run, name);
            // nginx may log the last responses a moment after the client has got them.
            let exact = name == "checkout";
            let saw = || site.saw(|p| if exact { p == path } else { p.starts_with(path) });
            let sent = n(&c["requests"]["answered"]);
            wait_until("the server's log", || saw().0 >= sent);
            let (count, status, bytes) = saw();
            assert_eq!(
                (count, serde_json::json!(status), bytes),
                (sent, c["status"].clone(), n(&c["bytes"]["received"])),
                "{c}"
            );
            assert!(
                number(&c["rate"]["answered_rps"]) > 0.0 && number(&c["latency_us"]["response"]["p99"]) > 0.0,
                "{c}"
            );
        }
        let items = n(&class(&run, "GET /seen/item/{n}")["requests"]["answered"]);
        assert!(items > n(&class(&run, "checkout")["requests"]["answered"]), "{items}");
    }
}

#[test]
fn they_are_in_the_text_in_the_store_and_in_what_is_shown_of_it() {
    let site = Site::start();
    let plan = site.plan("mix.toml", MIX);
    let done = site.folder.run(&["run", &plan, "-n", "500"]);
    assert_eq!(done.code, 0, "{done:?}");
    for name in ["GET /seen/item/{n}", "GET /seen/missing?id", "checkout"] {
        assert!(done.stdout.contains(name), "{}", done.stdout);
    }
    let shown = site.folder.run(&["show", "last", "--json"]);
    let run: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_classes_add_up(&run);
    assert!(site.folder.run(&["show", "last"]).stdout.contains("checkout"));
    // The text has no table for a single class; the document has the class, equal to the phase.
    let done = site.folder.run(&["run", &site.url("/item/5"), "-n", "100"]);
    assert!(!done.stdout.contains("{n}"), "{}", done.stdout);
    let run = site.folder.json(&["run", &site.url("/item/5"), "-n", "100"], 0);
    assert_eq!(classes(&run).len(), 1);
    assert_eq!(class(&run, "GET /item/{n}")["requests"], main_phase(&run)["requests"]);
}

#[test]
fn steps_of_a_session_and_parts_of_pages_are_apart() {
    let site = Site::start();
    let plan = site.plan(
        "session.toml",
        "pick = \"session\"\n[[request]]\nurl = \"SITE/\"\n[[request]]\nurl = \"SITE/item/3\"\n[[request]]\nurl = \"SITE/\"\n",
    );
    let run = site.folder.json(&["run", &plan, "-n", "300", "-c", "3"], 0);
    assert_classes_add_up(&run);
    for name in ["GET /", "GET /item/{n}", "GET / #2"] {
        let answered = n(&class(&run, name)["requests"]["answered"]);
        assert!((97..=103).contains(&answered), "{name}: {answered}");
    }
    let plan = site.plan("page.toml", "[page]\n[[request]]\nurl = \"SITE/page\"\n");
    let run = site.folder.json(&["run", &plan, "-n", "50", "-c", "2"], 0);
    assert_classes_add_up(&run);
    assert_eq!(n(&class(&run, "GET /page")["requests"]["answered"]), 50);
    assert_eq!(n(&class(&run, "(parts of pages)")["requests"]["answered"]), 100);
}

#[test]
fn what_is_never_sent_has_its_share_of_the_mix() {
    let folder = Folder::new();
    // Two workers of 50 ms answer 40 of 200 requests per second.
    let target = Target::start(&folder, &["--workers", "2", "--service", "50ms"]);
    let plan = folder.join("mix.toml");
    let text = format!(
        "[[request]]\nname = \"a\"\nurl = \"{0}\"\nweight = 3\n[[request]]\nname = \"b\"\nurl = \"{0}\"\n",
        target.url()
    );
    fs::write(&plan, text).expect("a plan");
    for threads in ["1", "2"] {
        let args = [
            "run",
            &plan.to_string_lossy(),
            "-r",
            "200",
            "-d",
            "2s",
            "--connections",
            "2",
            "--drain",
            "0s",
            "-t",
            threads,
        ];
        let run = folder.json(&args, 0);
        assert_classes_add_up(&run);
        let (a, b) = (class(&run, "a"), class(&run, "b"));
        assert_eq!(n(&a["requests"]["due"]) + n(&b["requests"]["due"]), 400);
        let share = number(&a["requests"]["unsent"]) / number(&main_phase(&run)["requests"]["unsent"]);
        assert!((share - 0.75).abs() < 0.01, "{share}");
        assert_eq!(a["latency_us"]["response"]["lower_bound"], true);
    }
}

#[test]
fn an_objective_may_be_about_one_class() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "10", "--service", "20ms"]);
    let site = Site::start();
    let plan = site.plan(
        "two.toml",
        &format!(
            "[[request]]\nname = \"slow\"\nurl = \"{}\"\n[[request]]\nname = \"fast\"\nurl = \"SITE/\"\n",
            target.url()
        ),
    );
    let run = |objective: &str| site.folder.run(&["run", &plan, "-n", "400", "-c", "2", "--objective", objective]);
    let met = run("slow.p50>=0us");
    assert_eq!(met.code, 2, "an objective that is always met is refused: {met:?}");
    let missed = run("slow.p50<10ms,fast.errors<=0%");
    assert_eq!(missed.code, 3, "{missed:?}");
    assert!(missed.stdout.contains("objective slow.p50<10ms: MISSED, slow.p50 is"), "{}", missed.stdout);
    assert!(missed.stdout.contains("objective fast.errors<=0%: met"), "{}", missed.stdout);
    let met = run("slow.p50<10s,slow.rate>1,fast.service.p50<10s");
    assert_eq!(met.code, 0, "{met:?}");
    let nobody = run("checkout.p99<1s");
    assert_eq!(nobody.code, 2, "{nobody:?}");
    assert!(nobody.stderr.contains("'slow', 'fast'") && nobody.stderr.contains("name ="), "{}", nobody.stderr);
    // The same in a plan, and in a capacity.
    let text = fs::read_to_string(&plan).expect("the plan");
    let with = site.plan("with.toml", &format!("objective = \"slow.p50<10ms\"\n{text}"));
    assert_eq!(site.folder.run(&["run", &with, "-n", "100", "-c", "2"]).code, 3);
    let found = site.folder.run(&["capacity", &plan, "--objective", "nobody.p99<1s"]);
    assert_eq!(found.code, 2, "{found:?}");
    assert!(found.stderr.contains("'slow', 'fast'"), "{}", found.stderr);
}

#[test]
fn ten_thousand_urls_stay_within_a_bound() {
    let site = Site::start();
    let word = |i: u32| format!("{i:05}").bytes().map(|d| (d - b'0' + b'a') as char).collect::<String>();
    let mut text = String::from("pick = \"order\"\n");
    for i in 0..10_000 {
        text += &format!("[[request]]\nurl = \"SITE/{}\"\n", word(i));
    }
    text += "[[request]]\nname = \"last\"\nurl = \"SITE/last\"\n";
    let plan = site.plan("many.toml", &text);
    let run = site.folder.json(&["run", &plan, "-n", "10001", "-c", "4"], 0);
    assert_classes_add_up(&run);
    assert_eq!(classes(&run).len(), 101);
    let other = class(&run, "(other)");
    assert_eq!((n(&other["patterns"]), n(&other["requests"]["answered"])), (9_901, 9_901));
    assert_eq!(n(&class(&run, "last")["requests"]["answered"]), 1);
    // The same requests in one class: the cost of a hundred classes is bounded, whatever the number of URLs.
    let one = site.plan("one.toml", &text.replace("[[request]]\nurl", "[[request]]\nname = \"last\"\nurl"));
    let alone = site.folder.json(&["run", &one, "-n", "10001", "-c", "4"], 0);
    assert_eq!(classes(&alone).len(), 1);
    let peak = |run: &Value| n(&run["generator"]["peak_rss_bytes"]);
    assert!(peak(&run) < peak(&alone) + (48 << 20), "{} and {}", peak(&run), peak(&alone));
    let shown = site.folder.run(&["show", run["id"].as_str().expect("an id")]);
    assert!(shown.stdout.contains("(other) has 9901 patterns together"), "{}", shown.stdout);
    assert!(shown.stdout.contains("20 of 101 classes"), "{}", shown.stdout);
}

#[test]
fn a_killed_run_has_its_classes_too() {
    let site = Site::start();
    let plan = site.plan("mix.toml", MIX);
    let mut child = site.folder.lastdrop(&["run", &plan, "-r", "200", "-d", "60s", "--quiet"]).spawn().expect("runs");
    let shown = || -> Option<Value> {
        let text = site.folder.run(&["show", "last", "--json"]).stdout;
        serde_json::from_str(&text).ok()
    };
    wait_until("two seconds in the store", || {
        std::thread::sleep(Duration::from_millis(300));
        shown().is_some_and(|run| run["phases"][0]["seconds"].as_array().is_some_and(|s| s.len() >= 2))
    });
    signal(&child, libc::SIGKILL);
    child.wait().expect("ends");
    let run = shown().expect("the run");
    assert_eq!(run["end"], "killed");
    assert_eq!(classes(&run).len(), 3);
    let answered: u64 = classes(&run).iter().map(|c| n(&c["requests"]["answered"])).sum();
    assert!(answered >= 200, "{answered}");
}

#[test]
fn a_comparison_says_which_class_is_slower() {
    let _alone = alone();
    let folder = Folder::new();
    let start = |service| Target::start(&folder, &["--workers", "8", "--service", service]);
    let (same, quick, slow) = (start("4ms"), start("4ms"), start("8ms"));
    let plan = |name: &str, changed: &Target| {
        let path = folder.join(name);
        let text = format!(
            "[[request]]\nname = \"same\"\nurl = \"{}\"\n[[request]]\nname = \"changed\"\nurl = \"{}\"\n[[phase]]\nusers = 4\nduration = \"3s\"\n",
            same.url(),
            changed.url()
        );
        fs::write(&path, text).expect("a plan");
        path.to_string_lossy().into_owned()
    };
    let (a, b) = (plan("a.toml", &quick), plan("b.toml", &slow));
    let found = folder.json(&["compare", "--live", &a, &b, "--blocks", "8"], 0);
    let metric = |found: &Value, class: &str| {
        let classes = found["classes"].as_array().expect("classes").clone();
        classes.iter().find(|c| c["name"] == class).unwrap_or_else(|| panic!("{found}"))["metrics"]["p50_us"].clone()
    };
    let changed = metric(&found, "changed");
    assert_eq!(changed["verdict"], "worse", "{found}");
    assert!((1.6..2.4).contains(&number(&changed["ratio"])), "{changed}");
    assert!((0.7..1.4).contains(&number(&metric(&found, "same")["ratio"])), "{found}");
    // Two stored runs: the differences, without a verdict.
    let runs: Vec<String> =
        [&a, &b].map(|p| folder.json(&["run", p], 0)["id"].as_str().expect("an id").into()).to_vec();
    let stored = folder.json(&["compare", &runs[0], &runs[1]], 0);
    assert_eq!(metric(&stored, "changed")["verdict"], "inconclusive");
    assert!((1.6..2.4).contains(&number(&metric(&stored, "changed")["ratio"])), "{stored}");
    let text = folder.run(&["compare", &runs[0], &runs[1]]).stdout;
    assert!(text.contains("changed") && text.contains("p99 A"), "{text}");
}
