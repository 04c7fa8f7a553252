//! Bytes in and out: connections, and the layers between them and HTTP. `open` opens a connection, `write` writes as
//! much as the socket accepts.

mod connection;
mod open;
pub mod tls;
mod write;

use std::collections::VecDeque;
use std::io;

use lastdrop_model::plan::{KeepAlive, Plan};

use crate::endpoint::Endpoint;
use crate::ids::{Slot, StreamId};
use crate::prepare::PreparedPlan;
use crate::protocol::{HttpState, limits};
use crate::world::{SocketWriter, World};

pub use connection::{Connection, Connections, Pace, State};
pub use open::describe;
pub(crate) use write::{WriteOutcome, is_reset};

pub(crate) const READ_BUFFER_BYTES: usize = 64 * 1024;

/// Returns the slot of the connection that an event is about.
#[inline]
pub(crate) fn slot_of(token: u64) -> Slot {
    Slot(token as u32)
}

/// The connections of HTTP/2 that users have for themselves.
#[derive(Debug)]
pub(crate) struct OwnConnections {
    /// Most that a user has, without those that end.
    pub each: u32,
    /// The open connections of each user.
    of_user: Vec<Vec<Slot>>,
}

impl OwnConnections {
    pub fn new(each: u32, users: usize) -> OwnConnections {
        OwnConnections { each, of_user: vec![Vec::new(); users] }
    }

    /// Most connections of all users together.
    pub fn bound(&self) -> u64 {
        (self.of_user.len() as u64 * u64::from(self.each)).max(1)
    }

    #[inline]
    pub fn of(&self, user: u32) -> &[Slot] {
        &self.of_user[user as usize]
    }
}

/// The connections of HTTP/2 that are open, and the slots for others.
#[derive(Debug)]
pub(crate) struct SharedConnections {
    /// Slots of open connections on which requests may begin.
    pub open: Vec<Slot>,
    /// Where the search for a connection continues.
    pub turn: usize,
    /// Slots without a connection; the one closed last comes last.
    pub free: VecDeque<Slot>,
    /// Set if each user has connections of its own.
    pub own: Option<OwnConnections>,
    /// Open connections on which no further request begins.
    pub retired: u64,
    /// Connections with something to write before the loop sleeps, by their tokens.
    pub dirty: Vec<u64>,
    /// Bytes that were sent in passing, and are not counted yet.
    pub uncounted_bytes: u64,
}

impl SharedConnections {
    fn new(slots: usize, own: Option<OwnConnections>) -> SharedConnections {
        SharedConnections {
            own,
            open: Vec::new(),
            turn: 0,
            free: (0..slots as u32).map(Slot).collect(),
            retired: 0,
            dirty: Vec::new(),
            uncounted_bytes: 0,
        }
    }

    /// Most connections, if each user has its own.
    pub fn own_bound(&self) -> Option<u64> {
        self.own.as_ref().map(OwnConnections::bound)
    }

    fn opened(&mut self, slot: Slot, owner: u32) {
        if self.free.front() == Some(&slot) {
            self.free.pop_front();
        } else {
            self.free.retain(|free| *free != slot);
        }
        self.open.push(slot);
        if let Some(own) = &mut self.own {
            own.of_user[owner as usize].push(slot);
        }
    }

    fn closed(&mut self, slot: Slot, owner: u32, was_retired: bool) {
        if let Some(own) = &mut self.own {
            own.of_user[owner as usize].retain(|open| *open != slot);
        }
        self.open.retain(|open| *open != slot);
        self.retired -= u64::from(was_retired);
        self.free.push_back(slot);
    }
}

/// The connections of a thread, and what they share.
#[derive(Debug)]
pub(crate) struct Transport<W: World> {
    pub world: W,
    pub connections: Connections<W::Socket>,
    pub endpoints: Vec<Endpoint>,
    /// Version of the directory whose addresses are in `endpoints`.
    pub directory_seen: u64,
    /// Connections with more to read or write than one turn should take.
    pub again: Vec<u64>,
    pub open_sockets: u64,
    /// Connections opened so far.
    pub opened: u64,
    /// Index of the next source address to use.
    pub source_turn: usize,
    pub requests_per_connection: u32,
    pub shared: SharedConnections,
    pub buffer: Vec<u8>,
    pub plain: Vec<u8>,
}

impl<W: World> Transport<W> {
    /// `bound` is the number of connections that the streams share, if the protocol lets them.
    pub fn new(
        world: W,
        plan: &Plan,
        prepared: &PreparedPlan,
        thread: usize,
        streams: usize,
        bound: Option<usize>,
        own: Option<OwnConnections>,
    ) -> Transport<W> {
        let requests_per_connection = match plan.keepalive {
            KeepAlive::On => u32::MAX,
            KeepAlive::Off => 1,
            KeepAlive::Requests(n) => n,
        };
        // A connection that drains keeps its slot while another one opens.
        let slots = bound.map_or(0, |bound| 2 * bound);
        Transport {
            world,
            connections: match bound {
                None => Connections::new(streams),
                Some(_) => Connections::shared(slots, streams, limits(&plan.http, requests_per_connection)),
            },
            shared: SharedConnections::new(slots, own),
            endpoints: prepared.endpoints.clone(),
            directory_seen: 0,
            again: Vec::new(),
            open_sockets: 0,
            opened: 0,
            source_turn: thread,
            requests_per_connection,
            buffer: vec![0; READ_BUFFER_BYTES],
            plain: Vec::new(),
        }
    }

