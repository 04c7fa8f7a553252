//! `lastdrop replay --analyse`: the analysis of real servers' logs, and a plan that imitates them.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::common::servers::nginx;
use crate::common::{Folder, Target, free_port, n, number, wait_until};
use serde_json::Value;

fn log(folder: &Folder, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("a log");
    path.to_string_lossy().into_owned()
}

/// Lines as in NASA's trace of July 1995: without a protocol, with quotes, with bytes that are not text.
const NASA: &[u8] = b"199.72.81.55 - - [01/Jul/1995:00:00:01 -0400] \"GET /history/apollo/ HTTP/1.0\" 200 6245
unicomp6.unicomp.net - - [01/Jul/1995:00:00:06 -0400] \"GET /shuttle/countdown/ HTTP/1.0\" 200 3985
199.120.110.21 - - [01/Jul/1995:00:00:09 -0400] \"GET /shuttle/missions/sts-73/mission-sts-73.html HTTP/1.0\" 200 4085
burger.letters.com - - [01/Jul/1995:00:00:11 -0400] \"GET /shuttle/countdown/liftoff.html HTTP/1.0\" 304 0
pipe3.nyc.pipeline.com - - [01/Jul/1995:00:02:23 -0400] \"GET /shuttle/missions/sts-71/mission-sts-71.html\" 200 -
firewall.dfw.ibm.com - - [20/Jul/1995:07:34:34 -0400] \"1/history/apollo/images/\" 400 -
client-71-162.online.apple.com - - [24/Jul/1995:07:13:03 -0400] \"GET /htbin/wais.com?\"STS-71\" HTTP/1.0\" 200 317
\xb4\xd2.host - - [24/Jul/1995:07:13:04 -0400] \"GET /cgi-bin/imagemap/countdown?99,176 HTTP/1.0\" 302 110
";

const EPA: &[u8] = b"141.243.1.172 [29:23:53:25] \"GET /Software.html HTTP/1.0\" 200 1497
query2.lycos.cs.cmu.edu [29:23:53:36] \"GET /Consumer.html HTTP/1.0\" 200 1325
tanuki.twics.com [29:23:53:53] \"GET /News.html HTTP/1.0\" 200 1014
wpbfl2-45.gate.net [29:23:54:15] \"GET / HTTP/1.0\" 200 4889
140.112.68.165 [29:23:54:16] \"GET /logos/small_gopher.gif\" 304 0
freenet2.carleton.ca [29:23:55:33] \"GET /cgi-bin/waisgate?query=\"clean air\" HTTP/1.0\" 302 -
slip\xe9.host [30:00:00:01] \"GET /docs/\xfc ber.html HTTP/1.0\" 404 -
";

#[test]
fn public_traces_work_as_they_are() {
    let folder = Folder::new();
    let nasa = folder.json(&["replay", &log(&folder, "NASA_access_log_Jul95", NASA), "--analyse"], 0);
    assert_eq!((nasa["schema"].as_str(), n(&nasa["lines"]), n(&nasa["unparsed"])), (Some("lastdrop.log/1"), 8, 0));
    assert_eq!((nasa["files"][0]["format"].as_str(), n(&nasa["clients"][0]["count"])), (Some("common"), 1));
    assert_eq!(number(&nasa["begin_unix_s"]), 804_571_201.0);
    let names: Vec<&str> =
        nasa["classes"].as_array().expect("classes").iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names[0], "GET /shuttle/missions/sts-{n}/mission-sts-{n}.html");
    assert!(names.contains(&"(malformed)"), "{names:?}");
    let epa = folder.json(&["replay", &log(&folder, "epa-http.txt", EPA), "--analyse"], 0);
    assert_eq!((epa["files"][0]["format"].as_str(), number(&epa["seconds"])), (Some("epa"), 396.0));
    assert_eq!((n(&epa["lines"]), n(&epa["unparsed"]), n(&epa["status"]["404"])), (7, 0, 1));
    assert_eq!(number(&epa["begin_unix_s"]), 809_740_405.0);
}

