//! One thread's loop over its connections: requests come due, go out, and meet their end.
//!
//! The loop lives through all phases of a run; connections and users pass from one phase to the next. A request belongs
//! to the phase in which it came due, however late it ends. The modules `users`, `stream`, `transport`, `protocol`,
//! `phases` and `record` know nothing of the loop, which combines them. Each file here is a chapter: requests come due
//! (`due`), get a connection (`issue`, `line`) and go out (`begin`, `write`). Answers come (`read`, `take`), requests
//! end (`ends`), and something follows (`over`, `follow`, `browse`). This file has the turn of the loop and its timers.
//!
//! The loop reads the time once per event, right after the read in question. With one reading per turn, up to 64 events
//! of 7 µs each would share it, and latencies would be wrong by half a millisecond under full load. A reading costs 25
//! ns. All times here are microseconds since the start of the run.

mod audit;
mod begin;
mod browse;
mod due;
mod ends;
mod events;
mod follow;
mod issue;
mod line;
mod note;
mod over;
mod pace;
mod phase;
mod play;
mod read;
mod shared;
mod take;
mod users;
mod write;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io;

use lastdrop_http::HeadMemory;
use lastdrop_model::plan::{Load, Phase};
use lastdrop_model::{Counts, Micros};

use crate::answer_check::CheckSchedule;
use crate::ids::{Placement, Slot, StreamId};
use crate::phases::{ArrivalQueue, Phases, Source};
use crate::protocol::{closed_bound, own_connections};
use crate::record::Record;
use crate::request_ids::RequestIds;
use crate::stream::Streams;
use crate::tape::{Tape, TapeReader};
use crate::transport::{OwnConnections, Transport};
use crate::users::{Backlog, Presence, Users};
use crate::wiring::{Job, Outcome, ShardLink};
use crate::world::{EVENTS_A_LOOK, World};

/// How often the loop checks for a request to stop when nothing else wakes it.
const STOP_CHECK_US: Micros = 50_000;
/// How often users are added or removed while their number changes.
const RAMP_CHECK_US: Micros = 10_000;
/// Longest time for due work, and for work after a poll, before the rest waits for the next turn. Thousands of connects
/// in a row must not delay the reading of answers and their timestamps. Up to three such stretches fit between two
/// polls.
const LONGEST_TURN_US: Micros = 600;
/// A closed loop without any connection by then gives up.
const UNREACHABLE_US: Micros = 1_000_000;

/// An event that the loop has scheduled for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// A user's pause is over.
    User(u32),
    /// A connection may be read or written again (its token).
    Transfer(u64),
    /// The server has had its time to send `100 Continue`.
    Continue(u64),
    /// HTTP/2: the server has had its time to allow streams again.
    NoStreams(u64),
}

/// The scheduled events and the end of this turn.
#[derive(Debug, Default)]
struct Timers {
    alarms: BinaryHeap<Reverse<(Micros, Alarm)>>,
    /// When this turn must end so that the loop can poll.
    turn_ends: Micros,
}

/// One thread's share of a run, in the world `W`. Only `protocol` knows which stream is on which connection.
pub struct EventLoop<'a, W: World> {
    job: Job<'a>,
    wiring: &'a ShardLink<'a>,
    transport: Transport<W>,
    streams: Streams,
    /// The head of the last answer; most later ones equal it.
    last_head: HeadMemory,
    phases: Phases,
    record: Record,
    users: Users,
    waiting: Backlog,
    timers: Timers,
    /// Requests from a log, played instead of the plan's own.
    tape: Option<TapeReader>,
}

impl<W: World> fmt::Debug for EventLoop<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventLoop({})", self.job.thread)
    }
}

