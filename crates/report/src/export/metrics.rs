//! The list of exported metrics; every metrics format is made from it.

use std::borrow::Cow;

use lastdrop_model::counts::FailureCounts;
use lastdrop_model::histogram::PERCENTILES;
use lastdrop_model::{Counts, Histogram, Kind, Sample};

use super::totals::{PhaseTotal, Totals};
use crate::server::shown_queue;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricKind {
    /// Never decreases.
    Counter,
    Gauge,
    Histogram,
}

/// The unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    None,
    Seconds,
    Bytes,
}

pub(super) struct Metric {
    /// Words joined by `_`, without prefix and unit.
    pub name: &'static str,
    pub about: &'static str,
    pub sort: MetricKind,
    pub unit: Unit,
    /// Returns the metric's current values.
    pub points: for<'a> fn(&'a Totals) -> Vec<Point<'a>>,
}

/// One value with its labels.
#[derive(Debug)]
pub(super) struct Point<'a> {
    pub labels: Vec<(&'static str, Cow<'a, str>)>,
    pub value: Value<'a>,
}

#[derive(Debug)]
pub(super) enum Value<'a> {
    Whole(u64),
    Real(f64),
    /// In microseconds.
    Histogram(&'a Histogram),
}

/// Upper bounds of the histogram buckets, microseconds.
pub(super) const BOUNDS_US: [u64; 20] = [
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
];

/// Counts the values in each bucket, and those above the last. The histogram keeps three digits, so a value
/// counts as the largest one it cannot be told from.
pub(super) fn buckets(histogram: &Histogram) -> [u64; BOUNDS_US.len() + 1] {
    let mut counts = [0; BOUNDS_US.len() + 1];
    for (us, n) in histogram.recorded() {
        counts[BOUNDS_US.partition_point(|bound| *bound < us)] += n;
    }
    counts
}

/// Reads one counter of each phase.
macro_rules! of_phases {
    ($of:expr) => {
        |totals| counts(totals, $of)
    };
}

fn counts(totals: &Totals, of: fn(&Counts) -> u64) -> Vec<Point<'_>> {
    let value = |phase: &PhaseTotal| Value::Whole(of(&phase.slice.counts));
    totals.of_phases.iter().map(|p| Point { labels: vec![("phase", (&p.name).into())], value: value(p) }).collect()
}

fn counter(name: &'static str, about: &'static str, points: for<'a> fn(&'a Totals) -> Vec<Point<'a>>) -> Metric {
    Metric { name, about, sort: MetricKind::Counter, unit: Unit::None, points }
}

fn gauge(name: &'static str, about: &'static str, points: for<'a> fn(&'a Totals) -> Vec<Point<'a>>) -> Metric {
    Metric { name, about, sort: MetricKind::Gauge, unit: Unit::None, points }
}

/// Returns one number of the latest sample, if the sample has it.
fn seen(totals: &Totals, of: impl Fn(&Sample) -> Option<Value<'static>>) -> Vec<Point<'_>> {
    let value = totals.look.as_ref().and_then(of);
    value.map(|value| Point { labels: Vec::new(), value }).into_iter().collect()
}

/// Returns the latency histograms that have values, with their labels.
fn latencies(totals: &Totals) -> impl Iterator<Item = (Vec<(&'static str, Cow<'_, str>)>, &Histogram)> {
    totals.of_phases.iter().flat_map(|p| {
        Kind::ALL.into_iter().filter_map(move |kind| {
            let histogram = &p.slice.latencies[kind as usize];
            let labels = vec![("phase", Cow::from(&p.name)), ("kind", kind.name().into())];
            (histogram.count() > 0).then_some((labels, histogram))
        })
    })
}

fn failures(totals: &Totals) -> Vec<Point<'_>> {
    let mut points = Vec::new();
    for phase in &totals.of_phases {
        let FailureCounts { connect, reset, closed, protocol, refused } = phase.slice.counts.failed;
        for (why, n) in
            [("connect", connect), ("reset", reset), ("closed", closed), ("protocol", protocol), ("refused", refused)]
        {
            let labels = vec![("phase", Cow::from(&phase.name)), ("kind", why.into())];
            points.push(Point { labels, value: Value::Whole(n) });
        }
    }
    points
}

fn statuses(totals: &Totals) -> Vec<Point<'_>> {
    let mut points = Vec::new();
    for phase in &totals.of_phases {
        for (code, n) in phase.slice.status.iter().enumerate().filter(|(_, n)| **n > 0) {
            let labels = vec![("phase", Cow::from(&phase.name)), ("code", code.to_string().into())];
            points.push(Point { labels, value: Value::Whole(*n) });
        }
    }
    points
}

