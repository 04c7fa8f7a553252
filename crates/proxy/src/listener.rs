//! Who comes in, and in which of the two ways the proxy stands.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use lastdrop_model::Url;
use rustls::ClientConfig;

use crate::authority::{Authority, Certificates};
use crate::connection;
use crate::recorder::Recorder;
use crate::rewrite::Names;
use crate::wire::{Timed, Wire};
use crate::{bounds, exchange};

/// In which way it stands between browser and server.
#[derive(Debug)]
pub enum Way {
    /// It stands for this server.
    Reverse(Url),
    /// The browser knows of it; it passes on what is for the hosts of these certificates.
    Forward(Certificates),
}

impl Way {
    /// For the hosts that an authority has certificates for.
    #[must_use]
    pub fn forward(authority: &Authority) -> Way {
        Way::Forward(Arc::clone(&authority.certificates))
    }
}

/// Why it does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("{0} is not an address of this machine alone; a recording listens on loopback, such as 127.0.0.1:8888")]
    NotLoopback(SocketAddr),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    pub way: Way,
    /// Of a reverse proxy.
    pub names: Option<Names>,
    /// How the proxy may be called in a Host header.
    pub own: Vec<String>,
    pub tls: Arc<ClientConfig>,
    pub recorder: Recorder,
    connections: AtomicUsize,
    is_over: AtomicBool,
}

impl Shared {
    /// Is the recording over?
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// A proxy that is being used.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens, in threads of its own, as long as the process lives; `tls` is how servers are verified.
    ///
    /// # Errors
    /// When it cannot, or would be seen by other machines.
    pub fn start(
        listen: SocketAddr,
        way: Way,
        tls: Arc<ClientConfig>,
        recorder: Recorder,
    ) -> Result<Proxy, ProxyError> {
        if !listen.ip().is_loopback() {
            return Err(ProxyError::NotLoopback(listen));
        }
        let failed = |e| ProxyError::Listen(listen, e);
        let listener = TcpListener::bind(listen).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let own = vec![address.to_string(), format!("localhost:{}", address.port())];
        let names = match &way {
            Way::Reverse(server) => Some(Names::new(server, &own)),
            Way::Forward(_) => None,
        };
        let (connections, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { way, names, own, tls, recorder, connections, is_over });
        let accepting = Arc::clone(&shared);
        thread::Builder::new().spawn(move || accept(&listener, &accepting)).map_err(failed)?;
        Ok(Proxy { address, shared })
    }

    /// Ends the recording: what is asked from now on is refused.
    #[must_use]
    pub fn end(&self) -> &Recorder {
        self.shared.is_over.store(true, Ordering::Relaxed);
        &self.shared.recorder
    }
}

/// One connection less when it ends, also by a panic.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for socket in listener.incoming() {
        let Ok(socket) = socket else {
            // Out of descriptors: those that are open end.
            thread::sleep(std::time::Duration::from_millis(50));
            continue;
        };
        if shared.is_over() {
            return;
        }
        let one = Arc::clone(shared);
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= bounds::CONNECTIONS {
            let _counted = Counted(&shared.connections);
            shared.recorder.trouble(format!("refused: more than {} connections at once", bounds::CONNECTIONS));
            refuse(socket);
            continue;
        }
        let serve = move || {
            let _counted = Counted(&one.connections);
            connection::serve(Wire::Plain(Timed::new(socket)), &one);
        };
        if thread::Builder::new().stack_size(bounds::STACK_BYTES).spawn(serve).is_err() {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            shared.recorder.trouble("refused: the system gives no more threads");
        }
    }
}

/// Without waiting for whoever it is.
fn refuse(socket: TcpStream) {
    if socket.set_nonblocking(true).is_ok() {
        let answer = exchange::plain_answer(503, "Too many connections at once.");
        let _ = std::io::Write::write(&mut &socket, &answer);
    }
}
