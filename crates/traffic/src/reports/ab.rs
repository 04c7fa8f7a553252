//! ab: `support/ab.c`, output_results().

use super::{Report, field, number, number_of, share};

pub(super) fn read(text: &str) -> Report {
    let complete = number_of(text, "Complete requests").unwrap_or(0.0);
    // `   (Connect: 0, Receive: 0, Length: 3, Exceptions: 0)` is present if something failed.
    let kinds = text.lines().find(|l| l.trim_start().starts_with("(Connect:")).unwrap_or_default();
    let kind = |name: &str| {
        let at = kinds.find(name)? + name.len();
        number(kinds[at..].trim_start_matches(':').trim_start().split([',', ')']).next()?)
    };
    let lengths = kind("Length").unwrap_or(0.0);
    let lost: f64 = ["Connect", "Receive", "Exceptions"].iter().filter_map(|name| kind(name)).sum();
    let failed = number_of(text, "Failed requests").map(|failed| (failed - lengths).max(0.0));
    let not_2xx = number_of(text, "Non-2xx responses").unwrap_or(0.0);
    let millis = |percent: &str| {
        let line = text.lines().find_map(|l| l.trim_start().strip_prefix(percent)?.strip_prefix('%'))?;
        Some(number(line)? * 1e3)
    };
    let host = field(text, "Server Hostname").filter(|h| !h.is_empty());
    let url = host.map(|host| {
        let scheme = if field(text, "SSL/TLS Protocol").is_some() { "https" } else { "http" };
        let port = field(text, "Server Port").unwrap_or("80");
        format!("{scheme}://{host}:{port}{}", field(text, "Document Path").unwrap_or("/"))
    });
    let mut limits = vec!["no percentile above p99".to_string(), "its times are whole milliseconds".into()];
    if lengths > 0.0 {
        limits.push(format!(
            "{lengths} answers of another length than the first, which it calls failed, are answers here"
        ));
    }
    let p50_us = millis("50");
    if p50_us.is_none() {
        limits.push("no percentiles in this report (-d)".into());
    }
    Report {
        tool: "ab",
        url,
        requests: Some(complete as u64).filter(|n| *n > 0),
        // ab's rate includes requests without an answer.
        rps: number_of(text, "Requests per second")
            .map(|rps| if lost > 0.0 { rps * share((complete - lost).max(0.0), complete).unwrap_or(0.0) } else { rps }),
        p50_us,
        p90_us: millis("90"),
        p99_us: millis("99"),
        errors: failed.and_then(|failed| share(failed + not_2xx, complete)),
        open_loop: false,
        limits,
    }
}
