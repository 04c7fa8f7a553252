//! Profiles a server's CPU time under load: our own, or that of its visitors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_analyze::stacks::{self, Stacks};
use lastdrop_load::{LoadError, PreparedPlan, RunClock};
use lastdrop_model::documents::{PROFILE_SCHEMA, ProfileDocument, ProfileShare};
use lastdrop_model::{CaptureLevel, Event, Plan, Sample};
use lastdrop_probe::group::ProcessGroup;
use lastdrop_probe::perf::{self, Perf};
use lastdrop_probe::process;
use lastdrop_server::{FoundServer, ServerRef, find};

use crate::lab::LabError;

/// Time between two samples of /proc, if perf cannot be used.
const PAUSE: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_millis(50);

/// Most stacks in the document; more would not make a page clearer.
pub(super) const MOST_STACKS: usize = 600;

/// A profile with the stacks of its flame graph, outermost caller first; no stacks without perf.
#[derive(Debug)]
pub struct Profile {
    pub document: ProfileDocument,
    pub stacks: Vec<(Vec<String>, u64)>,
}

/// Profiles a server for `time`, under `load` if given.
///
/// # Errors
/// When the server is not found or may not be inspected.
pub fn profile(
    server: &ServerRef,
    load: Option<&Plan>,
    time: Duration,
    stop: &AtomicBool,
) -> Result<Profile, LabError> {
    let found = find(server)?;
    let file = tempfile::NamedTempFile::new().map_err(|e| LabError::Other(format!("no temporary file: {e}")))?;
    let mut notes = Vec::new();
    let workers = || process::child_pids(found.master);
    let mut recording = match Perf::start(&[found.master], &workers, file.path()) {
        Ok(perf) => Some(perf),
        Err(e) => {
            notes.push(format!("{e}. /proc was looked at instead, which knows no functions of programs"));
            None
        }
    };
    let served_before = served(&found);
    let mut group = ProcessGroup::new(found.master, false, found.helpers);
    let start = Instant::now();
    let cpu_before = cpu_s(&mut group);
    let over = Arc::new(AtomicBool::new(false));
    let loading = load.map(|plan| {
        let (plan, over) = (plan.clone(), Arc::clone(&over));
        thread::spawn(move || answered_of(&plan, &over))
    });
    let on = || start.elapsed() < time && !stop.load(Ordering::Relaxed);
    let seen = if let Some(perf) = &mut recording {
        while on() {
            thread::sleep(NAP);
            perf.go_on(&[found.master], &workers)?;
        }
        None
    } else {
        Some(perf::sample_proc(workers, PAUSE, on))
    };
    let seconds = start.elapsed().as_secs_f64();
    let cpu_s = (cpu_s(&mut group) - cpu_before).max(0.0);
    if let Some(gaps) = recording.as_ref().map(Perf::gaps).filter(|gaps| *gaps > 0) {
        notes.push(format!(
            "perf ended by itself {gaps} times and was started again: what happened meanwhile is missing"
        ));
    }
    let script = recording.map(Perf::finish).transpose();
    over.store(true, Ordering::Relaxed);
    let requests = match loading.map(|l| l.join()) {
        Some(Ok(answered)) => Some(answered?),
        Some(Err(_)) => None,
        None => served(&found).zip(served_before).map(|(now, then)| now.saturating_sub(then)),
    };
    let requests = requests.filter(|n| *n > 0);
    if load.is_some() && requests.is_none() {
        return Err(LabError::Other("nothing was answered while the server was profiled; is the URL right?".into()));
    }
    let script = script?;
    let us_per_request = requests.map(|n| (cpu_s * 1e6 / n as f64 * 10.0).round() / 10.0);
    let mut document = ProfileDocument {
        schema: PROFILE_SCHEMA.into(),
        server: found.name,
        how: script.as_ref().map_or("/proc".into(), |_| format!("perf ({})", perf::sampled_event(file.path()))),
        seconds: (seconds * 1e3).round() / 1e3,
        cpu_s: (cpu_s * 1e3).round() / 1e3,
        requests,
        us_per_request,
        notes,
        ..ProfileDocument::default()
    };
    let stacks: Stacks = stacks::read_perf_script(&script.unwrap_or_default());
    document.samples = stacks.values().sum();
    document.functions = stacks::functions(&stacks, us_per_request);
    document.libraries = stacks::libraries(&stacks, us_per_request);
    if let Some(seen) = seen {
        document.samples = seen.values().sum();
        let all = document.samples.max(1) as f64;
        document.libraries = seen
            .into_iter()
            .map(|(name, n)| ProfileShare { name, share: (n as f64 / all * 1e4).round() / 1e4, us_per_request: None })
            .collect();
        document.libraries.sort_by(|a, b| b.share.total_cmp(&a.share));
    } else if document.samples == 0 {
        document.notes.push(if cpu_s < 0.01 {
            "no sample was taken: the server used no CPU; put load on it (--url)".into()
        } else {
            format!("perf took no sample of {cpu_s:.2} s of processor time: profile for longer (-d)")
        });
    }
    let mut stacks: Vec<(Vec<String>, u64)> =
        stacks.into_iter().map(|(stack, n)| (stack.into_iter().map(|f| f.function).collect(), n)).collect();
    stacks.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    document.stacks = stacks.iter().take(MOST_STACKS).cloned().collect();
    Ok(Profile { document, stacks })
}

/// Carries out a plan and returns how many requests were answered.
pub(super) fn answered_of(plan: &Plan, stop: &AtomicBool) -> Result<u64, LoadError> {
    let mut answered = 0;
    let prepared = PreparedPlan::new(plan)?;
    let (clock, halt) = (RunClock::start(), AtomicBool::new(false));
    lastdrop_load::run(plan, &prepared, clock, stop, &halt, CaptureLevel::Nothing, |event| {
        if let Event::Second { slice } = event {
            answered += slice.counts.answered;
        }
    })?;
    Ok(answered)
}

pub(super) fn cpu_s(group: &mut ProcessGroup) -> f64 {
    group.look(false, &mut Sample::default());
    group.cpu_s()
}

/// Returns the requests that the server has served, from its status page.
fn served(found: &FoundServer) -> Option<u64> {
    found.status.as_ref()?.read(false, Duration::from_secs(2)).ok()?.total_requests
}
