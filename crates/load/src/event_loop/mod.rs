//! One thread's loop over its connections: requests come due, go out, and meet their end.
//!
//! The loop lives through all phases of a run; connections and users go over from one to the next. A request belongs to
//! the phase in which it came due, however late it ends. What it is made of stands for itself and knows nothing of it: `users`,
//! `stream`, `transport`, `protocol`, `phases`, `record`. Here they come together, each file a chapter: requests come due (`due`), go to
//! a connection (`issue`, `line`) and out (`begin`, `write`), answers come (`read`, `take`), requests end (`ends`), and something
//! follows (`over`, `follow`, `browse`). This file has the turn of the loop and its timers.
//!
//! Time is read once an event, right after the read that it is about: with one reading a turn, up to 64 events of
//! 7 µs each would share it and latencies would be wrong by half a millisecond under full load; a reading costs 25 ns.
//! All times here are microseconds since the start of the run.

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
mod take;
mod users;
mod write;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::io;

use lastdrop_http::HeadMemory;
use lastdrop_model::{Counts, Micros};

use crate::first_look::Looks;
use crate::ids::{Place, Slot, StreamId};
use crate::phases::{Phases, Queue, Source};
use crate::record::Record;
use crate::request_ids::RequestIds;
use crate::stream::Streams;
use crate::tape::{Reader, Tape};
use crate::transport::Transport;
use crate::users::{Presence, Users, Waiting};
use crate::wiring::{Job, Outcome, Wiring};
use crate::world::{EVENTS_A_LOOK, World};

/// How often the loop looks whether it was told to stop, when nothing else wakes it.
const STOP_CHECK_US: Micros = 50_000;
/// How often users are added or sent away while their number changes.
const RAMP_CHECK_US: Micros = 10_000;
/// What is due, and what follows a look at what has come, lets the rest wait after so long: thousands of connects in a row must not keep
/// answers, and the times at which they came, from being seen. Between two looks there is room for three of these.
const LONGEST_TURN_US: Micros = 600;
/// With nothing connected at all by then, a closed loop gives up.
const UNREACHABLE_US: Micros = 1_000_000;

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

/// What the loop does at a time.
#[derive(Debug, Default)]
struct Timers {
    alarms: BinaryHeap<Reverse<(Micros, Alarm)>>,
    /// Until when this turn may go on before the loop looks at what has come.
    turn_ends: Micros,
}

/// One thread's part of a run. `W` is the world that it is in. Which stream is on which connection is known to `protocol` alone.
pub struct EventLoop<'a, W: World> {
    job: Job<'a>,
    wiring: &'a Wiring<'a>,
    transport: Transport<W>,
    streams: Streams,
    /// The head of the last answer: most are like it.
    last_head: HeadMemory,
    phases: Phases,
    record: Record,
    users: Users,
    waiting: Waiting,
    timers: Timers,
    /// Requests that are played instead of the plan's own.
    tape: Option<Reader>,
}

impl<W: World> fmt::Debug for EventLoop<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventLoop({})", self.job.thread)
    }
}

