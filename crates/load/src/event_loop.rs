//! One thread's loop over its connections: requests come due, go out, and meet their end.
//!
//! Time is read once an event, right after the read that it is about: with one reading a turn, up to 64 events of
//! 7 µs each would share it and latencies would be wrong by half a millisecond under full load; a reading costs 25 ns.
//! All times here are microseconds since the start of the phase.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use lastdrop_model::{Failure, Kind, Micros, Slice};

use crate::arrivals::Arrivals;
use crate::clock::RunClock;
use crate::collector::Message;
use crate::connection::{Connection, InFlight, State};
use crate::sys::{self, PEER_CLOSED, Poller, READABLE, WRITABLE};

/// A user whose connection was refused tries again after this; nobody reloads a dead page a million times.
const REFUSED_PAUSE_US: Micros = 50_000;
/// Pause before another try when this process has no descriptor or memory left for a socket.
const NO_SOCKET_PAUSE_US: Micros = 10_000;
/// How often the loop looks whether it was told to stop, when nothing else wakes it.
const STOP_CHECK_US: Micros = 50_000;
/// With nothing connected at all by then, a closed loop gives up.
const UNREACHABLE_US: Micros = 1_000_000;
const EVENTS_A_TURN: usize = 128;
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// What makes requests come due in this thread.
#[derive(Debug, Clone)]
pub enum Source {
    Closed { users: u32 },
    Open { arrivals: Arrivals, connections: u32 },
}

/// What one thread does in one phase.
#[derive(Debug, Clone)]
pub struct Job {
    pub phase: u16,
    pub address: SocketAddr,
    pub request: Arc<[u8]>,
    pub head_request: bool,
    /// Requests on one connection: 1 is keep-alive off.
    pub requests_per_connection: u32,
    pub timeout_us: Micros,
    pub drain_us: Micros,
    pub source: Source,
    /// This thread's share of `-n`.
    pub requests: Option<u64>,
    pub duration_us: Option<Micros>,
}

/// How a phase went for one thread.
#[derive(Debug, Clone, Default)]
pub struct PhaseEnd {
    pub duration_us: Micros,
    pub peak: u64,
    pub unreachable: bool,
    /// Failures of connect() and socket() by errno.
    pub connect_errors: BTreeMap<i32, u64>,
}

/// Where a thread's results go and how it is told to stop.
pub struct Wiring<'a> {
    pub thread: usize,
    pub clock: RunClock,
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

pub struct EventLoop<'a> {
    job: Job,
    wiring: &'a Wiring<'a>,
    phase_start: Micros,
    poller: Poller,
    connections: Vec<Connection>,
    in_flight: InFlight,
    buffer: Vec<u8>,
    slice: Box<Slice>,
    next_flush: Micros,
    /// Requests that may still come due.
    remaining: u64,
    /// Nothing comes due any more.
    over: bool,
    last_end: Micros,
    open_sockets: u64,
    opened: u64,
    refused: u64,
    end: PhaseEnd,
    /// Closed loop: users who wait before they try again, and whether their request is due already.
    paused: VecDeque<(Micros, u32, Option<Micros>)>,
    /// Open loop: what has come due, and the next to send.
    due_cursor: Option<Arrivals>,
    send_cursor: Option<Arrivals>,
    unsent_budget: u64,
    /// Open loop: slots without a request, those with a socket apart.
    idle: Vec<u32>,
    closed: Vec<u32>,
    /// Open loop: a request found no free slot, and when one became free again.
    exhausted: bool,
    dispatching: bool,
    freed_at: Micros,
    no_socket_until: Micros,
}

