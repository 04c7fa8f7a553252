//! Accepts connections, and holds the mode of the proxy.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use lastdrop_model::Url;
use lastdrop_wire::{Acceptor, DeadlineSocket, RefusalReason, Slot, Wire, listen_on};
use rustls::ClientConfig;

use crate::authority::{Authority, Certificates};
use crate::connection;
use crate::recorder::Recorder;
use crate::rewrite::Names;
use crate::{bounds, exchange};

/// How the proxy stands between browser and server.
#[derive(Debug)]
pub enum ProxyMode {
    /// It represents this server.
    Reverse(Url),
    /// The browser is configured to use it; it passes requests on to the hosts of these certificates.
    Forward(Certificates),
}

impl ProxyMode {
    /// Passes requests on to the hosts that an authority has certificates for.
    #[must_use]
    pub fn forward(authority: &Authority) -> ProxyMode {
        ProxyMode::Forward(Arc::clone(&authority.certificates))
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

/// State that all connections share.
#[derive(Debug)]
pub struct ProxyState {
    pub way: ProxyMode,
    /// Set in a reverse proxy.
    pub names: Option<Names>,
    /// The names by which a Host header may address the proxy.
    pub own: Vec<String>,
    pub tls: Arc<ClientConfig>,
    pub recorder: Recorder,
    acceptor: Acceptor,
}

impl ProxyState {
    /// Whether the recording is over.
    pub fn is_over(&self) -> bool {
        self.acceptor.is_over()
    }
}

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<ProxyState>,
}

impl Proxy {
    /// Listens on the first of the addresses that this machine has, in its own threads, for the life of the process.
    /// `tls` is how servers are verified.
    ///
    /// # Errors
    /// It cannot listen, or other machines could reach it.
    pub fn start(
        listen: &[SocketAddr],
        way: ProxyMode,
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
            ProxyMode::Reverse(server) => Some(Names::new(server, &own)),
            ProxyMode::Forward(_) => None,
        };
        let acceptor = Acceptor::default();
        let shared = Arc::new(ProxyState { way, names, own, tls, recorder, acceptor });
        let accepting = Arc::clone(&shared);
        let telling = Arc::clone(&shared);
        let serve = move |socket, slot: &Slot| {
            connection::serve(Wire::Plain(DeadlineSocket::new(socket, bounds::HEAD)), slot, &accepting);
        };
        let refuse = move |socket: Option<TcpStream>, why| {
            telling.recorder.trouble(match why {
                RefusalReason::TooMany => format!("refused: more than {} connections at once", bounds::CONNECTIONS),
                RefusalReason::NoThread => "refused: the system gives no more threads".into(),
            });
            socket.into_iter().for_each(refuse);
        };
        shared.acceptor.start(listener, bounds::CONNECTIONS, bounds::STACK_BYTES, serve, refuse).map_err(failed)?;
        Ok(Proxy { address, shared })
    }

    /// Ends the recording: later requests are refused.
    #[must_use]
    pub fn end(&self) -> &Recorder {
        self.shared.acceptor.end();
        &self.shared.recorder
    }
}

/// Refuses without waiting for the client.
fn refuse(socket: TcpStream) {
    if socket.set_nonblocking(true).is_ok() {
        let answer = exchange::plain_answer(503, "Too many connections at once.");
        let _ = std::io::Write::write(&mut &socket, &answer);
    }
}
