//! Starts the threads of a run and merges their seconds.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::run::Shortage;
use lastdrop_model::{CaptureLevel, Event, Micros, Plan, Slice};

use crate::clock::RunClock;
use crate::endpoint::{Address, Directory};
use crate::error::LoadError;
use crate::event_loop::EventLoop;
use crate::merge::{EventMerger, MergedEvent};
use crate::prepare::PreparedPlan;
use crate::protocol::closed_bound;
use crate::real::RealWorld;
use crate::share::Share;
use crate::sys;
use crate::wiring::{FirstAnswer, Job, Message, ShardLink};

/// How often names are resolved again, unless the plan says otherwise.
const DNS_REFRESH: Duration = Duration::from_secs(30);

/// How often a thread that waits for the start checks whether it is told to stop.
const LOOK_FOR_STOP: Duration = Duration::from_millis(20);

/// Descriptors needed besides connections.
const SPARE_DESCRIPTORS: u64 = 500;

/// What is known once all threads have ended.
#[derive(Debug, Clone, Default)]
pub struct LoadResult {
    /// CPU time and lifetime of each load thread, in microseconds.
    pub threads: Vec<(u64, u64)>,
    /// Why connections failed, protocol errors in answers, and parts of pages without a good answer.
    pub connect_errors: BTreeMap<String, u64>,
    pub protocol_errors: BTreeMap<String, u64>,
    pub page_errors: BTreeMap<String, u64>,
    /// Requests without expectations, and how many of their answers were checked for signs of failure.
    pub looked_at: BTreeMap<String, u64>,
    /// Those signs: why some answers look as if the server did not do the work.
    pub doubts: BTreeMap<String, u64>,
    pub shortage: Shortage,
    /// Weaknesses of a certificate that was accepted unverified; `None` if all were verified, or there was none.
    pub unverified: Option<Vec<String>>,
    /// No connection succeeded at all, and the run gave up.
    pub unreachable: bool,
    /// The run was told to stop.
    pub stopped: bool,
    /// The addresses that connections used first.
    pub peers: Vec<SocketAddr>,
    /// Files that this process may have open.
    pub descriptor_limit: u64,
    /// From the thread that had it first, if requests are handed over.
    pub first_answer: Option<FirstAnswer>,
}

fn second(slice: &Slice) -> Event<'_> {
    Event::Second { slice: Cow::Borrowed(slice) }
}

fn most_users(plan: &Plan) -> u32 {
    plan.phases.iter().map(|p| p.load.most_concurrent()).max().unwrap_or(1)
}

/// Number of threads for a share of a plan.
#[must_use]
pub fn threads(plan: &Plan, share: &Share) -> usize {
    // Without a connection of its own a thread could not serve its users.
    let connections = plan.phases.iter().filter_map(|p| closed_bound(plan, &p.load));
    let least_connections = connections.map(|n| share.count(n.into())).min().unwrap_or(u64::MAX);
    // More threads than users or connections would have nothing to do.
    let most_users = share.count(most_users(plan).into());
    u64::from(plan.threads).min(least_connections).clamp(1, most_users.max(1)) as usize
}

