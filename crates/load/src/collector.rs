//! Starts the threads of a run and puts their seconds together.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier};
use std::thread;

use lastdrop_http::build_request;
use lastdrop_model::{KeepAlive, Load, Micros, Phase, Plan, Slice};

use crate::LoadError;
use crate::arrivals::Arrivals;
use crate::clock::RunClock;
use crate::event_loop::{EventLoop, Job, PhaseEnd, Source, Wiring};
use crate::resolve::resolve;
use crate::sys;

/// What a thread says to the collector.
#[derive(Debug)]
pub enum Message {
    Slice { thread: usize, slice: Box<Slice> },
    PhaseEnd { thread: usize, phase: u16, end: PhaseEnd },
    ThreadEnd { cpu_us: u64, wall_us: u64 },
    Failed(io::Error),
}

/// What the collector says to whoever runs it.
#[derive(Debug)]
pub enum Event<'a> {
    /// A second of all threads together; seconds of a phase come in order, each once.
    Second(&'a Slice),
    /// A phase is over: how long until nothing came due, and the most connections open at once.
    PhaseEnd { phase: usize, duration_us: Micros, peak: u64 },
}

/// What is known once all threads have ended.
#[derive(Debug, Clone, Default)]
pub struct Finished {
    /// CPU time of each load thread and the time it lived, microseconds.
    pub threads: Vec<(u64, u64)>,
    /// Failures of connect() by errno.
    pub connect_errors: BTreeMap<i32, u64>,
    /// Nothing could be connected at all, and the run was given up.
    pub unreachable: bool,
    /// The run was told to stop.
    pub stopped: bool,
}

