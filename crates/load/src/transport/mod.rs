//! Bytes in and out: connections, and what lies between them and HTTP. `open` makes one, `write` goes on where the socket
//! lets it.

mod open;
pub mod tls;
mod write;

use lastdrop_model::Micros;
use lastdrop_model::plan::KeepAlive;

use crate::endpoint::Endpoint;
use crate::protocol::Wire;
use crate::wiring::Job;
use crate::world::{Outgoing, World};

pub use open::describe;
pub(crate) use write::{Written, blocked_or, is_reset};

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
    pub fn new(world: W, job: &Job<'_>, slots: usize) -> Transport<W> {
        Transport {
            world,
            connections: (0..slots).map(|_| Connection::new()).collect(),
            endpoints: job.prepared.endpoints.clone(),
            directory_seen: 0,
            again: Vec::new(),
            open_sockets: 0,
            opened: 0,
            source_turn: job.thread,
            requests_per_connection: match job.plan.keepalive {
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
}
