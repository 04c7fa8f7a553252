//! `size --fit`: the memory of a pool measured at several sizes and ages, through the journal.

use std::collections::BTreeMap;

use lastdrop_analyze::memory_model::{self, Aged, Estimate};
use lastdrop_analyze::pool;
use lastdrop_model::documents::{
    FitPoint, Interval, SharingPoint, SizeDocument, SizeFit, SizeFits, SizeGrowth, SizeVariant,
};
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Load, Look, Plan, Role, Setting, Settings, WorkerLook};
use lastdrop_probe::group::Group;
use lastdrop_probe::status::StatusSource;
use lastdrop_probe::{cgroup, memory};
use lastdrop_server::{ServerError, Session};

use crate::lab::{Lab, LabError};
use crate::size::{answer, as_workers, size_of};
use crate::warm::warm_each;

/// Steps in which workers grow older, and looks at their memory.
const AGES: u32 = 4;
/// A worker that is started anew costs at least this much CPU: a fork, an exit, and a page table.
const LEAST_REPLACEMENT_S: f64 = 0.001;

/// What is to be found out.
#[derive(Debug, Clone)]
pub struct FitOrder {
    /// Requests to the server; its load is ours to choose.
    pub plan: Plan,
    pub memory: Option<u64>,
    /// Pool sizes in worker processes; empty: chosen from the present one.
    pub sizes: Vec<u64>,
    /// Requests that each worker serves at the largest size.
    pub requests_per_worker: u64,
    /// Name and directives of each variant.
    pub variants: Vec<(String, String)>,
    /// Try pool sizes at all.
    pub fit: bool,
}

fn interval(e: Estimate) -> Interval {
    Interval { value: e.value, interval: e.interval.into() }
}

/// Sizes a server by trying pool sizes, and puts it back.
///
/// # Errors
/// When the server cannot be changed, does not come back, or its processes cannot be read.
pub fn fit(lab: &mut Lab<'_>, mut session: Session, order: &FitOrder) -> Result<SizeDocument, LabError> {
    let outcome = Fitting { lab, session: &mut session, order, status: None }.run();
    lab.narrator.note("putting the server back as it was found");
    let restored = session.restore()?;
    let mut document = outcome?;
    document.notes.extend(restored.differences.into_iter().map(|d| format!("after putting it back: {d}")));
    Ok(document)
}

struct Fitting<'a, 'b> {
    lab: &'a mut Lab<'b>,
    session: &'a mut Session,
    order: &'a FitOrder,
    status: Option<StatusSource>,
}

/// A pool at a moment.
struct Moment {
    workers: Vec<WorkerLook>,
    /// Master, workers and all below.
    point: FitPoint,
    cpu_s: f64,
}

