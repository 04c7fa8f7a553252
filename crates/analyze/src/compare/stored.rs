//! Compares two runs made at different times, by their seconds.

use std::collections::BTreeMap;

use lastdrop_model::PhaseReport;
use lastdrop_model::documents::{MetricVerdict, NoiseFloor};
use lastdrop_model::run::Run;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use super::classes;
use super::errors::{dispersion, errors};
use super::estimate::Estimate;
use super::metrics::{FEWEST, METRICS, Metrics, metrics_of};
use super::verdict::{Comparison, chance, conclude};
use crate::series::{SecondData, correlation_time, mean_and_variance, stretches};

/// Longer runs are grouped into this many stretches.
const MOST_STRETCHES: usize = 600;
/// The noise between two runs on the same machine is never assumed to be lower.
const LEAST_FLOOR: f64 = 0.01;
/// Noise floors to assume if none was measured: rps, p50, p90, p99.
const ASSUMED: [(&str, f64); 4] = [("rps", 0.05), ("p50_us", 0.05), ("p90_us", 0.05), ("p99_us", 0.1)];

/// Returns the noise floor to assume if none was measured.
#[must_use]
pub fn assumed_floor() -> NoiseFloor {
    let floor = ASSUMED.iter().map(|(name, share)| ((*name).to_string(), *share)).collect();
    NoiseFloor { floor, measured_unix_ms: None, url: String::new() }
}

/// Compares the measured phases of two runs made at different times. The noise within each run comes from a
/// circular block bootstrap over its seconds, with blocks as long as the seconds are correlated (Politis &
/// Romano, "A circular block-resampling procedure for stationary data", 1992). The noise between runs comes
/// from `floor`, because neither run shows what changed on the machine in between.
#[must_use]
pub fn stored(a: &Run, b: &Run, floor: &NoiseFloor) -> Comparison {
    let mut notes = Vec::new();
    let (Some(pa), Some(pb)) = (a.measured(), b.measured()) else {
        return conclude(BTreeMap::new(), Vec::new(), false, vec!["a run has no measured phase".into()]);
    };
    let load = |r: &Run| r.plan.phases.iter().find(|p| p.measured).map(|p| p.load.clone());
    if load(a) != load(b) {
        notes.push("the two runs had different loads; the comparison is of both together".into());
    }
    let open = matches!(load(a), Some(lastdrop_model::plan::Load::Open { .. }));
    let (da, db) = (Deviations::of(pa, 1), Deviations::of(pb, 2));
    let (ma, mb) = (metrics_of(a, pa), metrics_of(b, pb));
    for (name, d) in [("A", &da), ("B", &db)] {
        if d.stretches < FEWEST as f64 {
            notes.push(format!(
                "run {name} has only {:.0} independent stretch{} of a second; let runs last 10 s or more (-d)",
                d.stretches,
                if d.stretches < 2.0 { "" } else { "es" }
            ));
        }
    }
    let enough = da.stretches >= FEWEST as f64 && db.stretches >= FEWEST as f64;
    let mut metrics = BTreeMap::new();
    for name in &METRICS[..4] {
        let (Some(x), Some(y)) = (ma.get(*name), mb.get(*name)) else { continue };
        let (Some(ea), Some(eb)) = (da.errors.get(*name), db.errors.get(*name)) else { continue };
        if !(*x > 0.0 && *y > 0.0) {
            continue;
        }
        let variance = ea * ea + eb * eb;
        // Welch–Satterthwaite.
        let freedom = if variance > 0.0 {
            variance * variance
                / (ea.powi(4) / (da.stretches - 1.0).max(1.0) + eb.powi(4) / (db.stretches - 1.0).max(1.0))
        } else {
            (da.stretches + db.stretches - 2.0).max(1.0)
        };
        // A short measurement of the noise cannot prove a lower floor.
        let least = if floor.floor.is_empty() { 0.0 } else { LEAST_FLOOR };
        let floor = floor.floor.get(*name).copied().unwrap_or(0.0).max(least).ln_1p();
        let estimate = Estimate { log: (y / x).ln(), error: variance.sqrt(), freedom, floor };
        let mut comparison = estimate.comparison(name, *x, *y, chance(name, open));
        if !enough {
            comparison.verdict = MetricVerdict::Inconclusive;
        }
        metrics.insert((*name).to_string(), comparison);
    }
    let count = |m: &Metrics| (m["errors"] * m["requests"], m["requests"]);
    if let Some(c) = errors(count(&ma), count(&mb), da.dispersion.max(db.dispersion), chance("errors", open)) {
        metrics.insert("errors".into(), c);
    }
    notes.push(match floor.measured_unix_ms {
        Some(_) => {
            "the runs were made one after the other: drift between them is not covered by either; the noise floor \
                    measured on this machine (compare --aa) is in the intervals"
                .into()
        }
        None => {
            "the runs were made one after the other: drift between them is not covered by either, and this machine's \
                 noise floor is not known. 5 % is assumed (10 % for p99); measure it: lastdrop compare --live URL --aa"
                .into()
        }
    });
    let classes = classes::compare(&ma, &mb, FEWEST, |key| classes::unknown(*ma.get(key)?, *mb.get(key)?));
    if !classes.is_empty() {
        notes.push("stored runs have no seconds of their classes: how these differ is shown without a verdict".into());
    }
    conclude(metrics, classes, open, notes)
}

