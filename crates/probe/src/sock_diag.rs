//! Asks the kernel for sockets over netlink (sock_diag): listen queues with their limits, open connections, TIME_WAIT
//! connections.
//!
//! A netlink socket belongs to the network namespace in which it was opened and queries that namespace from any thread.
//! It is opened once and used repeatedly.

use std::io;
use std::net::{IpAddr, SocketAddr};

use lastdrop_model::ListenQueue;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId};
use netlink_packet_sock_diag::unix::nlas::UnixDiagName;
use netlink_packet_sock_diag::unix::{ShowFlags, StateFlags as UnixStates, UnixRequest, UnixResponse};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

pub(crate) use netlink_packet_sock_diag::inet::StateFlags;

/// The older request for TCP sockets (`struct inet_diag_req`). Only this one covers both address families with one walk
/// over the kernel's table, whose length grows with the machine. `ss` uses it too.
const TCPDIAG_GETSOCK: u16 = 18;

/// A TCP socket from the view of its own end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpSocket {
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// 0 once no process has it open any more.
    pub inode: u64,
    /// The kernel's number; see [`state_name`].
    pub state: u8,
    /// For a listener, its queue and the queue's limit; for a connection, the bytes waiting to be read and sent.
    pub queues: (u32, u32),
}

impl TcpSocket {
    /// Parses a `struct inet_diag_msg`. There may be tens of thousands of them, or a few of them ten times per second.
    /// Parsing by hand costs a fraction of a general parser, which also reads their attributes.
    fn parse(bytes: &[u8]) -> Option<TcpSocket> {
        let number = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let port = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        let is_v4 = *bytes.first()? == AF_INET;
        let address = |at: usize| -> Option<IpAddr> {
            let bytes = bytes.get(at..)?;
            if is_v4 {
                return Some(IpAddr::from(*bytes.first_chunk::<4>()?));
            }
            // A socket of IPv6 that is connected by IPv4.
            Some(IpAddr::from(*bytes.first_chunk::<16>()?).to_canonical())
        };
        Some(TcpSocket {
            local: SocketAddr::new(address(8)?, port(4)?),
            remote: SocketAddr::new(address(24)?, port(6)?),
            inode: number(68)?.into(),
            state: *bytes.get(1)?,
            queues: (number(56)?, number(60)?),
        })
    }

    /// For a listener, the kernel gives the queue in the receive field and its limit in the send field.
    pub fn listen_queue(&self) -> ListenQueue {
        let (queue, limit) = self.queues;
        let address = self.local.to_string();
        ListenQueue { address, queue: queue.into(), limit: limit.into(), ..ListenQueue::default() }
    }
}

/// How long ago, in milliseconds, a TCP socket sent new data, and received any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataTimes {
    pub sent_ms: u32,
    pub received_ms: u32,
}

impl DataTimes {
    /// Parses the `struct tcp_info` among the attributes after a `struct inet_diag_msg`: 8 bytes, then 32-bit numbers, of
    /// which these are the 10th and the 12th.
    fn parse(bytes: &[u8]) -> Option<DataTimes> {
        let mut attributes = bytes.get(SOCKET..)?;
        loop {
            let short = |at: usize| Some(u16::from_ne_bytes(*attributes.get(at..)?.first_chunk()?));
            let (length, kind) = (usize::from(short(0)?), short(2)?);
            if kind == u16::from(INFO) {
                let number = |n: usize| Some(u32::from_ne_bytes(*attributes.get(12 + 4 * (n - 1)..)?.first_chunk()?));
                return Some(DataTimes { sent_ms: number(10)?, received_ms: number(12)? });
            }
            attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
        }
    }
}

/// A unix stream socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnixSocket {
    pub inode: u64,
    /// Path of the socket, with `@` before an abstract one; a client has none.
    pub path: Option<String>,
    /// Inode of the other end, if connected.
    pub peer: Option<u64>,
    /// For a listener, its queue and the queue's limit.
    pub queues: (u32, u32),
}

