//! A closed loop with fewer connections than users (`--connections`): whoever finds none free waits in line, first come,
//! first served, and that wait is *blocked*.
//!
//! A user's connections have slots of their own, and what a request is made of stands there. So an idle connection goes
//! over to the slot of whoever is next: its socket and TLS session, under a new token. While somebody waits no connection is
//! idle; the line therefore moves only when a request ends (`request_over`), or when the bound is lifted.

use lastdrop_model::Micros;

use crate::connection::State;
use crate::event_loop::EventLoop;
use crate::world::World;

/// The bound, and which connections are idle.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Most connections that this thread may have open in this phase; `u64::MAX` where it may have any number.
    most: u64,
    /// Slots that were idle when they were put here, each once.
    idle: Vec<u32>,
    is_listed: Vec<bool>,
    /// The line is moving.
    serving: bool,
    /// When the request that is sent now came into the line.
    pub joined: Option<Micros>,
}

impl Pool {
    pub fn new(slots: usize) -> Pool {
        Pool { most: u64::MAX, idle: Vec::new(), is_listed: vec![false; slots], serving: false, joined: None }
    }

    /// A phase begins.
    pub fn limit(&mut self, most: Option<u64>) {
        self.most = most.unwrap_or(u64::MAX);
    }

    #[inline]
    pub fn is_bounded(&self) -> bool {
        self.most != u64::MAX
    }

    /// Are there more than there may be in this phase?
    pub fn is_exceeded(&self, open: u64) -> bool {
        open > self.most
    }

    /// How much of the time from due to sent no connection was free.
    pub fn blocked(&self, now: Micros) -> Micros {
        self.joined.map_or(0, |joined| now.saturating_sub(joined))
    }
}

impl<W: World> EventLoop<'_, W> {
    /// A request has ended, or a phase begins: is a connection one that others may have? Those of a phase that may have had more
    /// are closed, so that as long as one is idle there are no more than there may be.
    #[inline]
    pub(crate) fn offer(&mut self, slot: u32) {
        if !self.pool.is_bounded() || self.connections[slot as usize].state != State::Idle {
            return;
        }
        if self.pool.is_exceeded(self.open_sockets) {
            self.close(slot);
        } else if !self.pool.is_listed[slot as usize] {
            self.pool.is_listed[slot as usize] = true;
            self.pool.idle.push(slot);
        }
    }

    /// Must a request that is due now wait for a connection? If not, its slot has one, or may open one.
    pub(crate) fn has_to_wait(&mut self, slot: u32, endpoint: u32) -> bool {
        let others_wait = !self.pool.serving && !self.stranded.is_empty();
        others_wait || !self.find_connection(slot, endpoint)
    }

    fn find_connection(&mut self, slot: u32, endpoint: u32) -> bool {
        let c = &self.connections[slot as usize];
        // One that leads elsewhere is closed first.
        if c.socket.is_some() {
            return true;
        }
        let same = |e: &Self, s: u32| e.connections[s as usize].endpoint == endpoint;
        let mut other = None;
        let mut at = self.pool.idle.len();
        while at > 0 {
            at -= 1;
            let s = self.pool.idle[at];
            if self.connections[s as usize].state != State::Idle {
                self.unlist(at);
            } else if same(self, s) {
                self.unlist(at);
                return self.move_connection(s, slot) || self.open_sockets < self.pool.most;
            } else {
                other.get_or_insert(s);
            }
        }
        if self.open_sockets < self.pool.most {
            return true;
        }
        if let Some(s) = other {
            self.close(s);
        }
        other.is_some()
    }

    fn unlist(&mut self, at: usize) {
        let slot = self.pool.idle.swap_remove(at);
        self.pool.is_listed[slot as usize] = false;
    }

    /// Gives an idle connection to another slot. False: it could not be kept.
    fn move_connection(&mut self, from: u32, to: u32) -> bool {
        let c = &mut self.connections[from as usize];
        c.state = State::Closed;
        let (socket, tls) = (c.socket.take(), c.tls.take());
        let (endpoint, served, peer_closed, quiet_until) = (c.endpoint, c.served, c.peer_closed, c.quiet_until);
        let c = &mut self.connections[to as usize];
        c.state = State::Idle;
        (c.socket, c.tls, c.endpoint, c.served) = (socket, tls, endpoint, served);
        (c.peer_closed, c.quiet_until) = (peer_closed, quiet_until);
        c.generation = c.generation.wrapping_add(1);
        let token = c.token(to);
        let watched = c.socket.as_ref().is_some_and(|s| self.world.watch_as(s, token).is_ok());
        if !watched {
            self.close(to);
        }
        watched
    }

    /// Does somebody wait for a connection, so that none is idle?
    pub(crate) fn line_stands(&self) -> bool {
        self.pool.is_bounded() && !self.stranded.is_empty()
    }

    /// Sends what waits in line, as far as there are connections.
    pub(crate) fn serve_line(&mut self, now: Micros) {
        if self.pool.serving || self.stranded.is_empty() {
            return;
        }
        self.pool.serving = true;
        while let Some(next) = self.stranded.front()
            && self.may_follow(now)
            && now >= self.no_socket_until
        {
            let endpoint = next.endpoint(&self.job.prepared.requests);
            let user = next.user;
            let Some(slot) = self.slot_for(user, endpoint) else { break };
            if !self.find_connection(slot, endpoint as u32) {
                break;
            }
            let Some(next) = self.stranded.pop_front() else { break };
            self.pool.joined = next.joined;
            let again = self.try_issue(next.user, next.request as usize, next.due, next.phase, next.errand, now, true);
            self.pool.joined = None;
            if let Err(again) = again {
                self.strand(again, now);
            }
        }
        self.pool.serving = false;
        self.none_stranded(now);
    }
}
