//! OTLP metrics over HTTP/protobuf: one message per second. Values are cumulative since the run began, so a
//! lost message costs one data point only. The run is the resource.

use lastdrop_model::Event;
use prost::Message as _;

use super::metrics::{BOUNDS_US, Metric, MetricKind, Point, Unit, Value, buckets, metrics};
use super::otlp_messages as otlp;
use super::otlp_messages::{CUMULATIVE, KeyValue};
use super::totals::Totals;
use super::{Encoder, Exporter, Framing, Runs};

#[derive(Debug)]
pub(super) struct Otlp;

impl Exporter for Otlp {
    fn name(&self) -> &'static str {
        "otlp"
    }

    fn about(&self) -> &'static str {
        "the same metrics as OpenTelemetry's protobuf"
    }

    fn pieces(&self) -> Framing {
        Framing::Messages
    }

    fn begin(&self, _: Runs) -> Box<dyn Encoder> {
        Box::new(OtlpEncoder { totals: Totals::of(Runs::One) })
    }
}

#[derive(Debug)]
struct OtlpEncoder {
    totals: Totals,
}

impl Encoder for OtlpEncoder {
    fn encode(&mut self, event: &Event<'_>) -> Option<Vec<u8>> {
        self.totals.on_event(event);
        matches!(event, Event::Second { .. }).then(|| message(&self.totals).encode_to_vec())
    }
}

fn message(totals: &Totals) -> otlp::ExportMetricsServiceRequest {
    let attributes = [("service.name", "lastdrop"), ("lastdrop.run.id", &totals.id), ("url.full", &totals.url)];
    let named = attributes.iter().copied().chain(Some(("lastdrop.run.label", totals.label.as_str())));
    let attributes = named.filter(|(_, value)| !value.is_empty()).map(|(k, v)| KeyValue::text(k, v)).collect();
    let start = totals.started_unix_ms * 1_000_000;
    let times = (start, start + (totals.at_s * 1e9) as u64);
    let scope = otlp::InstrumentationScope { name: "lastdrop".into(), version: env!("CARGO_PKG_VERSION").into() };
    let metrics = metrics().iter().filter_map(|m| metric(m, (m.points)(totals), times)).collect();
    otlp::ExportMetricsServiceRequest {
        resource_metrics: vec![otlp::ResourceMetrics {
            resource: Some(otlp::Resource { attributes }),
            scope_metrics: vec![otlp::ScopeMetrics { scope: Some(scope), metrics }],
        }],
    }
}

/// Returns `None` if there are no values.
fn metric(metric: &Metric, points: Vec<Point<'_>>, times: (u64, u64)) -> Option<otlp::Metric> {
    if points.is_empty() {
        return None;
    }
    let data = match metric.sort {
        MetricKind::Gauge => otlp::Data::Gauge(otlp::Gauge { data_points: numbers(points, times) }),
        MetricKind::Counter => otlp::Data::Sum(otlp::Sum {
            data_points: numbers(points, times),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        MetricKind::Histogram => otlp::Data::Histogram(otlp::Histogram {
            data_points: points.into_iter().filter_map(|p| histogram(p, times)).collect(),
            aggregation_temporality: CUMULATIVE,
        }),
    };
    let unit = match metric.unit {
        Unit::None => "1",
        Unit::Seconds => "s",
        Unit::Bytes => "By",
    };
    Some(otlp::Metric {
        name: format!("lastdrop.{}", metric.name),
        description: metric.about.into(),
        unit: unit.into(),
        data: Some(data),
    })
}

fn attributes(point: &Point<'_>) -> Vec<KeyValue> {
    point.labels.iter().map(|(key, value)| KeyValue::text(key, value)).collect()
}

fn numbers(points: Vec<Point<'_>>, (start, now): (u64, u64)) -> Vec<otlp::NumberDataPoint> {
    let number = |value: &Value<'_>| match value {
        Value::Whole(n) => Some(otlp::Number::AsInt(i64::try_from(*n).unwrap_or(i64::MAX))),
        Value::Real(x) => Some(otlp::Number::AsDouble(*x)),
        Value::Histogram(_) => None,
    };
    points
        .iter()
        .map(|p| otlp::NumberDataPoint {
            attributes: attributes(p),
            start_time_unix_nano: start,
            time_unix_nano: now,
            value: number(&p.value),
        })
        .collect()
}

fn histogram(point: Point<'_>, (start, now): (u64, u64)) -> Option<otlp::HistogramDataPoint> {
    let Value::Histogram(h) = point.value else { return None };
    Some(otlp::HistogramDataPoint {
        attributes: attributes(&point),
        start_time_unix_nano: start,
        time_unix_nano: now,
        count: h.count(),
        sum: Some(h.sum() / 1e6),
        bucket_counts: buckets(h).to_vec(),
        explicit_bounds: BOUNDS_US.iter().map(|us| *us as f64 / 1e6).collect(),
        min: Some(h.min() as f64 / 1e6),
        max: Some(h.max() as f64 / 1e6),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixtures::{events_of, pieces};

    #[test]
    fn messages_one_after_the_other_are_a_message() {
        let messages = pieces(Otlp.begin(Runs::One).as_mut(), &events_of(1, 3, 10));
        let all = otlp::ExportMetricsServiceRequest::decode(messages.concat().as_slice()).expect("own output");
        assert_eq!((messages.len(), all.resource_metrics.len()), (3, 3));
        let answered = |resource: &otlp::ResourceMetrics| {
            let metric = resource.scope_metrics[0].metrics.iter().find(|m| m.name == "lastdrop.requests_answered");
            match metric.and_then(|m| m.data.clone()) {
                Some(otlp::Data::Sum(sum)) => (sum.data_points[0].value, sum.data_points[0].time_unix_nano),
                other => panic!("{other:?}"),
            }
        };
        let at = |s: u64| 1_700_000_000_000_000_000 + s * 1_000_000_000;
        let told: Vec<_> = all.resource_metrics.iter().map(answered).collect();
        assert_eq!(told, [1, 2, 3].map(|s| (Some(otlp::Number::AsInt(10 * s as i64)), at(s))));
        let id = KeyValue::text("lastdrop.run.id", "cafe0001");
        assert!(all.resource_metrics[0].resource.as_ref().is_some_and(|r| r.attributes.contains(&id)));
    }
}
