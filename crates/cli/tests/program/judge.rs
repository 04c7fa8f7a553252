//! Objectives, comparisons, capacity and tables of variants, with the whole program against targets of known behaviour.
//! Assertions about times also hold on a slow machine: the targets sleep, and thresholds are far from the expected times, or
//! on the side to which a slow machine does not move them.

use std::thread;

use crate::common::{Folder, Target};
use serde_json::Value;

fn f(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is a number"))
}

#[test]
fn objectives_decide_the_exit_code_and_are_written_as_junit() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "4", "--service", "10ms", "--error-every", "10"]);
    let junit = folder.join("junit.xml");
    let junit = junit.to_str().expect("text");
    let run = |objective: &str, code: i32| {
        let args = ["run", &target.url(), "-c", "4", "-n", "100", "--objective", objective, "--junit", junit];
        folder.json(&args, code)
    };
    let run_met = run("p50<3s,errors<20%,rate>1", 0);
    assert_eq!(run_met["objectives"].as_array().map(Vec::len), Some(3));
    assert!(run_met["objectives"].as_array().expect("a list").iter().all(|o| o["met"] == true));
    assert_eq!(run_met["plan"]["objectives"][0], "p50<3s");
    let missed = run("p50<1ms,errors<1%", 3);
    assert!(missed["objectives"].as_array().expect("a list").iter().all(|o| o["met"] == false));
    // Ten of a hundred responses are errors.
    assert_eq!(f(&missed["objectives"][1]["value"]), 0.1);
    let xml = std::fs::read_to_string(junit).expect("written");
    assert!(xml.contains("tests=\"2\" failures=\"2\"") && xml.contains("name=\"p50&lt;1ms\""), "{xml}");
    // A plan file can have objectives, too; an invalid one is a usage error.
    let plan = folder.join("plan.toml");
    std::fs::write(&plan, format!("url = \"{}\"\nusers = 2\nrequests = 20\nobjective = \"max<1ms\"\n", target.url()))
        .expect("written");
    assert_eq!(folder.run(&["run", plan.to_str().expect("text"), "--quiet"]).code, 3);
    let wrong = folder.run(&["run", &target.url(), "--objective", "p98<3ms"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("p95"), "{wrong:?}");
    // Without a response no objective is missed.
    let dead = folder.run(&["run", "http://127.0.0.1:1/", "-n", "5", "--objective", "p50<1s", "--quiet"]);
    assert_eq!(dead.code, 1, "{dead:?}");
}

#[test]
fn stored_runs_are_compared_with_a_word_about_drift() {
    let folder = Folder::new();
    let (quick, slow) = (folder.join("quick.json"), folder.join("slow.json"));
    let (quick, slow) = (quick.to_str().expect("text"), slow.to_str().expect("text"));
    thread::scope(|scope| {
        for (service, file) in [("10ms", quick), ("40ms", slow)] {
            let folder = &folder;
            scope.spawn(move || {
                let target = Target::start(folder, &["--workers", "4", "--service", service]);
                let done = folder.run(&["run", &target.url(), "-c", "4", "-d", "6s", "--json", file, "--quiet"]);
                assert_eq!(done.code, 0, "{done:?}");
            });
        }
    });
    let worse = folder.json(&["compare", quick, slow], 0);
    assert_eq!(worse["verdict"], "worse", "{worse:#}");
    assert_eq!(worse["metrics"]["rps"]["verdict"], "worse");
    let ratio = f(&worse["metrics"]["rps"]["ratio"]);
    assert!((0.05..0.8).contains(&ratio), "{ratio}");
    assert!(worse["notes"].to_string().contains("drift"), "{worse:#}");
    assert_eq!(folder.run(&["compare", quick, slow, "--fail-on-worse", "--quiet"]).code, 3);
    assert_eq!(folder.json(&["compare", slow, quick], 0)["verdict"], "better");
    // A run compared with itself, which is kept, is equal.
    let kept: Value = serde_json::from_slice(&std::fs::read(slow).expect("written")).expect("JSON");
    let same = folder.json(&["compare", kept["id"].as_str().expect("an id"), slow, "--fail-on-worse"], 0);
    // On a busy machine the seconds of a run may differ so much that the comparison is inconclusive.
    assert!(["no_difference", "inconclusive"].contains(&same["verdict"].as_str().expect("text")), "{same:#}");
    assert_eq!(f(&same["metrics"]["rps"]["ratio"]), 1.0);
    assert!(f(&same["smallest_difference"]) >= 0.05, "{same:#}");
    let url = folder.run(&["compare", "http://127.0.0.1:1/", "http://127.0.0.1:2/"]);
    assert!(url.code == 2 && url.stderr.contains("--live"), "{url:?}");
    let torn = folder.join("torn.json");
    std::fs::write(&torn, "{\"schema\":").expect("written");
    let torn = folder.run(&["compare", torn.to_str().expect("text"), slow]);
    assert!(torn.code == 1 && torn.stderr.contains("not an exported run"), "{torn:?}");
}

