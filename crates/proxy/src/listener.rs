//! Who comes in, and in which of the two ways the proxy stands.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use lastdrop_model::Url;
use lastdrop_wire::{Acceptor, Refused, Slot, Timed, Wire, listen_on};
use rustls::ClientConfig;

use crate::authority::{Authority, Certificates};
use crate::connection;
use crate::recorder::Recorder;
use crate::rewrite::Names;
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
    acceptor: Acceptor,
}

impl Shared {
    /// Is the recording over?
    pub fn is_over(&self) -> bool {
        self.acceptor.is_over()
    }
}

/// A proxy that is being used.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on the first of the addresses that this machine has, in threads of its own, as long as the process lives; `tls` is how servers are verified.
    ///
    /// # Errors
    /// When it cannot, or would be seen by other machines.
    pub fn start(
        listen: &[SocketAddr],
        way: Way,
        tls: Arc<ClientConfig>,
        recorder: Recorder,
    ) -> Result<Proxy, ProxyError> {
        if let Some(other) = listen.iter().find(|address| !address.ip().is_loopback()) {
            return Err(ProxyError::NotLoopback(*other));
        }
        let listener = listen_on(listen).map_err(|(address, e)| ProxyError::Listen(address, e))?;
        let failed = |e| ProxyError::Listen(listen[0], e);
        let address = listener.local_addr().map_err(failed)?;
        let own = vec![address.to_string(), format!("localhost:{}", address.port())];
        let names = match &way {
            Way::Reverse(server) => Some(Names::new(server, &own)),
            Way::Forward(_) => None,
        };
        let acceptor = Acceptor::default();
        let shared = Arc::new(Shared { way, names, own, tls, recorder, acceptor });
        let accepting = Arc::clone(&shared);
        let telling = Arc::clone(&shared);
        let serve = move |socket, slot: &Slot| {
            connection::serve(Wire::Plain(Timed::new(socket, bounds::HEAD)), slot, &accepting);
        };
        let refuse = move |socket: Option<TcpStream>, why| {
            telling.recorder.trouble(match why {
                Refused::TooMany => format!("refused: more than {} connections at once", bounds::CONNECTIONS),
                Refused::NoThread => "refused: the system gives no more threads".into(),
            });
            socket.into_iter().for_each(refuse);
        };
        shared.acceptor.start(listener, bounds::CONNECTIONS, bounds::STACK_BYTES, serve, refuse).map_err(failed)?;
        Ok(Proxy { address, shared })
    }

    /// Ends the recording: what is asked from now on is refused.
    #[must_use]
    pub fn end(&self) -> &Recorder {
        self.shared.acceptor.end();
        &self.shared.recorder
    }
}

/// Without waiting for whoever it is.
fn refuse(socket: TcpStream) {
    if socket.set_nonblocking(true).is_ok() {
        let answer = exchange::plain_answer(503, "Too many connections at once.");
        let _ = std::io::Write::write(&mut &socket, &answer);
    }
}
