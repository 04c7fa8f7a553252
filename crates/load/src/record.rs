//! What a thread records of its requests: one slice per second, errors by text, facts from the first answer.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use lastdrop_http::Sink;
use lastdrop_model::{CaptureLevel, ClassAnswer, Counts, Exchange, Failure, Kind, Micros, Slice, TracedRequest, Url};

use crate::answer_check::{CheckSchedule, CheckedAnswer};
use crate::request_ids::RequestIds;
use crate::server_time::ClockOffset;
use crate::stream::Stream;
use crate::wiring::Outcome;

/// Most different error texts that are kept.
const MOST_ERRORS: usize = 64;

/// Characters of a URL shown in an error.
const LONGEST_URL_SHOWN: usize = 300;

/// A phase that has begun and has requests that have not ended.
#[derive(Debug)]
pub(crate) struct LivePhase {
    pub slice: Box<Slice>,
    pub start: Micros,
    pub next_flush: Micros,
    /// Its requests in flight.
    pub in_flight: u64,
    /// When arrivals stopped, once that is known.
    pub duration: Option<Micros>,
    pub peak: u64,
}

/// Everything recorded so far.
#[derive(Debug)]
pub(crate) struct Record {
    /// Each phase with requests in flight, and the current one.
    pub live: Vec<Option<LivePhase>>,
    pub outcome: Outcome,
    /// Ends counted so far towards the number at which the plan gives up.
    pub ends_counted: u64,
    /// When the last request ended.
    pub last_end: Micros,
    /// Failed connection attempts.
    pub refused: u64,
    /// Each request, if the caller wants them.
    pub exchanges: Option<Vec<Exchange>>,
    /// Why the connection failed that is about to be recorded.
    pub connect_error: Option<Box<str>>,
    /// The `Server` field of the first answer, until that answer is complete.
    pub server: Option<String>,
    pub clock_offset: ClockOffset,
    /// Ids of requests that must be found in the server's log.
    pub ids: Option<RequestIds>,
    pub looks: CheckSchedule,
}

impl Record {
    pub fn new(wish: CaptureLevel, phases: usize) -> Record {
        Record {
            live: (0..phases).map(|_| None).collect(),
            outcome: Outcome::default(),
            ends_counted: 0,
            last_end: 0,
            refused: 0,
            exchanges: (wish != CaptureLevel::Nothing).then(Vec::new),
            connect_error: None,
            server: None,
            clock_offset: ClockOffset::default(),
            ids: None,
            looks: CheckSchedule::default(),
        }
    }

    /// The slice of the current phase, or of one with requests in flight.
    #[inline]
    pub fn slice(&mut self, phase: u16) -> &mut Slice {
        &mut self.live(phase).slice
    }

    #[inline]
    pub fn live(&mut self, phase: u16) -> &mut LivePhase {
        self.live[phase as usize].as_mut().expect("a phase is live until its last request has ended")
    }

    /// Records that a request of a class was sent `waited` after it was due. `blocked` is how much of that it waited
    /// for a free user or connection, if that is measured.
    #[inline]
    pub fn sent(&mut self, phase: u16, class: u16, waited: Micros, blocked: Option<Micros>) {
        let live = self.live(phase);
        if let Some(blocked) = blocked {
            live.slice.record(Kind::Blocked, blocked);
        }
        live.slice.record(Kind::Lateness, waited - blocked.unwrap_or(0).min(waited));
        live.slice.count_sent(class);
        live.in_flight += 1;
    }

    /// Records an answer.
    #[inline]
    pub fn answered(&mut self, s: &Stream, status: u16, now: Micros) {
        let trace = self.ids.as_ref().and_then(|ids| ids.trace(s.id));
        let live = self.live(s.phase);
        live.in_flight -= 1;
        let slice = &mut live.slice;
        slice.count(s.class, |c| c.answered += 1);
        slice.status[usize::from(status).min(999)] += 1;
        let response = now.saturating_sub(s.times.due);
        let service = now.saturating_sub(s.times.sent);
        let first = s.times.first_byte.saturating_sub(s.times.sent);
        slice.record(Kind::Response, response);
        slice.record(Kind::Service, service);
        slice.record(Kind::FirstByte, first);
        slice.record_class(ClassAnswer::new(s.class, status, response, service, first));
        if let Some(trace) = trace {
            slice.note_traced(TracedRequest {
                trace,
                class: s.class,
                status,
                second: slice.second,
                response_us: response,
            });
        }
    }

    /// Records a failure.
    pub fn failed(&mut self, phase: u16, class: u16, failure: Failure) {
        let live = self.live(phase);
        live.in_flight -= 1;
        live.slice.count(class, |c| c.failed.count(failure));
    }

    /// Records a timeout of the request with this number in its ids, `waited` after it was due.
    pub fn timed_out(&mut self, phase: u16, class: u16, number: u64, waited: Micros) {
        let trace = self.ids.as_ref().and_then(|ids| ids.trace(number));
        let live = self.live(phase);
        live.in_flight -= 1;
        let slice = &mut live.slice;
        slice.record(Kind::Response, waited);
        slice.count(class, |c| c.timed_out += 1);
        slice.record_class(ClassAnswer::new(class, 0, waited, 0, 0));
        if let Some(trace) = trace {
            slice.note_traced(TracedRequest { trace, class, status: 0, second: slice.second, response_us: waited });
        }
    }

