//! Exports to other programs, during and after runs, read by these programs: HdrHistogram's own tools, Prometheus, protobuf
//! with OpenTelemetry's schema. Their numbers equal those of the JSON.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::servers::Daemon;
use crate::common::{Folder, Target, answer, free_port, get, n, number, serve, signal, wait_until};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The output of a program for an input.
fn piped(program: &str, args: &[&str], input: &[u8], package: &str) -> String {
    let child =
        Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|e| panic!("{program} does not start: {e}; it is in Debian's {package}"));
    let (mut stdin, input) = (child.stdin.take().expect("piped"), input.to_vec());
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("it ends");
    let _ = writing.join();
    let all = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {all}");
    all
}

/// Cumulative responses of a phase by second.
fn sums(phase: &Value) -> Vec<f64> {
    let seconds = phase["seconds"].as_array().expect("seconds");
    let mut sum = 0.0;
    seconds
        .iter()
        .map(|s| {
            sum += number(&s["answered"]);
            sum
        })
        .collect()
}

#[test]
fn files_are_the_same_while_a_run_goes_on_and_afterwards() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "2ms"]);
    let [csv, hdr, events] = ["live.csv", "live.hlog", "live.jsonl"].map(|name| folder.join(name));
    let exports =
        [("csv", &csv), ("hdr", &hdr), ("events", &events)].map(|(form, path)| format!("{form}:{}", text(path)));
    let mut args = vec!["run", "-d", "3s", "--warm-up", "1s", "-c", "2", "-H", "Authorization: Bearer hunter2secret"];
    let url = target.url();
    args.push(&url);
    args.extend(exports.iter().flat_map(|export| ["--export", export.as_str()]));
    let run = folder.json(&args, 0);
    let phases = run["phases"].as_array().expect("phases");
    let answered: u64 = phases.iter().map(|p| n(&p["requests"]["answered"])).sum();

    let lines: Vec<Vec<String>> = read(&csv).lines().map(|l| l.split(',').map(str::to_string).collect()).collect();
    assert!(lines.len() >= 5 && lines.iter().all(|l| l.len() == lines[0].len()), "{lines:?}");
    assert_eq!(lines[1..].iter().map(|l| l[2].parse::<u64>().expect("a count")).sum::<u64>(), answered);
    for (form, path) in [("csv", &csv), ("hdr", &hdr)] {
        let again = folder.run(&["export", "last", "--format", form]);
        // A sample that came too late during the run is there afterwards.
        let seconds = |text: &str| -> Vec<String> {
            let fields = if form == "csv" { 10 } else { usize::MAX };
            text.lines().map(|l| l.split(',').take(fields).collect::<Vec<_>>().join(",")).collect()
        };
        assert!(again.code == 0 && seconds(&again.stdout) == seconds(&read(path)), "{form}: {again:?}\n{}", read(path));
    }

    let intervals: Vec<String> =
        read(&hdr).lines().filter(|l| !l.starts_with(['#', '"'])).map(str::to_string).collect();
    let stored = phases.iter().flat_map(|p| p["seconds"].as_array().expect("seconds"));
    let stored: Vec<&str> = stored.filter(|s| s["answered"] != 0).filter_map(|s| s["response_hdr"].as_str()).collect();
    assert_eq!(intervals.iter().filter_map(|l| l.rsplit(',').next()).collect::<Vec<_>>(), stored);
    assert_eq!(folder.run(&["export", "last", "--format", "xml"]).code, 2);

    // Events exported afterwards lack only what is not stored.
    let again = folder.run(&["export", "last", "--format", "events"]);
    for told in [read(&events), again.stdout] {
        assert!(!told.contains("hunter2secret"), "{told}");
        let events: Vec<Value> = told.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        let of = |name: &str| events.iter().filter(|e| e["event"] == name).collect::<Vec<_>>();
        assert_eq!((of("began").len(), of("ended").len(), of("phase_end").len()), (1, 1, 2));
        assert_eq!(events[0]["id"], run["id"]);
        let counted: u64 = of("second").iter().map(|e| n(&e["slice"]["counts"]["answered"])).sum();
        assert_eq!(counted, answered);
        assert_eq!(of("ended")[0]["run"]["phases"][1]["requests"], phases[1]["requests"]);
    }
}