impl UnixSocket {
    pub fn listen_queue(&self) -> ListenQueue {
        let (queue, limit) = self.queues;
        let address = format!("unix:{}", self.path.as_deref().unwrap_or_default());
        ListenQueue { address, queue: queue.into(), limit: limit.into(), ..ListenQueue::default() }
    }
}

/// Some states, by the kernel's numbers.
pub(crate) const ESTABLISHED: u8 = 1;
pub(crate) const SYN_SENT: u8 = 2;
pub(crate) const TIME_WAIT: u8 = 6;
pub(crate) const LISTEN: u8 = 10;

/// Returns the name of a TCP state by its number in the kernel.
pub(crate) fn state_name(state: u8) -> Option<&'static str> {
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

/// Bytes of the header of a netlink message, and of the older request.
const HEADER: usize = 16;
const OLD_REQUEST: usize = 60;
/// Bytes of a `struct inet_diag_msg`, and the attribute with a connection's `struct tcp_info` (INET_DIAG_INFO).
const SOCKET: usize = 72;
const INFO: u8 = 2;

/// Queries the namespace in which it was opened.
pub(crate) struct SockDiag {
    socket: Socket,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for SockDiag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SockDiag").finish_non_exhaustive()
    }
}

impl SockDiag {
    pub fn open() -> io::Result<SockDiag> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
        Ok(SockDiag { socket, buffer: vec![0u8; 64 * 1024] })
    }

    /// Visits the TCP sockets in some states, of both families. The kernel filters by this remote port; 0 is any.
    pub fn tcp(&mut self, states: StateFlags, remote_port: u16, mut show: impl FnMut(TcpSocket)) -> io::Result<()> {
        self.dump_tcp(states, remote_port, 0, |message| {
            if let Some(socket) = TcpSocket::parse(message) {
                show(socket);
            }
        })
    }

    /// Visits all TCP connections, of both families, with the times of their latest data.
    pub fn tcp_with_times(&mut self, mut show: impl FnMut(TcpSocket, DataTimes)) -> io::Result<()> {
        let states = StateFlags::ESTABLISHED | StateFlags::SYN_SENT;
        self.dump_tcp(states, 0, 1 << (INFO - 1), |message| {
            if let (Some(socket), Some(times)) = (TcpSocket::parse(message), DataTimes::parse(message)) {
                show(socket, times);
            }
        })
    }

    /// `extensions`: a bit for each attribute that is wanted (`INET_DIAG_…`).
    fn dump_tcp(
        &mut self,
        states: StateFlags,
        remote_port: u16,
        extensions: u8,
        mut show: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut bytes = [0u8; HEADER + OLD_REQUEST];
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        bytes[..4].copy_from_slice(&((HEADER + OLD_REQUEST) as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&TCPDIAG_GETSOCK.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        // Four bytes: the family, which is ignored, two lengths, the extensions. Then the ports of both ends, the rest of
        // the identity, the states.
        bytes[HEADER + 3] = extensions;
        bytes[HEADER + 6..HEADER + 8].copy_from_slice(&remote_port.to_be_bytes());
        bytes[HEADER + 52..HEADER + 56].copy_from_slice(&states.bits().to_ne_bytes());
        self.ask_for(&bytes, flags, |message| {
            if let Some(message) = message.get(HEADER..) {
                show(message);
            }
        })
    }

    /// Returns the listener at exactly this address. If several share it (SO_REUSEPORT), the kernel returns any of
    /// them. None if there is none.
    pub fn listener(&mut self, address: &SocketAddr) -> io::Result<Option<TcpSocket>> {
        self.one(address, None).map(|found| found.filter(|s| s.state == LISTEN))
    }

    /// Returns the connection with exactly these two addresses. None if there is none, or it is over. The kernel finds
    /// it directly, whereas listing all connections walks its whole table.
    pub fn connection(&mut self, local: &SocketAddr, remote: &SocketAddr) -> io::Result<Option<TcpSocket>> {
        // Without such a connection, the kernel returns a listener that would accept it.
        self.one(local, Some(remote)).map(|found| found.filter(|s| s.state != LISTEN && s.state != TIME_WAIT))
    }

    fn one(&mut self, local: &SocketAddr, remote: Option<&SocketAddr>) -> io::Result<Option<TcpSocket>> {
        let (family, any) =
            if local.is_ipv4() { (AF_INET, SocketId::new_v4()) } else { (AF_INET6, SocketId::new_v6()) };
        let (destination_address, destination_port) =
            remote.map_or((any.destination_address, 0), |remote| (remote.ip(), remote.port()));
        let socket_id = SocketId {
            source_address: local.ip(),
            source_port: local.port(),
            destination_address,
            destination_port,
            cookie: [0xff; 8],
            ..any
        };
        let request = SockDiagMessage::InetRequest(InetRequest {
            family,
            protocol: IPPROTO_TCP,
            extensions: ExtensionFlags::empty(),
            states: StateFlags::all(),
            socket_id,
        });
        let mut found = None;
        let result = self.ask(request, NLM_F_REQUEST, |message| {
            found = message.get(HEADER..).and_then(TcpSocket::parse);
        });
        match result {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(|()| found),
        }
    }

    /// Visits the unix listeners that have a name.
    pub fn unix_listeners(&mut self, mut show: impl FnMut(UnixSocket)) -> io::Result<()> {
        self.unix(UnixStates::LISTEN, ShowFlags::NAME | ShowFlags::RQLEN, |socket| {
            if socket.path.is_some() {
                show(socket);
            }
        })
    }

    /// Visits the connected unix sockets. The accepted end has the name of its listener.
    pub fn unix_connections(&mut self, show: impl FnMut(UnixSocket)) -> io::Result<()> {
        self.unix(UnixStates::ESTABLISHED, ShowFlags::NAME | ShowFlags::PEER, show)
    }

    fn unix(&mut self, states: UnixStates, show_flags: ShowFlags, mut show: impl FnMut(UnixSocket)) -> io::Result<()> {
        let request = UnixRequest { state_flags: states, inode: 0, show_flags, cookie: [0xff; 8] };
        self.ask(SockDiagMessage::UnixRequest(request), NLM_F_REQUEST | NLM_F_DUMP, |message| {
            // An unreadable name does not stop the others from being read.
            let message = <NetlinkMessage<SockDiagMessage>>::deserialize(message).ok().map(|m| m.payload);
            if let Some(NetlinkPayload::InnerMessage(SockDiagMessage::UnixResponse(response))) = message {
                show(unix_socket(&response));
            }
        })
    }

    /// Sends a request to the kernel and passes on each message of its response, including headers.
    fn ask(&mut self, request: SockDiagMessage, flags: u16, show: impl FnMut(&[u8])) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut packet = NetlinkMessage::new(header, request.into());
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.ask_for(&bytes, flags, show)
    }

    /// Like `ask`, for a request that is already serialized.
    fn ask_for(&mut self, question: &[u8], flags: u16, mut show: impl FnMut(&[u8])) -> io::Result<()> {
        self.socket.send(question, 0)?;
        loop {
            let size = self.socket.recv(&mut &mut self.buffer[..], 0)?;
            let mut rest = self.buffer.get(..size).unwrap_or_default();
            while let Some(&[a, b, c, d, kind, kind_high]) = rest.first_chunk() {
                let length = u32::from_ne_bytes([a, b, c, d]) as usize;
                let message = rest.get(..length).unwrap_or_default();
                match u16::from_ne_bytes([kind, kind_high]) {
                    // Errors during a dump are reported in its last message.
                    NLMSG_DONE | NLMSG_ERROR => {
                        let code = message.get(HEADER..).and_then(|m| m.first_chunk()).map(|b| i32::from_ne_bytes(*b));
                        return match code.unwrap_or(0) {
                            0 => Ok(()),
                            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                        };
                    }
                    _ => show(message),
                }
                // Messages are aligned to four bytes.
                let length = length.next_multiple_of(4);
                if length == 0 || length >= rest.len() {
                    break;
                }
                rest = &rest[length..];
            }
            // A single response has no end message.
            if flags & NLM_F_DUMP != NLM_F_DUMP {
                return Ok(());
            }
        }
    }
}

