//! Finds which servers of this machine talk to each other: connections that processes of one server have opened to a
//! listener of another, found from the sockets of both sides.
//!
//! A connection counts if it exists at the moment of a look. Servers that open one per request have it for
//! milliseconds; to find those, look repeatedly.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;

use crate::chain::{Network, namespace_name};
use crate::listeners::{Endpoint, inodes};
use crate::sock_diag::TcpSocket;
use crate::stat::{self, Stat};

/// A connection of one server to a listener of another. Servers are given by their index in the list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub from: usize,
    pub to: usize,
    pub via: Endpoint,
}

/// The sockets of some servers at one moment.
#[derive(Debug, Clone, Default)]
pub struct Links {
    pub links: BTreeSet<Link>,
    /// Endpoints at which each server listens.
    pub listens: Vec<BTreeSet<Endpoint>>,
    /// Servers of which no process may be inspected.
    pub unseen: Vec<usize>,
    /// Listeners of this machine that one of the servers is connected to and none of them owns.
    pub others: BTreeSet<Endpoint>,
}

/// Looks once at the sockets of servers. Each is given by its master and includes all its descendants.
#[must_use]
pub fn links(masters: &[i32]) -> Links {
    links_of(masters, &processes(masters))
}

/// Looks at servers repeatedly. It assigns processes to servers again only if a process was started on the machine
/// since.
#[derive(Debug, Default)]
pub struct LinkTracker {
    masters: Vec<i32>,
    newest: Option<i32>,
    processes: Vec<(i32, usize)>,
}

impl LinkTracker {
    /// As [`links`].
    #[must_use]
    pub fn look(&mut self, masters: &[i32]) -> Links {
        let newest = stat::newest_pid();
        if newest.is_none() || newest != self.newest || masters != self.masters {
            (self.masters, self.newest, self.processes) = (masters.to_vec(), newest, processes(masters));
        }
        links_of(masters, &self.processes)
    }
}

fn links_of(masters: &[i32], processes: &[(i32, usize)]) -> Links {
    let networks = networks(masters);
    // Read right after the networks: a connection has to be found by both, and may last for a millisecond.
    let (held, unseen) = held(processes, masters.len());
    let listens = vec![BTreeSet::new(); masters.len()];
    let mut seen = Links { links: BTreeSet::new(), listens, unseen, others: BTreeSet::new() };
    for network in &networks {
        for (address, inode) in &network.tcp_listeners {
            if let Some(server) = held.get(inode) {
                seen.listens[*server].insert(Endpoint::Tcp(*address));
            }
        }
        for (path, inode) in &network.unix_listeners {
            if let Some(server) = held.get(inode) {
                seen.listens[*server].insert(Endpoint::Unix(path.into()));
            }
        }
        let tcp = network
            .by_inode
            .values()
            .filter_map(|s| Some((*held.get(&s.inode)?, of_tcp(s, network, &networks, &held)?)));
        let unix = network.unix.keys().filter_map(|inode| Some((*held.get(inode)?, of_unix(*inode, network, &held)?)));
        for (from, (to, via)) in tcp.chain(unix) {
            match to {
                Some(to) if from != to => _ = seen.links.insert(Link { from, to, via }),
                Some(_) => {}
                None => _ = seen.others.insert(via),
            }
        }
    }
    seen
}

/// Returns the local addresses of the connections that servers have open, each server given by its master.
#[must_use]
pub fn ends(masters: &[i32]) -> HashSet<SocketAddr> {
    let (held, _) = held(&processes(masters), masters.len());
    let sockets = networks(masters).into_iter().flat_map(|n| n.by_inode.into_values());
    sockets.filter(|s| held.contains_key(&s.inode)).map(|s| s.local).collect()
}

/// Reads the sockets of each network namespace that contains one of the servers.
fn networks(masters: &[i32]) -> Vec<Network> {
    let mut names = BTreeSet::new();
    let first_there = |master: &&i32| namespace_name(**master).is_some_and(|name| names.insert(name));
    masters.iter().filter(first_there).filter_map(|master| Network::read(*master)).collect()
}

/// Returns the processes of the servers, each with the index of its server.
fn processes(masters: &[i32]) -> Vec<(i32, usize)> {
    let parents: HashMap<i32, i32> =
        stat::all_pids().filter_map(|pid| Some((pid, Stat::of_any(pid)?.0.parent))).collect();
    let server_of = |pid: i32| {
        let mut up = Some(pid);
        loop {
            let p = up.filter(|p| *p > 1)?;
            // The nearest ancestor counts: one server may have started another.
            match masters.iter().position(|master| *master == p) {
                Some(server) => return Some(server),
                None => up = parents.get(&p).copied(),
            }
        }
    };
    parents.keys().filter_map(|pid| Some((*pid, server_of(*pid)?))).collect()
}

/// Returns the server of each socket that one of the servers has open, and the servers that may not be inspected.
fn held(processes: &[(i32, usize)], servers: usize) -> (HashMap<u64, usize>, Vec<usize>) {
    let mut held = HashMap::new();
    let mut read = vec![false; servers];
    for (pid, server) in processes {
        if let Ok(inodes) = inodes(*pid) {
            read[*server] = true;
            held.extend(inodes.into_iter().map(|inode| (inode, *server)));
        }
    }
    let unseen = read.iter().enumerate().filter(|(_, read)| !**read).map(|(server, _)| server).collect();
    (held, unseen)
}

