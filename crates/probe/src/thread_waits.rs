//! Finds what a sleeping thread waits for: the system call it is in (`/proc/PID/task/TID/syscall`), the descriptor of
//! that call, and its other end. Needs root, or the user of the process.
//!
//! The other end is read from the socket itself, through a second descriptor that we hold for some microseconds
//! (`pidfd_getfd`). So a connection that lasts for a millisecond is identified at once. If that is not allowed, it is
//! searched in the tables of the namespace, which takes the kernel milliseconds on a large machine.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{SockType, SockaddrStorage, UnixAddr, getpeername, getsockname, getsockopt, sockopt};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::chain::Network;
use crate::namespace::Namespace;
use crate::stat::read_into;

/// Most descriptors of one call that are inspected.
const MOST_DESCRIPTORS: usize = 16;
/// How often the ports with a listener are read again.
const LISTENERS_EVERY: Duration = Duration::from_secs(5);
/// `fcntl` operations that wait for a lock.
const SETLKW: [u64; 2] = [libc::F_SETLKW as u64, 38];

/// What a system call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Accept,
    /// Its descriptors: an array of `pollfd` of this length.
    Poll,
    Select,
    Events,
    Read,
    Write,
    Connect,
    Futex,
    Sleep,
    Flock,
    Fcntl,
    Child,
    Semaphore,
    Sync,
    Open,
}

#[rustfmt::skip]
const CALLS: &[(libc::c_long, CallKind)] = &[
    (libc::SYS_accept, CallKind::Accept), (libc::SYS_accept4, CallKind::Accept),
    (libc::SYS_ppoll, CallKind::Poll), (libc::SYS_pselect6, CallKind::Select),
    (libc::SYS_epoll_pwait, CallKind::Events), (libc::SYS_epoll_pwait2, CallKind::Events),
    (libc::SYS_read, CallKind::Read), (libc::SYS_readv, CallKind::Read), (libc::SYS_pread64, CallKind::Read),
    (libc::SYS_recvfrom, CallKind::Read), (libc::SYS_recvmsg, CallKind::Read),
    (libc::SYS_write, CallKind::Write), (libc::SYS_writev, CallKind::Write), (libc::SYS_pwrite64, CallKind::Write),
    (libc::SYS_sendto, CallKind::Write), (libc::SYS_sendmsg, CallKind::Write), (libc::SYS_sendfile, CallKind::Write),
    (libc::SYS_connect, CallKind::Connect), (libc::SYS_futex, CallKind::Futex),
    (libc::SYS_nanosleep, CallKind::Sleep), (libc::SYS_clock_nanosleep, CallKind::Sleep),
    (libc::SYS_flock, CallKind::Flock), (libc::SYS_fcntl, CallKind::Fcntl),
    (libc::SYS_wait4, CallKind::Child), (libc::SYS_waitid, CallKind::Child),
    (libc::SYS_semop, CallKind::Semaphore), (libc::SYS_semtimedop, CallKind::Semaphore),
    (libc::SYS_fsync, CallKind::Sync), (libc::SYS_fdatasync, CallKind::Sync),
    (libc::SYS_openat, CallKind::Open),
];

/// System calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_CALLS: &[(libc::c_long, CallKind)] = &[
    (libc::SYS_poll, CallKind::Poll), (libc::SYS_select, CallKind::Select), (libc::SYS_epoll_wait, CallKind::Events),
    (libc::SYS_pause, CallKind::Sleep), (libc::SYS_open, CallKind::Open),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[(libc::c_long, CallKind)] = &[];

/// What a descriptor refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DescriptorTarget {
    Listener,
    /// State of the connection: between two requests, in a request, or unknown.
    Client(Option<ClientWait>),
    /// Such as `127.0.0.1:3306`, `unix:/run/x.sock`, `udp:127.0.0.1:53`.
    Peer(String),
    File(String),
    Pipe,
    Other,
}

/// What a server waits for on a client connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientWait {
    /// The next request: the last one was answered (keep-alive).
    Next,
    /// The rest of a request, or the first one.
    Request,
    /// Room in the send buffer for more of the response.
    Room,
}

