//! Is B faster or slower than A? Two stored runs by their seconds, or interleaved blocks of both.
//!
//! Everything is reckoned with logarithms of ratios B / A. A verdict of one metric holds for all metrics together: of the
//! 5 % for which chance may find a difference where there is none, the metric that the comparison is mainly about has
//! three fifths, and the others share the rest (Bonferroni, weighted).

use std::collections::BTreeMap;

use lastdrop_model::documents::{CompareVerdict, Compared, MetricComparison, NoiseFloor};
use lastdrop_model::run::Run;
use lastdrop_model::{Kind, PhaseReport};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::objective::error_share;
use crate::series::{SecondData, correlation_time, mean_and_variance, stretches};

/// The metrics, in the order in which people read them.
pub const METRICS: [&str; 5] = ["rps", "p50_us", "p90_us", "p99_us", "errors"];

/// For all metrics together, of a comparison with one look at its end.
const ALPHA: f64 = 0.05;
/// Share of it that the metric has which the comparison is mainly about.
const MAIN: f64 = 0.6;
/// An interval that could hide a larger difference decides nothing.
const WIDEST: f64 = 0.3;
/// Fewer independent stretches on a side say nothing.
const FEWEST: usize = 4;
/// Seconds of longer runs are put together to so many stretches.
const MOST_STRETCHES: usize = 600;
/// Errors on both sides together that are too few to compare.
const FEW_ERRORS: f64 = 5.0;
/// A machine is not quieter than this from one run to the next.
const LEAST_FLOOR: f64 = 0.01;
/// Floors that are assumed where none was measured: rps, p50, p90, p99.
const ASSUMED: [(&str, f64); 4] = [("rps", 0.05), ("p50_us", 0.05), ("p90_us", 0.05), ("p99_us", 0.1)];

/// Metrics by name.
pub type Metrics = BTreeMap<String, f64>;

/// The metrics of one stretch of load. Latencies are absent where nothing was answered. `errors` is a share.
#[must_use]
pub fn metrics_of(run: &Run, phase: &PhaseReport) -> Metrics {
    let mut m = BTreeMap::from([
        ("rps".to_string(), phase.rate.answered_rps),
        ("errors".to_string(), error_share(&run.plan, phase)),
        ("requests".to_string(), phase.requests.due as f64),
    ]);
    for (name, field) in [("p50_us", "p50"), ("p90_us", "p90"), ("p99_us", "p99")] {
        if let Some(v) = phase.latency(Kind::Response, field) {
            m.insert(name.to_string(), v);
        }
    }
    m
}

/// A mean log ratio with its standard error and degrees of freedom.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    log: f64,
    error: f64,
    freedom: f64,
    /// More noise, as the half width of a 95 % interval of the log ratio.
    floor: f64,
}

impl Estimate {
    /// Half width of the two-sided interval in which the log ratio lies but for `alpha`.
    fn half(&self, alpha: f64) -> f64 {
        let quantile = |p: f64| {
            StudentsT::new(0.0, 1.0, self.freedom.max(1.0)).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - p / 2.0))
        };
        // The floor is known from many blocks: it grows as a normal's quantile does.
        let floor = self.floor * normal_quantile(1.0 - alpha / 2.0) / normal_quantile(0.975);
        (quantile(alpha) * self.error).hypot(floor)
    }

    fn is_clear(&self, alpha: f64) -> bool {
        self.log.abs() > self.half(alpha)
    }

    fn comparison(&self, name: &str, a: f64, b: f64, alpha: f64) -> MetricComparison {
        let plain = self.half(ALPHA);
        let smallest = share(self.half(alpha));
        let verdict = if self.is_clear(alpha) {
            // More answers are better; more time and more errors are worse.
            if (self.log > 0.0) == (name == "rps") { Compared::Better } else { Compared::Worse }
        // What this metric alone would call a difference is not called none.
        } else if self.is_clear(ALPHA) || smallest > WIDEST && name != "errors" {
            Compared::Inconclusive
        } else {
            Compared::NoDifference
        };
        let clamp = |x: f64| x.exp().clamp(1e-9, 1e9);
        MetricComparison {
            a,
            b,
            ratio: clamp(self.log),
            interval: [clamp(self.log - plain), clamp(self.log + plain)],
            verdict,
            smallest_difference: smallest,
        }
    }
}

/// A log ratio as a share: what would have been seen.
fn share(log: f64) -> f64 {
    log.exp_m1().clamp(0.0, 1e9)
}

