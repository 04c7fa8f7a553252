//! The report of lwp-bench.

use std::fmt::Write as _;

use lastdrop_model::secrets;

use super::counts::LwpBenchCounts;
use super::flags::LwpBenchOptions;

pub fn report(o: &LwpBenchOptions, t: &LwpBenchCounts, seconds: f64) -> String {
    let done = t.good + t.errors.values().sum::<u64>();
    let errors: Vec<String> = t.errors.iter().map(|(what, n)| format!("{what}: {n}")).collect();
    let mut out = String::new();
    for (i, url) in o.urls.iter().enumerate() {
        let _ = writeln!(out, "{:<17}{}", if i == 0 { "URL(s):" } else { "" }, secrets::url(url));
    }
    let _ = write!(
        out,
        "{:<17}{}\n{:<17}{}\n{:<17}{} ({:.2}%)\n{:<17}{}\n\n{:<17}{seconds:.2} secs\n{:<17}{:.2} Requests/sec\n{:<17}{:.2} secs/Request\n",
        "Total Requests:",
        o.requests,
        "Parallel Agents:",
        o.agents,
        "Succeeded:",
        t.good,
        100.0 * t.good as f64 / o.requests.max(1) as f64,
        "Errors:",
        if errors.is_empty() { "NONE".into() } else { errors.join(", ") },
        "Total Time:",
        "Throughput:",
        done as f64 / seconds.max(1e-9),
        "Latency:",
        t.times.mean() / 1e6,
    );
    out
}
