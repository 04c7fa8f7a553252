//! Accepts connections: a thread for each, up to a limit.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::slots::{Slot, Slots};

/// Timeout of the connection that wakes the accepting thread at the end.
const CALL: Duration = Duration::from_millis(500);

/// Why a connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// The limit of connections is reached.
    TooMany,
    /// The system cannot start another thread; the connection is already closed.
    NoThread,
}

/// Listens on the first of the addresses that this machine has: with IPv6 alone it has no 127.0.0.1.
///
/// # Errors
/// The address that could not be used, with the error.
pub fn listen_on(addresses: &[SocketAddr]) -> Result<TcpListener, (SocketAddr, io::Error)> {
    let is_missing = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT));
    let mut first = None;
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(e) if is_missing(&e) => drop(first.get_or_insert((*address, e))),
            Err(e) => return Err((*address, e)),
        }
    }
    let none = || (SocketAddr::from(([127, 0, 0, 1], 0)), io::Error::from(io::ErrorKind::AddrNotAvailable));
    Err(first.unwrap_or_else(none))
}

/// The loopback addresses of a port: IPv4 first, IPv6 for machines without it.
#[must_use]
pub fn loopback(port: u16) -> [SocketAddr; 2] {
    [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))]
}

/// Accepts connections in its own thread; clones share their state.
#[derive(Debug, Clone, Default)]
pub struct Acceptor {
    connections: Arc<AtomicUsize>,
    slots: Arc<Slots>,
    is_over: Arc<AtomicBool>,
    address: Arc<OnceLock<SocketAddr>>,
}

/// Decrements the count of connections when one ends, even by a panic.
struct CountGuard(Arc<AtomicUsize>);

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Acceptor {
    /// Whether it has ended; connections being served check this.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Stops serving new connections and frees the address.
    pub fn end(&self) {
        let was_over = self.is_over.swap(true, Ordering::Relaxed);
        // This connection wakes the accepting thread, and is not served.
        if let (false, Some(address)) = (was_over, self.address()) {
            let _ = TcpStream::connect_timeout(address, CALL);
        }
    }

    /// The address that it listens on, once it has started.
    #[must_use]
    pub fn address(&self) -> Option<&SocketAddr> {
        self.address.get()
    }

    /// Connections being served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Starts accepting, for the life of the process or until the end. At the limit, a connection that is idle by its
    /// [`Slot`] is closed for a new one. `refuse` must not block on the client.
    ///
    /// # Errors
    /// The thread cannot start, or the listener is not valid.
    pub fn start(
        &self,
        listener: TcpListener,
        most: usize,
        stack_bytes: usize,
        serve: impl Fn(TcpStream, &Slot) + Clone + Send + 'static,
        refuse: impl Fn(Option<TcpStream>, RefusalReason) + Send + 'static,
    ) -> io::Result<()> {
        let own = self.clone();
        let _ = self.address.set(listener.local_addr()?);
        thread::Builder::new().spawn(move || own.accept(&listener, most, stack_bytes, &serve, &refuse)).map(drop)
    }

    fn accept(
        &self,
        listener: &TcpListener,
        most: usize,
        stack_bytes: usize,
        serve: &(impl Fn(TcpStream, &Slot) + Clone + Send + 'static),
        refuse: &impl Fn(Option<TcpStream>, RefusalReason),
    ) {
        for socket in listener.incoming() {
            let Ok(socket) = socket else {
                // Out of descriptors: open connections will end.
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            if self.is_over() {
                return;
            }
            self.connections.fetch_add(1, Ordering::Relaxed);
            let counted = CountGuard(Arc::clone(&self.connections));
            // The threads of closed idle connections may need a moment to end.
            let slot = if self.connections() > 4 * most { None } else { self.slots.take(&socket, most) };
            let Some(slot) = slot else {
                refuse(Some(socket), RefusalReason::TooMany);
                continue;
            };
            let serve = serve.clone();
            let one = move || {
                let _counted = counted;
                serve(socket, &slot);
            };
            if thread::Builder::new().stack_size(stack_bytes).spawn(one).is_err() {
                refuse(None, RefusalReason::NoThread);
            }
        }
    }
}