fn normal_quantile(p: f64) -> f64 {
    use statrs::distribution::Normal;
    Normal::new(0.0, 1.0).map_or(1.96, |n| n.inverse_cdf(p))
}

/// What a comparison came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub metrics: BTreeMap<String, MetricComparison>,
    pub verdict: CompareVerdict,
    pub because: String,
    pub smallest_difference: f64,
    pub notes: Vec<String>,
}

/// The metric that a comparison is mainly about: in an open loop the plan makes the throughput.
fn main_metric(open: bool) -> &'static str {
    if open { "p50_us" } else { "rps" }
}

/// Share of chance of one metric.
fn chance(metric: &str, open: bool) -> f64 {
    if metric == main_metric(open) { ALPHA * MAIN } else { ALPHA * (1.0 - MAIN) / (METRICS.len() - 1) as f64 }
}

fn conclude(metrics: BTreeMap<String, MetricComparison>, open: bool, notes: Vec<String>) -> Comparison {
    let named = |wanted: Compared| -> Vec<String> {
        METRICS.iter().filter_map(|m| metrics.get(*m).filter(|c| c.verdict == wanted).map(|c| say(m, c))).collect()
    };
    let (better, worse) = (named(Compared::Better), named(Compared::Worse));
    let main = metrics.get(main_metric(open));
    let smallest_difference = main.map_or(0.0, |m| m.smallest_difference);
    let (verdict, because) = match (better.is_empty(), worse.is_empty()) {
        (false, false) => {
            (CompareVerdict::Mixed, format!("B is better in {}; worse in {}", better.join(", "), worse.join(", ")))
        }
        (false, true) => (CompareVerdict::Better, format!("B is better: {}", better.join(", "))),
        (true, false) => (CompareVerdict::Worse, format!("B is worse: {}", worse.join(", "))),
        (true, true) if main.is_some_and(|m| m.verdict == Compared::NoDifference) => (
            CompareVerdict::NoDifference,
            format!(
                "no difference shown; one of {:.1} % in {} would have been seen",
                smallest_difference * 100.0,
                label(main_metric(open))
            ),
        ),
        (true, true) => (
            CompareVerdict::Inconclusive,
            match main {
                Some(m) if m.smallest_difference <= WIDEST => format!(
                    "{} may still be chance: more blocks (--blocks), or longer runs (-d)",
                    say(main_metric(open), m)
                ),
                Some(m) if m.smallest_difference < 1e9 => format!(
                    "the measurement cannot tell: even a difference of {:.0} % in {} could hide in it",
                    m.smallest_difference * 100.0,
                    label(main_metric(open))
                ),
                _ => "there is too little to compare".into(),
            },
        ),
    };
    Comparison { metrics, verdict, because, smallest_difference, notes }
}

/// The name of a metric in a sentence.
#[must_use]
pub fn label(metric: &str) -> &str {
    match metric {
        "rps" => "answers/s",
        "p50_us" => "p50",
        "p90_us" => "p90",
        "p99_us" => "p99",
        other => other,
    }
}

fn say(metric: &str, c: &MetricComparison) -> String {
    format!("{} {:+.1} %", label(metric), (c.ratio - 1.0) * 100.0)
}

// --- Stored runs ------------------------------------------------------------------------------------------------

/// The floor to reckon with where none was measured.
#[must_use]
pub fn assumed_floor() -> NoiseFloor {
    let floor = ASSUMED.iter().map(|(name, share)| ((*name).to_string(), *share)).collect();
    NoiseFloor { floor, measured_unix_ms: None, url: String::new() }
}

