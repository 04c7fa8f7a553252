//! The parts of the response time, as text, for servers that report their own time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lastdrop_model::Kind;
use lastdrop_model::plan::ServerTimeFrom;
use lastdrop_model::printable::line;
use lastdrop_model::run::{JoinedLog, PhaseReport, Results};
use lastdrop_model::units::show_us;
use serde_json::Value;

use crate::classes::name_of;
use crate::table::aligned;

/// Largest number of rows in the table over time.
const MOST_STRETCHES: f64 = 12.0;

/// Returns the mean of each part of the response time, overall and per shown class; empty if the run did not
/// ask for it.
pub(crate) fn parts_text(p: &PhaseReport, from: Option<&ServerTimeFrom>) -> String {
    let mut out = String::new();
    let Some(from) = from else { return out };
    let said =
        Kind::PARTS.iter().any(|k| !matches!(k, Kind::Link | Kind::Transfer) && p.latency(*k, "count").is_some());
    if !said {
        let who = if from.is_log() { "no line" } else { "no answer" };
        let _ = writeln!(out, "\n  server time: {who} says it ({})", line(&from.to_string()));
        return out;
    }
    let mut rows = vec![row("all requests".into(), p)];
    if p.classes.len() > 1 {
        rows.extend(crate::classes::shown(p).into_iter().map(|c| row(name_of(c), c)));
    }
    let heading = ["mean of", "service", "link", "queue", "server", "of it upstream", "transfer", "rest"];
    let _ = write!(out, "\n{}", aligned(&heading, &rows));
    let rows = over_time(p);
    if rows.len() > 1 {
        let _ =
            write!(out, "\n{}", aligned(&["second", "link", "queue", "server", "of it upstream", "transfer"], &rows));
    }
    out
}

/// Says how many answers of a run were found in the server's log.
pub(crate) fn joined_text(log: &JoinedLog) -> String {
    let answers = log.joined + log.without_line;
    let mut out = format!("\nserver log {}: {} of {answers} answers have their line", line(&log.file), log.joined);
    let notes = [
        (log.without_line, "never came or came too late"),
        (log.others, "lines of other requests"),
        (log.unparsed, "lines not understood"),
        (log.rotations, "rotations"),
    ];
    for (n, what) in notes.into_iter().filter(|(n, _)| *n > 0) {
        let _ = write!(out, "; {n} {what}");
    }
    out.push('\n');
    out
}

/// Returns the same means over time: per second, or per stretch of seconds if the run is long.
fn over_time(p: &PhaseReport) -> Vec<Vec<String>> {
    let length = (p.duration_s / MOST_STRETCHES).ceil().max(1.0) as u32;
    let mut stretches: BTreeMap<u32, [(f64, f64); Kind::PARTS.len()]> = BTreeMap::new();
    for second in p.seconds.iter() {
        let sums = stretches.entry(second.t / length).or_default();
        for (kind, (sum, count)) in Kind::PARTS.iter().zip(sums) {
            let of = |field: &str| second.parts_us.get(kind.name()).and_then(|s| s.get(field)).and_then(Value::as_f64);
            if let (Some(mean), Some(n)) = (of("mean"), of("count")) {
                *sum += mean * n;
                *count += n;
            }
        }
    }
    let said = |sums: &[(f64, f64)]| sums.iter().any(|(_, n)| *n > 0.0);
    let row = |(at, sums): (u32, [(f64, f64); Kind::PARTS.len()])| {
        let means = sums.iter().map(|(sum, n)| if *n > 0.0 { show_us(sum / n) } else { "–".into() });
        std::iter::once((at * length).to_string()).chain(means).collect()
    };
    stretches.into_iter().filter(|(_, sums)| said(sums)).map(row).collect()
}

fn row(name: String, r: &Results) -> Vec<String> {
    let mean = |kind: Kind| r.latency(kind, "mean");
    let show = |us: Option<f64>| us.map_or("–".to_string(), show_us);
    let mut cells = vec![name, show(mean(Kind::Service))];
    cells.extend(Kind::PARTS.iter().map(|kind| show(mean(*kind))));
    // The means describe the same answers only if each answer reported all parts.
    let parts = [Kind::Link, Kind::Queue, Kind::Server, Kind::Transfer];
    let whole = r.latency(Kind::Service, "count");
    let all_said = parts.iter().all(|k| r.latency(*k, "count") == whole);
    let rest = mean(Kind::Service).filter(|_| all_said).map(|service| {
        let sum: f64 = parts.iter().filter_map(|k| mean(*k)).sum();
        (service - sum).max(0.0)
    });
    cells.push(show(rest));
    cells
}
