use std::fmt::Write as _;
use std::io::Cursor;
use std::time::Duration;

use lastdrop_model::documents::ArrivalsLaw;
use lastdrop_model::url_file;

use super::*;
use crate::lines::Lines;

fn analyse(format: &str, log: String) -> (Analysis, LogEntries) {
    let lines = Lines::new(Cursor::new(log.into_bytes())).expect("memory");
    let mut entries = LogEntries::of(lines, format.parse().expect("a format"), Duration::from_secs(60));
    let mut analysis = Analysis::default();
    while let Some(entry) = entries.next() {
        analysis.take(entry);
    }
    (analysis, entries)
}

/// Ten minutes at ten requests/s: of ten requests six are for items, three for a style sheet, one is a failing login.
fn shop() -> String {
    let mut log = String::new();
    for i in 0..6000u32 {
        let (request, status, us) = match i % 10 {
            0..6 => (format!("GET /item/{i}?from={}", i % 7), 200, 20_000),
            6..9 => ("GET /style.css".to_string(), 304, 500),
            _ => ("POST /login".to_string(), 403, 100_000),
        };
        let (minute, second) = (i / 600, i / 10 % 60);
        let _ = writeln!(
            log,
            "10.0.0.{} - - [10/Oct/2000:13:{minute:02}:{second:02} +0000] \"{request} HTTP/1.1\" {status} 100 {us}",
            i % 5
        );
    }
    log
}

const TIMED: &str = r#"%h %l %u %t "%r" %>s %b %D"#;

#[test]
fn a_log_tells_its_rates_mix_and_times() {
    let (analysis, entries) = analyse(TIMED, shop() + "rubbish\n");
    let d = analysis.finish(&entries);
    assert_eq!((d.schema.as_str(), d.lines, d.requests, d.unparsed, d.seconds), (LOG_SCHEMA, 6001, 6000, 1, 599.0));
    assert_eq!((d.rate.mean_rps, d.rate.peak.rps, d.rate.counts.len()), (10.0, 10.0, 600));
    assert_eq!(d.arrivals.law, Some(ArrivalsLaw::Uniform));
    let classes: Vec<(&str, u64)> = d.classes.iter().map(|c| (c.name.as_str(), c.count)).collect();
    assert_eq!(classes, [("GET /item/{n}?from", 3600), ("GET /style.css", 1800), ("POST /login", 600)]);
    let spread = |c: &LogClass| c.server_time_us.as_ref().map_or(0, |s| s.p50);
    assert!(spread(&d.classes[0]).abs_diff(20_000) < 300 && spread(&d.classes[2]).abs_diff(100_000) < 1500);
    assert_eq!((d.classes[2].status["4xx"], d.status["200"], d.methods["POST"], d.bytes), (600, 3600, 600, 600_000));
    assert_eq!((d.clients.len(), d.clients[0].count, d.sessions.count), (5, 1200, 5));
    assert_eq!(d.clients.iter().map(|c| c.errors).sum::<u64>(), 600);
    // Each of the five clients requests a page or a resource every half second.
    assert!(d.think_us.is_some_and(|t| t.count > 4000 && t.max <= 1_100_000));
    assert!(d.exact && d.server_time_us.is_some_and(|s| s.count == 6000));
}

#[test]
fn a_million_urls_and_addresses_have_a_bound_and_sums_are_exact() {
    let mut log = String::new();
    for i in 0..200_000u32 {
        let word: String = i.to_string().bytes().map(|d| char::from(d - b'0' + b'a')).collect();
        let path = if i % 4 == 0 { "home" } else { &word };
        let _ = writeln!(
            log,
            "10.{}.{}.{} - - [10/Oct/2000:13:00:{:02} +0000] \"GET /{path} HTTP/1.1\" 200 1 5",
            i >> 16,
            i >> 8 & 255,
            i & 255,
            i / 4000
        );
    }
    let (analysis, entries) = analyse(TIMED, log);
    assert!(analysis.classes.slots().len() <= 2 * MOST_CLASSES && analysis.clients.slots().len() <= 2 * MOST_CLIENTS);
    let d = analysis.finish(&entries);
    assert!(!d.exact && d.notes[0].contains("missed_at_most"));
    assert_eq!((d.classes[0].name.as_str(), d.classes[0].count), ("GET /home", 50_000));
    assert_eq!(d.classes.iter().map(|c| c.count).sum::<u64>(), 200_000);
    assert_eq!(d.clients.iter().map(|c| c.count).sum::<u64>() + d.other_clients, 200_000);
    let timed = d.classes.iter().filter_map(|c| c.server_time_us.as_ref()).map(|s| s.count).sum::<u64>();
    assert_eq!(timed, 200_000);
}

#[test]
fn the_imitation_has_the_mix_and_the_rate() {
    let (analysis, _entries) = analyse(TIMED, shop());
    let Imitation { plan, urls } = analysis.imitate("http://127.0.0.1:8080").expect("a plan");
    let requests = url_file::parse(&urls, std::path::Path::new("/"), |_| None).expect("a file of URLs");
    let items = requests.iter().filter(|r| r.url.path.starts_with("/item/")).count();
    // Two of three repeatable requests are for items.
    assert!(requests.len() == 5000 && items.abs_diff(3333) < 200, "{items}");
    assert!(plan.contains("600 of them are left out") && plan.contains("60.0 %  GET /item/{n}?from"), "{plan}");
    assert_eq!(plan.matches("rate = 9.00\nduration = \"60s\"").count(), 10, "{plan}");
}

#[test]
fn hostile_requests_are_classes_too() {
    let line = |r: &str| format!("h - - [10/Oct/2000:13:00:00 +0000] \"{r}\" 400 0 1\n");
    let log = ["\\x16\\x03", "G\u{1b}T / HTTP/1.0", "GET /\\xff\\x00 HTTP/1.0", "GET http://a.b/c?d HTTP/1.1", "-"]
        .map(line)
        .concat();
    let (analysis, entries) = analyse(TIMED, log);
    let urls = analysis.imitate("http://h").expect("one of them can be sent").urls;
    assert!(urls.ends_with("http://h/%FF%00\n"), "{urls}");
    let names: Vec<String> = analysis.finish(&entries).classes.into_iter().map(|c| c.name).collect();
    assert_eq!(names, ["(malformed)", "GET /\\xff\u{0}", "GET /c?d"]);
}

#[test]
fn nothing_is_no_mistake() {
    let (analysis, entries) = analyse("common", String::new());
    assert!(analysis.imitate("http://h").is_none());
    let d = analysis.finish(&entries);
    assert_eq!((d.requests, d.seconds, d.classes.len(), d.arrivals.law), (0, 0.0, 0, None));
}
