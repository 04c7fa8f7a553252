//! Sockets and counters of a server's network namespace, which may differ from ours.
//!
//! Counters are read below /proc/PID/net, which shows the namespace of that process. Listen queues and their limits are
//! available only over netlink from inside the namespace: the thread enters it and returns.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::{ListenQueue, PortsInUse};
use nix::sched::{CloneFlags, setns};
use serde::{Deserialize, Serialize};

use crate::host;
use crate::host::timed;
use crate::sock_diag::{ESTABLISHED, LISTEN, SYN_SENT, SockDiag, StateFlags, TcpSocket, state_name};
use crate::socket_names::SocketNames;

/// Counters of /proc/net/netstat and /proc/net/snmp that matter for a web server (kernel-limits in the manual).
pub const COUNTERS: &[&str] = &[
    "SyncookiesSent",
    "SyncookiesFailed",
    "PruneCalled",
    "RcvPruned",
    "TW",
    "ListenOverflows",
    "ListenDrops",
    "TCPLostRetransmit",
    "TCPTimeouts",
    "TCPDSACKRecv",
    "TCPAbortOnMemory",
    "TCPAbortOnTimeout",
    "TCPMemoryPressures",
    "TCPBacklogDrop",
    "TCPTimeWaitOverflow",
    "TCPReqQFullDoCookies",
    "TCPReqQFullDrop",
    "TCPSynRetrans",
    "TCPRcvQDrop",
    "TCPZeroWindowDrop",
    "DelayedACKs",
    "ActiveOpens",
    "PassiveOpens",
    "AttemptFails",
    "EstabResets",
    "RetransSegs",
    "OutRsts",
    "InErrs",
];

/// Reads the counters of a process's namespace since its creation. Counters that this kernel does not have are absent.
///
/// # Errors
/// When the process has ended or is hidden.
pub fn counters(pid: i32) -> io::Result<BTreeMap<&'static str, u64>> {
    let mut all = BTreeMap::new();
    let netstat = fs::read_to_string(format!("/proc/{pid}/net/netstat"))?;
    let snmp = read_snmp(pid)?;
    for text in [&netstat, &snmp] {
        let lines: Vec<&str> = text.lines().collect();
        // A line of names and a line of values, each beginning with the protocol: columns differ between kernels.
        for pair in lines.chunks_exact(2) {
            let (Some((protocol, names)), Some((_, values))) = (pair[0].split_once(": "), pair[1].split_once(": "))
            else {
                continue;
            };
            if protocol != "TcpExt" && protocol != "Tcp" {
                continue;
            }
            for (name, value) in names.split(' ').zip(values.split(' ')) {
                if let (Some(known), Ok(value)) = (COUNTERS.iter().find(|c| **c == name), value.parse()) {
                    all.insert(*known, value);
                }
            }
        }
    }
    // Connection tracking: one row of hexadecimal numbers per processor, present only with the module.
    if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/net/stat/nf_conntrack")) {
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        let rows: Vec<Vec<u64>> =
            lines.map(|l| l.split_whitespace().map(|v| u64::from_str_radix(v, 16).unwrap_or(0)).collect()).collect();
        for (column, ours) in CONNTRACK {
            if let Some(at) = names.iter().position(|n| n == column) {
                all.insert(*ours, rows.iter().filter_map(|r| r.get(at)).sum());
            }
        }
    }
    Ok(all)
}

fn read_snmp(pid: i32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/net/snmp"))
}

/// Returns the connections that listeners of a process's namespace have received so far.
///
/// # Errors
/// As [`counters`], and when the kernel does not report it.
pub fn taken(pid: i32) -> io::Result<u64> {
    let text = read_snmp(pid)?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: ")).map(|line| line.split(' '));
    let mut columns = lines.next().into_iter().flatten().zip(lines.next().into_iter().flatten());
    let value = columns.find(|(name, _)| *name == "PassiveOpens").and_then(|(_, value)| value.parse().ok());
    value.ok_or_else(|| io::Error::other("/proc/net/snmp has no PassiveOpens"))
}

