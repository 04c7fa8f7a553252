//! The analysis of an access log, as text.

use std::fmt::Write as _;

use lastdrop_model::documents::{ArrivalsLaw, LogArrivals, LogClass, LogClient, LogDocument, LogMoment, LogSpread};
use lastdrop_model::printable::line;
use lastdrop_model::units::{show_bytes, show_us};

use crate::run::utc;
use crate::table::aligned;

const SHOWN_CLASSES: usize = 20;
const SHOWN_CLIENTS: usize = 10;
const SHOWN_FILES: usize = 5;
const SHOWN_STATUSES: usize = 6;
const SHOWN_REJECTED: usize = 5;
/// Longer names are cut to this many characters.
const LONGEST_NAME: usize = 60;

/// The report of `replay --analyse`.
#[must_use]
pub fn log_text(d: &LogDocument) -> String {
    let mut out = String::new();
    for file in d.files.iter().take(SHOWN_FILES) {
        let _ = writeln!(out, "{}   {}", line(&file.file), line(&file.format));
    }
    if d.files.len() > SHOWN_FILES {
        let _ = writeln!(out, "… and {} more files", d.files.len() - SHOWN_FILES);
    }
    let _ = writeln!(out, "{} requests in {} lines{}", d.requests, d.lines, left_out(d));
    if d.requests > 0 {
        out.push_str(&summary(d));
    }
    for r in d.rejected.iter().take(SHOWN_REJECTED) {
        let _ = writeln!(out, "not understood: {}:{}: {}: {}", line(&r.file), r.line, line(&r.why), line(&r.text));
    }
    for damaged in &d.damaged {
        let _ = writeln!(out, "breaks off: {}", line(damaged));
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {}", line(note));
    }
    out
}

fn left_out(d: &LogDocument) -> String {
    let counts = [
        (d.unparsed, "not understood"),
        (d.too_long, "of these too long"),
        (d.torn, "of these cut off"),
        (d.ignored, "that are no requests"),
    ];
    let shown: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if shown.is_empty() { String::new() } else { format!("; {}", shown.join(", ")) }
}

fn summary(d: &LogDocument) -> String {
    let time = |unix_s: f64| utc((unix_s.max(0.0) * 1e3) as u64);
    let at = |m: &LogMoment| format!("{:.1}/s at {}", m.rps, time(m.unix_s as f64));
    let mut out = format!("{} to {}, {}\n\n", time(d.begin_unix_s), time(d.end_unix_s), show_us(d.seconds * 1e6));
    // In a log of about one minute the busiest minute says nothing new, and may be incomplete.
    let minute =
        if d.seconds < 120.0 { String::new() } else { format!("busiest minute {}, ", at(&d.rate.busiest_minute)) };
    let _ = writeln!(out, "  rate       {:.1}/s; {minute}busiest second {}", d.rate.mean_rps, at(&d.rate.peak));
    let _ = writeln!(out, "  arrivals   {}", arrivals(&d.arrivals));
    let mut statuses: Vec<(&String, &u64)> = d.status.iter().collect();
    statuses.sort_by(|a, b| b.1.cmp(a.1));
    let share = |n: u64| format!("{:.1} %", n as f64 * 100.0 / d.requests.max(1) as f64);
    let statuses: Vec<String> =
        statuses.iter().take(SHOWN_STATUSES).map(|(code, n)| format!("{} × {code} ({})", n, share(**n))).collect();
    let _ = writeln!(out, "  answers    {}", statuses.join(", "));
    if let Some(sizes) = &d.response_bytes {
        let _ = writeln!(
            out,
            "  bytes      {}; an answer {} on average, p50 {}, p99 {}, at most {}",
            show_bytes(d.bytes),
            show_bytes(sizes.mean as u64),
            show_bytes(sizes.p50),
            show_bytes(sizes.p99),
            show_bytes(sizes.max)
        );
    }
    for (name, spread) in
        [("server", &d.server_time_us), ("upstream", &d.upstream_time_us), ("queue", &d.queue_time_us)]
    {
        if let Some(spread) = spread {
            let _ = writeln!(out, "  {name:<10} {}", times(spread));
        }
    }
    if let (Some(requests), Some(pages)) = (&d.sessions.requests, &d.sessions.pages) {
        let _ = writeln!(
            out,
            "  sessions   {}; {:.1} requests each (p50 {}, p99 {}), {:.1} pages",
            d.sessions.count, requests.mean, requests.p50, requests.p99, pages.mean
        );
    }
    if d.repeats.iter().any(|r| r.share > 0.0) {
        let each: Vec<String> =
            d.repeats.iter().map(|r| format!("{:.1} % in {} s", r.share * 100.0, r.lifetime_s)).collect();
        let _ = writeln!(out, "  repeats    GETs for a URL that was fetched before: {}", each.join(", "));
    }
    if let Some(think) = &d.think_us {
        let _ = writeln!(out, "  pauses     from page to page: {}", times(think));
    }
    let _ = write!(out, "\n{}", classes(&d.classes));
    let _ = write!(out, "\n{}", clients(&d.clients, d.requests));
    out.push('\n');
    out
}

