//! wrk, and wrk2, which is wrk with a rate: `wrk.c`, main() and print_stats().

use super::{Report, duration_us, number, number_of, share};

pub(super) fn read(text: &str) -> Report {
    let percent = |wanted: f64| {
        text.lines().skip_while(|l| !l.trim_start().starts_with("Latency Distribution")).skip(1).find_map(|line| {
            let (percent, time) = line.trim().split_once('%')?;
            if percent.trim().parse() == Ok(wanted) { duration_us(time.trim()) } else { None }
        })
    };
    let rated = text.contains("HdrHistogram - ") || text.contains("Thread calibration:");
    let tool = if rated { "wrk2" } else { "wrk" };
    let url = text.lines().next().and_then(|l| Some(l.split_once(" test @ ")?.1.trim().to_string()));
    let requests = text.lines().find_map(|l| l.split_once(" requests in ").and_then(|(n, _)| number(n)));
    // `  Socket errors: connect 0, read 0, write 0, timeout 5`
    let socket = text.lines().find_map(|l| l.trim_start().strip_prefix("Socket errors:"));
    let socket: f64 = socket
        .map_or(0.0, |all| all.split(',').filter_map(|one| one.split_whitespace().nth(1)?.parse::<f64>().ok()).sum());
    let bad = number_of(text, "Non-2xx or 3xx responses").unwrap_or(0.0);
    let p50_us = percent(50.0);
    let mut limits = Vec::new();
    if p50_us.is_none() {
        limits.push("percentiles only with --latency".into());
    } else if !rated {
        limits.push("no percentile above p99".into());
    }
    if socket > 0.0 {
        limits.push("its timeouts may have been answered later, and count twice then".into());
    }
    Report {
        tool,
        url,
        requests: requests.map(|n| (n + socket) as u64),
        rps: number_of(text, "Requests/sec"),
        p50_us,
        p90_us: percent(90.0),
        p99_us: percent(99.0),
        errors: requests.and_then(|n| share(socket + bad, n + socket)),
        open_loop: rated,
        limits,
    }
}