const CONNTRACK: &[(&str, &str)] =
    &[("drop", "conntrack_drop"), ("early_drop", "conntrack_early_drop"), ("insert_failed", "conntrack_insert_failed")];

/// Connections that were opened to one address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    pub open: u64,
    /// The other side has not answered the SYN yet.
    pub opening: u64,
}

impl AddAssign for ConnectionCounts {
    fn add_assign(&mut self, more: ConnectionCounts) {
        self.open += more.open;
        self.opening += more.opening;
    }
}

/// Returns the sockets that /proc/PID/net/sockstat counts in the whole namespace: `time_wait`, `orphan`, `in_use`,
/// `memory_pages`.
///
/// # Errors
/// When the process has ended or is hidden.
pub fn socket_counts(pid: i32) -> io::Result<BTreeMap<String, u64>> {
    read_socket_counts(&open_socket_counts(pid)?)
}

/// Opens the file with these counts, to be read repeatedly.
pub(crate) fn open_socket_counts(pid: i32) -> io::Result<File> {
    File::open(format!("/proc/{pid}/net/sockstat"))
}

/// Reads the counts again.
pub(crate) fn read_socket_counts(file: &File) -> io::Result<BTreeMap<String, u64>> {
    let mut buffer = [0u8; 1024];
    let n = file.read_at(&mut buffer, 0)?;
    let text = String::from_utf8_lossy(&buffer[..n]);
    let line = text.lines().find_map(|l| l.strip_prefix("TCP: ")).unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().collect();
    let names = [("inuse", "in_use"), ("orphan", "orphan"), ("tw", "time_wait"), ("mem", "memory_pages")];
    Ok(words
        .chunks_exact(2)
        .filter_map(|pair| {
            let (_, ours) = names.iter().find(|(theirs, _)| *theirs == pair[0])?;
            Some(((*ours).to_string(), pair[1].parse().ok()?))
        })
        .collect())
}

/// Returns the entries of the connection-tracking table and its size. None without connection tracking. Must run inside
/// the namespace in question.
fn conntrack_fill() -> Option<(u64, u64)> {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?.trim().parse().ok()
    };
    Some((read("count")?, read("max")?))
}

/// What is visible only from inside the namespace.
#[derive(Debug, Default, Clone)]
pub struct NamespaceSnapshot {
    pub tcp: Vec<TcpListener>,
    pub unix: Vec<UnixListener>,
    pub conntrack: Option<(u64, u64)>,
    /// Ports for outgoing connections to one address.
    pub local_ports: u64,
}

/// A TCP listener, the inode of its socket, and its queue.
#[derive(Debug, Clone)]
pub struct TcpListener {
    pub address: SocketAddr,
    pub inode: u64,
    pub queue: ListenQueue,
}

/// A unix listener, the inode of its socket, and its queue.
#[derive(Debug, Clone)]
pub struct UnixListener {
    pub path: String,
    pub inode: u64,
    pub queue: ListenQueue,
}

/// The open connections of a namespace at one moment.
#[derive(Debug)]
struct ConnectionTable {
    sockets: Vec<TcpSocket>,
    /// Inodes of our own namespace's connections by both addresses. If the walk is of another namespace, also by their
    /// local address alone, which several may share (`open_at`). `own` has the inodes that this process has open.
    open: HashMap<(SocketAddr, SocketAddr), u64>,
    open_at: HashMap<SocketAddr, u64>,
    own: BTreeSet<u64>,
    is_here: bool,
}

impl ConnectionTable {
    fn others(&self, ports: &[u16]) -> Vec<SocketAddr> {
        // A local client counts only if its end is open in another process: an end of ours may be closed meanwhile.
        let is_other = |s: &&TcpSocket| {
            // A connection into another namespace may be translated on the way, so that only one end's address is known
            // there.
            match self.open.get(&(s.remote, s.local)).or_else(|| self.open_at.get(&s.remote)) {
                Some(inode) => *inode != 0 && !self.own.contains(inode),
                None => !self.is_here || !crate::listeners::is_local(&s.remote),
            }
        };
        self.sockets.iter().filter(|s| is_client(s, ports)).filter(is_other).map(|s| s.remote).collect()
    }

