//! HTTP/1: one request at a time on a connection, or a few pipelined ones, answered in order. A stream has the number
//! of its connection.

use std::iter::{Once, once};

use lastdrop_http::ResponseParser;
use lastdrop_model::Micros;
use lastdrop_model::plan::HttpOptions;

use crate::ids::{Slot, StreamId};
use crate::prepare::Request;
use crate::stream::Streams;

/// Wait for `100 Continue` before the body is sent anyway (as long as curl waits).
pub(crate) const CONTINUE_PATIENCE_US: Micros = 1_000_000;

/// The parser of an answer.
pub type Answer = ResponseParser;

/// The streams of a connection.
pub type StreamIds = Once<StreamId>;

/// The protocols that a TLS handshake offers (ALPN), the preferred first.
pub(crate) fn offered(_http: &HttpOptions) -> Vec<Vec<u8>> {
    vec![b"http/1.1".to_vec()]
}

/// The streams that an open loop may have on this many connections: each needs its own.
pub(crate) fn open_streams(connections: u32) -> u32 {
    connections
}

/// Most connections of a thread in an open loop, if that differs from the number of its streams.
pub(crate) fn open_bound(_connections: u32) -> Option<u64> {
    None
}

/// Maps streams to connections.
#[derive(Debug)]
pub struct Carriers;

impl Carriers {
    /// The connection that carries a stream or will carry it.
    #[inline]
    pub fn slot_of(&self, stream: StreamId) -> Slot {
        Slot(stream.0)
    }

    /// Gives a stream the connection `_found`, which has room for it. Returns the slot to use; with HTTP/1 that is the
    /// stream's own.
    #[inline]
    pub fn seat(&mut self, stream: StreamId, _found: Slot) -> Slot {
        self.slot_of(stream)
    }
}

/// How far writing has come on a connection.
#[derive(Debug)]
pub enum WriteProgress {
    /// Nothing is left to write: these requests are out.
    All(StreamIds),
    /// The rest waits for `100 Continue`.
    Held,
    More,
}

/// The exchange in progress on a connection.
#[derive(Debug)]
pub struct HttpState {
    answer: ResponseParser,
    /// The bytes of a request that differs each time; empty if the prepared bytes are used.
    out: Vec<u8>,
    /// Bytes of the request written, and how many may be written for now.
    written: usize,
    hold_at: usize,
    /// Due times of further requests on this connection, pipelined behind the first.
    behind: Vec<Micros>,
}

impl Default for HttpState {
    fn default() -> HttpState {
        HttpState {
            answer: ResponseParser::default(),
            out: Vec::new(),
            written: 0,
            hold_at: usize::MAX,
            behind: Vec::new(),
        }
    }
}

/// Connections and streams.
impl HttpState {
    /// The streams that the busy connection in a slot carries.
    #[inline]
    pub fn streams(&self, slot: Slot) -> StreamIds {
        once(StreamId(slot.0))
    }

    /// Returns the streams that a connection of no further use carried.
    #[inline]
    pub fn broken(&mut self, slot: Slot) -> StreamIds {
        self.streams(slot)
    }

    /// Whether a stream may begin here. `idle`: the connection is open, and nothing is in flight on it.
    #[inline]
    pub fn has_room(&self, idle: bool) -> bool {
        idle
    }

    /// Whether the connection carries no other stream, so that the end of this one ends its work.
    #[inline]
    pub fn is_alone(&self, _stream: StreamId) -> bool {
        true
    }

    /// Whether the connection may carry another request after the answer to this one, which is fully `written`.
    #[inline]
    pub fn lives_on(&self, stream: StreamId, written: bool) -> bool {
        written && self.answer(stream).keep_alive()
    }

    /// Resets the state for a new socket.
    pub fn opened(&mut self) {
        self.written = 0;
    }

    /// Resets the state once the tunnel or TLS is ready. HTTP/1 is spoken whatever ALPN `_agreed` on: nothing else is
    /// offered.
    pub fn ready(&mut self, _agreed: Option<&[u8]>) {
        self.written = 0;
    }

    /// Whether the connection has frames of its own to send, apart from requests.
    #[inline]
    pub fn has_to_say(&self) -> bool {
        false
    }

    /// Whether no stream waits for an answer, once everything is written.
    #[inline]
    pub fn awaits_nothing(&self) -> bool {
        false
    }

    /// Whether to read data that arrives while no request is in flight. With HTTP/1 that can only be the end, or a TLS
    /// ticket.
    #[inline]
    pub fn is_heard_idle(&self) -> bool {
        false
    }

    /// Begins a request.
    #[inline]
    pub fn begin(&mut self, _stream: StreamId) {
        self.written = 0;
    }

    /// Ends a request without an answer.
    pub fn lost(&mut self, _stream: StreamId) {
        self.behind.clear();
    }
}

/// Input.
impl HttpState {
    /// Takes the next stream's part of the input; `None` when nothing is left.
    #[inline]
    pub fn piece<'d>(&mut self, slot: Slot, rest: &mut &'d [u8]) -> Option<(StreamId, &'d [u8])> {
        let piece = std::mem::take(rest);
        (!piece.is_empty()).then_some((StreamId(slot.0), piece))
    }

    #[inline]
    pub fn answer(&self, _stream: StreamId) -> &Answer {
        &self.answer
    }

    #[inline]
    pub fn answer_mut(&mut self, _stream: StreamId) -> &mut Answer {
        &mut self.answer
    }

    /// The parser of a proxy's answer to CONNECT, which is HTTP/1.
    pub fn tunnel_mut(&mut self) -> &mut ResponseParser {
        &mut self.answer
    }

    /// Handles the end of the connection. Returns the stream whose answer that completes.
    pub fn completed_by_close(&mut self, slot: Slot) -> Option<StreamId> {
        (self.behind.is_empty() && self.answer.close()).then_some(StreamId(slot.0))
    }
}

