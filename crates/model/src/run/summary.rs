//! Turns counts and histograms into the results of a report.

use serde_json::{Map, Value, json};

use super::phase::{Bytes, Expectations, Mismatch, Rate, Results};
use crate::counts::Counts;
use crate::histogram::{Histogram, Kind, PERCENTILES};

/// Returns the results of requests that were counted for `duration_s`. `status` yields each status and its answers.
pub(super) fn results<'a>(
    c: &Counts,
    status: impl Iterator<Item = (u16, u64)>,
    latencies: impl Iterator<Item = (Kind, &'a Histogram)>,
    duration_s: f64,
    replay: bool,
) -> Results {
    let per_second = |n: u64| if duration_s > 0.0 { n as f64 / duration_s } else { 0.0 };
    let mut latency_us = Map::new();
    for (kind, h) in latencies.filter(|(_, h)| h.count() > 0) {
        let mut summary = summarise(h);
        if kind == Kind::Response {
            mark_lower_bounds(&mut summary, c);
        }
        latency_us.insert(kind.name().into(), Value::Object(summary));
    }
    Results {
        requests: c.into(),
        status: status.map(|(code, n)| (code.to_string(), n)).collect(),
        bytes: Bytes { sent: c.bytes_sent, received: c.bytes_received, coded: c.bytes_coded, decoded: c.bytes_decoded },
        expectations: Expectations { missed: c.missed },
        mismatch: replay.then_some(Mismatch { status: c.mismatched, size: c.odd_sizes, compared: c.compared }),
        rate: Rate { due_rps: per_second(c.due), answered_rps: per_second(c.answered_in_time) },
        latency_us,
    }
}

pub(super) fn summarise(h: &Histogram) -> Map<String, Value> {
    let mut m = Map::new();
    m.insert("count".into(), json!(h.count()));
    m.insert("min".into(), json!(h.min()));
    m.insert("mean".into(), json!((h.mean() * 10.0).round() / 10.0));
    for (name, q) in PERCENTILES {
        m.insert(name.into(), json!(h.quantile(q)));
    }
    m.insert("max".into(), json!(h.max()));
    m
}

/// Marks the percentiles q that are only lower bounds: more than (1 − q) of the due requests have no answer.
fn mark_lower_bounds(summary: &mut Map<String, Value>, c: &Counts) {
    let missing = (c.failed.total() + c.timed_out + c.censored() + c.unsent()) as f64;
    let bounds: Vec<&str> = PERCENTILES
        .iter()
        // The tolerance keeps "exactly 1 % missing" from marking p99 through rounding of 1 − 0.99.
        .filter(|(_, q)| missing > (1.0 - q) * c.due as f64 + 1e-9 * c.due as f64)
        .map(|(name, _)| *name)
        .collect();
    if !bounds.is_empty() {
        summary.insert("lower_bound".into(), json!(true));
        summary.insert("lower_bounds".into(), json!(bounds));
    }
}