    fn made(&self, ports: &[u16]) -> HashMap<SocketAddr, ConnectionCounts> {
        let mut made: HashMap<SocketAddr, ConnectionCounts> = HashMap::new();
        for s in self.sockets.iter().filter(|s| !ports.contains(&s.local.port())) {
            let one = match s.state {
                ESTABLISHED => ConnectionCounts { open: 1, opening: 0 },
                SYN_SENT => ConnectionCounts { open: 0, opening: 1 },
                _ => continue,
            };
            *made.entry(s.remote).or_default() += one;
        }
        made
    }
}

/// Connections of servers that are sampled side by side: the kernel's table is walked once for all servers in one
/// namespace. Clones share their results.
#[derive(Debug, Default, Clone)]
pub struct ConnectionTables(Arc<Mutex<CachedTables>>);

/// The latest results, by the inode of the namespace.
#[derive(Debug, Default)]
struct CachedTables {
    open: HashMap<u64, (Instant, Arc<ConnectionTable>)>,
    /// TIME_WAIT connections by destination: when they were counted, and when they may be counted again.
    held: HashMap<u64, (Instant, Instant, Option<PortsInUse>)>,
}

/// Requests within this time get the same result.
const SAME_WALK: Duration = Duration::from_millis(300);
/// Like `SAME_WALK`, for TIME_WAIT connections, which stay for a minute.
const SAME_PORTS: Duration = Duration::from_secs(1);
/// Counting TIME_WAIT connections by destination may take at most one part in this many of the time.
const PORTS_COST: u32 = 300;