#[test]
fn a_log_of_nginx_tells_what_was_put_on_it() {
    let (folder, port) = (Folder::new(), free_port());
    let path = folder.join("access.log");
    let format = "log_format timed escape=json '{\"t\":\"$msec\",\"who\":\"$remote_addr\",\"what\":\"$request\",\"s\":$status,\
                  \"b\":$body_bytes_sent,\"took\":$request_time}';";
    let http = format!(
        "{format} server {{ listen 127.0.0.1:{port}; access_log {} timed; location / {{ return 200 ok; }} location /no {{ return 404; }} }}",
        path.display()
    );
    let _daemon = nginx(&folder, &http, port);
    // The helper's check that the server is up is in the log, too.
    let before = fs::read_to_string(&path).map_or(0, |t| t.lines().count()) as u64;
    let urls: String = ["item/1", "item/22", "no/3"].map(|p| format!("http://127.0.0.1:{port}/{p}\n")).concat();
    let urls = log(&folder, "urls", urls);
    let run = folder.json(&["run", "-f", &urls, "--in-order", "-c", "3", "-n", "300", "--no-store"], 0);
    assert_eq!(n(&run["phases"][0]["requests"]["answered"]), 300);
    wait_until("the log", || fs::read_to_string(&path).is_ok_and(|t| t.lines().count() as u64 == 300 + before));
    let d = folder.json(&["replay", path.to_str().expect("text"), "--analyse", "--format", format], 0);
    assert_eq!((n(&d["requests"]), n(&d["unparsed"]), n(&d["resolution_us"])), (300 + before, 0, 1000));
    let count = |name: &str| {
        d["classes"].as_array().expect("classes").iter().find(|c| c["name"] == name).map(|c| n(&c["count"]))
    };
    assert_eq!((count("GET /item/{n}"), count("GET /no/{n}")), (Some(200), Some(100)));
    assert_eq!((n(&d["status"]["404"]), n(&d["server_time_us"]["count"])), (100, 300 + before));
    assert_eq!(d["clients"][0]["address"], "127.0.0.1");
}

/// Three minutes of a shop at 10 requests per second.
fn shop() -> String {
    let mut text = String::new();
    for i in 0..1800u32 {
        let request = match i % 10 {
            0..7 => format!("GET /item/{}?from=list", i % 97),
            7..9 => "GET /".into(),
            _ => "POST /cart".to_string(),
        };
        let (minute, second) = (i / 600, i / 10 % 60);
        let _ = writeln!(
            text,
            "10.0.0.{} - - [10/Oct/2025:12:{minute:02}:{second:02} +0000] \"{request} HTTP/1.1\" 200 12 \"-\" \"Mozilla\"",
            i % 7
        );
    }
    text
}

