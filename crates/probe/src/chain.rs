//! Finds the processes of this machine that take part in a measurement: lastdrop, the server it talks to, and
//! everything that server talks to in turn. That may be a proxy, PHP-FPM or a database, also in containers of this
//! machine.
//!
//! The chain is found from the connections that exist at the moment of a look. A connection that lastdrop or a member
//! opened leads to the process that holds its other end. If it is not accepted yet, it leads to the listener.
//! Connections that others opened to a member are not followed: those are other clients. A process brings with it its
//! ancestors that run the same program, all its descendants, and the processes of the same service or container.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::listeners::{Endpoint, inodes, is_local};
use crate::namespace::{Namespace, connected};
use crate::sock_diag::{ESTABLISHED, LISTEN, SYN_SENT, SockDiag, StateFlags, TcpSocket, UnixSocket};
use crate::stat::{self, Stat};

/// Interpreters: for these, the script is the program.
const INTERPRETERS: &[&str] = &["python", "pypy", "ruby", "perl", "node", "java", "php7", "php8"];
/// Namespaces beyond this number are not searched, on a machine full of containers.
const MOST_NAMESPACES: usize = 64;
/// Endings or parts of a control group's path that mark a group of exactly one service or container.
const SERVICE_GROUPS: &[&str] =
    &["/docker", "/libpod", "/kubepods", "/lxc", "/crio", "/machine.slice/", "cri-containerd"];

/// The processes that take part.
#[derive(Debug, Default, Clone)]
pub struct Chain {
    /// Topmost process of each known program, with its start time, because pids are reused.
    members: HashMap<i32, u64>,
    /// Control groups that hold only members.
    groups: BTreeSet<String>,
    /// True if the other end of a member's connection belongs to a process that cannot be seen.
    unknown: bool,
}

impl Chain {
    /// Returns a chain of lastdrop alone.
    #[must_use]
    pub fn of_ourselves() -> Chain {
        Chain::of_pids(&[std::process::id() as i32])
    }

    /// Returns a chain of a server alone, without the programs it talks to.
    #[must_use]
    pub fn of_server(master: i32) -> Chain {
        Chain::of_pids(&[master])
    }

    pub(crate) fn of_pids(pids: &[i32]) -> Chain {
        let mut chain = Chain::default();
        pids.iter().for_each(|pid| chain.add(*pid));
        chain
    }

    /// Adds a process that is known to belong to the chain.
    pub fn add(&mut self, pid: i32) {
        let start = Stat::of_any(pid).map_or(0, |(stat, _)| stat.start_ticks);
        self.members.insert(pid, start);
    }

    /// Returns the topmost process of each known program, lastdrop included.
    #[must_use]
    pub fn members(&self) -> Vec<i32> {
        self.members.keys().copied().collect()
    }

