//! Computes the number of workers that fit, from the memory of pools at several sizes and ages.

use std::collections::BTreeMap;

use lastdrop_analyze::memory_model::{self, Estimate, GrowthTrend, STARTS_DIFFER, WorkerAge};
use lastdrop_analyze::workers::{RequestCost, WorkersEvidence};
use lastdrop_model::documents::{Interval, SharingPoint, SizeDocument, SizeFit, SizeFits, SizeGrowth};
use lastdrop_model::units::show_bytes;
use lastdrop_server::Adapter;

use crate::lab::LabError;
use crate::trials::size::advise_of;

/// Least CPU time for replacing a worker: a fork, an exit, and a page table.
const LEAST_REPLACEMENT_S: f64 = 0.001;

/// The measured values.
pub(crate) struct FitMeasurements {
    /// Has points and ages; the rest is still to be computed.
    pub fit: SizeFit,
    /// Workers of the largest pool at every age.
    pub aged: Vec<WorkerAge>,
    pub settling: GrowthTrend,
    /// Requests that the workers of every pool had served.
    pub base: f64,
    pub request_cpu_s: f64,
    pub fresh_cpu_s: f64,
    /// Cost of a request at the server and everything behind it, under load.
    pub cost: Option<RequestCost>,
    /// Processes that take part, as far as they are known.
    pub members: Vec<i32>,
    /// The server's process, which was started for the measurement.
    pub master: i32,
}

/// Returns the private memory, in bytes per worker, that workers gained after the age at which the pools were compared.
fn rest_after(ages: &[SharingPoint], base: f64) -> f64 {
    let bytes = |point: &SharingPoint| point.private_bytes as f64;
    let Some(then) = ages.iter().find(|point| point.requests >= base).map(bytes) else { return 0.0 };
    ages.iter().filter(|point| point.requests >= base).map(|point| bytes(point) - then).fold(0.0, f64::max)
}

fn interval(e: Estimate) -> Interval {
    Interval { value: e.value, interval: e.interval.into() }
}

fn name_of(settling: GrowthTrend) -> &'static str {
    match settling {
        GrowthTrend::Settled(_) => "settled",
        GrowthTrend::Growing => "growing",
        GrowthTrend::Slowing => "slowing",
    }
}

/// Returns the standard deviation of the private memory of workers that have answered so many requests, and by how much the
/// largest is above their mean. Each counts as it was at the age at which the pools were compared.
fn spread_of(aged: &[WorkerAge], requests: f64) -> (f64, f64) {
    let mut alike = BTreeMap::new();
    for a in aged.iter().filter(|a| a.requests >= requests) {
        alike.entry(a.worker).or_insert(a.private);
    }
    let alike: Vec<f64> = alike.into_values().collect();
    let (mean, variance) = lastdrop_analyze::series::mean_and_variance(&alike);
    (variance.max(0.0).sqrt(), (alike.iter().copied().fold(0.0, f64::max) - mean).max(0.0))
}

/// Returns how workers grow after half of their requests, whether that is growth at all, and whether it is a leak. None if too
/// little was seen.
fn growth_of(aged: &[WorkerAge], oldest: f64, settling: GrowthTrend) -> Option<(memory_model::Growth, bool, bool)> {
    // The first requests settle caches and stacks; what continues after half of the requests is growth. The half is
    // taken per worker, because some get far more requests than others.
    let since = oldest * 0.45;
    let mut own_oldest: BTreeMap<_, f64> = BTreeMap::new();
    for a in aged {
        let most = own_oldest.entry(a.worker).or_default();
        *most = most.max(a.requests);
    }
    let is_later = |a: &&WorkerAge| a.requests >= own_oldest.get(&a.worker).map_or(since, |most| most * 0.45);
    let later: Vec<WorkerAge> = aged.iter().filter(is_later).copied().collect();
    let is_growing = settling == GrowthTrend::Growing;
    memory_model::growth(&later)
        .map(|g| (g, is_growing && g.is_real(oldest - since), is_growing && g.is_leak(oldest - since)))
}

/// Returns the formulas with their numbers, in bytes: what exists once, what each worker has, what it grows by, and how much
/// larger the largest is. `fit` workers do, on average and in the worst case.
fn formulas(once: f64, each: f64, grown: f64, beyond: f64, fit: [u64; 2]) -> [(String, String); 2] {
    let b = |x: f64| show_bytes(x.max(0.0) as u64);
    let growth = if grown > 0.0 { format!(" + {} of growth by half its age", b(grown / 2.0)) } else { String::new() };
    let [independent, worst] = fit;
    let once = b(once);
    [
        (
            "independent".into(),
            format!("{once} once + n × ({}{growth}), with room for their spread: n = {independent}", b(each)),
        ),
        (
            "worst_case".into(),
            format!("{once} once + n × {}, the largest and oldest: n = {worst}", b(each + grown + beyond)),
        ),
    ]
}

