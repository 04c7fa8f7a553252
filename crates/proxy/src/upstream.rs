//! The server's side: a connection for one request, and its answer as it arrives.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use lastdrop_http::{ResponseParser, Sink};
use lastdrop_model::Url;
use lastdrop_wire::{DeadlineSocket, Wire};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::bounds;

/// A piece of an answer.
#[derive(Debug, Default)]
pub struct AnswerPiece {
    /// The fields of the head, once.
    pub fields: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl Sink for AnswerPiece {
    fn field(&mut self, name: &str, value: &[u8]) {
        self.fields.push((name.to_string(), value.to_vec()));
    }

    fn body(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }
}

/// An answer that is arriving.
#[derive(Debug)]
pub struct Upstream {
    wire: Wire,
    parser: ResponseParser,
    is_over: bool,
    /// How long the server may be silent.
    patience: Duration,
}

impl Upstream {
    /// Sets how long the server may be silent.
    pub fn patient(self, patience: Duration) -> Upstream {
        Upstream { patience, ..self }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Why there will be no answer, for a person to read.
    pub fn send(
        url: &Url,
        tls: &Arc<ClientConfig>,
        is_head: bool,
        head: &[u8],
        body: &[u8],
    ) -> Result<Upstream, String> {
        let mut wire = connect(url, tls)?;
        let failed = |e: std::io::Error| match e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(why)) => format!(
                "the certificate of {} is not to be trusted ({why:?}); --ca FILE names its authority, --insecure looks away",
                url.origin()
            ),
            _ => format!("{} takes no request: {e}", url.origin()),
        };
        wire.within(bounds::SILENCE);
        wire.write(head).map_err(failed)?;
        for piece in body.chunks(256 * 1024) {
            wire.within(bounds::SILENCE);
            // A server that needs no more of the body may already have answered.
            if wire.write(piece).is_err() {
                break;
            }
        }
        let mut parser = ResponseParser::default();
        parser.start(is_head);
        Ok(Upstream { wire, parser, is_over: false, patience: bounds::SILENCE })
    }

    /// Returns the next piece; `None` at the end.
    ///
    /// # Errors
    /// The answer is incomplete, or not HTTP.
    pub fn next(&mut self) -> Result<Option<AnswerPiece>, String> {
        let mut buffer = [0; 16 * 1024];
        let mut piece = AnswerPiece::default();
        while !self.is_over {
            self.wire.within(self.patience);
            let n = self.wire.read(&mut buffer).map_err(|e| format!("no whole answer: {e}"))?;
            if n == 0 {
                self.is_over = true;
                return if self.parser.close() { Ok(None) } else { Err("the answer ends in its middle".into()) };
            }
            let had_head = self.parser.has_head();
            let feed = self.parser.feed(&buffer[..n], &mut piece).map_err(|e| format!("no answer over HTTP: {e}"))?;
            self.is_over = feed.complete;
            if !piece.body.is_empty() || had_head != self.parser.has_head() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }

    /// The status of the answer, once its head has arrived.
    pub fn status(&self) -> u16 {
        self.parser.status()
    }
}

fn connect(url: &Url, tls: &Arc<ClientConfig>) -> Result<Wire, String> {
    let addresses = (url.host.as_str(), url.port).to_socket_addrs();
    let addresses = addresses.map_err(|e| format!("the host '{}' cannot be resolved: {e}", url.host))?;
    let mut error = format!("the host '{}' has no address", url.host);
    for address in addresses {
        match TcpStream::connect_timeout(&address, bounds::CONNECT) {
            Err(e) => error = format!("nothing can be connected to at {} ({address}): {e}", url.origin()),
            Ok(socket) if !url.tls => return Ok(Wire::Plain(DeadlineSocket::new(socket, bounds::HEAD))),
            Ok(socket) => {
                let name = ServerName::try_from(url.host.clone())
                    .map_err(|_| format!("'{}' cannot be the name of a TLS server", url.host))?;
                let session = ClientConnection::new(Arc::clone(tls), name).map_err(|e| e.to_string())?;
                return Ok(Wire::Client(Box::new(StreamOwned::new(
                    session,
                    DeadlineSocket::new(socket, bounds::HEAD),
                ))));
            }
        }
    }
    Err(error)
}
