//! siege, as text: `main.c`; its JSON has the same numbers.

use super::{Report, number_of, share};

pub(super) fn read(text: &str) -> Report {
    report(
        number_of(text, "Transactions"),
        number_of(text, "Successful transactions"),
        number_of(text, "Failed transactions"),
        number_of(text, "Transaction rate"),
    )
}

/// Builds a report from the number of hits, those with a good status, those without any, and hits per second.
pub(super) fn report(hits: Option<f64>, good: Option<f64>, failed: Option<f64>, rps: Option<f64>) -> Report {
    let errors = match (hits, good, failed) {
        (Some(hits), Some(good), Some(failed)) => share(failed + (hits - good).max(0.0), hits + failed),
        _ => None,
    };
    Report {
        tool: "siege",
        requests: hits.map(|n| (n + failed.unwrap_or(0.0)) as u64),
        rps,
        errors,
        limits: vec![
            "no percentiles, only a mean".into(),
            "redirects and parts of pages are requests of their own".into(),
        ],
        ..Report::default()
    }
}