/// Computes the results and writes them into the document.
///
/// # Errors
/// When the pool did not take the requested sizes.
pub(crate) fn judge(m: FitMeasurements, adapter: &dyn Adapter, document: &mut SizeDocument) -> Result<(), LabError> {
    let FitMeasurements { mut fit, aged, settling, base, request_cpu_s, fresh_cpu_s, cost, members, master } = m;
    // The same quantity as elsewhere; of the pool alone if the full cost of a request could not be measured.
    let request_cpu_s = cost.map_or(request_cpu_s, |cost| cost.cpu_s);
    let points: Vec<(u64, u64)> = fit.points.iter().map(|p| (p.workers, p.total_bytes)).collect();
    let line = memory_model::fit_pool(&points).ok_or_else(|| {
        LabError::Other("the server did not take different pool sizes; is its pool kept by something else?".into())
    })?;
    fit.shared_bytes = interval(line.shared);
    fit.per_worker_bytes = interval(line.each);
    let oldest = aged.iter().map(|a| a.requests).fold(0.0, f64::max);
    let (spread_bytes, beyond) = spread_of(&aged, base.min(oldest) * 0.9);
    fit.spread_bytes = spread_bytes;
    let growth = growth_of(&aged, oldest, settling).map(|(g, grows, leaks)| {
        let replace_cpu_s = (fresh_cpu_s - request_cpu_s).max(LEAST_REPLACEMENT_S);
        let fresh = line.each.value - g.private.value * base;
        let best_age = memory_model::best_age(fresh.max(0.0), g.private.value, request_cpu_s, replace_cpu_s);
        let growth = SizeGrowth {
            private_bytes: interval(g.private),
            leaked_bytes: interval(g.leaked),
            unshared_bytes: interval(g.unshared),
            grows,
            request_cpu_s,
            replace_cpu_s,
            best_age: best_age.filter(|_| leaks),
        };
        (growth, leaks)
    });
    let leaks = growth.as_ref().is_some_and(|(_, leaks)| *leaks);
    let growth = growth.map(|(growth, _)| growth);
    let per_request = growth.as_ref().filter(|g| g.grows).map_or(0.0, |g| g.private_bytes.value);
    // Unsharing ends when nothing is shared any more.
    let shared_each = fit.sharing.last().map_or(0.0, |s| s.shared_bytes as f64);
    if per_request > 0.0 && !leaks {
        document.notes.push(format!(
            "workers write to pages that they share with their parent, {} per request: no leak, and at most {} more each; the answers take a \
             worker to be replaced or to have unshared all of it",
            show_bytes(per_request as u64),
            show_bytes(shared_each as u64),
        ));
    }
    if leaks && fit.age.is_none() {
        let advised = growth.as_ref().and_then(|g| g.best_age);
        document.notes.push(format!(
            "workers grow by {} a request and are never replaced: in time no number of them fits; the answers take \
             them to be replaced after {} requests",
            show_bytes(per_request as u64),
            advised.map_or("an unknown number of".into(), |a| a.to_string()),
        ));
        fit.age = advised;
    }
    fit.settling = name_of(settling).into();
    if settling == GrowthTrend::Slowing || settling == GrowthTrend::Growing && per_request == 0.0 {
        document.notes.push(format!(
            "workers had not settled after {oldest:.0} requests each: in time they will be larger than these answers take \
             them to be; watch them for longer: --requests-per-worker {}",
            (oldest * 4.0).round()
        ));
    }
    // Ages from 0 to A are equally frequent at any time; in the worst case all workers are A old. The line describes
    // workers of age `base`.
    let age = fit.age.map_or(base, |a| a as f64);
    let grown = match (per_request > 0.0, leaks) {
        (false, _) => 0.0,
        (true, true) => age * per_request,
        // Up to its limit, counted from the measured age.
        (true, false) => {
            (base * per_request + shared_each).min(fit.age.map_or(f64::INFINITY, |age| age as f64 * per_request))
        }
    };
    let at_base = per_request * base;
    // A worker counts as settled within one hundredth of its memory, so what came after the pools' age is added.
    let rest = if per_request > 0.0 { 0.0 } else { rest_after(&fit.sharing, base) };
    let spread = (fit.spread_bytes.powi(2) + grown * grown / 12.0).sqrt();
    let independent = line.room(document.budget_bytes, grown / 2.0 - at_base + rest, spread, STARTS_DIFFER);
    let worst = line.room(document.budget_bytes, grown - at_base + rest + beyond, 0.0, STARTS_DIFFER);
    fit.independent_interval = independent.interval.into();
    fit.worst_case_interval = worst.interval.into();
    fit.growth = growth;
    fit.cgroup_ratio = fit
        .points
        .last()
        .and_then(|p| Some(p.pss_anonymous_bytes as f64 / p.cgroup_anonymous_bytes.filter(|b| *b > 0)? as f64));
    let rest_of_each = line.each.value - at_base + rest;
    document.formulas.extend(formulas(
        line.shared.value,
        rest_of_each,
        grown,
        beyond,
        [&independent, &worst].map(|fit| fit.workers),
    ));
    document.fit = Some(fit);
    let before = document.fits.unwrap_or_default();
    document.fits = Some(SizeFits { independent: independent.workers, worst_case: worst.workers, ..before });
    advise_of(document, adapter, master, |known| WorkersEvidence { request: cost, ..known }, &members);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_gained_after_the_age_of_the_pools_is_part_of_each() {
        let at =
            |requests: f64, private_bytes: u64| SharingPoint { requests, private_bytes, ..SharingPoint::default() };
        let ages = [at(1.0, 500), at(17.0, 990), at(32.0, 1000), at(47.0, 998)];
        assert_eq!(rest_after(&ages, 17.0), 10.0);
        assert_eq!((rest_after(&ages, 32.0), rest_after(&ages, 99.0)), (0.0, 0.0));
    }
}
