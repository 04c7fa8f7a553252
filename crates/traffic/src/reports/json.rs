//! Reads JSON reports: oha, k6, vegeta, and siege with -j. Each is recognised by a field that only it has.

use serde_json::Value;

use super::{Report, oha, share, siege};

pub(super) fn read(value: &Value) -> Option<Report> {
    let has = |name: &str| value.get(name).is_some();
    if has("latencyPercentiles") && has("summary") {
        Some(of_oha(value))
    } else if has("metrics") && value["metrics"].get("http_reqs").is_some() {
        Some(k6(&value["metrics"]))
    } else if has("latencies") {
        Some(vegeta(value))
    } else if has("transaction_rate") {
        Some(of_siege(value))
    } else {
        None
    }
}

fn of_siege(value: &Value) -> Report {
    let number = |name: &str| value[name].as_f64();
    siege::report(
        number("transactions"),
        number("successful_transactions"),
        number("failed_transactions"),
        number("transaction_rate"),
    )
}

/// The counts of a map, with their names.
fn counts(value: &Value) -> impl Iterator<Item = (&str, f64)> {
    value.as_object().into_iter().flatten().filter_map(|(name, n)| Some((name.as_str(), n.as_f64()?)))
}

fn of_oha(value: &Value) -> Report {
    let statuses: Vec<(&str, f64)> = counts(&value["statusCodeDistribution"]).collect();
    let answered: f64 = statuses.iter().map(|(_, n)| n).sum();
    let bad: f64 = statuses.iter().filter(|(code, _)| code.starts_with(['4', '5'])).map(|(_, n)| n).sum();
    let lost: f64 = counts(&value["errorDistribution"]).filter(|(why, _)| *why != oha::CUT_OFF).map(|(_, n)| n).sum();
    let micros = |percentile: &str| value["latencyPercentiles"][percentile].as_f64().map(|s| s * 1e6);
    let total = value["summary"]["total"].as_f64().filter(|t| *t > 0.0);
    // oha's own rate includes requests without an answer. Without statuses the report does not tell the number of
    // answers.
    let rps = total.filter(|_| value["statusCodeDistribution"].is_object()).map(|t| answered / t);
    // Without answers there are no response times.
    let micros = |percentile: &str| micros(percentile).filter(|_| answered > 0.0);
    Report {
        tool: "oha",
        url: None,
        requests: Some((answered + lost) as u64).filter(|n| *n > 0),
        rps,
        p50_us: micros("p50"),
        p90_us: micros("p90"),
        p99_us: micros("p99"),
        errors: share(bad + lost, answered + lost),
        open_loop: false,
        limits: vec!["what was cut off at its end is left out, however long it had waited".into()],
    }
}

/// Files of --summary-export have a metric's numbers in the metric itself, those of handleSummary in `values`.
fn k6(metrics: &Value) -> Report {
    let of = |metric: &str, name: &str| {
        let metric = metrics.get(metric)?;
        metric.get("values").unwrap_or(metric).get(name)?.as_f64()
    };
    let micros = |name: &str| of("http_req_duration", name).map(|ms| ms * 1e3);
    let (requests, p99_us) = (of("http_reqs", "count"), micros("p(99)"));
    // No bytes arrived: none of the requests was answered.
    let nothing = of("data_received", "count") == Some(0.0);
    let failed = of("http_req_failed", "rate").or_else(|| of("http_req_failed", "value"));
    let mut limits = vec![
        "its times leave out connecting and waiting for a connection".to_string(),
        "its rate counts requests without an answer, too".into(),
    ];
    if p99_us.is_none() {
        limits.push("no p99 unless it is asked for one (summaryTrendStats)".into());
    }
    Report {
        tool: "k6",
        url: None,
        requests: requests.map(|n| n as u64),
        rps: of("http_reqs", "rate").map(|rps| if nothing { 0.0 } else { rps }),
        p50_us: micros("med"),
        p90_us: micros("p(90)"),
        p99_us,
        errors: failed,
        open_loop: false,
        limits,
    }
}

fn vegeta(value: &Value) -> Report {
    let micros = |name: &str| value["latencies"][name].as_f64().map(|ns| ns / 1e3);
    let answered: f64 = counts(&value["status_codes"]).filter(|(code, _)| *code != "0").map(|(_, n)| n).sum();
    // The time of a request without an answer is not a response time.
    let micros = |name: &str| micros(name).filter(|_| answered > 0.0);
    let nanos = |name: &str| value[name].as_f64();
    let rps = match (nanos("duration"), nanos("wait")) {
        (Some(duration), Some(wait)) => share(answered, (duration + wait) / 1e9),
        _ => None,
    };
    let mut limits =
        vec!["its times begin when a request is sent, not when it was due: a stalled server hides".to_string()];
    if micros("90th").is_none() {
        limits.push("no p90 in this version's reports".into());
    }
    Report {
        tool: "vegeta",
        url: None,
        requests: value["requests"].as_u64(),
        rps,
        p50_us: micros("50th"),
        p90_us: micros("90th"),
        p99_us: micros("99th"),
        errors: value["success"].as_f64().map(|good| 1.0 - good),
        open_loop: true,
        limits,
    }
}