#[test]
fn live_comparison_finds_a_slower_server_and_the_noise_of_the_machine() {
    let folder = Folder::new();
    let a = Target::start(&folder, &["--workers", "4", "--service", "10ms"]);
    let b = Target::start(&folder, &["--workers", "4", "--service", "30ms"]);
    let args = ["compare", "--live", &a.url(), &b.url(), "-c", "4", "--blocks", "8", "-d", "200ms", "--fail-on-worse"];
    let worse = folder.json(&args, 3);
    assert_eq!(worse["verdict"], "worse", "{worse:#}");
    let blocks = worse["blocks"].as_array().expect("blocks");
    let counted = blocks.iter().filter(|b| b["spoiled"] == "").count();
    assert!((5..=8).contains(&counted), "{counted}");
    let firsts: Vec<bool> = blocks.iter().map(|b| b["b_first"] == true).collect();
    assert_ne!(firsts[0], firsts[1], "ABBA: {firsts:?}");
    assert!(f(&worse["metrics"]["p50_us"]["ratio"]) > 1.3, "{worse:#}");
    let aa = folder.json(&["compare", "--live", &a.url(), "--aa", "-c", "4", "--blocks", "4", "-d", "200ms"], 0);
    assert_eq!(aa["kind"], "aa");
    assert!(aa["noise_floor"]["floor"]["rps"].is_number(), "{aa:#}");
    // Stored runs are compared with the noise floor that was found.
    let run = folder.join("run.json");
    let run = run.to_str().expect("text");
    assert_eq!(folder.run(&["run", &a.url(), "-c", "4", "-d", "2s", "--json", run, "--quiet"]).code, 0);
    let stored = folder.json(&["compare", run, run], 0);
    assert!(stored["notes"].to_string().contains("measured on this machine"), "{stored:#}");
    let dead = folder.run(&["compare", "--live", &a.url(), "http://127.0.0.1:1/", "-c", "1", "-d", "200ms"]);
    assert!(dead.code == 1 && dead.stderr.contains("B (http://127.0.0.1:1/) answers nothing"), "{dead:?}");
}

#[test]
fn capacity_is_what_the_target_can_do_and_not_more() {
    let folder = Folder::new();
    // 5 workers of 20 ms: 250 requests per second on any machine, and the knee at 5 users.
    let target = Target::start(&folder, &["--workers", "5", "--service", "20ms"]);
    let url = target.url();
    let mut args = vec!["capacity", &url, "--objective", "p50<250ms,errors<5%", "-r", "600", "--precision", "100"];
    args.extend(["-c", "8", "-d", "1s", "--timeout", "1s", "--max-time", "90s"]);
    let found = folder.json(&args, 0);
    assert_eq!(found["met"], true, "{found:#}");
    // 600 is too much, 150 is not, 300 is again. A disturbed machine may take fewer.
    let steps = found["steps"].as_array().expect("steps");
    let of = |rate: f64| steps.iter().filter(move |s| f(&s["rate"]) == rate);
    assert!(of(600.0).count() > 0 && steps.iter().all(|s| f(&s["rate"]) < 250.0 || s["ok"] == false), "{found:#}");
    let rate = f(&found["capacity_rps"]);
    assert!(of(rate).any(|s| s["role"] == "confirm" && s["ok"] == true) && rate <= 150.0, "{found:#}");
    assert!(f(&found["interval"][1]) > rate && f(&found["held_s"]) >= 1.0, "{found:#}");
    let knee = f(&found["knee"]["users"]);
    assert!((2.0..=8.0).contains(&knee), "{:#}", found["knee"]);
    let stairs = found["stairs"].as_array().expect("stairs");
    assert!(stairs.iter().all(|s| f(&s["rps"]) < 270.0), "{stairs:#?}");
    // No rate meets an objective below the service time.
    let args = ["capacity", &url, "--objective", "p50<5ms", "-d", "1s", "-r", "64", "-c", "2"];
    let none = folder.json(&args, 3);
    assert_eq!((&none["met"], f(&none["capacity_rps"])), (&Value::Bool(false), 0.0), "{none:#}");
    assert!(none["because"].as_str().expect("text").contains("no rate meets"), "{none:#}");
}