/// Standard errors of each metric's logarithm within a run.
struct Deviations {
    errors: BTreeMap<&'static str, f64>,
    /// Number of independent stretches.
    stretches: f64,
    /// Variance divided by mean of the failures per second, at least 1, because failures come in groups.
    dispersion: f64,
}

impl Deviations {
    fn of(phase: &PhaseReport, seed: u64) -> Deviations {
        const REPLICATES: usize = 1000;
        let seconds = stretches(phase, MOST_STRETCHES);
        let n = seconds.len();
        let answered: Vec<f64> = seconds.iter().map(|s| s.answered).collect();
        let medians: Vec<f64> = seconds.iter().filter_map(SecondData::p50).collect();
        let length =
            correlation_time(&answered).max(correlation_time(&medians)).ceil().clamp(1.0, (n as f64 / 4.0).max(1.0));
        let stretches = n as f64 / length;
        let failed: Vec<f64> = seconds.iter().map(|s| s.failed).collect();
        let mut deviations = Deviations { errors: BTreeMap::new(), stretches, dispersion: dispersion(&failed) };
        if n < 2 {
            return deviations;
        }
        // All distinct values; each second is a list of (index of the value, count).
        let mut values: Vec<u64> = seconds.iter().flat_map(|s| s.latencies.iter().map(|(v, _)| *v)).collect();
        values.sort_unstable();
        values.dedup();
        let indexed: Vec<Vec<(usize, u64)>> = seconds
            .iter()
            .map(|s| s.latencies.iter().filter_map(|(v, c)| Some((values.binary_search(v).ok()?, *c))).collect())
            .collect();
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut logs: [Vec<f64>; 4] = Default::default();
        let mut counts = vec![0u64; values.len()];
        for _ in 0..REPLICATES {
            counts.fill(0);
            let (mut taken, mut sum) = (0, 0.0);
            while taken < n {
                let start = (rng.next_u64() % n as u64) as usize;
                for k in 0..(length as usize).min(n - taken) {
                    let i = (start + k) % n;
                    sum += answered[i];
                    for (index, count) in &indexed[i] {
                        counts[*index] += count;
                    }
                    taken += 1;
                }
            }
            let mut keep = |k: usize, value: Option<f64>| {
                if let Some(v) = value.filter(|v| *v > 0.0) {
                    logs[k].push(v.ln());
                }
            };
            keep(0, Some(sum / n as f64));
            let total: u64 = counts.iter().sum();
            for (k, q) in [(1, 0.5), (2, 0.9), (3, 0.99)] {
                let rank = ((q * total as f64).ceil() as u64).max(1);
                let mut seen = 0;
                let at = counts.iter().position(|c| {
                    seen += c;
                    seen >= rank
                });
                keep(k, at.map(|i| values[i] as f64));
            }
        }
        // The bootstrap variance divides by n, an unbiased one by n − 1.
        let correction = (stretches / (stretches - 1.0).max(0.5)).sqrt();
        for (name, logs) in METRICS.iter().zip(&logs) {
            if logs.len() > REPLICATES / 2 {
                let (_, variance) = mean_and_variance(logs);
                deviations.errors.insert(name, variance.sqrt() * correction);
            }
        }
        deviations
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::documents::CompareVerdict;
    use lastdrop_model::run::{End, RUN_SCHEMA, RunBuilder};
    use lastdrop_model::{Counts, Generator, Kind, Plan, Slice, Validity};

    use super::*;
    use crate::compare::fixtures::{normal, uniform};

    /// A run at `level` whose seconds scatter by `noise` and are correlated.
    fn run(seconds: u32, level: f64, noise: f64, seed: u64) -> Run {
        let plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        let mut b = RunBuilder::new(&plan);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut drift = 0.0;
        for t in 0..seconds {
            drift = 0.5 * drift + noise * normal(&mut rng);
            let speed = level * f64::exp(drift);
            let mut s = Slice::new(0, t);
            let n = (500.0 * speed) as u64;
            s.counts = Counts { due: n, sent: n, answered: n, answered_in_time: n, ..Counts::default() };
            for _ in 0..n {
                s.record(Kind::Response, ((20_000.0 - 2000.0 * uniform(&mut rng).ln()) / speed) as u64);
            }
            b.add(&s);
        }
        b.end_phase(0, u64::from(seconds) * 1_000_000, 10);
        Run {
            schema: RUN_SCHEMA.into(),
            id: String::new(),
            seed: 1,
            started_unix_ms: 0,
            label: String::new(),
            end: End::Finished,
            environment: serde_json::Value::Null,
            plan: plan.into(),
            pool: None,
            server: None,
            phases: b.into_reports(),
            generator: Generator::default(),
            validity: Validity::default(),
            replay: None,
            joined_log: None,
            anatomy: None,
            agents: Vec::new(),
            marks: Vec::new(),
            objectives: Vec::new(),
        }
    }

    fn quiet() -> NoiseFloor {
        NoiseFloor { floor: BTreeMap::new(), measured_unix_ms: Some(1), url: String::new() }
    }

    #[test]
    fn stored_runs_that_are_equal_show_no_difference_and_slower_ones_do() {
        let wrong = (0..60)
            .filter(|i| {
                let (a, b) = (run(30, 1.0, 0.02, 2 * i), run(30, 1.0, 0.02, 2 * i + 1));
                !matches!(stored(&a, &b, &quiet()).verdict, CompareVerdict::NoDifference | CompareVerdict::Inconclusive)
            })
            .count();
        // 5 % of 60 is 3; more than 9 has a probability of 1 in 1000.
        assert!(wrong <= 9, "{wrong} of 60");
        let c = stored(&run(30, 1.0, 0.02, 1), &run(30, 0.85, 0.02, 2), &quiet());
        assert_eq!(c.verdict, CompareVerdict::Worse, "{c:?}");
        assert_eq!(c.metrics["rps"].verdict, MetricVerdict::Worse);
        assert!(c.metrics["rps"].interval[1] < 1.0 && (c.metrics["rps"].ratio - 0.85).abs() < 0.06);
        assert_eq!(stored(&run(30, 1.0, 0.02, 1), &run(30, 1.2, 0.02, 2), &quiet()).verdict, CompareVerdict::Better);
    }

    #[test]
    fn the_floor_swallows_what_drift_could_do() {
        let (a, b) = (run(30, 1.0, 0.001, 1), run(30, 0.97, 0.001, 2));
        assert_eq!(stored(&a, &b, &quiet()).verdict, CompareVerdict::Worse);
        let c = stored(&a, &b, &assumed_floor());
        assert_eq!(c.verdict, CompareVerdict::NoDifference);
        assert!(c.smallest_difference > 0.05 && c.notes.iter().any(|n| n.contains("--aa")));
    }

    #[test]
    fn a_short_run_decides_nothing() {
        let c = stored(&run(2, 1.0, 0.01, 1), &run(2, 0.5, 0.01, 2), &quiet());
        assert_eq!(c.verdict, CompareVerdict::Inconclusive, "{c:?}");
    }
}
