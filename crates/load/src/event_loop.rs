//! One thread's loop over its connections: requests come due, go out, and meet their end.
//!
//! The loop lives through all phases of a run; connections and users go over from one to the next. A request belongs to
//! the phase in which it came due, however late it ends. This file has the loop itself, its timers and its phases;
//! `users` has what makes requests come due and what follows from an answer, `send` and `receive` one request on one connection.
//!
//! Time is read once an event, right after the read that it is about: with one reading a turn, up to 64 events of
//! 7 µs each would share it and latencies would be wrong by half a millisecond under full load; a reading costs 25 ns.
//! All times here are microseconds since the start of the run.
//!
//! A long file, since a turn of the loop, its timers and its phases are one order of steps on one state: what may come before what
//! is said here and nowhere else.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use lastdrop_http::HeadMemory;
use lastdrop_model::plan::{KeepAlive, Load, Plan};
use lastdrop_model::run::Shortage;
use lastdrop_model::{Counts, Exchange, Kind, Micros, Slice, Wish};
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rustls::ClientConfig;

use crate::arrivals::{Arrivals, Profile};
use crate::collector::{FirstAnswer, Message, share};
use crate::connection::{Connection, InFlight, State};
use crate::endpoint::{Directory, Endpoint};
use crate::pool::Pool;
use crate::prepare::Prepared;
use crate::server_time::ClockOffset;
use crate::tape::{Reader, Tape};
use crate::users::{Person, Presence};
use crate::world::{EVENTS_A_LOOK, World};

/// How often the loop looks whether it was told to stop, when nothing else wakes it.
const STOP_CHECK_US: Micros = 50_000;
/// How often users are added or sent away while their number changes.
const RAMP_CHECK_US: Micros = 10_000;
/// After so long without a look at what has come, a turn lets the rest of what is due wait for the next: thousands of
/// connects in a row must not keep answers, and the times at which they came, from being seen.
const LONGEST_TURN_US: Micros = 2_000;
/// With nothing connected at all by then, a closed loop gives up.
const UNREACHABLE_US: Micros = 1_000_000;
pub(crate) const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Different error texts that are kept.
const MOST_ERRORS: usize = 64;

/// What one thread is given.
#[derive(Debug)]
pub struct Job<'a> {
    pub plan: &'a Plan,
    pub prepared: &'a Prepared,
    pub directory: &'a Directory,
    pub tls: Option<Arc<ClientConfig>>,
    pub thread: usize,
    pub threads: usize,
    /// On the run's clock: when the first phase begins, the same for all threads.
    pub start: Micros,
    pub wish: Wish,
}

/// How a run went for one thread.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub unreachable: bool,
    /// Why connections failed.
    pub connect_errors: BTreeMap<String, u64>,
    /// What was wrong with answers.
    pub protocol_errors: BTreeMap<String, u64>,
    pub shortage: Shortage,
    /// What the first answer says of its server, where each request is handed over.
    pub first_answer: Option<FirstAnswer>,
}

/// Where a thread's results go and how it is told to stop.
#[derive(Debug)]
pub struct Wiring<'a> {
    pub thread: usize,
    /// Told to stop by the user.
    pub stop: &'a AtomicBool,
    /// Given up by the run itself: another thread failed, or nothing can be reached.
    pub halt: &'a AtomicBool,
    pub out: &'a Sender<Message>,
    /// Slices come back emptied, so that the hot path neither allocates nor clears.
    pub recycled: &'a Receiver<Box<Slice>>,
}

impl Wiring<'_> {
    pub fn told_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.halt.load(Ordering::Relaxed)
    }
}

/// What makes requests come due in a phase.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// This many users at the beginning and at the end.
    Closed {
        from: f64,
        to: f64,
    },
    Open,
}

/// Arrivals of a phase that have not all been sent.
#[derive(Debug)]
pub(crate) struct Queue {
    pub phase: u16,
    pub start: Micros,
    pub end: Option<Micros>,
    pub arrivals: Arrivals,
    /// Requests that may still be sent.
    pub budget: u64,
}

