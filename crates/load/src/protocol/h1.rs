//! HTTP/1: one request at a time on a connection (or a few of them, pipelined), one answer after the other. A stream has the number of
//! the connection that carries it.

use std::iter::{Once, once};

use lastdrop_http::ResponseParser;
use lastdrop_model::Micros;
use lastdrop_model::plan::HttpOptions;

use crate::ids::{Slot, StreamId};
use crate::prepare::Request;
use crate::stream::Streams;

/// After this without `100 Continue` the body is sent all the same (curl's patience).
pub(crate) const CONTINUE_PATIENCE_US: Micros = 1_000_000;

/// An answer as it comes.
pub type Answer = ResponseParser;

/// The streams of a connection.
pub type StreamIds = Once<StreamId>;

/// The names of protocols that a TLS handshake offers (ALPN), the best first.
pub(crate) fn offered(_http: &HttpOptions) -> Vec<Vec<u8>> {
    vec![b"http/1.1".to_vec()]
}

/// The streams that an open loop may have on so many connections: whoever is needed for one has a connection of its own.
pub(crate) fn open_streams(connections: u32) -> u32 {
    connections
}

/// The most connections of a thread in an open loop, where that is not the number of its streams.
pub(crate) fn open_bound(_connections: u32) -> Option<u64> {
    None
}

/// Which connection carries which stream.
#[derive(Debug)]
pub struct Carriers;

impl Carriers {
    /// The connection that carries a stream, or will.
    #[inline]
    pub fn slot_of(&self, stream: StreamId) -> Slot {
        Slot(stream.0)
    }

    /// The connection in `_found` has room for a stream: the slot in which it carries that. One of HTTP/1 goes over to the stream's own.
    #[inline]
    pub fn seat(&mut self, stream: StreamId, _found: Slot) -> Slot {
        self.slot_of(stream)
    }
}

/// How far writing has come on a connection.
#[derive(Debug)]
pub enum Progress {
    /// There is nothing more to write: these requests are out.
    All(StreamIds),
    /// The rest waits for `100 Continue`.
    Held,
    More,
}

/// What is said on a connection now.
#[derive(Debug)]
pub struct Wire {
    answer: ResponseParser,
    /// The bytes of a changing request; empty where they are the prepared ones.
    out: Vec<u8>,
    /// Bytes of the request written, and how many may be for now.
    written: usize,
    hold_at: usize,
    /// Due times of further requests on this connection, pipelined behind the first.
    behind: Vec<Micros>,
}

impl Default for Wire {
    fn default() -> Wire {
        Wire { answer: ResponseParser::default(), out: Vec::new(), written: 0, hold_at: usize::MAX, behind: Vec::new() }
    }
}

/// Connections and streams.
impl Wire {
    /// The streams that the busy connection in a slot carries.
    #[inline]
    pub fn streams(&self, slot: Slot) -> StreamIds {
        once(StreamId(slot.0))
    }

    /// The connection is of no use any more: the streams that it carries.
    #[inline]
    pub fn broken(&mut self, slot: Slot) -> StreamIds {
        self.streams(slot)
    }

    /// May a stream begin here? `idle`: the connection is open, and nothing is in flight on it.
    #[inline]
    pub fn has_room(&self, idle: bool) -> bool {
        idle
    }

    /// Does the connection carry no other stream, so that the end of this one is the end of its work?
    #[inline]
    pub fn is_alone(&self, _stream: StreamId) -> bool {
        true
    }

    /// May the connection carry another request after the answer to this one, which is `written` whole?
    #[inline]
    pub fn lives_on(&self, stream: StreamId, written: bool) -> bool {
        written && self.answer(stream).keep_alive()
    }

    /// A socket was opened: nothing has been said on it.
    pub fn opened(&mut self) {
        self.written = 0;
    }

    /// Tunnel or TLS are ready, and `_agreed` is what ALPN came to. HTTP/1 is spoken whatever that was: nothing else is offered.
    pub fn ready(&mut self, _agreed: Option<&[u8]>) {
        self.written = 0;
    }

    /// Has the connection something to say of its own, beside requests?
    #[inline]
    pub fn has_to_say(&self) -> bool {
        false
    }

    /// All is written: is there no stream that waits for an answer?
    #[inline]
    pub fn awaits_nothing(&self) -> bool {
        false
    }

    /// Is what comes while no request is in flight to be read? In HTTP/1 it can only be the end, or a ticket of TLS.
    #[inline]
    pub fn is_heard_idle(&self) -> bool {
        false
    }

    /// A request begins.
    #[inline]
    pub fn begin(&mut self, _stream: StreamId) {
        self.written = 0;
    }

    /// A request ends without an answer.
    pub fn lost(&mut self, _stream: StreamId) {
        self.behind.clear();
    }
}

/// What comes.
impl Wire {
    /// Takes from what came on the connection what belongs to one stream; None when nothing is left.
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