/// For an end that opened a connection, returns the server at the other end and the address of its listener. The server
/// is None if a program outside the list listens there. Returns None if this end did not open a connection, or leads
/// away.
fn of_tcp(
    socket: &TcpSocket,
    own: &Network,
    networks: &[Network],
    held: &HashMap<u64, usize>,
) -> Option<(Option<usize>, Endpoint)> {
    if own.listeners.contains_key(&socket.local.port()) {
        return None;
    }
    // A connection to an address of its own machine has that address as its local one.
    let is_here = socket.remote.ip().is_loopback() || socket.remote.ip() == socket.local.ip();
    let listener = own.listeners.get(&socket.remote.port()).filter(|_| is_here);
    // The other end may be in the network of a container, behind a port that the container publishes.
    let ends = networks.iter().filter_map(|network| Some((network, network.other_end(socket)?)));
    let translated = networks.iter().filter_map(|network| Some((network, network.translated_end(socket)?)));
    let servers =
        ends.chain(translated.filter(|_| listener.is_none())).filter_map(|(network, end)| network.holder(end, held));
    let via = Endpoint::Tcp(socket.remote);
    match servers.into_iter().next().or_else(|| held.get(listener?).copied()) {
        Some(to) => Some((Some(to), via)),
        None => listener.map(|_| (None, via)),
    }
}

fn of_unix(inode: u64, network: &Network, held: &HashMap<u64, usize>) -> Option<(Option<usize>, Endpoint)> {
    let socket = network.unix.get(&inode).filter(|s| s.path.is_none())?;
    // A connection that is not accepted yet has no inode by which to find its other end.
    let other = network.unix.get(&socket.peer.filter(|inode| *inode != 0)?)?;
    // Pairs of a process and its children have no name.
    let path = other.path.as_ref()?;
    let listener = network.unix_listeners.get(path);
    let to = held.get(&other.inode).or_else(|| held.get(listener?)).copied();
    (to.is_some() || listener.is_some()).then(|| (to, Endpoint::Unix(path.into())))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::SocketAddr;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sock_diag::{ESTABLISHED, LISTEN};

    /// Starts a process that prints a line and lives until its input ends; nothing reads its output beyond that.
    fn perl(script: &str) -> (Child, String) {
        let script = format!("$| = 1; $SIG{{PIPE}} = 'IGNORE'; {script} print \"\\n\"; <STDIN>;");
        let modules = ["-MIO::Socket::INET", "-MIO::Socket::UNIX"];
        let mut child = Command::new("perl")
            .args(modules)
            .args(["-e", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says a line");
        (child, line.trim().to_string())
    }

    #[test]
    fn a_port_that_two_clients_have_to_two_servers_mixes_up_neither() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let socket = |local, remote, inode, state| TcpSocket { local, remote, inode, state, queues: (0, 0) };
        let (front, back, client) = (at(80), at(3306), at(40_000));
        // A client of the frontend and one of its workers use the same port: one to the frontend, the other to the
        // backend.
        let worker = socket(client, back, 5, ESTABLISHED);
        let ends = [worker, socket(back, client, 6, ESTABLISHED), socket(client, front, 7, ESTABLISHED)];
        let listening = [(front, 1), (back, 2)].map(|(address, inode)| socket(address, at(0), inode, LISTEN));
        let held = HashMap::from([(1, 0), (8, 0), (5, 1), (2, 2), (6, 2)]);
        let told = |seen: &[TcpSocket]| {
            let mut network = Network::default();
            seen.iter().chain(&listening).for_each(|s| network.add(*s));
            of_tcp(&worker, &network, std::slice::from_ref(&network), &held)
        };
        let accepted = socket(front, client, 8, ESTABLISHED);
        let to_back = Some((Some(2), Endpoint::Tcp(back)));
        assert_eq!(told(&[&ends[..], &[accepted]].concat()), to_back);
        assert_eq!(told(&[worker, accepted]), to_back, "its other end is not there any more");
    }

    #[test]
    fn who_connects_to_whose_listener_is_told_by_the_sockets_of_both() {
        let name = format!("lastdrop-links-{}", std::process::id());
        let (last, port) =
            perl("$l = IO::Socket::INET->new(Listen => 9, LocalAddr => '127.0.0.1'); print $l->sockport;");
        let connect = format!("$c = IO::Socket::INET->new('127.0.0.1:{port}') or die;");
        let listen = format!("$l = IO::Socket::UNIX->new(Listen => 9, Local => \"\\0{name}\") or die;");
        // The server prints this before it accepts.
        let (middle, _) = perl(&format!("{listen} {connect} print \"up\\n\"; $a = $l->accept;"));
        let (first, _) = perl(&format!("$c = IO::Socket::UNIX->new(\"\\0{name}\") or die;"));
        let mut children = [first, middle, last];
        let masters = children.each_ref().map(|c| c.id() as i32);
        let address: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
        let (unix, tcp) = (Endpoint::Unix(format!("@{name}").into()), Endpoint::Tcp(address));
        let link = |from, to, via: &Endpoint| Link { from, to, via: via.clone() };
        let all = BTreeSet::from([link(0, 1, &unix), link(1, 2, &tcp)]);
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut following = LinkTracker::default();
        let mut seen = following.look(&masters);
        while seen.links != all {
            assert!(Instant::now() < deadline, "{seen:?}");
            seen = following.look(&masters);
        }
        assert_eq!(seen.listens, [BTreeSet::new(), BTreeSet::from([unix]), BTreeSet::from([tcp.clone()])]);
        assert!(seen.unseen.is_empty(), "{seen:?}");
        let without = links(&[masters[0], masters[2]]);
        assert_eq!(without.links, BTreeSet::new(), "the one between is not asked for");
        assert_eq!(
            without.others,
            BTreeSet::from([Endpoint::Unix(format!("@{name}").into())]),
            "and told as another's"
        );
        assert_eq!(
            following.look(&[masters[1], masters[2]]).links,
            BTreeSet::from([link(0, 1, &tcp)]),
            "of others than before"
        );
        for child in &mut children {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}
