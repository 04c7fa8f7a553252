//! Handles an event on a connection.

use lastdrop_model::{Failure, Kind, Micros};

use super::EventLoop;
use crate::ids::Slot;
use crate::transport::{State, slot_of};
use crate::world::{PEER_CLOSED, READABLE, WRITABLE, World};

impl<W: World> EventLoop<'_, W> {
    pub(super) fn on_event(&mut self, token: u64, flags: u32) {
        let slot = slot_of(token);
        let Some(c) = self.transport.of_token(token) else { return };
        if flags & PEER_CLOSED != 0 {
            c.peer_closed = true;
        }
        match c.state {
            State::Waiting if flags & (READABLE | PEER_CLOSED) != 0 => self.read(slot),
            State::Connecting | State::Writing | State::Handshaking | State::Tunnel
                if flags & (WRITABLE | PEER_CLOSED) != 0 =>
            {
                if c.state != State::Tunnel {
                    self.write(slot);
                }
                // An answer may arrive before the whole request is out, and its edge is reported only once.
                if flags & (READABLE | PEER_CLOSED) != 0 && self.transport.of_token(token).is_some_and(|c| c.is_heard())
                {
                    self.read(slot);
                }
            }
            State::Writing | State::Holding | State::Handshaking | State::Tunnel
                if flags & (READABLE | PEER_CLOSED) != 0 =>
            {
                self.read(slot);
            }
            State::Idle if flags & (READABLE | PEER_CLOSED) != 0 && c.wire.is_heard_idle() => self.read(slot),
            State::Idle if flags & (READABLE | PEER_CLOSED) != 0 => self.transport.idle_event(slot),
            _ => {}
        }
    }

    /// Continues where the loop left off: too much to read in one turn, a limited bandwidth, a failed connect.
    pub(super) fn transfer(&mut self, token: u64) {
        let slot = slot_of(token);
        let now = self.now();
        let Some(c) = self.transport.of_token(token) else { return };
        if c.doomed {
            c.doomed = false;
            self.record.connect_error = c.error.take();
            return self.fail(slot, Failure::Connect, now);
        }
        match c.state {
            // The proxy's or the server's handshake may be as long as an answer.
            State::Writing | State::Handshaking | State::Tunnel => {
                self.write(slot);
                if self.transport.of_token(token).is_some_and(|c| c.is_heard()) {
                    self.read(slot);
                }
            }
            _ if c.is_heard() => self.read(slot),
            _ => {}
        }
    }

    /// Sends the body without `100 Continue`: the server did not send that in time.
    pub(super) fn no_continue(&mut self, token: u64) {
        let slot = slot_of(token);
        let Some(c) = self.transport.of_token(token) else { return };
        if c.state == State::Holding {
            c.wire.release();
            c.state = State::Writing;
            self.write(slot);
        }
    }

    pub(super) fn connected(&mut self, slot: Slot, now: Micros) {
        let first = self.first_on(slot);
        let c = &mut self.transport.connections[slot];
        c.state = match (&c.layers.tls, c.layers.tunnel) {
            (_, true) => State::Tunnel,
            (Some(_), _) => State::Handshaking,
            (None, _) => State::Writing,
        };
        c.dialed.connected = now;
        if c.state == State::Writing {
            for stream in c.wire.streams(slot) {
                self.streams[stream].times.ready = now;
            }
        }
        let took = now.saturating_sub(c.dialed.begun);
        self.transport.opened += 1;
        if let Some(stream) = first {
            let slice = self.record.slice(self.streams[stream].phase);
            slice.counts.opened += 1;
            slice.record(Kind::Connect, took);
        }
    }
}
