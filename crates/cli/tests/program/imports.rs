//! Reports of other load generators, compared with each other and with our runs. Reports of installed programs are real.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{CommandOutput, Folder, Target, number};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Writes stdout and stderr of a program, which has to succeed, into a file.
fn report(folder: &Folder, name: &str, program: &str, args: &[&str]) -> PathBuf {
    let output = Command::new(program).args(args).env("HOME", folder.path()).output();
    let output = output.unwrap_or_else(|e| panic!("{program} (./x test installs it): {e}"));
    assert!(output.status.success(), "{:?}", CommandOutput::of(output, args));
    let path = folder.join(name);
    fs::write(&path, [output.stdout, b"\n".to_vec(), output.stderr].concat()).expect("written");
    path
}

/// The value after a label in a report.
fn said(path: &Path, label: &str) -> f64 {
    let text = fs::read_to_string(path).expect("a report");
    let rest =
        text.lines().find_map(|l| l.trim_start().strip_prefix(label)).unwrap_or_else(|| panic!("{label}: {text}"));
    rest.split_whitespace().find_map(|w| w.parse().ok()).unwrap_or_else(|| panic!("{label}: {rest}"))
}

/// An example report of a program that is not installed.
fn example(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/reports");
    format!("{folder}/{name}")
}

fn notes(document: &Value) -> String {
    document["notes"].to_string()
}

#[test]
fn real_reports_of_ab_siege_wrk_and_hey_are_compared_by_what_they_say() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "3ms"]);
    let url = target.url();
    let ab = report(&folder, "ab.txt", "ab", &["-q", "-n", "300", "-c", "2", &url]);
    let rc = folder.join("siegerc");
    fs::write(&rc, "json_output = false\nshow-logfile = false\nlogging = false\n").expect("written");
    let [rc, calls] = [text(&rc), "100"];
    let siege = report(&folder, "siege.txt", "siege", &["-R", rc, "-b", "-r", calls, "-c", "2", &url]);
    let json = report(&folder, "siege.json", "siege", &["-R", rc, "-j", "-b", "-r", calls, "-c", "2", &url]);
    let hey = report(&folder, "hey.txt", "hey", &["-n", "300", "-c", "2", &url]);
    let wrk = report(&folder, "wrk.txt", "wrk", &["-t", "1", "-c", "2", "-d", "1s", "--latency", &url]);

    let document = folder.json(&["compare", text(&ab), text(&wrk)], 0);
    assert_eq!(document["verdict"], "inconclusive", "{document:#}");
    let rps = &document["metrics"]["rps"];
    assert_eq!(
        (number(&rps["a"]).round(), number(&rps["b"]).round()),
        (said(&ab, "Requests per second:").round(), said(&wrk, "Requests/sec:").round())
    );
    // ab prints whole milliseconds; the service takes a little over three.
    assert_eq!(number(&document["metrics"]["p50_us"]["a"]).round(), said(&ab, "50%") * 1e3);
    assert!(number(&document["metrics"]["p99_us"]["b"]) > 3000.0, "{document:#}");
    assert!(notes(&document).contains("A is by ab: its times are whole milliseconds"), "{document:#}");

    let document = folder.json(&["compare", text(&siege), text(&wrk)], 0);
    assert_eq!(number(&document["metrics"]["rps"]["a"]).round(), said(&siege, "Transaction rate:").round());
    assert!(document["metrics"].get("p50_us").is_none() && notes(&document).contains("A is by siege: no percentiles"));
    let document = folder.json(&["compare", text(&json), text(&hey)], 0);
    assert_eq!(number(&document["metrics"]["rps"]["b"]).round(), said(&hey, "Requests/sec:").round());
    assert!(
        notes(&document).contains("A is by siege: no percentiles") && number(&document["metrics"]["rps"]["a"]) > 0.0
    );
    let document = folder.json(&["compare", text(&hey), text(&wrk)], 0);
    assert_eq!(number(&document["metrics"]["p99_us"]["a"]).round(), (said(&hey, "99% in") * 1e6).round());
    let shown = folder.run(&["compare", text(&siege), text(&wrk)]);
    assert!(shown.stdout.contains("cannot tell") && !shown.stdout.contains("1000000000"), "{shown:?}");
}

#[test]
fn a_report_is_compared_with_a_run_of_ours() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "3ms"]);
    let url = target.url();
    let run = folder.json(&["run", &url, "-n", "200", "-c", "2"], 0);
    let ab = report(&folder, "ab.txt", "ab", &["-q", "-n", "200", "-c", "2", &url]);
    let document = folder.json(&["compare", "last", text(&ab)], 0);
    assert_eq!(document["a"]["runs"][0], run["id"]);
    assert_eq!(document["metrics"]["rps"]["a"], run["phases"][0]["rate"]["answered_rps"]);
    assert_eq!(document["verdict"], "inconclusive");
}

#[test]
fn blocks_of_reports_decide() {
    let folder = Folder::new();
    let text_of = |level: f64| -> String {
        let block = |i: u32| {
            let rps = level * (1.0 + 0.002 * f64::from(i % 3));
            format!(
                "Running 1s test @ http://h/\n  Latency Distribution\n     50%  {:.2}ms\n     99%  {:.2}ms\n  {} requests in 1.00s, 1MB read\nRequests/sec: {rps:.2}\n",
                1e3 / rps,
                4e3 / rps,
                rps as u64
            )
        };
        (0..6).map(block).collect()
    };
    let [slow, fast, same] = [("slow", 500.0), ("fast", 800.0), ("same", 502.0)].map(|(name, level)| {
        let path = folder.join(name);
        fs::write(&path, text_of(level)).expect("written");
        path
    });
    assert_eq!(folder.json(&["compare", text(&slow), text(&fast)], 0)["verdict"], "better");
    assert_eq!(folder.json(&["compare", text(&fast), text(&slow), "--fail-on-worse"], 3)["verdict"], "worse");
    assert_eq!(folder.json(&["compare", text(&slow), text(&same)], 0)["verdict"], "no_difference");
}

#[test]
fn reports_of_others_are_read_and_what_they_cannot_say_is_said() {
    let folder = Folder::new();
    let ab = example("ab");
    for (name, rps, limit) in [
        ("wrk2", 2000.28, ""),
        ("hey", 75.0, "B is by hey: no percentile above p99"),
        ("oha", 97.5, "B is by oha: what was cut off at its end is left out"),
        ("k6_export", 99.5, "B is by k6: no p99 unless"),
        ("k6_handled", 99.5, "B is by k6: its times leave out connecting"),
        ("oha_text", 97.5, "B is by oha: what was cut off at its end is left out"),
        ("vegeta", 98.0, "B is by vegeta: its times begin when a request is sent"),
        ("vegeta_text", 98.0, "B is by vegeta: its times begin when a request is sent"),
    ] {
        let document = folder.json(&["compare", &ab, &example(name)], 0);
        assert_eq!((number(&document["metrics"]["rps"]["b"]) * 100.0).round() / 100.0, rps, "{name} {document:#}");
        assert!(notes(&document).contains(limit), "{name} {document:#}");
        assert_eq!(document["verdict"], "inconclusive", "{name}");
    }
    let none = folder.join("none.txt");
    fs::write(&none, "hello\n").expect("written");
    let done = folder.run(&["compare", &ab, text(&none)]);
    assert!(done.code == 1 && done.stderr.contains("no report of ab, siege"), "{done:?}");
}
