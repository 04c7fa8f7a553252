//! Who comes in: a thread for each connection, so many at once.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::slots::{Slot, Slots};

/// How long it is tried to tell the thread that accepts that it is over.
const CALL: Duration = Duration::from_millis(500);

/// Why a connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There are as many as may be.
    TooMany,
    /// The system gives no more threads; the connection is closed already.
    NoThread,
}

/// Listens on the first of the addresses that this machine has: where there is only IPv6, 127.0.0.1 is none of them.
///
/// # Errors
/// With the address that was not to be had.
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

/// A port of this machine alone: by IPv4, or where there is only IPv6 by that.
#[must_use]
pub fn loopback(port: u16) -> [SocketAddr; 2] {
    [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))]
}

/// Accepts connections in threads of its own; copies are the same.
#[derive(Debug, Clone, Default)]
pub struct Acceptor {
    connections: Arc<AtomicUsize>,
    slots: Arc<Slots>,
    is_over: Arc<AtomicBool>,
    address: Arc<OnceLock<SocketAddr>>,
}

/// One connection less when it ends, also by a panic.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Acceptor {
    /// Is it over, for those who are served?
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// From now on nobody else is served, and the address is free again.
    pub fn end(&self) {
        let was_over = self.is_over.swap(true, Ordering::Relaxed);
        // Who waits for the next one is told by one that is not served.
        if let (false, Some(address)) = (was_over, self.address()) {
            let _ = TcpStream::connect_timeout(address, CALL);
        }
    }

    /// Where it listens, once it has begun.
    #[must_use]
    pub fn address(&self) -> Option<&SocketAddr> {
        self.address.get()
    }

    /// Connections that are being served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Begins, for as long as the process lives or until it is over. Where there are as many connections as may be, one that is idle by its
    /// [`Slot`] is ended for a new one. `refuse` must not wait for whoever it is.
    ///
    /// # Errors
    /// When there is no thread for it, or nobody listens there.
    pub fn start(
        &self,
        listener: TcpListener,
        most: usize,
        stack_bytes: usize,
        serve: impl Fn(TcpStream, &Slot) + Clone + Send + 'static,
        refuse: impl Fn(Option<TcpStream>, Refused) + Send + 'static,
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
        refuse: &impl Fn(Option<TcpStream>, Refused),
    ) {
        for socket in listener.incoming() {
            let Ok(socket) = socket else {
                // Out of descriptors: those that are open end.
                thread::sleep(Duration::from_millis(50));
                continue;
            };
            if self.is_over() {
                return;
            }
            self.connections.fetch_add(1, Ordering::Relaxed);
            let counted = Counted(Arc::clone(&self.connections));
            // The threads of those that gave way may need a moment to end.
            let slot = if self.connections() > 4 * most { None } else { self.slots.take(&socket, most) };
            let Some(slot) = slot else {
                refuse(Some(socket), Refused::TooMany);
                continue;
            };
            let serve = serve.clone();
            let one = move || {
                let _counted = counted;
                serve(socket, &slot);
            };
            if thread::Builder::new().stack_size(stack_bytes).spawn(one).is_err() {
                refuse(None, Refused::NoThread);
            }
        }
    }
}
