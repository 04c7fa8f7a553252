//! A closed loop with fewer connections than users (`--connections`): whoever finds none free waits in line, first come,
//! first served, and that wait is *blocked*.
//!
//! A user's connections have slots of their own, and what a request is made of stands there. So an idle connection goes
//! over to the slot of whoever is next: its socket and TLS session, under a new token. While somebody waits no connection is
//! idle; the line therefore moves only when a request ends (`request_over`), or when the bound is lifted.

use lastdrop_model::Micros;

use super::EventLoop;
use crate::transport::State;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// A request has ended, or a phase begins: is a connection one that others may have? Those of a phase that may have had more
    /// are closed, so that as long as one is idle there are no more than there may be.
    #[inline]
    pub(super) fn offer(&mut self, slot: u32) {
        if !self.waiting.pool.is_bounded() || self.transport.connections[slot as usize].state != State::Idle {
            return;
        }
        if self.waiting.pool.is_exceeded(self.transport.open_sockets) {
            self.transport.close(slot);
        } else if !self.waiting.pool.is_listed[slot as usize] {
            self.waiting.pool.is_listed[slot as usize] = true;
            self.waiting.pool.idle.push(slot);
        }
    }

    /// Must a request that is due now wait for a connection? If not, its slot has one, or may open one.
    pub(super) fn has_to_wait(&mut self, slot: u32, endpoint: u32) -> bool {
        let others_wait = !self.waiting.pool.serving && !self.waiting.stranded.is_empty();
        others_wait || !self.find_connection(slot, endpoint)
    }

    pub(super) fn find_connection(&mut self, slot: u32, endpoint: u32) -> bool {
        let c = &self.transport.connections[slot as usize];
        // One that leads elsewhere is closed first.
        if c.socket.is_some() {
            return true;
        }
        let same = |e: &Self, s: u32| e.transport.connections[s as usize].endpoint == endpoint;
        let mut other = None;
        let mut at = self.waiting.pool.idle.len();
        while at > 0 {
            at -= 1;
            let s = self.waiting.pool.idle[at];
            if self.transport.connections[s as usize].state != State::Idle {
                self.unlist(at);
            } else if same(self, s) {
                self.unlist(at);
                return self.transport.take_over(s, slot) || self.transport.open_sockets < self.waiting.pool.most;
            } else {
                other.get_or_insert(s);
            }
        }
        if self.transport.open_sockets < self.waiting.pool.most {
            return true;
        }
        if let Some(s) = other {
            self.transport.close(s);
        }
        other.is_some()
    }

    pub(super) fn unlist(&mut self, at: usize) {
        let slot = self.waiting.pool.idle.swap_remove(at);
        self.waiting.pool.is_listed[slot as usize] = false;
    }

    /// Sends what waits in line, as far as there are connections.
    pub(super) fn serve_line(&mut self, now: Micros) {
        if self.waiting.pool.serving || self.waiting.stranded.is_empty() {
            return;
        }
        self.waiting.pool.serving = true;
        while let Some(next) = self.waiting.stranded.front()
            && self.phases.may_follow(now)
            && now >= self.waiting.no_socket_until
        {
            let endpoint = next.endpoint(&self.job.prepared.requests);
            let user = next.user;
            let Some(slot) = self.slot_for(user, endpoint) else { break };
            if !self.find_connection(slot, endpoint as u32) {
                break;
            }
            let Some(next) = self.waiting.stranded.pop_front() else { break };
            self.waiting.pool.joined = next.joined;
            let again = self.try_issue(next.user, next.request as usize, next.due, next.phase, next.errand, now, true);
            self.waiting.pool.joined = None;
            if let Err(again) = again {
                self.strand(again, now);
            }
        }
        self.waiting.pool.serving = false;
        self.none_stranded(now);
    }
}
