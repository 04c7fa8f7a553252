//! What comes on a connection: bytes, TLS records, a proxy's answer, an HTTP answer, the end of the stream.

use std::cmp::Reverse;
use std::io;

use lastdrop_http::{Discard, Sink};
use lastdrop_model::{Failure, Kind, Micros, Wish};

use crate::collector::FirstAnswer;
use crate::connection::State;
use crate::event_loop::{Alarm, EventLoop, READ_BUFFER_BYTES};
use crate::inspect::MOST_KEPT_BYTES;
use crate::server_time::Hearing;
use crate::world::{Outgoing, World};

/// Reads in a row on one connection: a server that sends without end must not keep the others waiting.
const MOST_READS: usize = 16;

/// Notes the `Server` field.
struct ServerField<'a>(&'a mut Option<String>);

impl Sink for ServerField<'_> {
    fn field(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("server") {
            self.0.get_or_insert_with(|| lastdrop_model::printable::lossless(value));
        }
    }
}

impl<W: World> EventLoop<'_, W> {
    /// What the first answer says of its server.
    pub(crate) fn note_first_answer(&mut self, slot: u32) {
        let c = &mut self.connections[slot as usize];
        let tls = c.tls.as_ref().map(|tls| tls.facts());
        self.outcome.first_answer = Some(FirstAnswer { server: self.server.take(), tls });
    }

    pub(crate) fn read(&mut self, slot: u32) {
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.is_empty() {
            buffer = vec![0; READ_BUFFER_BYTES];
        }
        self.read_with(slot, &mut buffer);
        self.buffer = buffer;
    }

    fn read_with(&mut self, slot: u32, buffer: &mut [u8]) {
        let i = slot as usize;
        let slow = self.job.plan.network.bandwidth_bytes.is_some();
        let most = buffer.len().min(self.piece());
        for _ in 0..MOST_READS {
            if slow && self.quiet(slot) {
                return;
            }
            let Some(socket) = &self.connections[i].socket else { return };
            let result = self.world.recv(socket, &mut buffer[..most]);
            let now = self.now();
            match result {
                Ok(0) => return self.stream_ended(slot, now),
                Ok(n) => {
                    if slow {
                        let wait = self.transfer_time(n);
                        self.connections[i].quiet_until = now + wait;
                    }
                    let token = self.connections[i].token(slot);
                    let go_on = if self.connections[i].tls.is_some() && !self.connections[i].tunnel {
                        self.decrypt(slot, &buffer[..n], now)
                    } else {
                        self.count(slot, |c| c.bytes_received += n as u64);
                        self.take(slot, &buffer[..n], now)
                    };
                    if !go_on {
                        return;
                    }
                    // Slow reading leaves bytes behind, whose edge has been.
                    if !slow && n < most && !self.connections[i].peer_closed {
                        return;
                    }
                    if self.connections[i].token(slot) != token {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    let failure = match self.connections[i].state {
                        State::Tunnel | State::Handshaking => {
                            self.note_connect_error("connection reset before TLS or the proxy was ready");
                            Failure::Connect
                        }
                        _ => Failure::Reset,
                    };
                    return self.fail(slot, failure, now);
                }
            }
        }
        let token = self.connections[i].token(slot);
        self.again.push(token);
    }

    /// With a limited bandwidth: is it too early to read? Then an alarm is set.
    fn quiet(&mut self, slot: u32) -> bool {
        let now = self.now();
        let c = &self.connections[slot as usize];
        let until = c.quiet_until;
        if until > now {
            let token = c.token(slot);
            self.alarms.push(Reverse((until, Alarm::Transfer(token))));
        }
        until > now
    }

    fn stream_ended(&mut self, slot: u32, now: Micros) {
        let c = &mut self.connections[slot as usize];
        match c.state {
            State::Tunnel => {
                self.note_connect_error("the proxy closed the connection");
                self.fail(slot, Failure::Connect, now);
            }
            State::Handshaking => {
                self.note_connect_error("TLS: the server closed the connection");
                self.fail(slot, Failure::Connect, now);
            }
            _ if c.pipelined.is_empty() && c.parser.close() => self.answered(slot, now, false),
            _ => self.fail(slot, Failure::Closed, now),
        }
    }

    /// Takes TLS records. False: the connection has nothing more to read for this request.
    fn decrypt(&mut self, slot: u32, data: &[u8], now: Micros) -> bool {
        let i = slot as usize;
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let Some(mut tls) = self.connections[i].tls.take() else { return false };
        let was_handshaking = tls.handshaking();
        let fed = tls.feed(data, |tls| {
            loop {
                let start = plain.len();
                plain.resize(start + 16 * 1024, 0);
                let n = tls.read(&mut plain[start..]);
                plain.truncate(start + n);
                if n == 0 {
                    break;
                }
            }
        });
        let done = was_handshaking && !tls.handshaking();
        let resumed = tls.resumed();
        // Handshake messages, or the alert that says what is wrong.
        let flushed = match &self.connections[i].socket {
            Some(socket) if tls.wants_write() => tls.flush(&mut Outgoing::new(&mut self.world, socket)),
            _ => Ok(()),
        };
        let c = &mut self.connections[i];
        // What ends the stream ends the use of the connection, even where TCP stays open.
        let ended = tls.ended();
        c.peer_closed |= ended;
        c.tls = Some(tls);
        let (phase, state) = (c.phase, c.state);
        let mut go_on = true;
        if done && fed.is_ok() {
            let took = now.saturating_sub(c.connect_started);
            c.state = State::Writing;
            c.ready = now;
            let slice = self.slice(phase);
            if resumed {
                slice.counts.handshakes_resumed += 1;
            } else {
                slice.counts.handshakes_full += 1;
            }
            slice.record(Kind::Tls, took);
            self.write(slot);
            go_on = self.connections[i].busy();
        }
        if !plain.is_empty() && go_on {
            let received = plain.len() as u64;
            self.count(slot, |c| c.bytes_received += received);
            go_on = self.take(slot, &plain, now);
        }
        self.plain = plain;
        if !go_on {
            return false;
        }
        if let Err(e) = fed {
            if state == State::Handshaking {
                self.note_connect_error(&format!("TLS: {e}"));
                self.fail(slot, Failure::Connect, now);
            } else {
                self.note_protocol_error(&format!("TLS: {e}"));
                self.fail(slot, Failure::Protocol, now);
            }
            return false;
        }
        if flushed.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock) && state == State::Handshaking {
            self.note_connect_error("TLS: connection lost");
            self.fail(slot, Failure::Connect, now);
            return false;
        }
        if ended {
            self.stream_ended(slot, now);
        }
        !ended
    }

    /// Takes bytes of HTTP. False: the connection has nothing more to read for this request.
    #[inline]
    fn take(&mut self, slot: u32, data: &[u8], now: Micros) -> bool {
        let i = slot as usize;
        if self.connections[i].state == State::Tunnel {
            return self.take_tunnel(slot, data, now);
        }
        let mut at = 0;
        self.connections[i].received += data.len() as u64;
        if self.job.wish == Wish::Answers {
            // A server that sends without end must not fill our memory.
            let raw = &mut self.connections[i].raw;
            let room = MOST_KEPT_BYTES.saturating_sub(raw.len());
            raw.extend_from_slice(&data[..data.len().min(room)]);
        }
        loop {
            let c = &mut self.connections[i];
            if !c.parser.started() {
                c.first_byte = now;
            }
            let rest = &data[at..];
            let wants_first = self.exchanges.is_some() && self.outcome.first_answer.is_none();
            let fed = match (&self.job.plan.server_time, &mut c.capture) {
                (Some(from), capture) => {
                    let (mut first, mut nobody) = (ServerField(&mut self.server), Discard);
                    let next: &mut dyn Sink = match capture {
                        Some(capture) => capture.as_mut(),
                        None if wants_first => &mut first,
                        None => &mut nobody,
                    };
                    c.parser.feed(rest, &mut Hearing { from, said: &mut c.said, next })
                }
                (None, None) if wants_first => c.parser.feed(rest, &mut ServerField(&mut self.server)),
                (None, None) => c.parser.feed_remembering(rest, &mut self.last_head),
                (None, Some(capture)) => c.parser.feed(rest, capture.as_mut()),
            };
            match fed {
                Ok(feed) if feed.complete => {
                    at += feed.consumed;
                    if !c.pipelined.is_empty() {
                        if !c.parser.keep_alive() {
                            self.first_of_pipeline(slot, now);
                            self.fail(slot, Failure::Closed, now);
                            return false;
                        }
                        self.first_of_pipeline(slot, now);
                        if at == data.len() {
                            return true;
                        }
                        continue;
                    }
                    // Bytes after the answer belong to no request: such a connection is not used again.
                    let clean = at == data.len() && c.state == State::Waiting && c.parser.keep_alive();
                    self.answered(slot, now, clean);
                    return false;
                }
                Ok(_) => {
                    if c.state == State::Holding && c.parser.continued() {
                        c.hold_at = usize::MAX;
                        c.state = State::Writing;
                        self.write(slot);
                        return self.connections[i].busy();
                    }
                    return true;
                }
                Err(e) => {
                    self.note_protocol_error(e.0);
                    self.fail(slot, Failure::Protocol, now);
                    return false;
                }
            }
        }
    }

    /// The proxy's answer to CONNECT.
    fn take_tunnel(&mut self, slot: u32, data: &[u8], now: Micros) -> bool {
        let c = &mut self.connections[slot as usize];
        // An answer to CONNECT has no body, like one to HEAD.
        if !c.parser.started() {
            c.parser.start(true);
        }
        let fed = c.parser.feed(data, &mut Discard);
        let status = c.parser.status();
        match fed {
            Ok(feed) if feed.complete && (200..300).contains(&status) && feed.consumed == data.len() => {
                c.tunnel = false;
                c.written = 0;
                let head = self.job.prepared.requests[c.request as usize].head_request();
                c.parser.start(head);
                c.state = if c.tls.is_some() { State::Handshaking } else { State::Writing };
                c.ready = now;
                self.write(slot);
                self.connections[slot as usize].busy()
            }
            Ok(feed) if !feed.complete => true,
            Ok(_) => {
                self.note_connect_error(&format!("the proxy answered CONNECT with {status}"));
                self.fail(slot, Failure::Connect, now);
                false
            }
            Err(e) => {
                self.note_connect_error(&format!("the proxy answered CONNECT with {e}"));
                self.fail(slot, Failure::Connect, now);
                false
            }
        }
    }
}
