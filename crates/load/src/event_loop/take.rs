//! Bytes of HTTP: an answer, or a proxy's answer.

use lastdrop_http::{Discard, Sink};
use lastdrop_model::{Failure, Micros, Wish};

use super::EventLoop;
use crate::inspect::MOST_KEPT_BYTES;
use crate::record::ServerField;
use crate::server_time::Hearing;
use crate::transport::State;
use crate::wiring::FirstAnswer;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Takes bytes of HTTP. False: the connection has nothing more to read for this request.
    #[inline]
    pub(super) fn take(&mut self, slot: u32, data: &[u8], now: Micros) -> bool {
        let i = slot as usize;
        if self.transport.connections[i].state == State::Tunnel {
            return self.take_tunnel(slot, data, now);
        }
        let mut at = 0;
        self.streams[i].received += data.len() as u64;
        if self.job.wish == Wish::Answers {
            // A server that sends without end must not fill our memory.
            let raw = &mut self.streams[i].raw;
            let room = MOST_KEPT_BYTES.saturating_sub(raw.len());
            raw.extend_from_slice(&data[..data.len().min(room)]);
        }
        loop {
            let c = &mut self.transport.connections[i];
            let s = &mut self.streams[i];
            if !c.wire.parser.started() {
                s.times.first_byte = now;
            }
            let rest = &data[at..];
            let wants_first = self.record.exchanges.is_some() && self.record.outcome.first_answer.is_none();
            let heard = self.job.plan.server_time.as_ref().filter(|from| !from.is_log());
            let fed = match (heard, &mut s.capture) {
                (Some(from), capture) => {
                    let (mut first, mut nobody) = (ServerField(&mut self.record.server), Discard);
                    let next: &mut dyn Sink = match capture {
                        Some(capture) => capture.as_mut(),
                        None if wants_first => &mut first,
                        None => &mut nobody,
                    };
                    c.wire.parser.feed(rest, &mut Hearing { from, said: &mut s.said, next })
                }
                (None, None) if wants_first => c.wire.parser.feed(rest, &mut ServerField(&mut self.record.server)),
                (None, None) => c.wire.parser.feed_remembering(rest, &mut self.last_head),
                (None, Some(capture)) => c.wire.parser.feed(rest, capture.as_mut()),
            };
            match fed {
                Ok(feed) if feed.complete => {
                    at += feed.consumed;
                    if !c.wire.pipelined.is_empty() {
                        if !c.wire.parser.keep_alive() {
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
                    let clean = at == data.len() && c.state == State::Waiting && c.wire.parser.keep_alive();
                    self.answered(slot, now, clean);
                    return false;
                }
                Ok(_) => {
                    if c.state == State::Holding && c.wire.parser.continued() {
                        c.wire.hold_at = usize::MAX;
                        c.state = State::Writing;
                        self.write(slot);
                        return self.transport.connections[i].busy();
                    }
                    return true;
                }
                Err(e) => {
                    self.record.note_protocol_error(e.0);
                    self.fail(slot, Failure::Protocol, now);
                    return false;
                }
            }
        }
    }

    /// The proxy's answer to CONNECT.
    pub(super) fn take_tunnel(&mut self, slot: u32, data: &[u8], now: Micros) -> bool {
        let c = &mut self.transport.connections[slot as usize];
        let s = &mut self.streams[slot as usize];
        // An answer to CONNECT has no body, like one to HEAD.
        if !c.wire.parser.started() {
            c.wire.parser.start(true);
        }
        let fed = c.wire.parser.feed(data, &mut Discard);
        let status = c.wire.parser.status();
        match fed {
            Ok(feed) if feed.complete && (200..300).contains(&status) && feed.consumed == data.len() => {
                c.layers.tunnel = false;
                c.wire.written = 0;
                let head = self.job.prepared.requests[s.request as usize].head_request();
                c.wire.parser.start(head);
                c.state = if c.layers.tls.is_some() { State::Handshaking } else { State::Writing };
                s.times.ready = now;
                self.write(slot);
                self.transport.connections[slot as usize].busy()
            }
            Ok(feed) if !feed.complete => true,
            Ok(_) => {
                self.record.note_connect_error(&format!("the proxy answered CONNECT with {status}"));
                self.fail(slot, Failure::Connect, now);
                false
            }
            Err(e) => {
                self.record.note_connect_error(&format!("the proxy answered CONNECT with {e}"));
                self.fail(slot, Failure::Connect, now);
                false
            }
        }
    }

    /// What the first answer says of its server.
    pub(super) fn note_first_answer(&mut self, slot: u32) {
        let c = &mut self.transport.connections[slot as usize];
        let tls = c.layers.tls.as_ref().map(|tls| tls.facts());
        self.record.outcome.first_answer = Some(FirstAnswer { server: self.record.server.take(), tls });
    }
}
