//! Measures how much memory a server's workers really use, and computes how many fit. Changes nothing.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_analyze::pool::{self, Profile, WorkerHistory, WorkerMemory};
use lastdrop_analyze::workers::{WorkersEvidence, advise};
use lastdrop_model::documents::{MeanMax, SIZE_SCHEMA, SizeBound, SizeDocument, SizeFits, SizeWorkers};
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Knob, Plan, Role, Settings, WorkerSample};
use lastdrop_probe::host::HostMemory;
use lastdrop_probe::memory::{self, ProcessMemory};
use lastdrop_probe::process;
use lastdrop_server::{Adapter, Server, ServerRef, discover};

use crate::lab::{Lab, LabError};

use crate::trials::workers::{cores, evidence, has_workers, request_cost};

/// Without a budget, this share of the machine's memory stays for the page cache: reading files from disk again and
/// again costs more than a worker gains.
const PAGE_CACHE_SHARE: f64 = 0.10;
/// A status page that does not respond within this time is not used.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);
/// A server without any worker for this long has none.
const NO_WORKERS_FOR: Duration = Duration::from_secs(3);

/// Finds the server and sizes it. `memory` is the budget of the whole group, bytes.
///
/// # Errors
/// When the server is not found or its processes may not be read.
pub fn size(server: &ServerRef, memory: Option<u64>) -> Result<SizeDocument, LabError> {
    let adapter = discover(server)?;
    let effective = adapter.effective()?;
    size_of(adapter.as_ref(), &effective.settings, memory, effective.notes)
}

/// Sizes a server after each worker has had requests of `plan`, and measures the cost of a request under a short load.
/// The number of workers follows from both. Changes nothing.
///
/// # Errors
/// When its processes may not be read, no load can be generated, or the user stops it.
pub fn size_under_load(
    lab: &mut Lab<'_>,
    adapter: &dyn Adapter,
    plan: &Plan,
    memory: Option<u64>,
) -> Result<SizeDocument, LabError> {
    lab.find_chain = true;
    let effective = adapter.effective()?;
    lab.warm_twice(plan, adapter.workers(adapter.facts().birth.pid).len());
    let cost = match has_workers(adapter) {
        true => request_cost(lab, plan, cores(adapter.facts().birth.pid))?,
        false => None,
    };
    let mut document = size_of(adapter, &effective.settings, memory, effective.notes)?;
    let master = adapter.facts().birth.pid;
    advise_of(&mut document, adapter, master, |known| WorkersEvidence { request: cost, ..known }, &lab.members());
    Ok(document)
}