    /// A proxy's answer to CONNECT, which is one of HTTP/1.
    pub fn tunnel_mut(&mut self) -> &mut ResponseParser {
        &mut self.answer
    }

    /// The server has ended the connection: the stream whose answer that completes.
    pub fn completed_by_close(&mut self, slot: Slot) -> Option<StreamId> {
        (self.behind.is_empty() && self.answer.close()).then_some(StreamId(slot.0))
    }
}

/// What goes out.
impl Wire {
    /// The bytes of a changing request follow, or, where none do, it is a prepared one.
    pub fn clear(&mut self) {
        self.out.clear();
        self.hold_at = usize::MAX;
    }

    /// Where the bytes of the request go.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Pipelined: the same request, written as often as there are due times.
    pub fn repeat(&mut self, mut write: impl FnMut(&mut Vec<u8>)) {
        for _ in 0..=self.behind.len() {
            write(&mut self.out);
        }
    }

    /// What is beyond so many bytes of the request waits for `100 Continue`.
    pub fn hold_at(&mut self, bytes: usize) {
        if bytes < self.out.len() {
            self.hold_at = bytes;
        }
    }

    /// Nothing is held any more.
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

    /// The bytes that may be written next, at most `piece`; empty where none may.
    #[inline]
    pub fn next<'b>(&'b self, slot: Slot, streams: &Streams, requests: &'b [Request], piece: usize) -> &'b [u8] {
        let bytes = self.bytes(slot, streams, requests);
        let end = bytes.len().min(self.hold_at).min(self.written.saturating_add(piece));
        bytes.get(self.written..end).unwrap_or_default()
    }

    /// So many more bytes were written.
    #[inline]
    pub fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
    }

    /// Bytes written of what is in flight.
    #[inline]
    pub fn written(&self) -> usize {
        self.written
    }

    #[inline]
    pub fn progress(&self, slot: Slot, streams: &Streams, requests: &[Request]) -> Progress {
        if self.written >= self.bytes(slot, streams, requests).len() {
            Progress::All(self.streams(slot))
        } else if self.written >= self.hold_at {
            Progress::Held
        } else {
            Progress::More
        }
    }
}

/// Pipelining.
impl Wire {
    /// Due times of requests that follow the first one on the connection.
    #[inline]
    pub fn behind(&self) -> &[Micros] {
        &self.behind
    }

    /// These follow the next one.
    pub fn put_behind(&mut self, dues: impl IntoIterator<Item = Micros>) {
        self.behind.clear();
        self.behind.extend(dues);
    }

    /// The first is answered; says when the one behind it came due.
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
        let (mut carriers, mut wire) = (Carriers, Wire::default());
        for stream in wire.streams(SLOT).chain(wire.broken(SLOT)) {
            assert_eq!((carriers.slot_of(stream), carriers.seat(stream, Slot(0))), (SLOT, SLOT));
        }
        let mut rest = &b"HTTP/1.1 200 OK"[..];
        assert_eq!(wire.piece(SLOT, &mut rest), Some((StreamId(1), &b"HTTP/1.1 200 OK"[..])));
        assert_eq!(wire.piece(SLOT, &mut rest), None);
    }

    #[test]
    fn a_body_is_held_until_it_is_released() {
        let (mut wire, streams) = (Wire::default(), Streams::new(2, Duration::ZERO));
        wire.out().extend_from_slice(b"headbody");
        wire.hold_at(4);
        assert_eq!(wire.next(SLOT, &streams, &[], 3), b"hea");
        wire.wrote(3);
        assert!(matches!(wire.progress(SLOT, &streams, &[]), Progress::More));
        assert_eq!(wire.next(SLOT, &streams, &[], 3), b"d");
        wire.wrote(1);
        assert!(matches!(wire.progress(SLOT, &streams, &[]), Progress::Held));
        assert_eq!(wire.next(SLOT, &streams, &[], 3), b"");
        wire.release();
        assert_eq!(wire.next(SLOT, &streams, &[], usize::MAX), b"body");
        wire.wrote(4);
        let Progress::All(mut out) = wire.progress(SLOT, &streams, &[]) else { panic!("something is left") };
        assert_eq!((out.next(), wire.written()), (Some(StreamId(1)), 8));
    }

    #[test]
    fn pipelined_requests_have_their_due_times_in_order() {
        let (mut wire, streams) = (Wire::default(), Streams::new(2, Duration::ZERO));
        wire.put_behind([7, 9]);
        wire.repeat(|out| out.extend_from_slice(b"GET "));
        assert_eq!(wire.next(SLOT, &streams, &[], usize::MAX), b"GET GET GET ");
        assert_eq!((wire.next_behind(), wire.behind()), (7, &[9][..]));
        wire.lost(StreamId(1));
        assert!(wire.behind().is_empty());
    }
}