/// Runs a prepared plan and reports each second as it passes. Blocks until the run is over. `stop` (by the user) and
/// `halt` (by a caller who needs no more) end it early, with everything accounted for.
///
/// # Errors
/// The load cannot start: a certificate cannot be used, or the system cannot create an epoll instance or a thread.
pub fn run(
    plan: &Plan,
    prepared: &PreparedPlan,
    clock: RunClock,
    stop: &AtomicBool,
    halt: &AtomicBool,
    wish: CaptureLevel,
    mut report: impl FnMut(&Event<'_>),
) -> Result<LoadResult, LoadError> {
    let most_users = prepared.part.share.count(most_users(plan).into());
    let part = &prepared.part;
    let threads = if prepared.tape.is_some() { 1 } else { threads(plan, &part.share) };
    sys::raise_descriptor_limit(most_users * u64::from(prepared.connections_per_user) + SPARE_DESCRIPTORS);
    let tls = prepared.tls_configs(plan, threads)?;
    let line = StartBarrier::new(threads, part.start.map(|at| clock.at(at)));
    let directory = Directory::default();
    let (out, messages) = mpsc::channel();
    thread::scope(|scope| {
        let mut returns = Vec::new();
        for (thread, tls) in tls.into_iter().enumerate() {
            let (give_back, recycled) = mpsc::channel();
            returns.push(give_back);
            let (out, line) = (out.clone(), &line);
            let directory = &directory;
            thread::Builder::new()
                .name(format!("load-{thread}"))
                .spawn_scoped(scope, move || {
                    sys::precise_timers();
                    let Some(start) = line.wait(clock) else { return };
                    if let Some(begins) = prepared.begins.as_ref().filter(|_| thread == 0) {
                        // The receiver may be gone.
                        let _ = begins.send(clock.moment(start));
                    }
                    let end = caught(|| {
                        let wiring = ShardLink { thread, stop, halt, out: &out, recycled: &recycled };
                        if !wait_until(start, clock, &wiring) {
                            return Ok(Message::ThreadEnd { outcome: Box::default(), cpu_us: 0, wall_us: 0 });
                        }
                        let cpu = sys::thread_cpu_us();
                        let shard = part.share.of_thread(thread, threads);
                        let job = Job { plan, prepared, directory, tls, thread, shard, start, wish };
                        let outcome = RealWorld::new(clock, &plan.network, thread, threads)
                            .map(|world| world.within(part.allow.clone()))
                            .and_then(|world| EventLoop::new(job, &wiring, world).run())
                            .map_err(|source| LoadError::System { what: "the event loop failed", source })?;
                        let (cpu_us, wall_us) = (sys::thread_cpu_us() - cpu, clock.now_us() - start);
                        Ok(Message::ThreadEnd { outcome: Box::new(outcome), cpu_us, wall_us })
                    });
                    let _ = out.send(end.unwrap_or_else(Message::Failed));
                })
                .map_err(|source| {
                    line.cancel();
                    LoadError::System { what: "cannot start a load thread; use fewer (-t)", source }
                })?;
        }
        drop(out);
        let collector = Collector { plan, prepared, directory: &directory, messages: &messages, returns: &returns };
        let mut finished = collector.collect(halt, &mut report)?;
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

/// Holds threads until all of them are ready, so that their schedules begin at the same moment.
struct StartBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
    /// When the run begins on its clock, if the start is given.
    start: Option<Micros>,
}

enum BarrierState {
    /// Number of threads that are not ready yet.
    Missing(usize),
    Go(Micros),
    /// One of them will never start.
    Cancelled,
}

impl StartBarrier {
    fn new(threads: usize, start: Option<Micros>) -> StartBarrier {
        StartBarrier { state: Mutex::new(BarrierState::Missing(threads)), changed: Condvar::new(), start }
    }

    /// Waits for the other threads; `None` if there will be no start.
    fn wait(&self, clock: RunClock) -> Option<Micros> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let BarrierState::Missing(n) = &mut *state {
            *n -= 1;
            if *n == 0 {
                *state = BarrierState::Go(self.start.unwrap_or_else(|| clock.now_us()));
                self.changed.notify_all();
            }
        }
        let waiting = |state: &mut BarrierState| matches!(state, BarrierState::Missing(_));
        let state = self.changed.wait_while(state, waiting).unwrap_or_else(PoisonError::into_inner);
        match *state {
            BarrierState::Go(start) => Some(start),
            _ => None,
        }
    }

    fn cancel(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = BarrierState::Cancelled;
        self.changed.notify_all();
    }
}

/// Waits until the run begins; returns false if it is stopped before. A thread that is late begins at once, and what
/// has come due meanwhile counts as late.
fn wait_until(start: Micros, clock: RunClock, wiring: &ShardLink<'_>) -> bool {
    loop {
        let left = start.saturating_sub(clock.now_us());
        if left == 0 {
            return true;
        }
        if wiring.told_to_stop() {
            return false;
        }
        thread::sleep(Duration::from_micros(left).min(LOOK_FOR_STOP));
    }
}

/// Returns the result of a thread; a panic becomes an error of the run at once.
fn caught<T>(work: impl FnOnce() -> Result<T, LoadError>) -> Result<T, LoadError> {
    let words = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
    };
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(LoadError::Thread(words(panic))))
}

/// Merges the seconds of the threads: a second is complete when every thread is past it.
#[derive(Debug)]
pub struct Collector<'a> {
    pub plan: &'a Plan,
    pub prepared: &'a PreparedPlan,
    pub directory: &'a Directory,
    pub messages: &'a Receiver<Message>,
    /// Where emptied slices go back to, one sender per thread.
    pub returns: &'a [Sender<Box<Slice>>],
}