    /// Returns true if the chain has members other than lastdrop.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.members.len() > 1
    }

    /// Returns true if a process belongs to the server or to a program that the server talks to. lastdrop's own
    /// processes do not, except members that lastdrop has started.
    pub(crate) fn serves(&self, pid: i32, parent: impl Fn(i32) -> Option<i32>) -> bool {
        let own = std::process::id() as i32;
        let mut up = Some(pid);
        while let Some(p) = up.filter(|p| *p > 1) {
            if p == own {
                return false;
            }
            if self.members.contains_key(&p) {
                return true;
            }
            up = parent(p);
        }
        !self.groups.is_empty() && service_of(pid).is_some_and(|g| self.groups.contains(&g))
    }

    /// Returns true if a process belongs to the chain. `parent` returns the parent of a process.
    pub(crate) fn has(&self, pid: i32, parent: impl Fn(i32) -> Option<i32>) -> bool {
        let mut up = Some(pid);
        while let Some(p) = up.filter(|p| *p > 1) {
            if self.members.contains_key(&p) {
                return true;
            }
            up = parent(p);
        }
        if !self.groups.is_empty() && service_of(pid).is_some_and(|g| self.groups.contains(&g)) {
            return true;
        }
        // A process that may not be inspected may hold the unknown other end.
        self.unknown && fs::read_dir(format!("/proc/{pid}/fd")).is_err()
    }

    /// Follows the connections that exist now. The listener at `to` belongs even if connections to it are closed
    /// already. Reads the open files of every process: 1 to 2 µs per file.
    pub fn look(&mut self, to: Option<&Endpoint>) {
        let table = ProcessTable::read();
        self.members.retain(|pid, start| table.starts.get(pid) == Some(start) || *start == 0);
        let mut networks = Networks::default();
        let own = service_of(std::process::id() as i32);
        self.unknown = false;
        if let Some(end) = to.and_then(|to| Networks::listener(to, &table)) {
            self.members.insert(end, table.starts.get(&end).copied().unwrap_or(0));
            self.groups.extend(service_of(end).filter(|g| Some(g) != own.as_ref()));
        }
        let mut followed: HashSet<i32> = HashSet::new();
        loop {
            let members: Vec<i32> = table.parents.keys().filter(|pid| self.is_below(**pid, &table)).copied().collect();
            let next: Vec<i32> = members.into_iter().filter(|pid| followed.insert(*pid)).collect();
            if next.is_empty() {
                break;
            }
            // Open files and the sockets of their networks are read in immediate succession. On a busy machine, reading
            // the files of all processes takes longer than many connections last.
            let open: Vec<(i32, Vec<u64>)> =
                next.iter().map(|pid| (*pid, inodes(*pid).unwrap_or_default().into_iter().collect())).collect();
            networks.read.clear();
            for (pid, inodes) in open {
                for end in networks.ends_of(pid, &inodes, &table) {
                    match end {
                        Some(other) if !self.is_below(other, &table) => {
                            let top = table.top_of_program(other);
                            self.members.insert(top, table.starts.get(&top).copied().unwrap_or(0));
                            self.groups.extend(service_of(top).filter(|g| Some(g) != own.as_ref()));
                        }
                        Some(_) => {}
                        None => self.unknown = true,
                    }
                }
            }
        }
    }

    fn is_below(&self, pid: i32, table: &ProcessTable) -> bool {
        let mut up = Some(pid);
        while let Some(p) = up.filter(|p| *p > 1) {
            if self.members.contains_key(&p) {
                return true;
            }
            up = table.parents.get(&p).copied();
        }
        false
    }
}

/// Returns the control group of a process if it is the group of one service or container.
fn service_of(pid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let paths = text.lines().filter_map(|l| l.splitn(3, ':').nth(2));
    paths.filter(|p| p.ends_with(".service") || SERVICE_GROUPS.iter().any(|s| p.contains(s))).map(str::to_string).next()
}

/// A program that is connected to a server of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectedProgram {
    /// Topmost process of the program.
    pub pid: i32,
    pub connections: u64,
    /// Processes of the program that hold a connection.
    pub processes: u64,
}

/// Lists the programs connected to a server by the connections that exist now in its network, TCP and unix.
#[must_use]
pub fn connected_programs(master: i32) -> Vec<ConnectedProgram> {
    let table = ProcessTable::read();
    let Some(network) = Network::read(master) else { return Vec::new() };
    let listening = inodes(master).unwrap_or_default();
    let ports: HashSet<u16> =
        network.tcp_listeners.iter().filter(|(_, inode)| listening.contains(inode)).map(|(a, _)| a.port()).collect();
    let paths: HashSet<&String> =
        network.unix_listeners.iter().filter(|(_, inode)| listening.contains(inode)).map(|(path, _)| path).collect();
    let by_tcp = network.by_inode.values().filter(|s| ports.contains(&s.local.port()) && s.state == ESTABLISHED);
    let by_tcp = by_tcp.filter_map(|s| network.other_end(s)).map(|other| other.inode);
    let by_unix = network.unix.values().filter(|s| s.path.as_ref().is_some_and(|path| paths.contains(path)));
    let mut programs: HashMap<i32, (u64, HashSet<i32>)> = HashMap::new();
    for holder in by_tcp.chain(by_unix.filter_map(|s| s.peer)).filter_map(|inode| table.holders.get(&inode)) {
        let top = table.top_of_program(*holder);
        if top != master {
            let (connections, processes) = programs.entry(top).or_default();
            *connections += 1;
            processes.insert(*holder);
        }
    }
    let program = |(pid, (connections, processes)): (i32, (u64, HashSet<i32>))| ConnectedProgram {
        pid,
        connections,
        processes: processes.len() as u64,
    };
    programs.into_iter().map(program).collect()
}

