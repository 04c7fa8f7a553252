//! The system calls of a request, as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lastdrop_model::documents::{TraceDocument, TraceRow, TraceWait};
use lastdrop_model::units::show_us;

use lastdrop_model::printable::line;

use crate::table::aligned;

/// Rows that are shown unless `--all` is given.
const MOST_ROWS: usize = 30;
/// Waits with a smaller share are only in the JSON.
const LEAST_WAIT: f64 = 0.01;

/// The report of `trace`.
#[must_use]
pub fn trace_text(d: &TraceDocument, all: bool) -> String {
    let mut out = format!("{}   {}   {} requests\n", line(&d.server), line(&d.url), d.requests);
    let _ = writeln!(
        out,
        "{:.1} system calls a request. Calls on files are timed again without tracing, at the present load; times of others, \
         marked ~, are\nthe median under tracing less its own {:.1} \u{b5}s a call, and too high where the machine is busy.\n",
        d.calls_per_request, d.floor_us
    );
    out.push_str(&waiting_text(d));
    for k in &d.kinds {
        let _ = writeln!(
            out,
            "{}: {:.1}, {:.0} \u{b5}s a request: {}",
            line(&k.kind),
            k.per_request,
            k.us_per_request,
            line(&k.title)
        );
        if !k.advice.is_empty() {
            let _ = writeln!(out, "  to be without: {}", line(&k.advice));
        }
    }
    if !d.kinds.is_empty() {
        out.push('\n');
    }
    let shown = if all { d.calls.len() } else { d.calls.len().min(MOST_ROWS) };
    let rows: Vec<Vec<String>> = d.calls[..shown]
        .iter()
        .map(|r| {
            vec![
                format!("{:.2}", r.per_request),
                format!("{:.1}{}", r.us_per_request, if r.traced && r.us_per_request > 0.0 { " ~" } else { "" }),
                r.call.clone(),
                r.error.clone().unwrap_or_default(),
                r.path.clone(),
            ]
        })
        .collect();
    out.push_str(&aligned(&["a request", "\u{b5}s", "call", "error", "on"], &rows));
    if shown < d.calls.len() {
        let _ = writeln!(out, "  … and {} more: --all", d.calls.len() - shown);
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {}", line(note));
    }
    out
}

/// The waits of a request.
fn waiting_text(d: &TraceDocument) -> String {
    let worth = |w: &&TraceWait| w.us_per_request >= LEAST_WAIT * d.waiting_us_per_request;
    let rows: Vec<Vec<String>> = d
        .waiting
        .iter()
        .filter(worth)
        .map(|w| {
            let cells = [format!("{:.2}", w.per_request), show_us(w.us_per_request), w.call.clone(), waited_for(w)];
            cells.to_vec()
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "a request waits for {}, as long as it was traced:\n{}\n",
        show_us(d.waiting_us_per_request),
        aligned(&["a request", "waits", "in", "for"], &rows)
    )
}

fn waited_for(w: &TraceWait) -> String {
    let who = match (&w.process, &w.service) {
        (Some(process), Some(service)) if !process.starts_with(service.as_str()) => {
            format!("{process} ({service}) at ")
        }
        (Some(name), _) | (None, Some(name)) => format!("{name} at "),
        (None, None) => String::new(),
    };
    match w.what.as_str() {
        "peer" => format!("{who}{}", w.peer),
        "sleep" => "the clock: it sleeps".into(),
        "futex" => "another thread (futex)".into(),
        "child" => "a child process".into(),
        what if w.peer.is_empty() => format!("a {what}"),
        what => format!("{what} {}", w.peer),
    }
}

/// Compares two traces: calls that disappeared, appeared, or changed their cost.
#[must_use]
pub fn trace_compare_text(before: &TraceDocument, after: &TraceDocument) -> String {
    let sum = |d: &TraceDocument, f: fn(&TraceRow) -> f64, key: &(String, String)| -> f64 {
        d.calls.iter().filter(|r| (&r.call, &r.path) == (&key.0, &key.1)).map(f).fold(0.0, |a, b| a + b)
    };
    let keys: BTreeSet<(String, String)> =
        before.calls.iter().chain(&after.calls).map(|r| (r.call.clone(), r.path.clone())).collect();
    let mut rows: Vec<(f64, Vec<String>)> = keys
        .iter()
        .filter_map(|key| {
            let count = |d| sum(d, |r| r.per_request, key);
            let us = |d| sum(d, |r| r.us_per_request, key);
            let (a, b, ua, ub) = (count(before), count(after), us(before), us(after));
            // Calls that only some requests make differ from trace to trace.
            ((a - b).abs() >= 0.5).then(|| {
                let cells = [a, b].map(|n| format!("{n:.2}")).into_iter().chain([ua, ub].map(|n| format!("{n:.1}")));
                ((ub - ua).abs(), cells.chain([key.0.clone(), key.1.clone()]).collect())
            })
        })
        .collect();
    rows.sort_by(|x, y| y.0.total_cmp(&x.0));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(_, r)| r).collect();
    let mut out =
        format!("\nbefore: {:.1} calls a request; after: {:.1}\n", before.calls_per_request, after.calls_per_request);
    if rows.is_empty() {
        out.push_str("no call is made more or less often than before\n");
    } else {
        out.push_str(&aligned(&["before", "after", "\u{b5}s before", "\u{b5}s after", "call", "on"], &rows));
    }
    out
}
