//! The system calls of the hot path, each a line over libc: non-blocking TCP, epoll with microsecond timeouts, and
//! the CPU time of a thread. The only unsafe code of the load engine.

use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use crate::endpoint::Address;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Options of new sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct SocketOptions {
    pub receive_buffer_bytes: Option<u32>,
    pub send_buffer_bytes: Option<u32>,
}

/// A new non-blocking stream socket for an address.
pub fn socket(address: &Address, options: &SocketOptions) -> io::Result<OwnedFd> {
    let family = match address {
        Address::Tcp(SocketAddr::V4(_)) => libc::AF_INET,
        Address::Tcp(SocketAddr::V6(_)) => libc::AF_INET6,
        Address::Unix(_) => libc::AF_UNIX,
    };
    // SAFETY: plain call; a non-negative result is a new descriptor that nobody else owns.
    let fd = unsafe {
        let fd = check(libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0))?;
        OwnedFd::from_raw_fd(fd)
    };
    if family != libc::AF_UNIX {
        // Requests are written in one piece; Nagle could only delay them.
        set_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }
    for (option, bytes) in
        [(libc::SO_RCVBUF, options.receive_buffer_bytes), (libc::SO_SNDBUF, options.send_buffer_bytes)]
    {
        if let Some(bytes) = bytes {
            // The kernel doubles what it is given, for its own bookkeeping.
            set_option(&fd, libc::SOL_SOCKET, option, (bytes / 2).max(1) as libc::c_int);
        }
    }
    Ok(fd)
}

/// The shortest round trip of this connection, by the kernel; `None` if it does not know (a unix socket, nothing sent
/// yet). Later samples are no better: many include the peer's delayed acknowledgement, or all its work if the
/// acknowledgement comes with the answer.
pub fn round_trip_us(fd: RawFd) -> Option<u64> {
    /// `tcpi_min_rtt` of `struct tcp_info` (linux/tcp.h), as a 32-bit word.
    const MIN_RTT: usize = 37;
    let mut info = [0u32; MIN_RTT + 1];
    let mut len = mem::size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `info`, which has so many.
    let got = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, ptr::from_mut(&mut info).cast(), &raw mut len)
    };
    let whole = got == 0 && len as usize == mem::size_of_val(&info);
    // The kernel's values for "not known".
    (whole && info[MIN_RTT] != u32::MAX && info[MIN_RTT] != 0).then(|| u64::from(info[MIN_RTT]))
}

/// Sets an option. A failure is ignored: the socket works without it.
fn set_option(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let _ = set_raw_option(fd.as_raw_fd(), level, option, value);
}

fn set_raw_option(fd: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = mem::size_of_val(&value) as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which lives for the call.
    check(unsafe { libc::setsockopt(fd, level, option, ptr::from_ref(&value).cast(), len) }).map(|_| ())
}

/// An address in the kernel's format.
struct RawAddress {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl RawAddress {
    fn tcp(address: &SocketAddr) -> RawAddress {
        // SAFETY: all zeros is a valid sockaddr_storage, which is large and aligned enough for both families.
        unsafe {
            let mut storage: libc::sockaddr_storage = mem::zeroed();
            let len = match address {
                SocketAddr::V4(a) => {
                    let raw = ptr::from_mut(&mut storage).cast::<libc::sockaddr_in>();
                    (*raw).sin_family = libc::AF_INET as libc::sa_family_t;
                    (*raw).sin_port = a.port().to_be();
                    (*raw).sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
                    mem::size_of::<libc::sockaddr_in>()
                }
                SocketAddr::V6(a) => {
                    let raw = ptr::from_mut(&mut storage).cast::<libc::sockaddr_in6>();
                    (*raw).sin6_family = libc::AF_INET6 as libc::sa_family_t;
                    (*raw).sin6_port = a.port().to_be();
                    (*raw).sin6_addr.s6_addr = a.ip().octets();
                    (*raw).sin6_scope_id = a.scope_id();
                    mem::size_of::<libc::sockaddr_in6>()
                }
            };
            RawAddress { storage, len: len as libc::socklen_t }
        }
    }

    fn unix(path: &Path) -> io::Result<RawAddress> {
        let bytes = path.as_os_str().as_bytes();
        // SAFETY: as above; the length is checked before the path is copied.
        unsafe {
            let mut storage: libc::sockaddr_storage = mem::zeroed();
            let raw = ptr::from_mut(&mut storage).cast::<libc::sockaddr_un>();
            if bytes.len() >= (*raw).sun_path.len() {
                return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
            }
            (*raw).sun_family = libc::AF_UNIX as libc::sa_family_t;
            let to = ptr::addr_of_mut!((*raw).sun_path).cast::<u8>();
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            let len = mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
            Ok(RawAddress { storage, len: len as libc::socklen_t })
        }
    }

