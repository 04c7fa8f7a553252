//! Reports in formats other than text: each has the numbers of the JSON, and the programs that it is for can read it.

use std::fs;
use std::process::Command;

use crate::common::{Apache, Folder, Target, n, number};
use serde_json::Value;

/// Lines of CSV by the names of their columns. No field here contains a comma.
fn rows(csv: &str) -> Vec<serde_json::Map<String, Value>> {
    let mut lines = csv.lines().map(|l| l.split(',').map(str::to_string).collect::<Vec<_>>());
    let heading = lines.next().unwrap_or_else(|| panic!("a heading: {csv}"));
    let row = |fields: Vec<String>| {
        assert_eq!(fields.len(), heading.len(), "{csv}");
        heading.iter().cloned().zip(fields.into_iter().map(Value::String)).collect()
    };
    lines.map(row).collect()
}

/// The numbers that Python's junitparser reads: tests, failures, errors, skipped, and the names of the failed tests.
fn junit(xml: &str, folder: &Folder) -> Value {
    let path = folder.join("junit.xml");
    fs::write(&path, xml).expect("written");
    let script = "import sys, json, junitparser as j\n\
        x = j.JUnitXml.fromfile(sys.argv[1]); x.update_statistics()\n\
        failed = [c.name for s in x for c in s if any(isinstance(r, j.Failure) for r in c.result)]\n\
        print(json.dumps([x.tests, x.failures, x.errors, x.skipped, failed]))";
    let output = Command::new("/usr/bin/python3").args(["-c", script]).arg(&path).output().expect("python3 runs");
    assert!(output.status.success(), "python3-junitparser (./x test installs it): {output:?}\n{xml}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_run_says_the_same_in_every_form() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "2ms"]);
    let url = target.url();
    let args = ["run", &url, "-n", "100", "-c", "2", "--objective", "p50<1ms,errors<1%", "--format", "json"];
    let done = folder.run(&args);
    assert_eq!(done.code, 3, "{done:?}");
    let run: Value = serde_json::from_str(&done.stdout).expect("one document");
    let phase = &run["phases"][0];

    let csv = folder.run(&["show", "last", "--format", "csv"]);
    let [row] = &rows(&csv.stdout)[..] else { panic!("a phase is a line: {csv:?}") };
    assert_eq!(row["answered"], phase["requests"]["answered"].to_string());
    let of = |name: &str| row[name].as_str().and_then(|t| t.parse::<f64>().ok()).expect("a number");
    assert_eq!(of("answered_rps"), number(&phase["rate"]["answered_rps"]));
    assert_eq!(of("p99_us"), number(&phase["latency_us"]["response"]["p99"]));

    let markdown = folder.run(&["show", "last", "--format", "md"]).stdout;
    assert!(markdown.starts_with("**Not good: It misses what was asked of it: p50"), "{markdown}");
    assert!(markdown.contains("| phase | measured |") && markdown.contains("\n| main | true |"), "{markdown}");

    let xml = folder.run(&["show", "last", "--format", "junit"]).stdout;
    assert_eq!(junit(&xml, &folder), serde_json::json!([2, 1, 0, 0, ["p50<1ms"]]), "{xml}");

    // A line per second, as in an export.
    let seconds = folder.run(&["show", "last", "--csv"]);
    assert_eq!(seconds.stdout, folder.run(&["export", "last"]).stdout);
    let sum: u64 = rows(&seconds.stdout).iter().filter_map(|r| r["answered"].as_str()?.parse::<u64>().ok()).sum();
    assert_eq!(sum, n(&phase["requests"]["answered"]));

    let history = folder.run(&["history", "--format", "json"]);
    let history: Value = serde_json::from_str(&history.stdout).expect("one document");
    assert_eq!((&history["kept"][0]["id"], history["kept"][0]["what"].as_str()), (&run["id"], Some("run")));
    let history = folder.run(&["history", "--format", "csv"]);
    assert_eq!(rows(&history.stdout)[0]["id"], run["id"]);
}

#[test]
fn text_and_documents_do_not_meet_on_stdout() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let url = target.url();
    for args in [
        &["run", &url, "-n", "5", "--format", "md", "--json", "-"][..],
        &["run", &url, "-n", "5", "--objective", "errors<1%", "--format", "csv", "--junit", "-"],
        &["run", &url, "-n", "5", "--format", "xml"],
        &["history", "--format", "junit"],
    ] {
        let done = folder.run(args);
        assert_eq!((done.code, done.stdout.as_str()), (2, ""), "{done:?}");
    }
    // With a file it works.
    let json = folder.join("run.json");
    let done = folder.run(&["run", &url, "-n", "5", "--format", "md", "--json", json.to_str().expect("text")]);
    assert!(done.code == 0 && done.stdout.starts_with("**") && json.exists(), "{done:?}");
}

#[test]
fn questions_of_several_runs_have_their_forms() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "1ms"]);
    let url = target.url();
    let plan = folder.join("sweep.toml");
    fs::write(&plan, format!("url = \"{url}\"\nusers = [1, 2]\nrequests = 50\n")).expect("written");
    let done = folder.run(&["sweep", plan.to_str().expect("text"), "--format", "csv"]);
    assert_eq!(done.code, 0, "{done:?}");
    let table = rows(&done.stdout);
    assert_eq!(table.iter().map(|r| r["users"].as_str().expect("text")).collect::<Vec<_>>(), ["1", "2"], "{done:?}");
    assert!(table.iter().all(|r| r["answered"] == "50"), "{table:?}");

    let args = ["compare", "--live", "--aa", &url, "--blocks", "5", "-d", "100ms", "-c", "1", "--format", "junit"];
    let done = folder.run(&args);
    assert_eq!(done.code, 0, "{done:?}");
    let read = junit(&done.stdout, &folder);
    assert!(n(&read[0]) >= 4 && read[2] == 0, "{read} {}", done.stdout);
    let history = folder.run(&["history", "--format", "md"]).stdout;
    assert!(history.contains("| compare |") && history.contains("| sweep |"), "{history}");
}

#[test]
fn the_size_of_a_server_is_a_table() {
    let folder = Folder::new();
    let apache = Apache::start(&folder);
    let name = apache.name();
    let json = folder.json(&["size", &name, "--memory", "300M"], 0);
    let done = folder.run(&["size", &name, "--memory", "300M", "--format", "csv"]);
    assert_eq!(done.code, 0, "{done:?}");
    let [row] = &rows(&done.stdout)[..] else { panic!("a server is a line: {done:?}") };
    assert_eq!(row["workers"], json["workers"]["count"].to_string());
    assert_eq!(row["budget_bytes"], json["budget_bytes"].to_string());
    let done = folder.run(&["size", &name, "--memory", "300M", "--format", "md"]);
    assert!(done.stdout.starts_with("**Result: ") && done.stdout.contains("| budget |"), "{done:?}");
    assert_eq!(folder.run(&["size", &name, "--format", "junit"]).code, 2);
}
