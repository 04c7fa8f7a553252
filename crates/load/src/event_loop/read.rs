//! Reads from a connection: bytes, TLS records, the end of the stream.

use std::io;
use std::time::SystemTime;

use lastdrop_model::{Failure, Kind, Micros};
use lastdrop_wire::{Certificate, verify};

use super::EventLoop;
use crate::ids::{Placement, Slot};
use crate::protocol::disagreement;
use crate::tls_config;
use crate::transport::{READ_BUFFER_BYTES, State};
use crate::world::{SocketWriter, World};

/// Most reads in a row on one connection: a server that sends without end must not starve the others.
const MOST_READS: usize = 16;
/// Largest TLS record.
const RECORD_BYTES: usize = 16 * 1024;

impl<W: World> EventLoop<'_, W> {
    pub(super) fn read(&mut self, slot: Slot) {
        let mut buffer = std::mem::take(&mut self.transport.buffer);
        if buffer.is_empty() {
            buffer = vec![0; READ_BUFFER_BYTES];
        }
        self.read_with(slot, &mut buffer);
        self.transport.buffer = buffer;
    }

    pub(super) fn read_with(&mut self, slot: Slot, buffer: &mut [u8]) {
        let slow = self.job.plan.network.bandwidth_bytes.is_some();
        let most = buffer.len().min(self.piece());
        for _ in 0..MOST_READS {
            if self.is_quiet(slot) {
                return;
            }
            let Some(socket) = &self.transport.connections[slot].socket else { return };
            let result = self.transport.world.recv(socket, &mut buffer[..most]);
            let now = self.now();
            match result {
                Ok(0) => return self.stream_ended(slot, now),
                Ok(n) => {
                    self.has_read(slot, n);
                    let token = self.transport.connections[slot].token(slot);
                    let go_on = if self.transport.connections[slot].layers.tls.is_some()
                        && !self.transport.connections[slot].layers.tunnel
                    {
                        self.decrypt(slot, &buffer[..n], now)
                    } else {
                        self.count_received(slot, n);
                        self.take(slot, &buffer[..n], now)
                    };
                    if !go_on {
                        return;
                    }
                    // Limited reading leaves bytes behind, and their edge has already been reported.
                    if !slow && n < most && !self.transport.connections[slot].peer_closed {
                        return;
                    }
                    if self.transport.connections[slot].token(slot) != token {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    let failure = match self.transport.connections[slot].state {
                        State::Tunnel | State::Handshaking => {
                            self.record.note_connect_error("connection reset before TLS or the proxy was ready");
                            Failure::Connect
                        }
                        _ => Failure::Reset,
                    };
                    return self.fail(slot, failure, now);
                }
            }
        }
        let token = self.transport.connections[slot].token(slot);
        self.transport.again.push(token);
    }

    /// Counts bytes for the request that a connection carries. Over HTTP/2 each frame is counted where it belongs.
    #[inline]
    fn count_received(&mut self, slot: Slot, bytes: usize) {
        if !self.transport.connections[slot].wire.is_shared() {
            self.count_on(slot, |c| c.bytes_received += bytes as u64);
        }
    }

    pub(super) fn stream_ended(&mut self, slot: Slot, now: Micros) {
        let c = &mut self.transport.connections[slot];
        match c.state {
            State::Tunnel => {
                self.record.note_connect_error("the proxy closed the connection");
                self.fail(slot, Failure::Connect, now);
            }
            State::Handshaking => {
                self.record.note_connect_error("TLS: the server closed the connection");
                self.fail(slot, Failure::Connect, now);
            }
            State::Idle => self.transport.close(slot),
            _ => match c.wire.completed_by_close(slot) {
                Some(stream) => self.answered(Placement { stream, slot }, now, false),
                None => self.fail(slot, Failure::Closed, now),
            },
        }
    }

    /// Decrypts TLS records. Returns false if the connection has nothing more to read for this request.
    pub(super) fn decrypt(&mut self, slot: Slot, data: &[u8], now: Micros) -> bool {
        // The buffer stays as long as it ever was: clearing and refilling it per answer costs more than its bytes.
        let mut plain = std::mem::take(&mut self.transport.plain);
        let mut filled = 0;
        let Some(mut tls) = self.transport.connections[slot].layers.tls.take() else { return false };
        let was_handshaking = tls.handshaking();
        let fed = tls.feed(data, |tls| {
            loop {
                if plain.len() < filled + RECORD_BYTES {
                    plain.resize(filled + RECORD_BYTES, 0);
                }
                let room = plain.len() - filled;
                let n = tls.read(&mut plain[filled..]);
                filled += n;
                if n < room {
                    break;
                }
            }
        });
        let done = was_handshaking && !tls.handshaking();
        let resumed = tls.resumed();
        // Send handshake messages, or the alert that reports an error.
        let flushed = match &self.transport.connections[slot].socket {
            Some(socket) if tls.wants_write() => tls.flush(&mut SocketWriter::new(&mut self.transport.world, socket)),
            _ => Ok(()),
        };
        let first = if done { self.first_on(slot) } else { None };
        let c = &mut self.transport.connections[slot];
        // The end of the TLS stream ends the use of the connection, even if TCP stays open.
        let ended = tls.ended();
        c.peer_closed |= ended;
        let state = c.state;
        let mut go_on = true;
        let mut ready = done && fed.is_ok();
        let is_agreed = !ready || c.wire.ready(tls.agreed());
        ready &= is_agreed;
        if ready && self.job.plan.tls.insecure && self.record.outcome.unverified.is_none() {
            let weak = Certificate::read(&tls.facts().certificate).map(|c| c.weaknesses(SystemTime::now()));
            self.record.outcome.unverified = Some(weak.unwrap_or_else(|| vec!["cannot be read".into()]));
        }
        c.layers.tls = Some(tls);
        if !is_agreed {
            self.transport.plain = plain;
            self.record.note_connect_error(&disagreement(&self.job.plan.http));
            self.fail(slot, Failure::Connect, now);
            return false;
        }
        if ready {
            let took = now.saturating_sub(c.dialed.begun);
            c.state = State::Writing;
            for stream in c.wire.streams(slot) {
                self.streams[stream].times.ready = now;
            }
            if let Some(stream) = first {
                let slice = self.record.slice(self.streams[stream].phase);
                if resumed {
                    slice.counts.handshakes_resumed += 1;
                } else {
                    slice.counts.handshakes_full += 1;
                }
                slice.record(Kind::Tls, took);
            }
            self.write(slot);
            go_on = self.transport.connections[slot].is_heard();
        }
        if filled > 0 && go_on {
            self.count_received(slot, filled);
            go_on = self.take(slot, &plain[..filled], now);
        }
        self.transport.plain = plain;
        if !go_on {
            return false;
        }
        if let Err(e) = fed {
            let what = tls_config::failure(&e);
            // With TLS 1.3 the server judges the client certificate after our side of the handshake is done.
            if state == State::Handshaking || verify::is_about_client_certificate(&e) {
                self.record.note_connect_error(&what);
                self.fail(slot, Failure::Connect, now);
            } else {
                self.record.note_protocol_error(&what);
                self.fail(slot, Failure::Protocol, now);
            }
            return false;
        }
        if flushed.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock) && state == State::Handshaking {
            self.record.note_connect_error("TLS: connection lost");
            self.fail(slot, Failure::Connect, now);
            return false;
        }
        if ended {
            self.stream_ended(slot, now);
        }
        !ended
    }
}
