//! Who comes in: a thread for each connection, so many at once.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Why a connection is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There are as many as may be.
    TooMany,
    /// The system gives no more threads; the connection is closed already.
    NoThread,
}

/// Accepts connections in threads of its own; copies are the same.
#[derive(Debug, Clone, Default)]
pub struct Acceptor {
    connections: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
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

    /// From now on nobody else is served.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Connections that are being served.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Begins, for as long as the process lives or until it is over. `refuse` must not wait for whoever it is.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(
        &self,
        listener: TcpListener,
        most: usize,
        stack_bytes: usize,
        serve: impl Fn(TcpStream) + Clone + Send + 'static,
        refuse: impl Fn(Option<TcpStream>, Refused) + Send + 'static,
    ) -> io::Result<()> {
        let own = self.clone();
        thread::Builder::new().spawn(move || own.accept(&listener, most, stack_bytes, &serve, &refuse)).map(drop)
    }

    fn accept(
        &self,
        listener: &TcpListener,
        most: usize,
        stack_bytes: usize,
        serve: &(impl Fn(TcpStream) + Clone + Send + 'static),
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
            if self.connections() > most {
                refuse(Some(socket), Refused::TooMany);
                continue;
            }
            let serve = serve.clone();
            let one = move || {
                let _counted = counted;
                serve(socket);
            };
            if thread::Builder::new().stack_size(stack_bytes).spawn(one).is_err() {
                refuse(None, Refused::NoThread);
            }
        }
    }
}