    fn pointer(&self) -> *const libc::sockaddr {
        ptr::from_ref(&self.storage).cast()
    }
}

/// Sets the source address of a connection. The kernel chooses the port when it connects, so that the same port can
/// serve other destinations.
pub fn bind(fd: RawFd, source: IpAddr) -> io::Result<()> {
    set_raw_option(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)?;
    bind_port(fd, source, 0)
}

/// Sets the source address and port of a connection. Connections to other destinations may share the port.
pub fn bind_port(fd: RawFd, source: IpAddr, port: u16) -> io::Result<()> {
    if port != 0 {
        set_raw_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    }
    let raw = RawAddress::tcp(&SocketAddr::new(source, port));
    // SAFETY: the address lives for the call, the length is its.
    check(unsafe { libc::bind(fd, raw.pointer(), raw.len) }).map(|_| ())
}

/// Limits the local ports that an unconnected socket may get; 0 to 0 removes the limit.
///
/// # Errors
/// The option does not exist before Linux 6.3.
pub fn local_port_range(fd: RawFd, low: u16, high: u16) -> io::Result<()> {
    // Not in the libc crate yet (linux/in.h).
    const IP_LOCAL_PORT_RANGE: libc::c_int = 51;
    set_raw_option(fd, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, (u32::from(high) << 16 | u32::from(low)) as libc::c_int)
}

/// Starts connecting; `Ok` also while it is in progress.
pub fn connect(fd: RawFd, address: &Address) -> io::Result<()> {
    let raw = match address {
        Address::Tcp(a) => RawAddress::tcp(a),
        Address::Unix(path) => RawAddress::unix(path)?,
    };
    // SAFETY: the structure lives for the call, the length is its.
    match check(unsafe { libc::connect(fd, raw.pointer(), raw.len) }) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(()),
    }
}

/// Writes, without a signal if the connection is closed.
#[inline]
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `bytes`.
    let n = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Reads what has arrived; 0 is the end of the stream.
#[inline]
pub fn recv(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `buffer`.
    let n = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

pub const READABLE: u32 = libc::EPOLLIN as u32;
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;
pub const PEER_CLOSED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

/// An epoll instance and the events of its last wait.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<libc::epoll_event>,
    /// Whether the kernel has epoll_pwait2 (5.11). Without it timeouts are whole milliseconds.
    fine: bool,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Poller({:?})", self.epoll)
    }
}

impl Poller {
    pub fn new(capacity: usize) -> io::Result<Poller> {
        // SAFETY: plain call; the descriptor is new and ours.
        let epoll = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Poller { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; capacity], fine: true })
    }

    /// Watches a connection for all events, edge-triggered: one system call for its whole life.
    pub fn watch(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token)
    }

    /// Watches a connection under another token. Anything already pending is reported once more.
    pub fn watch_as(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token)
    }

    fn control(&self, operation: libc::c_int, fd: RawFd, token: u64) -> io::Result<()> {
        let flags = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: flags as u32, u64: token };
        // SAFETY: the event lives for the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) })?;
        Ok(())
    }

    /// Waits for events or until `timeout_us` has passed. Returns the number of events.
    pub fn wait(&mut self, timeout_us: u64) -> io::Result<usize> {
        let max = self.events.len() as libc::c_int;
        let fd = self.epoll.as_raw_fd();
        let n = if self.fine {
            let timeout = libc::timespec {
                tv_sec: (timeout_us / 1_000_000) as libc::time_t,
                tv_nsec: (timeout_us % 1_000_000 * 1_000) as libc::c_long,
            };
            // SAFETY: the buffer holds `max` events, the timeout lives for the call, no signal mask is given.
            unsafe {
                libc::syscall(
                    libc::SYS_epoll_pwait2,
                    fd,
                    self.events.as_mut_ptr(),
                    max,
                    ptr::from_ref(&timeout),
                    ptr::null::<libc::sigset_t>(),
                    0usize,
                ) as libc::c_int
            }
        } else {
            // SAFETY: the buffer holds `max` events.
            unsafe { libc::epoll_wait(fd, self.events.as_mut_ptr(), max, timeout_us.div_ceil(1000) as libc::c_int) }
        };
        match check(n) {
            Ok(n) => Ok(n as usize),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(e) if self.fine && matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                self.fine = false;
                self.wait(timeout_us)
            }
            Err(e) => Err(e),
        }
    }

    /// Token and flags of event `i` of the last wait.
    #[inline]
    pub fn event(&self, i: usize) -> (u64, u32) {
        let event = self.events[i];
        (event.u64, event.events)
    }
}

/// CPU time, user and system, that the calling thread has used, in microseconds.
#[must_use]
pub fn thread_cpu_us() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000 + ts.tv_nsec as u64 / 1_000
}

/// Raises the limit of open files to the hard limit (the soft one is 1024 on most machines), or to `wanted` if that is
/// higher and permitted.
pub fn raise_descriptor_limit(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives for all calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return;
        }
        if limit.rlim_max < wanted {
            let more = libc::rlimit { rlim_cur: wanted, rlim_max: wanted };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const more) == 0 {
                return;
            }
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

/// Files that this process may have open.
#[must_use]
pub fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives for the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Makes the timers of this thread fire when they are due and not up to 50 µs later.
pub fn precise_timers() {
    // SAFETY: plain call.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}
