//! Sockets and counters of a server's network namespace, which need not be ours.
//!
//! Counters are read below /proc/PID/net, which is the namespace of that process. Listen queues with their limits are
//! only to be had over netlink from inside it: the thread that asks goes there and comes back.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;

use lastdrop_model::ListenQueue;
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags};
use netlink_packet_sock_diag::unix::{ShowFlags, StateFlags as UnixStates, UnixRequest};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use nix::sched::{CloneFlags, setns};

use crate::host;

/// Counters of /proc/net/netstat and /proc/net/snmp that say something about a web server (kernel-limits of the manual).
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

/// Reads the counters of a process's namespace, since it was made. Those that this kernel does not have are absent.
///
/// # Errors
/// When the process is gone or hidden.
pub fn counters(pid: i32) -> io::Result<BTreeMap<&'static str, u64>> {
    let mut all = BTreeMap::new();
    let netstat = fs::read_to_string(format!("/proc/{pid}/net/netstat"))?;
    let snmp = fs::read_to_string(format!("/proc/{pid}/net/snmp"))?;
    for text in [&netstat, &snmp] {
        let lines: Vec<&str> = text.lines().collect();
        // A line of names and a line of values, each beginning with the protocol: columns differ from kernel to kernel.
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
    // Connection tracking: a row of hexadecimal numbers a processor, there only where the module is.
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

const CONNTRACK: &[(&str, &str)] =
    &[("drop", "conntrack_drop"), ("early_drop", "conntrack_early_drop"), ("insert_failed", "conntrack_insert_failed")];

/// Sockets that /proc/PID/net/sockstat counts, of the whole namespace: `time_wait`, `orphan`, `in_use`, `memory_pages`.
///
/// # Errors
/// When the process is gone or hidden.
pub fn socket_counts(pid: i32) -> io::Result<BTreeMap<String, u64>> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/sockstat"))?;
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

/// Entries of the connection table and how many there may be. None without connection tracking. Must run in the
/// namespace that is meant.
fn conntrack_fill() -> Option<(u64, u64)> {
    let read = |name: &str| {
        fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")).ok()?.trim().parse().ok()
    };
    Some((read("count")?, read("max")?))
}

/// What only a look from inside the namespace shows.
#[derive(Debug, Default, Clone)]
pub struct Inside {
    /// TCP listeners with the inode of their socket.
    pub tcp: Vec<(SocketAddr, u32, ListenQueue)>,
    /// Unix listeners with the inode of their socket.
    pub unix: Vec<(u32, ListenQueue)>,
    pub conntrack: Option<(u64, u64)>,
    /// Ports for outgoing connections to one address.
    pub local_ports: u64,
}

/// A way into the network namespace of a process.
#[derive(Debug)]
pub struct Namespace {
    /// None: it is ours.
    theirs: Option<File>,
    ours: Option<File>,
}

impl Namespace {
    /// Opens the namespace of a process.
    ///
    /// # Errors
    /// When the process is gone or belongs to another user.
    pub fn of(pid: i32) -> io::Result<Namespace> {
        let (path, own) = (format!("/proc/{pid}/ns/net"), "/proc/thread-self/ns/net");
        if fs::read_link(&path)? == fs::read_link(own)? {
            return Ok(Namespace { theirs: None, ours: None });
        }
        Ok(Namespace { theirs: Some(File::open(path)?), ours: Some(File::open(own)?) })
    }

    /// Does something inside the namespace. Only this thread goes there.
    ///
    /// # Errors
    /// When the system does not let us in (it wants root), or does not let us back.
    pub fn inside<T>(&self, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let (Some(theirs), Some(ours)) = (&self.theirs, &self.ours) else { return act() };
        setns(theirs, CloneFlags::CLONE_NEWNET)?;
        let result = act();
        setns(ours, CloneFlags::CLONE_NEWNET)?;
        result
    }

    /// Listeners with their queues, and the connection table.
    ///
    /// # Errors
    /// When the namespace cannot be entered or the kernel does not answer.
    pub fn look(&self) -> io::Result<Inside> {
        self.inside(|| {
            let mut seen =
                Inside { conntrack: conntrack_fill(), local_ports: host::local_ports(), ..Inside::default() };
            for family in [AF_INET, AF_INET6] {
                each_tcp(family, StateFlags::LISTEN, |h| {
                    let address = SocketAddr::new(h.socket_id.source_address, h.socket_id.source_port);
                    // Of a listener the kernel gives the queue as what is received, its limit as what is sent.
                    let queue = ListenQueue {
                        address: address.to_string(),
                        queue: h.recv_queue.into(),
                        limit: h.send_queue.into(),
                    };
                    seen.tcp.push((address, h.inode, queue));
                })?;
            }
            each_unix_listener(|inode, queue| seen.unix.push((inode, queue)))?;
            Ok(seen)
        })
    }

    /// Connections to the given ports by state, TIME_WAIT left out (sockstat has it for less). It walks the whole table.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn connections(&self, ports: &[u16]) -> io::Result<BTreeMap<String, u64>> {
        // These two are asked after most: none of them is an answer.
        let mut states = BTreeMap::from(["established", "close_wait"].map(|name| (name.to_string(), 0)));
        self.each_connection(ports, |h| {
            if let Some(name) = state_name(h.state) {
                *states.entry(name.to_string()).or_default() += 1;
            }
        })?;
        Ok(states)
    }

    /// Inodes of the sockets that are connected to the given ports.
    ///
    /// # Errors
    /// As [`Namespace::look`].
    pub fn connected_inodes(&self, ports: &[u16]) -> io::Result<std::collections::HashSet<u64>> {
        let mut inodes = std::collections::HashSet::new();
        self.each_connection(ports, |h| {
            inodes.insert(u64::from(h.inode));
        })?;
        Ok(inodes)
    }

    fn each_connection(&self, ports: &[u16], mut show: impl FnMut(&InetResponseHeader)) -> io::Result<()> {
        let wanted = StateFlags::all() - StateFlags::LISTEN - StateFlags::TIME_WAIT;
        self.inside(|| {
            for family in [AF_INET, AF_INET6] {
                each_tcp(family, wanted.clone(), |h| {
                    if ports.contains(&h.socket_id.source_port) {
                        show(h);
                    }
                })?;
            }
            Ok(())
        })
    }
}