/// Compares the measured phases of two runs that were made at different times. Within each run the noise comes from a
/// circular block bootstrap over its seconds, the blocks as long as the seconds are correlated (Politis & Romano, "A
/// circular block-resampling procedure for stationary data", 1992); between them from `floor`, since what changed on the
/// machine from one run to the other is in neither.
#[must_use]
pub fn stored(a: &Run, b: &Run, floor: &NoiseFloor) -> Comparison {
    let mut notes = Vec::new();
    let (Some(pa), Some(pb)) = (a.measured(), b.measured()) else {
        return conclude(BTreeMap::new(), false, vec!["a run has no measured phase".into()]);
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
        // Welch and Satterthwaite.
        let freedom = if variance > 0.0 {
            variance * variance
                / (ea.powi(4) / (da.stretches - 1.0).max(1.0) + eb.powi(4) / (db.stretches - 1.0).max(1.0))
        } else {
            (da.stretches + db.stretches - 2.0).max(1.0)
        };
        // Some seconds of quiet do not promise more.
        let least = if floor.floor.is_empty() { 0.0 } else { LEAST_FLOOR };
        let floor = floor.floor.get(*name).copied().unwrap_or(0.0).max(least).ln_1p();
        let estimate = Estimate { log: (y / x).ln(), error: variance.sqrt(), freedom, floor };
        let mut comparison = estimate.comparison(name, *x, *y, chance(name, open));
        if !enough {
            comparison.verdict = Compared::Inconclusive;
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
    conclude(metrics, open, notes)
}

/// Standard errors of the logarithm of each metric within a run.
struct Deviations {
    errors: BTreeMap<&'static str, f64>,
    /// Independent stretches.
    stretches: f64,
    /// Variance over mean of the failures of a second, at least 1: failures come in groups.
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
        // Every value that occurs, and each second as (index of the value, count).
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
        // The bootstrap divides by n where an unbiased variance divides by n − 1.
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

/// Compares (errors, requests) of both sides: the log ratio of two Poisson rates, half an error added to each, its
/// variance multiplied by the dispersion. None where there were no errors at all.
fn errors(a: (f64, f64), b: (f64, f64), dispersion: f64, alpha: f64) -> Option<MetricComparison> {
    if a.1 <= 0.0 || b.1 <= 0.0 {
        return None;
    }
    let log = ((b.0 + 0.5) / b.1).ln() - ((a.0 + 0.5) / a.1).ln();
    let error = (dispersion * (1.0 / (a.0 + 0.5) + 1.0 / (b.0 + 0.5))).sqrt();
    let estimate = Estimate { log, error, freedom: 1000.0, floor: 0.0 };
    let mut comparison = estimate.comparison("errors", a.0 / a.1, b.0 / b.1, alpha);
    if a.0 + b.0 == 0.0 {
        comparison.ratio = 1.0;
    }
    if a.0 + b.0 < FEW_ERRORS {
        comparison.verdict = Compared::NoDifference;
    }
    Some(comparison)
}

// --- Interleaved blocks -----------------------------------------------------------------------------------------

/// What to do next in a live comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Load A and B for one stretch each.
    Pair {
        b_first: bool,
    },
    Stop,
}

/// Decides on the blocks of a live comparison: which side goes first, and when the answer is clear.
///
/// Blocks come in groups of two, ABBA or BAAB as chance has it, so that a steady drift hits both sides alike and nothing
/// periodic can take a side. After each block from the fifth on there is a look. A tenth of the chance of finding a
/// difference where there is none is shared out to these looks, the rest is for the last (a union bound), so that
/// stopping early does not raise it.
#[derive(Debug, Clone)]
pub struct Live {
    most: usize,
    early: bool,
    open: bool,
    pairs: Vec<(Metrics, Metrics)>,
    /// Blocks that were asked for, and who goes first in this group.
    asked: usize,
    b_first: bool,
    rng: Xoshiro256PlusPlus,
}

/// Share of the chance that is spent before the end.
const EARLY: f64 = 0.1;
/// No look before so many blocks.
const FIRST_LOOK: usize = 5;
/// A difference below this is none worth more time.
const RESOLUTION: f64 = 0.01;

impl Live {
    /// For at most `most` blocks that count; `early`: it may end before.
    #[must_use]
    pub fn new(most: usize, open: bool, early: bool, seed: u64) -> Live {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        Live { most, early, open, pairs: Vec::new(), asked: 0, b_first: false, rng }
    }

    /// What to do now.
    pub fn ask(&mut self) -> Next {
        if self.pairs.len() >= self.most || self.is_clear() {
            return Next::Stop;
        }
        if self.asked.is_multiple_of(2) {
            self.b_first = self.rng.next_u64() & 1 == 1;
        } else {
            self.b_first = !self.b_first;
        }
        self.asked += 1;
        Next::Pair { b_first: self.b_first }
    }

    /// Takes a block that counts.
    pub fn add(&mut self, a: Metrics, b: Metrics) {
        self.pairs.push((a, b));
    }

    #[must_use]
    pub fn blocks(&self) -> usize {
        self.pairs.len()
    }

    /// Share of chance of a metric at the look after the blocks so far.
    fn alpha(&self, metric: &str) -> f64 {
        let all = chance(metric, self.open);
        let early = self.most.saturating_sub(FIRST_LOOK);
        if early == 0 || !self.early {
            all
        } else if self.pairs.len() < self.most {
            all * EARLY / early as f64
        } else {
            all * (1.0 - EARLY)
        }
    }

    fn is_clear(&self) -> bool {
        if !self.early || self.pairs.len() < FIRST_LOOK {
            return false;
        }
        let clear = |m: &&str| self.estimate(m).is_some_and(|e| e.is_clear(self.alpha(m)));
        let fine = |m: &&str| self.estimate(m).is_some_and(|e| share(e.half(self.alpha(m))) < RESOLUTION);
        METRICS[..3].iter().any(clear) || METRICS[..2].iter().all(fine)
    }

    fn estimate(&self, metric: &str) -> Option<Estimate> {
        let logs: Vec<f64> = self
            .pairs
            .iter()
            .filter_map(|(a, b)| {
                let (a, b) = (*a.get(metric)?, *b.get(metric)?);
                (a > 0.0 && b > 0.0).then(|| (b / a).ln())
            })
            .collect();
        let n = logs.len() as f64;
        if logs.len() < 2 {
            return None;
        }
        let (mean, variance) = mean_and_variance(&logs);
        // Whole microseconds and whole requests: an error below half a step would be made up.
        let step = self.pairs.iter().filter_map(|(a, _)| a.get(metric)).fold(f64::INFINITY, |m, x| m.min(*x));
        let rounding = if step.is_finite() && step > 0.0 { 0.3 / step / n.sqrt() } else { 0.0 };
        Some(Estimate { log: mean, error: (variance / n).sqrt().max(rounding), freedom: n - 1.0, floor: 0.0 })
    }

    /// What the blocks so far say.
    #[must_use]
    pub fn conclude(&self) -> Comparison {
        let mut notes = Vec::new();
        let mut metrics = BTreeMap::new();
        let n = self.pairs.len();
        if n < FEWEST {
            notes.push(format!("only {n} blocks count; it takes {FEWEST} to say anything"));
        }
        for name in &METRICS[..4] {
            let Some(estimate) = self.estimate(name) else { continue };
            let mean = |side: fn(&(Metrics, Metrics)) -> &Metrics| {
                let logs: Vec<f64> = self
                    .pairs
                    .iter()
                    .filter_map(|p| side(p).get(*name))
                    .filter(|x| **x > 0.0)
                    .map(|x| x.ln())
                    .collect();
                (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp()
            };
            let mut comparison = estimate.comparison(name, mean(|p| &p.0), mean(|p| &p.1), self.alpha(name));
            if n < FEWEST {
                comparison.verdict = Compared::Inconclusive;
            }
            metrics.insert((*name).to_string(), comparison);
        }
        if n >= FEWEST {
            let counts = |m: &Metrics| (m["errors"] * m["requests"], m["requests"]);
            let (a, b): (Vec<_>, Vec<_>) = self.pairs.iter().map(|(a, b)| (counts(a), counts(b))).unzip();
            let sum = |v: &[(f64, f64)]| v.iter().fold((0.0, 0.0), |s, x| (s.0 + x.0, s.1 + x.1));
            // The scatter from block to block tells how failures group.
            let scatter = |v: &[(f64, f64)]| dispersion(&v.iter().map(|c| c.0).collect::<Vec<_>>());
            let dispersion = scatter(&a).max(scatter(&b));
            if let Some(c) = errors(sum(&a), sum(&b), dispersion, self.alpha("errors")) {
                metrics.insert("errors".into(), c);
            }
        }
        conclude(metrics, self.open, notes)
    }

    /// What the noise does to two runs that are made one after the other, from the blocks of the same on both sides: the
    /// spread of all stretches, not only that within pairs.
    #[must_use]
    pub fn noise_floor(&self) -> Metrics {
        METRICS[..4]
            .iter()
            .filter_map(|name| {
                let logs: Vec<f64> = self
                    .pairs
                    .iter()
                    .flat_map(|(a, b)| [a.get(*name), b.get(*name)])
                    .flatten()
                    .filter(|x| **x > 0.0)
                    .map(|x| x.ln())
                    .collect();
                let n = logs.len() as f64;
                if n < 4.0 {
                    return None;
                }
                let (_, variance) = mean_and_variance(&logs);
                let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(0.975);
                Some(((*name).to_string(), share(t * (2.0 * variance).sqrt())))
            })
            .collect()
    }
}

/// Variance over mean of counts of errors, at least 1: errors come in groups.
fn dispersion(counts: &[f64]) -> f64 {
    let (mean, variance) = mean_and_variance(counts);
    if mean > 0.0 { (variance / mean).max(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::run::{End, RUN_SCHEMA, RunBuilder};
    use lastdrop_model::{Counts, Generator, Plan, Slice, Validity};

    fn uniform(rng: &mut Xoshiro256PlusPlus) -> f64 {
        (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(rng: &mut Xoshiro256PlusPlus) -> f64 {
        (0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0
    }

    /// A run whose seconds scatter by `noise`, correlated, its level at `level`.
    fn run(seconds: u32, level: f64, noise: f64, seed: u64) -> Run {
        let plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        let mut b = RunBuilder::new(plan.clone());
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
            plan,
            pool: None,
            server: None,
            phases: b.into_reports(),
            generator: Generator::default(),
            validity: Validity::default(),
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
        assert_eq!(c.metrics["rps"].verdict, Compared::Worse);
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

    fn stretch(speed: f64) -> Metrics {
        BTreeMap::from([
            ("rps".to_string(), 400.0 * speed),
            ("p50_us".to_string(), 20_000.0 / speed),
            ("p90_us".to_string(), 25_000.0 / speed),
            ("p99_us".to_string(), 40_000.0 / speed),
            ("errors".to_string(), 0.0),
            ("requests".to_string(), 250.0),
        ])
    }

    /// A live comparison of two sides that scatter by `noise`, with a slow drift, B at `level`.
    fn live(level: f64, noise: f64, seed: u64) -> (Comparison, usize) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut l = Live::new(15, false, true, seed);
        let mut drift = 0.0;
        while let Next::Pair { b_first } = l.ask() {
            let mut measure = |b: bool| {
                drift += noise * 0.3 * normal(&mut rng);
                // Now and then a neighbour takes the processor.
                let hit = if uniform(&mut rng) < 0.05 { -4.0 * noise * uniform(&mut rng) } else { 0.0 };
                stretch(f64::exp(drift + hit + noise * normal(&mut rng)) * if b { level } else { 1.0 })
            };
            let first = measure(b_first);
            let second = measure(!b_first);
            if b_first { l.add(second, first) } else { l.add(first, second) }
        }
        (l.conclude(), l.blocks())
    }

    #[test]
    fn looking_early_does_not_find_what_is_not_there() {
        for noise in [0.005, 0.03, 0.1] {
            let wrong = (0..1000)
                .filter(|i| {
                    let v = live(1.0, noise, *i).0.verdict;
                    !matches!(v, CompareVerdict::NoDifference | CompareVerdict::Inconclusive)
                })
                .count();
            assert!(wrong <= 60, "{wrong} of 1000 at noise {noise}");
        }
    }

    #[test]
    fn what_is_there_is_found() {
        let found = |level: f64, noise: f64| {
            (0..200).filter(|i| live(level, noise, *i).0.verdict == CompareVerdict::Worse).count()
        };
        assert!(found(0.9, 0.03) >= 190, "{}", found(0.9, 0.03));
        assert!(found(0.97, 0.01) >= 120, "{}", found(0.97, 0.01));
        // A large difference ends it early.
        assert!(live(0.7, 0.02, 1).1 < 8);
    }

    #[test]
    fn noise_that_hides_everything_is_inconclusive() {
        let (c, _) = live(1.0, 0.6, 3);
        assert_eq!(c.verdict, CompareVerdict::Inconclusive, "{c:?}");
        assert!(c.smallest_difference > 0.3);
    }

    #[test]
    fn each_group_of_two_blocks_is_abba() {
        let mut l = Live::new(20, false, true, 4);
        let order: Vec<bool> = (0..10)
            .map(|_| match l.ask() {
                Next::Pair { b_first } => b_first,
                Next::Stop => panic!("too early"),
            })
            .collect();
        assert!(order.chunks(2).all(|g| g[0] != g[1]), "{order:?}");
        assert!(order.chunks(2).any(|g| g[0]) && order.chunks(2).any(|g| !g[0]), "{order:?}");
    }

    #[test]
    fn errors_are_compared_by_their_counts() {
        let c = errors((10.0, 1000.0), (40.0, 1000.0), 1.0, 0.01).expect("counts");
        assert_eq!(c.verdict, Compared::Worse);
        assert_eq!(errors((0.0, 1000.0), (2.0, 1000.0), 1.0, 0.01).expect("counts").verdict, Compared::NoDifference);
        assert_eq!(errors((0.0, 1000.0), (60.0, 1000.0), 1.0, 0.01).expect("counts").verdict, Compared::Worse);
        // The same in one burst says much less.
        assert_eq!(errors((10.0, 1000.0), (40.0, 1000.0), 20.0, 0.01).expect("counts").verdict, Compared::NoDifference);
    }
}
