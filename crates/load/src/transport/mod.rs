//! Bytes in and out: connections, and what lies between them and HTTP. `open` makes one, `write` goes on where the socket
//! lets it.

mod open;
pub mod tls;
mod write;

use std::io;

use lastdrop_model::Micros;
use lastdrop_model::plan::{KeepAlive, Plan};

use crate::endpoint::Endpoint;
use crate::prepare::Prepared;
use crate::protocol::Wire;
use crate::world::{Outgoing, World};

pub use open::describe;
pub(crate) use write::{Written, is_reset};

pub(crate) const READ_BUFFER_BYTES: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No socket.
    Closed,
    /// connect() was called for the request in flight.
    Connecting,
    /// CONNECT was sent, the proxy has not answered.
    Tunnel,
    /// TLS is being set up.
    Handshaking,
    /// Part of the request is not written yet.
    Writing,
    /// The head is written, the body waits for `100 Continue`.
    Holding,
    /// The request is written, the answer is not complete.
    Waiting,
    /// Open, nothing in flight.
    Idle,
}

/// What lies between HTTP and the socket.
#[derive(Debug, Default)]
pub struct Layers {
    /// CONNECT has not been answered yet.
    pub tunnel: bool,
    pub tls: Option<Box<tls::Session>>,
}

/// How a connection came about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dialed {
    pub begun: Micros,
    /// 0 until connect() has succeeded.
    pub connected: Micros,
}

/// One connection slot: at most one socket.
#[derive(Debug)]
pub struct Connection<S> {
    pub state: State,
    /// The server has closed its side.
    pub peer_closed: bool,
    /// connect() failed at once; its request fails when the loop comes back to it.
    pub doomed: bool,
    /// Why, where somebody wants to know.
    pub error: Option<Box<str>>,
    pub socket: Option<S>,
    /// Distinguishes this socket's events from those of an earlier one in the same slot.
    pub generation: u32,
    /// Index of the server that the socket goes to.
    pub endpoint: u32,
    /// Requests begun on this socket.
    pub served: u32,
    pub dialed: Dialed,
    /// With a limited bandwidth: nothing is read before.
    pub quiet_until: Micros,
    pub layers: Layers,
    pub wire: Wire,
}

impl<S> Connection<S> {
    pub fn new() -> Connection<S> {
        Connection {
            state: State::Closed,
            peer_closed: false,
            doomed: false,
            error: None,
            socket: None,
            generation: 0,
            endpoint: 0,
            served: 0,
            dialed: Dialed::default(),
            quiet_until: 0,
            layers: Layers::default(),
            wire: Wire::default(),
        }
    }

    pub fn token(&self, slot: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(slot)
    }

    /// Did the request in flight go out on a connection that had served another one before?
    pub fn reused(&self) -> bool {
        self.served > 1
    }

    /// Has it a request in flight?
    pub fn busy(&self) -> bool {
        !matches!(self.state, State::Closed | State::Idle)
    }
}

/// The connections of a thread, and what they have together.
#[derive(Debug)]
pub(crate) struct Transport<W: World> {
    pub world: W,
    pub connections: Vec<Connection<W::Socket>>,
    pub endpoints: Vec<Endpoint>,
    /// The addresses of names that it knows.
    pub directory_seen: u64,
    /// Connections with more to read than one turn should take.
    pub again: Vec<u64>,
    pub open_sockets: u64,
    /// Connections that were made.
    pub opened: u64,
    /// Of the next address of ours.
    pub source_turn: usize,
    pub requests_per_connection: u32,
    pub buffer: Vec<u8>,
    pub plain: Vec<u8>,
}

impl<W: World> Transport<W> {
    pub fn new(world: W, plan: &Plan, prepared: &Prepared, thread: usize, slots: usize) -> Transport<W> {
        Transport {
            world,
            connections: (0..slots).map(|_| Connection::new()).collect(),
            endpoints: prepared.endpoints.clone(),
            directory_seen: 0,
            again: Vec::new(),
            open_sockets: 0,
            opened: 0,
            source_turn: thread,
            requests_per_connection: match plan.keepalive {
                KeepAlive::On => u32::MAX,
                KeepAlive::Off => 1,
                KeepAlive::Requests(n) => n,
            },
            buffer: vec![0; READ_BUFFER_BYTES],
            plain: Vec::new(),
        }
    }

    /// The connection that an event is about; None where its socket is gone.
    #[inline]
    pub fn of_token(&mut self, token: u64) -> Option<&mut Connection<W::Socket>> {
        let c = &mut self.connections[token as u32 as usize];
        (c.generation == (token >> 32) as u32 && c.socket.is_some()).then_some(c)
    }

