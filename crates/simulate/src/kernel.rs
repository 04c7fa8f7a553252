//! The simulated world of one shard: a clock, sockets with edges like epoll's, and scheduled events.
//!
//! Time passes only here: while the shard waits, by the cost of each call, and while the whole thread is suspended. So
//! every time that the shard reports can be compared exactly with what happened.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use lastdrop_load::world::{Address, EVENTS_A_LOOK, NoConnection, World};
use lastdrop_model::Micros;

use crate::connection::SimulatedConnection;
use crate::faults::FaultModel;
use crate::peer::{ConnectOutcome, Peer, Reaction};
use crate::rng::Rng;
use crate::trace::{Trace, TraceStep};

/// More zero-length waits in a row than this is a busy loop.
const MOST_IDLE_TURNS: u32 = 100;
/// Longest time that a turn of the engine may start things, besides the cost of one call.
const LONGEST_TURN_US: Micros = 2_000;
/// Most bytes in transit to the shard at once.
const MOST_INBOX_BYTES: usize = 4 << 20;

/// An event on a socket.
#[derive(Debug)]
enum SocketEvent {
    Connected,
    Refused,
    Arrive(Vec<u8>),
    End,
    Reset,
    /// The peer has read what was sent to it.
    Drained,
    /// The peer performs its deferred action.
    Act,
}

#[derive(Debug)]
struct ScheduledEvent {
    at: Micros,
    number: u64,
    socket: usize,
    what: SocketEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// The whole world of a shard.
#[derive(Debug)]
pub struct Kernel {
    pub now: Micros,
    pub faults: FaultModel,
    rng: Rng,
    pub lines: Vec<SimulatedConnection>,
    open: u64,
    pub most_open: u64,
    timeline: BinaryHeap<Reverse<ScheduledEvent>>,
    happened: u64,
    ready: VecDeque<usize>,
    events: Vec<(u64, u32)>,
    idle_turns: u32,
    /// Calls since the last wait.
    calls: u32,
    /// When the last wait ended without events, or the run began.
    woke_for_nothing: Option<Micros>,
    pub turns: u64,
    pub told: u64,
    pub trace: Trace,
    pub violations: Vec<String>,
}

impl Kernel {
    #[must_use]
    pub fn new(start: Micros, faults: FaultModel, rng: Rng, trace: Trace) -> Kernel {
        Kernel {
            now: start,
            faults,
            rng,
            lines: Vec::new(),
            open: 0,
            most_open: 0,
            timeline: BinaryHeap::new(),
            happened: 0,
            ready: VecDeque::new(),
            events: Vec::new(),
            idle_turns: 0,
            calls: 0,
            woke_for_nothing: Some(start),
            turns: 0,
            told: 0,
            trace,
            violations: Vec::new(),
        }
    }

    pub fn open_sockets(&self) -> u64 {
        self.open
    }

    fn violation(&mut self, what: String) {
        self.trace.step(self.now, &TraceStep::Violation(what.clone()));
        self.violations.push(what);
    }

    fn at(&mut self, at: Micros, socket: usize, what: SocketEvent) {
        self.happened += 1;
        self.timeline.push(Reverse(ScheduledEvent { at, number: self.happened, socket, what }));
    }

    /// Adds the cost of a call by the shard.
    fn call(&mut self) {
        self.calls += 1;
        self.now += self.faults.cost(&mut self.rng);
        self.settle();
    }

    fn settle(&mut self) {
        while self.timeline.peek().is_some_and(|Reverse(h)| h.at <= self.now) {
            if let Some(Reverse(happening)) = self.timeline.pop() {
                self.happens(happening);
            }
        }
    }

    fn happens(&mut self, ScheduledEvent { socket, what, at, .. }: ScheduledEvent) {
        let line = &mut self.lines[socket];
        if line.closed || line.reset {
            return;
        }
        match what {
            SocketEvent::Connected => line.connected = true,
            SocketEvent::Refused => line.refused = Some(libc::ECONNREFUSED),
            SocketEvent::Arrive(bytes) => {
                if line.inbox.len() > MOST_INBOX_BYTES {
                    return;
                }
                let total = line.arrived.last().map_or(0, |(total, _)| *total) + bytes.len() as u64;
                line.arrived.push((total, at));
                line.inbox.extend(bytes);
            }
            SocketEvent::End => line.ended = true,
            SocketEvent::Reset => line.reset = true,
            SocketEvent::Drained => line.space = self.faults.send_space(&mut self.rng),
            SocketEvent::Act => {
                let reactions = line.peer.act();
                return self.react(socket, at, reactions);
            }
        }
        self.list(socket);
    }

    /// Reports the edge of a socket.
    fn list(&mut self, socket: usize) {
        let line = &mut self.lines[socket];
        if line.token.is_some() && !line.listed && line.mask() != 0 {
            line.listed = true;
            self.ready.push_back(socket);
        }
    }

