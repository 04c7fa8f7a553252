//! Capacity, staircase and scalability as text.

use std::fmt::Write as _;

use lastdrop_model::documents::CapacityDocument;
use lastdrop_model::units::show_us;

use crate::html::first;
use crate::table::aligned;

/// The summary of a search for capacity.
#[must_use]
pub fn capacity_text(d: &CapacityDocument) -> String {
    let mut out = first::capacity(d).line();
    let errors = |share: f64| if share > 0.0 { format!("{:.2} %", share * 100.0) } else { "0".into() };
    if d.stairs.len() > 1 {
        let rows: Vec<Vec<String>> = d
            .stairs
            .iter()
            .map(|s| {
                vec![
                    s.users.to_string(),
                    format!("{:.1}", s.rps),
                    show_us(s.mean_us),
                    show_us(s.p50_us),
                    show_us(s.p99_us),
                    errors(s.errors),
                ]
            })
            .collect();
        let _ = write!(out, "{}", aligned(&["users", "answers/s", "mean", "p50", "p99", "errors"], &rows));
        out.push('\n');
    }
    if let Some(k) = &d.knee {
        let how = if k.from == "usl" { "from the law below" } else { "the best of the steps" };
        let _ = writeln!(
            out,
            "knee: {:.0} users ({:.0} to {:.0}), {:.1} answers/s; beyond it users mostly wait ({how})",
            k.users, k.interval[0], k.interval[1], k.rps
        );
    }
    if let Some(u) = &d.usl {
        if u.fits {
            let _ = writeln!(
                out,
                "scalability: one user {:.1}/s ({:.1} to {:.1}), contention σ {:.4} ({:.4} to {:.4}), coherency κ {:.6} ({:.6} to {:.6})",
                u.lambda,
                u.lambda_interval[0],
                u.lambda_interval[1],
                u.sigma,
                u.sigma_interval[0],
                u.sigma_interval[1],
                u.kappa,
                u.kappa_interval[0],
                u.kappa_interval[1]
            );
            if let (Some(n), Some(x)) = (u.peak_users, u.peak_rps) {
                let _ = writeln!(out, "peak of the law: {x:.1} answers/s with {n:.0} users");
            }
        } else {
            let _ = writeln!(out, "scalability: the Universal Scalability Law does not fit: {}", u.why);
        }
    }
    if d.stairs.len() > 1 {
        out.push('\n');
    }
    let rows: Vec<Vec<String>> = d
        .steps
        .iter()
        .map(|s| {
            vec![
                format!("{:.1}", s.rate),
                s.role.clone(),
                format!("{:.0} s", s.seconds),
                format!("{:.1}", s.answered_rps),
                show_us(s.p50_us),
                show_us(s.p99_us),
                errors(s.errors),
                if s.ok { "ok".into() } else { s.why.clone() },
            ]
        })
        .collect();
    if !rows.is_empty() {
        let heading = ["requests/s", "for", "time", "answers/s", "p50", "p99", "errors", ""];
        let _ = writeln!(out, "{}", aligned(&heading, &rows));
    }
    let _ = writeln!(out, "{}", d.reason);
    if let Some(rate) = d.departure_rps {
        let _ = writeln!(out, "from {rate:.1} requests/s on requests wait for a connection: response leaves service");
    }
    if d.interrupted {
        out.push_str("ended early: interrupted\n");
    }
    for note in &d.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}