#[test]
fn hdrhistograms_own_tool_reads_its_log() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "3ms"]);
    let log = folder.join("latency.hlog");
    let run =
        folder.json(&["run", &target.url(), "-d", "2s", "-c", "2", "--export", &format!("hdr:{}", text(&log))], 0);
    let response = &run["phases"][0]["latency_us"]["response"];
    let args = ["-cp", "/usr/share/java/hdrhistogram.jar", "org.HdrHistogram.HistogramLogProcessor"];
    let options = ["-i", text(&log), "-outputValueUnitRatio", "1", "-csv"];
    let table = piped("java", &[&args[..], &options[..]].concat(), &[], "default-jre-headless");
    let rows: Vec<Vec<f64>> = table
        .lines()
        .map(|l| l.split(',').filter_map(|x| x.parse().ok()).collect())
        .filter(|r: &Vec<f64>| r.len() >= 3)
        .collect();
    let (count, max) =
        rows.iter().fold((0.0, 0.0), |(count, max), row| (f64::max(count, row[2]), f64::max(max, row[0])));
    assert_eq!(count, number(&response["count"]), "{table}");
    assert!((max / number(&response["max"]) - 1.0).abs() < 2e-3, "{max} of {response}\n{table}");
    let p50 = rows.iter().find(|row| row[1] >= 0.5).expect("a median")[0];
    assert!((p50 / number(&response["p50"]) - 1.0).abs() < 2e-2, "{p50} of {response}\n{table}");
}

#[test]
fn several_runs_are_told_apart() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "1ms"]);
    let [csv, hdr] = ["all.csv", "all.hlog"].map(|name| folder.join(name));
    let exports = [format!("csv:{}", text(&csv)), format!("hdr:{}", text(&hdr))];
    let url = target.url();
    let args = [
        "compare",
        "--live",
        "--aa",
        &url,
        "--blocks",
        "4",
        "-d",
        "100ms",
        "-c",
        "2",
        "--export",
        &exports[0],
        "--export",
        &exports[1],
    ];
    let done = folder.run(&args);
    assert_eq!(done.code, 0, "{done:?}");
    let (csv, hdr) = (read(&csv), read(&hdr));
    assert_eq!(csv.lines().filter(|l| l.starts_with("second,")).count(), 1, "{csv}");
    let mut ids: Vec<&str> = csv.lines().skip(1).filter_map(|l| l.rsplit(',').next()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() >= 4, "{csv}");
    assert!(ids.iter().all(|id| hdr.contains(&format!("Tag={id}"))), "{hdr}");
    assert_eq!(hdr.matches("#[StartTime").count(), 1, "{hdr}");
}

/// The numbers of a page in Prometheus' text format, by the text of the series.
fn series(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|l| !l.starts_with('#'));
    lines.map(|l| l.rsplit_once(' ').expect("a value")).map(|(k, v)| (k.into(), v.parse().expect("a number"))).collect()
}

