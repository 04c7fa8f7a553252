//! A comparison as text.

use std::fmt::Write as _;

use lastdrop_model::documents::{ClassComparison, CompareDocument, CompareKind, MetricVerdict, SideConnections};
use lastdrop_model::units::show_us;

use crate::html::first;
use crate::table::aligned;

/// Metrics in the order of the table, with their column names.
const METRICS: [(&str, &str); 5] =
    [("rps", "answers/s"), ("p50_us", "p50"), ("p90_us", "p90"), ("p99_us", "p99"), ("errors", "errors")];

/// An interval that reaches this bound says nothing about the metric.
const UNKNOWN: f64 = 1e9;

/// Classes in the text; the JSON document has all of them.
const CLASSES_SHOWN: usize = 20;

/// Lists median and p99 of each class; classes that got better or worse come first.
fn classes_text(classes: &[ClassComparison]) -> String {
    if classes.is_empty() {
        return String::new();
    }
    let told = |c: &ClassComparison| {
        c.metrics.values().any(|m| matches!(m.verdict, MetricVerdict::Better | MetricVerdict::Worse))
    };
    let mut shown: Vec<&ClassComparison> = classes.iter().collect();
    shown.sort_by_key(|c| !told(c));
    let cells = |c: &ClassComparison, key: &str| match c.metrics.get(key) {
        None => ["–", "–", "–", "–"].map(String::from),
        Some(m) => [show_us(m.a), show_us(m.b), format!("{:.3}", m.ratio), word(m.verdict).into()],
    };
    let row = |c: &&ClassComparison| {
        let [a, b, ratio, verdict] = cells(c, "p50_us");
        let [a99, b99, ratio99, verdict99] = cells(c, "p99_us");
        vec![c.name.clone(), a, b, ratio, verdict, a99, b99, ratio99, verdict99]
    };
    let rows: Vec<Vec<String>> = shown.iter().take(CLASSES_SHOWN).map(row).collect();
    let mut out = aligned(&["requests", "p50 A", "B", "B/A", "B is", "p99 A", "B", "B/A", "B is"], &rows);
    if shown.len() > CLASSES_SHOWN {
        let _ = writeln!(out, "  {CLASSES_SHOWN} of {} classes; --json has all", shown.len());
    }
    out + "\n"
}

fn word(verdict: MetricVerdict) -> &'static str {
    match verdict {
        MetricVerdict::Better => "better",
        MetricVerdict::Worse => "worse",
        MetricVerdict::NoDifference => "no difference shown",
        MetricVerdict::Inconclusive => "cannot tell",
    }
}

/// The connections of a side, as a part of the headline.
fn connections(side: &SideConnections) -> String {
    let many = |n: u64, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    let each =
        if side.streams > 1 { format!(", up to {} requests at once on each", side.streams) } else { String::new() };
    format!("HTTP/{} over {}{each}", side.version, many(side.peak, "connection"))
}

/// The summary of a comparison.
#[must_use]
pub fn compare_text(d: &CompareDocument) -> String {
    let mut out = first::compare(d).line();
    let counted = d.blocks.iter().filter(|b| b.spoiled.is_empty()).count();
    let spoiled = d.blocks.len() - counted;
    let blocks = match d.kind {
        CompareKind::Stored => String::new(),
        _ if spoiled > 0 => format!("   {counted} blocks, {spoiled} spoiled and repeated"),
        _ => format!("   {counted} blocks"),
    };
    if d.kind == CompareKind::Aa {
        let _ = writeln!(out, "A and B are both {}{blocks}\n", d.a.name);
    } else {
        let _ = writeln!(out, "A {}   B {}{blocks}", d.a.name, d.b.name);
        if let (Some(a), Some(b)) = (&d.a.connections, &d.b.connections) {
            let _ = writeln!(out, "A {}   B {}", connections(a), connections(b));
        }
        out.push('\n');
    }
    let mut rows = Vec::new();
    for (key, name) in METRICS {
        let Some(m) = d.metrics.get(key) else { continue };
        if key == "errors" && m.a == 0.0 && m.b == 0.0 {
            continue;
        }
        let show = |x: f64| match key {
            "rps" => format!("{x:.1}"),
            "errors" => format!("{:.3} %", x * 100.0),
            _ => show_us(x),
        };
        let seen = match m.smallest_difference {
            s if s < 0.1 => format!("{:.1} %", s * 100.0),
            s if s < 10.0 => format!("{:.0} %", s * 100.0),
            _ => "–".into(),
        };
        rows.push(vec![
            name.to_string(),
            show(m.a),
            show(m.b),
            format!("{:.3}", m.ratio),
            if m.interval[1] < UNKNOWN {
                format!("{:.3} to {:.3}", m.interval[0], m.interval[1])
            } else {
                "–".into()
            },
            word(m.verdict).into(),
            seen,
        ]);
    }
    if !rows.is_empty() {
        out.push_str(&aligned(&["", "A", "B", "B/A", "95 % interval", "B is", "would have been seen"], &rows));
        out.push('\n');
    }
    out.push_str(&classes_text(&d.classes));
    let _ = writeln!(out, "{}", d.reason);
    if d.kind == CompareKind::Aa
        && let Some(noise) = &d.noise_floor
    {
        let parts: Vec<String> = METRICS
            .iter()
            .filter_map(|(key, name)| Some(format!("{name} {:.1} %", noise.floor.get(*key)? * 100.0)))
            .collect();
        let _ = writeln!(
            out,
            "noise floor: two stretches one after the other differ by less than this in 95 of 100 cases: {}",
            parts.join(", ")
        );
    }
    if d.interrupted {
        out.push_str("ended early: interrupted; this is what the blocks up to then say\n");
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}
