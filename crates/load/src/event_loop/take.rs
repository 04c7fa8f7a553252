//! Takes bytes of HTTP: an answer of the server, or of a proxy.

use lastdrop_http::{NullSink, Sink};
use lastdrop_model::{CaptureLevel, Failure, Micros};

use super::EventLoop;
use crate::ids::{Placement, Slot, StreamId};
use crate::inspect::MOST_KEPT_BYTES;
use crate::protocol::HttpState;
use crate::record::ServerField;
use crate::server_time::ServerTimeReader;
use crate::transport::State;
use crate::wiring::FirstAnswer;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Takes bytes of HTTP. Returns false if the connection has nothing more to read for the requests in flight.
    #[inline]
    pub(super) fn take(&mut self, slot: Slot, data: &[u8], now: Micros) -> bool {
        let c = &self.transport.connections[slot];
        if c.state == State::Tunnel {
            return self.take_tunnel(slot, data, now);
        }
        if c.wire.is_shared() {
            return self.take_frames(slot, data, now);
        }
        data.is_empty() || self.take_piece(Placement { stream: StreamId(slot.0), slot }, data, now)
    }

    /// Takes the bytes of one request's answer. Returns false if nothing more comes for it.
    #[inline]
    fn take_piece(&mut self, place: Placement, data: &[u8], now: Micros) -> bool {
        let Placement { stream, slot } = place;
        let mut at = 0;
        self.streams[stream].received += data.len() as u64;
        if self.job.wish == CaptureLevel::Answers {
            // A server that sends without end must not fill our memory.
            let raw = &mut self.streams[stream].raw;
            let room = MOST_KEPT_BYTES.saturating_sub(raw.len());
            raw.extend_from_slice(&data[..data.len().min(room)]);
        }
        loop {
            let c = &mut self.transport.connections[slot];
            let s = &mut self.streams[stream];
            let HttpState::One(wire) = &mut c.wire else { return false };
            let answer = wire.answer_mut();
            if !answer.started() {
                s.times.first_byte = now;
            }
            let rest = &data[at..];
            let wants_first = self.record.exchanges.is_some() && self.record.outcome.first_answer.is_none();
            let heard = self.job.plan.server_time.as_ref().filter(|from| !from.is_log());
            let fed = if heard.is_none() && !wants_first {
                match &mut s.capture {
                    Some(capture) => answer.feed(rest, capture.as_mut()),
                    None => answer.feed_remembering(rest, &mut self.last_head),
                }
            } else {
                let mut nobody = NullSink;
                let next: &mut dyn Sink = match &mut s.capture {
                    Some(capture) => capture.as_mut(),
                    None => &mut nobody,
                };
                match (heard, wants_first) {
                    (None, _) => answer.feed(rest, &mut ServerField { server: &mut self.record.server, next }),
                    (Some(from), true) => {
                        let mut first = ServerField { server: &mut self.record.server, next };
                        let said = s.said.get_or_insert_default();
                        answer.feed(rest, &mut ServerTimeReader { from, said, next: &mut first })
                    }
                    (Some(from), false) => {
                        answer.feed(rest, &mut ServerTimeReader { from, said: s.said.get_or_insert_default(), next })
                    }
                }
            };
            match fed {
                Ok(feed) if feed.complete => {
                    at += feed.consumed;
                    if !wire.behind().is_empty() {
                        if !wire.answer().keep_alive() {
                            self.first_of_pipeline(place, now);
                            self.fail(slot, Failure::Closed, now);
                            return false;
                        }
                        self.first_of_pipeline(place, now);
                        if at == data.len() {
                            return true;
                        }
                        continue;
                    }
                    // Bytes after the answer belong to no request: such a connection is not reused.
                    let clean = at == data.len() && wire.lives_on(c.state == State::Waiting);
                    self.answered(place, now, clean);
                    return false;
                }
                Ok(_) => {
                    if c.state == State::Holding && wire.answer().continued() {
                        wire.release();
                        c.state = State::Writing;
                        self.write(slot);
                        return self.transport.connections[slot].busy();
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

    /// Takes the proxy's answer to CONNECT.
    pub(super) fn take_tunnel(&mut self, slot: Slot, data: &[u8], now: Micros) -> bool {
        let c = &mut self.transport.connections[slot];
        let HttpState::One(wire) = &mut c.wire else { return false };
        let answer = wire.answer_mut();
        // An answer to CONNECT has no body, like one to HEAD.
        if !answer.started() {
            answer.start(true);
        }
        let fed = answer.feed(data, &mut NullSink);
        let status = answer.status();
        match fed {
            Ok(feed) if feed.complete && (200..300).contains(&status) && feed.consumed == data.len() => {
                c.layers.tunnel = false;
                wire.restart();
                c.state = if c.layers.tls.is_some() { State::Handshaking } else { State::Writing };
                for stream in c.wire.streams(slot) {
                    let s = &mut self.streams[stream];
                    c.wire.start(self.job.prepared.requests[s.request as usize].head_request());
                    s.times.ready = now;
                }
                self.write(slot);
                self.transport.connections[slot].busy()
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

    /// Notes what the first answer tells about its server.
    pub(super) fn note_first_answer(&mut self, slot: Slot) {
        let c = &mut self.transport.connections[slot];
        let tls = c.layers.tls.as_ref().map(|tls| tls.facts());
        self.record.outcome.first_answer = Some(FirstAnswer { server: self.record.server.take(), tls });
    }
}
