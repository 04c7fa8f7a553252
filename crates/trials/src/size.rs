//! How much memory a server's workers really use, and how many fit. Looks, changes nothing.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_analyze::pool::{self, Profile, Worker};
use lastdrop_model::documents::{MeanMax, SIZE_SCHEMA, SizeDocument, SizeFits, SizeWorkers};
use lastdrop_model::units::show_bytes;
use lastdrop_model::{Knob, Role, Settings};
use lastdrop_probe::host::HostMemory;
use lastdrop_probe::memory::{self, ProcessMemory};
use lastdrop_server::{Adapter, Server, ServerRef, discover};

use lastdrop_lab::LabError;

/// Of the memory that the machine has, this much stays for the page cache when no budget is given: files that are read
/// from disk again and again cost more than a worker gains.
const PAGE_CACHE_SHARE: f64 = 0.10;
/// A server that has no worker for longer has none.
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

/// Real memory, Σ PSS, of a server's master and workers.
///
/// # Errors
/// When its processes may not be read.
pub fn real_memory(master: i32, workers: &[i32]) -> Result<u64, LabError> {
    let parent = memory::of_process(master)?.pss;
    Ok(parent + memory::of_group(workers)?.iter().map(|m| m.pss).sum::<u64>())
}

/// Memory of the workers of a server. A small pool that recycles has none for a moment: Apache makes new ones once a second, and those
/// that were just found may have left before they are read.
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

/// Sizes a server of a stack, here or elsewhere.
///
/// # Errors
/// When its processes may not be read.
pub(crate) fn size_of_server(server: Server<'_>, memory: Option<u64>) -> Result<SizeDocument, LabError> {
    match (server.session(), server.elsewhere()) {
        (Some(session), _) => size_of(session.adapter(), &session.original().settings, memory, Vec::new()),
        (None, Some(there)) => Ok(there.size(memory)?),
        (None, None) => Err(LabError::Other("the server has no processes to size".into())),
    }
}

/// Sizes a server that is found already.
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
    let group = as_workers(&workers);
    let real = parent.pss + pool::real_memory(&group);
    // What is not private to a worker is there once: shared pages, and the parent's own.
    let shared_once = real.saturating_sub(group.iter().map(|w| w.private).sum());
    let anonymous = parent.pss_anonymous + workers.iter().map(|m| m.pss_anonymous).sum::<u64>();
    let (budget, budget_from) = budget(memory, real, facts.birth.pid, anonymous)?;
    let fits = pool::fits(budget, &group, shared_once).ok_or_else(|| LabError::Other("no workers to size".into()))?;
    let threads = threads_per_worker(adapter, effective);
    let count = fits.independent.max(1);
    let mut profiles = BTreeMap::new();
    for profile in Profile::ALL {
        profiles.insert(profile.name().to_string(), suggest(adapter, effective, profile, count * threads));
    }
    if group.iter().map(|w| w.rss).max() > group.iter().map(|w| w.rss).min().map(|m| m * 2) {
        notes.push("workers differ much in size: some have not served yet; put load on and look again".into());
    }
    if fits.independent == 0 {
        notes.push(format!("not even one worker fits into {}", show_bytes(budget)));
    }
    if workers.iter().map(|w| w.swap).sum::<u64>() > 0 {
        notes.push("some of the workers' memory is swapped out; it is not in these numbers".into());
    }
    Ok(SizeDocument {
        schema: SIZE_SCHEMA.into(),
        server: facts.name.clone(),
        version: facts.version.clone(),
        model: facts.model.clone(),
        threads_per_worker: threads,
        workers: summary(&workers),
        real_memory_bytes: real,
        classic_real_memory_bytes: pool::classic_real_memory(&group),
        sum_rss_bytes: group.iter().map(|w| w.rss).sum(),
        shared_once_bytes: shared_once,
        budget_bytes: budget,
        budget_from,
        fits: SizeFits {
            no_sharing: fits.no_sharing,
            classic_sharing: fits.classic_sharing,
            independent: fits.independent,
            worst_case: fits.worst_case,
        },
        formulas: formulas(budget, &group, shared_once, &fits),
        suggested: profiles.get(Profile::Dedicated.name()).cloned().unwrap_or_default(),
        profiles,
        effective: effective.clone(),
        fit: None,
        bounds: Vec::new(),
        variants: Vec::new(),
        notes,
    })
}

/// Puts other answers into a document: those of a fitted model.
pub(crate) fn answer(document: &mut SizeDocument, adapter: &dyn Adapter, independent: u64, worst_case: u64) {
    (document.fits.independent, document.fits.worst_case) = (independent, worst_case);
    let count = independent.max(1) * document.threads_per_worker;
    for profile in Profile::ALL {
        let settings = suggest(adapter, &document.effective, profile, count);
        document.profiles.insert(profile.name().to_string(), settings);
    }
    document.suggested = document.profiles.get(Profile::Dedicated.name()).cloned().unwrap_or_default();
}

pub(crate) fn as_workers(group: &[ProcessMemory]) -> Vec<Worker> {
    group.iter().map(|m| Worker { rss: m.rss, pss: m.pss, private: m.private, shared: m.shared }).collect()
}

fn summary(workers: &[ProcessMemory]) -> SizeWorkers {
    let column = |f: fn(&ProcessMemory) -> u64| MeanMax::of(&workers.iter().map(f).collect::<Vec<_>>());
    SizeWorkers {
        count: workers.len() as u64,
        rss_bytes: column(|m| m.rss),
        pss_bytes: column(|m| m.pss),
        private_bytes: column(|m| m.private),
        shared_bytes: column(|m| m.shared),
    }
}

/// The memory that the group may use, and where the number comes from: what the user said, else what the machine or the
/// tightest control group leaves it.
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
        // Its page cache can be taken back; what other processes in it have for themselves cannot.
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

/// Settings for a pool of `size` with the spares of a profile, where the server has spares.
fn suggest(adapter: &dyn Adapter, effective: &Settings, profile: Profile, size: u64) -> Settings {
    let size = size.min(adapter.knob(Role::PoolSize).map_or(size, Knob::most));
    let mut settings = adapter.pool_settings(size, effective);
    settings.extend(adapter.spare_settings(pool::spares(profile, size), effective));
    settings
}

/// The formulas with the numbers put in.
fn formulas(budget: u64, group: &[Worker], shared_once: u64, fits: &pool::Fits) -> BTreeMap<String, String> {
    let b = show_bytes;
    let n = group.len() as u64;
    let mean = |f: fn(&Worker) -> u64| group.iter().map(f).sum::<u64>() / n.max(1);
    let max = |f: fn(&Worker) -> u64| group.iter().map(f).max().unwrap_or(0);
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
