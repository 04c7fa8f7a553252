//! The requests of a phase by class, as text.

use std::fmt::Write as _;

use lastdrop_model::Kind;
use lastdrop_model::printable::line;
use lastdrop_model::run::{ClassReport, PhaseReport};
use lastdrop_model::units::{show_bytes, show_us};

use crate::table::aligned;

/// If there are more classes than this, only those that took the most time are shown.
const SHOWN: usize = 20;
/// Longer class names are cut to this many characters.
const LONGEST_NAME: usize = 60;

/// Returns a table with a row per class; empty if the phase has fewer than two classes.
pub(crate) fn classes_text(p: &PhaseReport) -> String {
    let mut out = String::new();
    if p.classes.len() < 2 {
        return out;
    }
    let shown = shown(p);
    let rows: Vec<Vec<String>> = shown.iter().map(|c| row(c)).collect();
    let mut heading =
        vec!["requests", "answered", "rate", "unanswered", "statuses", "received", "mean", "p50", "p99", "max"];
    if shown.iter().any(|c| c.mismatch.is_some()) {
        heading.push("mismatch");
    }
    let _ = write!(out, "\n{}", aligned(&heading, &rows));
    if shown.len() < p.classes.len() {
        let _ = writeln!(
            out,
            "  {} of {} classes, by the time spent in them; --json has all",
            shown.len(),
            p.classes.len()
        );
    }
    for class in p.classes.iter().filter(|c| c.patterns > 1) {
        let _ =
            writeln!(out, "  {} has {} patterns together that are too many to know apart", class.name, class.patterns);
    }
    out
}

/// Returns the classes that get a row, in the plan's order; if there are too many, those that took the most
/// time, longest first.
pub(crate) fn shown(p: &PhaseReport) -> Vec<&ClassReport> {
    let mut shown: Vec<&ClassReport> = p.classes.iter().collect();
    if shown.len() > SHOWN {
        shown.sort_by(|a, b| time_in(b).total_cmp(&time_in(a)));
        shown.truncate(SHOWN);
    }
    shown
}

/// The name of a class in a table.
pub(crate) fn name_of(class: &ClassReport) -> String {
    let name = line(&class.name);
    match name.char_indices().nth(LONGEST_NAME) {
        Some((at, _)) => format!("{}…", &name[..at]),
        None => name,
    }
}

/// Returns the total response time of a class, microseconds.
pub(crate) fn time_in(class: &ClassReport) -> f64 {
    class.latency(Kind::Response, "mean").unwrap_or(0.0) * class.latency(Kind::Response, "count").unwrap_or(0.0)
}

fn row(class: &ClassReport) -> Vec<String> {
    let r = &class.requests;
    let statuses: Vec<String> = class.status.iter().map(|(code, n)| format!("{n} × {code}")).collect();
    let mut cells = vec![
        name_of(class),
        r.answered.to_string(),
        format!("{:.1}/s", class.rate.answered_rps),
        (r.due - r.answered.min(r.due)).to_string(),
        statuses.join(", "),
        show_bytes(class.bytes.received),
    ];
    for field in ["mean", "p50", "p99", "max"] {
        let bound = if class.is_lower_bound(field) { "≥" } else { "" };
        cells.push(class.latency(Kind::Response, field).map_or("–".into(), |us| format!("{bound}{}", show_us(us))));
    }
    cells.extend(class.mismatch.as_ref().map(|m| m.status.to_string()));
    cells
}