impl ConnectionTables {
    /// Like [`Namespace::others`], for the namespace of a process. Also returns, per address, the connections that any
    /// process in the namespace, this one included, has opened to it, established or opening.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn others_and_made(
        &self,
        pid: i32,
        ports: &[u16],
    ) -> io::Result<(Vec<SocketAddr>, HashMap<SocketAddr, ConnectionCounts>)> {
        let walk = self.walk(&Namespace::of(pid)?)?;
        Ok((walk.others(ports), walk.made(ports)))
    }

    /// Counts connections to the given ports by state, without TIME_WAIT, which sockstat gives more cheaply.
    pub(crate) fn connections(&self, namespace: &Namespace, ports: &[u16]) -> io::Result<BTreeMap<String, u64>> {
        // These two are always reported: zero is an answer.
        let mut states = BTreeMap::from(["established", "close_wait"].map(|name| (name.to_string(), 0)));
        let walk = self.walk(namespace)?;
        for s in walk.sockets.iter().filter(|s| ports.contains(&s.local.port())) {
            if let Some(name) = state_name(s.state) {
                *states.entry(name.to_string()).or_default() += 1;
            }
        }
        Ok(states)
    }

    /// Like [`Namespace::ports_held`]; None if the last count is too recent for its cost.
    pub(crate) fn ports_held(&self, namespace: &Namespace) -> io::Result<Option<PortsInUse>> {
        let (inode, mut last) = self.at(namespace)?;
        if let Some((at, _, held)) = last.held.get(&inode).filter(|(_, due, _)| Instant::now() < *due) {
            return Ok(held.clone().filter(|_| at.elapsed() < SAME_PORTS));
        }
        let (held, cost) = host::timed(|| namespace.ports_held());
        let now = Instant::now();
        last.held.insert(inode, (now, now + cost * PORTS_COST, held.as_ref().ok().cloned().flatten()));
        held
    }

    fn walk(&self, namespace: &Namespace) -> io::Result<Arc<ConnectionTable>> {
        let (inode, mut last) = self.at(namespace)?;
        if let Some((_, walk)) = last.open.get(&inode).filter(|(at, _)| at.elapsed() < SAME_WALK) {
            return Ok(Arc::clone(walk));
        }
        let walk = Arc::new(namespace.walk()?);
        last.open.insert(inode, (Instant::now(), Arc::clone(&walk)));
        Ok(walk)
    }

    /// Returns the key of a namespace and the locked results; other threads wait meanwhile.
    fn at(&self, namespace: &Namespace) -> io::Result<(u64, MutexGuard<'_, CachedTables>)> {
        let inode = match &namespace.theirs {
            Some(file) => file.metadata()?.ino(),
            None => fs::metadata("/proc/thread-self/ns/net")?.ino(),
        };
        Ok((inode, self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Identifies a network namespace later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceId {
    /// Inode of /proc/PID/ns/net. The kernel reuses it as soon as the namespace is gone.
    pub inode: u64,
    /// Unique until the machine reboots. None before Linux 5.14.
    pub cookie: Option<u64>,
}

/// Returns the inode of the network namespace of a process; None if the process has ended or is hidden.
#[must_use]
pub fn inode_of(pid: i32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(|m| m.ino())
}

/// A handle to enter the network namespace of a process.
#[derive(Debug)]
pub struct Namespace {
    /// None if it is our own namespace.
    theirs: Option<File>,
    ours: Option<File>,
}

impl Namespace {
    /// Opens the namespace of a process.
    ///
    /// # Errors
    /// When the process has ended or belongs to another user.
    pub fn of(pid: i32) -> io::Result<Namespace> {
        Namespace::at(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// Opens the namespace of a file: below /proc, or where `ip netns` keeps it.
    ///
    /// # Errors
    /// When it is gone, or may not be opened.
    pub fn at(path: &Path) -> io::Result<Namespace> {
        let own = "/proc/thread-self/ns/net";
        if fs::metadata(path)?.ino() == fs::metadata(own)?.ino() {
            return Ok(Namespace { theirs: None, ours: None });
        }
        Ok(Namespace { theirs: Some(File::open(path)?), ours: Some(File::open(own)?) })
    }

    /// Returns true if it is our own namespace.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.theirs.is_none()
    }

    /// Returns an identifier by which to recognise the namespace later.
    ///
    /// # Errors
    /// When the system does not let us enter.
    pub fn id(&self) -> io::Result<NamespaceId> {
        self.apart(|| {
            let inode = fs::metadata("/proc/thread-self/ns/net")?.ino();
            Ok(NamespaceId { inode, cookie: own_cookie() })
        })
    }

    /// Runs `act` inside the namespace on a thread of its own; no other thread ever enters it.
    ///
    /// # Errors
    /// As [`Namespace::inside`].
    pub fn apart<T: Send>(&self, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, || self.inside(act))?;
            inside.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace has failed")))
        })
    }

    /// Runs `act` inside the namespace. Only this thread enters it.
    ///
    /// # Errors
    /// When the system does not let us enter (it needs root), or does not let us return.
    pub fn inside<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let (Some(theirs), Some(ours)) = (&self.theirs, &self.ours) else { return act() };
        setns(theirs, CloneFlags::CLONE_NEWNET)?;
        let result = act();
        setns(ours, CloneFlags::CLONE_NEWNET)?;
        result
    }

    /// Opens a netlink socket for the namespace; after that it works from any namespace.
    pub(crate) fn sock_diag(&self) -> io::Result<SockDiag> {
        self.inside(SockDiag::open)
    }

    /// Reads listeners with their queues, and the connection-tracking table.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the kernel does not answer.
    pub fn look(&self) -> io::Result<NamespaceSnapshot> {
        let (conntrack, local_ports) = self.inside(|| Ok((conntrack_fill(), host::local_ports())))?;
        let mut seen = NamespaceSnapshot { conntrack, local_ports, ..NamespaceSnapshot::default() };
        let mut ask = self.sock_diag()?;
        ask.tcp(StateFlags::LISTEN, 0, |s| {
            seen.tcp.push(TcpListener { address: s.local, inode: s.inode, queue: s.listen_queue() });
        })?;
        ask.unix_listeners(|s| {
            let queue = s.listen_queue();
            seen.unix.push(UnixListener { path: s.path.unwrap_or_default(), inode: s.inode, queue });
        })?;
        Ok(seen)
    }

    /// Returns the TCP ports with a listener.
    pub(crate) fn listening_ports(&self) -> io::Result<HashSet<u16>> {
        let mut ports = HashSet::new();
        self.sock_diag()?.tcp(StateFlags::LISTEN, 0, |s| _ = ports.insert(s.local.port()))?;
        Ok(ports)
    }

    /// Returns the inodes of the sockets that are connected to the given ports.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn connected_inodes(&self, ports: &[u16]) -> io::Result<std::collections::HashSet<u64>> {
        let mut inodes = std::collections::HashSet::new();
        self.each_connection(ports, |s| {
            inodes.insert(s.inode);
        })?;
        Ok(inodes)
    }

    /// Returns the remote addresses of open connections to the given ports, without connections of this process.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn others(&self, ports: &[u16]) -> io::Result<Vec<SocketAddr>> {
        self.walk().map(|walk| walk.others(ports))
    }

    fn walk(&self) -> io::Result<ConnectionTable> {
        let mut sockets = Vec::new();
        self.each(|s| sockets.push(*s))?;
        let own = crate::listeners::inodes(std::process::id() as i32)?;
        let (mut open, mut open_at) = (HashMap::new(), HashMap::new());
        let is_here = self.is_ours();
        if is_here {
            open.extend(sockets.iter().map(|s| ((s.local, s.remote), s.inode)));
        } else {
            SockDiag::open()?.tcp(connected(), 0, |s| {
                open.insert((s.local, s.remote), s.inode);
                open_at.insert(s.local, s.inode);
            })?;
        }
        Ok(ConnectionTable { sockets, open, open_at, own, is_here })
    }

    /// Returns the remote addresses of open connections to the given ports.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn clients(&self, ports: &[u16]) -> io::Result<Vec<SocketAddr>> {
        let mut ends = Vec::new();
        self.each(|s| ends.extend(is_client(s, ports).then_some(s.remote)))?;
        Ok(ends)
    }

    fn each_connection(&self, ports: &[u16], mut show: impl FnMut(&TcpSocket)) -> io::Result<()> {
        self.each(|s| {
            if ports.contains(&s.local.port()) {
                show(s);
            }
        })
    }

    /// Visits every connection that is not over.
    fn each(&self, mut show: impl FnMut(&TcpSocket)) -> io::Result<()> {
        self.sock_diag()?.tcp(connected(), 0, |s| show(&s))
    }

    /// Returns what the sockets of the namespace are connected to. Walks the whole table.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn socket_names(&self) -> io::Result<SocketNames> {
        let mut names = SocketNames::default();
        let mut ask = self.sock_diag()?;
        ask.tcp(StateFlags::all() - StateFlags::TIME_WAIT, 0, |s| {
            let kind = if s.local.is_ipv4() { "TCP" } else { "TCPv6" };
            let ends = if s.state == LISTEN { s.local.to_string() } else { format!("{}->{}", s.local, s.remote) };
            names.insert(s.inode, format!("{kind}:[{ends}]"));
        })?;
        ask.unix_listeners(|s| {
            if let Some(path) = s.path {
                names.insert(s.inode, format!("UNIX-STREAM:[{},\"{path}\"]", s.inode));
            }
        })?;
        ask.unix_connections(|s| {
            // The accepted end carries the name.
            if let (Some(path), Some(peer)) = (s.path, s.peer) {
                names.insert(s.inode, format!("UNIX-STREAM:[{}->{peer},\"{path}\"]", s.inode));
                names.insert(peer, format!("unix:{path}"));
            }
        })?;
        Ok(names)
    }

    /// Finds the destination with the most TIME_WAIT connections from one address. Each of them holds a local port, and
    /// only those to the same destination compete for ports. Accepted ends hold the port of their listener, and each
    /// has another peer. Walks the whole table.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn ports_held(&self) -> io::Result<Option<PortsInUse>> {
        let mut held: HashMap<(IpAddr, SocketAddr), u64> = HashMap::new();
        let mut ask = self.sock_diag()?;
        ask.tcp(StateFlags::TIME_WAIT, 0, |s| *held.entry((s.local.ip(), s.remote)).or_default() += 1)?;
        let most = held.into_iter().max_by_key(|(_, n)| *n);
        Ok(most.map(|((_, to), time_wait)| PortsInUse { to: to.to_string(), time_wait }))
    }
}