impl ClientWait {
    /// Derives the state from unsent bytes and from the direction of the latest data.
    fn of(socket: &OwnedFd) -> Option<ClientWait> {
        let mut unsent: libc::c_int = 0;
        // SAFETY: the kernel writes one number there: bytes that are not sent, or not acknowledged (tcp(7), SIOCOUTQ).
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unsent) } == 0 && unsent > 0 {
            return Some(ClientWait::Room);
        }
        // Layout of `struct tcp_info`: 8 bytes, then 32-bit numbers, then 64-bit numbers. The 10th and 12th 32-bit
        // numbers are the milliseconds since data were sent and received. The third 64-bit number is the bytes that the
        // other side has acknowledged (since Linux 4.1).
        let mut info = [0u8; 128];
        let mut length = info.len() as libc::socklen_t;
        let (fd, to) = (socket.as_raw_fd(), info.as_mut_ptr().cast());
        // SAFETY: the kernel writes no more than the length says.
        let done = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length) };
        if done != 0 || (length as usize) < info.len() {
            return None;
        }
        let ago = |number: usize| Some(u32::from_ne_bytes(*info.get(8 + 4 * (number - 1)..)?.first_chunk()?));
        let acknowledged = u64::from_ne_bytes(*info.get(120..)?.first_chunk()?);
        let answered = acknowledged > 1 && ago(10)? <= ago(12)?;
        Some(if answered { ClientWait::Next } else { ClientWait::Request })
    }
}

/// The sockets of a namespace, as last read.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    network: Option<Network>,
    udp: HashMap<u64, SocketAddr>,
    /// Ports of the namespace with a listener, and when they were read.
    listening: Option<(Instant, HashSet<u16>)>,
    /// A process of the namespace.
    pid: i32,
    /// The tables were read during this reading.
    is_fresh: bool,
    /// The sockets of the processes may not be duplicated, so only the tables are used.
    only_tables: bool,
}

impl Sockets {
    /// Starts another reading. The first socket that the tables do not know has them read again, once per reading.
    pub fn begin(&mut self, pid: i32) {
        (self.pid, self.is_fresh) = (pid, false);
        if !self.only_tables && self.listening.as_ref().is_none_or(|(at, _)| at.elapsed() >= LISTENERS_EVERY) {
            let ports = Namespace::of(pid).and_then(|n| n.listening_ports());
            // Without these ports, a client cannot be told from a peer that the server connected to.
            self.only_tables = ports.is_err();
            self.listening = ports.ok().map(|ports| (Instant::now(), ports));
        }
    }

    /// Reads the tables again, because connections come and go.
    fn refresh(&mut self, pid: i32) {
        (self.pid, self.is_fresh) = (pid, true);
        self.network = Network::read(pid);
        self.udp = crate::stat::udp_sockets(pid).map(|s| (s.inode, s.remote)).collect();
    }

    fn object(&mut self, pid: i32, descriptor: u64, inode: u64) -> DescriptorTarget {
        if !self.only_tables {
            match borrowed(pid, descriptor) {
                Ok(socket) => {
                    if let Some(object) = self.asked(&socket) {
                        return object;
                    }
                }
                // The descriptor was closed meanwhile, or its process has ended.
                Err(libc::EBADF | libc::ESRCH) => return DescriptorTarget::Other,
                Err(_) => self.only_tables = true,
            }
        }
        match self.known(inode) {
            Some(object) => object,
            None if self.is_fresh => DescriptorTarget::Other,
            None => {
                self.refresh(self.pid);
                self.known(inode).unwrap_or(DescriptorTarget::Other)
            }
        }
    }

    /// Asks the socket itself. None for a socket that is still connecting, which does not report its peer.
    fn asked(&self, socket: &OwnedFd) -> Option<DescriptorTarget> {
        if getsockopt(socket, sockopt::AcceptConn).unwrap_or(false) {
            return Some(DescriptorTarget::Listener);
        }
        let fd = socket.as_raw_fd();
        let own = getsockname::<SockaddrStorage>(fd).ok()?;
        if own.as_unix_addr().is_some() {
            if name_of(&own).is_some() {
                return Some(DescriptorTarget::Client(None));
            }
            let other = getpeername::<SockaddrStorage>(fd).ok().and_then(|to| name_of(&to));
            return Some(other.map_or(DescriptorTarget::Pipe, |path| DescriptorTarget::Peer(format!("unix:{path}"))));
        }
        let Some(own) = address_of(&own) else { return Some(DescriptorTarget::Other) };
        let to = address_of(&getpeername(fd).ok()?)?;
        if getsockopt(socket, sockopt::SockType) == Ok(SockType::Datagram) {
            return Some(DescriptorTarget::Peer(format!("udp:{to}")));
        }
        let is_client = self.listening.as_ref().is_some_and(|(_, ports)| ports.contains(&own.port()));
        Some(if is_client {
            DescriptorTarget::Client(ClientWait::of(socket))
        } else {
            DescriptorTarget::Peer(to.to_string())
        })
    }