    /// Returns the connection that an event is about; `None` if its socket is gone.
    #[inline]
    pub fn of_token(&mut self, token: u64) -> Option<&mut Connection<W::Socket>> {
        let c = &mut self.connections[slot_of(token)];
        (c.generation == (token >> 32) as u32 && c.socket.is_some()).then_some(c)
    }

    pub fn close(&mut self, slot: Slot) {
        let c = &mut self.connections[slot];
        let (socket, tls) = (c.socket.take(), c.layers.tls.take());
        let idle = c.state == State::Idle;
        c.state = State::Closed;
        c.doomed = false;
        c.layers.tunnel = false;
        if let Some(socket) = socket {
            if let HttpState::Two(wire) = &mut c.wire {
                self.shared.closed(slot, c.owner, std::mem::take(&mut c.retired));
                wire.is_dirty = false;
            }
            match (idle, tls) {
                (true, Some(mut tls)) => {
                    if let HttpState::Two(wire) = &mut c.wire {
                        wire.connection.say_goodbye();
                        self.shared.uncounted_bytes += tls.write(wire.output()) as u64;
                    }
                    tls.say_goodbye(&mut SocketWriter::new(&mut self.world, &socket));
                }
                (true, None) => {
                    if let HttpState::Two(wire) = &mut c.wire {
                        wire.connection.say_goodbye();
                        let sent = self.world.send(&socket, wire.output()).unwrap_or(0);
                        self.shared.uncounted_bytes += sent as u64;
                    }
                }
                (false, _) => {}
            }
            self.world.close(socket);
            self.open_sockets -= 1;
        }
    }

    /// Closes a connection of HTTP/2 that is set up and has nothing in flight.
    pub fn close_unused(&mut self, slot: Slot) {
        let c = &mut self.connections[slot];
        if c.wire_load() == 0 && matches!(c.state, State::Idle | State::Waiting | State::Writing) {
            c.state = State::Idle;
            self.close(slot);
        }
    }

    /// Lets a connection carry no further request; it closes once it carries none.
    pub fn retire(&mut self, slot: Slot) {
        let c = &mut self.connections[slot];
        if c.socket.is_some() && !c.retired {
            c.retired = true;
            self.shared.retired += 1;
            self.shared.open.retain(|open| *open != slot);
        }
    }

    /// Gives a stream the connection in `found`, which has room. Returns false if the connection was lost.
    pub fn seat(&mut self, stream: StreamId, found: Slot) -> bool {
        let to = self.connections.seat(stream, found);
        to == found || self.take_over(found, to)
    }

    /// Moves an idle connection to another slot. Returns false if the connection was lost.
    fn take_over(&mut self, from: Slot, to: Slot) -> bool {
        let c = &mut self.connections[from];
        c.state = State::Closed;
        let (socket, tls) = (c.socket.take(), c.layers.tls.take());
        let (endpoint, served, peer_closed) = (c.endpoint, c.served, c.peer_closed);
        // Its alarm was set for the old slot.
        let pace = c.pace.take().map(|pace| Box::new(Pace { alarm_at: 0, ..*pace }));
        let c = &mut self.connections[to];
        c.state = State::Idle;
        (c.socket, c.layers.tls, c.endpoint, c.served) = (socket, tls, endpoint, served);
        (c.peer_closed, c.pace) = (peer_closed, pace);
        c.generation = c.generation.wrapping_add(1);
        let token = c.token(to);
        let watched = c.socket.as_ref().is_some_and(|s| self.world.watch_as(s, token).is_ok());
        if !watched {
            self.close(to);
        }
        watched
    }

