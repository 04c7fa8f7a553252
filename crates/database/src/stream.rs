//! A connection to a database. Each exchange has one deadline, however slowly its bytes come, and a limit for the bytes
//! read. The connection also knows whether a password may be sent over it: see [`Stream::distrust`].

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lastdrop_model::{DatabaseService, TroubleKind};
use lastdrop_probe::namespace::Namespace;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::{Uid, User};
use rustls::{ClientConnection, StreamOwned};

use crate::access::{Access, DatabaseAddress, TlsMode};
use crate::failure::Failure;
use crate::tls;

/// Deadline of one exchange.
pub(crate) const EXCHANGE: Duration = Duration::from_secs(2);
/// Most bytes read in one exchange. A thousand sessions with statements of 2,000 characters are 2 MB.
const MOST_BYTES: usize = 16 << 20;

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket with a deadline and a limit for the bytes read.
struct BoundedSocket {
    socket: Socket,
    deadline: Instant,
    bytes_left: usize,
}

enum Transport {
    Plain(BoundedSocket),
    Tls(Box<StreamOwned<ClientConnection, BoundedSocket>>),
}

pub(crate) struct Stream {
    transport: Transport,
    distrust: Option<String>,
}

impl Stream {
    /// Connects within the namespaces of `access.within` and, over a unix socket, as the user `access.as_user`.
    pub fn connect(access: &Access) -> Result<Stream, Failure> {
        let (socket, distrust) = match &access.address {
            DatabaseAddress::Tcp(host, port) => {
                let inside = |pid: i32| Namespace::of(pid).and_then(|n| n.apart(|| tcp(host, *port)));
                let tcp = access.within.map_or_else(|| tcp(host, *port), inside).map_err(|e| refused(&e, access))?;
                (Socket::Tcp(tcp), Some("the connection is not encrypted".into()))
            }
            DatabaseAddress::Unix(path) => {
                let unix = unix(path, access).map_err(|e| refused(&e, access))?;
                let distrust = distrust_of_peer(&unix, access)?;
                (Socket::Unix(unix), distrust)
            }
        };
        let bounded = BoundedSocket { socket, deadline: Instant::now() + EXCHANGE, bytes_left: MOST_BYTES };
        Ok(Stream { transport: Transport::Plain(bounded), distrust })
    }

    /// True if TLS is to be requested on this connection.
    pub fn wants_tls(&self, access: &Access) -> bool {
        matches!(&self.transport, Transport::Plain(BoundedSocket { socket: Socket::Tcp(_), .. }))
            && access.tls.mode != TlsMode::Never
    }

    /// Performs the TLS handshake, after both sides have agreed on TLS.
    pub fn encrypted(self, access: &Access) -> Result<Stream, Failure> {
        let (Transport::Plain(mut bounded), DatabaseAddress::Tcp(host, _)) = (self.transport, &access.address) else {
            return Err(Failure::protocol("TLS within TLS"));
        };
        let (session, distrust) = tls::handshake(host, &access.tls, &mut bounded)?;
        let distrust = distrust.map(|why| format!("its certificate is not trusted ({why})"));
        if let (TlsMode::Verified, Some(why)) = (access.tls.mode, &distrust) {
            let advice =
                "name its authority, or the certificate itself, with --db-ca FILE, and the host as it is named there";
            return Err(Failure::new(TroubleKind::Other, format!("{why}; {advice}")));
        }
        Ok(Stream { transport: Transport::Tls(Box::new(StreamOwned::new(session, bounded))), distrust })
    }

    /// Why no password may be sent over this connection: the identity of the server is not verified. None for TLS with
    /// a verified certificate, and for a unix socket of root, of the database's user, or of our own user.
    pub fn distrust(&self) -> Option<&str> {
        self.distrust.as_deref()
    }

    /// Begins a new exchange, with its own deadline and limit.
    pub fn begin(&mut self) {
        let bounded = match &mut self.transport {
            Transport::Plain(bounded) => bounded,
            Transport::Tls(stream) => &mut stream.sock,
        };
        bounded.deadline = Instant::now() + EXCHANGE;
        bounded.bytes_left = MOST_BYTES;
    }
}

impl BoundedSocket {
    fn time_left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for BoundedSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = Some(self.time_left()?);
        if self.bytes_left == 0 {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let most = into.len().min(self.bytes_left);
        let into = &mut into[..most];
        let n = match &mut self.socket {
            Socket::Tcp(s) => s.set_read_timeout(left).and_then(|()| s.read(into)),
            Socket::Unix(s) => s.set_read_timeout(left).and_then(|()| s.read(into)),
        }?;
        self.bytes_left -= n;
        Ok(n)
    }
}

