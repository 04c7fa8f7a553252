//! Starts the threads of a run and puts their seconds together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{Exchange, Micros, Plan, Slice, Wish};

use crate::LoadError;
use crate::clock::RunClock;
use crate::endpoint::{Address, Directory};
use crate::event_loop::{EventLoop, Job, Outcome, Wiring};
use crate::prepare::Prepared;
use crate::sys;

/// Names are resolved again this often, unless the plan says otherwise.
const DNS_REFRESH: Duration = Duration::from_secs(30);

/// Files that are open besides connections.
const SPARE_DESCRIPTORS: u64 = 500;

/// What a thread says to the collector.
#[derive(Debug)]
pub enum Message {
    Slice { thread: usize, slice: Box<Slice> },
    PhaseEnd { thread: usize, phase: u16, duration_us: Micros, peak: u64 },
    Exchanges(Vec<Exchange>),
    ThreadEnd { outcome: Outcome, cpu_us: u64, wall_us: u64 },
    Failed(LoadError),
}

/// What the collector says to whoever runs it.
#[derive(Debug)]
pub enum Event<'a> {
    /// A second of all threads together; seconds of a phase come in order, each once.
    Second(&'a Slice),
    /// A phase is over: how long until nothing came due, and the most connections open at once.
    PhaseEnd { phase: usize, duration_us: Micros, peak: u64 },
    /// Requests that are over, where they were asked for.
    Exchanges(&'a [Exchange]),
}

/// What the first answer of a run says of its server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstAnswer {
    /// The `Server` field.
    pub server: Option<String>,
    pub tls: Option<TlsFacts>,
}

/// What TLS agreed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFacts {
    /// `TLSv1_3`
    pub version: String,
    /// `TLS13_AES_256_GCM_SHA384`
    pub cipher: String,
    /// The group of the key exchange: `X25519`.
    pub group: String,
    /// The server's own certificate, DER.
    pub certificate: Vec<u8>,
}

/// What is known once all threads have ended.
#[derive(Debug, Clone, Default)]
pub struct Finished {
    /// CPU time of each load thread and the time it lived, microseconds.
    pub threads: Vec<(u64, u64)>,
    /// Why connections failed, and what was wrong with answers.
    pub connect_errors: BTreeMap<String, u64>,
    pub protocol_errors: BTreeMap<String, u64>,
    /// Nothing could be connected at all, and the run was given up.
    pub unreachable: bool,
    /// The run was told to stop.
    pub stopped: bool,
    /// Where connections went first.
    pub peers: Vec<SocketAddr>,
    /// Files that this process may have open.
    pub descriptor_limit: u64,
    /// Of the thread that had one first, where requests were asked for.
    pub first_answer: Option<FirstAnswer>,
}

/// Carries a plan out and reports each second as it passes. Blocks until the run is over; `stop` ends it early, with
/// everything accounted for.
///
/// # Errors
/// When no load can be put on at all: the plan contradicts itself, a file cannot be read, the host does not resolve, or
/// the system gives no epoll or thread.
pub fn run(
    plan: &Plan,
    clock: RunClock,
    stop: &AtomicBool,
    wish: Wish,
    mut report: impl FnMut(Event<'_>),
) -> Result<Finished, LoadError> {
    let prepared = Prepared::new(plan)?;
    // A thread more than there are users or connections would have nothing to do.
    let most_users = plan.phases.iter().map(|p| p.load.most_concurrent()).max().unwrap_or(1);
    let threads = plan.threads.clamp(1, most_users.max(1)) as usize;
    let each = plan.page.as_ref().map_or(1, |p| u64::from(p.connections_per_host));
    sys::raise_descriptor_limit(u64::from(most_users) * each + SPARE_DESCRIPTORS);
    let tls = prepared.tls_configs(plan, threads)?;
    let (barrier, start) = (Barrier::new(threads), OnceLock::new());
    let (halt, directory) = (AtomicBool::new(false), Directory::default());
    let (out, messages) = mpsc::channel();
    thread::scope(|scope| {
        let mut returns = Vec::new();
        for (thread, tls) in tls.into_iter().enumerate() {
            let (give_back, recycled) = mpsc::channel();
            returns.push(give_back);
            let (out, barrier, halt, start) = (out.clone(), &barrier, &halt, &start);
            let (prepared, directory) = (&prepared, &directory);
            thread::Builder::new()
                .name(format!("load-{thread}"))
                .spawn_scoped(scope, move || {
                    sys::precise_timers();
                    let wiring = Wiring { thread, clock, stop, halt, out: &out, recycled: &recycled };
                    barrier.wait();
                    // The schedule of all threads begins at the same moment.
                    let start = *start.get_or_init(|| clock.now_us());
                    let cpu = sys::thread_cpu_us();
                    let job = Job { plan, prepared, directory, tls, thread, threads, start, wish };
                    let end = EventLoop::new(job, &wiring).and_then(EventLoop::run);
                    let _ = out.send(match end {
                        Ok(outcome) => Message::ThreadEnd {
                            outcome,
                            cpu_us: sys::thread_cpu_us() - cpu,
                            wall_us: clock.now_us() - start,
                        },
                        Err(source) => Message::Failed(LoadError::System { what: "the event loop failed", source }),
                    });
                })
                .map_err(|source| {
                    // Those that were started wait for all.
                    halt.store(true, Ordering::Relaxed);
                    LoadError::System { what: "cannot start a load thread", source }
                })?;
        }
        drop(out);
        let collector =
            Collector { plan, prepared: &prepared, directory: &directory, messages: &messages, returns: &returns };
        let mut finished = collector.collect(&halt, &mut report)?;
        finished.stopped = stop.load(Ordering::Relaxed);
        finished.descriptor_limit = sys::descriptor_limit();
        finished.peers = prepared
            .endpoints
            .iter()
            .flat_map(|e| &e.addresses)
            .filter_map(|a| match a {
                Address::Tcp(a) => Some(*a),
                Address::Unix(_) => None,
            })
            .collect();
        Ok(finished)
    })
}

/// The part of `total` that thread `thread` of `threads` has; the parts add up to the total.
pub(crate) fn share(total: u64, thread: usize, threads: usize) -> u64 {
    let (thread, threads) = (thread as u64, threads as u64);
    total / threads + u64::from(thread < total % threads)
}

/// Puts the seconds of the threads together: a second is complete when every thread is past it.
struct Collector<'a> {
    plan: &'a Plan,
    prepared: &'a Prepared,
    directory: &'a Directory,
    messages: &'a Receiver<Message>,
    returns: &'a [Sender<Box<Slice>>],
}