impl<'a> EventLoop<'a> {
    pub fn new(job: Job, wiring: &'a Wiring<'a>) -> io::Result<EventLoop<'a>> {
        let slots = match &job.source {
            Source::Closed { users } => *users,
            Source::Open { connections, .. } => *connections,
        };
        let (due_cursor, send_cursor, closed) = match &job.source {
            Source::Closed { .. } => (None, None, Vec::new()),
            Source::Open { arrivals, .. } => {
                (Some(arrivals.clone()), Some(arrivals.clone()), (0..slots).rev().collect())
            }
        };
        let budget = job.requests.unwrap_or(u64::MAX);
        let slice = take_slice(wiring.recycled, job.phase, 0);
        Ok(EventLoop {
            wiring,
            phase_start: wiring.clock.now_us(),
            poller: Poller::new(EVENTS_A_TURN)?,
            connections: (0..slots).map(|_| Connection::new()).collect(),
            in_flight: InFlight::new(),
            buffer: vec![0; READ_BUFFER_BYTES],
            slice,
            next_flush: 1_000_000,
            remaining: budget,
            over: false,
            last_end: 0,
            open_sockets: 0,
            opened: 0,
            refused: 0,
            end: PhaseEnd::default(),
            paused: VecDeque::new(),
            due_cursor,
            send_cursor,
            unsent_budget: budget,
            idle: Vec::new(),
            closed,
            exhausted: false,
            dispatching: false,
            freed_at: 0,
            no_socket_until: 0,
            job,
        })
    }

    #[inline]
    fn now(&self) -> Micros {
        self.wiring.clock.now_us() - self.phase_start
    }

    /// Carries the phase out. Every request that came due is accounted for when it returns.
    pub fn run(mut self) -> io::Result<PhaseEnd> {
        if let Source::Closed { users } = self.job.source {
            for user in 0..users {
                self.user_next(user, 0);
            }
        }
        loop {
            let now = self.now();
            self.timers(now);
            if self.finished(now) {
                return Ok(self.finish(now));
            }
            let wait = self.next_wakeup(now).saturating_sub(now);
            let n = self.poller.wait(wait)?;
            for i in 0..n {
                let (token, flags) = self.poller.event(i);
                self.on_event(token, flags);
            }
        }
    }

    /// Everything that is due because of time alone.
    fn timers(&mut self, now: Micros) {
        self.expire(now);
        while self.paused.front().is_some_and(|(at, _, _)| *at <= now) && !self.over {
            if let Some((_, user, due)) = self.paused.pop_front() {
                match due {
                    Some(due) => self.begin_or_pause(user, due, now),
                    None => self.user_next(user, now),
                }
            }
        }
        if self.send_cursor.is_some() && !self.over {
            self.dispatch(now);
        }
        if self.job.duration_us.is_some_and(|d| now >= d) {
            self.stop_arrivals();
        }
        if now >= self.next_flush {
            self.flush(now);
        }
    }

    /// From now on nothing comes due; idle connections go, so that no worker of the server is held by them.
    fn stop_arrivals(&mut self) {
        if self.over {
            return;
        }
        self.over = true;
        for slot in 0..self.connections.len() as u32 {
            if self.connections[slot as usize].state == State::Idle {
                self.close(slot);
            }
        }
    }

    fn finished(&mut self, now: Micros) -> bool {
        if self.wiring.told_to_stop() {
            return true;
        }
        if matches!(self.job.source, Source::Closed { .. })
            && self.opened == 0
            && now >= UNREACHABLE_US
            && self.refused >= self.connections.len() as u64
        {
            self.end.unreachable = true;
            return true;
        }
        let drained = self.job.duration_us.is_some_and(|d| now >= d + self.job.drain_us);
        self.over && (self.in_flight.count == 0 || drained)
    }

    fn finish(mut self, now: Micros) -> PhaseEnd {
        let ended_early = !self.over;
        self.end.duration_us = match self.job.duration_us {
            // Ctrl-C, or nothing there.
            _ if ended_early => now.max(1),
            Some(d) if self.remaining > 0 => d,
            // All of -n came due before -d.
            Some(d) => self.last_end.clamp(1, d),
            None => self.last_end.max(1),
        };
        self.count_due(now);
        let slice = std::mem::replace(&mut self.slice, Box::new(Slice::new(0, 0)));
        let _ = self.wiring.out.send(Message::Slice { thread: self.wiring.thread, slice });
        self.end
    }

    fn next_wakeup(&self, now: Micros) -> Micros {
        let mut at = self.next_flush.min(now + STOP_CHECK_US);
        if let Some(slot) = self.in_flight.oldest() {
            at = at.min(self.connections[slot as usize].sent + self.job.timeout_us);
        }
        if self.over {
            if let Some(d) = self.job.duration_us {
                at = at.min(d + self.job.drain_us);
            }
            return at;
        }
        if let Some((resume, _, _)) = self.paused.front() {
            at = at.min(*resume);
        }
        if let Some(d) = self.job.duration_us {
            at = at.min(d);
        }
        if let Some(arrivals) = &self.send_cursor
            && !(self.idle.is_empty() && self.closed.is_empty())
        {
            at = at.min(arrivals.next_due().max(self.no_socket_until));
        }
        at
    }

    /// Hands over the second that has passed.
    fn flush(&mut self, now: Micros) {
        self.count_due(now);
        let second = (now / 1_000_000) as u32;
        let fresh = take_slice(self.wiring.recycled, self.job.phase, second);
        let slice = std::mem::replace(&mut self.slice, fresh);
        // Nobody listening means that the run is being given up; the stop flag ends the loop.
        let _ = self.wiring.out.send(Message::Slice { thread: self.wiring.thread, slice });
        self.next_flush = (u64::from(second) + 1) * 1_000_000;
    }

    /// Open loop: counts what has come due by now.
    fn count_due(&mut self, now: Micros) {
        if let Some(cursor) = &mut self.due_cursor {
            let until = self.job.duration_us.map_or(now, |d| d.min(now));
            let due = cursor.advance_to(until).min(self.remaining);
            self.remaining -= due;
            self.slice.counts.due += due;
        }
    }

    // ---- what makes requests come due -------------------------------------------------------------------------

    /// Closed loop: the user on `slot` has the answer and asks for more.
    fn user_next(&mut self, slot: u32, now: Micros) {
        if self.remaining == 0 && !self.paused.iter().any(|(_, _, due)| due.is_some()) {
            self.stop_arrivals();
        }
        if self.over || self.remaining == 0 || self.job.duration_us.is_some_and(|d| now >= d) {
            self.close(slot);
            return;
        }
        self.remaining -= 1;
        self.slice.counts.due += 1;
        self.begin_or_pause(slot, now, now);
        if self.remaining == 0 && self.paused.is_empty() {
            self.over = true;
        }
    }

    fn begin_or_pause(&mut self, slot: u32, due: Micros, now: Micros) {
        if !self.begin(slot, due, now) {
            self.paused.push_front((now + NO_SOCKET_PAUSE_US, slot, Some(due)));
        }
    }

    /// Open loop: sends what is due, as far as connections are free.
    fn dispatch(&mut self, now: Micros) {
        // A request that fails at once frees its slot from within: the loop below goes on, not a deeper one.
        if self.dispatching {
            return;
        }
        self.dispatching = true;
        self.dispatch_due(now);
        self.dispatching = false;
    }

    fn dispatch_due(&mut self, now: Micros) {
        while let Some(cursor) = &self.send_cursor {
            let due = cursor.next_due();
            let in_phase = self.job.duration_us.is_none_or(|d| due < d);
            if due > now || !in_phase {
                break;
            }
            if self.unsent_budget == 0 {
                self.count_due(now.max(due + 1));
                self.stop_arrivals();
                return;
            }
            if now < self.no_socket_until {
                break;
            }
            let Some(slot) = self.idle.pop().or_else(|| self.closed.pop()) else {
                self.exhausted = true;
                return;
            };
            if !self.begin(slot, due, now) {
                self.closed.push(slot);
                self.no_socket_until = now + NO_SOCKET_PAUSE_US;
                break;
            }
            self.unsent_budget -= 1;
            if let Some(cursor) = &mut self.send_cursor {
                cursor.advance();
            }
        }
        self.exhausted = false;
    }

    // ---- one request --------------------------------------------------------------------------------------------

    /// Sends a request that is due. False: this process cannot have another socket now, the request is not sent.
    fn begin(&mut self, slot: u32, due: Micros, now: Micros) -> bool {
        let i = slot as usize;
        if self.connections[i].socket.is_some() {
            if self.connections[i].peer_closed {
                self.close(slot);
            } else {
                match sys::send(self.connections[i].fd(), &self.job.request) {
                    Ok(n) => {
                        self.sent(slot, due, now);
                        self.connections[i].written = n;
                        self.slice.counts.bytes_sent += n as u64;
                        let whole = n == self.job.request.len();
                        self.connections[i].state = if whole { State::Waiting } else { State::Writing };
                        if !whole {
                            self.write(slot);
                        }
                        return true;
                    }
                    // Seen to be closed before anything was written: that costs only a reconnect.
                    Err(_) => self.close(slot),
                }
            }
        }
        let socket = match sys::tcp_socket(&self.job.address) {
            Ok(socket) => socket,
            Err(e) => {
                self.note_connect_error(&e);
                return false;
            }
        };
        self.connections[i].served = 0;
        self.sent(slot, due, now);
        let c = &mut self.connections[i];
        c.generation = c.generation.wrapping_add(1);
        c.connect_started = now;
        c.peer_closed = false;
        c.written = 0;
        c.state = State::Connecting;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        c.socket = Some(socket);
        self.open_sockets += 1;
        self.end.peak = self.end.peak.max(self.open_sockets);
        let token = self.connections[i].token(slot);
        if let Err(e) = sys::connect(fd, &self.job.address).and_then(|()| self.poller.watch(fd, token)) {
            self.note_connect_error(&e);
            self.fail(slot, Failure::Connect, now);
        }
        true
    }

    /// Counts a request as sent and puts it among those in flight.
    fn sent(&mut self, slot: u32, due: Micros, now: Micros) {
        let waited = now.saturating_sub(due);
        let blocked = self.freed_at.min(now).saturating_sub(due);
        if self.send_cursor.is_some() {
            self.slice.record(Kind::Blocked, blocked);
        }
        self.slice.record(Kind::Lateness, waited - blocked.min(waited));
        self.slice.counts.sent += 1;
        let c = &mut self.connections[slot as usize];
        c.due = due;
        c.sent = now;
        c.served += 1;
        c.parser.start(self.job.head_request);
        self.in_flight.push(&mut self.connections, slot);
    }

    fn on_event(&mut self, token: u64, flags: u32) {
        let slot = token as u32;
        let i = slot as usize;
        if self.connections[i].generation != (token >> 32) as u32 || self.connections[i].socket.is_none() {
            return;
        }
        if flags & PEER_CLOSED != 0 {
            self.connections[i].peer_closed = true;
        }
        match self.connections[i].state {
            State::Connecting | State::Writing if flags & (WRITABLE | PEER_CLOSED) != 0 => {
                self.write(slot);
                // An answer may be there before the whole request is out; its edge comes only once.
                if flags & READABLE != 0
                    && matches!(self.connections[i].state, State::Writing | State::Waiting)
                    && self.connections[i].token(slot) == token
                {
                    self.read(slot);
                }
            }
            State::Writing | State::Waiting if flags & (READABLE | PEER_CLOSED) != 0 => self.read(slot),
            State::Idle if flags & (READABLE | PEER_CLOSED) != 0 => self.close(slot),
            _ => {}
        }
    }

    fn write(&mut self, slot: u32) {
        let i = slot as usize;
        loop {
            let written = self.connections[i].written;
            let result = sys::send(self.connections[i].fd(), &self.job.request[written..]);
            let connecting = self.connections[i].state == State::Connecting;
            match result {
                Ok(n) => {
                    if connecting {
                        self.connected(slot);
                    }
                    self.slice.counts.bytes_sent += n as u64;
                    self.connections[i].written += n;
                    if self.connections[i].written == self.job.request.len() {
                        self.connections[i].state = State::Waiting;
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if connecting && !is_reset(&e) => {
                    self.note_connect_error(&e);
                    let now = self.now();
                    return self.fail(slot, Failure::Connect, now);
                }
                Err(_) if connecting => {
                    self.connected(slot);
                    let now = self.now();
                    return self.fail(slot, Failure::Reset, now);
                }
                // The server may have answered before it stopped reading: the read tells.
                Err(_) => return self.read(slot),
            }
        }
    }

    fn connected(&mut self, slot: u32) {
        let now = self.now();
        let c = &mut self.connections[slot as usize];
        c.state = State::Writing;
        let took = now.saturating_sub(c.connect_started);
        self.opened += 1;
        self.slice.counts.opened += 1;
        self.slice.record(Kind::Connect, took);
    }

    fn read(&mut self, slot: u32) {
        let i = slot as usize;
        loop {
            let result = sys::recv(self.connections[i].fd(), &mut self.buffer);
            let now = self.now();
            match result {
                Ok(0) => {
                    if self.connections[i].parser.close() {
                        return self.answered(slot, now, false);
                    }
                    return self.fail(slot, Failure::Closed, now);
                }
                Ok(n) => {
                    self.slice.counts.bytes_received += n as u64;
                    let c = &mut self.connections[i];
                    if !c.parser.started() {
                        c.first_byte = now;
                    }
                    match c.parser.feed(&self.buffer[..n], |_| {}) {
                        Ok(feed) if feed.complete => {
                            // Bytes after the answer belong to no request: such a connection is not used again.
                            let clean = feed.consumed == n && c.state == State::Waiting && c.parser.keep_alive();
                            return self.answered(slot, now, clean);
                        }
                        Ok(_) => {}
                        Err(_) => return self.fail(slot, Failure::Protocol, now),
                    }
                    // A short read has emptied the socket; its next edge will come, unless the end has come already.
                    if n < self.buffer.len() && !self.connections[i].peer_closed {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.fail(slot, Failure::Reset, now),
            }
        }
    }

    fn answered(&mut self, slot: u32, now: Micros, reusable: bool) {
        let i = slot as usize;
        let c = &mut self.connections[i];
        let status = c.parser.status() as usize;
        let (due, sent, first_byte) = (c.due, c.sent, c.first_byte);
        let keep = reusable && !c.peer_closed && c.served < self.job.requests_per_connection;
        self.slice.counts.answered += 1;
        if self.job.duration_us.is_none_or(|d| now < d) {
            self.slice.counts.answered_in_time += 1;
        }
        self.slice.status[status.min(999)] += 1;
        self.slice.record(Kind::Response, now.saturating_sub(due));
        self.slice.record(Kind::Service, now.saturating_sub(sent));
        self.slice.record(Kind::FirstByte, first_byte.saturating_sub(sent));
        self.in_flight.remove(&mut self.connections, slot);
        self.connections[i].state = State::Idle;
        if !keep {
            self.close(slot);
        }
        self.last_end = now;
        self.release(slot, now);
    }

    fn fail(&mut self, slot: u32, failure: Failure, now: Micros) {
        let c = &self.connections[slot as usize];
        let before_first_byte = !c.parser.started() && matches!(failure, Failure::Reset | Failure::Closed);
        if before_first_byte && c.reused() {
            self.slice.counts.lost_on_reuse += 1;
        }
        self.slice.counts.failed.count(failure);
        self.in_flight.remove(&mut self.connections, slot);
        self.close(slot);
        self.last_end = now;
        if failure == Failure::Connect {
            self.refused += 1;
            if matches!(self.job.source, Source::Closed { .. }) {
                if !self.over {
                    self.paused.push_back((now + REFUSED_PAUSE_US, slot, None));
                }
                return;
            }
        }
        self.release(slot, now);
    }

    /// Ends requests whose timeout has come, whatever their server does.
    fn expire(&mut self, now: Micros) {
        while let Some(slot) = self.in_flight.oldest() {
            let c = &self.connections[slot as usize];
            if c.sent + self.job.timeout_us > now {
                return;
            }
            let waited = now.saturating_sub(c.due);
            if c.state == State::Connecting {
                self.refused += 1;
            }
            self.slice.record(Kind::Response, waited);
            self.slice.counts.timed_out += 1;
            self.in_flight.remove(&mut self.connections, slot);
            self.close(slot);
            self.last_end = now;
            self.release(slot, now);
        }
    }

    /// A slot has no request any more: the next one may have it.
    fn release(&mut self, slot: u32, now: Micros) {
        if self.send_cursor.is_none() {
            return self.user_next(slot, now);
        }
        if self.over {
            return self.close(slot);
        }
        match self.connections[slot as usize].state {
            State::Idle => self.idle.push(slot),
            _ => self.closed.push(slot),
        }
        if self.exhausted {
            self.freed_at = now;
        }
        self.dispatch(now);
    }

    fn close(&mut self, slot: u32) {
        let c = &mut self.connections[slot as usize];
        c.state = State::Closed;
        if c.socket.take().is_some() {
            self.open_sockets -= 1;
        }
    }

    fn note_connect_error(&mut self, e: &io::Error) {
        *self.end.connect_errors.entry(e.raw_os_error().unwrap_or(0)).or_insert(0) += 1;
    }
}

fn is_reset(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE))
}

fn take_slice(recycled: &Receiver<Box<Slice>>, phase: u16, second: u32) -> Box<Slice> {
    match recycled.try_recv() {
        Ok(mut slice) => {
            slice.phase = phase;
            slice.second = second;
            slice
        }
        Err(_) => Box::new(Slice::new(phase, second)),
    }
}
