//! Reads what the threads of some servers are doing, and which bytes lie in their sockets, at one moment.
//!
//! Many such moments beside the requests of a load show where slow requests spend their time
//! (`lastdrop_analyze::anatomy`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::host::thread_cpu;
use crate::listeners;
use crate::namespace::Namespace;
use crate::sock_diag::{DataTimes, ESTABLISHED, SYN_SENT, SockDiag, StateFlags, TcpSocket};
use crate::thread_states::{ServerProcesses, WatchedThreads};

/// Requests that no thread has yet: connections that wait to be accepted, and requests that wait to be read.
pub const QUEUE: &str = "queue";
/// Requests and answers that one end has sent and the other has not received.
pub const NETWORK: &str = "network";

/// The kernel counts these times in ticks of up to 4 ms. A difference below this says nothing.
const SLACK_MS: u32 = 8;

/// What one server is doing at a moment: its threads by state, and the places above with their numbers of requests.
pub type ServerMoment = BTreeMap<String, f64>;

/// All servers at one moment.
#[derive(Debug)]
pub struct ChainReading {
    /// When the threads were read.
    pub at: Instant,
    pub servers: Vec<ServerMoment>,
    /// Processor time of the reading.
    pub cost: Duration,
}

/// A server under observation.
#[derive(Debug)]
struct ObservedServer {
    threads: WatchedThreads,
    /// Index of its network namespace.
    namespace: usize,
    ports: Vec<u16>,
    /// Inodes of its sockets.
    sockets: BTreeSet<u64>,
}

/// Reads moments of the servers of a chain.
#[derive(Debug)]
pub struct MomentReader {
    servers: Vec<ObservedServer>,
    /// The network namespaces: first our own, in which the load has its connections.
    namespaces: Vec<SockDiag>,
    /// Where the load connects to the first server, if that is a TCP address.
    front: Option<SocketAddr>,
}

/// The connections of a namespace with the times of their data, and the queue of each listener by inode.
#[derive(Default)]
struct NamespaceSockets {
    connections: Vec<(TcpSocket, DataTimes)>,
    /// How long reading them took, in milliseconds: one end of a connection may be read that much later than the other.
    walk_ms: u32,
    queues: Vec<(u64, u32)>,
}

impl NamespaceSockets {
    fn read(ask: &mut SockDiag) -> io::Result<NamespaceSockets> {
        let mut all = NamespaceSockets::default();
        let begun = Instant::now();
        ask.tcp_with_times(|socket, times| all.connections.push((socket, times)))?;
        all.walk_ms = begun.elapsed().as_millis() as u32;
        ask.tcp(StateFlags::LISTEN, 0, |s| all.queues.push((s.inode, s.queues.0)))?;
        ask.unix_listeners(|s| all.queues.push((s.inode, s.queues.0)))?;
        Ok(all)
    }
}

impl MomentReader {
    /// The first server is the one that the load meets, at `front` if that is a TCP address. Each server has its listeners.
    ///
    /// # Errors
    /// When the sockets of our own namespace cannot be read.
    pub fn new(servers: &[(ServerProcesses, Vec<SocketAddr>)], front: Option<SocketAddr>) -> io::Result<MomentReader> {
        let mut known: Vec<Option<u64>> = vec![None];
        let mut namespaces = vec![SockDiag::open()?];
        let mut all = Vec::new();
        for (subject, listens) in servers {
            let place = Namespace::of(subject.master).ok().filter(|n| !n.is_ours());
            let inode = place.as_ref().and_then(|n| n.id().ok()).map(|id| id.inode);
            let namespace = match (known.iter().position(|other| *other == inode), place) {
                (Some(at), _) => at,
                (None, Some(place)) => {
                    known.push(inode);
                    namespaces.push(place.sock_diag()?);
                    namespaces.len() - 1
                }
                (None, None) => 0,
            };
            all.push(ObservedServer {
                threads: WatchedThreads::new(*subject),
                namespace,
                ports: listens.iter().map(SocketAddr::port).collect(),
                sockets: listeners::inodes(subject.master).unwrap_or_default(),
            });
        }
        Ok(MomentReader { servers: all, namespaces, front })
    }

    /// Reads the threads of all servers, and with `sockets` also what lies in their sockets, which takes the kernel
    /// longer.
    pub fn read(&mut self, sockets: bool) -> ChainReading {
        let (cost, begun) = (thread_cpu(), Instant::now());
        let mut all: Vec<ServerMoment> = self.servers.iter_mut().map(|server| server.threads.states()).collect();
        let at = begun + begun.elapsed() / 2;
        if sockets {
            let read: Vec<NamespaceSockets> =
                self.namespaces.iter_mut().map(|ask| NamespaceSockets::read(ask).unwrap_or_default()).collect();
            for (server, moment) in self.servers.iter().zip(&mut all) {
                moment.insert(QUEUE.into(), queue(server, &read[server.namespace]));
            }
            if let (Some(front), Some(server), Some(moment)) = (self.front, self.servers.first(), all.first_mut()) {
                moment.insert(NETWORK.into(), on_the_way(front, &read[0], &read[server.namespace]));
            }
        }
        ChainReading { at, servers: all, cost: thread_cpu().saturating_sub(cost) }
    }
}

