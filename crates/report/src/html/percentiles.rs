//! Latency by percentile, as in HdrHistogram's own plots. The axis stretches towards the slowest requests:
//! one in ten thousand gets as much room as one in ten.

use lastdrop_model::Histogram;
use lastdrop_model::units::show_us;
use maud::Markup;

use super::axis::Axis;
use super::chart::{Chart, Colour};
use super::number::{Unit, count};
use super::table::Table;

pub(super) const COLOURS: [Colour; 6] = ["c1", "c2", "c3", "c4", "c5", "c6"];
/// Points of the curve per factor of ten.
const POINTS_A_DECADE: i32 = 8;

/// Draws named histograms (microseconds) as curves.
pub(super) fn percentile_curve(curves: &[(String, &Histogram)], tells: &str) -> Markup {
    let curves: Vec<_> = curves.iter().filter(|(_, h)| h.count() > 0).take(COLOURS.len()).collect();
    let Some(most) = curves.iter().map(|(_, h)| h.count()).max() else { return Markup::default() };
    let end = (most as f64).max(10.0);
    let named = (0..=8)
        .map(|e| 10f64.powi(e))
        .take_while(|x| *x <= end * 1.001)
        .map(|x| (x, percent(1.0 - 1.0 / x)))
        .chain([(2.0, "50 %".to_string())])
        .collect::<Vec<_>>();
    let mut named = named;
    named.sort_by(|a, b| a.0.total_cmp(&b.0));
    let values = curves.iter().flat_map(|(_, h)| [h.quantile(0.01).max(1) as f64, h.max() as f64]);
    let mut chart = Chart::new(
        "Latency by percentile",
        Axis::named("share of the requests that are at least so fast", 1.0, end, named),
        Axis::around("response", Unit::Micros, values),
    );
    let mut table = Table::new("latency by percentile", 1, &["curve", "percentile", "latency", "requests slower"]);
    for ((name, h), colour) in curves.iter().zip(COLOURS) {
        let points = points(h);
        chart.line(colour, "", &points.iter().map(|(x, _, us)| (*x, *us)).collect::<Vec<_>>());
        for (x, q, us) in &points {
            chart.stop(
                colour,
                *x,
                *us,
                &format!("{name}: {} of the requests took at most {}", percent(*q), show_us(*us)),
            );
        }
        chart.legend(colour, "line", name.clone());
        for q in [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999, 1.0] {
            if (1.0 - q) * h.count() as f64 >= 0.999 || q == 1.0 {
                let us = if q == 0.0 { h.min() } else { h.quantile(q) };
                let slower = (h.count() as f64 * (1.0 - q)).round() as u64;
                table.row(vec![name.clone(), percent(q), show_us(us as f64), count(slower)]);
            }
        }
    }
    chart.figure("Latency by percentile", tells, &table)
}

/// Points of the curve: 1 / (1 − q), q, microseconds.
fn points(h: &Histogram) -> Vec<(f64, f64, f64)> {
    let n = h.count() as f64;
    let mut out = vec![(1.0, 0.0, h.min().max(1) as f64)];
    for k in 1.. {
        let x = 10f64.powf(f64::from(k) / f64::from(POINTS_A_DECADE));
        if x >= n {
            break;
        }
        let q = 1.0 - 1.0 / x;
        out.push((x, q, h.quantile(q).max(1) as f64));
    }
    out.push((n.max(1.5), 1.0, h.max().max(1) as f64));
    out
}

/// `99.9 %`
pub(super) fn percent(q: f64) -> String {
    let digits = if q >= 1.0 || q <= 0.0 { 0 } else { (-(1.0 - q).log10()).ceil().max(2.0) as usize - 2 };
    let text = format!("{:.*}", (digits + 1).min(6), q * 100.0);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_have_their_names() {
        assert_eq!(
            [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0].map(percent),
            ["0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "100 %"]
        );
    }

    #[test]
    fn the_curve_never_falls_and_ends_at_the_slowest() {
        let mut h = Histogram::new();
        (1..=5000u64).for_each(|i| h.record(i * i / 100 + 1));
        let points = points(&h);
        assert!(points.windows(2).all(|w| w[0].0 < w[1].0 && w[0].2 <= w[1].2), "{points:?}");
        assert_eq!(points.last().map(|p| p.2), Some(h.max() as f64));
        let mut one = Histogram::new();
        one.record(7);
        assert!(percentile_curve(&[("a".into(), &one)], "").into_string().contains("<svg"));
    }
}
