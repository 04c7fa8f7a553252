//! `size --fit`: measures the memory of a pool at several sizes and ages, with changes through the journal.
//!
//! First the largest pool ages until further requests change nothing, or until `--requests-per-worker` are served. The
//! smaller pools are then measured with workers of the same age: memory after two requests says little.

use std::borrow::Cow;

use lastdrop_analyze::memory_model::{self, GrowthTrend, WorkerAge};
use lastdrop_analyze::pool;
use lastdrop_model::documents::{FitPoint, SharingPoint, SizeDocument, SizeFit, SizeFits, SizeVariant};
use lastdrop_model::event::{Document, Outcome, TrialBegan};
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Event, KeepAlive, Knob, Load, Plan, Role, Sample, Setting, Settings, WorkerSample};
use lastdrop_probe::group::ProcessGroup;
use lastdrop_probe::status::StatusSource;
use lastdrop_probe::{cgroup, memory};
use lastdrop_server::{Change, ServerError, Session};

use crate::lab::warm::{complete_pool, warm_each};
use crate::lab::{Lab, LabError};
use crate::trials::fit_model::{FitMeasurements, judge};
use crate::trials::size::{as_workers, size_of};
use crate::trials::workers::{cores, request_cost};

/// Steps in which workers age; their memory is measured after each.
const AGES: u32 = 4;
/// Each worker gets this many of its requests individually, the rest by load.
const ONE_BY_ONE: u64 = 2;
/// Requests after which most of a worker's memory has settled: the second finds what the first has compiled.
const FIRST_REQUESTS: f64 = 2.0;

/// What to find out.
#[derive(Debug, Clone)]
pub struct FitOptions {
    /// Requests to the server; the load is chosen here.
    pub plan: Plan,
    pub memory: Option<u64>,
    /// Pool sizes in worker processes; if empty, they are chosen from the present one.
    pub sizes: Vec<u64>,
    /// Requests that each worker serves at the largest size.
    pub requests_per_worker: u64,
    /// Name and directives of each variant; settings, if the server has no directives.
    pub variants: Vec<(String, String)>,
    /// Try pool sizes at all.
    pub fit: bool,
}

/// Sizes a server by trying pool sizes, and restores it.
///
/// # Errors
/// When the server cannot be changed, does not come back, or its processes cannot be read.
pub fn fit(lab: &mut Lab<'_>, mut session: Session, order: &FitOptions) -> Result<SizeDocument, LabError> {
    // A database behind the workers limits their number.
    lab.find_chain = true;
    let outcome = FitRunner { lab, session: &mut session, order, status: None }.run();
    lab.tell(&Event::Restoring);
    let restored = session.restore()?;
    let mut document = outcome?;
    document.notes.extend(restored.notes());
    lab.tell(&Event::Concluded { document: Document::Size { found: Cow::Borrowed(&document) } });
    Ok(document)
}

struct FitRunner<'a, 'b> {
    lab: &'a mut Lab<'b>,
    session: &'a mut Session,
    order: &'a FitOptions,
    status: Option<StatusSource>,
}

/// A pool at one moment.
struct PoolState {
    workers: Vec<WorkerSample>,
    /// Master, workers and all their descendants.
    point: FitPoint,
    cpu_s: f64,
}

/// True if the plan has several requests: the first request of a session (such as a login page) says little about the
/// cost of the others.
fn has_several_requests(plan: &Plan) -> bool {
    plan.requests.len() > 1
}

