//! What a shard knows of the world outside: a clock, sockets, and when something happens on them.
//!
//! A shard is generic over its world and compiled for each, so that the real one costs what direct calls cost. The other
//! one is `crates/simulate`, where a seed makes a whole run: hours of servers that misbehave in milliseconds, each of which
//! can be had again. Randomness of a shard comes from the seed of its plan; only the real world has other: the local port
//! with which it begins, and the keys of TLS.

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;

use lastdrop_model::Micros;

pub use crate::endpoint::Address;
pub use crate::sys::{PEER_CLOSED, READABLE, WRITABLE};

/// Events that one look at the sockets gives at most.
pub const EVENTS_A_LOOK: usize = 128;

/// Why there is no connection.
#[derive(Debug)]
pub enum NoConnection<S> {
    /// This process or machine has no descriptor or memory for another socket.
    Socket(io::Error),
    /// There is a socket, and connect() failed at once.
    Connect(S, io::Error),
}

/// A clock and sockets. Sockets never block, and are told of by their edges: each change once.
pub trait World {
    type Socket: fmt::Debug;

    /// Microseconds since the clock of the run began.
    fn now_us(&self) -> Micros;

    /// Microseconds since 1970 (UTC) when it began.
    fn unix_us(&self) -> u64;

    /// A socket that connects to `to`, or is connected; `open` is how many this shard has open already.
    ///
    /// # Errors
    /// There can be no socket, or connecting failed at once.
    fn connect(
        &mut self,
        to: &Address,
        from: Option<IpAddr>,
        open: u64,
    ) -> Result<Self::Socket, NoConnection<Self::Socket>>;

    /// Tells of everything that happens on a socket, under a token.
    ///
    /// # Errors
    /// The system has no room to watch another one.
    fn watch(&mut self, socket: &Self::Socket, token: u64) -> io::Result<()>;

    /// From now on under another token. What has come meanwhile is told once more.
    ///
    /// # Errors
    /// It is not watched.
    fn watch_as(&mut self, socket: &Self::Socket, token: u64) -> io::Result<()>;

    /// Writes what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` for none; what ended the connection.
    fn send(&mut self, socket: &Self::Socket, bytes: &[u8]) -> io::Result<usize>;

    /// Reads what is there; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` for nothing; what ended the connection.
    fn recv(&mut self, socket: &Self::Socket, buffer: &mut [u8]) -> io::Result<usize>;

    fn close(&mut self, socket: Self::Socket);

    /// The shortest way there and back that the connection has seen, microseconds, where somebody measures it.
    fn round_trip_us(&self, socket: &Self::Socket) -> Option<u64>;

    /// Waits until something happens or `timeout_us` has passed; says how many events there are, at most [`EVENTS_A_LOOK`].
    ///
    /// # Errors
    /// The system cannot wait.
    fn wait(&mut self, timeout_us: Micros) -> io::Result<usize>;

    /// Token and flags of event `i` of the last wait.
    fn event(&self, i: usize) -> (u64, u32);
}

/// A socket as something that TLS writes to.
pub(crate) struct Outgoing<'w, W: World> {
    world: &'w mut W,
    socket: &'w W::Socket,
    /// Bytes that the socket has taken.
    pub sent: usize,
    /// It may be written so many times more; then it says that it would block.
    pub left: usize,
}

impl<'w, W: World> Outgoing<'w, W> {
    pub fn new(world: &'w mut W, socket: &'w W::Socket) -> Outgoing<'w, W> {
        Outgoing { world, socket, sent: 0, left: usize::MAX }
    }

    pub fn at_most(self, left: usize) -> Outgoing<'w, W> {
        Outgoing { left, ..self }
    }
}

impl<W: World> Write for Outgoing<'_, W> {
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
