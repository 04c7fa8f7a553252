//! A socket to a database with one deadline for each exchange, however slowly its bytes come.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lastdrop_model::TroubleKind;
use lastdrop_probe::namespace::Namespace;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::access::{Access, Way};
use crate::failure::Failure;

/// How long one exchange may take.
pub(crate) const EXCHANGE: Duration = Duration::from_secs(2);

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub(crate) struct Stream {
    socket: Socket,
    deadline: Instant,
}

impl Stream {
    /// Connects, within the namespaces of the process that is said to have the listener, and as the user that is said to ask.
    pub fn connect(access: &Access) -> Result<Stream, Failure> {
        let deadline = Instant::now() + EXCHANGE;
        let socket = match &access.way {
            Way::Tcp(host, port) => {
                let inside = |pid: i32| Namespace::of(pid).and_then(|n| n.apart(|| tcp(host, *port)));
                Socket::Tcp(access.within.map_or_else(|| tcp(host, *port), inside).map_err(|e| refused(&e, access))?)
            }
            Way::Unix(path) => Socket::Unix(unix(path, access).map_err(|e| refused(&e, access))?),
        };
        Ok(Stream { socket, deadline })
    }

    /// Is it a socket of this machine, on which nobody listens in?
    pub fn is_private(&self) -> bool {
        match &self.socket {
            Socket::Unix(_) => true,
            Socket::Tcp(tcp) => tcp.peer_addr().is_ok_and(|peer| peer.ip().is_loopback()),
        }
    }

    /// What is read from now on belongs to a new exchange.
    pub fn begin(&mut self) {
        self.deadline = Instant::now() + EXCHANGE;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = Some(self.left()?);
        match &mut self.socket {
            Socket::Tcp(s) => s.set_read_timeout(left).and_then(|()| s.read(into)),
            Socket::Unix(s) => s.set_read_timeout(left).and_then(|()| s.read(into)),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = Some(self.left()?);
        match &mut self.socket {
            Socket::Tcp(s) => s.set_write_timeout(left).and_then(|()| s.write(bytes)),
            Socket::Unix(s) => s.set_write_timeout(left).and_then(|()| s.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, EXCHANGE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The socket's folder is opened by us, so that one within a container is reached, and its path may be long; the rest is done
/// as the user that asks, because the database sees that one at the other end.
fn unix(path: &Path, access: &Access) -> io::Result<UnixStream> {
    let to = |path: PathBuf| -> io::Result<UnixStream> {
        let fd: OwnedFd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        // A listener with a full queue lets one wait for ever.
        socket::setsockopt(&fd, socket::sockopt::SendTimeout, &TimeVal::seconds(EXCHANGE.as_secs() as i64))?;
        let _as = access.as_user.map(AsUser::new).transpose()?;
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

/// As long as it lives, this thread alone acts as another user.
struct AsUser {
    before: u32,
}

impl AsUser {
    fn new(user: u32) -> io::Result<AsUser> {
        let before = nix::unistd::geteuid().as_raw();
        become_user(user)?;
        Ok(AsUser { before })
    }
}

impl Drop for AsUser {
    fn drop(&mut self) {
        // Back to who it was before: the real user has not changed.
        let _ = become_user(self.before);
    }
}

/// The library's call would do it to all threads.
fn become_user(user: u32) -> io::Result<()> {
    let keep = u32::MAX;
    // SAFETY: a plain call with three numbers.
    let done = unsafe { libc::syscall(libc::SYS_setresuid, keep, user, keep) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