    /// Handles input on a connection without a request: the end, or (TLS) a session ticket.
    pub fn idle_event(&mut self, slot: Slot) {
        let c = &mut self.connections[slot];
        if c.peer_closed || c.layers.tls.is_none() {
            return self.close(slot);
        }
        let Some(socket) = &c.socket else { return };
        let mut buffer = [0u8; 4096];
        match self.world.recv(socket, &mut buffer) {
            Ok(n) if n > 0 => {
                let mut plain = false;
                let ok = c
                    .layers
                    .tls
                    .as_mut()
                    .is_some_and(|tls| tls.feed(&buffer[..n], |tls| plain |= tls.read(&mut [0u8; 1]) > 0).is_ok());
                let ended = c.layers.tls.as_ref().is_some_and(|tls| tls.ended());
                if !ok || ended || plain || n == buffer.len() {
                    self.close(slot);
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            _ => self.close(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lastdrop_model::Micros;

    use super::write::MOST_WRITES;
    use super::*;
    use crate::stream::Streams;
    use crate::world::{Address, NoConnection};

    /// Sockets without a peer.
    #[derive(Debug, Default)]
    struct FakeWorld {
        sockets: u32,
        open: u32,
        watched: Vec<(u32, u64)>,
    }

    impl World for FakeWorld {
        type Socket = u32;

        fn now_us(&self) -> Micros {
            0
        }

        fn unix_us(&self) -> u64 {
            0
        }

        fn connect(&mut self, _: &Address, _: Option<std::net::IpAddr>, _: u64) -> Result<u32, NoConnection<u32>> {
            if self.open == 2 {
                return Err(NoConnection::Socket(io::ErrorKind::OutOfMemory.into()));
            }
            self.sockets += 1;
            self.open += 1;
            Ok(self.sockets)
        }

        fn watch(&mut self, socket: &u32, token: u64) -> io::Result<()> {
            self.watched.push((*socket, token));
            Ok(())
        }

        fn watch_as(&mut self, socket: &u32, token: u64) -> io::Result<()> {
            self.watch(socket, token)
        }

        fn send(&mut self, _: &u32, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len().min(4))
        }

        fn recv(&mut self, _: &u32, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn close(&mut self, _: u32) {
            self.open -= 1;
        }

        fn round_trip_us(&self, _: &u32) -> Option<u64> {
            None
        }

        fn wait(&mut self, _: Micros) -> io::Result<usize> {
            Ok(0)
        }

        fn event(&self, _: usize) -> (u64, u32) {
            (0, 0)
        }
    }

    fn transport(slots: usize) -> (Transport<FakeWorld>, PreparedPlan) {
        let plan = Plan::new("http://127.0.0.1:1/".parse().expect("valid"), 1);
        let prepared = PreparedPlan::new(&plan).expect("valid");
        (Transport::new(FakeWorld::default(), &plan, &prepared, 0, slots, None, None), prepared)
    }

    #[test]
    fn a_connection_that_goes_over_to_another_slot_has_another_token() {
        let (mut transport, _) = transport(2);
        transport.open(Slot(0), 0, &[], 7).expect("a socket").expect("no error");
        transport.watch(Slot(0)).expect("room");
        transport.connections[Slot(0)].state = State::Idle;
        let before = transport.connections[Slot(0)].token(Slot(0));
        assert!(transport.of_token(before).is_some());
        assert!(transport.seat(StreamId(1), Slot(0)));
        let after = transport.connections[Slot(1)].token(Slot(1));
        assert_eq!(transport.world.watched, [(1, before), (1, after)]);
        assert!(transport.of_token(before).is_none() && transport.of_token(after).is_some());
        assert_eq!((transport.connections[Slot(1)].state, transport.open_sockets), (State::Idle, 1));
    }

    #[test]
    fn a_slot_without_a_descriptor_stays_as_it_was_and_a_socket_is_closed_once() {
        let (mut transport, _) = transport(3);
        for slot in [0, 1].map(Slot) {
            transport.open(slot, 0, &[], 0).expect("a socket").expect("no error");
        }
        assert!(transport.open(Slot(2), 0, &[], 0).is_err());
        assert_eq!((transport.connections[Slot(2)].state, transport.open_sockets), (State::Closed, 2));
        transport.close(Slot(0));
        transport.close(Slot(0));
        assert_eq!((transport.open_sockets, transport.world.open), (1, 1));
    }

    #[test]
    fn a_request_goes_out_as_far_as_it_may() {
        let (mut transport, prepared) = transport(1);
        let slot = Slot(0);
        transport.open(slot, 0, &[], 0).expect("a socket").expect("no error");
        let streams = Streams::new(1, Duration::ZERO);
        let wire = &mut transport.connections[slot].wire;
        wire.out().extend_from_slice(b"a head: a body");
        wire.hold_at(7);
        let (written, sent) = transport.send(slot, &streams, &prepared.requests, 3);
        assert!(matches!(written, WriteOutcome::Enough) && sent == 3);
        let (written, sent) = transport.send(slot, &streams, &prepared.requests, usize::MAX);
        assert!(matches!(written, WriteOutcome::All) && sent == 4);
        transport.connections[slot].wire.release();
        let (written, sent) = transport.send(slot, &streams, &prepared.requests, usize::MAX);
        assert!(matches!(written, WriteOutcome::All) && sent == 7);
        // Four bytes at a time up to the limit, then the other connections have their turn.
        transport.connections[slot].wire.out().extend_from_slice(&[b'x'; 6 * MOST_WRITES]);
        let (written, sent) = transport.send(slot, &streams, &prepared.requests, usize::MAX);
        assert!(matches!(written, WriteOutcome::Later) && sent == 4 * MOST_WRITES);
        let (written, sent) = transport.send(slot, &streams, &prepared.requests, usize::MAX);
        assert!(matches!(written, WriteOutcome::All) && sent == 2 * MOST_WRITES);
    }
}