    pub fn note_connect_error(&mut self, what: &str) {
        if self.exchanges.is_some() {
            self.connect_error = Some(what.into());
        }
        count(&mut self.outcome.connect_errors, what);
    }

    pub fn note_protocol_error(&mut self, what: &str) {
        count(&mut self.outcome.protocol_errors, what);
    }

    /// Records that a page or a resource of it got no good answer.
    pub fn note_page_error(&mut self, why: &str, url: &Url) {
        let shown: String = url.to_string().chars().take(LONGEST_URL_SHOWN).collect();
        count(&mut self.outcome.page_errors, &format!("{why} {shown}"));
    }

    /// Records an answer that is checked for signs of failure because nothing is expected of it.
    pub fn note_look(&mut self, looked: &CheckedAnswer<'_>) {
        let name = looked.name();
        if let Some(doubt) = looked.doubt() {
            count(&mut self.outcome.doubts, &format!("{name} {doubt}"));
        }
        count(&mut self.outcome.looked_at, &name);
    }

    pub fn latency(&mut self, phase: u16, kind: Kind, us: Micros) {
        self.slice(phase).record(kind, us);
    }
}

/// Notes the `Server` field, and passes everything on.
pub(crate) struct ServerField<'a> {
    pub server: &'a mut Option<String>,
    pub next: &'a mut dyn Sink,
}

impl Sink for ServerField<'_> {
    fn field(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("server") {
            self.server.get_or_insert_with(|| lastdrop_model::printable::lossless(value));
        }
        self.next.field(name, value);
    }

    fn body(&mut self, bytes: &[u8]) {
        self.next.body(bytes);
    }
}

fn count(errors: &mut BTreeMap<String, u64>, what: &str) {
    if let Some(n) = errors.get_mut(what) {
        *n += 1;
    } else {
        let key = if errors.len() < MOST_ERRORS { what } else { "other errors" };
        *errors.entry(key.to_string()).or_insert(0) += 1;
    }
}

pub(crate) fn take_slice(recycled: &Receiver<Box<Slice>>, phase: u16, second: u32, classes: usize) -> Box<Slice> {
    let mut slice = match recycled.try_recv() {
        Ok(mut slice) => {
            slice.phase = phase;
            slice.second = second;
            slice
        }
        Err(_) => Box::new(Slice::new(phase, second)),
    };
    slice.by_class.counts.resize(classes, Counts::default());
    slice
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::RequestTimes;

    fn record() -> Record {
        let mut record = Record::new(CaptureLevel::Nothing, 2);
        for (phase, live) in record.live.iter_mut().enumerate() {
            let slice = Box::new(Slice::new(phase as u16, 0));
            *live = Some(LivePhase { slice, start: 0, next_flush: 0, in_flight: 0, duration: None, peak: 0 });
        }
        record
    }

    #[test]
    fn each_end_is_counted_once_in_the_phase_in_which_the_request_came_due() {
        let mut record = record();
        for _ in 0..3 {
            record.sent(1, 0, 40, None);
        }
        let times = RequestTimes { due: 100, sent: 140, first_byte: 200, ..RequestTimes::default() };
        record.answered(&Stream { phase: 1, times, ..Stream::default() }, 404, 250);
        record.failed(1, 0, Failure::Reset);
        record.timed_out(1, 0, 0, 5_000);
        let live = record.live(1);
        let c = live.slice.counts;
        assert_eq!((c.sent, c.answered, c.failed.reset, c.timed_out, live.in_flight), (3, 1, 1, 1, 0));
        assert_eq!((c.censored(), live.slice.status[404]), (0, 1));
        let longest = |kind: Kind| live.slice.latencies[kind as usize].max();
        assert_eq!((longest(Kind::Service), longest(Kind::FirstByte)), (110, 60));
        assert_eq!(live.slice.latencies[Kind::Response as usize].min(), 150);
        assert_eq!(record.slice(0).counts, Counts::default());
    }

    #[test]
    fn a_wait_for_a_connection_is_blocked_and_not_late() {
        let mut record = record();
        record.sent(0, 0, 70, Some(50));
        record.sent(0, 0, 10, Some(50));
        record.sent(0, 0, 3, None);
        let slice = &record.live(0).slice;
        let (late, blocked) = (&slice.latencies[Kind::Lateness as usize], &slice.latencies[Kind::Blocked as usize]);
        assert_eq!((late.count(), late.max(), late.min()), (3, 20, 0));
        assert_eq!((blocked.count(), blocked.max()), (2, 50));
    }

    #[test]
    fn errors_beyond_the_first_different_ones_are_told_together() {
        let mut record = record();
        (0..100).for_each(|i| record.note_connect_error(&format!("error {i}")));
        let errors = &record.outcome.connect_errors;
        assert_eq!((errors.len(), errors["other errors"]), (MOST_ERRORS + 1, 100 - MOST_ERRORS as u64));
    }
}