impl Queue {
    /// When its next request is due, if it has one that may be sent.
    pub fn next_due(&self) -> Option<Micros> {
        if self.budget == 0 {
            return None;
        }
        let due = self.start.checked_add(self.arrivals.next_due())?;
        self.end.is_none_or(|end| due < end).then_some(due)
    }
}

/// Which moment the loop has seen everything of: a timeout is decided only when what had come by then has been read.
#[derive(Debug, Default)]
struct Sweep {
    began: Micros,
    events: u64,
}

impl Sweep {
    /// The loop has handled `events` events of a look at `now`, which were all there were (`drained`), or not. Says
    /// up to when everything has been seen, when that has moved on.
    fn looked(&mut self, events: usize, drained: bool, now: Micros, connections: u64) -> Option<Micros> {
        self.events += events as u64;
        if drained {
            *self = Sweep { began: now, events: 0 };
            return Some(now);
        }
        // The kernel hands events out in turn, each connection once: after as many as there are connections nothing is
        // left of what was there when the sweep began, however much has come since.
        if self.events < connections {
            return None;
        }
        let began = std::mem::replace(self, Sweep { began: now, events: 0 }).began;
        Some(began)
    }
}

/// A phase that has begun and of which not every request has ended.
#[derive(Debug)]
pub(crate) struct Live {
    pub slice: Box<Slice>,
    start: Micros,
    next_flush: Micros,
    /// Requests of it in flight.
    pub in_flight: u64,
    /// When nothing more came due, once that is known.
    duration: Option<Micros>,
    pub peak: u64,
}

/// Something that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// A user has paused long enough.
    User(u32),
    /// A connection may be read or written again (its token).
    Transfer(u64),
    /// The server had its time to say `100 Continue`.
    Continue(u64),
}

pub struct EventLoop<'a, W: World> {
    pub(crate) job: Job<'a>,
    pub(crate) wiring: &'a Wiring<'a>,
    pub(crate) world: W,
    pub(crate) connections: Vec<Connection<W::Socket>>,
    /// Connections of each user.
    pub(crate) per_user: u32,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) in_flight: InFlight,
    pub(crate) buffer: Vec<u8>,
    pub(crate) plain: Vec<u8>,
    /// The head of the last answer: most are like it.
    pub(crate) last_head: HeadMemory,
    pub(crate) live: Vec<Option<Live>>,
    /// The phase that the clock is in.
    pub(crate) phase: u16,
    pub(crate) phase_start: Micros,
    pub(crate) phase_end: Option<Micros>,
    pub(crate) source: Source,
    /// Requests that may still come due in this phase.
    pub(crate) remaining: u64,
    /// Nothing comes due any more.
    pub(crate) over: bool,
    /// It is because of `-n`: what follows from answers still comes due, until the time is up.
    used_up: bool,
    /// It is because of what the plan gives up at, of which there were so many.
    given_up: bool,
    pub(crate) ends_counted: u64,
    pub(crate) last_end: Micros,
    pub(crate) open_sockets: u64,
    pub(crate) opened: u64,
    pub(crate) refused: u64,
    pub(crate) outcome: Outcome,
    pub(crate) presence: Vec<Presence>,
    pub(crate) people: Vec<Person>,
    /// Closed loop: users that may be active now, and those there were when the phase began.
    pub(crate) wanted: u32,
    pub(crate) users_before: u32,
    /// More users may begin than one turn should take; the number of those who may still grows in the first second.
    pub(crate) more_to_begin: bool,
    pub(crate) spreading: bool,
    pub(crate) rng: Xoshiro256PlusPlus,
    /// In turn: the next request and the next row.
    pub(crate) next_request: u64,
    pub(crate) next_row: u64,
    pub(crate) alarms: BinaryHeap<Reverse<(Micros, Alarm)>>,
    /// Requests that are due and found no descriptor.
    pub(crate) stranded: VecDeque<crate::users::Stranded>,
    pub(crate) no_socket_until: Micros,
    /// Closed loop: the bound of its connections, if there is one.
    pub(crate) pool: Pool,
    /// Open loop: what has come due is counted up to here; what is to be sent.
    due_cursor: Option<Queue>,
    pub(crate) queues: VecDeque<Queue>,
    /// Open loop: users without work, by the server that they are connected to, and those without a connection.
    pub(crate) idle: Vec<Vec<u32>>,
    pub(crate) closed: Vec<u32>,
    /// Open loop: a request found nobody free, and when somebody became free again.
    pub(crate) exhausted: bool,
    pub(crate) dispatching: bool,
    pub(crate) freed_at: Micros,
    /// Connections with more to read than one turn should take.
    pub(crate) again: Vec<u64>,
    /// When the loop last looked at what had come; until when it may go on before it looks again.
    pub(crate) turn_ends: Micros,
    sweep: Sweep,
    pub(crate) source_turn: usize,
    pub(crate) timeout_us: Micros,
    pub(crate) requests_per_connection: u32,
    directory_seen: u64,
    pub(crate) exchanges: Option<Vec<Exchange>>,
    /// Why the connection failed that is about to be noted.
    pub(crate) connect_error: Option<Box<str>>,
    /// The `Server` field of the first answer, until that is complete.
    pub(crate) server: Option<String>,
    pub(crate) clock_offset: ClockOffset,
    /// Requests that are played instead of the plan's own.
    pub(crate) tape: Option<Reader>,
}

