//! Compares results of other programs, where each block has just one number per metric. Only other blocks of
//! the same side show how uncertain such a number is.

use std::collections::BTreeMap;

use lastdrop_model::documents::{MetricComparison, MetricVerdict, NoiseFloor};

use super::estimate::Estimate;
use super::live::LiveComparison;
use super::metrics::{FEWEST, METRICS, Metrics};
use super::verdict::{Comparison, chance, conclude};

/// Compares blocks in the given order: the first of A with the first of B, and so on. Each side needs at
/// least four blocks. `floor` is included, since the blocks may not have been interleaved.
#[must_use]
pub fn numbers(a: &[Metrics], b: &[Metrics], open: bool, floor: &NoiseFloor) -> Comparison {
    let pairs = a.len().min(b.len());
    let mut live = LiveComparison::new(pairs, open, false, 0);
    for (a, b) in a.iter().zip(b) {
        live.add(a.clone(), b.clone());
    }
    let mut notes = Vec::new();
    if a.len() != b.len() {
        notes.push(format!("A has {} blocks and B {}; the first {pairs} of each are compared", a.len(), b.len()));
    }
    let enough = pairs >= FEWEST;
    let mut metrics = BTreeMap::new();
    for name in &METRICS[..4] {
        let everywhere = |side: &[Metrics]| side[..pairs].iter().all(|m| m.get(*name).is_some_and(|x| *x > 0.0));
        if pairs == 0 || !everywhere(a) || !everywhere(b) {
            continue;
        }
        let (x, y) = match pairs {
            // A single value is shown as reported; averaging it would change the rounding.
            1 => (a[0][*name], b[0][*name]),
            _ => (live.mean(name, |p| &p.0), live.mean(name, |p| &p.1)),
        };
        let unknown = Estimate { log: (y / x).ln(), error: f64::INFINITY, freedom: 1.0, floor: 0.0 };
        let floor = floor.floor.get(*name).copied().unwrap_or(0.0).ln_1p();
        let estimate = live.estimate(name).filter(|_| enough).map_or(unknown, |e| Estimate { floor, ..e });
        metrics.insert((*name).to_string(), estimate.comparison(name, x, y, chance(name, open)));
    }
    metrics.extend(errors(&a[..pairs], &b[..pairs]).map(|c| ("errors".to_string(), c)));
    let mut comparison = conclude(metrics, Vec::new(), open, notes);
    if !enough {
        comparison.reason = format!(
            "cannot tell: one number of each metric says nothing of its noise; give both sides {FEWEST} reports or more, one after \
             the other in a file"
        );
    }
    comparison
}

/// Compares the error rates without a verdict, because their scatter is unknown.
fn errors(a: &[Metrics], b: &[Metrics]) -> Option<MetricComparison> {
    let mean = |side: &[Metrics]| -> Option<f64> {
        let all = side.iter().map(|m| m.get("errors").copied()).collect::<Option<Vec<f64>>>()?;
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    };
    let (a, b) = (mean(a)?, mean(b)?);
    let ratio = if a == b { 1.0 } else { (b / a).clamp(1e-9, 1e9) };
    Some(MetricComparison {
        a,
        b,
        ratio,
        interval: [1e-9, 1e9],
        verdict: MetricVerdict::Inconclusive,
        smallest_difference: 1e9,
    })
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::CompareVerdict;

    use super::*;
    use crate::compare::assumed_floor;

    fn block(rps: f64, p99_us: Option<f64>) -> Metrics {
        let p99 = p99_us.map(|us| ("p99_us".to_string(), us));
        BTreeMap::from_iter([("rps".to_string(), rps), ("errors".to_string(), 0.0)].into_iter().chain(p99))
    }

    #[test]
    fn one_number_a_side_decides_nothing_however_far_they_are_apart() {
        let c = numbers(&[block(100.0, Some(5e3))], &[block(900.0, None)], false, &assumed_floor());
        assert_eq!(c.verdict, CompareVerdict::Inconclusive);
        assert!((c.metrics["rps"].ratio - 9.0).abs() < 1e-9 && c.metrics["rps"].verdict == MetricVerdict::Inconclusive);
        // A metric that one side lacks is not compared.
        assert!(!c.metrics.contains_key("p99_us") && c.reason.contains("one number"), "{c:?}");
    }

    #[test]
    fn blocks_decide() {
        let side = |level: f64| -> Vec<Metrics> {
            (0..6).map(|i| block(level * (1.0 + 0.004 * f64::from(i % 3)), Some(1e6 / level))).collect()
        };
        let c = numbers(&side(100.0), &side(150.0), false, &assumed_floor());
        assert_eq!((c.verdict, c.metrics["rps"].verdict), (CompareVerdict::Better, MetricVerdict::Better));
        assert_eq!(numbers(&side(100.0), &side(101.0), false, &assumed_floor()).verdict, CompareVerdict::NoDifference);
        let none = numbers(&[], &[], false, &assumed_floor());
        assert_eq!((none.verdict, none.metrics.len()), (CompareVerdict::Inconclusive, 0));
    }
}
