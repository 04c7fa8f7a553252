//! Sizes of workers and how many fit, as text.

use std::fmt::Write as _;

use lastdrop_model::Settings;
use lastdrop_model::documents::{MeanMax, SizeDocument};
use lastdrop_model::units::show_bytes;

use crate::table::aligned;

/// The report of `size`.
#[must_use]
pub fn size_text(d: &SizeDocument) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}   {} ({}), {} workers", d.server, d.version, d.model, d.workers.count);
    let row = |name: &str, m: &MeanMax| vec![name.to_string(), show_bytes(m.mean), show_bytes(m.max)];
    let w = &d.workers;
    let rows = vec![
        row("size (RSS)", &w.rss_bytes),
        row("proportional (PSS)", &w.pss_bytes),
        row("private", &w.private_bytes),
        row("shared", &w.shared_bytes),
    ];
    let _ = write!(out, "\n{}", aligned(&["a worker", "mean", "largest"], &rows));
    let _ = writeln!(
        out,
        "\nreal memory of the group: {} (parent included)\n  the classic reckoning, Σ(size − shared) + largest shared, says {}\n  \
         the sum of sizes, as top and ps would have it, says {}",
        show_bytes(d.real_memory_bytes),
        show_bytes(d.classic_real_memory_bytes),
        show_bytes(d.sum_rss_bytes),
    );
    let _ = writeln!(out, "\nworkers that fit into {} ({}):", show_bytes(d.budget_bytes), d.budget_from);
    let f = &d.fits;
    let fits = [
        ("independent", f.independent, "workers vary independently: use this"),
        ("worst_case", f.worst_case, "all at their largest at once"),
        ("classic_sharing", f.classic_sharing, "classic, with sharing"),
        ("no_sharing", f.no_sharing, "classic, as if nothing were shared"),
    ];
    let rows: Vec<Vec<String>> = fits
        .iter()
        .map(|(name, n, what)| {
            vec![n.to_string(), (*what).to_string(), d.formulas.get(*name).cloned().unwrap_or_default()]
        })
        .collect();
    out.push_str(&aligned(&["workers", "taking that", "reckoning"], &rows));
    if d.threads_per_worker > 1 {
        let _ = writeln!(out, "  a worker is a process of {} threads", d.threads_per_worker);
    }
    out.push('\n');
    for (profile, title) in
        [("dedicated", "a dedicated machine"), ("shared", "a machine with other work"), ("bursty", "bursty load")]
    {
        if let Some(settings) = d.profiles.get(profile) {
            let _ = writeln!(out, "for {title}:\n{}", directives(settings));
        }
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// Settings as they would stand in a file, indented.
fn directives(settings: &Settings) -> String {
    let width = settings.keys().map(String::len).max().unwrap_or(0);
    settings.iter().map(|(k, v)| format!("    {k:<width$} {v}\n")).collect()
}