#[test]
fn prometheus_scrapes_a_run_and_has_its_numbers() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "2ms"]);
    let (port, page) = (free_port(), free_port());
    let config = folder.join("prometheus.yml");
    let job = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: lastdrop\n  static_configs: [{{targets: ['127.0.0.1:{page}']}}]\n"
    );
    fs::write(&config, job).expect("written");
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", text(&config)))
        .arg(format!("--storage.tsdb.path={}", text(&folder.join("tsdb"))))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"));
    let _prometheus =
        Daemon::start(command, "prometheus", |_| get(port, "/-/ready").is_some_and(|b| b.contains("Ready")));

    let json = folder.join("run.json");
    let export = format!("prometheus:{page}");
    let url = target.url();
    // The test ends it after enough samples.
    let args = ["run", &url, "--warm-up", "1s", "-d", "90s", "-c", "2", "--json", text(&json), "--export", &export];
    let child = folder.lastdrop(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut run = Daemon { child };
    let ask = |query: &str| -> Vec<Value> {
        let body = get(
            port,
            &format!(
                "/api/v1/query?query={}",
                query
                    .replace('{', "%7B")
                    .replace('}', "%7D")
                    .replace('"', "%22")
                    .replace('+', "%2B")
                    .replace(' ', "%20")
            ),
        );
        let answer: Value = body.and_then(|b| unchunked(&b)).unwrap_or_default();
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    };
    let told = |answer: &[Value], phase: &str| -> Vec<f64> {
        let of_phase = answer.iter().find(|s| s["metric"]["phase"] == phase);
        let values = of_phase.and_then(|s| s["values"].as_array().cloned()).unwrap_or_default();
        values.iter().filter_map(|v| v[1].as_str()?.parse().ok()).collect()
    };
    let history = "lastdrop_requests_answered_total[10m]";
    wait_until("Prometheus has several values of the second phase", || {
        let mut values = told(&ask(history), "main");
        values.dedup();
        values.len() >= 3
    });
    let scraped = get(page, "/metrics").expect("a page");
    let answers = ask(history);
    let gap = ask("lastdrop_latency_seconds_bucket{le=\"+Inf\"} - ignoring(le) lastdrop_latency_seconds_count");
    signal(&run.child, libc::SIGINT);
    run.child.wait().expect("it ends");
    let run: Value = serde_json::from_str(&read(&json)).expect("JSON");

    assert!(!gap.is_empty() && gap.iter().all(|g| g["value"][1] == "0"), "{gap:?}");
    for phase in run["phases"].as_array().expect("phases") {
        let (name, sums) = (phase["name"].as_str().expect("a name"), sums(phase));
        let values = told(&answers, name);
        assert!(!values.is_empty() && values.is_sorted(), "{name}: {values:?}");
        assert!(values.iter().all(|v| sums.contains(v)), "{name}: {values:?} of {sums:?}");
        if name != "main" {
            assert_eq!(values.last(), Some(&number(&phase["requests"]["answered"])), "{name} was over");
        }
    }
    piped("promtool", &["check", "metrics"], scraped.as_bytes(), "prometheus");

    let after = folder.run(&["export", "last", "--format", "prometheus"]);
    assert_eq!(after.code, 0, "{after:?}");
    piped("promtool", &["check", "metrics"], after.stdout.as_bytes(), "prometheus");
    let series = series(&after.stdout);
    for phase in run["phases"].as_array().expect("phases") {
        let name = phase["name"].as_str().expect("a name");
        let requests = &phase["requests"];
        for (metric, value) in [
            ("requests_due_total", &requests["due"]),
            ("requests_sent_total", &requests["sent"]),
            ("requests_answered_total", &requests["answered"]),
            ("requests_timed_out_total", &requests["timed_out"]),
            ("requests_waiting", &requests["unsent"]),
            ("requests_in_flight", &requests["censored"]),
            ("connections_opened_total", &phase["connections"]["opened"]),
            ("received_bytes_total", &phase["bytes"]["received"]),
        ] {
            assert_eq!(series[&format!("lastdrop_{metric}{{phase=\"{name}\"}}")], number(value), "{metric} {phase}");
        }
        let response = &phase["latency_us"]["response"];
        for (field, percentile) in [("p50", "50"), ("p99", "99"), ("p99_9", "99.9")] {
            let key = format!(
                "lastdrop_latency_percentile_seconds{{phase=\"{name}\",kind=\"response\",percentile=\"{percentile}\"}}"
            );
            assert!((series[&key] * 1e6 - number(&response[field])).abs() < 1e-3, "{key} {response}");
        }
        let key = format!("lastdrop_latency_seconds_count{{phase=\"{name}\",kind=\"response\"}}");
        assert_eq!(series[&key], number(&response["count"]));
        for (code, count) in phase["status"].as_object().expect("statuses") {
            let key = format!("lastdrop_responses_total{{phase=\"{name}\",code=\"{code}\"}}");
            assert_eq!(series[&key], number(count));
        }
    }
}

/// Parses JSON that may be chunked.
fn unchunked(body: &str) -> Option<Value> {
    serde_json::from_str(&body[body.find('{')?..=body.rfind('}')?]).ok()
}

/// The body of one POST.
fn posted(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}

/// A message decoded by protoc with the official schema.
fn decoded(message: &[u8]) -> String {
    let schema = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/otlp");
    let include = format!("-I{}", schema.display());
    let file = schema.join("opentelemetry/proto/collector/metrics/v1/metrics_service.proto");
    let what = "--decode=opentelemetry.proto.collector.metrics.v1.ExportMetricsServiceRequest";
    piped("protoc", &[&include, what, text(&file)], message, "protobuf-compiler")
}