#[test]
fn the_plan_that_imitates_a_log_runs_with_its_mix() {
    let folder = Folder::new();
    let target = Target::start(&folder, &["--workers", "8"]);
    let (log, plan) = (log(&folder, "shop.log", shop()), folder.join("plan.toml"));
    let plan = plan.to_str().expect("text");
    let done = folder.run(&["replay", &log, "--analyse", "--to", &target.url(), "-o", plan]);
    assert!(done.code == 0 && done.stdout.contains("GET /item/{n}?from") && done.stdout.contains("10.0/s"), "{done:?}");
    let urls = PathBuf::from(plan).with_extension("urls");
    assert_eq!(fs::metadata(&urls).expect("beside it").permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(plan).expect("a plan");
    assert!(
        text.lines().count() < 80 && text.contains("urls = \"plan.urls\"") && text.contains("rate = 9.00"),
        "{text}"
    );
    // The plan's own three minutes are too long here: the same requests for a tenth of a second each.
    let short = text.replace("duration = \"18s\"", "duration = \"200ms\"").replace("rate = 9.00", "rate = 200");
    fs::write(plan, &short).expect("written");
    let run = folder.json(&["run", plan, "--no-store"], 0);
    let mut counts = std::collections::BTreeMap::new();
    for phase in run["phases"].as_array().expect("phases") {
        for class in phase["classes"].as_array().into_iter().flatten() {
            *counts.entry(class["name"].as_str().unwrap_or_default().to_string()).or_insert(0) +=
                n(&class["requests"]["sent"]);
        }
    }
    let all: u64 = counts.values().sum();
    let items = counts.get("GET /item/{n}?from").copied().unwrap_or(0) as f64 / all.max(1) as f64;
    // Seven of nine, within four standard deviations.
    assert!(all > 200 && (items - 7.0 / 9.0).abs() < 4.0 * (0.173 / all as f64).sqrt(), "{counts:?}");
}

#[test]
fn hostile_logs_are_counted_and_shown_harmless() {
    let folder = Folder::new();
    let mut text = shop().into_bytes();
    text.extend_from_slice(b"\x1b[2J\xff\x00 rubbish ?token=hidden\n");
    text.extend_from_slice(&vec![b'x'; 1 << 20]);
    text.extend_from_slice(b"\n10.0.0.1 - - [10/Oct/2025:12:0");
    let log = log(&folder, "log", text);
    let done = folder.run(&["replay", &log, "--analyse"]);
    assert_eq!(done.code, 0, "{done:?}");
    for part in [
        "3 not understood, 1 of these too long, 1 of these cut off",
        ":1801: ",
        "\\x1b[2J\\xff",
        ":1802: a line of 1048576 bytes",
    ] {
        assert!(done.stdout.contains(part), "{part}: {done:?}");
    }
    assert!(!done.stdout.contains('\x1b') && !done.stdout.contains("hidden"), "{done:?}");
}

#[test]
fn what_cannot_be_analysed_is_refused_in_words() {
    let folder = Folder::new();
    let strange = log(&folder, "strange", "who knows\nwhat this is\n");
    for (args, code, word) in [
        (vec!["replay", &strange, "--analyse"], 1, "--format"),
        (vec!["replay", "/no/such.log", "--analyse"], 1, "/no/such.log"),
        (vec!["replay", &strange, "--analyse", "--speed", "2"], 2, "--speed"),
        (vec!["replay", &strange, "--analyse", "--format", "%h %x{"], 2, "format"),
        (vec!["replay", &strange, "--analyse", "-o", "plan.toml"], 2, "--to"),
        (vec!["replay", &strange], 2, "--to"),
    ] {
        let done = folder.run(&args);
        assert!(done.code == code && done.stderr.contains(word), "{done:?}");
    }
    let empty: Value = folder.json(&["replay", &log(&folder, "empty", ""), "--analyse"], 1);
    assert_eq!(n(&empty["requests"]), 0);
}

#[test]
fn a_log_in_another_log_is_read_and_a_duration_without_a_unit_is_not_used() {
    let folder = Folder::new();
    let line = |n: u32| {
        format!(
            "2026-05-13T10:00:0{n}.5Z stdout F {{\"time\":\"2026-05-13T10:00:0{n}Z\",\"remote_ip\":\"203.0.113.{n}\",\"method\":\"GET\",\
             \"path\":\"/a\",\"status\":200,\"duration\":26}}\n"
        )
    };
    let text: String = (0..5).map(line).collect();
    let log = log(&folder, "app.log", text + "2026-05-13T10:00:09.5Z stdout F rubbish\n");
    let d = folder.json(&["replay", &log, "--analyse"], 0);
    assert_eq!((n(&d["requests"]), n(&d["unparsed"])), (5, 1), "{d}");
    assert!(d["server_time_us"].is_null(), "{d}");
    assert!(d["clients"][0]["address"].as_str().is_some_and(|a| a.starts_with("203.0.113.")), "{d}");
    assert!(d["notes"].to_string().contains("duration says no unit, so that of 5 requests is not used"), "{d}");
    assert_eq!(d["rejected"][0]["line"], 6, "{d}");
    assert!(d["rejected"][0]["why"].as_str().is_some_and(|why| why.contains("stops being one at byte 33")), "{d}");
    let d = folder.json(&["replay", &log, "--analyse", "--format", "json,duration:ms"], 0);
    assert!((25_000..27_000).contains(&n(&d["server_time_us"]["p50"])), "{d}");
}

#[test]
fn a_log_that_is_not_recognised_says_where_it_stops_to_fit() {
    let folder = Folder::new();
    let tail = "[13/May/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5";
    let strange = log(&folder, "strange", format!("prod web1 203.0.113.7 - - {tail}\n"));
    let packed = log(&folder, "access.log.xz", b"\xfd7zXZ\0\0\x04\xe6\xd6");
    for (file, word) in [
        (&strange, "; nearest is combined: %u expected at byte 10"),
        (&packed, "`xz -dc FILE | lastdrop replay - --analyse`"),
    ] {
        let done = folder.run(&["replay", file, "--analyse"]);
        assert!(done.code == 1 && done.stderr.contains(word), "{done:?}");
    }
}
