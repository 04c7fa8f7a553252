//! What a thread tells of its requests: slices a second, errors by their words, what the first answer says of its server.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

use lastdrop_http::Sink;
use lastdrop_model::{Counts, Exchange, Kind, Micros, Slice, Wish};

use crate::server_time::ClockOffset;
use crate::wiring::Outcome;

/// Different error texts that are kept.
const MOST_ERRORS: usize = 64;

/// A phase that has begun and of which not every request has ended.
#[derive(Debug)]
pub(crate) struct Live {
    pub slice: Box<Slice>,
    pub start: Micros,
    pub next_flush: Micros,
    /// Requests of it in flight.
    pub in_flight: u64,
    /// When nothing more came due, once that is known.
    pub duration: Option<Micros>,
    pub peak: u64,
}

/// What is known so far.
#[derive(Debug)]
pub(crate) struct Record {
    /// Each phase with requests in flight, or that the clock is in.
    pub live: Vec<Option<Live>>,
    pub outcome: Outcome,
    /// Ends at which the plan gives up, so far.
    pub ends_counted: u64,
    /// When a request ended last.
    pub last_end: Micros,
    /// Connections that could not be made.
    pub refused: u64,
    /// Each request, where somebody wants them.
    pub exchanges: Option<Vec<Exchange>>,
    /// Why the connection failed that is about to be noted.
    pub connect_error: Option<Box<str>>,
    /// The `Server` field of the first answer, until that is complete.
    pub server: Option<String>,
    pub clock_offset: ClockOffset,
}

impl Record {
    pub fn new(wish: Wish, phases: usize) -> Record {
        Record {
            live: (0..phases).map(|_| None).collect(),
            outcome: Outcome::default(),
            ends_counted: 0,
            last_end: 0,
            refused: 0,
            exchanges: (wish != Wish::Nothing).then(Vec::new),
            connect_error: None,
            server: None,
            clock_offset: ClockOffset::default(),
        }
    }

    /// The slice of a phase that has requests in flight, or that the clock is in.
    #[inline]
    pub fn slice(&mut self, phase: u16) -> &mut Slice {
        &mut self.live(phase).slice
    }

    #[inline]
    pub fn live(&mut self, phase: u16) -> &mut Live {
        self.live[phase as usize].as_mut().expect("a phase is live until its last request has ended")
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

    pub fn latency(&mut self, phase: u16, kind: Kind, us: Micros) {
        self.slice(phase).record(kind, us);
    }
}

/// Notes the `Server` field.
pub(crate) struct ServerField<'a>(pub &'a mut Option<String>);

impl Sink for ServerField<'_> {
    fn field(&mut self, name: &str, value: &[u8]) {
        if name.eq_ignore_ascii_case("server") {
            self.0.get_or_insert_with(|| lastdrop_model::printable::lossless(value));
        }
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
