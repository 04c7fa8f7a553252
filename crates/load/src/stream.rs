//! The life of a request: due, sent, first byte, done, or timed out. Nothing here knows a socket.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use lastdrop_http::ServerTime;
use lastdrop_model::Micros;

use crate::ids::StreamId;
use crate::inspect::Capture;
use crate::logged::LoggedAnswer;
use crate::prepare::Detour;

const NONE: u32 = u32::MAX;

/// What a request in flight carries beyond the plan: a redirect, a login, a page resource, a logged answer.
#[derive(Debug, Default)]
pub struct FollowUp {
    pub detour: Option<Detour>,
    /// Path and query as sent.
    pub target: Vec<u8>,
    /// Redirects that led here.
    pub hops: u32,
    /// This request answers an authentication challenge.
    pub challenged: bool,
    /// A resource that a page embeds, not its HTML.
    pub embedded: bool,
    /// The answer that the log has for this request.
    pub logged: Option<LoggedAnswer>,
}

/// Timestamps of a request; 0 means "not reached".
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestTimes {
    pub due: Micros,
    pub sent: Micros,
    /// When the connection was ready to carry the request.
    pub ready: Micros,
    /// When the whole request was written.
    pub written: Micros,
    pub first_byte: Micros,
}

/// A request in flight.
#[derive(Debug, Default)]
pub struct Stream {
    /// Phase in which it came due.
    pub phase: u16,
    pub class: u16,
    /// Index of the request of the plan.
    pub request: u32,
    pub times: RequestTimes,
    /// Bytes of its answer so far.
    pub received: u64,
    /// The bytes of the answer, if they are to be kept.
    pub raw: Vec<u8>,
    pub capture: Option<Box<Capture>>,
    /// The capture serves only to check whether the answer looks like a success.
    pub looked_at: bool,
    /// What the answer reports about the server's own time, if the plan asks for it.
    pub said: Option<Box<ServerTime>>,
    /// HTTP/2: the server refused it once, and it is sent again.
    pub again: bool,
    /// The number in the request id, if the request carries one.
    pub id: u64,
    pub follow_up: Option<Box<FollowUp>>,
}

/// The requests in flight, in the order in which they were sent. All have the same timeout, so the oldest times out
/// first. A list through their numbers needs no memory and no comparison per request. The links are stored apart from
/// the streams: neighbours in the list are far apart in memory, and touching them would cost two cache misses per
/// request.
#[derive(Debug)]
struct InFlightList {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
    pub count: u32,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

impl InFlightList {
    pub fn new(streams: usize) -> InFlightList {
        InFlightList { links: vec![Link { older: NONE, newer: NONE }; streams], oldest: NONE, newest: NONE, count: 0 }
    }

    pub fn oldest(&self) -> Option<StreamId> {
        (self.oldest != NONE).then_some(StreamId(self.oldest))
    }

    pub fn push(&mut self, stream: StreamId) {
        let older = self.newest;
        self.links[stream.index()] = Link { older, newer: NONE };
        match older {
            NONE => self.oldest = stream.0,
            o => self.links[o as usize].newer = stream.0,
        }
        self.newest = stream.0;
        self.count += 1;
    }

    pub fn remove(&mut self, stream: StreamId) {
        let Link { older, newer } = self.links[stream.index()];
        match older {
            NONE => self.oldest = newer,
            o => self.links[o as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            n => self.links[n as usize].older = older,
        }
        self.count -= 1;
    }
}

/// Tracks up to which moment the loop has read everything that arrived. A request times out only if its timeout lies
/// before it.
#[derive(Debug, Default)]
struct ReadSweep {
    began: Micros,
    /// Connections that were open when the sweep began. Each may have had an event, even if it is closed by now.
    connections: u64,
    events: u64,
}

impl ReadSweep {
    /// Records that the loop handled `events` events of the poll at `now`, with that many connections open. `drained`
    /// says that the poll returned all there were. Returns the moment up to which everything has been read, if it
    /// advanced.
    fn looked(&mut self, events: usize, drained: bool, now: Micros, connections: u64) -> Option<Micros> {
        self.events += events as u64;
        // The kernel hands out events in turn, one per connection. After as many events as there were connections,
        // nothing from before the sweep is left, however much has arrived since.
        if !drained && self.events < self.connections {
            return None;
        }
        let before = std::mem::replace(self, ReadSweep { began: now, connections, events: 0 });
        Some(if drained { now } else { before.began })
    }
}

/// All requests that may be in flight at once, with their common timeout.
#[derive(Debug)]
pub(crate) struct Streams {
    all: Vec<Stream>,
    in_flight: InFlightList,
    timeout_us: Micros,
    sweep: ReadSweep,
}

impl Index<StreamId> for Streams {
    type Output = Stream;

