//! Writes to a connection what its state requires, as far as the socket accepts it.

use std::cmp::Reverse;

use lastdrop_model::Failure;

use super::{Alarm, EventLoop};
use crate::ids::Slot;
use crate::protocol::{CONTINUE_PATIENCE_US, WriteProgress};
use crate::transport::{State, WriteOutcome, describe, is_reset};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    pub(super) fn write(&mut self, slot: Slot) {
        if self.transport.connections[slot].wire.is_dirty() {
            self.open_cork(slot);
        }
        let requests = &self.job.prepared.requests;
        loop {
            if self.is_ahead(slot) {
                return;
            }
            let state = self.transport.connections[slot].state;
            // A server on this machine may run, and answer, before the sending call returns. That time is not connect
            // time.
            let connected_at = if state == State::Connecting { self.now() } else { 0 };
            let piece = self.piece();
            let (written, sent) = self.transport.send(slot, &self.streams, requests, piece);
            if sent > 0 {
                if self.transport.connections[slot].wire.is_shared() {
                    // A class has counted its own.
                    self.record.slice(self.phases.phase).counts.bytes_sent += sent as u64;
                } else {
                    self.count_on(slot, |c| c.bytes_sent += sent as u64);
                }
                self.wrote(slot, sent);
            }
            let now = self.now();
            if state == State::Connecting {
                match &written {
                    WriteOutcome::Blocked { some: false } => return,
                    WriteOutcome::Error(e) if !is_reset(e) => {
                        let what = describe(e);
                        self.record.note_connect_error(&what);
                        return self.fail(slot, Failure::Connect, now);
                    }
                    _ => self.connected(slot, connected_at),
                }
            }
            let c = &mut self.transport.connections[slot];
            match written {
                WriteOutcome::Error(_) if matches!(c.state, State::Tunnel | State::Handshaking) => {
                    let what = if c.state == State::Tunnel { "proxy: connection lost" } else { "TLS: connection lost" };
                    self.record.note_connect_error(what);
                    return self.fail(slot, Failure::Connect, now);
                }
                WriteOutcome::Error(_) if state == State::Connecting => return self.fail(slot, Failure::Reset, now),
                WriteOutcome::Error(_) if c.wire.is_shared() => return self.unwritable(slot),
                // The server may have answered before it stopped reading: the read shows.
                WriteOutcome::Error(_) => return self.read(slot),
                WriteOutcome::Blocked { .. } => return,
                // The bytes written are now ahead of the limited rate.
                WriteOutcome::Enough => continue,
                WriteOutcome::Later => {
                    let token = c.token(slot);
                    return self.transport.again.push(token);
                }
                WriteOutcome::All => {}
            }
            match c.state {
                // The proxy or the server has to answer first.
                State::Tunnel | State::Handshaking => return,
                _ => match c.wire.progress(slot, &self.streams, requests) {
                    WriteProgress::All(streams) => {
                        c.state = if c.wire.awaits_nothing() { State::Idle } else { State::Waiting };
                        for stream in streams {
                            self.streams[stream].times.written = now;
                        }
                        return;
                    }
                    WriteProgress::Held => {
                        c.state = State::Holding;
                        let token = c.token(slot);
                        self.timers.alarms.push(Reverse((now + CONTINUE_PATIENCE_US, Alarm::Continue(token))));
                        return;
                    }
                    WriteProgress::More => {}
                },
            }
        }
    }
}