/// What is known of a phase so far.
#[derive(Debug, Clone)]
struct PhaseState {
    /// Seconds that each thread has handed over; `u32::MAX` once it is done with the phase.
    reached: Vec<u32>,
    merged: BTreeMap<u32, Box<Slice>>,
    duration_us: Micros,
    peak: u64,
}

impl Collector<'_> {
    fn collect(&self, halt: &AtomicBool, report: &mut impl FnMut(Event<'_>)) -> Result<Finished, LoadError> {
        let threads = self.returns.len();
        let mut finished = Finished::default();
        let mut failure = None;
        let fresh = PhaseState { reached: vec![0; threads], merged: BTreeMap::new(), duration_us: 0, peak: 0 };
        let mut phases = vec![fresh; self.plan.phases.len()];
        let mut ended = 0;
        let refresh = self.plan.network.dns_refresh.unwrap_or(DNS_REFRESH).max(Duration::from_millis(100));
        let named = self.prepared.endpoints.iter().any(|e| e.name.is_some());
        let mut next_refresh = Instant::now() + refresh;
        while ended < threads {
            let message = if named {
                match self.messages.recv_timeout(next_refresh.saturating_duration_since(Instant::now())) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.directory.refresh(&self.prepared.endpoints, self.plan.network.family);
                        next_refresh = Instant::now() + refresh;
                        continue;
                    }
                    other => other.ok(),
                }
            } else {
                self.messages.recv().ok()
            };
            let Some(message) = message else {
                failure.get_or_insert(LoadError::Thread("it panicked; please report this".into()));
                break;
            };
            match message {
                Message::Slice { thread, mut slice } => {
                    let phase = &mut phases[usize::from(slice.phase)];
                    phase.reached[thread] = slice.second + 1;
                    if threads == 1 {
                        report(Event::Second(&slice));
                    } else if let Some(sum) = phase.merged.get_mut(&slice.second) {
                        sum.add(&slice);
                    } else {
                        phase.merged.insert(slice.second, Box::new((*slice).clone()));
                    }
                    slice.reset(0, 0);
                    let _ = self.returns[thread].send(slice);
                }
                Message::PhaseEnd { thread, phase: index, duration_us, peak } => {
                    let phase = &mut phases[usize::from(index)];
                    phase.reached[thread] = u32::MAX;
                    phase.duration_us = phase.duration_us.max(duration_us);
                    phase.peak += peak;
                }
                Message::Exchanges(some) => report(Event::Exchanges(&some)),
                Message::ThreadEnd { outcome, cpu_us, wall_us } => {
                    ended += 1;
                    finished.threads.push((cpu_us, wall_us));
                    for (sum, part) in [
                        (&mut finished.connect_errors, &outcome.connect_errors),
                        (&mut finished.protocol_errors, &outcome.protocol_errors),
                    ] {
                        for (what, n) in part {
                            *sum.entry(what.clone()).or_insert(0) += n;
                        }
                    }
                    if finished.first_answer.is_none() {
                        finished.first_answer = outcome.first_answer;
                    }
                    if outcome.unreachable {
                        finished.unreachable = true;
                        // The other threads find nothing either.
                        halt.store(true, Ordering::Relaxed);
                    }
                }
                Message::Failed(e) => {
                    ended += 1;
                    halt.store(true, Ordering::Relaxed);
                    failure.get_or_insert(e);
                }
            }
            for (index, phase) in phases.iter_mut().enumerate() {
                let complete = phase.reached.iter().copied().min().unwrap_or(0);
                while let Some(entry) = phase.merged.first_entry().filter(|e| *e.key() < complete) {
                    report(Event::Second(&entry.remove()));
                }
                if complete == u32::MAX {
                    report(Event::PhaseEnd { phase: index, duration_us: phase.duration_us, peak: phase.peak });
                    // Reported once.
                    phase.reached.iter_mut().for_each(|r| *r = 0);
                    phase.peak = 0;
                }
            }
        }
        for slice in phases.iter().flat_map(|p| p.merged.values()) {
            report(Event::Second(slice));
        }
        match failure {
            Some(e) => Err(e),
            None => Ok(finished),
        }
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