impl<W: World> fmt::Debug for EventLoop<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventLoop({})", self.job.thread)
    }
}

impl<'a, W: World> EventLoop<'a, W> {
    pub fn new(job: Job<'a>, wiring: &'a Wiring<'a>, world: W) -> EventLoop<'a, W> {
        let (plan, prepared) = (job.plan, job.prepared);
        let per_user = prepared.connections_per_user;
        let most = |load: &Load| match load {
            Load::Closed { .. } => (load.most_concurrent() as usize).div_ceil(job.threads),
            Load::Open { connections, .. } => {
                let own = share(u64::from(*connections), job.thread, job.threads).max(1) as u32;
                (own / per_user).max(1) as usize
            }
        };
        let users = plan.phases.iter().map(|p| most(&p.load)).max().unwrap_or(0);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(plan.seed ^ 0x5eed);
        for _ in 0..job.thread {
            rng.jump();
        }
        let people = if prepared.personal {
            (0..users).map(|u| Person::new((u * job.threads + job.thread) as u64 + 1, prepared.values)).collect()
        } else {
            Vec::new()
        };
        EventLoop {
            world,
            connections: (0..users * per_user as usize).map(|_| Connection::new()).collect(),
            per_user,
            endpoints: prepared.endpoints.clone(),
            in_flight: InFlight::new(users * per_user as usize),
            buffer: vec![0; READ_BUFFER_BYTES],
            plain: Vec::new(),
            last_head: HeadMemory::default(),
            live: plan.phases.iter().map(|_| None).collect(),
            phase: 0,
            phase_start: 0,
            phase_end: None,
            source: Source::Open,
            remaining: 0,
            over: false,
            used_up: false,
            given_up: false,
            ends_counted: 0,
            last_end: 0,
            open_sockets: 0,
            opened: 0,
            refused: 0,
            outcome: Outcome::default(),
            presence: vec![Presence::Away; users],
            people,
            wanted: 0,
            users_before: 0,
            more_to_begin: false,
            spreading: false,
            rng,
            next_request: job.thread as u64,
            next_row: job.thread as u64,
            alarms: BinaryHeap::new(),
            stranded: VecDeque::new(),
            no_socket_until: 0,
            pool: Pool::new(users * per_user as usize),
            due_cursor: None,
            queues: VecDeque::new(),
            idle: vec![Vec::new(); prepared.endpoints.len()],
            closed: Vec::new(),
            exhausted: false,
            dispatching: false,
            freed_at: 0,
            again: Vec::new(),
            turn_ends: 0,
            sweep: Sweep::default(),
            source_turn: job.thread,
            timeout_us: plan.timeout.as_micros() as Micros,
            requests_per_connection: match plan.keepalive {
                KeepAlive::On => u32::MAX,
                KeepAlive::Off => 1,
                KeepAlive::Requests(n) => n,
            },
            directory_seen: 0,
            connect_error: None,
            exchanges: (job.wish != Wish::Nothing).then(Vec::new),
            server: None,
            clock_offset: ClockOffset::default(),
            tape: prepared.tape.as_ref().and_then(Tape::take),
            wiring,
            job,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Micros {
        self.world.now_us().saturating_sub(self.job.start)
    }

    /// The slice of a phase that has requests in flight, or that the clock is in.
    #[inline]
    pub(crate) fn slice(&mut self, phase: u16) -> &mut Slice {
        &mut self.live(phase).slice
    }

    /// Changes the counts of the phase and of the class of the request in flight on a connection.
    #[inline]
    pub(crate) fn count(&mut self, slot: u32, change: impl Fn(&mut Counts)) {
        let c = &self.connections[slot as usize];
        let (phase, class) = (c.phase, c.class);
        self.slice(phase).count(class, change);
    }

    #[inline]
    pub(crate) fn live(&mut self, phase: u16) -> &mut Live {
        self.live[phase as usize].as_mut().expect("a phase is live until its last request has ended")
    }

    /// Carries the plan out. Every request that came due is accounted for when it returns.
    pub fn run(mut self) -> io::Result<Outcome> {
        self.begin_run();
        loop {
            if let Some(over) = self.turn()? {
                return Ok(self.finish(over));
            }
        }
    }

    /// The first phase begins. Turns follow until one says that the run is over.
    pub fn begin_run(&mut self) {
        self.enter_phase(0, 0);
    }

    /// One turn of the loop: what is due, a wait, what has come. Says when the run is over, where it is.
    ///
    /// # Errors
    /// The system cannot wait.
    #[inline]
    pub fn turn(&mut self) -> io::Result<Option<Micros>> {
        let now = self.now();
        self.turn_ends = now + LONGEST_TURN_US;
        self.timers(now);
        if self.finished(now) {
            return Ok(Some(now));
        }
        let wait = if self.again.is_empty() { self.next_wakeup(now).saturating_sub(now) } else { 0 };
        let n = self.world.wait(wait)?;
        for i in 0..n {
            let (token, flags) = self.world.event(i);
            self.on_event(token, flags);
        }
        // As of `now`, before the look: this thread may have been kept from running at any point after it.
        if let Some(seen) = self.sweep.looked(n, n < EVENTS_A_LOOK, now, self.open_sockets) {
            self.expire(seen);
        }
        if !self.again.is_empty() {
            for token in std::mem::take(&mut self.again) {
                self.transfer(token);
            }
        }
        Ok(None)
    }

    /// Everything that is due because of time alone.
    fn timers(&mut self, now: Micros) {
        while let Some(Reverse((at, alarm))) = self.alarms.peek().copied() {
            if at > now || self.turn_is_over() {
                break;
            }
            self.alarms.pop();
            match alarm {
                Alarm::User(user) => self.wake(user, at, now),
                Alarm::Transfer(token) => self.transfer(token),
                Alarm::Continue(token) => self.no_continue(token),
            }
        }
        if !self.stranded.is_empty() && now >= self.no_socket_until {
            self.send_stranded(now);
        }
        if !self.over {
            self.dispatch(now);
        }
        while !self.over && self.phase_end.is_some_and(|end| now >= end) {
            self.phase_over(now);
        }
        if !self.over && self.users_change() {
            self.change_users(now);
        }
        for phase in 0..self.live.len() {
            if self.live[phase].as_ref().is_some_and(|l| now >= l.next_flush) || self.is_over(phase as u16) {
                self.flush(phase as u16, now);
            }
        }
    }

    /// Has this turn lasted long enough, so that what else is due waits for a look at what has come?
    #[inline]
    pub(crate) fn turn_is_over(&self) -> bool {
        self.now() >= self.turn_ends
    }

    /// Has every request of an earlier phase ended? Its slice then serves the next one, however short phases are.
    fn is_over(&self, phase: u16) -> bool {
        phase != self.phase
            && self.live[usize::from(phase)].as_ref().is_some_and(|l| l.in_flight == 0)
            && self.queues.iter().all(|q| q.phase != phase)
            && self.stranded.iter().all(|s| s.phase != phase)
    }

    /// The time of a phase is up: the next one begins, or nothing more comes due.
    fn phase_over(&mut self, now: Micros) {
        let end = self.phase_end.unwrap_or(now);
        if usize::from(self.phase) + 1 < self.job.plan.phases.len() {
            self.enter_phase(self.phase + 1, end);
        } else {
            self.stop_arrivals(now);
        }
    }

    /// Begins a phase at its planned time.
    pub(crate) fn enter_phase(&mut self, index: u16, start: Micros) {
        let now = self.now();
        self.count_due(start);
        if let Some(live) = &mut self.live[usize::from(self.phase)] {
            live.duration = Some((start - live.start).max(1));
        }
        let phase = &self.job.plan.phases[usize::from(index)];
        self.phase = index;
        self.phase_start = start;
        self.phase_end = phase.duration.map(|d| start + d.as_micros() as Micros);
        // A thread without users has nothing to send; of an open loop each has its part of the arrivals.
        let active = match &phase.load {
            Load::Closed { .. } => self.job.threads.min(phase.load.most_concurrent() as usize).max(1),
            Load::Open { .. } => self.job.threads,
        };
        self.remaining = match phase.requests {
            Some(_) if self.job.thread >= active => 0,
            Some(n) => share(n, self.job.thread, active),
            None => u64::MAX,
        };
        let slice = take_slice(self.wiring.recycled, index, 0, self.job.prepared.classes);
        self.live[usize::from(index)] = Some(Live {
            slice,
            start,
            next_flush: start + 1_000_000,
            in_flight: 0,
            duration: None,
            peak: self.open_sockets,
        });
        match &phase.load {
            Load::Closed { users, to_users, connections } => {
                let own = |n: u32| share(u64::from(n), self.job.thread, self.job.threads).max(1);
                self.pool.limit(connections.map(own));
                // Those of the phase before are for everybody now.
                for slot in 0..self.connections.len() as u32 {
                    self.offer(slot);
                }
                let (from, to) = (f64::from(*users), f64::from(to_users.unwrap_or(*users)));
                self.source = Source::Closed { from, to };
                self.due_cursor = None;
                // What waited for a connection in an open loop has nobody who would send it.
                self.class_unsent(start);
                self.note_waiting(start);
                self.queues.clear();
                self.idle.iter_mut().for_each(Vec::clear);
                self.closed.clear();
                let active = self.presence.iter().filter(|p| **p != Presence::Away).count();
                self.users_before = (active * self.job.threads) as u32;
                self.wanted = 0;
                self.change_users(now.max(start));
                if self.remaining == 0 {
                    self.nothing_remains(now);
                }
            }
            Load::Open { rate_rps, to_rps, steps, arrivals, burst, .. } => {
                self.source = Source::Open;
                self.pool.limit(None);
                let profile = match (to_rps, steps, phase.duration) {
                    (Some(to), Some(steps), Some(d)) => Profile::steps(*rate_rps, *to, *steps, d.as_micros() as Micros),
                    (Some(to), None, Some(d)) => Profile::linear(*rate_rps, *to, d.as_micros() as Micros),
                    _ => Profile::constant(*rate_rps),
                };
                let seed = self.job.plan.seed.wrapping_add(u64::from(index));
                let arrivals =
                    Arrivals::new(*arrivals, profile, *burst, seed, self.job.thread as u32, self.job.threads as u32);
                let queue =
                    |arrivals| Queue { phase: index, start, end: self.phase_end, arrivals, budget: self.remaining };
                // What is played has its own times.
                if self.tape.is_none() {
                    self.due_cursor = Some(queue(arrivals.clone()));
                    self.queues.push_back(queue(arrivals));
                }
                if std::mem::take(&mut self.exhausted) {
                    // Those of this phase are free for what waits from the one before.
                    self.freed_at = start;
                }
                self.pool_users();
                if self.remaining == 0 {
                    self.nothing_remains(now);
                }
            }
        }
    }

    /// All of `-n` has come due (and, in an open loop, gone out).
    pub(crate) fn nothing_remains(&mut self, now: Micros) {
        if usize::from(self.phase) + 1 == self.job.plan.phases.len() && self.stranded.is_empty() {
            // Found out more than once where -n is not more than the users.
            self.used_up |= !self.over;
            self.stop_arrivals(now);
        }
    }

    /// May what follows from an answer still be sent: a redirect, the rest of a page?
    pub(crate) fn may_follow(&self, now: Micros) -> bool {
        !self.over || self.used_up && self.phase_end.is_none_or(|end| now < end)
    }

    /// From now on nothing comes due; idle connections go, so that no worker of the server is held by them.
    pub(crate) fn stop_arrivals(&mut self, now: Micros) {
        if self.over {
            return;
        }
        // What comes due at this very moment may have been sent.
        self.count_due(now + 1);
        self.over = true;
        self.count_unplayed(now);
        self.class_unsent(now + 1);
        self.note_unsent(now);
        for slot in 0..self.connections.len() as u32 {
            let user = slot / self.per_user;
            let busy = self.used_up && (self.presence[user as usize] == Presence::Busy || self.in_session(user));
            if self.connections[slot as usize].state == State::Idle && !busy {
                self.close(slot);
            }
        }
    }

    /// The plan has had enough of what comes back: nothing more comes due, and nobody waits for the rest.
    pub(crate) fn give_up(&mut self, now: Micros) {
        self.stop_arrivals(now);
        self.given_up = true;
        self.wiring.halt.store(true, Ordering::Relaxed);
    }

    fn finished(&mut self, now: Micros) -> bool {
        if self.wiring.told_to_stop() {
            return true;
        }
        if matches!(self.source, Source::Closed { .. })
            && self.opened == 0
            && now >= UNREACHABLE_US
            && self.refused >= u64::from(self.wanted.max(1))
        {
            self.outcome.unreachable = true;
            return true;
        }
        let drained = self.phase_end.is_some_and(|end| now >= end + self.job.plan.drain.as_micros() as Micros);
        let between = || {
            let paused = |u: u32| self.presence[u as usize] == Presence::Pausing && self.in_session(u);
            self.may_follow(now) && (0..self.presence.len() as u32).any(paused)
        };
        self.over && (self.in_flight.count == 0 && !between() || drained)
    }

    /// Accounts for what is left when the run is over.
    pub fn finish(mut self, now: Micros) -> Outcome {
        let ended_early = !self.over;
        if ended_early {
            self.count_due(now + 1);
            self.count_unplayed(now);
            self.class_unsent(now + 1);
            self.note_unsent(now);
        }
        self.note_stranded();
        self.class_stranded();
        self.note_censored();
        let since_start = |at: Micros| at.saturating_sub(self.phase_start);
        let duration = match self.phase_end {
            // Ctrl-C, nothing there, or not what was wanted.
            _ if ended_early || self.given_up => since_start(now),
            Some(end) if self.remaining > 0 => since_start(end),
            // All of -n came due before -d.
            Some(end) => since_start(self.last_end).min(since_start(end)),
            None => since_start(self.last_end),
        };
        if let Some(live) = &mut self.live[usize::from(self.phase)] {
            live.duration = Some(duration.max(1));
        }
        for phase in 0..self.live.len() as u16 {
            if let Some(live) = self.live[usize::from(phase)].take() {
                self.hand_over(live.slice);
                self.phase_ended(phase, live.duration.unwrap_or(1), live.peak);
            }
        }
        self.hand_over_exchanges();
        self.outcome
    }

    fn next_wakeup(&mut self, now: Micros) -> Micros {
        let mut at = now + STOP_CHECK_US;
        if !self.over
            && !self.exhausted
            && let Some(due) = self.next_played(now)
        {
            at = at.min(due.max(self.no_socket_until));
        }
        for live in self.live.iter().flatten() {
            at = at.min(live.next_flush);
        }
        if let Some(slot) = self.in_flight.oldest() {
            at = at.min(self.connections[slot as usize].sent + self.timeout_us);
        }
        if let Some(Reverse((alarm, _))) = self.alarms.peek() {
            at = at.min(*alarm);
        }
        if self.over {
            if let Some(end) = self.phase_end {
                at = at.min(end + self.job.plan.drain.as_micros() as Micros);
            }
            return at;
        }
        if let Some(end) = self.phase_end {
            at = at.min(end);
        }
        // A line moves when a request ends; who found no descriptor tries again.
        if !self.stranded.is_empty() && (!self.line_stands() || self.no_socket_until > now) {
            at = at.min(self.no_socket_until);
        }
        match self.source {
            Source::Closed { .. } => {
                if self.more_to_begin {
                    return now;
                }
                if self.users_change() {
                    at = at.min(now + RAMP_CHECK_US);
                }
            }
            Source::Open => {
                if !self.exhausted
                    && let Some(due) = self.queues.iter().find_map(Queue::next_due)
                {
                    at = at.min(due.max(self.no_socket_until));
                }
            }
        }
        at
    }

    /// Hands over the second of a phase that has passed, and the phase itself once all of its requests have ended.
    fn flush(&mut self, phase: u16, now: Micros) {
        if phase == self.phase {
            self.count_due(now);
            self.job.directory.news(&mut self.directory_seen, &mut self.endpoints);
        }
        if self.is_over(phase) {
            if let Some(live) = self.live[usize::from(phase)].take() {
                self.hand_over(live.slice);
                self.phase_ended(phase, live.duration.unwrap_or(1), live.peak);
            }
            return;
        }
        let Some(live) = &mut self.live[usize::from(phase)] else { return };
        let second = ((now - live.start) / 1_000_000) as u32;
        let fresh = take_slice(self.wiring.recycled, phase, second, self.job.prepared.classes);
        let slice = std::mem::replace(&mut live.slice, fresh);
        live.next_flush = live.start + (u64::from(second) + 1) * 1_000_000;
        self.hand_over(slice);
        self.hand_over_exchanges();
    }

    fn hand_over(&self, slice: Box<Slice>) {
        // Nobody listening means that the run is being given up; the stop flag ends the loop.
        let _ = self.wiring.out.send(Message::Slice { thread: self.wiring.thread, slice });
    }

    fn phase_ended(&self, phase: u16, duration_us: Micros, peak: u64) {
        let _ = self.wiring.out.send(Message::PhaseEnd { thread: self.wiring.thread, phase, duration_us, peak });
    }

    /// Open loop: counts what has come due by now.
    pub(crate) fn count_due(&mut self, now: Micros) {
        if let Some(cursor) = &mut self.due_cursor {
            let until = cursor.end.map_or(now, |end| end.min(now)).saturating_sub(cursor.start);
            let due = cursor.arrivals.advance_to(until).min(self.remaining);
            self.remaining -= due;
            let phase = cursor.phase;
            self.slice(phase).counts.due += due;
        }
    }

    pub(crate) fn note_connect_error(&mut self, what: &str) {
        if self.exchanges.is_some() {
            self.connect_error = Some(what.into());
        }
        count(&mut self.outcome.connect_errors, what);
    }

    pub(crate) fn note_protocol_error(&mut self, what: &str) {
        count(&mut self.outcome.protocol_errors, what);
    }

    pub(crate) fn record(&mut self, phase: u16, kind: Kind, us: Micros) {
        self.slice(phase).record(kind, us);
    }
}

fn count(errors: &mut BTreeMap<String, u64>, what: &str) {
    if let Some(n) = errors.get_mut(what) {
        *n += 1;
    } else {
        let key = if errors.len() < MOST_ERRORS { what } else { "other errors" };
        *errors.entry(key.to_string()).or_insert(0) += 1;
    }
}

fn take_slice(recycled: &Receiver<Box<Slice>>, phase: u16, second: u32, classes: usize) -> Box<Slice> {
    let mut slice = match recycled.try_recv() {
        Ok(mut slice) => {
            slice.phase = phase;
            slice.second = second;
            slice
        }
        Err(_) => Box::new(Slice::new(phase, second)),
    };
    slice.by_class.counts.resize(classes, Counts::default());
    slice
}
