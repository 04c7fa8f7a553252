//! The system calls of the hot path, each a line over libc: non-blocking TCP, epoll with microsecond timeouts, and
//! the CPU time of a thread. The only unsafe code of the load engine.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A new non-blocking TCP socket.
pub fn tcp_socket(address: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: plain call; a non-negative result is a new descriptor that nobody else owns.
    unsafe {
        let fd = check(libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0))?;
        let fd = OwnedFd::from_raw_fd(fd);
        // Requests are written in one piece; Nagle could only delay them.
        let on: libc::c_int = 1;
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            ptr::from_ref(&on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        );
        Ok(fd)
    }
}

/// Starts connecting; `Ok` also when it is under way.
pub fn connect(fd: RawFd, address: &SocketAddr) -> io::Result<()> {
    // SAFETY: the structures are complete and live for the call, the lengths are theirs.
    let result = unsafe {
        match address {
            SocketAddr::V4(a) => {
                let mut raw: libc::sockaddr_in = mem::zeroed();
                raw.sin_family = libc::AF_INET as libc::sa_family_t;
                raw.sin_port = a.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
                libc::connect(fd, ptr::from_ref(&raw).cast(), mem::size_of_val(&raw) as libc::socklen_t)
            }
            SocketAddr::V6(a) => {
                let mut raw: libc::sockaddr_in6 = mem::zeroed();
                raw.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                raw.sin6_port = a.port().to_be();
                raw.sin6_addr.s6_addr = a.ip().octets();
                raw.sin6_scope_id = a.scope_id();
                libc::connect(fd, ptr::from_ref(&raw).cast(), mem::size_of_val(&raw) as libc::socklen_t)
            }
        }
    };
    match check(result) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => Ok(()),
    }
}

/// Writes without a signal on a closed connection.
#[inline]
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `bytes`.
    let n = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Reads what is there; 0 is the end of the stream.
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
    /// Does the kernel have epoll_pwait2 (5.11)? Without it timeouts are whole milliseconds.
    fine: bool,
}

impl Poller {
    pub fn new(capacity: usize) -> io::Result<Poller> {
        // SAFETY: plain call; the descriptor is new and ours.
        let epoll = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Poller { epoll, events: vec![libc::epoll_event { events: 0, u64: 0 }; capacity], fine: true })
    }

    /// Watches a connection for everything, edge-triggered: one system call for its whole life.
    pub fn watch(&self, fd: RawFd, token: u64) -> io::Result<()> {
        let flags = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        let mut event = libc::epoll_event { events: flags as u32, u64: token };
        // SAFETY: the event lives for the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) })?;
        Ok(())
    }

    /// Waits until something happens or `timeout_us` has passed; says how many events there are.
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

/// As many connections as the hard limit of open files allows; the soft one is 1024 on most machines.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Timers of this thread fire when they are due and not up to 50 µs later.
pub fn precise_timers() {
    // SAFETY: plain call.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}