/// Returns the memory of a server's workers. A small pool that recycles may have none for a moment: Apache starts
/// workers once per second, and workers just listed may have ended before they are read.
fn present_workers(adapter: &dyn Adapter) -> Result<Vec<ProcessMemory>, LabError> {
    let deadline = Instant::now() + NO_WORKERS_FOR;
    loop {
        let workers = memory::of_group(&adapter.workers(adapter.facts().birth.pid))?;
        if !workers.is_empty() || Instant::now() > deadline {
            return Ok(workers);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Sizes a server of a stack, on its machine.
///
/// # Errors
/// When its processes may not be read.
pub fn size_of_server(server: Server<'_>, memory: Option<u64>) -> Result<SizeDocument, LabError> {
    match server.session() {
        Some(session) => size_of(session.adapter(), &session.original().settings, memory, Vec::new()),
        None => Ok(server.size(memory)?),
    }
}

/// Sizes a server that has already been found.
///
/// # Errors
/// When its processes may not be read.
pub fn size_of(
    adapter: &dyn Adapter,
    effective: &Settings,
    memory: Option<u64>,
    mut notes: Vec<String>,
) -> Result<SizeDocument, LabError> {
    let facts = adapter.facts();
    let parent = memory::of_process(facts.birth.pid)?;
    let workers = present_workers(adapter)?;
    if workers.is_empty() {
        return Err(LabError::Other(format!("{} (process {}) has no workers", facts.name, facts.birth.pid)));
    }
    let all = as_workers(&workers);
    let warm = warm(adapter, &workers);
    let cold = warm.iter().filter(|served| !**served).count() as u64;
    let all_cold = cold == workers.len() as u64;
    let of_warm = |served: &&(&ProcessMemory, bool)| served.1 || all_cold;
    let sized: Vec<ProcessMemory> =
        workers.iter().zip(warm).collect::<Vec<_>>().iter().filter(of_warm).map(|(m, _)| **m).collect();
    let group = as_workers(&sized);
    let real = parent.pss + pool::real_memory(&all);
    // What is not private to a worker exists once: shared pages, and the parent's own.
    let shared_once = real.saturating_sub(all.iter().map(|w| w.private).sum());
    let anonymous = parent.pss_anonymous + workers.iter().map(|m| m.pss_anonymous).sum::<u64>();
    let (budget, budget_from) = budget(memory, real, facts.birth.pid, anonymous)?;
    let fits = pool::fits(budget, &group, shared_once).ok_or_else(|| LabError::Other("no workers to size".into()))?;
    let threads = threads_per_worker(adapter, effective);
    if all_cold {
        notes.push(format!(
            "none of the {cold} workers has served anything yet: how many fit is not known before they have; give them requests of your \
             application: lastdrop size … --url URL"
        ));
    } else if cold > 0 {
        notes.push(format!(
            "{cold} of {} workers have served next to nothing yet and are left out of the sizes; --url URL gives each of them requests first",
            workers.len()
        ));
    }
    if group.iter().map(|w| w.rss).max() > group.iter().map(|w| w.rss).min().map(|m| m * 2) {
        notes.push("workers differ much in size: some have not served yet; put load on and look again".into());
    }
    if fits.independent == 0 && !all_cold {
        notes.push(format!("not even one worker fits into {}", show_bytes(budget)));
    }
    if workers.iter().map(|w| w.swap).sum::<u64>() > 0 {
        notes.push("some of the workers' memory is swapped out; it is not in these numbers".into());
    }
    let mut document = SizeDocument {
        schema: SIZE_SCHEMA.into(),
        server: facts.name.clone(),
        version: facts.version.clone(),
        model: facts.model.clone(),
        threads_per_worker: threads,
        workers: SizeWorkers { count: workers.len() as u64, cold, ..summary(&sized) },
        real_memory_bytes: real,
        classic_real_memory_bytes: pool::classic_real_memory(&all),
        sum_rss_bytes: all.iter().map(|w| w.rss).sum(),
        shared_once_bytes: shared_once,
        budget_bytes: budget,
        budget_from,
        fits: (!all_cold).then_some(SizeFits {
            no_sharing: fits.no_sharing,
            classic_sharing: fits.classic_sharing,
            independent: fits.independent,
            worst_case: fits.worst_case,
        }),
        formulas: if all_cold { BTreeMap::new() } else { formulas(budget, &group, shared_once, &fits) },
        workers_advice: None,
        suggested: Settings::new(),
        profiles: BTreeMap::new(),
        effective: effective.clone(),
        fit: None,
        bounds: Vec::new(),
        variants: Vec::new(),
        notes,
    };
    advise_of(&mut document, adapter, facts.birth.pid, |known| known, &[]);
    Ok(document)
}

/// Writes the number of workers and the settings for it into a document. `more` adds to the evidence known without
/// load; `members` are the processes known to take part.
pub fn advise_of(
    document: &mut SizeDocument,
    adapter: &dyn Adapter,
    master: i32,
    more: impl FnOnce(WorkersEvidence) -> WorkersEvidence,
    members: &[i32],
) {
    document.workers_advice = None;
    if has_workers(adapter) {
        let known = more(evidence(adapter, master, &document.effective, document, members));
        let of_database = known.ceilings.iter().find(|ceiling| ceiling.by == "database");
        document.bounds = of_database
            .map(|c| SizeBound {
                what: "database-connections".into(),
                workers: c.number / document.threads_per_worker.max(1),
                reason: c.reason.clone(),
            })
            .into_iter()
            .collect();
        // For a pool that has served nothing, the memory limit is unknown, and a number without it would be misleading.
        document.workers_advice = document.fits.and_then(|_| advise(&known));
    }
    // For a pool of event loops, only memory limits the number.
    let by_memory = document.fits.map(|fits| fits.independent.max(1) * document.threads_per_worker);
    let number =
        document.workers_advice.as_ref().map(|advice| advice.number).or(by_memory.filter(|_| !has_workers(adapter)));
    document.profiles.clear();
    for (profile, number) in Profile::ALL.into_iter().zip(std::iter::repeat(number)) {
        if let Some(number) = number {
            let settings = suggest(adapter, &document.effective, profile, number.max(1));
            document.profiles.insert(profile.name().to_string(), settings);
        }
    }
    document.suggested = document.profiles.get(Profile::Dedicated.name()).cloned().unwrap_or_default();
}

/// Returns which workers have served requests.
fn warm(adapter: &dyn Adapter, workers: &[ProcessMemory]) -> Vec<bool> {
    // Event loops serve any request, and a threaded process mixes threads that have served with others.
    if !has_workers(adapter) || adapter.knob(Role::ThreadsPerWorker).is_some() {
        return vec![true; workers.len()];
    }
    let mut looks: Vec<WorkerSample> =
        workers.iter().map(|m| WorkerSample { pid: m.pid, ..WorkerSample::default() }).collect();
    if let Some(page) = adapter.status().and_then(|status| status.read(true, STATUS_TIMEOUT).ok()) {
        page.tell(&mut looks);
    }
    let service = |(m, look): (&ProcessMemory, &WorkerSample)| WorkerHistory {
        private: m.private,
        requests: look.requests,
        untouched: process::is_untouched(m.pid),
    };
    pool::warm(&workers.iter().zip(&looks).map(service).collect::<Vec<_>>())
}

pub(crate) fn as_workers(group: &[ProcessMemory]) -> Vec<WorkerMemory> {
    group.iter().map(|m| WorkerMemory { rss: m.rss, pss: m.pss, private: m.private, shared: m.shared }).collect()
}

fn summary(workers: &[ProcessMemory]) -> SizeWorkers {
    let column = |f: fn(&ProcessMemory) -> u64| MeanMax::of(&workers.iter().map(f).collect::<Vec<_>>());
    SizeWorkers {
        cold: 0,
        count: workers.len() as u64,
        rss_bytes: column(|m| m.rss),
        pss_bytes: column(|m| m.pss),
        private_bytes: column(|m| m.private),
        shared_bytes: column(|m| m.shared),
    }
}

/// Returns the memory that the group may use, and the source of the number: the user's, otherwise what the machine or
/// the tightest control group leaves to the group.
fn budget(given: Option<u64>, real: u64, master: i32, anonymous: u64) -> Result<(u64, String), LabError> {
    if let Some(bytes) = given {
        return Ok((bytes, "--memory".into()));
    }
    let host = HostMemory::now().ok_or_else(|| {
        LabError::Other("the machine's memory cannot be read from /proc/meminfo; give it: --memory 400M".into())
    })?;
    let reserve = (host.total as f64 * PAGE_CACHE_SHARE) as u64;
    let mut bytes = (host.available + real).saturating_sub(reserve);
    let mut from = format!(
        "{} available + {} that the server has now − {} kept for the page cache",
        show_bytes(host.available),
        show_bytes(real),
        show_bytes(reserve)
    );
    for group in lastdrop_probe::cgroup::groups(master) {
        let (_, limit, inside) = group.read().memory();
        let Some(limit) = limit else { continue };
        // The kernel can reclaim the group's page cache, but not the anonymous memory of other processes in it.
        let others = inside.unwrap_or(0).saturating_sub(anonymous);
        let reserve = (limit as f64 * PAGE_CACHE_SHARE) as u64;
        let left = limit.saturating_sub(others + reserve);
        if left < bytes {
            bytes = left;
            from = format!(
                "limit {} of control group {} − {} of others − {} kept for the page cache",
                show_bytes(limit),
                group.path,
                show_bytes(others),
                show_bytes(reserve)
            );
        }
    }
    Ok((bytes, from))
}

fn threads_per_worker(adapter: &dyn Adapter, effective: &Settings) -> u64 {
    if adapter.knob(Role::ThreadsPerWorker).is_none() {
        return 1;
    }
    adapter.value(Role::ThreadsPerWorker, effective).and_then(|s| s.count()).unwrap_or(1).max(1) as u64
}

/// Returns the settings for a pool of `size`, with the spare workers of a profile if the server has such settings.
fn suggest(adapter: &dyn Adapter, effective: &Settings, profile: Profile, size: u64) -> Settings {
    let size = size.min(adapter.knob(Role::PoolSize).map_or(size, Knob::most));
    let mut settings = adapter.pool_settings(size, effective);
    settings.extend(adapter.spare_settings(pool::spares(profile, size), effective));
    settings
}

/// Returns the formulas with their numbers.
fn formulas(
    budget: u64,
    group: &[WorkerMemory],
    shared_once: u64,
    fits: &pool::PoolEstimates,
) -> BTreeMap<String, String> {
    let b = show_bytes;
    let n = group.len() as u64;
    let mean = |f: fn(&WorkerMemory) -> u64| group.iter().map(f).sum::<u64>() / n.max(1);
    let max = |f: fn(&WorkerMemory) -> u64| group.iter().map(f).max().unwrap_or(0);
    let (largest, shared) = (max(|w| w.rss), mean(|w| w.shared));
    BTreeMap::from([
        ("no_sharing".into(), format!("{} / {} = {}", b(budget), b(largest), fits.no_sharing)),
        (
            "classic_sharing".into(),
            format!("({} − {}) / ({} − {}) = {}", b(budget), b(shared), b(largest), b(shared), fits.classic_sharing),
        ),
        (
            "independent".into(),
            format!(
                "{} shared once + n × {} private each, with room for their spread: n = {}",
                b(shared_once),
                b(mean(|w| w.private)),
                fits.independent
            ),
        ),
        (
            "worst_case".into(),
            format!(
                "{} shared once + n × {} private, the largest: n = {}",
                b(shared_once),
                b(max(|w| w.private)),
                fits.worst_case
            ),
        ),
    ])
}
