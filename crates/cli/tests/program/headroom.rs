//! `lastdrop headroom`: the demand of logs against a capacity that is given or measured.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;

use serde_json::Value;

use crate::common::{Folder, Target, n, number};

const MONTHS: [&str; 2] = ["Jan", "Feb"];

/// A line of an access log at a time of January or February 2026, UTC.
fn line(day: u32, second: u32, method: &str, zone_h: i32) -> String {
    let (month, of_month) = if day < 31 { (0, day + 1) } else { (1, day - 30) };
    let hour = second / 3600;
    // The same moment, as another zone writes it; only within the day.
    let hour = (hour as i32 + zone_h).rem_euclid(24);
    let (minute, second) = (second / 60 % 60, second % 60);
    format!(
        "10.0.0.1 - - [{of_month:02}/{}/2026:{hour:02}:{minute:02}:{second:02} {zone_h:+03}00] \"{method} /page?i={second} HTTP/1.1\" 200 512\n",
        MONTHS[month]
    )
}

/// Five weeks from Thursday, 1 January 2026, that grow by 10 % per week: each hour has requests, noon the most.
fn five_weeks() -> String {
    let mut log = String::new();
    for day in 0..35u32 {
        let weekend = (day + 3) % 7 >= 5;
        let level = 40.0 * 1.1f64.powf(f64::from(day) / 7.0) * if weekend { 0.6 } else { 1.0 };
        for hour in 0..24u32 {
            let requests = if hour == 12 { level } else { level / 4.0 };
            for i in 0..requests.round() as u32 {
                // At noon all within a minute.
                let second = if hour == 12 { i % 60 } else { i * 3599 / requests as u32 };
                log.push_str(&line(day, hour * 3600 + second, "GET", 0));
            }
        }
    }
    log
}

fn write(folder: &Folder, name: &str, text: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("written");
    path.to_string_lossy().into_owned()
}

#[test]
fn a_log_tells_its_demand_its_growth_and_when_a_capacity_is_reached() {
    let folder = Folder::new();
    let whole = five_weeks();
    // In two files, one of them packed, given in the wrong order.
    let middle = whole.find("[20/Jan").expect("a day").saturating_sub("10.0.0.1 - - ".len());
    let mut packed = flate2_of(&whole[..middle]);
    let old = write(&folder, "access.log.1.gz", std::mem::take(&mut packed));
    let new = write(&folder, "access.log", &whole[middle..]);
    let d = folder.json(&["headroom", "--log", &new, &old, "--capacity", "2.5"], 0);
    assert_eq!(
        (d["schema"].as_str(), n(&d["demand"]["requests"])),
        (Some("lastdrop.headroom/1"), whole.lines().count() as u64)
    );
    // Tuesday, 3 February, is the 34th day, and Wednesday the 35th: 40 · 1.1^(34/7) = 64 requests at noon.
    let busiest = number(&d["demand"]["busiest_minute_rps"]);
    assert!((busiest - 64.0 / 60.0).abs() < 0.05 * busiest, "{d:#}");
    assert!((number(&d["headroom"]) - 2.5 / busiest).abs() < 1e-9, "{d:#}");
    let growth = number(&d["demand"]["growth"]["per_week"]);
    assert!((growth - 0.1).abs() < 0.02 && number(&d["demand"]["rhythm"][6]) < 0.75, "{d:#}");
    // 150 requests: 1.1^x = 150 / 40 after 13.9 weeks, on 9 April 2026.
    let days = |name: &str| d["reached"][name].as_str().expect("a day").to_string();
    assert!(days("from").as_str() <= "2026-04-09" && "2026-04-09" <= days("to").as_str(), "{d:#}");
    assert_eq!((n(&d["machines"]), d["step"]["what"].as_str()), (2, Some("machine")), "{d:#}");
    // Without a capacity there is the demand alone, in each format.
    let alone = folder.run(&["headroom", "--log", &old, &new]);
    assert!(alone.code == 0 && alone.stdout.contains("the capacity is not known"), "{alone:?}");
    let csv = folder.run(&["headroom", "--log", &old, &new, "--format", "csv"]);
    assert!(csv.stdout.starts_with("peak_rps,busiest_minute_rps,"), "{csv:?}");
    // The busiest minute is above this capacity already.
    let above = folder.json(&["headroom", "--log", &old, &new, "--capacity", "1"], 3);
    assert!(number(&above["headroom"]) < 1.0 && above["reached"]["from"].is_string(), "{above:#}");
}

fn flate2_of(text: &str) -> Vec<u8> {
    let mut gzip = std::process::Command::new("gzip")
        .arg("-c")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("gzip");
    let mut stdin = gzip.stdin.take().expect("piped");
    let text = text.to_string();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let packed = gzip.wait_with_output().expect("it ends").stdout;
    writer.join().expect("no panic").expect("written");
    packed
}