    fn known(&self, inode: u64) -> Option<DescriptorTarget> {
        let network = self.network.as_ref()?;
        let listens = |i: &u64| *i == inode;
        if network.tcp_listeners.iter().any(|(_, i)| listens(i)) || network.unix_listeners.values().any(listens) {
            return Some(DescriptorTarget::Listener);
        }
        if let Some(socket) = network.by_inode.get(&inode) {
            let is_client = network.listeners.contains_key(&socket.local.port());
            return Some(if is_client {
                DescriptorTarget::Client(None)
            } else {
                DescriptorTarget::Peer(socket.remote.to_string())
            });
        }
        if let Some(socket) = network.unix.get(&inode) {
            if socket.path.is_some() {
                return Some(DescriptorTarget::Client(None));
            }
            let other = socket.peer.and_then(|peer| network.unix.get(&peer)).and_then(|s| s.path.clone());
            return Some(other.map_or(DescriptorTarget::Pipe, |path| DescriptorTarget::Peer(format!("unix:{path}"))));
        }
        let to = self.udp.get(&inode).filter(|to| to.port() > 0)?;
        Some(DescriptorTarget::Peer(format!("udp:{to}")))
    }
}

/// Returns what a sleeping thread waits for, in the words of `model::examination`. None if that may not be read, or the
/// thread runs.
pub(crate) fn waits_for(pid: i32, tid: i32, sockets: &mut Sockets) -> Option<String> {
    let mut buffer = [0u8; 256];
    let line = read_into(&format!("/proc/{pid}/task/{tid}/syscall"), &mut buffer)?;
    let mut words = line.split_ascii_whitespace();
    // The word "running" is not a number.
    let number: libc::c_long = words.next()?.parse().ok()?;
    let arguments: Vec<u64> =
        words.map_while(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok()).take(6).collect();
    if number < 0 {
        return Some("other".into());
    }
    let argument = |i: usize| arguments.get(i).copied().unwrap_or(0);
    let Some((_, does)) = CALLS.iter().chain(OLD_CALLS).find(|(n, _)| *n == number) else {
        return Some("other".into());
    };
    let mut first = || object(pid, argument(0), sockets);
    Some(match does {
        CallKind::Accept => "idle".into(),
        CallKind::Events => "events".into(),
        CallKind::Futex => "futex".into(),
        CallKind::Sleep => "sleep".into(),
        CallKind::Child => "child".into(),
        CallKind::Semaphore => "semaphore".into(),
        CallKind::Sync | CallKind::Open => "disk".into(),
        CallKind::Flock => named("lock", &first()),
        CallKind::Fcntl if SETLKW.contains(&argument(1)) => named("lock", &first()),
        CallKind::Fcntl => "other".into(),
        CallKind::Connect => match first() {
            DescriptorTarget::Peer(peer) => format!("peer {peer}"),
            _ => "connect".into(),
        },
        CallKind::Read => told(&first(), false),
        CallKind::Write => told(&first(), true),
        CallKind::Poll => of_any(&polled(pid, argument(0), argument(1)), pid, sockets),
        CallKind::Select => of_any(&selected(pid, argument(0), &arguments), pid, sockets),
    })
}

fn named(what: &str, object: &DescriptorTarget) -> String {
    match object {
        DescriptorTarget::File(path) => format!("{what} {path}"),
        _ => what.into(),
    }
}

fn told(object: &DescriptorTarget, writes: bool) -> String {
    match object {
        DescriptorTarget::Listener => "idle".into(),
        DescriptorTarget::Client(Some(ClientWait::Room)) => "client-write".into(),
        DescriptorTarget::Client(_) if writes => "client-write".into(),
        DescriptorTarget::Client(Some(ClientWait::Next)) => "client kept".into(),
        DescriptorTarget::Client(Some(ClientWait::Request)) => "client request".into(),
        DescriptorTarget::Client(None) => "client".into(),
        DescriptorTarget::Peer(peer) => format!("peer {peer}"),
        DescriptorTarget::File(path) => format!("{} {path}", if writes { "write" } else { "read" }),
        DescriptorTarget::Pipe => if writes { "pipe-write" } else { "pipe" }.into(),
        DescriptorTarget::Other => "other".into(),
    }
}

