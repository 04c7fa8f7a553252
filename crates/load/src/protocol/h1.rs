//! HTTP/1: one request at a time on a connection, or a few pipelined ones, answered in order. A stream has the number
//! of its connection.

use lastdrop_http::ResponseParser;
use lastdrop_model::Micros;

use crate::ids::{Slot, StreamId};
use crate::prepare::Request;
use crate::stream::Streams;

use super::{StreamIds, WriteProgress};

/// Wait for `100 Continue` before the body is sent anyway (as long as curl waits).
pub(crate) const CONTINUE_PATIENCE_US: Micros = 1_000_000;

/// The exchange in progress on a connection.
#[derive(Debug)]
pub struct Wire {
    answer: ResponseParser,
    /// The bytes of a request that differs each time; empty if the prepared bytes are used.
    out: Vec<u8>,
    /// Bytes of the request written, and how many may be written for now.
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
        StreamIds::One(Some(StreamId(slot.0)))
    }

    /// Writes the next request from its beginning: on a new socket, after the handshakes, on a connection that is kept.
    #[inline]
    pub fn restart(&mut self) {
        self.written = 0;
    }

    /// Whether the connection may carry another request after the answer to this one, which is fully `written`.
    #[inline]
    pub fn lives_on(&self, written: bool) -> bool {
        written && self.answer.keep_alive()
    }

    /// Ends a request without an answer.
    pub fn lost(&mut self) {
        self.behind.clear();
    }
}

/// Input.
impl Wire {
    /// The parser of the answer, or of a proxy's answer to CONNECT.
    #[inline]
    pub fn answer(&self) -> &ResponseParser {
        &self.answer
    }

    #[inline]
    pub fn answer_mut(&mut self) -> &mut ResponseParser {
        &mut self.answer
    }

    /// Handles the end of the connection. Returns the stream whose answer that completes.
    pub fn completed_by_close(&mut self, slot: Slot) -> Option<StreamId> {
        (self.behind.is_empty() && self.answer.close()).then_some(StreamId(slot.0))
    }
}

/// Output.
impl Wire {
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
impl Wire {
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

    use super::super::Carriers;
    use super::*;

    const SLOT: Slot = Slot(1);

    #[test]
    fn a_stream_has_the_number_of_its_connection_wherever_there_was_room() {
        let (mut carriers, wire) = (Carriers::Same, Wire::default());
        for stream in wire.streams(SLOT) {
            assert_eq!((carriers.slot_of(stream), carriers.seat(stream, Slot(0))), (SLOT, SLOT));
        }
    }

    #[test]
    fn a_body_is_held_until_it_is_released() {
        let (mut wire, streams) = (Wire::default(), Streams::new(2, Duration::ZERO));
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
        let (mut wire, streams) = (Wire::default(), Streams::new(2, Duration::ZERO));
        wire.put_behind([7, 9]);
        wire.repeat(|out| out.extend_from_slice(b"GET "));
        assert_eq!(wire.next(SLOT, &streams, &[], usize::MAX), b"GET GET GET ");
        assert_eq!((wire.next_behind(), wire.behind()), (7, &[9][..]));
        wire.lost();
        assert!(wire.behind().is_empty());
    }
}