impl Fitting<'_, '_> {
    fn run(&mut self) -> Result<SizeDocument, LabError> {
        let effective = self.session.original().clone();
        let plan = &self.order.plan;
        self.status = self.session.adapter().facts().status_url.clone().map(StatusSource::Apache);
        for _ in 0..2 {
            let _ = warm_each(plan, self.session.workers().len());
        }
        let mut document =
            size_of(self.session.adapter(), &effective.settings, self.order.memory, effective.notes.clone())?;
        let threads = document.threads_per_worker;
        if self.order.fit {
            let sizes = self.sizes(&effective.settings, threads, &document)?;
            let fit = self.fit(&sizes, threads, &effective.settings, &mut document)?;
            document.fit = Some(fit);
        }
        for (name, directives) in &self.order.variants {
            match self.variant(name, directives, document.budget_bytes) {
                Ok(variant) => document.variants.push(variant),
                // One variant that the server does not start with is no reason to lose the others.
                Err(LabError::Server(e @ (ServerError::ConfigTest { .. } | ServerError::Clamped { .. }))) => {
                    document
                        .notes
                        .push(format!("variant {name} is left out: {e}; the server's error log may say more"));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(document)
    }

    /// Pool sizes to try, in processes.
    fn sizes(&self, effective: &Settings, threads: u64, document: &SizeDocument) -> Result<Vec<u64>, LabError> {
        let adapter = self.session.adapter();
        let knob = adapter
            .knob(Role::PoolSize)
            .ok_or_else(|| LabError::Other("this server has no pool whose size could be varied".into()))?;
        let present = adapter.value(Role::PoolSize, effective).and_then(|s| s.count()).unwrap_or(8).max(1) as u64;
        // Never more than what should fit: trying may not push the machine into swapping.
        let most = document.fits.independent.max(3).min(knob.range.1 as u64 / threads.max(1));
        let mut sizes = if self.order.sizes.is_empty() {
            let top = (present / threads.max(1)).clamp(8, 64).min(most);
            vec![top.div_ceil(4), top.div_ceil(2), (3 * top).div_ceil(4), top]
        } else {
            self.order.sizes.clone()
        };
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() < 3 {
            return Err(LabError::Other(format!(
                "{} sizes are too few for a line with an interval; give three or more: --sizes 4,8,16",
                sizes.len()
            )));
        }
        if let Some(too_many) = sizes.iter().find(|s| **s > most) {
            return Err(LabError::Other(format!(
                "a pool of {too_many} would not fit into {}: by its present workers {most} do",
                show_bytes(document.budget_bytes)
            )));
        }
        Ok(sizes)
    }

    fn fit(
        &mut self,
        sizes: &[u64],
        threads: u64,
        effective: &Settings,
        document: &mut SizeDocument,
    ) -> Result<SizeFit, LabError> {
        let recycle = self.session.adapter().knob(Role::Recycle).map(|k| k.name);
        let present_age = self.session.adapter().value(Role::Recycle, effective).and_then(|s| s.count());
        let mut fit = SizeFit { age: present_age.filter(|a| *a > 0).map(|a| a as u64), ..SizeFit::default() };
        let mut fresh_cpu = 0.0;
        let mut aged: Vec<Aged> = Vec::new();
        let mut last: Option<Moment> = None;
        for size in sizes {
            self.lab.check_stop()?;
            let mut settings = self.session.adapter().pool_settings(size * threads, effective);
            if let Some(name) = recycle {
                // A worker that is replaced meanwhile does not grow older.
                settings.insert(name.into(), Setting::from(0));
            }
            self.session.apply(&settings)?;
            let workers = self.session.workers().len();
            let once = warm_each(&self.order.plan, workers);
            let first = self.moment(&[])?;
            fresh_cpu = first.workers.iter().map(|w| w.cpu_s).sum::<f64>() / first.workers.len().max(1) as f64;
            if *size == sizes[sizes.len() - 1] {
                fit.sharing.push(sharing(&first.workers, 1.0));
            }
            // The footprint settles with the second request.
            let _ = warm_each(&self.order.plan, workers);
            let moment = self.moment(&[])?;
            self.lab.narrator.note(format!(
                "{} workers ({once} answered): {} and {} of the kernel's",
                moment.workers.len(),
                show_bytes(moment.point.pss_bytes),
                show_bytes(moment.point.kernel_bytes),
            ));
            fit.points.push(moment.point);
            last = Some(moment);
        }
        let Some(mut moment) = last else { return Err(LabError::Other("no pool size was tried".into())) };
        let largest = moment.workers.len().max(1) as u64;
        fit.sharing.push(sharing(&moment.workers, 2.0));
        let served = |w: &WorkerLook, mean: f64| w.requests.map_or(mean, |n| n as f64);
        aged.extend(ages(&moment.workers, |w| served(w, 2.0)));
        let (mut answered, cpu_before) = (0u64, moment.cpu_s);
        for step in 1..=AGES {
            self.lab.check_stop()?;
            let each = self.order.requests_per_worker.div_ceil(u64::from(AGES));
            answered += self.grow(largest, each * largest * threads)?;
            let mean = 2.0 + answered as f64 / largest as f64;
            moment = self.moment(&moment.workers)?;
            fit.sharing.push(sharing(&moment.workers, mean));
            aged.extend(ages(&moment.workers, |w| served(w, mean)));
            let private = fit.sharing.last().map_or(0, |s| s.private_bytes);
            self.lab.narrator.note(format!(
                "age {step} of {AGES}: {mean:.0} requests a worker, {} private each",
                show_bytes(private)
            ));
        }
        if moment.workers.iter().any(|w| w.requests.is_none()) {
            document.notes.push(
                "the status page does not tell how many requests each worker has served: growth takes them to be equal \
                 shares (Apache: ExtendedStatus On)"
                    .into(),
            );
        }
        let request_cpu_s = (moment.cpu_s - cpu_before).max(0.0) / answered.max(1) as f64;
        self.judge(&mut fit, &aged, request_cpu_s, fresh_cpu, document)?;
        Ok(fit)
    }

    fn judge(
        &self,
        fit: &mut SizeFit,
        aged: &[Aged],
        request_cpu_s: f64,
        fresh_cpu: f64,
        document: &mut SizeDocument,
    ) -> Result<(), LabError> {
        let points: Vec<(u64, u64)> = fit.points.iter().map(|p| (p.workers, p.total_bytes)).collect();
        let line = memory_model::fit_pool(&points).ok_or_else(|| {
            LabError::Other("the server did not take different pool sizes; is its pool kept by something else?".into())
        })?;
        fit.shared_bytes = interval(line.shared);
        fit.per_worker_bytes = interval(line.each);
        // Workers at one age, as they were after two requests each.
        let first: Vec<f64> = {
            let mut seen = BTreeMap::new();
            for a in aged {
                seen.entry(a.worker).or_insert(a.private);
            }
            seen.into_values().collect()
        };
        let (mean, variance) = lastdrop_analyze::series::mean_and_variance(&first);
        fit.spread_bytes = variance.max(0.0).sqrt();
        let beyond = first.iter().copied().fold(0.0, f64::max) - mean;
        // The first requests settle things (caches, stacks); what goes on after half of them is growth.
        let oldest = aged.iter().map(|a| a.requests).fold(0.0, f64::max);
        let settled: Vec<Aged> = aged.iter().copied().filter(|a| a.requests >= oldest * 0.45).collect();
        let growth = memory_model::growth(&settled).map(|g| {
            let grows = g.private.is_positive();
            let replace_cpu_s = (fresh_cpu - request_cpu_s).max(LEAST_REPLACEMENT_S);
            let best_age = memory_model::best_age(line.each.value, g.private.value, request_cpu_s, replace_cpu_s);
            SizeGrowth {
                private_bytes: interval(g.private),
                leaked_bytes: interval(g.leaked),
                unshared_bytes: interval(g.unshared),
                grows,
                request_cpu_s,
                replace_cpu_s,
                best_age: best_age.filter(|_| grows),
            }
        });
        let per_request = growth.as_ref().filter(|g| g.grows).map_or(0.0, |g| g.private_bytes.value);
        if per_request > 0.0 {
            let advised = growth.as_ref().and_then(|g| g.best_age);
            let age = fit.age.or(advised);
            if fit.age.is_none() {
                document.notes.push(format!(
                    "workers grow by {} a request and are never replaced: in time no number of them fits; the answers take \
                     them to be replaced after {} requests",
                    show_bytes(per_request as u64),
                    advised.map_or("an unknown number of".into(), |a| a.to_string()),
                ));
            }
            fit.age = age;
        }
        // Ages from 0 to A are equally many at a time; at their worst all are A old.
        let grown = fit.age.map_or(0.0, |a| a as f64 * per_request);
        let independent =
            line.room(document.budget_bytes, grown / 2.0, (fit.spread_bytes.powi(2) + grown * grown / 12.0).sqrt());
        let worst = line.room(document.budget_bytes, grown + beyond.max(0.0), 0.0);
        fit.independent_interval = independent.interval.into();
        fit.worst_case_interval = worst.interval.into();
        fit.growth = growth;
        fit.cgroup_ratio = fit
            .points
            .last()
            .and_then(|p| Some(p.pss_anonymous_bytes as f64 / p.cgroup_anonymous_bytes.filter(|b| *b > 0)? as f64));
        let b = |x: f64| show_bytes(x.max(0.0) as u64);
        let (shared, each) = (b(line.shared.value), b(line.each.value));
        let age = if grown > 0.0 { format!(" + {} of growth by half its age", b(grown / 2.0)) } else { String::new() };
        document.formulas.insert(
            "independent".into(),
            format!("{shared} once + n × ({each}{age}), with room for their spread: n = {}", independent.workers),
        );
        document.formulas.insert(
            "worst_case".into(),
            format!(
                "{shared} once + n × {}, the largest and oldest: n = {}",
                b(line.each.value + grown + beyond),
                worst.workers
            ),
        );
        answer(document, self.session.adapter(), independent.workers, worst.workers);
        Ok(())
    }

    /// Puts `requests` on the pool, from as many users as it has workers.
    fn grow(&mut self, workers: u64, requests: u64) -> Result<u64, LabError> {
        let mut plan = self.order.plan.clone();
        plan.phases.retain(|p| p.measured);
        for phase in &mut plan.phases {
            phase.load = Load::Closed { users: workers.clamp(1, 1000) as u32, to_users: None };
            (phase.requests, phase.duration) = (Some(requests), None);
        }
        let run = self.lab.run(&plan, "size growth")?;
        self.lab.check_stop()?;
        Ok(run.measured().map_or(0, |p| p.requests.answered))
    }

    /// Looks at the whole group. `before` are workers that are still expected.
    fn moment(&self, before: &[WorkerLook]) -> Result<Moment, LabError> {
        let master = self.session.master();
        let mut group = Group::new(master, false);
        let mut look = Look::default();
        group.look(true, &mut look);
        let pids = group.pids();
        let all = group.memory();
        if let Some(why) = group.refused.as_ref().filter(|_| all.len() < pids.len()) {
            return Err(LabError::Other(why.clone()));
        }
        let mut workers = group.worker_looks();
        // A helper of the server's (mod_cgid's daemon) is no worker; they differ by far in what they are.
        let known = self.session.workers();
        workers.retain(|w| known.contains(&w.pid));
        if let Some(status) = self.status.as_ref().and_then(|s| s.read(true, std::time::Duration::from_secs(3)).ok()) {
            status.tell(&mut workers);
        }
        if !before.is_empty() && !workers.iter().any(|w| before.iter().any(|b| b.pid == w.pid)) {
            return Err(LabError::Other(
                "every worker was replaced meanwhile: they crash, or something recycles them; growth cannot be measured".into(),
            ));
        }
        let sum = |f: fn(&memory::ProcessMemory) -> u64| all.iter().map(f).sum::<u64>();
        let kernel = pids.iter().map(|p| memory::kernel_part(*p)).sum::<u64>();
        let point = FitPoint {
            workers: workers.len() as u64,
            total_bytes: sum(|m| m.pss) + kernel,
            pss_bytes: sum(|m| m.pss),
            pss_anonymous_bytes: sum(|m| m.pss_anonymous),
            kernel_bytes: kernel,
            cgroup_anonymous_bytes: cgroup::memory_of_its_own(master, &pids).map(|(_, bytes)| bytes),
        };
        let cpu_s = workers.iter().map(|w| w.cpu_s).sum();
        Ok(Moment { workers, point, cpu_s })
    }

    /// The size of workers under other directives, after the first and the second request.
    fn variant(&mut self, name: &str, directives: &str, budget: u64) -> Result<SizeVariant, LabError> {
        self.lab.check_stop()?;
        self.lab.narrator.note(format!("variant {name}"));
        self.session.apply_directives(directives)?;
        let workers = self.session.workers().len();
        let _ = warm_each(&self.order.plan, workers);
        let first = self.moment(&[])?;
        let _ = warm_each(&self.order.plan, workers);
        let second = self.moment(&[])?;
        let pids: Vec<i32> = second.workers.iter().map(|w| w.pid).collect();
        let group = as_workers(&memory::of_group(&pids)?);
        let shared_once = second.point.pss_bytes.saturating_sub(group.iter().map(|w| w.private).sum());
        let fits = pool::fits(budget, &group, shared_once);
        Ok(SizeVariant {
            name: name.into(),
            directives: directives.into(),
            first: sharing(&first.workers, 1.0),
            second: sharing(&second.workers, 2.0),
            fits: fits.map_or_else(SizeFits::default, |f| SizeFits {
                no_sharing: f.no_sharing,
                classic_sharing: f.classic_sharing,
                independent: f.independent,
                worst_case: f.worst_case,
            }),
        })
    }
}

/// Means over the workers.
fn sharing(workers: &[WorkerLook], requests: f64) -> SharingPoint {
    let n = workers.len().max(1) as u64;
    let mean = |f: fn(&WorkerLook) -> Option<u64>| workers.iter().filter_map(f).sum::<u64>() / n;
    let (size, shared) = (mean(|w| w.rss_bytes), mean(|w| w.shared_bytes));
    SharingPoint { requests, size_bytes: size, shared_bytes: shared, private_bytes: mean(|w| w.private_bytes) }
}

fn ages(workers: &[WorkerLook], served: impl Fn(&WorkerLook) -> f64) -> Vec<Aged> {
    let bytes = |b: Option<u64>| b.map(|b| b as f64);
    workers
        .iter()
        .filter_map(|w| {
            Some(Aged {
                worker: w.pid,
                requests: served(w),
                rss: bytes(w.rss_bytes)?,
                private: bytes(w.private_bytes)?,
                shared: bytes(w.shared_bytes)?,
            })
        })
        .collect()
}
