//! Records exchanges within limits, and reports on them meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::class;
use lastdrop_traffic::recording::{RecordedExchange, RequestBody};

use crate::bounds;

/// An event of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A step of the user.
    Recorded { number: usize, what: String, status: Option<u16>, pause: Duration },
    /// Something was not passed on, or went wrong; each kind is reported once.
    Trouble(String),
}

/// Receives the exchanges of all connections.
#[derive(Debug)]
pub struct Recorder {
    kept: Mutex<RecorderState>,
    held_bytes: AtomicUsize,
    in_flight: AtomicUsize,
    notices: SyncSender<Notice>,
}

#[derive(Debug, Default)]
struct RecorderState {
    exchanges: Vec<RecordedExchange>,
    steps: usize,
    last_end_us: Option<i64>,
    /// Each problem, and how often it occurred.
    troubles: BTreeMap<String, usize>,
}

/// Most kinds of problems that are kept apart: a hostile page can make up host names.
const MOST_TROUBLES: usize = 50;

impl Recorder {
    /// Creates a recorder, with the receiver of its notices.
    #[must_use]
    pub fn new() -> (Recorder, Receiver<Notice>) {
        let (notices, told) = sync_channel(bounds::NOTICES);
        let (kept, held_bytes, in_flight) = (Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        (Recorder { kept, held_bytes, in_flight, notices }, told)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, RecorderState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that something was not passed on, or went wrong.
    pub fn trouble(&self, what: impl Into<String>) {
        let mut kept = self.kept();
        let mut what: String = what.into();
        if !kept.troubles.contains_key(&what) && kept.troubles.len() >= MOST_TROUBLES {
            what = "and more that is not told apart".into();
        }
        let times = kept.troubles.entry(what.clone()).or_default();
        *times += 1;
        if *times == 1 {
            // Nobody reads so fast that a thousand unread notices matter.
            let _ = self.notices.try_send(Notice::Trouble(what));
        }
    }

    /// Reserves memory for data in transit; `None` if there is none left.
    pub(crate) fn hold(&self, bytes: usize) -> Option<MemoryReservation<'_>> {
        let mut held = MemoryReservation { recorder: self, bytes: 0 };
        held.grow(bytes).then_some(held)
    }

    pub(crate) fn begin(&self) -> InFlightGuard<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self)
    }

    /// Keeps a finished exchange.
    pub(crate) fn keep(&self, mut exchange: RecordedExchange) {
        let bytes = size(&exchange);
        if let Some(held) = self.hold(bytes) {
            // The memory of kept exchanges is never released.
            std::mem::forget(held);
        } else {
            exchange.answer.iter_mut().for_each(|a| a.text.clear());
            self.trouble("the memory for texts of answers is used up: no values are found in those that come");
        }
        let mut kept = self.kept();
        if kept.exchanges.len() >= bounds::EXCHANGES {
            drop(kept);
            self.trouble(format!("more than {} exchanges: what came after them is not recorded", bounds::EXCHANGES));
            return;
        }
        if !exchange.is_part {
            kept.steps += 1;
            let pause = kept.last_end_us.map_or(0, |end| exchange.begin_us.saturating_sub(end).max(0));
            let _ = self.notices.try_send(Notice::Recorded {
                number: kept.steps,
                what: class::pattern(&exchange.method, &exchange.url.path),
                status: exchange.answer.as_ref().map(|a| a.status),
                pause: Duration::from_micros(pause.unsigned_abs()),
            });
        }
        kept.last_end_us = Some(kept.last_end_us.unwrap_or(i64::MIN).max(exchange.end_us));
        kept.exchanges.push(exchange);
    }

    /// Returns the exchanges in the order in which they began, and how often each problem occurred.
    #[must_use]
    pub fn finish(&self) -> (Vec<RecordedExchange>, Vec<(String, usize)>) {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        if in_flight > 0 {
            self.trouble(format!("{in_flight} requests had no whole answer yet at the end, and are not recorded"));
        }
        let mut kept = self.kept();
        let mut exchanges = std::mem::take(&mut kept.exchanges);
        exchanges.sort_by_key(|e| e.begin_us);
        (exchanges, std::mem::take(&mut kept.troubles).into_iter().collect())
    }
}

/// A request without a complete answer yet.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'a>(&'a Recorder);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reserved memory.
#[derive(Debug)]
pub(crate) struct MemoryReservation<'a> {
    recorder: &'a Recorder,
    bytes: usize,
}

impl MemoryReservation<'_> {
    /// Returns false if there is no more memory.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let before = self.recorder.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= bounds::HELD_BYTES;
        if fits {
            self.bytes += bytes;
        } else {
            self.recorder.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for MemoryReservation<'_> {
    fn drop(&mut self) {
        self.recorder.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn size(exchange: &RecordedExchange) -> usize {
    let pairs = |all: &[(String, String)]| all.iter().map(|(n, v)| n.len() + v.len() + 48).sum::<usize>();
    let body = match &exchange.body {
        RequestBody::Nothing | RequestBody::Lost => 0,
        RequestBody::Text(text) | RequestBody::File(text) => text.len(),
        RequestBody::Form(fields) | RequestBody::Multipart(fields) => pairs(fields),
    };
    let answer = exchange.answer.as_ref().map_or(0, |a| a.text.len() + pairs(&a.headers));
    exchange.url.path.len() + pairs(&exchange.headers) + body + answer + 300
}

/// Microseconds since 1970, advancing monotonically from the first call: setting the clock during a recording creates
/// no pause.
pub(crate) fn now_us() -> i64 {
    static BEGIN: LazyLock<(SystemTime, Instant)> = LazyLock::new(|| (SystemTime::now(), Instant::now()));
    let (begin, since) = *BEGIN;
    (begin + since.elapsed()).duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_told_once_and_counted() {
        let (recorder, told) = Recorder::new();
        (0..3).for_each(|_| recorder.trouble("x"));
        (0..100).for_each(|n| recorder.trouble(format!("host {n}")));
        assert_eq!(told.try_recv(), Ok(Notice::Trouble("x".into())));
        let (_, troubles) = recorder.finish();
        assert!(troubles.contains(&("x".to_string(), 3)) && troubles.len() == MOST_TROUBLES + 1);
    }

    #[test]
    fn memory_that_is_in_use_has_a_bound() {
        let (recorder, _told) = Recorder::new();
        let mut held = recorder.hold(bounds::HELD_BYTES - 10).expect("there is some");
        assert!(!held.grow(11) && held.grow(10) && recorder.hold(1).is_none());
        drop(held);
        assert!(recorder.hold(bounds::HELD_BYTES).is_some());
    }
}