impl FitRunner<'_, '_> {
    fn run(&mut self) -> Result<SizeDocument, LabError> {
        let effective = self.session.original().clone();
        let plan = &self.order.plan;
        self.status = self.session.adapter().status();
        self.lab.warm_twice(plan, self.session.workers().len());
        let mut document =
            size_of(self.session.adapter(), &effective.settings, self.order.memory, effective.notes.clone())?;
        let threads = document.threads_per_worker;
        if self.order.fit {
            let sizes = self.sizes(&effective.settings, threads, &document)?;
            let measured = self.fit(&sizes, threads, &effective.settings, &mut document)?;
            judge(measured, self.session.adapter(), &mut document)?;
        }
        for (name, directives) in &self.order.variants {
            match self.variant(name, directives, document.budget_bytes) {
                Ok(variant) => document.variants.push(variant),
                // If the server does not start with one variant, the others still count.
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

    /// Returns the pool sizes to try, in processes.
    fn sizes(&self, effective: &Settings, threads: u64, document: &SizeDocument) -> Result<Vec<u64>, LabError> {
        let adapter = self.session.adapter();
        let pools: Vec<&str> =
            adapter.knobs().iter().filter(|k| k.role == Some(Role::PoolSize)).map(|k| k.name).collect();
        if let [_, _, ..] = pools.as_slice() {
            return Err(LabError::Other(format!(
                "this server has several pools ({}), and requests of one URL reach one of them: sweep or tune varies each",
                pools.join(", ")
            )));
        }
        let knob = adapter
            .knob(Role::PoolSize)
            .ok_or_else(|| LabError::Other("this server has no pool whose size could be varied".into()))?;
        let present = adapter.value(Role::PoolSize, effective).and_then(|s| s.count()).unwrap_or(8).max(1) as u64;
        // Never more than should fit, so that trying does not make the machine swap.
        let most = document.fitting().max(3).min(knob.most() / threads.max(1));
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
    ) -> Result<FitMeasurements, LabError> {
        let present_age = self.session.adapter().value(Role::Recycle, effective).and_then(|s| s.count());
        let age = present_age.filter(|a| *a > 0).map(|a| a as u64);
        let mut fit = SizeFit { age, ..SizeFit::default() };
        let [smaller @ .., largest] = sizes else { return Err(LabError::Other("no pool size was tried".into())) };
        let mut moment = self.start(*largest, threads, effective)?;
        let workers = moment.workers.len().max(1);
        let fresh_cpu_s = moment.workers.iter().map(|w| w.cpu_s).sum::<f64>() / workers as f64;
        fit.sharing.push(sharing(&moment.workers, 1.0));
        let _ = self.age(workers, threads, 1.0, FIRST_REQUESTS)?;
        moment = self.moment(&moment.workers)?;
        fit.sharing.push(sharing(&moment.workers, FIRST_REQUESTS));
        let served = |w: &WorkerSample, mean: f64| w.requests.map_or(mean, |n| n as f64);
        let mut aged: Vec<WorkerAge> = ages(&moment.workers, |w| served(w, FIRST_REQUESTS));
        let mut points = vec![(FIRST_REQUESTS, moment.point)];
        let (mut answered, cpu_before) = (0u64, moment.cpu_s);
        // No worker lives longer than the age at which it is replaced.
        let most = age.map_or(f64::INFINITY, |a| a as f64).min(self.order.requests_per_worker as f64 + FIRST_REQUESTS);
        for step in 1..=AGES {
            self.lab.check_stop()?;
            let before = points[points.len() - 1].0;
            let to = FIRST_REQUESTS + (most - FIRST_REQUESTS).max(f64::from(AGES)) * f64::from(step) / f64::from(AGES);
            let more = self.age(workers, threads, before, to.round())?;
            answered += more;
            let mean = before + more as f64 / workers as f64;
            moment = self.moment(&moment.workers)?;
            let point = sharing(&moment.workers, mean);
            fit.sharing.push(point);
            aged.extend(ages(&moment.workers, |w| served(w, mean)));
            points.push((mean, moment.point));
            let outcome = Outcome::Age { workers: workers as u64, step, of: AGES, point };
            self.lab.tell(&Event::TrialDone { outcome });
        }
        if moment.workers.iter().any(|w| w.requests.is_none()) {
            let kind = self.session.adapter().facts().kind;
            let advice = kind.tells_each.map_or_else(String::new, |how| format!(" ({}: {how})", kind.title));
            document.notes.push(format!(
                "nothing tells how many requests each worker has served: growth takes them to be equal shares{advice}"
            ));
        }
        // CPU time of the pool alone, without backends.
        let request_cpu_s = (moment.cpu_s - cpu_before).max(0.0) / answered.max(1) as f64;
        let cost = request_cost(self.lab, &self.order.plan, cores(self.session.master()))?;
        let by_age: Vec<(f64, f64)> = fit.sharing[1..].iter().map(|s| (s.requests, s.private_bytes as f64)).collect();
        let settling = memory_model::settling(&by_age)
            .ok_or_else(|| LabError::Other("the workers were looked at too seldom".into()))?;
        // If workers keep growing, they grow evenly after the first half of the requests.
        let base = match settling {
            GrowthTrend::Settled(age) => age,
            GrowthTrend::Growing => points[points.len() / 2].0,
            GrowthTrend::Slowing => points[points.len() - 1].0,
        };
        fit.warmed_requests = base.round();
        fit.points.extend(points.iter().find(|(age, _)| *age >= base).map(|(_, point)| *point));
        for size in smaller.iter().rev() {
            self.lab.check_stop()?;
            let moment = self.start(*size, threads, effective)?;
            let _ = self.age(moment.workers.len().max(1), threads, 1.0, base.round())?;
            let moment = self.moment(&moment.workers)?;
            let (workers, point) = (moment.workers.len() as u64, moment.point);
            let outcome = Outcome::Pool { workers, requests: base, point };
            self.lab.tell(&Event::TrialDone { outcome });
            fit.points.push(moment.point);
        }
        fit.points.sort_by_key(|p| p.workers);
        let members = self.lab.members();
        Ok(FitMeasurements {
            fit,
            aged,
            settling,
            base,
            request_cpu_s,
            fresh_cpu_s,
            cost,
            members,
            master: self.session.master(),
        })
    }

    /// Starts a fresh pool of some size and gives each worker its first request.
    fn start(&mut self, size: u64, threads: u64, effective: &Settings) -> Result<PoolState, LabError> {
        let mut settings = self.session.adapter().pool_settings(size * threads, effective);
        if let Some(knob) = self.session.adapter().knob(Role::Recycle) {
            // A worker that is replaced meanwhile does not age.
            settings.insert(knob.name.into(), Setting::from(0));
        }
        self.session.apply(settings)?;
        let workers = complete_pool(self.lab.clock, || self.session.workers().len());
        let answered = self.age(workers, threads, 0.0, 1.0)?;
        self.lab.tell(&Event::Warmed { answered, workers: workers as u64 });
        self.moment(&[])
    }

    /// Lets each worker age from one number of requests to another; returns how many requests were answered.
    fn age(&mut self, workers: usize, threads: u64, from: f64, to: f64) -> Result<u64, LabError> {
        let each = (to - from).round().max(0.0) as u64;
        // Individual requests reach every worker for certain, but take a moment each and need plain HTTP.
        let plan = &self.order.plan;
        let one_by_one = if plan.url.tls || plan.network.unix_socket.is_some() || has_several_requests(plan) {
            0
        } else {
            each.min(ONE_BY_ONE)
        };
        let mut answered = 0;
        if each > one_by_one {
            answered += self.grow(workers as u64, (each - one_by_one) * workers as u64 * threads)?;
        }
        for _ in 0..one_by_one {
            answered += warm_each(&self.order.plan, workers) as u64;
        }
        Ok(answered)
    }

    /// Gives each worker one request, or the whole pool as many sessions as it has workers.
    fn serve_once(&mut self, workers: usize) -> Result<(), LabError> {
        if has_several_requests(&self.order.plan) {
            let workers = workers as u64;
            self.grow(workers, workers * self.order.plan.requests.len() as u64)?;
        } else {
            let _ = warm_each(&self.order.plan, workers);
        }
        Ok(())
    }

    /// Sends `requests` to the pool, from as many users as it has workers.
    fn grow(&mut self, workers: u64, requests: u64) -> Result<u64, LabError> {
        let mut plan = self.order.plan.clone();
        plan.phases.retain(|p| p.measured);
        // So that each worker gets its share.
        plan.keepalive = KeepAlive::Off;
        for phase in &mut plan.phases {
            phase.load = Load::closed(workers.clamp(1, 1000) as u32);
            (phase.requests, phase.duration) = (Some(requests), None);
        }
        let run = self.lab.run(&plan, "size growth")?;
        self.lab.check_stop()?;
        Ok(run.measured().map_or(0, |p| p.requests.answered))
    }

    /// Measures the whole group. `before` are workers that should still exist.
    fn moment(&self, before: &[WorkerSample]) -> Result<PoolState, LabError> {
        let master = self.session.master();
        let mut group = ProcessGroup::new(master, false, self.session.adapter().facts().kind.helpers);
        let mut look = Sample::default();
        group.look(true, &mut look);
        let pids = group.pids();
        let all = group.memory();
        if let Some(why) = group.refused.as_ref().filter(|_| all.len() < pids.len()) {
            return Err(LabError::Other(why.clone()));
        }
        let mut workers = group.worker_looks();
        // Helpers of the server (such as mod_cgid's daemon) are not workers, and differ greatly from them.
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
        Ok(PoolState { workers, point, cpu_s })
    }

    /// Measures workers with other directives or settings, after the first and the second request.
    fn variant(&mut self, name: &str, directives: &str, budget: u64) -> Result<SizeVariant, LabError> {
        self.lab.check_stop()?;
        self.lab.tell(&Event::TrialBegan {
            trial: TrialBegan { role: "variant".into(), series: name.into(), ..TrialBegan::default() },
        });
        let adapter = self.session.adapter();
        let knobs: Vec<&Knob> = adapter.knobs().iter().collect();
        let change = Change::read(directives, adapter.facts().kind.directives, &knobs).map_err(ServerError::Setting)?;
        self.session.apply(change)?;
        let workers = complete_pool(self.lab.clock, || self.session.workers().len());
        self.serve_once(workers)?;
        let first = self.moment(&[])?;
        self.serve_once(workers)?;
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

/// Returns the means over the workers.
fn sharing(workers: &[WorkerSample], requests: f64) -> SharingPoint {
    let n = workers.len().max(1) as u64;
    let mean = |f: fn(&WorkerSample) -> Option<u64>| workers.iter().filter_map(f).sum::<u64>() / n;
    let (size, shared) = (mean(|w| w.rss_bytes), mean(|w| w.shared_bytes));
    SharingPoint { requests, size_bytes: size, shared_bytes: shared, private_bytes: mean(|w| w.private_bytes) }
}

fn ages(workers: &[WorkerSample], served: impl Fn(&WorkerSample) -> f64) -> Vec<WorkerAge> {
    let bytes = |b: Option<u64>| b.map(|b| b as f64);
    workers
        .iter()
        .filter_map(|w| {
            Some(WorkerAge {
                worker: w.pid,
                requests: served(w),
                rss: bytes(w.rss_bytes)?,
                private: bytes(w.private_bytes)?,
                shared: bytes(w.shared_bytes)?,
            })
        })
        .collect()
}