/// Returns all states except LISTEN and TIME_WAIT.
pub(crate) fn connected() -> StateFlags {
    StateFlags::all() - StateFlags::LISTEN - StateFlags::TIME_WAIT
}

/// Returns true for an open connection to one of these ports.
fn is_client(socket: &TcpSocket, ports: &[u16]) -> bool {
    ports.contains(&socket.local.port()) && socket.state == ESTABLISHED
}

/// Returns the cookie of this thread's namespace.
fn own_cookie() -> Option<u64> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    let to = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most as many bytes as the number has, and both live for the call.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to, &raw mut length) };
    (result == 0).then_some(cookie)
}

/// Returns the longest listen queue of a process, unix sockets included: connections waiting to be accepted.
///
/// # Errors
/// When its namespace or its sockets may not be inspected.
pub fn longest_queue(pid: i32) -> io::Result<u64> {
    let own = crate::listeners::inodes(pid)?;
    let seen = Namespace::of(pid)?.look()?;
    let tcp = seen.tcp.into_iter().map(|l| (l.inode, l.queue.queue));
    let all = tcp.chain(seen.unix.into_iter().map(|l| (l.inode, l.queue.queue)));
    Ok(all.filter(|(inode, _)| own.contains(inode)).map(|(_, queue)| queue).max().unwrap_or(0))
}