#[test]
fn little_time_is_used_and_no_time_is_no_missed_objective() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "4", "--service", "20ms"]);
    let args =
        ["capacity", &target.url(), "--objective", "p50<2s,errors<50%", "-c", "2", "-d", "1s", "--max-time", "12s"];
    let found = folder.json(&args, 0);
    assert_eq!(found["met"], true, "{found:#}");
    let args = ["capacity", &target.url(), "--objective", "p50<2s", "-d", "5s", "--max-time", "1s"];
    let none = folder.json(&args, 1);
    assert_eq!((&none["met"], &none["out_of_time"]), (&false.into(), &true.into()), "{none:#}");
    assert!(none["because"].as_str().expect("text").contains("--max-time"), "{none:#}");
}

#[test]
fn capacity_refuses_what_cannot_be_meant() {
    let folder = Folder::new();
    for (args, hint) in [
        (vec!["capacity", "http://127.0.0.1:1/"], "--objective"),
        (vec!["capacity", "http://127.0.0.1:1/", "--objective", "rate>5"], "leave it out"),
        (vec!["capacity", "http://127.0.0.1:1/", "--objective", "p99<5"], "unit"),
    ] {
        let done = folder.run(&args);
        assert!(done.code == 2 && done.stderr.contains(hint), "{done:?}");
    }
    let dead = folder.run(&["capacity", "http://127.0.0.1:1/", "--objective", "p99<1s"]);
    assert!(dead.code == 1 && dead.stderr.contains("127.0.0.1:1"), "{dead:?}");
}

#[test]
fn variants_are_measured_in_rounds_and_sorted() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "8", "--service", "5ms"]);
    let plan = folder.join("plan.toml");
    let text = format!(
        "url = \"{}\"\nrequests = 60\nusers = 4\nkeepalive = \"on\"\nrounds = 3\nsort = \"rps\"\n\
         [[variant]]\nname = \"one user\"\nusers = 1\n\
         [[variant]]\nname = \"four\"\nquery_length = 337\nheader = \"X-Test: yes\"\n",
        target.url()
    );
    std::fs::write(&plan, text).expect("written");
    let plan = plan.to_str().expect("text");
    let sweep = folder.json(&["sweep", plan], 0);
    let rows = sweep["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|r| r["series"].as_str().expect("a name")).collect::<Vec<_>>(), ["four", "one user"]);
    for row in rows {
        assert_eq!((&row["answered"], &row["failed"]), (&Value::from(180), &Value::from(0)), "{row:#}");
        let (rps, low, high) = (f(&row["rps"]), f(&row["rps_interval"][0]), f(&row["rps_interval"][1]));
        assert!(low <= rps && rps <= high && row["runs"].as_array().map(Vec::len) == Some(3), "{row:#}");
    }
    assert!(rows[0]["url"].as_str().expect("a URL").ends_with(&"x".repeat(300)));
    let text = folder.run(&["sweep", plan, "--rounds", "1", "--sort", "avtime"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    // Below the verdict.
    assert!(lines[2].contains('│') && lines[2].contains("avtime  completed  failed"), "{text}");
    assert!(lines[3].contains("one user") || lines[3].contains("four"), "{text}");
    assert!(text.contains("not varying:"), "{text}");
    let wrong = folder.run(&["sweep", plan, "--sort", "speed"]);
    assert!(wrong.code == 2 && wrong.stderr.contains("avtime"), "{wrong:?}");
}
