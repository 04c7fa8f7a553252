//! One run: the shards of a plan take turns by their clocks, and the results are collected.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use lastdrop_load::share::Share;
use lastdrop_load::{Collector, Directory, EventLoop, Job, Message, PreparedPlan, ShardLink, threads};
use lastdrop_model::{Event, Exchange, Micros, Slice};

use crate::check;
use crate::faults::FaultModel;
use crate::kernel::{Kernel, SimulatedWorld};
use crate::plan::Scenario;
use crate::rng::Rng;
use crate::trace::Trace;

/// More turns than any run of a scenario needs.
const MOST_TURNS: u64 = 2_000_000;

/// The result of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Requests that came due.
    pub requests: u64,
    pub violations: Vec<String>,
    /// Equal for equal runs.
    pub number: u64,
    /// The trace in time order, if requested: time, shard, text.
    pub lines: Vec<(Micros, usize, String)>,
}

/// Everything that a run leaves for its check.
#[derive(Debug)]
pub struct RunRecord {
    pub kernels: Vec<Kernel>,
    pub exchanges: Vec<Exchange>,
    /// The sum of each phase, its length, and its number of connections.
    pub phases: Vec<Slice>,
    pub ended: Vec<Option<(Micros, u64)>>,
    pub unreachable: bool,
    pub stopped: bool,
}

/// Runs the scenario of a seed.
#[must_use]
pub fn run(seed: u64, is_read: bool) -> Report {
    let scene = Scenario::new(seed);
    let prepared = match PreparedPlan::new(&scene.plan) {
        Ok(prepared) => prepared,
        Err(e) => {
            return Report { violations: vec![format!("a plan that cannot be prepared: {e}")], ..Report::default() };
        }
    };
    let (left, mut violations) = match carry_out(&scene, &prepared, seed, is_read) {
        Ok(done) => done,
        Err(e) => return Report { violations: vec![e], ..Report::default() },
    };
    if violations.is_empty() {
        violations = check::check(&scene, &left);
    }
    let mut report =
        Report { requests: left.phases.iter().map(|p| p.counts.due).sum(), violations, ..Report::default() };
    for (shard, kernel) in left.kernels.into_iter().enumerate() {
        report.number = report.number.rotate_left(7) ^ kernel.trace.number();
        report.lines.extend(kernel.trace.lines.into_iter().flatten().map(|(at, line)| (at, shard, line)));
    }
    report.lines.sort_by_key(|(at, _, _)| *at);
    report
}

fn carry_out(
    scene: &Scenario,
    prepared: &PreparedPlan,
    seed: u64,
    is_read: bool,
) -> Result<(RunRecord, Vec<String>), String> {
    let Scenario { plan, .. } = scene;
    let threads = threads(plan, &Share::whole());
    let mut rng = Rng::new(!seed);
    let (stop, halt, directory) = (AtomicBool::new(false), AtomicBool::new(false), Directory::default());
    let (out, messages) = mpsc::channel();
    let (returns, recycled): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
    let wiring: Vec<ShardLink<'_>> = recycled
        .iter()
        .enumerate()
        .map(|(thread, recycled)| ShardLink { thread, stop: &stop, halt: &halt, out: &out, recycled })
        .collect();
    let tls = prepared.tls_configs(plan, threads).map_err(|e| e.to_string())?;
    let mut kernel = |thread| {
        let faults = FaultModel { thread, ..scene.faults.clone() };
        Rc::new(RefCell::new(Kernel::new(scene.start + 1, faults, rng.others(), Trace::new(is_read))))
    };
    let kernels: Vec<_> = (0..threads).map(&mut kernel).collect();
    let mut shards: Vec<_> = tls
        .into_iter()
        .enumerate()
        .map(|(thread, tls)| {
            let shard = Share::whole().of_thread(thread, threads);
            let (start, wish) = (scene.start, scene.wish);
            let job = Job { plan, prepared, directory: &directory, tls, thread, shard, start, wish };
            Some(EventLoop::new(job, &wiring[thread], SimulatedWorld(Rc::clone(&kernels[thread]))))
        })
        .collect();
    let mut violations = Vec::new();
    shards.iter_mut().flatten().for_each(EventLoop::begin_run);
    // The shard whose clock is behind takes the next turn.
    while let Some(at) = (0..threads).filter(|t| shards[*t].is_some()).min_by_key(|t| kernels[*t].borrow().now) {
        if scene.stop.is_some_and(|stop| kernels[at].borrow().now >= stop) {
            stop.store(true, Ordering::Relaxed);
        }
        let Some(shard) = &mut shards[at] else { break };
        let over = match shard.turn() {
            Ok(over) => over,
            Err(e) => {
                violations.push(e.to_string());
                break;
            }
        };
        if let Err(what) = shard.audit() {
            violations.push(what);
            break;
        }
        if !scene.faults.has_sockets() && kernels[at].borrow().turns > MOST_TURNS / 100 {
            // A shard that never has a descriptor goes on until it is stopped.
            stop.store(true, Ordering::Relaxed);
        }
        if kernels[at].borrow().turns > MOST_TURNS {
            violations.push("a run without an end".into());
            break;
        }
        if let Some(over) = over
            && let Some(shard) = shards[at].take()
        {
            let outcome = Box::new(shard.finish(over));
            let _ = out.send(Message::ThreadEnd { outcome, cpu_us: 0, wall_us: 0 });
        }
    }
    for shard in shards.into_iter().flatten() {
        let now = 0;
        let _ = out.send(Message::ThreadEnd { outcome: Box::new(shard.finish(now)), cpu_us: 0, wall_us: 0 });
    }
    drop(wiring);
    drop(out);
    let mut phases: Vec<Slice> = (0..plan.phases.len()).map(|i| Slice::new(i as u16, 0)).collect();
    let mut ended = vec![None; plan.phases.len()];
    let mut exchanges = Vec::new();
    let collector = Collector { plan, prepared, directory: &directory, messages: &messages, returns: &returns };
    let finished = collector
        .collect(&halt, &mut |event: &Event<'_>| match event {
            Event::Second { slice } => phases[usize::from(slice.phase)].add(slice),
            Event::PhaseEnd { phase, duration_us, peak } => {
                let twice = ended[*phase].replace((*duration_us, *peak)).is_some();
                violations.extend(twice.then(|| format!("phase {phase} ends twice")));
            }
            Event::Exchanges { exchanges: some } => exchanges.extend(some.iter().cloned()),
            _ => {}
        })
        .map_err(|e| e.to_string())?;
    let kernels: Vec<Kernel> = kernels.into_iter().filter_map(Rc::into_inner).map(RefCell::into_inner).collect();
    for kernel in &kernels {
        violations.extend(kernel.violations.iter().cloned());
    }
    let stopped = stop.load(Ordering::Relaxed);
    let left = RunRecord { kernels, exchanges, phases, ended, unreachable: finished.unreachable, stopped };
    Ok((left, violations))
}
