//! A connection: its socket, the layers on it, and its state; and all connections of a thread.

use std::ops::{Index, IndexMut};

use lastdrop_http::h2::Limits;
use lastdrop_model::Micros;

use super::tls::TlsSession;
use crate::ids::{Slot, StreamId};
use crate::protocol::{Carriers, HttpState, SharedWire, Wire};

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

/// The layers between HTTP and the socket.
#[derive(Debug, Default)]
pub struct Layers {
    /// CONNECT has not been answered yet.
    pub tunnel: bool,
    pub tls: Option<Box<TlsSession>>,
}

/// When a connection was opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectTimes {
    pub begun: Micros,
    /// 0 until connect() has succeeded.
    pub connected: Micros,
}

/// When the next bytes may follow on a connection of limited bandwidth.
#[derive(Debug, Default)]
pub struct Pace {
    pub read_from: Micros,
    pub write_from: Micros,
    /// When the alarm is set that brings the loop back.
    pub alarm_at: Micros,
}

/// One connection slot: at most one socket.
#[derive(Debug)]
pub struct Connection<S> {
    pub state: State,
    /// The server has closed its side.
    pub peer_closed: bool,
    /// connect() failed at once; the request fails in the loop's next turn.
    pub doomed: bool,
    /// HTTP/2: no further request begins on it. It does not count against the limit of connections.
    pub retired: bool,
    /// HTTP/2: the user whose connection it is, if users do not share.
    pub owner: u32,
    /// The reason, if the caller wants it.
    pub error: Option<Box<str>>,
    pub socket: Option<S>,
    /// Distinguishes this socket's events from those of an earlier one in the same slot.
    pub generation: u32,
    /// Index of the server that the socket goes to.
    pub endpoint: u32,
    /// Requests begun on this socket.
    pub served: u32,
    pub dialed: ConnectTimes,
    /// Set with a limited bandwidth, once bytes have gone.
    pub pace: Option<Box<Pace>>,
    pub layers: Layers,
    pub wire: HttpState,
}

impl<S> Connection<S> {
    pub fn new(wire: HttpState) -> Connection<S> {
        Connection {
            state: State::Closed,
            peer_closed: false,
            doomed: false,
            retired: false,
            owner: 0,
            error: None,
            socket: None,
            generation: 0,
            endpoint: 0,
            served: 0,
            dialed: ConnectTimes::default(),
            pace: None,
            layers: Layers::default(),
            wire,
        }
    }

    /// Requests in flight on a connection that several share.
    #[inline]
    pub fn wire_load(&self) -> usize {
        match &self.wire {
            HttpState::One(_) => 0,
            HttpState::Two(wire) => wire.in_flight(),
        }
    }

    #[inline]
    pub fn token(&self, slot: Slot) -> u64 {
        u64::from(self.generation) << 32 | u64::from(slot.0)
    }

    /// Whether the connection had served another request before the one in flight.
    pub fn reused(&self) -> bool {
        self.served > 1
    }

    /// Whether it has a request in flight.
    pub fn busy(&self) -> bool {
        !matches!(self.state, State::Closed | State::Idle)
    }

    /// Whether what arrives on it is read.
    pub fn is_heard(&self) -> bool {
        match self.state {
            State::Closed | State::Connecting => false,
            State::Idle => self.wire.is_heard_idle(),
            _ => true,
        }
    }

    /// Whether a request may begin on it.
    #[inline]
    pub fn has_room(&self) -> bool {
        match &self.wire {
            HttpState::One(_) => self.state == State::Idle,
            HttpState::Two(wire) => {
                wire.has_room()
                    && !self.retired
                    && !self.peer_closed
                    && matches!(self.state, State::Idle | State::Waiting | State::Writing)
            }
        }
    }
}

/// The connections of a thread, by slot.
#[derive(Debug)]
pub struct Connections<S> {
    all: Vec<Connection<S>>,
    carriers: Carriers,
}

impl<S> Connections<S> {
    /// Connections of HTTP/1, one for each stream.
    pub fn new(slots: usize) -> Connections<S> {
        let connection = |_| Connection::new(HttpState::One(Wire::default()));
        Connections { all: (0..slots).map(connection).collect(), carriers: Carriers::Same }
    }

    /// Connections of HTTP/2, which `streams` share.
    pub fn shared(slots: usize, streams: usize, limits: Limits) -> Connections<S> {
        let connection = |_| Connection::new(HttpState::Two(Box::new(SharedWire::new(limits))));
        let nowhere = Slot(slots as u32);
        Connections { all: (0..=slots).map(connection).collect(), carriers: Carriers::Shared(vec![nowhere; streams]) }
    }

    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Connection<S>)> {
        self.all.iter().enumerate().map(|(at, c)| (Slot(at as u32), c))
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<S> {
        (0..self.all.len() as u32).map(Slot)
    }

    /// The slot of the connection that carries a stream or will carry it.
    #[inline]
    pub fn carrier(&self, stream: StreamId) -> Slot {
        self.carriers.slot_of(stream)
    }

    /// Gives a stream the connection in `found`. Returns the slot to use.
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