impl Write for BoundedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = Some(self.time_left()?);
        match &mut self.socket {
            Socket::Tcp(s) => s.set_write_timeout(left).and_then(|()| s.write(bytes)),
            Socket::Unix(s) => s.set_write_timeout(left).and_then(|()| s.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.transport {
            Transport::Plain(bounded) => bounded.read(into),
            Transport::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.transport {
            Transport::Plain(bounded) => bounded.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.transport {
            Transport::Plain(bounded) => bounded.flush(),
            Transport::Tls(stream) => stream.flush(),
        }
    }
}

/// The users that databases run as by default.
fn users_of(service: DatabaseService) -> &'static [&'static str] {
    match service {
        DatabaseService::Mysql => &["mysql", "mariadb"],
        DatabaseService::Postgresql => &["postgres"],
    }
}

/// Why the process at the other end of a unix socket is not trusted. With `requirepeer`, any other user is an error.
fn distrust_of_peer(unix: &UnixStream, access: &Access) -> Result<Option<String>, Failure> {
    let peer = socket::getsockopt(unix, socket::sockopt::PeerCredentials).map_err(|e| refused(&e.into(), access))?;
    let uid = Uid::from_raw(peer.uid());
    let name = User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    let usual = users_of(access.service);
    match &access.server_user {
        Some(required) if *required == name || *required == uid.to_string() => Ok(None),
        Some(required) => Err(Failure::new(
            TroubleKind::Denied,
            format!("the socket of {access} is of user {name}, and requirepeer says {required}"),
        )),
        None if uid.is_root() || uid == Uid::current() || usual.contains(&name.as_str()) => Ok(None),
        None => Ok(Some(format!(
            "its socket is of user {name}, who is neither root nor {} (if that is as it should be: &requirepeer={name})",
            usual.join(" nor ")
        ))),
    }
}

fn refused(e: &io::Error, access: &Access) -> Failure {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            Failure::new(TroubleKind::Silent, format!("no connection to {access} in time; does it hang?"))
        }
        _ => Failure::new(TroubleKind::Unreachable, format!("no connection to {access}: {e}; does it run?")),
    }
}

fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    let addresses = (host, port).to_socket_addrs()?;
    let deadline = Instant::now() + EXCHANGE;
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Connects to a unix socket. We open its folder ourselves, so that a socket within a container is reachable and its
/// path may be long. The rest runs as `access.as_user`, because the database sees that user at the other end.
fn unix(path: &Path, access: &Access) -> io::Result<UnixStream> {
    let to = |path: PathBuf| -> io::Result<UnixStream> {
        let fd: OwnedFd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        // Connecting to a listener with a full queue would block for ever.
        socket::setsockopt(&fd, socket::sockopt::SendTimeout, &TimeVal::seconds(EXCHANGE.as_secs() as i64))?;
        let _as = access.as_user.map(EffectiveUser::new).transpose()?;
        socket::connect(fd.as_raw_fd(), &UnixAddr::new(&path)?)?;
        Ok(fd.into())
    };
    let text = path.to_string_lossy();
    if let Some(name) = text.strip_prefix('@') {
        let fd: OwnedFd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        socket::setsockopt(&fd, socket::sockopt::SendTimeout, &TimeVal::seconds(EXCHANGE.as_secs() as i64))?;
        socket::connect(fd.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        return Ok(fd.into());
    }
    let root = access.within.map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
    let whole = root.map_or_else(|| path.to_path_buf(), |root| root.join(text.trim_start_matches('/')));
    let (Some(folder), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder: File = fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(folder)?;
    to(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

/// While it lives, this thread, and no other, has another effective user.
pub(crate) struct EffectiveUser {
    before: u32,
}

impl EffectiveUser {
    pub(crate) fn new(user: u32) -> io::Result<EffectiveUser> {
        let before = nix::unistd::geteuid().as_raw();
        become_user(user)?;
        Ok(EffectiveUser { before })
    }
}

impl Drop for EffectiveUser {
    fn drop(&mut self) {
        // Restores the effective user; the real one has not changed.
        let _ = become_user(self.before);
    }
}

/// The C library's setresuid would change all threads.
fn become_user(user: u32) -> io::Result<()> {
    let keep = u32::MAX;
    // SAFETY: a plain call with three numbers.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, keep, user, keep) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
