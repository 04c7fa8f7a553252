//! Blocking connections for the small servers and the proxy of lastdrop. They are few, each on its own thread, with a
//! deadline, plain or with TLS on either side. The load has an event loop instead (`load`).

mod accept;
mod accept_any;
pub mod certificate;
pub mod pem;
mod slots;
pub mod verify;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ConnectionCommon, ServerConfig, ServerConnection, StreamOwned};

pub use accept::{Acceptor, RefusalReason, listen_on, loopback};
pub use accept_any::AcceptAnyCertificate;
pub use certificate::Certificate;
pub use slots::{BusyGuard, Slot};
pub use verify::Verifier;

/// How long, and how much, to read after the last write, so that the peer receives it.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 << 20;

/// A socket with a deadline that holds however slowly bytes trickle in: a handshake is many reads.
#[derive(Debug)]
pub struct DeadlineSocket {
    socket: TcpStream,
    deadline: Instant,
}

impl DeadlineSocket {
    /// Everything has to happen within this time, until another deadline is set.
    #[must_use]
    pub fn new(socket: TcpStream, time: Duration) -> DeadlineSocket {
        let _ = socket.set_nodelay(true);
        DeadlineSocket { socket, deadline: Instant::now() + time }
    }

    pub fn until(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Returns the first byte that arrives, without consuming it; `None` at the end.
    ///
    /// # Errors
    /// Nothing arrived by the deadline.
    pub fn first_byte(&mut self) -> io::Result<Option<u8>> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        let mut byte = [0];
        Ok((self.socket.peek(&mut byte)? > 0).then_some(byte[0]))
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

/// Maps the two errors of a timeout on a blocking socket to one.
fn named(e: io::Error) -> io::Error {
    if e.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { e }
}

impl Read for DeadlineSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(buffer).map_err(named)
    }
}

impl Write for DeadlineSocket {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(data).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Completes a TLS handshake, on either side.
fn shake_hands<Data>(session: &mut ConnectionCommon<Data>, timed: &mut DeadlineSocket) -> io::Result<()> {
    while session.is_handshaking() {
        if session.complete_io(timed)? == (0, 0) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[derive(Debug)]
pub enum Wire {
    Plain(DeadlineSocket),
    /// TLS, with this side as the server.
    Server(Box<StreamOwned<ServerConnection, DeadlineSocket>>),
    /// TLS, with this side as the client.
    Client(Box<StreamOwned<ClientConnection, DeadlineSocket>>),
}

impl Wire {
    /// Completes the server's side of a TLS handshake.
    ///
    /// # Errors
    /// The handshake failed, or did not complete by the deadline.
    pub fn server(mut timed: DeadlineSocket, config: &Arc<ServerConfig>) -> io::Result<Wire> {
        let mut session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        shake_hands(&mut session, &mut timed)?;
        Ok(Wire::Server(Box::new(StreamOwned::new(session, timed))))
    }

    /// Completes the client's side of a TLS handshake, without verifying the server; `host` is only sent as its name.
    ///
    /// # Errors
    /// The handshake failed, or did not complete by the deadline; or the host is not a valid server name.
    pub fn client_unverified(mut timed: DeadlineSocket, host: &str) -> io::Result<Wire> {
        let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
        let config = accept_any::unverified_client().map_err(io::Error::other)?;
        let mut session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        shake_hands(&mut session, &mut timed)?;
        Ok(Wire::Client(Box::new(StreamOwned::new(session, timed))))
    }

    fn timed(&mut self) -> &mut DeadlineSocket {
        match self {
            Wire::Plain(timed) => timed,
            Wire::Server(stream) => &mut stream.sock,
            Wire::Client(stream) => &mut stream.sock,
        }
    }

    /// Sets the deadline of everything that follows.
    pub fn until(&mut self, deadline: Instant) {
        self.timed().deadline = deadline;
    }

    /// Sets the deadline from now.
    pub fn within(&mut self, time: Duration) {
        self.until(Instant::now() + time);
    }

    /// Reads what has arrived; 0 is the end, announced or not.
    ///
    /// # Errors
    /// Nothing arrived by the deadline, or the connection is broken.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Wire::Plain(stream) => stream.read(buffer),
                Wire::Server(stream) => stream.read(buffer),
                Wire::Client(stream) => stream.read(buffer),
            };
            match result {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // Servers close without close_notify; bodies know their own end.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
        }
    }

    /// # Errors
    /// Not everything was written by the deadline.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.write_all(data),
            Wire::Server(stream) => stream.write_all(data).and_then(|()| stream.flush()),
            Wire::Client(stream) => stream.write_all(data).and_then(|()| stream.flush()),
        }
    }

    /// Closes our side and reads on for a moment. Closing with bytes unread would reset the connection and lose our
    /// last bytes.
    pub fn linger(&mut self) {
        self.within(LINGER);
        if let Wire::Server(stream) = self {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        let _ = self.timed().socket.shutdown(Shutdown::Write);
        let (mut buffer, mut read) = ([0; 16 * 1024], 0);
        while let Ok(n @ 1..) = self.timed().read(&mut buffer) {
            read += n;
            if read > LINGER_BYTES {
                return;
            }
        }
    }
}