#[test]
fn requests_a_day_become_machines_bandwidth_and_waits() {
    let folder = Folder::new();
    let args = ["headroom", "--per-day", "8M", "--size", "3kB", "--peak", "3", "--capacity", "200", "--burst", "10000"];
    let d = folder.json(&args, 3);
    assert!((number(&d["demand"]["busiest_minute_rps"]) - 277.78).abs() < 0.01, "{d:#}");
    assert!((number(&d["demand"]["bytes_per_s"]) - 277.78 * 3072.0).abs() < 100.0, "{d:#}");
    assert!((number(&d["headroom"]) - 0.72).abs() < 1e-3, "{d:#}");
    assert_eq!((n(&d["machines"]), &d["workers"], &d["reached"]), (3, &Value::Null, &Value::Null));
    let last = d["burst"].as_array().and_then(|b| b.last()).expect("waits");
    assert_eq!((n(&last["rank"]), number(&last["wait_s"])), (10_000, 50.0));
    for (args, why) in [
        (vec!["headroom"], "--log"),
        (vec!["headroom", "--per-day", "0"], "from 1 to"),
        (vec!["headroom", "--per-day", "1M", "--log", "x"], "cannot be used with"),
        (vec!["headroom", "--per-day", "1M", "--objective", "p99<1s"], "--url"),
        (vec!["headroom", "--per-day", "1M", "--url", "http://127.0.0.1:1/"], "--objective"),
        (vec!["headroom", "--per-day", "1M", "--url", "http://127.0.0.1:1/", "--capacity", "5"], "cannot be used with"),
    ] {
        let done = folder.run(&args);
        assert!(done.code == 2 && done.stderr.contains(why), "{done:?}");
    }
}

#[test]
fn hostile_logs_are_read_and_nothing_is_made_up() {
    let folder = Folder::new();
    let headroom = |name: &str, text: &str, code: i32| {
        folder.json(&["headroom", "--log", &write(&folder, name, text), "--capacity", "10"], code)
    };
    let empty = headroom("empty", "", 1);
    assert_eq!(
        (n(&empty["demand"]["requests"]), &empty["headroom"], &empty["reached"]),
        (0, &Value::Null, &Value::Null)
    );
    let one = headroom("one", &line(0, 5, "GET", 0), 0);
    assert!(number(&one["demand"]["peak_rps"]) == 1.0 && one["reached"].is_null(), "{one:#}");
    assert!(one["cannot_tell"].as_str().expect("a reason").contains("whole days"), "{one:#}");
    // A clock that goes back, a time in the future, and lines that are none.
    let mut text: String = (0..300).map(|i| line(0, 40_000 + (i * 7) % 300, "GET", 0)).collect();
    text.push_str(&line(0, 40_300, "GET", 0).replace("2026", "2099"));
    text.push_str("\x16\x03\x01 rubbish\n");
    text.push_str(&line(0, 40_301, "GET", 0));
    let wild = headroom("wild", &text, 0);
    assert_eq!(n(&wild["demand"]["requests"]), 302);
    assert!(wild["reached"].is_null() && wild["notes"].to_string().contains("could not be parsed"), "{wild:#}");
    // Another zone has the same busiest minute.
    let log = |zone: i32| (0..600).map(|i| line(0, 36_000 + i / 10, "GET", zone)).collect::<String>();
    let (here, there) = (headroom("here", &log(0), 0), headroom("there", &log(5), 0));
    assert_eq!(here["demand"], there["demand"]);
    assert_eq!(number(&here["demand"]["busiest_minute_rps"]), 10.0);
}

#[test]
fn the_capacity_is_measured_with_the_log_s_mix_and_sends_nothing_unsafe() {
    let folder = Folder::new();
    // 2 workers of 40 ms: 50 requests per second.
    let target = Target::start(&folder, &["--workers", "2", "--service", "40ms"]);
    let mut text = String::new();
    for i in 0..1200 {
        let _ = write!(text, "{}", line(0, 36_000 + i / 10, if i % 4 == 0 { "POST" } else { "GET" }, 0));
    }
    let (log, url) = (write(&folder, "access.log", text), target.url());
    let args = ["headroom", "--log", &log, "--url", &url, "--objective", "p50<1s,errors<5%"];
    let search = ["-d", "2s", "--max-time", "20s", "-c", "4", "--max-rate", "60"];
    let d = folder.json(&[&args[..], &search].concat(), 0);
    assert_eq!(number(&d["demand"]["busiest_minute_rps"]), 10.0, "{d:#}");
    let capacity = number(&d["capacity_rps"]);
    assert!((15.0..=52.0).contains(&capacity), "{d:#}");
    assert!((number(&d["headroom"]) - capacity / 10.0).abs() < 1e-9, "{d:#}");
    // Ten requests per second of 40 ms keep less than one worker busy.
    assert_eq!(n(&d["workers"]), 1, "{d:#}");
    assert!((0.039..0.3).contains(&number(&d["held_s"])), "{d:#}");
    assert!(d["notes"].to_string().contains("300 may change something"), "{d:#}");
    assert_eq!(d["capacity"]["schema"], "lastdrop.capacity/1");
    // It is kept, and shown again.
    let history = folder.run(&["history"]).stdout;
    let kept = history.lines().find(|l| l.split_whitespace().any(|word| word == "headroom")).expect("it is listed");
    let shown = folder.run(&["show", kept.split_whitespace().next().expect("an id")]);
    assert!(shown.code == 0 && shown.stdout.contains("times the busiest minute"), "{shown:?}");
}