impl<'a, W: World> EventLoop<'a, W> {
    pub fn new(job: Job<'a>, wiring: &'a Wiring<'a>, world: W) -> EventLoop<'a, W> {
        let users = Users::new(&job);
        let most = users.presence.len() * users.per_user as usize;
        EventLoop {
            transport: Transport::new(world, job.plan, job.prepared, job.thread, most),
            streams: Streams::new(most, job.plan.timeout),
            last_head: HeadMemory::default(),
            phases: Phases::new(),
            record: Record {
                ids: job.prepared.id_prefix.as_ref().map(|prefix| RequestIds::new(prefix, job.thread)),
                looks: Looks::new(job.prepared.classes),
                ..Record::new(job.wish, job.plan.phases.len())
            },
            waiting: Waiting::new(most, job.prepared.endpoints.len()),
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

    /// Changes the counts of the phase and of the class of a request.
    #[inline]
    pub(super) fn count(&mut self, stream: StreamId, change: impl Fn(&mut Counts)) {
        let s = &self.streams[stream];
        let (phase, class) = (s.phase, s.class);
        self.record.slice(phase).count(class, change);
    }

    /// Those of the request that a connection carries, or the first of them.
    #[inline]
    pub(super) fn count_on(&mut self, slot: Slot, change: impl Fn(&mut Counts)) {
        if let Some(stream) = self.first_on(slot) {
            self.count(stream, change);
        }
    }

    /// Where a stream is, or will be.
    #[inline]
    pub(super) fn place_of(&self, stream: StreamId) -> Place {
        Place { stream, slot: self.transport.connections.carrier(stream) }
    }

    #[inline]
    pub(super) fn first_on(&self, slot: Slot) -> Option<StreamId> {
        self.transport.connections[slot].wire.streams(slot).next()
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
        self.timers.turn_ends = now + LONGEST_TURN_US;
        let now = self.timers(now);
        if self.finished(now) {
            return Ok(Some(now));
        }
        let wait = if self.transport.again.is_empty() { self.next_wakeup(now).saturating_sub(now) } else { 0 };
        let open = self.transport.open_sockets;
        let n = self.transport.world.wait(wait)?;
        for i in 0..n {
            let (token, flags) = self.transport.world.event(i);
            self.on_event(token, flags);
        }
        // As of `now`, before the look: this thread may have been kept from running at any point after it.
        if let Some(seen) = self.streams.looked(n, n < EVENTS_A_LOOK, now, open) {
            self.expire(seen);
        }
        if !self.transport.again.is_empty() {
            self.go_on();
        }
        Ok(None)
    }

    /// Goes on with connections that have had their share before, as long as a turn may last.
    fn go_on(&mut self) {
        let ends = self.now() + LONGEST_TURN_US;
        let mut waiting = std::mem::take(&mut self.transport.again).into_iter();
        for token in waiting.by_ref() {
            self.transfer(token);
            if self.now() >= ends {
                break;
            }
        }
        let newer = std::mem::replace(&mut self.transport.again, waiting.collect());
        self.transport.again.extend(newer);
    }

    /// Everything that is due because of time alone. Says as of when all that has been done.
    pub(super) fn timers(&mut self, mut now: Micros) -> Micros {
        while let Some(Reverse((at, alarm))) = self.timers.alarms.peek().copied() {
            if at > now || self.turn_is_over() {
                break;
            }
            self.timers.alarms.pop();
            match alarm {
                Alarm::User(user) => self.wake(user, at, now),
                // What ends here ends at a later time, and so does what follows begin.
                Alarm::Transfer(token) => {
                    self.transfer(token);
                    now = self.now();
                }
                Alarm::Continue(token) => {
                    self.no_continue(token);
                    now = self.now();
                }
            }
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
            if self.record.live[phase].as_ref().is_some_and(|l| now >= l.next_flush) || self.is_over(phase as u16) {
                self.flush(phase as u16, now);
            }
        }
        now
    }

    /// Has this turn lasted long enough, so that what else is due waits for a look at what has come?
    #[inline]
    pub(super) fn turn_is_over(&self) -> bool {
        self.still_in_turn().is_none()
    }

    /// What time it is, where this turn may go on.
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
        self.phases.over && (self.streams.count() == 0 && !between() || drained)
    }

    /// Nobody has ever had a connection: will nobody ever?
    fn is_hopeless(&self) -> bool {
        let stranded = !self.waiting.stranded.is_empty() && self.transport.open_sockets == 0;
        match self.phases.source {
            Source::Closed { .. } if self.record.refused >= u64::from(self.users.wanted.max(1)) => true,
            // Without a descriptor the requests of -n would be tried for ever.
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
        // A line moves when a request ends; who found no descriptor tries again.
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
                    && let Some(due) = self.phases.queues.iter().find_map(Queue::next_due)
                {
                    at = at.min(due.max(self.waiting.no_socket_until));
                }
            }
        }
        at
    }
}