/// Names of TCP states by their number in the kernel.
fn state_name(state: u8) -> Option<&'static str> {
    let names = [
        "established",
        "syn_sent",
        "syn_recv",
        "fin_wait_1",
        "fin_wait_2",
        "time_wait",
        "close",
        "close_wait",
        "last_ack",
        "listen",
        "closing",
        "syn_recv",
    ];
    names.get(usize::from(state).checked_sub(1)?).copied()
}

fn each_tcp(family: u8, states: StateFlags, mut show: impl FnMut(&InetResponseHeader)) -> io::Result<()> {
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states,
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    };
    dump(SockDiagMessage::InetRequest(request), |message| {
        if let SockDiagMessage::InetResponse(response) = message {
            show(&response.header);
        }
    })
}

fn each_unix_listener(mut show: impl FnMut(u32, ListenQueue)) -> io::Result<()> {
    let request = UnixRequest {
        state_flags: UnixStates::LISTEN,
        inode: 0,
        show_flags: ShowFlags::NAME | ShowFlags::RQLEN,
        cookie: [0xff; 8],
    };
    dump(SockDiagMessage::UnixRequest(request), |message| {
        if let SockDiagMessage::UnixResponse(response) = message {
            use netlink_packet_sock_diag::unix::nlas::UnixDiagName;
            let name = match response.name() {
                Some(UnixDiagName::Pathname(path)) => path.to_string_lossy().into_owned(),
                Some(UnixDiagName::Abstract(name)) => format!("@{}", String::from_utf8_lossy(name)),
                _ => return,
            };
            let queue = ListenQueue {
                address: format!("unix:{}", name.trim_end_matches('\0')),
                queue: response.number_of_pending_connection().unwrap_or(0).into(),
                limit: response.max_number_of_pending_connection().unwrap_or(0).into(),
            };
            show(response.header.inode, queue);
        }
    })
}

/// Asks the kernel for all sockets of a kind.
fn dump(request: SockDiagMessage, mut show: impl FnMut(SockDiagMessage)) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut packet = NetlinkMessage::new(header, request.into());
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let size = socket.recv(&mut &mut buffer[..], 0)?;
        let mut rest = buffer.get(..size).unwrap_or_default();
        while !rest.is_empty() {
            let message = <NetlinkMessage<SockDiagMessage>>::deserialize(rest).map_err(io::Error::other)?;
            match message.payload {
                NetlinkPayload::InnerMessage(inner) => show(inner),
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(e) => return Err(e.to_io()),
                _ => {}
            }
            // Messages lie on boundaries of four bytes.
            let length = (message.header.length as usize).next_multiple_of(4);
            if length == 0 || length >= rest.len() {
                break;
            }
            rest = &rest[length..];
        }
    }
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
        let (_, _, queue) = seen.tcp.iter().find(|(a, _, _)| *a == address).expect("our listener");
        assert_eq!((queue.queue, queue.limit), (clients.len() as u64, 7));
    }

    #[test]
    fn a_unix_listener_is_seen_with_its_limit() {
        let path = std::env::temp_dir().join(format!("lastdrop-probe-{}.sock", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("listens");
        let _client = std::os::unix::net::UnixStream::connect(&path).expect("a place in the queue");
        let seen = Namespace::of(std::process::id() as i32).expect("ours").look().expect("the kernel answers");
        let wanted = format!("unix:{}", path.display());
        let (_, queue) = seen.unix.iter().find(|(_, q)| q.address == wanted).expect("our listener");
        assert!(queue.queue == 1 && queue.limit > 0, "{queue:?}");
        drop(listener);
        let _ = fs::remove_file(path);
    }

    #[test]
    fn counters_are_read_by_name() {
        let c = counters(std::process::id() as i32).expect("our own");
        assert!(c.contains_key("ListenOverflows") && c.contains_key("PassiveOpens"), "{c:?}");
        assert!(socket_counts(std::process::id() as i32).expect("our own").contains_key("time_wait"));
    }
}