impl<'a, W: World> EventLoop<'a, W> {
    pub fn new(job: Job<'a>, wiring: &'a ShardLink<'a>, world: W) -> EventLoop<'a, W> {
        let users = Users::new(&job);
        let most = users.presence.len() * users.per_user as usize;
        let own = |n: u32| job.shard.count(u64::from(n)).max(1) as usize;
        let bound = |phase: &Phase| match &phase.load {
            Load::Open { connections, .. } => own(*connections),
            closed @ Load::Closed { .. } => closed_bound(job.plan, closed).map_or(1, own),
        };
        let own_each = own_connections(job.plan).map(|each| OwnConnections::new(each, users.presence.len()));
        let bound = job.plan.http.is_http2().then(|| match &own_each {
            Some(own) => own.bound() as usize,
            None => job.plan.phases.iter().map(bound).max().unwrap_or(1),
        });
        EventLoop {
            transport: Transport::new(world, job.plan, job.prepared, job.thread, most, bound, own_each),
            streams: Streams::new(most, job.plan.timeout),
            last_head: HeadMemory::default(),
            phases: Phases::new(),
            record: Record {
                ids: RequestIds::new(&job.prepared.ids, job.thread),
                looks: CheckSchedule::new(job.prepared.classes),
                ..Record::new(job.wish, job.plan.phases.len())
            },
            waiting: Backlog::new(most, job.prepared.endpoints.len()),
            timers: Timers::default(),
            tape: job.prepared.tape.as_ref().and_then(Tape::take),
            users,
            wiring,
            job,
        }
    }

    #[inline]
    pub(super) fn now(&self) -> Micros {
        self.transport.world.now_us().saturating_sub(self.job.start)
    }

    /// Changes the counts of a request's phase and class.
    #[inline]
    pub(super) fn count(&mut self, stream: StreamId, change: impl Fn(&mut Counts)) {
        let s = &self.streams[stream];
        let (phase, class) = (s.phase, s.class);
        self.record.slice(phase).count(class, change);
    }

    /// Changes the counts for the request that a connection carries, or for the first of several.
    #[inline]
    pub(super) fn count_on(&mut self, slot: Slot, change: impl Fn(&mut Counts)) {
        if let Some(stream) = self.first_on(slot) {
            self.count(stream, change);
        }
    }

    /// Returns the stream with the connection that carries it or will carry it.
    #[inline]
    pub(super) fn place_of(&self, stream: StreamId) -> Placement {
        Placement { stream, slot: self.transport.connections.carrier(stream) }
    }

    #[inline]
    pub(super) fn first_on(&self, slot: Slot) -> Option<StreamId> {
        self.transport.connections[slot].wire.streams(slot).next()
    }

    /// Runs the plan. When it returns, every request that came due is accounted for.
    pub fn run(mut self) -> io::Result<Outcome> {
        self.begin_run();
        loop {
            if let Some(over) = self.turn()? {
                return Ok(self.finish(over));
            }
        }
    }

    /// Begins the first phase. The caller then takes turns until one reports the end of the run.
    pub fn begin_run(&mut self) {
        self.enter_phase(0, 0);
    }

    /// Takes one turn: handles what is due, waits, handles what arrived. Returns the time when the run is over.
    ///
    /// # Errors
    /// The system call that waits failed.
    #[inline]
    pub fn turn(&mut self) -> io::Result<Option<Micros>> {
        let now = self.now();
        self.timers.turn_ends = now + LONGEST_TURN_US;
        let now = self.timers(now);
        self.flush_shared();
        if self.finished(now) {
            return Ok(Some(now));
        }
        let wait = if self.transport.again.is_empty() { self.next_wakeup(now).saturating_sub(now) } else { 0 };
        let open = self.transport.open_sockets;
        let n = self.transport.world.wait(wait)?;
        for i in 0..n {
            let (token, flags) = self.transport.world.event(i);
            self.on_event(token, flags);
            self.flush_shared();
        }
        // `now` is from before the poll: the system may have suspended this thread at any point after it.
        if let Some(seen) = self.streams.looked(n, n < EVENTS_A_LOOK, now, open) {
            self.expire(seen);
            self.flush_shared();
        }
        if !self.transport.again.is_empty() {
            self.go_on();
        }
        Ok(None)
    }

    /// Continues with connections that had used up their share of a turn, for at most the time of one turn.
    fn go_on(&mut self) {
        let ends = self.now() + LONGEST_TURN_US;
        let mut waiting = std::mem::take(&mut self.transport.again).into_iter();
        for token in waiting.by_ref() {
            self.transfer(token);
            self.flush_shared();
            if self.now() >= ends {
                break;
            }
        }
        let newer = std::mem::replace(&mut self.transport.again, waiting.collect());
        self.transport.again.extend(newer);
    }

    /// Does everything that is due by time alone. Returns the latest time it read.
    pub(super) fn timers(&mut self, mut now: Micros) -> Micros {
        while let Some(Reverse((at, alarm))) = self.timers.alarms.peek().copied() {
            if at > now || self.turn_is_over() {
                break;
            }
            self.timers.alarms.pop();
            match alarm {
                Alarm::User(user) => self.wake(user, at, now),
                // What ends here ends at a later time, and what follows begins then.
                Alarm::Transfer(token) => {
                    self.transfer(token);
                    now = self.now();
                }
                Alarm::Continue(token) => {
                    self.no_continue(token);
                    now = self.now();
                }
                Alarm::NoStreams(token) => {
                    self.no_streams(token, now);
                    now = self.now();
                }
            }
        }
        if !self.waiting.refused.is_empty() {
            self.serve_refused(now);
        }
        if !self.waiting.stranded.is_empty() && now >= self.waiting.no_socket_until {
            self.send_stranded(now);
        }
        if !self.phases.over {
            now = self.dispatch(now);
        }
        while !self.phases.over && self.phases.phase_end.is_some_and(|end| now >= end) {
            self.phase_over(now);
        }
        if !self.phases.over && self.users_change() {
            self.change_users(now);
        }
        for phase in 0..self.record.live.len() {
            if !self.is_flushed(phase, now) {
                // What is in a cork belongs to the phase.
                self.flush_shared();
                if !self.is_flushed(phase, now) {
                    self.flush(phase as u16, now);
                }
            }
        }
        now
    }

    /// Whether a phase has handed over its past second.
    fn is_flushed(&self, phase: usize, now: Micros) -> bool {
        self.record.live[phase].as_ref().is_none_or(|l| now < l.next_flush) && !self.is_over(phase as u16)
    }

    /// Whether this turn has lasted long enough that remaining work must wait for the next poll.
    #[inline]
    pub(super) fn turn_is_over(&self) -> bool {
        self.still_in_turn().is_none()
    }

    /// Returns the time if this turn may continue.
    #[inline]
    pub(super) fn still_in_turn(&self) -> Option<Micros> {
        let now = self.now();
        (now < self.timers.turn_ends).then_some(now)
    }

    pub(super) fn finished(&mut self, now: Micros) -> bool {
        if self.wiring.told_to_stop() {
            return true;
        }
        if self.transport.opened == 0 && now >= UNREACHABLE_US && self.is_hopeless() {
            self.record.outcome.unreachable = true;
            return true;
        }
        let drained = self.phases.phase_end.is_some_and(|end| now >= end + self.job.plan.drain.as_micros() as Micros);
        let between = || {
            let paused = |u: u32| self.users.presence[u as usize] == Presence::Pausing && self.users.in_session(u);
            self.phases.may_follow(now) && (0..self.users.presence.len() as u32).any(paused)
        };
        self.phases.over && (self.streams.count() == 0 && !between() && self.waiting.refused.is_empty() || drained)
    }

    /// No connection has ever succeeded: whether none ever will.
    fn is_hopeless(&self) -> bool {
        let stranded = !self.waiting.stranded.is_empty() && self.transport.open_sockets == 0;
        match self.phases.source {
            Source::Closed { .. } if self.record.refused >= u64::from(self.users.wanted.max(1)) => true,
            // Without a descriptor the loop would try the requests of -n for ever.
            _ => stranded && self.phases.phase_end.is_none(),
        }
    }

    pub(super) fn next_wakeup(&mut self, now: Micros) -> Micros {
        let mut at = now + STOP_CHECK_US;
        if !self.phases.over
            && !self.waiting.exhausted
            && let Some(due) = self.next_played(now)
        {
            at = at.min(due.max(self.waiting.no_socket_until));
        }
        for live in self.record.live.iter().flatten() {
            at = at.min(live.next_flush);
        }
        if let Some(timeout) = self.streams.next_timeout() {
            at = at.min(timeout);
        }
        if let Some(Reverse((alarm, _))) = self.timers.alarms.peek() {
            at = at.min(*alarm);
        }
        if self.phases.over {
            if let Some(end) = self.phases.phase_end {
                at = at.min(end + self.job.plan.drain.as_micros() as Micros);
            }
            return at;
        }
        if let Some(end) = self.phases.phase_end {
            at = at.min(end);
        }
        if self.waiting.pool.goes_on && !self.waiting.stranded.is_empty() {
            return now;
        }
        // The queue for connections moves when a request ends; a request without a descriptor needs another try.
        if !self.waiting.stranded.is_empty() && (!self.waiting.line_stands() || self.waiting.no_socket_until > now) {
            at = at.min(self.waiting.no_socket_until);
        }
        match self.phases.source {
            Source::Closed { .. } => {
                if self.users.more_to_begin {
                    return now;
                }
                if self.users_change() {
                    at = at.min(now + RAMP_CHECK_US);
                }
            }
            Source::Open => {
                if !self.waiting.exhausted
                    && let Some(due) = self.phases.queues.iter().find_map(ArrivalQueue::next_due)
                {
                    at = at.min(due.max(self.waiting.no_socket_until));
                }
            }
        }
        at
    }
}
