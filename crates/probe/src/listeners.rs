//! Finds which process listens at an address, and whether a listener has clients.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use crate::ProbeError;
use crate::namespace::{self, Namespace};
use crate::sock_diag::{ESTABLISHED, SockDiag, StateFlags, TIME_WAIT, TcpSocket};
use crate::stat::{self, Stat};

/// An address to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => address.fmt(f),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Endpoint {
    /// Rates how well a TCP listener matches this address; 0 is no match. The kernel gives a connection to the listener
    /// that matches best.
    #[must_use]
    pub fn fitness(&self, listener: &SocketAddr) -> u8 {
        let Endpoint::Tcp(wanted) = self else { return 0 };
        match listener.ip() {
            _ if listener.port() != wanted.port() => 0,
            ip if ip.to_canonical() == wanted.ip().to_canonical() => 3,
            ip if ip.is_unspecified() && ip.is_ipv4() == wanted.ip().is_ipv4() => 2,
            // A listener on :: also accepts IPv4, unless it sets IPV6_V6ONLY.
            ip if ip.is_unspecified() && ip.is_ipv6() => 1,
            _ => 0,
        }
    }

    /// Returns true for the unix socket at this path.
    #[must_use]
    pub fn is_path(&self, path: &str) -> bool {
        let real = |path: &Path| std::fs::canonicalize(path);
        match self {
            Endpoint::Unix(own) if own == Path::new(path) => true,
            // For links such as /var/run to /run.
            Endpoint::Unix(own) => real(own).is_ok_and(|own| real(Path::new(path)).is_ok_and(|p| p == own)),
            Endpoint::Tcp(_) => false,
        }
    }
}

/// Returns true for an address of this machine. A UDP socket "connected" to the address shows our source address,
/// without sending anything; towards ourselves, source and destination are equal.
#[must_use]
pub fn is_local(address: &SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return true;
    }
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any)
        .and_then(|s| s.connect(address).and_then(|()| s.local_addr()))
        .is_ok_and(|own| own.ip() == address.ip())
}

/// Returns the TCP listeners in the network namespace of a process with their inodes, those on all addresses first. If
/// permitted, asks the kernel for listeners alone: its whole table takes milliseconds, and as long again for each ten
/// thousand connections.
fn listening(pid: i32) -> Result<Vec<(SocketAddr, u64)>, ProbeError> {
    let told = sockets(pid, StateFlags::LISTEN)?;
    let mut all: Vec<(SocketAddr, u64)> = told.into_iter().map(|s| (s.local, s.inode)).collect();
    all.sort_unstable_by_key(|(address, inode)| (!address.ip().is_unspecified(), *address, *inode));
    Ok(all)
}

/// Returns the TCP sockets in some states in the network namespace of a process. The kernel gives them in binary over
/// netlink; if another namespace may not be entered, they are read as text from /proc.
fn sockets(pid: i32, states: StateFlags) -> Result<Vec<TcpSocket>, ProbeError> {
    let mut all = Vec::new();
    let ask = Namespace::of(pid).and_then(|n| n.sock_diag());
    match ask.and_then(|mut ask| ask.tcp(states.clone(), 0, |s| all.push(s))) {
        Ok(()) => Ok(all),
        Err(_) => sockets_by_text(pid, &states),
    }
}

fn sockets_by_text(pid: i32, states: &StateFlags) -> Result<Vec<TcpSocket>, ProbeError> {
    let mut told = stat::sockets(pid, "tcp").map_err(|e| ProbeError::of(pid, "net/tcp", e))?;
    // A missing IPv6 table is not an error.
    told.extend(stat::sockets(pid, "tcp6").unwrap_or_default());
    told.retain(|s| states.bits() & (1 << s.state) != 0);
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    told.iter_mut().for_each(|s| (s.local, s.remote) = (canonical(s.local), canonical(s.remote)));
    Ok(told)
}

/// Returns the inodes of the sockets that a process has open.
///
/// # Errors
/// When its descriptors may not be read.
pub fn inodes(pid: i32) -> std::io::Result<std::collections::BTreeSet<u64>> {
    let mut all = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(Result::ok) {
        let inode = std::fs::read_link(entry.path())
            .ok()
            .and_then(|l| l.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok());
        all.extend(inode);
    }
    Ok(all)
}

