//! Sizes of workers and how many fit, as text.

use std::fmt::Write as _;

use lastdrop_model::Settings;
use lastdrop_model::documents::{Interval, MeanMax, SharingPoint, SizeDocument, SizeFit, SizeFits, WorkersAdvice};
use lastdrop_model::printable::line;
use lastdrop_model::units::show_bytes;

use crate::html::first;
use crate::table::aligned;

/// The report of `size`.
#[must_use]
pub fn size_text(d: &SizeDocument) -> String {
    let mut out = first::size(d).line();
    let _ =
        writeln!(out, "{}   {} ({}), {} workers", line(&d.server), line(&d.version), line(&d.model), d.workers.count);
    if d.workers.cold > 0 {
        let _ = writeln!(out, "  {} of them have served next to nothing yet", d.workers.cold);
    }
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
    if let Some(fit) = &d.fit {
        out.push_str(&fit_text(fit));
    }
    if let Some(f) = &d.fits {
        out.push_str(&fits_text(d, f));
    }
    if d.threads_per_worker > 1 {
        let _ = writeln!(out, "  a worker is a process of {} threads", d.threads_per_worker);
    }
    if let Some(advice) = &d.workers_advice {
        out.push('\n');
        out.push_str(&advice_text(advice));
    }
    out.push('\n');
    for (profile, title) in
        [("dedicated", "a dedicated machine"), ("shared", "a machine with other work"), ("bursty", "bursty load")]
    {
        // A server without a pool gets no suggestion.
        if let Some(settings) = d.profiles.get(profile).filter(|settings| !settings.is_empty()) {
            let _ = writeln!(out, "for {title}:\n{}", directives(settings));
        }
    }
    if !d.variants.is_empty() {
        out.push_str(&variants_text(d));
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// The recommended number of workers, and the reason.
pub(crate) fn advice_text(advice: &WorkersAdvice) -> String {
    let mut out = format!("workers: {}\n", advice.line());
    if !advice.reason.is_empty() {
        let _ = writeln!(out, "  need: {}", advice.reason);
    }
    for ceiling in advice.ceilings.iter().filter(|c| !c.reason.is_empty()) {
        let _ = writeln!(out, "  {} {}: {}", ceiling.by, ceiling.number, line(&ceiling.reason));
    }
    for way in &advice.lower {
        let _ = writeln!(out, "  a lower need by {way}");
    }
    out
}

/// The number of workers that fit into memory, by each estimate.
fn fits_text(d: &SizeDocument, f: &SizeFits) -> String {
    let mut out = format!("\nworkers that fit into {} ({}):\n", show_bytes(d.budget_bytes), d.budget_from);
    let fits = [
        ("independent", f.independent, "workers vary independently"),
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
    out
}

/// The fitted model of `--fit`.
fn fit_text(fit: &SizeFit) -> String {
    let mut out = String::new();
    let rows: Vec<Vec<String>> = fit
        .points
        .iter()
        .map(|p| {
            vec![
                p.workers.to_string(),
                show_bytes(p.pss_bytes),
                show_bytes(p.kernel_bytes),
                show_bytes(p.total_bytes),
                p.cgroup_anonymous_bytes.map_or("-".into(), show_bytes),
            ]
        })
        .collect();
    let heading = ["pool", "real memory", "kernel's", "total", "anonymous by the control group"];
    let _ = write!(
        out,
        "\npools that were tried, each worker after {:.0} requests:\n{}",
        fit.warmed_requests,
        aligned(&heading, &rows)
    );
    let range = |i: &Interval| {
        let b = |x: f64| if x < 0.0 { format!("-{}", show_bytes(-x as u64)) } else { show_bytes(x as u64) };
        format!("{} ({} to {})", b(i.value), b(i.interval[0]), b(i.interval[1]))
    };
    let _ = writeln!(
        out,
        "  shared once {}, each worker {}, varying by {}",
        range(&fit.shared_bytes),
        range(&fit.per_worker_bytes),
        show_bytes(fit.spread_bytes as u64)
    );
    if let Some(ratio) = fit.cgroup_ratio {
        let _ = writeln!(out, "  anonymous part of Σ PSS: {:.1} % of what the control group counts", ratio * 100.0);
    }
    let rows: Vec<Vec<String>> = fit
        .sharing
        .iter()
        .map(|s| {
            let bytes = [s.size_bytes, s.shared_bytes, s.private_bytes].map(show_bytes);
            std::iter::once(format!("{:.0}", s.requests)).chain(bytes).collect()
        })
        .collect();
    let heading = ["requests", "size", "shared", "private"];
    let _ = write!(out, "\na worker as it grows older:\n{}", aligned(&heading, &rows));
    if let Some(g) = &fit.growth {
        if g.grows {
            let _ = writeln!(
                out,
                "  each request adds {} private: {} leaked, {} unshared",
                range(&g.private_bytes),
                range(&g.leaked_bytes),
                range(&g.unshared_bytes)
            );
            if let Some(age) = g.best_age {
                let _ = writeln!(
                    out,
                    "  replacing a worker pays best after {age} requests ({:.1} ms CPU a request, {:.1} ms a new worker)",
                    g.request_cpu_s * 1e3,
                    g.replace_cpu_s * 1e3
                );
            }
        } else {
            let word = match fit.settling.as_str() {
                "slowing" => "not settled yet, but growing less and less",
                _ => "settled; what still comes is no growth",
            };
            let _ = writeln!(out, "  {word}: {} a request at the end", range(&g.private_bytes));
        }
    }
    let _ = writeln!(
        out,
        "  95 % intervals of the model: independent {} to {}, worst case {} to {}",
        fit.independent_interval[0],
        fit.independent_interval[1],
        fit.worst_case_interval[0],
        fit.worst_case_interval[1]
    );
    out
}

/// Size, shared memory and the difference per set of directives, after the first and the second request.
fn variants_text(d: &SizeDocument) -> String {
    let rows: Vec<Vec<String>> = d
        .variants
        .iter()
        .map(|v| {
            let point = |p: &SharingPoint| [p.size_bytes, p.shared_bytes, p.private_bytes].map(show_bytes);
            let fits = [v.fits.independent, v.fits.worst_case, v.fits.classic_sharing, v.fits.no_sharing];
            std::iter::once(v.name.clone())
                .chain(point(&v.first))
                .chain(point(&v.second))
                .chain(fits.map(|n| n.to_string()))
                .collect()
        })
        .collect();
    let heading = [
        "variant", "size 1", "shared 1", "diff 1", "size 2", "shared 2", "diff 2", "fit", "worst", "classic",
        "unshared",
    ];
    let mut out = format!(
        "\na worker after its first and second request, and how many fit into {}:\n{}",
        show_bytes(d.budget_bytes),
        aligned(&heading, &rows)
    );
    for v in d.variants.iter().filter(|v| !v.directives.is_empty()) {
        let _ = writeln!(out, "  {}: {}", v.name, v.directives);
    }
    out.push('\n');
    out
}

/// Settings as lines of a configuration file, indented.
fn directives(settings: &Settings) -> String {
    let width = settings.keys().map(String::len).max().unwrap_or(0);
    settings.iter().map(|(k, v)| format!("    {k:<width$} {v}\n")).collect()
}