impl Collector<'_> {
    /// Reports each second until all threads have ended.
    ///
    /// # Errors
    /// The error of a thread.
    pub fn collect(&self, halt: &AtomicBool, report: &mut impl FnMut(&Event<'_>)) -> Result<LoadResult, LoadError> {
        let threads = self.returns.len();
        let mut finished = LoadResult::default();
        let mut failure = None;
        let mut merge = EventMerger::new(self.plan.phases.len(), threads);
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
                failure.get_or_insert(LoadError::Thread("it left without a word".into()));
                break;
            };
            match message {
                Message::Slice { thread, mut slice } => {
                    // With one thread there is nothing to add, so no copy is needed.
                    if threads == 1 {
                        report(&second(&slice));
                    } else {
                        merge.second(thread, &slice);
                    }
                    slice.reset(0, 0);
                    let _ = self.returns[thread].send(slice);
                }
                Message::PhaseEnd { thread, phase: index, duration_us, peak } => {
                    merge.phase_end(thread, usize::from(index), duration_us, peak);
                }
                Message::Exchanges(some) => report(&Event::Exchanges { exchanges: some.into() }),
                Message::ThreadEnd { outcome, cpu_us, wall_us } => {
                    ended += 1;
                    finished.threads.push((cpu_us, wall_us));
                    for (sum, part) in [
                        (&mut finished.connect_errors, &outcome.connect_errors),
                        (&mut finished.protocol_errors, &outcome.protocol_errors),
                        (&mut finished.page_errors, &outcome.page_errors),
                        (&mut finished.looked_at, &outcome.looked_at),
                        (&mut finished.doubts, &outcome.doubts),
                    ] {
                        for (what, n) in part {
                            *sum.entry(what.clone()).or_insert(0) += n;
                        }
                    }
                    finished.shortage.add(outcome.shortage);
                    if finished.unverified.is_none() {
                        finished.unverified = outcome.unverified;
                    }
                    if finished.first_answer.is_none() {
                        finished.first_answer = outcome.first_answer;
                    }
                    if outcome.unreachable {
                        finished.unreachable = true;
                        // The other threads will not succeed either.
                        halt.store(true, Ordering::Relaxed);
                    }
                }
                Message::Failed(e) => {
                    ended += 1;
                    halt.store(true, Ordering::Relaxed);
                    failure.get_or_insert(e);
                }
            }
            while let Some(known) = merge.pop() {
                match known {
                    MergedEvent::Second(slice) => report(&second(&slice)),
                    MergedEvent::PhaseEnd { phase, duration_us, peak } => {
                        report(&Event::PhaseEnd { phase, duration_us, peak });
                    }
                }
            }
        }
        for slice in merge.rest() {
            report(&second(&slice));
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
    fn a_thread_that_cannot_be_started_sends_the_others_home() {
        let line = StartBarrier::new(3, None);
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| line.wait(RunClock::start()))).collect();
            line.cancel();
            for thread in waiting {
                assert_eq!(thread.join().expect("it comes home"), None);
            }
        });
    }

    #[test]
    fn all_threads_start_at_the_same_moment() {
        let (line, clock) = (StartBarrier::new(4, None), RunClock::start());
        let starts: Vec<Option<Micros>> = thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| line.wait(clock))).collect();
            all.into_iter().map(|t| t.join().expect("it starts")).collect()
        });
        assert!(starts[0].is_some() && starts.iter().all(|s| *s == starts[0]), "{starts:?}");
    }

    #[test]
    fn a_run_that_is_stopped_before_it_begins_sends_nothing() {
        let (stop, halt, clock) = (AtomicBool::new(false), AtomicBool::new(true), RunClock::start());
        let ((out, _messages), (_give_back, recycled)) = (mpsc::channel(), mpsc::channel());
        let wiring = ShardLink { thread: 0, stop: &stop, halt: &halt, out: &out, recycled: &recycled };
        assert!(!wait_until(Micros::MAX, clock, &wiring));
        halt.store(false, Ordering::Relaxed);
        assert!(wait_until(5_000, clock, &wiring) && clock.now_us() >= 5_000);
    }

    #[test]
    fn a_panic_is_an_error_of_the_run() {
        let failed = caught::<()>(|| panic!("a number too {}", "large"));
        assert!(matches!(failed, Err(LoadError::Thread(what)) if what == "a number too large"));
    }
}
