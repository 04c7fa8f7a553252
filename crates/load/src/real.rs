//! The world of this machine: its clock, and its sockets through epoll.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use lastdrop_model::Micros;
use lastdrop_model::plan::Network;

use crate::clock::RunClock;
use crate::endpoint::Address;
use crate::part::AllowedNetworks;
use crate::ports::LocalPorts;
use crate::sys::{self, Poller, SocketOptions};
use crate::world::{EVENTS_A_LOOK, NoConnection, World};

/// This machine.
#[derive(Debug)]
pub struct RealWorld {
    clock: RunClock,
    poller: Poller,
    ports: LocalPorts,
    options: SocketOptions,
    /// Where it may connect to; `None` means anywhere.
    allow: Option<AllowedNetworks>,
}

impl RealWorld {
    /// The world of thread `thread` of `threads`.
    ///
    /// # Errors
    /// The system cannot create an epoll instance.
    pub fn new(clock: RunClock, network: &Network, thread: usize, threads: usize) -> io::Result<RealWorld> {
        let mut options = SocketOptions {
            receive_buffer_bytes: network.receive_buffer_bytes,
            send_buffer_bytes: network.send_buffer_bytes,
        };
        if let Some(bandwidth) = network.bandwidth_bytes {
            // With the kernel's buffers of megabytes a slow reader would not slow the server down.
            let buffer = (bandwidth / 4).clamp(2048, 1 << 20) as u32;
            options.receive_buffer_bytes.get_or_insert(buffer);
            options.send_buffer_bytes.get_or_insert(buffer);
        }
        let ports = LocalPorts::new(thread, threads);
        Ok(RealWorld { clock, poller: Poller::new(EVENTS_A_LOOK)?, ports, options, allow: None })
    }

    /// Restricts connections to what is allowed.
    #[must_use]
    pub fn within(self, allow: Option<AllowedNetworks>) -> RealWorld {
        RealWorld { allow, ..self }
    }
}

impl World for RealWorld {
    type Socket = OwnedFd;

    #[inline]
    fn now_us(&self) -> Micros {
        self.clock.now_us()
    }

    fn unix_us(&self) -> u64 {
        self.clock.unix_us()
    }

    fn connect(&mut self, to: &Address, from: Option<IpAddr>, open: u64) -> Result<OwnedFd, NoConnection<OwnedFd>> {
        if self.allow.as_ref().is_some_and(|allow| !allow.allows(to)) {
            // Fail as a firewall would make it fail.
            let socket = sys::socket(to, &self.options).map_err(NoConnection::Socket)?;
            return Err(NoConnection::Connect(socket, io::Error::other("this agent may not connect there (--allow)")));
        }
        self.ports.connect(to, &self.options, from, open)
    }

    fn watch(&mut self, socket: &OwnedFd, token: u64) -> io::Result<()> {
        self.poller.watch(socket.as_raw_fd(), token)
    }

    fn watch_as(&mut self, socket: &OwnedFd, token: u64) -> io::Result<()> {
        self.poller.watch_as(socket.as_raw_fd(), token)
    }

    #[inline]
    fn send(&mut self, socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        sys::send(socket.as_raw_fd(), bytes)
    }

    #[inline]
    fn recv(&mut self, socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        sys::recv(socket.as_raw_fd(), buffer)
    }

    #[inline]
    fn close(&mut self, socket: OwnedFd) {
        drop(socket);
    }

    fn round_trip_us(&self, socket: &OwnedFd) -> Option<u64> {
        sys::round_trip_us(socket.as_raw_fd())
    }

    #[inline]
    fn wait(&mut self, timeout_us: Micros) -> io::Result<usize> {
        self.poller.wait(timeout_us)
    }

    #[inline]
    fn event(&self, i: usize) -> (u64, u32) {
        self.poller.event(i)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_to_what_is_not_allowed_is_refused_before_it_is_made() {
        let listener = TcpListener::bind("127.0.0.2:0").expect("an address of this machine");
        listener.set_nonblocking(true).expect("set");
        let to = Address::Tcp(listener.local_addr().expect("its address"));
        let world = |allow: &str| {
            let real = RealWorld::new(RunClock::start(), &Network::default(), 0, 1).expect("a world");
            real.within(Some(AllowedNetworks::only([allow.parse().expect("a network")])))
        };
        match world("127.0.0.1").connect(&to, None, 0) {
            Err(NoConnection::Connect(_, e)) => assert!(e.to_string().contains("--allow"), "{e}"),
            other => panic!("{:?}", other.map(drop).map_err(drop)),
        }
        assert!(listener.accept().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock), "somebody came");
        let open = world("127.0.0.2").connect(&to, None, 0);
        assert!(open.is_ok());
        listener.set_nonblocking(false).expect("set");
        assert!(listener.accept().is_ok());
    }
}