    fn react(&mut self, socket: usize, from: Micros, reactions: Vec<Reaction>) {
        let mut at = from.max(self.lines[socket].last_arrival);
        for reaction in reactions {
            let what = match reaction {
                Reaction::Pause(us) => {
                    at += us;
                    continue;
                }
                Reaction::ActAfter(us) => {
                    self.at(from + us, socket, SocketEvent::Act);
                    continue;
                }
                Reaction::Send(bytes) => SocketEvent::Arrive(bytes),
                Reaction::End => SocketEvent::End,
                Reaction::Reset => SocketEvent::Reset,
            };
            self.lines[socket].last_arrival = at;
            self.at(at, socket, what);
        }
    }

    fn connect(&mut self, to: &Address) -> Result<usize, NoConnection<usize>> {
        self.call();
        // A shard that starts many connections has to poll for events in between.
        let most = LONGEST_TURN_US + 64 * self.faults.cost_us;
        if let Some(woke) = self.woke_for_nothing.filter(|woke| self.now > woke + most) {
            let us = self.now - woke;
            self.violation(format!("connects for {us} µs without a look at what has come"));
        }
        if self.faults.no_socket(self.open, &mut self.rng) {
            self.trace.step(self.now, &TraceStep::NoSocket);
            return Err(NoConnection::Socket(io::Error::from_raw_os_error(libc::EMFILE)));
        }
        let socket = self.lines.len();
        let peer = Peer::new(&self.faults, self.rng.others());
        let meeting = peer.meeting;
        let space = self.faults.send_space(&mut self.rng);
        self.lines.push(SimulatedConnection::new(peer, space, self.now));
        self.open += 1;
        self.most_open = self.most_open.max(self.open);
        self.trace.step(self.now, &TraceStep::Connect { socket, to: to.to_string(), meeting });
        let at = self.now;
        match meeting {
            ConnectOutcome::RefusedAtOnce(errno) => {
                return Err(NoConnection::Connect(socket, io::Error::from_raw_os_error(errno)));
            }
            ConnectOutcome::Refused(us) => self.at(at + us, socket, SocketEvent::Refused),
            ConnectOutcome::Never => {}
            ConnectOutcome::AtOnce => self.lines[socket].connected = true,
            ConnectOutcome::After(us) => self.at(at + us, socket, SocketEvent::Connected),
        }
        if let ConnectOutcome::AtOnce | ConnectOutcome::After(_) = meeting {
            let us = if let ConnectOutcome::After(us) = meeting { us } else { 0 };
            let greeting = self.lines[socket].peer.greet();
            self.react(socket, at + us, greeting);
        }
        Ok(socket)
    }

    fn watch(&mut self, socket: usize, token: u64, again: bool) -> io::Result<()> {
        if !again && self.faults.no_watch(&mut self.rng) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let line = &mut self.lines[socket];
        line.token = Some(token);
        line.tokens.push(token);
        self.trace.step(self.now, &TraceStep::Watch { socket, token });
        self.list(socket);
        Ok(())
    }