/// Carries a plan out and reports each second as it passes. Blocks until the run is over; `stop` ends it early, with
/// everything accounted for.
///
/// # Errors
/// When no load can be put on at all: the host does not resolve, or the system gives no epoll or thread.
pub fn run(
    plan: &Plan,
    clock: RunClock,
    stop: &AtomicBool,
    mut report: impl FnMut(Event<'_>),
) -> Result<Finished, LoadError> {
    let address = resolve(&plan.url)?;
    sys::raise_descriptor_limit();
    let request: Arc<[u8]> = build_request(
        &plan.method,
        &plan.url.path,
        &plan.url.authority(),
        plan.keepalive == KeepAlive::Off,
        &plan.headers,
        plan.body.as_deref().map(str::as_bytes),
    )
    .into();
    let threads = plan.threads.max(1) as usize;
    let barrier = Barrier::new(threads);
    let halt = AtomicBool::new(false);
    let (out, messages) = mpsc::channel();
    thread::scope(|scope| {
        let mut returns = Vec::new();
        for thread in 0..threads {
            let (give_back, recycled) = mpsc::channel();
            returns.push(give_back);
            let (out, barrier, halt, request) = (out.clone(), &barrier, &halt, Arc::clone(&request));
            thread::Builder::new()
                .name(format!("load-{thread}"))
                .spawn_scoped(scope, move || {
                    let wiring = Wiring { thread, clock, stop, halt, out: &out, recycled: &recycled };
                    run_thread(plan, address, &request, threads, &wiring, barrier);
                })
                .map_err(|source| LoadError::System { what: "cannot start a load thread", source })?;
        }
        drop(out);
        let mut finished = collect(plan, threads, &messages, &returns, &halt, &mut report)?;
        finished.stopped = stop.load(Ordering::Relaxed);
        Ok(finished)
    })
}

fn run_thread(
    plan: &Plan,
    address: std::net::SocketAddr,
    request: &Arc<[u8]>,
    threads: usize,
    wiring: &Wiring<'_>,
    barrier: &Barrier,
) {
    sys::precise_timers();
    let (start, cpu) = (wiring.clock.now_us(), sys::thread_cpu_us());
    for (index, phase) in plan.phases.iter().enumerate() {
        barrier.wait();
        // The barrier needs every thread, also one that has nothing more to do.
        if wiring.told_to_stop() {
            continue;
        }
        let job = Job {
            phase: index as u16,
            address,
            request: Arc::clone(request),
            head_request: plan.method == "HEAD",
            requests_per_connection: match plan.keepalive {
                KeepAlive::On => u32::MAX,
                KeepAlive::Off => 1,
                KeepAlive::Requests(n) => n,
            },
            timeout_us: plan.timeout.as_micros() as Micros,
            drain_us: plan.drain.as_micros() as Micros,
            source: source(phase, plan.seed.wrapping_add(index as u64), wiring.thread, threads),
            requests: phase.requests.map(|n| share(n, wiring.thread, threads)),
            duration_us: phase.duration.map(|d| d.as_micros() as Micros),
        };
        let idle = match job.source {
            Source::Closed { users } => users == 0,
            Source::Open { .. } => false,
        } || job.requests == Some(0);
        let end = if idle { Ok(PhaseEnd::default()) } else { EventLoop::new(job, wiring).and_then(EventLoop::run) };
        let message = match end {
            Ok(end) => Message::PhaseEnd { thread: wiring.thread, phase: index as u16, end },
            Err(e) => Message::Failed(e),
        };
        let _ = wiring.out.send(message);
    }
    let _ = wiring
        .out
        .send(Message::ThreadEnd { cpu_us: sys::thread_cpu_us() - cpu, wall_us: wiring.clock.now_us() - start });
}

fn source(phase: &Phase, seed: u64, thread: usize, threads: usize) -> Source {
    match phase.load {
        Load::Closed { users } => Source::Closed { users: share(u64::from(users), thread, threads) as u32 },
        Load::Open { rate_rps, arrivals, connections } => Source::Open {
            arrivals: Arrivals::new(arrivals, rate_rps, seed, thread as u32, threads as u32),
            connections: (share(u64::from(connections), thread, threads) as u32).max(1),
        },
    }
}

/// The part of `total` that thread `thread` of `threads` has; the parts add up to the total.
fn share(total: u64, thread: usize, threads: usize) -> u64 {
    let (thread, threads) = (thread as u64, threads as u64);
    total / threads + u64::from(thread < total % threads)
}

/// Puts the seconds of the threads together: a second is complete when every thread is past it.
fn collect(
    plan: &Plan,
    threads: usize,
    messages: &Receiver<Message>,
    returns: &[Sender<Box<Slice>>],
    halt: &AtomicBool,
    report: &mut impl FnMut(Event<'_>),
) -> Result<Finished, LoadError> {
    let mut finished = Finished::default();
    let mut failure = None;
    let mut merged: BTreeMap<(u16, u32), Box<Slice>> = BTreeMap::new();
    let mut reached = vec![(0u16, 0u32); threads];
    let mut ends: Vec<Vec<PhaseEnd>> = vec![Vec::new(); plan.phases.len()];
    let mut ended_threads = 0;
    while ended_threads < threads {
        let Ok(message) = messages.recv() else {
            failure.get_or_insert(LoadError::Thread("it panicked; please report this".into()));
            break;
        };
        match message {
            Message::Slice { thread, mut slice } => {
                let key = (slice.phase, slice.second);
                reached[thread] = (key.0, key.1 + 1);
                if threads == 1 {
                    report(Event::Second(&slice));
                } else if let Some(sum) = merged.get_mut(&key) {
                    sum.add(&slice);
                } else {
                    merged.insert(key, Box::new((*slice).clone()));
                }
                slice.reset(0, 0);
                let _ = returns[thread].send(slice);
            }
            Message::PhaseEnd { thread, phase, end } => {
                reached[thread] = (phase + 1, 0);
                for (errno, n) in &end.connect_errors {
                    *finished.connect_errors.entry(*errno).or_insert(0) += n;
                }
                if end.unreachable {
                    finished.unreachable = true;
                    // The phases that follow would find nothing either.
                    halt.store(true, Ordering::Relaxed);
                }
                ends[phase as usize].push(end);
            }
            Message::ThreadEnd { cpu_us, wall_us } => {
                ended_threads += 1;
                finished.threads.push((cpu_us, wall_us));
            }
            Message::Failed(source) => {
                halt.store(true, Ordering::Relaxed);
                failure = Some(LoadError::System { what: "the event loop failed", source });
            }
        }
        let complete = reached.iter().copied().min().unwrap_or_default();
        while let Some(entry) = merged.first_entry() {
            if *entry.key() >= complete {
                break;
            }
            report(Event::Second(&entry.remove()));
        }
        for (phase, ends) in ends.iter_mut().enumerate() {
            if ends.len() == threads {
                report(Event::PhaseEnd {
                    phase,
                    duration_us: ends.iter().map(|e| e.duration_us).max().unwrap_or(0),
                    peak: ends.iter().map(|e| e.peak).sum(),
                });
                ends.clear();
            }
        }
    }
    for slice in merged.values() {
        report(Event::Second(slice));
    }
    match failure {
        Some(e) => Err(e),
        None => Ok(finished),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        for total in [0, 1, 7, 1000, 1001] {
            for threads in 1..9 {
                assert_eq!((0..threads).map(|t| share(total, t, threads)).sum::<u64>(), total);
            }
        }
    }
}
