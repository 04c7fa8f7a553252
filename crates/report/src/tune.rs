//! What a tune found, as text.

use std::fmt::Write as _;

use lastdrop_model::documents::{TuneDocument, TuneVerdict};
use lastdrop_model::settings::describe;
use lastdrop_model::units::show_us;

use crate::table::aligned;

/// The report of `tune`.
#[must_use]
pub fn tune_text(d: &TuneDocument) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}   {}\n", d.server, d.url);
    let rows: Vec<Vec<String>> = d
        .trials
        .iter()
        .filter(|t| t.role != "race")
        .map(|t| {
            let mut cells = vec![describe(&t.settings)];
            if t.run.is_empty() {
                cells.extend(["–", "–", "–"].map(String::from));
            } else {
                cells.extend([format!("{:.1}", t.objective), show_us(t.p99_us), t.unanswered.to_string()]);
            }
            cells.push(t.warmed.clone());
            let kept = if t.role == "advice" { "clients keep connections" } else { "" };
            let why = t.why.lines().next().unwrap_or_default();
            cells.push(if why.is_empty() { kept.to_string() } else { format!("does not count: {why}") });
            cells
        })
        .collect();
    if !rows.is_empty() {
        out.push_str(&aligned(&["settings", "answered/s", "p99", "unanswered", "warmed", ""], &rows));
    }
    if !d.race.is_empty() {
        let rows: Vec<Vec<String>> = d
            .race
            .iter()
            .enumerate()
            .map(|(i, p)| {
                let ratio = p.best / p.baseline;
                vec![(i + 1).to_string(), format!("{:.1}", p.baseline), format!("{:.1}", p.best), format!("{ratio:.2}")]
            })
            .collect();
        let _ = write!(out, "\nthe race, answered/s:\n{}", aligned(&["pair", "baseline", "best", "ratio"], &rows));
    }
    let verdict = match d.verdict {
        TuneVerdict::Improved => "IMPROVED",
        TuneVerdict::NoGain => "NO GAIN",
        TuneVerdict::Infeasible => "INFEASIBLE",
        TuneVerdict::Inconclusive => "INCONCLUSIVE",
    };
    let _ = writeln!(out, "\n{verdict}: {}", d.because);
    if let (Some(b), Some(w)) = (&d.baseline, &d.winner) {
        let _ = writeln!(out, "  p99 {} before, {} with the best", show_us(b.p99_us), show_us(w.p99_us));
    }
    if !d.diff.is_empty() {
        let title = if d.verdict == TuneVerdict::Improved { "the change" } else { "what was raced" };
        let _ = writeln!(out, "\n{title}:");
        for line in &d.diff {
            let _ = writeln!(out, "  {line}");
        }
    }
    out.push('\n');
    if d.interrupted {
        out.push_str("ended early: interrupted\n");
    }
    if let Some(file) = &d.kept_in {
        let _ = writeln!(out, "kept in {file}");
    }
    if d.restored {
        out.push_str("the server is back as it was found");
        out.push_str(if d.verdict == TuneVerdict::Improved {
            "; to have the change: the same command with --keep\n"
        } else {
            "\n"
        });
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}