/// Output.
impl HttpState {
    /// Clears the request's bytes. Without new ones the prepared bytes are sent.
    pub fn clear(&mut self) {
        self.out.clear();
        self.hold_at = usize::MAX;
    }

    /// The buffer for the bytes of a request.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Pipelining: writes the same request once for each due time.
    pub fn repeat(&mut self, mut write: impl FnMut(&mut Vec<u8>)) {
        for _ in 0..=self.behind.len() {
            write(&mut self.out);
        }
    }

    /// Holds back everything beyond these bytes of the request until `100 Continue`.
    pub fn hold_at(&mut self, bytes: usize) {
        if bytes < self.out.len() {
            self.hold_at = bytes;
        }
    }

    /// Ends the holding back.
    pub fn release(&mut self) {
        self.hold_at = usize::MAX;
    }

    #[inline]
    fn bytes<'b>(&'b self, slot: Slot, streams: &Streams, requests: &'b [Request]) -> &'b [u8] {
        if self.out.is_empty() {
            requests[streams[StreamId(slot.0)].request as usize].wire.as_deref().unwrap_or_default()
        } else {
            &self.out
        }
    }

    /// Returns the bytes to write next, at most `piece`; empty if none may be written.
    #[inline]
    pub fn next<'b>(&'b self, slot: Slot, streams: &Streams, requests: &'b [Request], piece: usize) -> &'b [u8] {
        let bytes = self.bytes(slot, streams, requests);
        let end = bytes.len().min(self.hold_at).min(self.written.saturating_add(piece));
        bytes.get(self.written..end).unwrap_or_default()
    }

    /// Records that this many more bytes were written.
    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
    }

    /// Bytes written of the request in flight.
    #[inline]
    pub fn written(&self) -> usize {
        self.written
    }

    #[inline]
    pub fn progress(&self, slot: Slot, streams: &Streams, requests: &[Request]) -> WriteProgress {
        if self.written >= self.bytes(slot, streams, requests).len() {
            WriteProgress::All(self.streams(slot))
        } else if self.written >= self.hold_at {
            WriteProgress::Held
        } else {
            WriteProgress::More
        }
    }
}

/// Pipelining.
impl HttpState {
    /// Due times of requests pipelined behind the first one.
    #[inline]
    pub fn behind(&self) -> &[Micros] {
        &self.behind
    }

    /// Sets the due times of the requests that follow the next one.
    pub fn put_behind(&mut self, dues: impl IntoIterator<Item = Micros>) {
        self.behind.clear();
        self.behind.extend(dues);
    }

    /// Ends the answer to the first request. Returns the due time of the next one.
    pub fn next_behind(&mut self) -> Micros {
        self.answer.start(false);
        self.behind.remove(0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SLOT: Slot = Slot(1);

    #[test]
    fn a_stream_has_the_number_of_its_connection_wherever_there_was_room() {
        let (mut carriers, mut wire) = (Carriers, HttpState::default());
        for stream in wire.streams(SLOT).chain(wire.broken(SLOT)) {
            assert_eq!((carriers.slot_of(stream), carriers.seat(stream, Slot(0))), (SLOT, SLOT));
        }
        let mut rest = &b"HTTP/1.1 200 OK"[..];
        assert_eq!(wire.piece(SLOT, &mut rest), Some((StreamId(1), &b"HTTP/1.1 200 OK"[..])));
        assert_eq!(wire.piece(SLOT, &mut rest), None);
    }

    #[test]
    fn a_body_is_held_until_it_is_released() {
        let (mut wire, streams) = (HttpState::default(), Streams::new(2, Duration::ZERO));
        wire.out().extend_from_slice(b"headbody");
        wire.hold_at(4);
        assert_eq!(wire.next(SLOT, &streams, &[], 3), b"hea");
        wire.wrote(3);
        assert!(matches!(wire.progress(SLOT, &streams, &[]), WriteProgress::More));
        assert_eq!(wire.next(SLOT, &streams, &[], 3), b"d");
        wire.wrote(1);
        assert!(matches!(wire.progress(SLOT, &streams, &[]), WriteProgress::Held));
        assert_eq!(wire.next(SLOT, &streams, &[], 3), b"");
        wire.release();
        assert_eq!(wire.next(SLOT, &streams, &[], usize::MAX), b"body");
        wire.wrote(4);
        let WriteProgress::All(mut out) = wire.progress(SLOT, &streams, &[]) else { panic!("something is left") };
        assert_eq!((out.next(), wire.written()), (Some(StreamId(1)), 8));
    }

    #[test]
    fn pipelined_requests_have_their_due_times_in_order() {
        let (mut wire, streams) = (HttpState::default(), Streams::new(2, Duration::ZERO));
        wire.put_behind([7, 9]);
        wire.repeat(|out| out.extend_from_slice(b"GET "));
        assert_eq!(wire.next(SLOT, &streams, &[], usize::MAX), b"GET GET GET ");
        assert_eq!((wire.next_behind(), wire.behind()), (7, &[9][..]));
        wire.lost(StreamId(1));
        assert!(wire.behind().is_empty());
    }
}
