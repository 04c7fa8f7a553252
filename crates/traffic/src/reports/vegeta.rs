//! vegeta, as text: `lib/reporters.go`, NewTextReporter(). Each line has a label, the names of its columns in brackets, and their values.

use super::{Report, number, share};

pub(super) fn read(text: &str) -> Report {
    let row = |label: &str| {
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix(label)?.trim_start().strip_prefix('['))?;
        let (names, values) = line.split_once(']')?;
        let names = names.split(',').map(str::trim);
        Some(names.zip(values.split(',').map(str::trim)).collect::<Vec<_>>())
    };
    let column = |label: &str, name: &str| row(label)?.into_iter().find(|(n, _)| *n == name).map(|(_, value)| value);
    let micros = |label: &str, name: &str| go_duration_us(column(label, name)?);
    // `Status Codes  [code:count]  200:500  0:3`: 0 is no answer.
    let codes = text.lines().find_map(|l| l.trim_start().strip_prefix("Status Codes")?.split_once(']'));
    let counts = codes.map_or("", |(_, counts)| counts).split_whitespace().filter_map(|one| one.split_once(':'));
    let answered: f64 = counts.filter(|(code, _)| *code != "0").filter_map(|(_, n)| n.parse::<f64>().ok()).sum();
    let success = column("Success", "ratio").and_then(number).map(|percent| percent / 100.0);
    let latency = |name: &str| micros("Latencies", name).filter(|_| answered > 0.0);
    let mut limits =
        vec!["its times begin when a request is sent, not when it was due: a stalled server hides".to_string()];
    if latency("90").is_none() {
        limits.push("no p90 in this version's reports".into());
    }
    Report {
        tool: "vegeta",
        url: None,
        requests: column("Requests", "total").and_then(|n| n.parse().ok()),
        rps: codes.and(micros("Duration", "total")).and_then(|us| share(answered, us / 1e6)),
        p50_us: latency("50"),
        p90_us: latency("90"),
        p99_us: latency("99"),
        errors: success.map(|good| 1.0 - good),
        open_loop: true,
        limits,
    }
}

/// A duration as Go writes it: `1m2.5s`, `900.5µs`, `0s`.
fn go_duration_us(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut us = None;
    while !rest.is_empty() {
        let unit = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let letters = rest[unit..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |n| unit + n);
        us = Some(us.unwrap_or(0.0) + super::duration_us(&rest[..letters])?);
        rest = &rest[letters..];
    }
    us
}
