//! One connection's TLS by rustls, sans-I/O: records in, records out; the socket stays with the connection.

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};

/// The parameters that TLS agreed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFacts {
    /// `TLSv1_3`
    pub version: String,
    /// `TLS13_AES_256_GCM_SHA384`
    pub cipher: String,
    /// The group of the key exchange: `X25519`.
    pub group: String,
    /// The server's own certificate, DER.
    pub certificate: Vec<u8>,
}

/// One connection's TLS.
#[derive(Debug)]
pub struct TlsSession {
    tls: ClientConnection,
    /// The server has sent close_notify, whatever its TCP connection does.
    ended: bool,
}

impl TlsSession {
    /// # Errors
    /// The configuration does not allow it.
    pub fn new(config: &Arc<ClientConfig>, name: ServerName<'static>) -> Result<TlsSession, rustls::Error> {
        ClientConnection::new(Arc::clone(config), name).map(|tls| TlsSession { tls, ended: false })
    }

    pub fn handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the server's side of the stream has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Whether the finished handshake resumed an earlier session.
    pub fn resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The protocol agreed on through ALPN, if any.
    pub fn agreed(&self) -> Option<&[u8]> {
        self.tls.alpn_protocol()
    }

    /// The parameters agreed on, under rustls's names.
    pub fn facts(&self) -> TlsFacts {
        let name = |text: String| text.trim_start_matches("Some(").trim_end_matches(')').to_string();
        TlsFacts {
            version: name(format!("{:?}", self.tls.protocol_version())),
            cipher: name(format!("{:?}", self.tls.negotiated_cipher_suite().map(|s| s.suite()))),
            group: name(format!("{:?}", self.tls.negotiated_key_exchange_group().map(|g| g.name()))),
            certificate: self.tls.peer_certificates().and_then(|c| c.first()).map_or_else(Vec::new, |c| c.to_vec()),
        }
    }

    /// Feeds input from the socket; `plain` then takes the decrypted bytes with [`TlsSession::read`].
    ///
    /// # Errors
    /// The input is not valid TLS. An alert may then be waiting to be written.
    pub fn feed(&mut self, mut data: &[u8], mut plain: impl FnMut(&mut Self)) -> Result<(), rustls::Error> {
        while !data.is_empty() {
            let taken = match self.tls.read_tls(&mut data) {
                Ok(n) => n,
                // Its buffer is full of unread data.
                Err(_) => return Err(rustls::Error::General("a record without an end".into())),
            };
            self.ended |= self.tls.process_new_packets()?.peer_has_closed();
            plain(self);
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reads decrypted bytes; 0 if there are none now.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        self.tls.reader().read(buffer).unwrap_or(0)
    }

    /// Takes bytes to send. Returns how many fit.
    pub fn write(&mut self, data: &[u8]) -> usize {
        self.tls.writer().write(data).unwrap_or(0)
    }

    pub fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Writes records until none are left or the socket accepts no more.
    ///
    /// # Errors
    /// The error of the socket; `WouldBlock` is one.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(socket)?;
        }
        Ok(())
    }

    /// Sends close_notify, if the socket accepts it.
    pub fn say_goodbye(&mut self, socket: &mut impl Write) {
        self.tls.send_close_notify();
        let _ = self.flush(socket);
    }
}