/// Every process with its parent, and the holder of each open socket.
#[derive(Debug, Default)]
struct ProcessTable {
    parents: HashMap<i32, i32>,
    starts: HashMap<i32, u64>,
    /// Holder of a socket. If several processes hold it, the one with the smallest pid, which usually is the oldest.
    holders: HashMap<u64, i32>,
}

impl ProcessTable {
    fn read() -> ProcessTable {
        let mut table = ProcessTable::default();
        for pid in stat::all_pids() {
            let Some((stat, _)) = Stat::of_any(pid) else { continue };
            table.parents.insert(pid, stat.parent);
            table.starts.insert(pid, stat.start_ticks);
            for inode in inodes(pid).unwrap_or_default() {
                let holder = table.holders.entry(inode).or_insert(pid);
                *holder = pid.min(*holder);
            }
        }
        table
    }

    /// Returns the topmost ancestor that runs the same program.
    fn top_of_program(&self, pid: i32) -> i32 {
        let program = |pid: i32| -> Option<(PathBuf, Vec<u8>)> {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
            Some((exe.clone(), script_of(&exe, pid)))
        };
        let own = program(pid);
        let mut top = pid;
        while let Some(parent) = self.parents.get(&top).filter(|p| **p > 1 && own.is_some() && program(**p) == own) {
            top = *parent;
        }
        top
    }
}

/// Returns what an interpreter runs: its command line, or the first word of the title it has set. Empty for other
/// programs, which are the same program whatever their title is. A supervisor in Python is not part of the gunicorn it
/// started.
fn script_of(exe: &Path, pid: i32) -> Vec<u8> {
    let interprets = |name: &str| INTERPRETERS.iter().any(|one| name.starts_with(one));
    if !interprets(&exe.file_name().unwrap_or_default().to_string_lossy()) {
        return Vec::new();
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|b| *b == 0 || *b == b' ').filter(|w| !w.is_empty()).collect();
    // Titles such as "gunicorn: master [app]" and "gunicorn: worker [app]", "puma 6.3 (…)" and "puma: cluster worker
    // 0".
    let first = String::from_utf8_lossy(words.first().copied().unwrap_or_default()).into_owned();
    let is_title = !first.starts_with('/') && !interprets(&first);
    if is_title { first.trim_end_matches(':').into() } else { words.concat() }
}

/// The sockets of one network namespace.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// Connections by inode, by both addresses, and by remote address alone. The last is not unique: a client may use
    /// one port for connections to several servers.
    pub by_inode: HashMap<u64, TcpSocket>,
    by_ends: HashMap<(SocketAddr, SocketAddr), TcpSocket>,
    by_remote: HashMap<SocketAddr, TcpSocket>,
    /// Inodes of listeners by port.
    pub listeners: HashMap<u16, u64>,
    /// Addresses of listeners with their inodes.
    pub tcp_listeners: Vec<(SocketAddr, u64)>,
    pub unix: HashMap<u64, UnixSocket>,
    pub unix_listeners: HashMap<String, u64>,
}

