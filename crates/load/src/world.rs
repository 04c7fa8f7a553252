//! What a shard needs from its environment: a clock, sockets, and their events.
//!
//! A shard is generic over its world and compiled for each, so the real one costs no more than direct calls. The other
//! one is `crates/simulate`, where a seed determines a whole run: hours of misbehaving servers in milliseconds, each
//! reproducible. Randomness of a shard comes from the seed of its plan. Only the real world has more: the first local
//! port, and the keys of TLS.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;

use lastdrop_model::Micros;

pub use crate::endpoint::Address;
pub use crate::sys::{PEER_CLOSED, READABLE, WRITABLE};

/// Most events that one poll of the sockets returns.
pub const EVENTS_A_LOOK: usize = 128;

/// Why a connection could not be opened.
#[derive(Debug)]
pub enum NoConnection<S> {
    /// This process or machine has no descriptor or memory for another socket.
    Socket(io::Error),
    /// The socket exists, and connect() failed at once.
    Connect(S, io::Error),
}

/// A clock and sockets. Sockets never block and report edges: each change once.
pub trait World {
    type Socket: fmt::Debug;

    /// Microseconds since the clock of the run began.
    fn now_us(&self) -> Micros;

    /// Microseconds since 1970 (UTC) when it began.
    fn unix_us(&self) -> u64;

    /// Returns a socket that is connecting or connected to `to`; `open` is how many this shard already has open.
    ///
    /// # Errors
    /// No socket could be created, or connecting failed at once.
    fn connect(
        &mut self,
        to: &Address,
        from: Option<IpAddr>,
        open: u64,
    ) -> Result<Self::Socket, NoConnection<Self::Socket>>;

    /// Reports every event of a socket from now on, under a token.
    ///
    /// # Errors
    /// The system cannot watch another socket.
    fn watch(&mut self, socket: &Self::Socket, token: u64) -> io::Result<()>;

    /// Changes the token of a watched socket. Anything already pending is reported once more.
    ///
    /// # Errors
    /// The socket is not watched.
    fn watch_as(&mut self, socket: &Self::Socket, token: u64) -> io::Result<()>;

    /// Writes as much as the socket accepts.
    ///
    /// # Errors
    /// `WouldBlock` if it accepts nothing, or the error that ended the connection.
    fn send(&mut self, socket: &Self::Socket, bytes: &[u8]) -> io::Result<usize>;

    /// Reads what has arrived; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has, or the error that ended the connection.
    fn recv(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;

    fn close(&mut self, socket: Self::Socket);

    /// The connection's shortest round trip so far, in microseconds, if it is measured.
    fn round_trip_us(&self, socket: &Self::Socket) -> Option<u64>;

    /// Waits for events or until `timeout_us` has passed. Returns the number of events, at most [`EVENTS_A_LOOK`].
    ///
    /// # Errors
    /// The system call that waits failed.
    fn wait(&mut self, timeout_us: Micros) -> io::Result<usize>;

    /// Token and flags of event `i` of the last wait.
    fn event(&self, i: usize) -> (u64, u32);
}

/// A socket that TLS can write to.
pub(crate) struct SocketWriter<'w, W: World> {
    world: &'w mut W,
    socket: &'w W::Socket,
    /// Bytes that the socket has accepted.
    pub sent: usize,
    /// Number of writes left; after them writing reports `WouldBlock`.
    pub left: usize,
}

impl<'w, W: World> SocketWriter<'w, W> {
    pub fn new(world: &'w mut W, socket: &'w W::Socket) -> SocketWriter<'w, W> {
        SocketWriter { world, socket, sent: 0, left: usize::MAX }
    }

    pub fn at_most(self, left: usize) -> SocketWriter<'w, W> {
        SocketWriter { left, ..self }
    }
}

impl<W: World> Write for SocketWriter<'_, W> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = self.world.send(self.socket, bytes)?;
        self.left -= 1;
        self.sent += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