    pub fn close(&mut self, slot: u32) {
        let c = &mut self.connections[slot as usize];
        let (socket, tls) = (c.socket.take(), c.layers.tls.take());
        let idle = c.state == State::Idle;
        c.state = State::Closed;
        c.doomed = false;
        c.layers.tunnel = false;
        if let Some(socket) = socket {
            if let (true, Some(mut tls)) = (idle, tls) {
                tls.say_goodbye(&mut Outgoing::new(&mut self.world, &socket));
            }
            self.world.close(socket);
            self.open_sockets -= 1;
        }
    }

    /// Gives an idle connection to another slot. False: it could not be kept.
    pub fn take_over(&mut self, from: u32, to: u32) -> bool {
        let c = &mut self.connections[from as usize];
        c.state = State::Closed;
        let (socket, tls) = (c.socket.take(), c.layers.tls.take());
        let (endpoint, served, peer_closed, quiet_until) = (c.endpoint, c.served, c.peer_closed, c.quiet_until);
        let c = &mut self.connections[to as usize];
        c.state = State::Idle;
        (c.socket, c.layers.tls, c.endpoint, c.served) = (socket, tls, endpoint, served);
        (c.peer_closed, c.quiet_until) = (peer_closed, quiet_until);
        c.generation = c.generation.wrapping_add(1);
        let token = c.token(to);
        let watched = c.socket.as_ref().is_some_and(|s| self.world.watch_as(s, token).is_ok());
        if !watched {
            self.close(to);
        }
        watched
    }

    /// Something came on a connection without a request: the end, or (TLS) a session ticket.
    pub fn idle_event(&mut self, slot: u32) {
        let c = &mut self.connections[slot as usize];
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
    use super::*;
    use crate::world::{Address, NoConnection};

    /// Sockets with nobody at the other end.
    #[derive(Debug, Default)]
    struct Nobody {
        sockets: u32,
        open: u32,
        watched: Vec<(u32, u64)>,
    }

    impl World for Nobody {
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

    fn transport(slots: usize) -> (Transport<Nobody>, Prepared) {
        let plan = Plan::new("http://127.0.0.1:1/".parse().expect("valid"), 1);
        let prepared = Prepared::new(&plan).expect("valid");
        (Transport::new(Nobody::default(), &plan, &prepared, 0, slots), prepared)
    }

    #[test]
    fn a_connection_that_goes_over_to_another_slot_has_another_token() {
        let (mut transport, _) = transport(2);
        transport.open(0, 0, &[], 7).expect("a socket").expect("no error");
        transport.watch(0).expect("room");
        transport.connections[0].state = State::Idle;
        let before = transport.connections[0].token(0);
        assert!(transport.of_token(before).is_some());
        assert!(transport.take_over(0, 1));
        let after = transport.connections[1].token(1);
        assert_eq!(transport.world.watched, [(1, before), (1, after)]);
        assert!(transport.of_token(before).is_none() && transport.of_token(after).is_some());
        assert_eq!((transport.connections[1].state, transport.open_sockets), (State::Idle, 1));
    }

    #[test]
    fn a_slot_without_a_descriptor_stays_as_it_was_and_a_socket_is_closed_once() {
        let (mut transport, _) = transport(3);
        for slot in 0..2 {
            transport.open(slot, 0, &[], 0).expect("a socket").expect("no error");
        }
        assert!(transport.open(2, 0, &[], 0).is_err());
        assert_eq!((transport.connections[2].state, transport.open_sockets), (State::Closed, 2));
        transport.close(0);
        transport.close(0);
        assert_eq!((transport.open_sockets, transport.world.open), (1, 1));
    }

    #[test]
    fn a_request_goes_out_as_far_as_it_may() {
        let (mut transport, prepared) = transport(1);
        transport.open(0, 0, &[], 0).expect("a socket").expect("no error");
        let stream = crate::stream::Stream::default();
        let all = prepared.requests[0].wire.as_ref().map_or(0, |w| w.len());
        transport.connections[0].wire.hold_at = 10;
        let (written, sent) = transport.send(0, &stream, &prepared.requests, 3);
        assert!(matches!(written, Written::Enough) && sent == 3);
        let (written, sent) = transport.send(0, &stream, &prepared.requests, usize::MAX);
        assert!(matches!(written, Written::All) && sent == 7);
        transport.connections[0].wire.hold_at = usize::MAX;
        let (written, sent) = transport.send(0, &stream, &prepared.requests, usize::MAX);
        assert!(matches!(written, Written::All) && sent == all - 10);
    }
}