/// Maximum time to wait for empty queues: one whose requests have given up takes a while to empty.
const MOST_DRAINING: Duration = Duration::from_secs(6);
/// Pause between checks whether connections still wait; and as a multiple of a check's processor time, at least.
const DRAINING_PAUSE: Duration = Duration::from_millis(100);
const DRAINING_PAUSES: u32 = 50;

/// Waits until no connection waits to be accepted by these processes, some seconds at most. Returns whether none does, and
/// the processor time of the checks.
#[must_use]
pub fn wait_for_empty_queues(pids: &[i32]) -> (bool, Duration) {
    let (end, mut costs) = (Instant::now() + MOST_DRAINING, Duration::ZERO);
    loop {
        let (waiting, cost) = timed(|| pids.iter().any(|pid| longest_queue(*pid).unwrap_or(0) > 0));
        costs += cost;
        if !waiting || Instant::now() >= end {
            return (!waiting, costs);
        }
        thread::sleep(DRAINING_PAUSE.max(cost * DRAINING_PAUSES));
    }
}

/// Counts the TIME_WAIT connections of our own namespace to each destination and returns the largest count. Connections
/// that the other end closed are in TIME_WAIT there, and hold no port of ours.
///
/// # Errors
/// When the kernel does not answer.
pub fn time_wait_to(destinations: &[SocketAddr]) -> io::Result<u64> {
    let mut held: HashMap<SocketAddr, u64> = destinations.iter().map(|d| (*d, 0)).collect();
    let ports: HashSet<u16> = destinations.iter().map(SocketAddr::port).collect();
    let mut ask = SockDiag::open()?;
    for port in ports {
        ask.tcp(StateFlags::TIME_WAIT, port, |s| {
            if let Some(n) = held.get_mut(&s.remote) {
                *n += 1;
            }
        })?;
    }
    Ok(held.into_values().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_and_its_limit_are_seen() {
        use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, socket};
        use std::os::fd::AsRawFd;
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).expect("a socket");
        bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("bound");
        listen(&fd, Backlog::new(7).expect("small")).expect("listens");
        let address = std::net::TcpListener::from(fd.try_clone().expect("another")).local_addr().expect("its address");
        let clients: Vec<_> =
            (0..3).map(|_| std::net::TcpStream::connect(address).expect("a place in the queue")).collect();
        let own = std::process::id() as i32;
        let seen = Namespace::of(own).expect("ours").look().expect("the kernel answers");
        let listener = seen.tcp.iter().find(|l| l.address == address).expect("our listener");
        assert_eq!((listener.queue.queue, listener.queue.limit), (clients.len() as u64, 7));
    }

    #[test]
    fn a_unix_listener_is_seen_with_its_limit() {
        let path = std::env::temp_dir().join(format!("lastdrop-probe-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("listens");
        let _client = std::os::unix::net::UnixStream::connect(&path).expect("a place in the queue");
        let seen = Namespace::of(std::process::id() as i32).expect("ours").look().expect("the kernel answers");
        let wanted = format!("unix:{}", path.display());
        let queue = &seen.unix.iter().find(|l| l.queue.address == wanted).expect("our listener").queue;
        assert!(queue.queue == 1 && queue.limit > 0, "{queue:?}");
        drop(listener);
        let _ = fs::remove_file(path);
    }

    #[test]
    fn closed_connections_count_for_the_destination_that_they_went_to() {
        use std::io::Read;
        // Uses an address of its own, so that ports of other programs do not matter.
        let listener = std::net::TcpListener::bind("127.77.0.1:0").expect("listens");
        let (address, own) = (listener.local_addr().expect("its address"), std::process::id() as i32);
        // The end that closes first goes to TIME_WAIT: three times the client, five times the server.
        for client_first in [true, true, true, false, false, false, false, false] {
            let mut client = std::net::TcpStream::connect(address).expect("connected");
            let (mut server, _) = listener.accept().expect("accepted");
            let (first, second) = if client_first { (&mut client, &mut server) } else { (&mut server, &mut client) };
            first.shutdown(std::net::Shutdown::Write).expect("ends");
            assert_eq!(second.read(&mut [0]).expect("the end"), 0);
            second.shutdown(std::net::Shutdown::Write).expect("ends");
            assert_eq!(first.read(&mut [0]).expect("the end"), 0);
        }
        assert_eq!(time_wait_to(&[address]).expect("the kernel answers"), 3);
        let other = std::net::TcpListener::bind("127.77.0.1:0").and_then(|l| l.local_addr()).expect("an address");
        assert_eq!(time_wait_to(&[other, address]).expect("the kernel answers"), 3);
        let held = Namespace::of(own).expect("ours").ports_held().expect("the kernel answers").expect("some");
        // Other programs on this machine may hold more.
        assert!(held.time_wait >= 3, "{held:?}");
    }

    #[test]
    fn a_namespace_is_known_again() {
        let own = Namespace::of(std::process::id() as i32).expect("ours");
        let id = own.id().expect("read");
        assert!(own.is_ours() && inode_of(std::process::id() as i32) == Some(id.inode), "{id:?}");
        assert_eq!(Namespace::at(Path::new("/proc/self/ns/net")).and_then(|n| n.id()).expect("read"), id);
        assert_eq!(inode_of(-1), None);
    }

    #[test]
    fn counters_are_read_by_name() {
        let c = counters(std::process::id() as i32).expect("our own");
        assert!(c.contains_key("ListenOverflows") && c.contains_key("PassiveOpens"), "{c:?}");
        assert!(socket_counts(std::process::id() as i32).expect("our own").contains_key("time_wait"));
    }

    #[test]
    fn a_connection_is_counted_once_it_is_taken_and_told_by_where_it_was_made_to() {
        let own = std::process::id() as i32;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("its address");
        let before = taken(own).expect("counted");
        let _client = std::net::TcpStream::connect(address).expect("connected");
        assert!(taken(own).expect("counted") > before);
        let (others, made) =
            ConnectionTables::default().others_and_made(own, &[address.port()]).expect("the kernel answers");
        // Its other end is ours.
        assert_eq!((others, made.get(&address)), (Vec::new(), Some(&ConnectionCounts { open: 1, opening: 0 })));
    }
}