    #[inline]
    fn index(&self, stream: StreamId) -> &Stream {
        &self.all[stream.index()]
    }
}

impl IndexMut<StreamId> for Streams {
    #[inline]
    fn index_mut(&mut self, stream: StreamId) -> &mut Stream {
        &mut self.all[stream.index()]
    }
}

impl Streams {
    pub fn new(most: usize, timeout: Duration) -> Streams {
        Streams {
            all: (0..most).map(|_| Stream::default()).collect(),
            in_flight: InFlightList::new(most),
            timeout_us: timeout.as_micros() as Micros,
            sweep: ReadSweep::default(),
        }
    }

    /// How many are in flight.
    #[inline]
    pub fn count(&self) -> u32 {
        self.in_flight.count
    }

    /// Adds a request that has just been sent.
    #[inline]
    pub fn push(&mut self, stream: StreamId) {
        self.in_flight.push(stream);
    }

    /// Removes a request that has ended.
    #[inline]
    pub fn remove(&mut self, stream: StreamId) {
        self.in_flight.remove(stream);
    }

    /// When the oldest request times out.
    #[inline]
    pub fn next_timeout(&self) -> Option<Micros> {
        let oldest = self.in_flight.oldest()?;
        Some(self[oldest].times.sent.saturating_add(self.timeout_us))
    }

    /// Returns a request that had timed out at `seen`.
    pub fn expired(&self, seen: Micros) -> Option<StreamId> {
        self.in_flight.oldest().filter(|_| self.next_timeout().is_some_and(|at| at <= seen))
    }

    /// Whether no request has ended since this one had used up half of its timeout.
    pub fn is_silent_since(&self, stream: StreamId, last_end: Micros) -> bool {
        last_end <= self[stream].times.sent.saturating_add(self.timeout_us / 2)
    }

    /// Records one poll (see `ReadSweep::looked`). Returns the moment up to which everything has been read, if it advanced.
    #[inline]
    pub fn looked(&mut self, events: usize, drained: bool, now: Micros, connections: u64) -> Option<Micros> {
        self.sweep.looked(events, drained, now, connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_leave_from_anywhere_and_the_oldest_stays_first() {
        let mut list = InFlightList::new(4);
        for stream in [2, 0, 3, 1] {
            list.push(StreamId(stream));
        }
        list.remove(StreamId(0));
        assert_eq!(list.oldest(), Some(StreamId(2)));
        list.remove(StreamId(2));
        assert_eq!(list.oldest(), Some(StreamId(3)));
        list.push(StreamId(0));
        list.remove(StreamId(1));
        list.remove(StreamId(3));
        assert_eq!(list.oldest(), Some(StreamId(0)));
        list.remove(StreamId(0));
        assert_eq!((list.oldest(), list.count), (None, 0));
    }

    #[test]
    fn the_oldest_request_expires_first_and_not_before_its_time() {
        let mut streams = Streams::new(3, Duration::from_micros(100));
        for (stream, sent) in [(1, 10), (0, 20), (2, 20)] {
            streams[StreamId(stream)].times.sent = sent;
            streams.push(StreamId(stream));
        }
        assert_eq!((streams.next_timeout(), streams.expired(109)), (Some(110), None));
        assert_eq!(streams.expired(110), Some(StreamId(1)));
        streams.remove(StreamId(1));
        assert_eq!((streams.next_timeout(), streams.expired(200), streams.count()), (Some(120), Some(StreamId(0)), 2));
        streams.remove(StreamId(0));
        streams.remove(StreamId(2));
        assert_eq!((streams.next_timeout(), streams.expired(u64::MAX)), (None, None));
    }

    #[test]
    fn a_server_is_silent_if_it_has_ended_nothing_since_the_middle_of_a_timeout() {
        let mut streams = Streams::new(1, Duration::from_micros(100));
        let stream = StreamId(0);
        streams[stream].times.sent = 1000;
        assert!(streams.is_silent_since(stream, 1050) && !streams.is_silent_since(stream, 1051));
    }

    #[test]
    fn a_look_that_was_not_the_last_has_seen_all_only_after_as_many_events_as_there_are_connections() {
        let mut sweep = ReadSweep::default();
        assert_eq!(sweep.looked(3, true, 10, 100), Some(10));
        assert_eq!(sweep.looked(60, false, 20, 90), None);
        // Everything pending at the last full poll has been read by now, whatever arrived since and however many
        // connections closed.
        assert_eq!(sweep.looked(60, false, 30, 80), Some(10));
        assert_eq!(sweep.looked(60, false, 40, 10), None);
        assert_eq!(sweep.looked(20, false, 50, 10), Some(30));
        assert_eq!(sweep.looked(1, true, 60, 100), Some(60));
    }
}