/// Of several descriptors, uses the most telling: a listener first, then a peer, a client, the rest.
fn of_any(descriptors: &[u64], pid: i32, sockets: &mut Sockets) -> String {
    if descriptors.is_empty() {
        return "sleep".into();
    }
    let objects: Vec<DescriptorTarget> = descriptors.iter().map(|fd| object(pid, *fd, sockets)).collect();
    let rank = |o: &&DescriptorTarget| match o {
        DescriptorTarget::Listener => 0,
        DescriptorTarget::Peer(_) => 1,
        DescriptorTarget::Client(_) => 2,
        DescriptorTarget::Pipe => 3,
        DescriptorTarget::File(_) => 4,
        DescriptorTarget::Other => 5,
    };
    objects.iter().min_by_key(rank).map_or_else(|| "other".into(), |o| told(o, false))
}

fn object(pid: i32, descriptor: u64, sockets: &mut Sockets) -> DescriptorTarget {
    let Ok(link) = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")) else { return DescriptorTarget::Other };
    let link = link.to_string_lossy();
    if let Some(inode) = link.strip_prefix("socket:[").and_then(|l| l.strip_suffix(']')) {
        return inode.parse().map_or(DescriptorTarget::Other, |inode| sockets.object(pid, descriptor, inode));
    }
    if link.starts_with("pipe:") {
        return DescriptorTarget::Pipe;
    }
    if link.starts_with('/') { DescriptorTarget::File(link.into_owned()) } else { DescriptorTarget::Other }
}

/// Duplicates a socket of another process; the error is the errno.
fn borrowed(pid: i32, descriptor: u64) -> Result<OwnedFd, i32> {
    let made = |result: libc::c_long| match i32::try_from(result) {
        // SAFETY: the kernel has just created it, and nothing else uses it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(nix::errno::Errno::last_raw()),
    };
    // SAFETY: calls with numbers only.
    let process = made(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    made(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor as libc::c_int, 0) })
}

/// Returns the path of a unix address, with `@` before an abstract one.
fn name_of(address: &SockaddrStorage) -> Option<String> {
    let address: &UnixAddr = address.as_unix_addr()?;
    let abstract_name = || Some(format!("@{}", String::from_utf8_lossy(address.as_abstract()?).trim_end_matches('\0')));
    address.path().map(|path| path.display().to_string()).or_else(abstract_name)
}

fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    let four = address.as_sockaddr_in().map(|a| SocketAddr::from(std::net::SocketAddrV4::from(*a)));
    let six = address.as_sockaddr_in6().map(|a| SocketAddr::from(std::net::SocketAddrV6::from(*a)));
    // A socket of IPv6 that is connected by IPv4.
    let found = four.or(six)?;
    Some(SocketAddr::new(found.ip().to_canonical(), found.port()))
}

/// Reads memory of another process.
fn memory(pid: i32, at: u64, buffer: &mut [u8]) -> usize {
    let remote = [RemoteIoVec { base: at as usize, len: buffer.len() }];
    process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(buffer)], &remote).unwrap_or(0)
}

/// Reads the descriptors of an array of `struct pollfd`: one 32-bit number and two 16-bit numbers each.
fn polled(pid: i32, at: u64, length: u64) -> Vec<u64> {
    let mut buffer = [0u8; 8 * MOST_DESCRIPTORS];
    let want = 8 * (length as usize).min(MOST_DESCRIPTORS);
    let n = memory(pid, at, &mut buffer[..want]);
    let each = buffer[..n].as_chunks::<8>().0.iter();
    let numbers = each.filter_map(|entry| u64::try_from(i32::from_ne_bytes(*entry.first_chunk()?)).ok());
    numbers.collect()
}