impl Network {
    pub fn read(pid: i32) -> Option<Network> {
        let mut ask = Namespace::of(pid).and_then(|n| n.sock_diag()).ok()?;
        let mut network = Network::of_listeners(&mut ask).ok()?;
        ask.tcp(connected(), 0, |s| network.add(s)).ok()?;
        ask.unix_connections(|s| _ = network.unix.insert(s.inode, s)).ok()?;
        Some(network)
    }

    /// Reads listeners alone, for which the kernel need not walk its table of connections.
    fn of_listeners(ask: &mut SockDiag) -> io::Result<Network> {
        let mut network = Network::default();
        ask.tcp(StateFlags::LISTEN, 0, |s| network.add(s))?;
        ask.unix_listeners(|s| network.unix_listeners.extend(s.path.map(|path| (path, s.inode))))?;
        Ok(network)
    }

    pub fn add(&mut self, s: TcpSocket) {
        if s.state == LISTEN {
            self.listeners.insert(s.local.port(), s.inode);
            self.tcp_listeners.push((s.local, s.inode));
        } else {
            self.by_inode.insert(s.inode, s);
            self.by_ends.insert((s.local, s.remote), s);
            self.by_remote.insert(s.remote, s);
        }
    }

    /// Returns the other end of a connection if it is in this network.
    pub fn other_end(&self, socket: &TcpSocket) -> Option<&TcpSocket> {
        self.by_ends.get(&(socket.remote, socket.local))
    }

    /// Returns the other end of a connection whose address was translated on the way (NAT), so that both ends know it
    /// by different addresses. Use it only for connections that `other_end` does not find.
    pub fn translated_end(&self, socket: &TcpSocket) -> Option<&TcpSocket> {
        self.by_remote.get(&socket.local)
    }

    /// Returns the process in `holders` that holds a connection's end in this network; before the connection is
    /// accepted, the holder of its listener.
    pub fn holder<T: Copy>(&self, end: &TcpSocket, holders: &HashMap<u64, T>) -> Option<T> {
        let accepted = holders.get(&end.inode).filter(|_| end.inode != 0);
        accepted.or_else(|| holders.get(self.listeners.get(&end.local.port())?)).copied()
    }
}

/// The network namespaces of the machine, read on demand.
#[derive(Debug, Default)]
struct Networks {
    /// Networks by the name that /proc gives to the namespace.
    read: HashMap<PathBuf, Option<Network>>,
    /// Networks for connections whose addresses were translated, read once however many there are.
    translated: HashMap<PathBuf, Option<Network>>,
    /// Netlink sockets to look up single connections in a namespace, with its listeners.
    asks: HashMap<PathBuf, Option<(SockDiag, Network)>>,
    /// One process of each namespace.
    known: Option<HashMap<PathBuf, i32>>,
}

