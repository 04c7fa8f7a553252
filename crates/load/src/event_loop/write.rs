//! What goes out on a connection: what its state has to write, as far as the socket takes it.

use std::cmp::Reverse;
use std::io;

use lastdrop_model::{Failure, Micros};

use super::{Alarm, EventLoop};
use crate::protocol::{CONTINUE_PATIENCE_US, bytes_of};
use crate::transport::{State, Written, blocked_or, describe, is_reset};
use crate::world::{Outgoing, World};

/// With a limited bandwidth, pieces are so many per second.
const PIECES_A_SECOND: u64 = 20;

impl<W: World> EventLoop<'_, W> {
    /// Writes what the state of the connection has to write.
    pub(super) fn send_some(&mut self, slot: u32) -> Written {
        let i = slot as usize;
        let piece = self.piece();
        let c = &mut self.transport.connections[i];
        let Some(socket) = &c.socket else { return Written::All };
        let handshaking = c.layers.tls.as_ref().is_some_and(|t| t.handshaking());
        let mut counted = 0;
        let mut result = Written::All;
        if c.layers.tunnel {
            let bytes = self.transport.endpoints[c.endpoint as usize].connect_request.clone().unwrap_or_default();
            while c.wire.written < bytes.len() {
                match self.transport.world.send(socket, &bytes[c.wire.written..]) {
                    Ok(n) => {
                        c.wire.written += n;
                        counted += n;
                    }
                    Err(e) => {
                        result = blocked_or(e, counted > 0);
                        break;
                    }
                }
            }
        } else if let Some(mut tls) = c.layers.tls.take() {
            let bytes = bytes_of(&c.wire, &self.streams[i], &self.job.prepared.requests);
            let end = bytes.len().min(c.wire.hold_at);
            let mut at = c.wire.written;
            let mut raw = 0;
            loop {
                let mut took = 0;
                if !handshaking && at < end {
                    took = tls.write(&bytes[at..end.min(at.saturating_add(piece))]);
                    at += took;
                    counted += took;
                }
                let mut outgoing = Outgoing::new(&mut self.transport.world, socket);
                let flushed = tls.flush(&mut outgoing);
                raw += outgoing.sent;
                match flushed {
                    Ok(()) if handshaking || at >= end || took == 0 => break,
                    Ok(()) if piece != usize::MAX => {
                        result = Written::Enough;
                        break;
                    }
                    Ok(()) => {}
                    Err(e) => {
                        // A hello that does not fit is on its way all the same: what comes meanwhile has to be read.
                        result = blocked_or(e, raw > 0);
                        break;
                    }
                }
            }
            c.wire.written = at;
            c.layers.tls = Some(tls);
        } else {
            let bytes = bytes_of(&c.wire, &self.streams[i], &self.job.prepared.requests);
            let end = bytes.len().min(c.wire.hold_at);
            let mut at = c.wire.written;
            while at < end {
                let to = end.min(at.saturating_add(piece));
                match self.transport.world.send(socket, &bytes[at..to]) {
                    Ok(n) => {
                        at += n;
                        counted += n;
                        if piece != usize::MAX && at < end {
                            result = Written::Enough;
                            break;
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => {
                        result = blocked_or(e, counted > 0);
                        break;
                    }
                }
            }
            c.wire.written = at;
        }
        if counted > 0 {
            self.count(slot, |c| c.bytes_sent += counted as u64);
        }
        result
    }

    pub(super) fn write(&mut self, slot: u32) {
        let i = slot as usize;
        loop {
            let state = self.transport.connections[i].state;
            // A server on this machine may run, and answer, before the call that sends returns: what it takes is not connecting.
            let connected_at = if state == State::Connecting { self.now() } else { 0 };
            let written = self.send_some(slot);
            let now = self.now();
            if state == State::Connecting {
                match &written {
                    Written::Blocked { some: false } => return,
                    Written::Error(e) if !is_reset(e) => {
                        let what = describe(e);
                        self.record.note_connect_error(&what);
                        return self.fail(slot, Failure::Connect, now);
                    }
                    _ => self.connected(slot, connected_at),
                }
            }
            let c = &mut self.transport.connections[i];
            let s = &mut self.streams[i];
            match written {
                Written::Error(_) if matches!(c.state, State::Tunnel | State::Handshaking) => {
                    let what = if c.state == State::Tunnel { "proxy: connection lost" } else { "TLS: connection lost" };
                    self.record.note_connect_error(what);
                    return self.fail(slot, Failure::Connect, now);
                }
                Written::Error(_) if state == State::Connecting => return self.fail(slot, Failure::Reset, now),
                // The server may have answered before it stopped reading: the read tells.
                Written::Error(_) => return self.read(slot),
                Written::Blocked { .. } => return,
                Written::Enough => {
                    let wait = self.transfer_time(self.piece());
                    let token = self.transport.connections[i].token(slot);
                    self.timers.alarms.push(Reverse((now + wait, Alarm::Transfer(token))));
                    return;
                }
                Written::All => {}
            }
            match c.state {
                // An answer of the proxy or of the server has to come first.
                State::Tunnel | State::Handshaking => return,
                _ => {
                    let len = bytes_of(&c.wire, s, &self.job.prepared.requests).len();
                    if c.wire.written >= len {
                        c.state = State::Waiting;
                        s.times.written = now;
                    } else if c.wire.written >= c.wire.hold_at {
                        c.state = State::Holding;
                        let token = c.token(slot);
                        self.timers.alarms.push(Reverse((now + CONTINUE_PATIENCE_US, Alarm::Continue(token))));
                    } else {
                        continue;
                    }
                    return;
                }
            }
        }
    }

    /// Most bytes to write or read at once.
    pub(super) fn piece(&self) -> usize {
        match self.job.plan.network.bandwidth_bytes {
            None => usize::MAX,
            Some(rate) => (rate / PIECES_A_SECOND).max(1) as usize,
        }
    }

    /// Time that so many bytes take.
    pub(super) fn transfer_time(&self, bytes: usize) -> Micros {
        match self.job.plan.network.bandwidth_bytes {
            None => 0,
            Some(rate) => bytes as u64 * 1_000_000 / rate.max(1),
        }
    }
}