fn percentiles(totals: &Totals) -> Vec<Point<'_>> {
    let mut points = Vec::new();
    for (labels, histogram) in latencies(totals) {
        for (name, q) in PERCENTILES {
            // JSON calls it `p99_9`.
            let percentile = name.trim_start_matches('p').replace('_', ".");
            let labels = labels.iter().cloned().chain([("percentile", percentile.into())]).collect();
            points.push(Point { labels, value: Value::Real(histogram.quantile(q) as f64 / 1e6) });
        }
    }
    points
}

fn run(totals: &Totals) -> Vec<Point<'_>> {
    let labels = vec![("run", (&totals.id).into()), ("url", (&totals.url).into()), ("label", Cow::from(&totals.label))];
    vec![Point { labels, value: Value::Whole(u64::from(totals.running)) }]
}

/// All metrics.
pub(super) fn metrics() -> Vec<Metric> {
    vec![
        gauge("run", "1 while the run with this id goes on, 0 when it is over.", run),
        Metric {
            unit: Unit::Seconds,
            ..gauge("run_start_time", "When the run began, since 1970.", |t| {
                vec![Point { labels: Vec::new(), value: Value::Real(t.started_unix_ms as f64 / 1e3) }]
            })
        },
        counter("requests_due", "Requests that came due.", of_phases!(|c| c.due)),
        counter("requests_sent", "Requests that were sent.", of_phases!(|c| c.sent)),
        counter("requests_answered", "Requests with a whole answer, whatever its status.", of_phases!(|c| c.answered)),
        counter("requests_failed", "Requests without an answer, by why.", failures),
        counter(
            "requests_timed_out",
            "Requests whose answer took longer than the timeout.",
            of_phases!(|c| c.timed_out),
        ),
        gauge(
            "requests_waiting",
            "Requests that came due and are not sent; at the end: unsent.",
            of_phases!(Counts::unsent),
        ),
        gauge(
            "requests_in_flight",
            "Requests that were sent and are not over; at the end: censored.",
            of_phases!(Counts::censored),
        ),
        counter("responses", "Answers by status code.", statuses),
        counter("expectations_missed", "Answers that were not as the plan expects.", of_phases!(|c| c.missed)),
        counter(
            "answers_compared",
            "Replay: answers of which the log says what they were.",
            of_phases!(|c| c.compared),
        ),
        counter(
            "answers_mismatched",
            "Replay: answers with another status class or redirect target than in the log.",
            of_phases!(|c| c.mismatched),
        ),
        counter(
            "answers_of_odd_size",
            "Replay: other answers of a size that the log does not have for their class.",
            of_phases!(|c| c.odd_sizes),
        ),
        counter("connections_opened", "Connections that were made.", of_phases!(|c| c.opened)),
        counter(
            "connections_lost_on_reuse",
            "Connections that the server had closed when they were used again.",
            of_phases!(|c| c.lost_on_reuse),
        ),
        counter("connections_goaway", "HTTP/2 connections that the server told to end.", of_phases!(|c| c.goaway)),
        counter(
            "requests_sent_again",
            "HTTP/2: requests sent again because the server surely had not processed them.",
            of_phases!(|c| c.sent_again),
        ),
        Metric { unit: Unit::Bytes, ..counter("sent", "HTTP as it was written.", of_phases!(|c| c.bytes_sent)) },
        Metric { unit: Unit::Bytes, ..counter("received", "HTTP as it was read.", of_phases!(|c| c.bytes_received)) },
        Metric {
            name: "latency",
            about: "Latencies by kind: response is from due to done, service from sent to done.",
            sort: MetricKind::Histogram,
            unit: Unit::Seconds,
            points: |t| {
                let point = |(labels, histogram)| Point { labels, value: Value::Histogram(histogram) };
                latencies(t).map(point).collect()
            },
        },
        Metric {
            unit: Unit::Seconds,
            ..gauge("latency_percentile", "Percentiles so far, to three digits, not made of the buckets.", percentiles)
        },
        gauge("server_workers", "Worker processes of the server.", |t| seen(t, |l| Some(Value::Whole(l.worker_count)))),
        gauge("server_workers_busy", "Workers that are at work.", |t| seen(t, |l| l.busy.map(Value::Whole))),
        gauge("server_cpu_cores", "Processors that the server used.", |t| seen(t, |l| l.cpu_cores.map(Value::Real))),
        gauge("server_listen_queue", "Connections that wait to be accepted.", |t| {
            seen(t, |l| shown_queue(l).map(|q| Value::Whole(q.queue)))
        }),
        Metric {
            unit: Unit::Bytes,
            ..gauge("server_real_memory", "Memory of master and workers, each shared page once.", |t| {
                seen(t, |l| l.real_memory_bytes.map(Value::Whole))
            })
        },
        gauge("host_cpu_cores", "Processors of the machine that were busy.", |t| {
            seen(t, |l| Some(Value::Real(l.host.cores.iter().sum())).filter(|_| !l.host.cores.is_empty()))
        }),
    ]
}