pub(crate) fn namespace_name(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

impl Networks {
    fn of(&mut self, name: &PathBuf, pid: i32) -> Option<&Network> {
        if !self.read.contains_key(name) {
            self.read.insert(name.clone(), Network::read(pid));
        }
        self.read.get(name)?.as_ref()
    }

    /// Returns the topmost process of the program that listens at `to`, as seen from lastdrop's own namespace.
    fn listener(to: &Endpoint, table: &ProcessTable) -> Option<i32> {
        let network = Network::of_listeners(&mut SockDiag::open().ok()?).ok()?;
        let inode = match to {
            Endpoint::Tcp(address) if is_local(address) => network.listeners.get(&address.port()),
            Endpoint::Tcp(_) => None,
            Endpoint::Unix(_) => network.unix_listeners.iter().find(|(path, _)| to.is_path(path)).map(|(_, i)| i),
        };
        Some(table.top_of_program(*table.holders.get(inode?)?))
    }

    /// Returns the processes at the other ends of the connections that a process opened. None marks an end on this
    /// machine that cannot be seen.
    fn ends_of(&mut self, pid: i32, inodes: &[u64], table: &ProcessTable) -> Vec<Option<i32>> {
        if inodes.is_empty() {
            return Vec::new();
        }
        let Some(name) = namespace_name(pid) else { return Vec::new() };
        let Some(own) = self.of(&name, pid) else { return Vec::new() };
        let mut ends = Vec::new();
        let mut far: Vec<TcpSocket> = Vec::new();
        for inode in inodes {
            if let Some(socket) = own.by_inode.get(inode) {
                if own.listeners.contains_key(&socket.local.port()) {
                    continue;
                }
                // If another process has accepted the connection since the files were read, it holds the listener too.
                let listening = own.listeners.get(&socket.remote.port());
                let listener = || listening.and_then(|inode| table.holders.get(inode)).copied();
                let translated = || own.translated_end(socket).filter(|_| listening.is_none());
                match own.other_end(socket).or_else(translated) {
                    Some(other) => ends.push(own.holder(other, &table.holders).or_else(listener)),
                    None if !socket.remote.ip().is_loopback() => far.push(*socket),
                    // The other end is closed already.
                    None => {}
                }
            } else if let Some(socket) = own.unix.get(inode).filter(|s| s.path.is_none()) {
                let Some(other) = socket.peer.and_then(|peer| own.unix.get(&peer)) else { continue };
                let listener = other.path.as_ref().and_then(|path| own.unix_listeners.get(path));
                // Pairs of a process and its children have no name.
                if other.path.is_some() {
                    ends.push(table.holders.get(&other.inode).or_else(|| table.holders.get(listener?)).copied());
                }
            }
        }
        for socket in far {
            ends.extend(self.far_end(&name, &socket, table));
        }
        ends
    }

    /// Finds the other end of a connection that leaves its namespace, to another one of this machine or to another
    /// machine.
    fn far_end(&mut self, from: &PathBuf, socket: &TcpSocket, table: &ProcessTable) -> Option<Option<i32>> {
        let known = self.known.get_or_insert_with(|| {
            let mut all = HashMap::new();
            for pid in table.parents.keys() {
                if all.len() < MOST_NAMESPACES
                    && let Some(name) = namespace_name(*pid)
                {
                    all.insert(name, *pid);
                }
            }
            all
        });
        let others: Vec<(PathBuf, i32)> =
            known.iter().filter(|(name, _)| *name != from).map(|(n, p)| (n.clone(), *p)).collect();
        for (name, pid) in &others {
            let open = || {
                let mut ask = Namespace::of(*pid).and_then(|n| n.sock_diag()).ok()?;
                let listening = Network::of_listeners(&mut ask).ok()?;
                Some((ask, listening))
            };
            let Some((ask, listening)) = self.asks.entry(name.clone()).or_insert_with(open) else { continue };
            if let Ok(Some(other)) = ask.connection(&socket.remote, &socket.local) {
                return Some(listening.holder(&other, &table.holders));
            }
        }
        if !matches!(socket.state, ESTABLISHED | SYN_SENT) {
            return None;
        }
        // With a published container port or a service address, the other end knows itself by another address.
        others.into_iter().find_map(|(name, pid)| {
            let network = self.translated.entry(name).or_insert_with(|| Network::read(pid)).as_ref()?;
            let other = network.translated_end(socket)?;
            Some(network.holder(other, &table.holders))
        })
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    /// Starts a process that prints a line with a port and lives until its input ends.
    fn perl(script: &str) -> (Child, u16) {
        perl_by(&["env".into()], script)
    }

    /// Like `perl`, started by another program.
    fn perl_by(by: &[String], script: &str) -> (Child, u16) {
        let script = format!("$| = 1; alarm 60; {script} <STDIN>;");
        let mut child = Command::new(&by[0])
            .args(&by[1..])
            .args(["perl", "-MIO::Socket::INET", "-e", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says its port");
        (child, line.trim().parse().expect("a port"))
    }

    #[test]
    fn connections_lead_to_all_that_take_part_and_not_to_other_clients() {
        let listen = "$l = IO::Socket::INET->new(Listen => 9, LocalAddr => '127.0.0.1'); print $l->sockport, \"\\n\";";
        // A backend, a server connected to it, and an unrelated client of that backend.
        let (mut behind, port) = perl(listen);
        let (mut server, port) =
            perl(&format!("$b = IO::Socket::INET->new('127.0.0.1:{port}'); {listen} $a = $l->accept;"));
        let connect = format!("$c = IO::Socket::INET->new('127.0.0.1:{port}'); print \"1\\n\";");
        let ((mut own, _), (mut client, _)) = (perl(&connect), perl(&connect));
        let pid = |c: &Child| c.id() as i32;
        let mut chain = Chain::of_pids(&[pid(&own)]);
        assert!(!chain.has_others());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !(chain.members.contains_key(&pid(&server)) && chain.members.contains_key(&pid(&behind))) {
            assert!(std::time::Instant::now() < deadline, "{chain:?}");
            chain.look(None);
        }
        let has = |c: &Child| chain.has(pid(c), |_| None);
        assert!(chain.has_others() && has(&own) && has(&behind) && !has(&client), "{chain:?}");
        for child in [&mut own, &mut client, &mut server, &mut behind] {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }

    /// A process in a network namespace of its own, which can start others there.
    struct NamespaceProcess(Child);

    impl NamespaceProcess {
        fn new() -> NamespaceProcess {
            let own = namespace_name(std::process::id() as i32);
            let there =
                NamespaceProcess(Command::new("unshare").args(["-n", "sleep", "600"]).spawn().expect("util-linux"));
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while namespace_name(there.0.id() as i32) == own {
                assert!(std::time::Instant::now() < deadline, "no namespace: it wants root");
                std::thread::yield_now();
            }
            there
        }

        fn enter(&self) -> [String; 4] {
            ["nsenter".into(), "-t".into(), self.0.id().to_string(), "-n".into()]
        }

        fn does(&self, line: &str) {
            let [program, args @ ..] = self.enter();
            let status = Command::new(program).args(args).args(["sh", "-c", line]).status().expect("util-linux");
            assert!(status.success(), "{line}");
        }
    }

    impl Drop for NamespaceProcess {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn connections_into_another_network_are_followed_also_where_their_address_is_translated() {
        let (near, away) = (NamespaceProcess::new(), NamespaceProcess::new());
        near.does(&format!("ip link add v0 type veth peer name v0 netns {}", away.0.id()));
        for (there, own) in [(&near, 1), (&away, 2)] {
            there.does(&format!("ip addr add 10.9.0.{own}/24 dev v0 && ip link set v0 up && ip link set lo up"));
        }
        let listen = "$l = IO::Socket::INET->new(Listen => 9); print $l->sockport, \"\\n\"; $a = $l->accept;";
        for address in ["10.9.0.2", "10.9.9.9"] {
            let (mut server, port) = perl_by(&away.enter(), listen);
            near.does(&format!(
                "ip route replace 10.9.9.0/24 via 10.9.0.2; nft 'table ip t {{ chain c {{ type nat hook output priority -100; \
                 ip daddr 10.9.9.9 tcp dport {port} dnat to 10.9.0.2:{port}; }}; }}'"
            ));
            let (mut client, _) = perl_by(
                &near.enter(),
                &format!("$c = IO::Socket::INET->new('{address}:{port}') or die $!; print \"1\\n\";"),
            );
            let mut chain = Chain::of_pids(&[client.id() as i32]);
            chain.look(None);
            assert!(chain.has(server.id() as i32, |_| None), "{address}: {chain:?}");
            near.does("nft delete table ip t");
            for child in [&mut client, &mut server] {
                drop(child.stdin.take());
                let _ = child.wait();
            }
        }
    }
}
