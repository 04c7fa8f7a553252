//! A closed loop with fewer connections than users (`--connections`): whoever finds none free waits in line, first come,
//! first served, and that wait is *blocked*.
//!
//! Whoever is next is given a connection that has room for a request. One that carries a single stream goes over to the slot of that: its
//! socket and TLS session, under a new token. While somebody waits no connection is
//! idle; the line therefore moves only when a request ends (`request_over`), or when the bound is lifted.

use lastdrop_model::Micros;

use super::{EventLoop, LONGEST_TURN_US};
use crate::ids::{Place, Slot};
use crate::transport::State;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// A request has ended, or a phase begins: is a connection one that others may have? Those of a phase that may have had more
    /// are closed, so that as long as one is idle there are no more than there may be.
    #[inline]
    pub(super) fn offer(&mut self, slot: Slot) {
        if !self.waiting.pool.is_bounded() || !self.transport.connections[slot].has_room() {
            return;
        }
        let idle = self.transport.connections[slot].state == State::Idle;
        if idle && self.waiting.pool.is_exceeded(self.transport.open_sockets) {
            self.transport.close(slot);
        } else if !self.waiting.pool.is_listed[slot.index()] {
            self.waiting.pool.is_listed[slot.index()] = true;
            self.waiting.pool.idle.push(slot);
        }
    }

    /// Must a request that is due now wait for a connection? If not, its stream has one, or may open one.
    pub(super) fn has_to_wait(&mut self, place: Place, endpoint: u32) -> bool {
        let others_wait = !self.waiting.pool.serving && !self.waiting.stranded.is_empty();
        others_wait || !self.find_connection(place, endpoint)
    }

    pub(super) fn find_connection(&mut self, place: Place, endpoint: u32) -> bool {
        // One that leads elsewhere is closed first.
        if self.transport.connections[place.slot].has_room() {
            return true;
        }
        let mut other = None;
        let mut at = self.waiting.pool.idle.len();
        while at > 0 {
            at -= 1;
            let s = self.waiting.pool.idle[at];
            let c = &self.transport.connections[s];
            if !c.has_room() {
                self.unlist(at);
            } else if c.endpoint == endpoint {
                let kept = self.transport.seat(place.stream, s);
                if !self.transport.connections[s].has_room() {
                    self.unlist(at);
                }
                return kept || self.transport.open_sockets < self.waiting.pool.most;
            } else if c.state == State::Idle {
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
        self.waiting.pool.is_listed[slot.index()] = false;
    }

    /// Sends what waits in line, as far as there are connections.
    pub(super) fn serve_line(&mut self, now: Micros) {
        if self.waiting.pool.serving || self.waiting.stranded.is_empty() {
            return;
        }
        self.waiting.pool.serving = true;
        self.waiting.pool.goes_on = false;
        let mut served = false;
        while let Some(next) = self.waiting.stranded.front()
            && self.phases.may_follow(now)
            && now >= self.waiting.no_socket_until
        {
            let endpoint = next.endpoint(&self.job.prepared.requests);
            let user = next.user;
            // One request that ends lets one go; a new phase may have room for thousands.
            if served && self.now() >= now + LONGEST_TURN_US {
                self.waiting.pool.goes_on = true;
                break;
            }
            let Some(place) = self.place_for(user, endpoint) else { break };
            if !self.find_connection(place, endpoint as u32) {
                break;
            }
            let Some(next) = self.waiting.stranded.pop_front() else { break };
            served = true;
            self.waiting.pool.joined = next.joined;
            // What comes due with a phase that begins while the end of a request is handled is not sent before.
            let now = now.max(next.due);
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