fn times(s: &LogSpread) -> String {
    let us = |n: u64| show_us(n as f64);
    format!("mean {}, p50 {}, p90 {}, p99 {}, max {}", show_us(s.mean), us(s.p50), us(s.p90), us(s.p99), us(s.max))
}

fn arrivals(a: &LogArrivals) -> String {
    let (Some(dispersion), Some(law), Some(distance)) = (a.dispersion, a.law, a.distance) else {
        return "too few in each minute to say how they come".into();
    };
    let law = match law {
        ArrivalsLaw::Uniform => "evenly spaced (uniform)".into(),
        ArrivalsLaw::Poisson => "each without regard to the others (poisson)".into(),
        ArrivalsLaw::Bursts => format!("in bursts of about {:.1}", a.burst),
    };
    let fit = match distance {
        d if d < 0.05 => "fits well",
        d if d < 0.15 => "fits roughly",
        _ => "fits badly, but better than the others",
    };
    format!("{law}: {fit} (distance {distance:.2} of 1); index of dispersion {dispersion:.2}")
}

fn short(name: &str) -> String {
    let name = line(name);
    match name.char_indices().nth(LONGEST_NAME) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name,
    }
}

fn classes(all: &[LogClass]) -> String {
    let timed = all.iter().any(|c| c.server_time_us.is_some());
    let row = |c: &LogClass| {
        let statuses: Vec<String> = c.status.iter().map(|(digit, n)| format!("{n} × {digit}")).collect();
        let least = if c.missed_at_most > 0 { "≥" } else { "" };
        let mut cells = vec![
            short(&c.name),
            format!("{least}{}", c.count),
            format!("{:.1} %", c.share * 100.0),
            show_bytes(c.bytes / c.count.max(1)),
        ];
        if timed {
            let time = |f: fn(&LogSpread) -> f64| c.server_time_us.as_ref().map_or("–".into(), |s| show_us(f(s)));
            cells.extend([time(|s| s.mean), time(|s| s.p50 as f64), time(|s| s.p99 as f64)]);
        }
        cells.push(statuses.join(", "));
        cells
    };
    let rows: Vec<Vec<String>> = all.iter().take(SHOWN_CLASSES).map(row).collect();
    let mut heading = vec!["requests", "count", "share", "bytes"];
    if timed {
        heading.extend(["mean", "p50", "p99"]);
    }
    heading.push("answers");
    let mut out = aligned(&heading, &rows);
    if all.len() > SHOWN_CLASSES {
        let _ = writeln!(out, "  {} of {} classes; --json has all", SHOWN_CLASSES, all.len());
    }
    out
}

fn clients(all: &[LogClient], requests: u64) -> String {
    let timed = all.iter().any(|c| c.server_time_us > 0);
    let row = |c: &LogClient| {
        let least = if c.missed_at_most > 0 { "≥" } else { "" };
        let share = format!("{:.1} %", c.count as f64 * 100.0 / requests.max(1) as f64);
        let mut cells =
            vec![short(&c.address), format!("{least}{}", c.count), share, show_bytes(c.bytes), c.errors.to_string()];
        if timed {
            cells.push(show_us(c.server_time_us as f64));
        }
        cells
    };
    let rows: Vec<Vec<String>> = all.iter().take(SHOWN_CLIENTS).map(row).collect();
    let mut heading = vec!["clients", "requests", "share", "bytes", "errors"];
    if timed {
        heading.push("server's time");
    }
    aligned(&heading, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::documents::{LogFile, LogRejected};

    #[test]
    fn a_log_is_told_in_words() {
        let spread = LogSpread { count: 1, mean: 1500.0, p50: 1000, p99: 9000, max: 9000, ..LogSpread::default() };
        let d = LogDocument {
            files: vec![LogFile { file: "access.log".into(), format: "combined".into() }],
            lines: 101,
            requests: 100,
            unparsed: 1,
            status: [("200".to_string(), 90), ("404".to_string(), 10)].into(),
            arrivals: LogArrivals {
                dispersion: Some(1.02),
                law: Some(ArrivalsLaw::Poisson),
                distance: Some(0.03),
                ..LogArrivals::default()
            },
            server_time_us: Some(spread.clone()),
            classes: vec![LogClass {
                name: "GET /\x1b[2J".into(),
                count: 100,
                server_time_us: Some(spread),
                ..LogClass::default()
            }],
            rejected: vec![LogRejected { file: "access.log".into(), line: 7, why: "%t".into(), text: "\x07".into() }],
            ..LogDocument::default()
        };
        let text = log_text(&d);
        for part in [
            "100 requests in 101 lines; 1 not understood",
            "poisson): fits well",
            "90 × 200 (90.0 %), 10 × 404",
            "mean 1.50 ms",
            "GET /\\x1b[2J",
            "access.log:7: %t: \\x07",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(log_text(&LogDocument::default()).starts_with("0 requests in 0 lines"));
    }
}
