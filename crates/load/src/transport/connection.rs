//! A connection: its socket, what lies on that, and how far it is; and all those of a thread.

use std::ops::{Index, IndexMut};

use lastdrop_model::Micros;

use super::tls::Session;
use crate::ids::{Slot, StreamId};
use crate::protocol::{Carriers, Wire};

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
    pub tls: Option<Box<Session>>,
}

/// How a connection came about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dialed {
    pub begun: Micros,
    /// 0 until connect() has succeeded.
    pub connected: Micros,
}

/// What has gone on a connection of limited bandwidth has its time: when the next bytes may.
#[derive(Debug, Default)]
pub struct Pace {
    pub read_from: Micros,
    pub write_from: Micros,
    /// The loop comes back to it then.
    pub alarm_at: Micros,
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
    /// With a limited bandwidth, once something has gone.
    pub pace: Option<Box<Pace>>,
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
            pace: None,
            layers: Layers::default(),
            wire: Wire::default(),
        }
    }

    #[inline]
    pub fn token(&self, slot: Slot) -> u64 {
        u64::from(self.generation) << 32 | u64::from(slot.0)
    }

    /// Did the request in flight go out on a connection that had served another one before?
    pub fn reused(&self) -> bool {
        self.served > 1
    }

    /// Has it a request in flight?
    pub fn busy(&self) -> bool {
        !matches!(self.state, State::Closed | State::Idle)
    }

    /// May a request begin on it?
    #[inline]
    pub fn has_room(&self) -> bool {
        self.wire.has_room(self.state == State::Idle)
    }
}

/// The connections of a thread by their slots.
#[derive(Debug)]
pub struct Connections<S> {
    all: Vec<Connection<S>>,
    carriers: Carriers,
}

impl<S> Connections<S> {
    pub fn new(slots: usize) -> Connections<S> {
        Connections { all: (0..slots).map(|_| Connection::new()).collect(), carriers: Carriers }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Connection<S>)> {
        self.all.iter().enumerate().map(|(at, c)| (Slot(at as u32), c))
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<S> {
        (0..self.all.len() as u32).map(Slot)
    }

    /// The slot of the connection that carries a stream, or will.
    #[inline]
    pub fn carrier(&self, stream: StreamId) -> Slot {
        self.carriers.slot_of(stream)
    }

    /// The connection in `found` shall carry a stream: the slot in which it does.
    pub fn seat(&mut self, stream: StreamId, found: Slot) -> Slot {
        self.carriers.seat(stream, found)
    }
}

impl<S> Index<Slot> for Connections<S> {
    type Output = Connection<S>;

    #[inline]
    fn index(&self, slot: Slot) -> &Connection<S> {
        &self.all[slot.index()]
    }
}

impl<S> IndexMut<Slot> for Connections<S> {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut Connection<S> {
        &mut self.all[slot.index()]
    }
}
