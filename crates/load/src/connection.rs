//! One connection slot: at most one socket, at most one request in flight (more where requests are pipelined).

use lastdrop_http::{ResponseParser, ServerTime};
use lastdrop_model::Micros;

use crate::inspect::Capture;
use crate::prepare::Detour;
use crate::tls;

pub const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No socket.
    Closed,
    /// connect() was called for the request in flight.
    Connecting,
    /// CONNECT was sent, the proxy has not answered.
    Tunnel,
    /// TLS is being set up.
    Handshaking,
    /// Part of the request is not written yet.
    Writing,
    /// The head is written, the body waits for `100 Continue`.
    Holding,
    /// The request is written, the answer is not complete.
    Waiting,
    /// Open, nothing in flight.
    Idle,
}

/// What a request in flight has of its own beyond what its plan says.
#[derive(Debug, Default)]
pub struct Errand {
    pub detour: Option<Detour>,
    /// Path and query as sent.
    pub target: Vec<u8>,
    /// Redirects that led here.
    pub hops: u32,
    /// It is the answer to a challenge.
    pub challenged: bool,
    /// Part of a page, not its HTML.
    pub embedded: bool,
}

#[derive(Debug)]
pub struct Connection<S> {
    pub state: State,
    /// The server has closed its side.
    pub peer_closed: bool,
    /// connect() failed at once; its request fails when the loop comes back to it.
    pub doomed: bool,
    /// Why, where somebody wants to know.
    pub error: Option<Box<str>>,
    /// CONNECT has not been answered yet.
    pub tunnel: bool,
    /// Phase in which the request in flight came due.
    pub phase: u16,
    /// Class of that request.
    pub class: u16,
    pub socket: Option<S>,
    /// Distinguishes this socket's events from those of an earlier one in the same slot.
    pub generation: u32,
    /// Indices of the request in flight and of the server that the socket goes to.
    pub request: u32,
    pub endpoint: u32,
    /// Requests begun on this socket.
    pub served: u32,
    pub due: Micros,
    pub sent: Micros,
    pub connect_started: Micros,
    /// 0 until connect() has succeeded.
    pub connected: Micros,
    pub first_byte: Micros,
    /// When the connection was ready for the request in flight, and when that was written; 0: not yet.
    pub ready: Micros,
    pub all_written: Micros,
    /// Bytes of the answer to the request in flight.
    pub received: u64,
    /// Those bytes, where they are wanted.
    pub raw: Vec<u8>,
    /// Bytes of the request written, and how many may be for now.
    pub written: usize,
    pub hold_at: usize,
    pub parser: ResponseParser,
    /// The bytes of a changing request; empty where they are the prepared ones.
    pub out: Vec<u8>,
    /// Due times of further requests on this connection, pipelined behind the first.
    pub pipelined: Vec<Micros>,
    /// With a limited bandwidth: nothing is read before.
    pub quiet_until: Micros,
    pub capture: Option<Box<Capture>>,
    /// What the answer says of the server's own time, where that is wanted.
    pub said: ServerTime,
    pub errand: Option<Box<Errand>>,
    pub tls: Option<Box<tls::Session>>,
}

impl<S> Connection<S> {
    pub fn new() -> Connection<S> {
        Connection {
            state: State::Closed,
            peer_closed: false,
            doomed: false,
            error: None,
            tunnel: false,
            phase: 0,
            class: 0,
            socket: None,
            generation: 0,
            request: 0,
            endpoint: 0,
            served: 0,
            due: 0,
            sent: 0,
            connect_started: 0,
            connected: 0,
            first_byte: 0,
            ready: 0,
            all_written: 0,
            received: 0,
            raw: Vec::new(),
            written: 0,
            hold_at: usize::MAX,
            parser: ResponseParser::default(),
            out: Vec::new(),
            pipelined: Vec::new(),
            quiet_until: 0,
            capture: None,
            said: ServerTime::default(),
            errand: None,
            tls: None,
        }
    }

    pub fn token(&self, slot: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(slot)
    }

    /// Did the request in flight go out on a connection that had served another one before?
    pub fn reused(&self) -> bool {
        self.served > 1
    }

    /// Has it a request in flight?
    pub fn busy(&self) -> bool {
        !matches!(self.state, State::Closed | State::Idle)
    }
}

/// The requests in flight in the order in which they were sent. All have the same timeout, so the oldest is the next
/// to be due; a list through the slots costs no memory a request and no comparison. The links lie apart from the
/// connections: neighbours in the list are strangers in memory, and touching them would cost two cache misses a request.
#[derive(Debug)]
pub struct InFlight {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    pub count: u32,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

impl InFlight {
    pub fn new(slots: usize) -> InFlight {
        InFlight { links: vec![Link { older: NONE, newer: NONE }; slots], oldest: NONE, newest: NONE, count: 0 }
    }

    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    pub fn push(&mut self, slot: u32) {
        let older = self.newest;
        self.links[slot as usize] = Link { older, newer: NONE };
        match older {
            NONE => self.oldest = slot,
            o => self.links[o as usize].newer = slot,
        }
        self.newest = slot;
        self.count += 1;
    }

    pub fn remove(&mut self, slot: u32) {
        let Link { older, newer } = self.links[slot as usize];
        match older {
            NONE => self.oldest = newer,
            o => self.links[o as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            n => self.links[n as usize].older = older,
        }
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_from_anywhere_and_the_oldest_stays_first() {
        let mut list = InFlight::new(4);
        for slot in [2, 0, 3, 1] {
            list.push(slot);
        }
        list.remove(0);
        assert_eq!(list.oldest(), Some(2));
        list.remove(2);
        assert_eq!(list.oldest(), Some(3));
        list.push(0);
        list.remove(1);
        list.remove(3);
        assert_eq!(list.oldest(), Some(0));
        list.remove(0);
        assert_eq!((list.oldest(), list.count), (None, 0));
    }
}