fn unix_socket(response: &UnixResponse) -> UnixSocket {
    let text = match response.name() {
        Some(UnixDiagName::Pathname(path)) => Some(path.to_string_lossy().into_owned()),
        Some(UnixDiagName::Abstract(name)) => Some(format!("@{}", String::from_utf8_lossy(name))),
        None => None,
    };
    UnixSocket {
        inode: response.header.inode.into(),
        path: text.map(|t| t.trim_end_matches('\0').to_string()),
        peer: response.peer().map(u64::from),
        queues: (
            response.number_of_pending_connection().unwrap_or(0),
            response.max_number_of_pending_connection().unwrap_or(0),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_listener_is_asked_for_by_its_address() {
        let mut ask = SockDiag::open().expect("opens");
        for bound in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            // A machine without IPv6 has no such listener.
            let Ok(listener) = std::net::TcpListener::bind(bound) else { continue };
            let address = listener.local_addr().expect("its address");
            let _client = std::net::TcpStream::connect(("localhost", address.port()))
                .or_else(|_| std::net::TcpStream::connect(("::1", address.port())))
                .expect("connected");
            let socket = ask.listener(&address).expect("answers").expect("it is there");
            assert_eq!((socket.local.port(), socket.queues.0), (address.port(), 1), "{bound}");
            drop(listener);
            assert_eq!(ask.listener(&address).expect("answers"), None, "{bound}");
        }
        // The socket works for other requests after a request without a result.
        let mut listeners = 0;
        ask.tcp(StateFlags::LISTEN, 0, |_| listeners += 1).expect("answers");
    }

    #[test]
    fn one_connection_is_asked_for_by_both_its_addresses() {
        let mut ask = SockDiag::open().expect("opens");
        // A listener for both families has connections that count as IPv4 here.
        for (bound, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let Ok(listener) = std::net::TcpListener::bind(bound) else { continue };
            let port = listener.local_addr().expect("its address").port();
            let client = std::net::TcpStream::connect((to, port)).expect("connected");
            let (own, far) = (client.local_addr().expect("its own"), client.peer_addr().expect("the other"));
            let waits = ask.connection(&far, &own).expect("answers").expect("it is there");
            assert_eq!((waits.local, waits.remote, waits.inode), (far, own, 0), "nobody has taken it: {bound}");
            let taken = listener.accept().expect("accepted");
            assert_ne!(ask.connection(&far, &own).expect("answers").expect("it is there").inode, 0, "{bound}");
            assert_eq!(ask.connection(&own, &far).expect("answers").map(|s| s.local), Some(own), "{bound}");
            drop((client, taken));
            // A listener would match, but is not a connection.
            assert_eq!(ask.connection(&far, &own).expect("answers"), None, "{bound}");
        }
    }

    #[test]
    fn one_question_is_answered_for_both_families_and_for_one_remote_port() {
        let four = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
        let six = std::net::TcpListener::bind("[::1]:0").ok();
        let of = |l: &std::net::TcpListener| l.local_addr().expect("its address");
        let wanted: Vec<SocketAddr> = six.iter().map(of).chain([of(&four)]).collect();
        let clients: Vec<_> = wanted.iter().map(|to| std::net::TcpStream::connect(to).expect("connected")).collect();
        let mut ask = SockDiag::open().expect("opens");
        let (mut listen, mut connected) = (Vec::new(), Vec::new());
        ask.tcp(StateFlags::LISTEN, 0, |s| listen.push((s.local, s.state))).expect("answers");
        assert!(wanted.iter().all(|to| listen.contains(&(*to, LISTEN))), "{listen:?} without {wanted:?}");
        assert!(listen.iter().all(|(_, state)| *state == LISTEN), "{listen:?}");
        let port = of(&four).port();
        ask.tcp(StateFlags::all() - StateFlags::LISTEN, port, |s| connected.push(s)).expect("answers");
        let own = clients.last().and_then(|c| c.local_addr().ok()).expect("its address");
        assert!(connected.iter().any(|s| s.local == own && s.remote == of(&four)), "{connected:?}");
        assert!(connected.iter().all(|s| s.remote.port() == port), "{connected:?}");
    }
}
