//! Connections of somebody who looks at what we show, or whom we pass on: few, each on a thread of its own, with a deadline, plain
//! or with TLS on either side of it. The load has an event loop instead (`load`).

mod accept;
mod anybody;
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

pub use accept::{Acceptor, Refused, listen_on, loopback};
pub use anybody::Anybody;
pub use certificate::Certificate;
pub use slots::{Busy, Slot};
pub use verify::Verifier;

/// How long is read on after the last word, so that the other side gets to see it, and how much.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 4 << 20;

/// A socket that gives up at an instant, however few bytes trickle in until then: a handshake is many reads.
#[derive(Debug)]
pub struct Timed {
    socket: TcpStream,
    deadline: Instant,
}

impl Timed {
    /// All has to happen within this time, until another one is said.
    #[must_use]
    pub fn new(socket: TcpStream, time: Duration) -> Timed {
        let _ = socket.set_nodelay(true);
        Timed { socket, deadline: Instant::now() + time }
    }

    pub fn until(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// The first byte of what comes, left where it is; None at the end.
    ///
    /// # Errors
    /// When nothing came until the deadline.
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

/// A timeout of a blocking socket has two names.
fn named(e: io::Error) -> io::Error {
    if e.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { e }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(buffer).map_err(named)
    }
}

impl Write for Timed {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(data).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// On either side.
fn shake_hands<Data>(session: &mut ConnectionCommon<Data>, timed: &mut Timed) -> io::Result<()> {
    while session.is_handshaking() {
        if session.complete_io(timed)? == (0, 0) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[derive(Debug)]
pub enum Wire {
    Plain(Timed),
    /// We are the server.
    Server(Box<StreamOwned<ServerConnection, Timed>>),
    /// We are the client.
    Client(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Wire {
    /// The server's side of TLS, once hands are shaken.
    ///
    /// # Errors
    /// When they are not, until the deadline.
    pub fn server(mut timed: Timed, config: &Arc<ServerConfig>) -> io::Result<Wire> {
        let mut session = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        shake_hands(&mut session, &mut timed)?;
        Ok(Wire::Server(Box::new(StreamOwned::new(session, timed))))
    }

    /// The client's side of TLS with a server that is not asked who it is, once hands are shaken; its name is only what it is asked for by.
    ///
    /// # Errors
    /// When they are not, until the deadline, or the host is no name for a server.
    pub fn to_anybody(mut timed: Timed, host: &str) -> io::Result<Wire> {
        let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
        let config = anybody::anybodys_client().map_err(io::Error::other)?;
        let mut session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        shake_hands(&mut session, &mut timed)?;
        Ok(Wire::Client(Box::new(StreamOwned::new(session, timed))))
    }

    fn timed(&mut self) -> &mut Timed {
        match self {
            Wire::Plain(timed) => timed,
            Wire::Server(stream) => &mut stream.sock,
            Wire::Client(stream) => &mut stream.sock,
        }
    }

    /// All that follows has to happen until then.
    pub fn until(&mut self, deadline: Instant) {
        self.timed().deadline = deadline;
    }

    /// The same, from now.
    pub fn within(&mut self, time: Duration) {
        self.until(Instant::now() + time);
    }

    /// Reads what is there; 0 is the end, also one that is not announced.
    ///
    /// # Errors
    /// When nothing came until the deadline, or the connection is broken.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Wire::Plain(stream) => stream.read(buffer),
                Wire::Server(stream) => stream.read(buffer),
                Wire::Client(stream) => stream.read(buffer),
            };
            match result {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // Servers close without the goodbye of TLS; bodies know their own end.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
        }
    }

    /// # Errors
    /// When not all of it went out until the deadline.
    pub fn write(&mut self, data: &[u8]) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.write_all(data),
            Wire::Server(stream) => stream.write_all(data).and_then(|()| stream.flush()),
            Wire::Client(stream) => stream.write_all(data).and_then(|()| stream.flush()),
        }
    }

    /// Ends our side, and reads on for a moment: what is closed with bytes unread is reset, and takes our last words with it.
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