    fn send(&mut self, socket: usize, bytes: &[u8]) -> io::Result<usize> {
        self.call();
        let line = &mut self.lines[socket];
        if let Some(errno) = line.refused.take() {
            // The error of a connect is reported once; afterwards the socket is not connected.
            line.reset = true;
            line.reset_told = true;
            return Err(io::Error::from_raw_os_error(errno));
        }
        if line.reset {
            let errno = if line.reset_told { libc::EPIPE } else { libc::ECONNRESET };
            line.reset_told = true;
            return Err(io::Error::from_raw_os_error(errno));
        }
        if !line.connected || line.space == 0 {
            line.left_over = false;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = bytes.len().min(line.space);
        line.space -= n;
        line.accepted += n as u64;
        line.sent.push((n, self.now));
        line.left_over = n < bytes.len();
        let full = line.space == 0;
        let reactions = line.peer.receive(&bytes[..n]);
        self.trace.step(self.now, &TraceStep::Sent { socket, bytes: n, of: bytes.len() });
        if full && let Some(us) = self.faults.drain_after(&mut self.rng) {
            self.at(self.now + us, socket, SocketEvent::Drained);
        }
        self.react(socket, self.now, reactions);
        self.settle();
        Ok(n)
    }

    fn recv(&mut self, socket: usize, buffer: &mut [u8]) -> io::Result<usize> {
        self.call();
        let now = self.now;
        self.woke_for_nothing = None;
        let line = &mut self.lines[socket];
        if line.inbox.is_empty() {
            if let Some(errno) = line.refused.take() {
                (line.reset, line.reset_told) = (true, true);
                return Err(io::Error::from_raw_os_error(errno));
            }
            if line.reset && !line.reset_told {
                line.reset_told = true;
                self.trace.step(now, &TraceStep::Received { socket, bytes: -1 });
                return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
            }
            if line.ended || line.reset {
                line.end_told.get_or_insert(now);
                self.trace.step(now, &TraceStep::Received { socket, bytes: 0 });
                return Ok(0);
            }
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = buffer.len().min(line.inbox.len());
        let (first, second) = line.inbox.as_slices();
        let of_first = n.min(first.len());
        buffer[..of_first].copy_from_slice(&first[..of_first]);
        buffer[of_first..n].copy_from_slice(&second[..n - of_first]);
        line.inbox.drain(..n);
        let total = line.received.last().map_or(0, |(total, _)| *total) + n as u64;
        line.received.push((total, now));
        self.trace.step(now, &TraceStep::Received { socket, bytes: n as i64 });
        Ok(n)
    }

    fn close(&mut self, socket: usize) {
        self.call();
        let line = &mut self.lines[socket];
        if line.closed {
            return self.violation(format!("socket {socket} is closed twice"));
        }
        line.closed = true;
        line.token = None;
        line.inbox = VecDeque::new();
        line.peer.left();
        self.open -= 1;
        self.trace.step(self.now, &TraceStep::Close { socket });
    }

    fn wait(&mut self, timeout_us: Micros) -> io::Result<usize> {
        self.turns += 1;
        self.now += self.faults.delay(&mut self.rng);
        self.settle();
        if timeout_us > 0
            && !self.faults.reads_slowly
            && let Some(socket) = self.lines.iter().position(SimulatedConnection::lies_unread)
        {
            self.violation(format!("bytes on socket {socket} lie unread while the shard sleeps"));
        }
        if timeout_us > 0
            && !self.faults.reads_slowly
            && let Some(socket) = self.lines.iter().position(SimulatedConnection::lies_unsent)
        {
            self.violation(format!("bytes for socket {socket} lie unsent while the shard sleeps"));
        }
        let deadline = self.now.saturating_add(timeout_us);
        let before = self.now;
        while self.ready.is_empty() {
            match self.timeline.peek() {
                Some(Reverse(h)) if h.at <= deadline => {
                    self.now = self.now.max(h.at);
                    self.settle();
                }
                _ => {
                    self.now = deadline;
                    break;
                }
            }
        }
        self.events.clear();
        while self.events.len() < EVENTS_A_LOOK {
            let Some(socket) = self.ready.pop_front() else { break };
            let line = &mut self.lines[socket];
            line.listed = false;
            if let (Some(token), mask @ 1..) = (line.token, line.mask()) {
                self.events.push((token, mask));
                self.trace.step(self.now, &TraceStep::Event { socket, mask });
            }
        }
        self.told += self.events.len() as u64;
        self.woke_for_nothing = self.events.is_empty().then_some(self.now);
        let idle = self.events.is_empty() && self.now == before && self.calls == 0;
        self.idle_turns = if idle { self.idle_turns + 1 } else { 0 };
        self.calls = 0;
        if self.idle_turns > MOST_IDLE_TURNS {
            self.violation("the shard spins".into());
            return Err(io::Error::other("the shard spins"));
        }
        Ok(self.events.len())
    }
}

/// The shard's handle on its world.
#[derive(Debug, Clone)]
pub struct SimulatedWorld(pub Rc<RefCell<Kernel>>);

impl World for SimulatedWorld {
    type Socket = usize;

    fn now_us(&self) -> Micros {
        self.0.borrow().now
    }

    fn unix_us(&self) -> u64 {
        crate::check::UNIX_US
    }

    fn connect(&mut self, to: &Address, _: Option<IpAddr>, open: u64) -> Result<usize, NoConnection<usize>> {
        let mut kernel = self.0.borrow_mut();
        if open != kernel.open {
            let real = kernel.open;
            kernel.violation(format!("the shard counts {open} open sockets, there are {real}"));
        }
        kernel.connect(to)
    }

    fn watch(&mut self, socket: &usize, token: u64) -> io::Result<()> {
        self.0.borrow_mut().watch(*socket, token, false)
    }

    fn watch_as(&mut self, socket: &usize, token: u64) -> io::Result<()> {
        self.0.borrow_mut().watch(*socket, token, true)
    }

    fn send(&mut self, socket: &usize, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().send(*socket, bytes)
    }

    fn recv(&mut self, socket: &usize, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().recv(*socket, buffer)
    }

    fn close(&mut self, socket: usize) {
        self.0.borrow_mut().close(socket);
    }

    fn round_trip_us(&self, _socket: &usize) -> Option<u64> {
        None
    }

    fn wait(&mut self, timeout_us: Micros) -> io::Result<usize> {
        self.0.borrow_mut().wait(timeout_us)
    }

    fn event(&self, i: usize) -> (u64, u32) {
        self.0.borrow().events[i]
    }
}