/// The last number of a phase's metric in protoc's text.
fn last(decoded: &str, metric: &str, phase: &str) -> String {
    let metrics = decoded.split("metrics {").filter(|m| m.contains(&format!("name: \"{metric}\"")));
    let points = metrics.flat_map(|m| m.split("data_points {").skip(1));
    let of_phase = points.filter(|p| p.contains(&format!("string_value: \"{phase}\"")));
    let values = of_phase.flat_map(str::lines).filter_map(|l| l.trim().split_once(": "));
    values
        .filter(|(name, _)| matches!(*name, "as_int" | "count"))
        .last()
        .map(|(_, v)| v.to_string())
        .unwrap_or_default()
}

#[test]
fn a_collector_gets_messages_of_the_official_schema() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "2ms"]);
    let (address, seen) = serve(posted, |_| answer("200 OK", "Content-Type: application/x-protobuf\r\n", ""));
    let collector = format!("http://{address}");
    let url = target.url();
    let run = folder.json(&["run", &url, "-d", "2s", "-c", "2", "--export", &format!("otlp:{collector}")], 0);
    let live = seen.lock().expect("whole").concat();
    seen.lock().expect("whole").clear();
    let file = folder.join("run.otlp");
    assert_eq!(folder.run(&["export", "last", "--format", "otlp", "-o", text(&file)]).code, 0);
    let done = folder.run(&["export", "last", "--format", "otlp", "-o", &collector]);
    assert_eq!(done.code, 0, "{done:?}");
    let posted = seen.lock().expect("whole").concat();
    assert_eq!(posted, fs::read(&file).expect("written"));
    let phase = &run["phases"][0];
    let id = format!("key: \"lastdrop.run.id\"\n      value {{\n        string_value: {}", run["id"]);
    for message in [live, posted] {
        let text = decoded(&message);
        // protoc shows a field that the schema does not know by its number.
        let unknown = text.lines().find(|l| l.trim_start().starts_with(|c: char| c.is_ascii_digit()));
        assert_eq!(unknown, None);
        assert!(text.contains(&id) && text.contains("string_value: \"lastdrop\""), "{text}");
        for (metric, value) in [
            ("lastdrop.requests_answered", &phase["requests"]["answered"]),
            ("lastdrop.requests_sent", &phase["requests"]["sent"]),
            ("lastdrop.received", &phase["bytes"]["received"]),
        ] {
            assert_eq!(last(&text, metric, "main"), value.to_string(), "{metric}");
        }
        assert!(text.contains("aggregation_temporality: AGGREGATION_TEMPORALITY_CUMULATIVE"));
        let seconds = phase["seconds"].as_array().expect("seconds").len();
        assert_eq!(text.matches("resource_metrics {").count(), seconds);
    }
}

#[test]
fn who_takes_nothing_does_not_hold_up_the_run_and_that_is_told() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--service", "2ms"]);
    // It accepts connections and never answers.
    let (address, _) = serve(posted, |_| -> Vec<u8> {
        loop {
            std::thread::park();
        }
    });
    let url = target.url();
    let cases = [
        (format!("otlp:http://{address}"), "did not answer"),
        (format!("otlp:http://127.0.0.1:{}", free_port()), "cannot connect"),
        ("csv:/dev/full".to_string(), "No space left"),
    ];
    let (folder, url) = (&folder, url.as_str());
    std::thread::scope(|scope| {
        for (export, why) in &cases {
            scope.spawn(move || {
                let done = folder.run(&["run", url, "-d", "2s", "-c", "2", "--json", "-", "--export", export]);
                assert_eq!(done.code, 1, "{done:?}");
                let told = done.stderr.contains("could not be exported whole") && done.stderr.contains(*why);
                assert!(told, "{done:?}");
                // The run is complete.
                let run: Value = serde_json::from_str(&done.stdout).expect("one document");
                assert!(number(&run["phases"][0]["duration_s"]) < 2.5 && run["end"] == "finished", "{run}");
            });
        }
    });
}

#[test]
fn an_export_that_cannot_begin_is_said_before_the_run() {
    let folder = Folder::new();
    let target = Target::start(&folder, &[]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let url = target.url();
    for (export, code) in [
        (format!("prometheus:{port}"), 1),
        (format!("csv:{}", text(&folder.join("no/such/folder.csv"))), 1),
        ("csv:-".into(), 2),
        ("toml:file".into(), 2),
        ("otlp:https://127.0.0.1:4318".into(), 2),
    ] {
        let done = folder.run(&["run", &url, "-n", "10", "--export", &export]);
        assert_eq!(done.code, code, "{done:?}");
    }
    assert!(folder.run(&["history"]).stdout.contains("No runs yet"), "nothing was begun");
}