/// Reads the descriptors in the sets of `select`: those for reading, otherwise those for writing.
fn selected(pid: i32, count: u64, arguments: &[u64]) -> Vec<u64> {
    let mut buffer = [0u8; 128];
    let want = (count as usize).min(1024).div_ceil(8);
    for at in arguments.iter().skip(1).take(2).filter(|at| **at != 0) {
        let n = memory(pid, *at, &mut buffer[..want]);
        let set = |fd: &u64| buffer[..n].get(*fd as usize / 8).is_some_and(|byte| byte >> (fd % 8) & 1 == 1);
        let found: Vec<u64> = (0..count.min(1024)).filter(set).take(MOST_DESCRIPTORS).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// Checks what a script that prints a line and then sleeps waits for, both by its sockets and by the tables.
    fn seen(script: &str, wanted: &str) {
        seen_by(script, wanted, false);
        seen_by(script, wanted, true);
    }

    fn seen_by(script: &str, wanted: &str, tables: bool) {
        let script = format!("$| = 1; {script}");
        let modules = ["-MIO::Socket::INET", "-MIO::Socket::UNIX", "-MIO::Select", "-MFcntl=:flock"];
        let mut child = Command::new("perl")
            .args(modules)
            .args(["-e", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says a line");
        let pid = child.id() as i32;
        let wanted = wanted.replace("PORT", line.trim());
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut sockets = Sockets { only_tables: tables, ..Sockets::default() };
        loop {
            sockets.begin(pid);
            let now = waits_for(pid, pid, &mut sockets);
            if now.as_deref() == Some(wanted.as_str()) {
                break;
            }
            assert!(Instant::now() < deadline, "{now:?}, not {wanted}");
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().expect("ours");
        let _ = child.wait();
    }

    #[test]
    fn a_thread_that_sleeps_says_for_what() {
        let listener = "$l = IO::Socket::INET->new(Listen => 9, LocalAddr => '127.0.0.1') or die; $p = $l->sockport;";
        let connected = format!("{listener} $c = IO::Socket::INET->new(\"127.0.0.1:$p\") or die; $a = $l->accept;");
        let say = "print \"$p\\n\";";
        seen(&format!("{listener} {say} $l->accept;"), "idle");
        seen(&format!("{listener} {say} IO::Select->new($l)->can_read;"), "idle");
        seen(&format!("{connected} {say} sysread($c, $x, 1);"), "peer 127.0.0.1:PORT");
        seen(&format!("{connected} {say} IO::Select->new($c)->can_read;"), "peer 127.0.0.1:PORT");
        let waits = |said: &str| format!("{connected} {said} {say} sysread($a, $x, 9);");
        seen_by(&waits(""), "client", true);
        seen_by(&waits(""), "client request", false);
        let answered = "syswrite($c, 'a'); sysread($a, $x, 1); syswrite($a, 'bb'); sysread($c, $x, 2);";
        seen_by(&waits(answered), "client kept", false);
        let asks_again = "select(undef, undef, undef, 0.1); syswrite($c, 'a'); sysread($a, $x, 1);";
        seen_by(&waits(&format!("{answered} {asks_again}")), "client request", false);
        let path = tempfile("unix");
        let unix = format!(
            "unlink '{path}'; $l = IO::Socket::UNIX->new(Listen => 9, Local => '{path}') or die; \
             $c = IO::Socket::UNIX->new(Peer => '{path}') or die; $a = $l->accept; print \"x\\n\";"
        );
        seen(&format!("{unix} sysread($c, $x, 1);"), &format!("peer unix:{path}"));
        seen(&format!("{unix} sysread($a, $x, 1);"), "client");
        seen(&format!("{unix} $l->accept;"), "idle");
        let _ = fs::remove_file(path);
        let udp = "IO::Socket::INET->new(Proto => 'udp', PeerAddr => '127.0.0.1:53') or die;";
        seen(&format!("$u = {udp} print \"x\\n\"; sysread($u, $x, 1);"), "peer udp:127.0.0.1:53");
        seen("print \"x\\n\"; sleep 60;", "sleep");
        seen("print \"x\\n\"; select(undef, undef, undef, 60);", "sleep");
        seen("print \"x\\n\"; <STDIN>;", "pipe");
        let file = tempfile("lock");
        let lock = format!(
            "open F, '>', '{file}'; flock F, LOCK_EX; if (!fork) {{ sleep 1 while getppid() == $parent; exit }} \
             open G, '>', '{file}'; print \"x\\n\"; flock G, LOCK_EX;"
        );
        seen(&format!("$parent = $$; {lock}"), &format!("lock {file}"));
        let _ = fs::remove_file(file);
    }

    fn tempfile(name: &str) -> String {
        std::env::temp_dir().join(format!("lastdrop-sleeping-{}-{name}", std::process::id())).display().to_string()
    }
}
