//! Prometheus' text exposition format, version 0.0.4. Counters span all runs of a command, so that they never
//! decrease; `lastdrop_run` names the current run.

use std::fmt::Write as _;

use lastdrop_model::Event;

use super::metrics::{BOUNDS_US, Metric, MetricKind, Point, Unit, Value, buckets, metrics};
use super::totals::Totals;
use super::{Encoder, Exporter, Framing, Runs};

#[derive(Debug)]
pub(super) struct Prometheus;

impl Exporter for Prometheus {
    fn name(&self) -> &'static str {
        "prometheus"
    }

    fn about(&self) -> &'static str {
        "counters, percentiles and histograms, for Prometheus"
    }

    fn pieces(&self) -> Framing {
        Framing::State
    }

    fn begin(&self, _: Runs) -> Box<dyn Encoder> {
        Box::new(PrometheusEncoder { totals: Totals::of(Runs::Several) })
    }
}

#[derive(Debug)]
struct PrometheusEncoder {
    totals: Totals,
}

impl Encoder for PrometheusEncoder {
    fn encode(&mut self, event: &Event<'_>) -> Option<Vec<u8>> {
        self.totals.on_event(event);
        let news =
            matches!(event, Event::Began { .. } | Event::Second { .. } | Event::Ended { .. } | Event::Failed { .. });
        news.then(|| page(&self.totals).into_bytes())
    }
}

fn page(totals: &Totals) -> String {
    let mut out = String::new();
    for metric in metrics() {
        let points = (metric.points)(totals);
        if points.is_empty() {
            continue;
        }
        let name = name(&metric);
        let sort = match metric.sort {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {sort}", metric.about);
        for point in &points {
            write_point(&mut out, &name, point);
        }
    }
    out
}

fn name(metric: &Metric) -> String {
    let unit = match metric.unit {
        Unit::None => "",
        Unit::Seconds => "_seconds",
        Unit::Bytes => "_bytes",
    };
    let total = if metric.sort == MetricKind::Counter { "_total" } else { "" };
    format!("lastdrop_{}{unit}{total}", metric.name)
}

fn write_point(out: &mut String, name: &str, point: &Point<'_>) {
    let labels = point.labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect::<Vec<_>>();
    let _ = match &point.value {
        Value::Whole(n) => writeln!(out, "{name}{} {n}", braced(&labels, None)),
        Value::Real(x) => writeln!(out, "{name}{} {x}", braced(&labels, None)),
        Value::Histogram(histogram) => {
            let mut below = 0;
            for (i, n) in buckets(histogram).into_iter().enumerate() {
                below += n;
                let bound = BOUNDS_US.get(i).map_or("+Inf".into(), |us| (*us as f64 / 1e6).to_string());
                let _ = writeln!(out, "{name}_bucket{} {below}", braced(&labels, Some(format!("le=\"{bound}\""))));
            }
            let _ = writeln!(out, "{name}_sum{} {}", braced(&labels, None), histogram.sum() / 1e6);
            writeln!(out, "{name}_count{} {}", braced(&labels, None), histogram.count())
        }
    };
}

fn braced(labels: &[String], more: Option<String>) -> String {
    let all: Vec<&str> = labels.iter().chain(&more).map(String::as_str).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixtures::{events_of, pieces};

    fn number(page: &str, series: &str) -> f64 {
        let line = page.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} in {page}")).parse().expect("a number")
    }

    #[test]
    fn counters_go_on_from_run_to_run() {
        let mut events = events_of(1, 2, 10);
        events.append(&mut events_of(1, 3, 10));
        let pages = pieces(Prometheus.begin(Runs::One).as_mut(), &events);
        let answered: Vec<f64> = pages
            .iter()
            .map(|p| String::from_utf8_lossy(p))
            .filter(|p| p.contains("answered"))
            .map(|p| number(&p, "lastdrop_requests_answered_total{phase=\"p 0,\\\"b\\\"\"}"))
            .collect();
        assert!(answered.is_sorted(), "{answered:?}");
        assert_eq!(answered.last(), Some(&50.0));
    }

    #[test]
    fn a_histogram_has_every_value_in_its_buckets() {
        let pages = pieces(Prometheus.begin(Runs::One).as_mut(), &events_of(1, 1, 10));
        let page = String::from_utf8_lossy(pages.last().expect("a page"));
        let series = |le: &str| {
            let labels = format!("{{phase=\"p 0,\\\"b\\\"\",kind=\"response\",le=\"{le}\"}}");
            number(&page, &format!("lastdrop_latency_seconds_bucket{labels}"))
        };
        // 400, 437 … 733 µs.
        assert_eq!((series("0.00025"), series("0.0005"), series("0.001"), series("+Inf")), (0.0, 3.0, 10.0, 10.0));
        let labels = "{phase=\"p 0,\\\"b\\\"\",kind=\"response\"}";
        assert!((number(&page, &format!("lastdrop_latency_seconds_sum{labels}")) - 5665e-6).abs() < 1e-9);
        assert!(page.contains("lastdrop_run{run=\"cafe0001\",url=\"http://127.0.0.1/\",label=\"\"} 0"), "{page}");
    }
}