/// Requests that lie in a server's sockets: unread, or on a connection that it has not accepted.
fn queue(server: &ObservedServer, seen: &NamespaceSockets) -> f64 {
    let is_unread = |s: &TcpSocket| server.ports.contains(&s.local.port()) && s.state == ESTABLISHED && s.queues.0 > 0;
    let unread = seen.connections.iter().filter(|(s, _)| is_unread(s)).count() as u32;
    let waiting: u32 = seen.queues.iter().filter(|(inode, _)| server.sockets.contains(inode)).map(|(_, n)| n).sum();
    // A connection that waits to be accepted may have its request already.
    f64::from(unread.max(waiting))
}

/// Returns how many requests and answers are on their way between the load and the front: one end has sent, and the other
/// end has received nothing since. Unacknowledged bytes would not tell, as acknowledgements are delayed.
fn on_the_way(front: SocketAddr, ours: &NamespaceSockets, theirs: &NamespaceSockets) -> f64 {
    let of_front = theirs.connections.iter().filter(|(s, _)| s.local.port() == front.port());
    let ends: HashMap<SocketAddr, DataTimes> = of_front.map(|(s, times)| (s.remote, *times)).collect();
    // What was sent while the sockets were read may have arrived after its other end was read.
    let sure_ms = SLACK_MS + ours.walk_ms.max(theirs.walk_ms);
    let is_out = |sent_ms: u32, received_ms: u32| sent_ms >= sure_ms && sent_ms + SLACK_MS < received_ms;
    let is_on_way = |(socket, client): &&(TcpSocket, DataTimes)| {
        socket.remote.port() == front.port()
            && ends.get(&socket.local).map_or(socket.state == SYN_SENT, |server| {
                is_out(client.sent_ms, server.received_ms) || is_out(server.sent_ms, client.received_ms)
            })
    };
    ours.connections.iter().filter(is_on_way).count() as f64
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_request_that_nobody_reads_lies_in_the_socket_of_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("its address");
        let mut client = TcpStream::connect(at).expect("connected");
        client.write_all(b"GET / HTTP/1.1\r\n").expect("written");
        let _accepted = listener.accept().expect("accepted");
        let (mut ask, deadline) = (SockDiag::open().expect("netlink"), Instant::now() + Duration::from_secs(10));
        loop {
            let seen = NamespaceSockets::read(&mut ask).expect("readable");
            let unread = seen.connections.iter().find(|(s, _)| s.local == at).map(|(s, _)| s.queues.0);
            if unread == Some(16) {
                return;
            }
            assert!(Instant::now() < deadline, "{unread:?} bytes wait to be read");
        }
    }

    #[test]
    fn requests_wait_in_sockets_of_the_server_alone() {
        let server = ObservedServer {
            threads: WatchedThreads::new(ServerProcesses { master: std::process::id() as i32, helpers: &[] }),
            namespace: 0,
            ports: vec![80],
            sockets: [7].into(),
        };
        let of = |port: u16, unread: u32, waiting: u32, inode: u64| {
            let (local, remote) =
                (SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], 40_000)));
            let socket = TcpSocket { local, remote, inode: 1, state: ESTABLISHED, queues: (unread, 0) };
            let connections = vec![(socket, DataTimes { sent_ms: 0, received_ms: 0 })];
            queue(&server, &NamespaceSockets { connections, queues: vec![(inode, waiting)], walk_ms: 0 })
        };
        assert_eq!((of(80, 0, 0, 7), of(80, 500, 0, 7), of(81, 500, 0, 7)), (0.0, 1.0, 0.0));
        // One of those that wait to be accepted has its request already; and a listener of somebody else.
        assert_eq!((of(80, 500, 3, 7), of(80, 0, 3, 8)), (3.0, 0.0));
    }

    #[test]
    fn a_request_or_an_answer_that_has_not_arrived_is_on_its_way() {
        let (client, server) = ("127.0.0.1:40000".parse().expect("it"), "127.0.0.1:80".parse().expect("it"));
        let way = |of_client: (u32, u32), of_server: (u32, u32)| {
            let one = |local, remote, (sent_ms, received_ms)| {
                let socket = TcpSocket { local, remote, inode: 1, state: ESTABLISHED, queues: (0, 0) };
                NamespaceSockets {
                    connections: vec![(socket, DataTimes { sent_ms, received_ms })],
                    ..NamespaceSockets::default()
                }
            };
            on_the_way(server, &one(client, server, of_client), &one(server, client, of_server))
        };
        // Sent 50 ms ago; the server has received nothing for 900 ms.
        assert_eq!(way((50, 880), (890, 900)), 1.0);
        // It arrived, and the server works on it.
        assert_eq!(way((50, 880), (880, 48)), 0.0);
        // The answer was sent 30 ms ago, and has not arrived.
        assert_eq!(way((34, 880), (30, 33)), 1.0);
        // It may have been sent since its other end was read.
        assert_eq!(way((3, 880), (880, 900)), 0.0);
        // It has arrived.
        assert_eq!(way((90, 28), (30, 88)), 0.0);
    }
}