/// Returns the addresses on which a process listens.
///
/// # Errors
/// When its descriptors may not be read.
pub fn of_process(pid: i32) -> Result<Vec<SocketAddr>, ProbeError> {
    let inodes = inodes(pid).map_err(|e| ProbeError::of(pid, "fd", e))?;
    Ok(listening(pid)?.into_iter().filter(|(_, inode)| inodes.contains(inode)).map(|(address, _)| address).collect())
}

/// Returns the process that owns the listener of an address or path of this machine. If several share it, returns the
/// one whose parent does not. None if nothing listens there, or its descriptors may not be read.
#[must_use]
pub fn owner(endpoint: &Endpoint) -> Option<i32> {
    let mut inodes = HashSet::new();
    match endpoint {
        Endpoint::Tcp(_) => inodes = listening_at(i32::try_from(std::process::id()).ok()?, endpoint),
        Endpoint::Unix(_) => {
            let each = |s: crate::sock_diag::UnixSocket| {
                if s.path.is_some_and(|p| endpoint.is_path(&p)) {
                    inodes.insert(s.inode);
                }
            };
            SockDiag::open().ok()?.unix_listeners(each).ok()?;
        }
    }
    holder(&inodes)
}

/// Returns the names of the programs that listen at these addresses (`127.0.0.1:3306`, `unix:/run/x.sock`), if they are
/// on this machine and can be inspected.
#[must_use]
pub fn programs(peers: impl IntoIterator<Item = String>) -> BTreeMap<String, String> {
    let endpoint = |peer: &str| match peer.strip_prefix("unix:") {
        Some(path) => Some(Endpoint::Unix(path.into())),
        None => peer.parse().ok().filter(is_local).map(Endpoint::Tcp),
    };
    let program = |peer: &str| crate::process::name(owner(&endpoint(peer)?)?);
    peers.into_iter().filter_map(|peer| Some((program(&peer)?, peer))).map(|(program, peer)| (peer, program)).collect()
}

/// Returns the sockets in the namespace of a process that listen at an address and match it best.
fn listening_at(pid: i32, endpoint: &Endpoint) -> HashSet<u64> {
    let all = listening(pid).unwrap_or_default();
    let best = all.iter().map(|(address, _)| endpoint.fitness(address)).max().filter(|best| *best > 0);
    all.into_iter().filter(|(address, _)| Some(endpoint.fitness(address)) == best).map(|(_, inode)| inode).collect()
}

/// Returns the owners of an address's listeners in all visible network namespaces that have this address. If our own
/// namespace has an owner, returns only that one.
#[must_use]
pub fn owners_anywhere(address: SocketAddr) -> Vec<i32> {
    let endpoint = Endpoint::Tcp(address);
    if let Some(own) = Some(address).filter(is_local).and_then(|_| owner(&endpoint)) {
        return vec![own];
    }
    let own = i32::try_from(std::process::id()).ok().and_then(namespace::inode_of);
    // One process of each namespace.
    let mut namespaces = BTreeMap::new();
    for pid in stat::all_pids() {
        if let Some(inode) = namespace::inode_of(pid).filter(|inode| Some(*inode) != own) {
            namespaces.entry(inode).or_insert(pid);
        }
    }
    let has_it = |pid: i32| Namespace::of(pid).and_then(|n| n.apart(|| Ok(is_local(&address)))).unwrap_or(false);
    let listening = namespaces.into_values().map(|pid| (pid, listening_at(pid, &endpoint)));
    listening.filter(|(pid, found)| !found.is_empty() && has_it(*pid)).filter_map(|(_, found)| holder(&found)).collect()
}

/// Returns the TCP listeners that a process has open. Empty if its descriptors may not be read.
#[must_use]
pub fn inodes_of_listeners(pid: i32) -> HashSet<u64> {
    let own = inodes(pid).unwrap_or_default();
    if own.is_empty() {
        return HashSet::new();
    }
    let all = listening(pid).unwrap_or_default();
    all.into_iter().map(|(_, inode)| inode).filter(|inode| own.contains(inode)).collect()
}

/// Returns all processes that have a listener of this process open, itself included.
#[must_use]
pub fn holders_of_listeners(pid: i32) -> Vec<i32> {
    let listening = inodes_of_listeners(pid);
    if listening.is_empty() {
        return Vec::new();
    }
    let holds = |pid: &i32| inodes(*pid).is_ok_and(|theirs| theirs.iter().any(|inode| listening.contains(inode)));
    stat::all_pids().filter(holds).collect()
}

