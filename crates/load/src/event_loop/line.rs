//! The queue for connections in a closed loop with fewer connections than users (`--connections`).
//!
//! A user who finds none free queues, first come, first served; that time is reported as *blocked*. The first in the
//! queue gets a connection that has room for a request. A connection with a single stream moves to the slot of that
//! stream, with its socket and TLS session, under a new token. While the queue is not empty no connection is idle. So
//! it moves only when a request ends (`request_over`) or when the limit is lifted.

use lastdrop_model::Micros;

use super::{EventLoop, LONGEST_TURN_US};
use crate::ids::{Placement, Slot};
use crate::transport::State;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Returns a connection to the shared pool when a request has ended or a phase begins. Closes idle connections
    /// beyond the limit, so that an idle connection means that the limit is kept.
    #[inline]
    pub(super) fn offer(&mut self, slot: Slot) {
        // Connections of HTTP/2 are listed while they are open.
        if !self.waiting.pool.is_bounded()
            || !self.transport.connections[slot].has_room()
            || self.transport.connections[slot].wire.is_shared()
        {
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

    /// Whether a request that is due has to queue. If not, its stream has a connection or may open one.
    pub(super) fn has_to_wait(&mut self, place: Placement, endpoint: u32) -> bool {
        let others_wait = !self.waiting.pool.serving && !self.waiting.stranded.is_empty();
        others_wait || !self.find_connection(place, endpoint)
    }

    pub(super) fn find_connection(&mut self, place: Placement, endpoint: u32) -> bool {
        if self.transport.connections[place.slot].wire.is_shared() {
            return self.find_shared(place, endpoint);
        }
        // A connection to another server is closed first.
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

    /// Sends queued requests while connections are free.
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
            // A request that ends lets one go; a new phase may have room for thousands.
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
            // A phase may begin while the end of a request is handled. A request due with that phase must not be sent
            // before its start.
            let now = now.max(next.due);
            let again =
                self.try_issue(next.user, next.request as usize, next.due, next.phase, next.follow_up, now, true);
            self.waiting.pool.joined = None;
            if let Err(again) = again {
                self.strand(again, now);
            }
        }
        self.waiting.pool.serving = false;
        self.none_stranded(now);
    }
}