/// Returns the process that has one of these sockets open. If several have, returns the one whose parent has not.
fn holder(inodes: &HashSet<u64>) -> Option<i32> {
    if inodes.is_empty() {
        return None;
    }
    let holds = |pid: &i32| self::inodes(*pid).is_ok_and(|theirs| theirs.iter().any(|inode| inodes.contains(inode)));
    let with_parent = |pid: i32| Some((pid, Stat::of_any(pid)?.0.parent));
    let holders: Vec<(i32, i32)> = stat::all_pids().filter(holds).filter_map(with_parent).collect();
    let top = holders.iter().find(|(_, parent)| !holders.iter().any(|(pid, _)| pid == parent)).map(|(pid, _)| *pid)?;
    Some(hidden_master(top).unwrap_or(top))
}

/// Returns the parent of a worker if it runs the same program as another user. Its descriptors cannot be read, but it
/// owns the listener.
fn hidden_master(worker: i32) -> Option<i32> {
    let (stat, name) = Stat::of_any(worker)?;
    let (_, name_of_parent) = Stat::of_any(stat.parent)?;
    (name_of_parent == name && inodes(stat.parent).is_err()).then_some(stat.parent)
}

/// A connection to a port, from the kernel's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    pub peer: SocketAddr,
    /// Our address to which the peer connected.
    pub local: SocketAddr,
    /// Neither side has closed the connection.
    pub open: bool,
    /// The connection ended in order within the last minute, and the server closed it first.
    pub time_wait: bool,
}

/// Returns the connections to the given ports in the namespace of `pid`: open ones, and those that the server closed
/// within the last minute.
///
/// # Errors
/// When the socket table cannot be read.
pub fn connections(pid: i32, ports: &[u16]) -> Result<Vec<Connection>, ProbeError> {
    let told = sockets(pid, StateFlags::all() - StateFlags::LISTEN)?;
    let ours = told.into_iter().filter(|s| ports.contains(&s.local.port()));
    Ok(ours
        .map(|s| Connection {
            peer: s.remote,
            local: s.local,
            open: s.state == ESTABLISHED,
            time_wait: s.state == TIME_WAIT,
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_that_fits_best_is_the_one_of_the_url() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let url = Endpoint::Tcp(at("127.0.0.1:80"));
        let fitness = ["127.0.0.1:80", "0.0.0.0:80", "[::]:80", "[::1]:80", "127.0.0.2:80", "127.0.0.1:81"]
            .map(|l| url.fitness(&at(l)));
        assert_eq!(fitness, [3, 2, 1, 0, 0, 0]);
        let six = Endpoint::Tcp(at("[::1]:80"));
        assert_eq!(["[::]:80", "0.0.0.0:80"].map(|l| six.fitness(&at(l))), [2, 0]);
    }

    #[test]
    fn text_tells_of_a_connection_what_numbers_tell() {
        let listener = std::net::TcpListener::bind("[::]:0").or_else(|_| std::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("listens");
        let port = listener.local_addr().expect("its address").port();
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let _taken = listener.accept().expect("accepted");
        let (own, pid) = (client.local_addr().expect("its own"), std::process::id() as i32);
        // Connections that others have closed may have had the same ports.
        let ends = [(port, 0), (port, own.port()), (own.port(), port)];
        let ours = |all: Vec<TcpSocket>| {
            let mut all: Vec<_> =
                all.into_iter().filter(|s| ends.contains(&(s.local.port(), s.remote.port()))).collect();
            all.sort_unstable_by_key(|s| (s.local, s.remote));
            all.into_iter().map(|s| (s.local, s.remote, s.inode, s.state)).collect::<Vec<_>>()
        };
        for (states, count) in [(StateFlags::LISTEN, 1), (StateFlags::all() - StateFlags::LISTEN, 2)] {
            let by_text = ours(sockets_by_text(pid, &states).expect("told"));
            assert_eq!((ours(sockets(pid, states).expect("told")), by_text.len()), (by_text, count));
        }
    }

    #[test]
    fn the_owner_of_a_unix_socket_is_found_by_any_of_its_paths() {
        let dir = std::env::temp_dir().join(format!("lastdrop-owner-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("x.sock");
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("listens");
        let other = dir.join("../").join(dir.file_name().expect("named")).join("x.sock");
        assert_eq!(owner(&Endpoint::Unix(other)), Some(std::process::id() as i32));
        drop(listener);
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
