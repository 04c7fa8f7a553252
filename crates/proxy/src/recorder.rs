//! What is written down, within bounds, and what is told of it while it happens.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lastdrop_model::class;
use lastdrop_traffic::recording::{Exchange, Sent};

use crate::bounds;

/// What happened just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Something that the user did.
    Recorded { number: usize, what: String, status: Option<u16>, pause: Duration },
    /// Something that was not passed on, or went wrong: told once a kind.
    Trouble(String),
}

/// What all connections write to.
#[derive(Debug)]
pub struct Recorder {
    kept: Mutex<Kept>,
    held_bytes: AtomicUsize,
    in_flight: AtomicUsize,
    notices: SyncSender<Notice>,
}

#[derive(Debug, Default)]
struct Kept {
    exchanges: Vec<Exchange>,
    steps: usize,
    last_end_us: Option<i64>,
    /// Each trouble, and how often it came about.
    troubles: BTreeMap<String, usize>,
}

/// Kinds of trouble that are told apart: a hostile page makes up names of hosts.
const MOST_TROUBLES: usize = 50;

impl Recorder {
    /// With where it tells what happens.
    #[must_use]
    pub fn new() -> (Recorder, Receiver<Notice>) {
        let (notices, told) = sync_channel(bounds::NOTICES);
        let (kept, held_bytes, in_flight) = (Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        (Recorder { kept, held_bytes, in_flight, notices }, told)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was not passed on, or went wrong.
    pub fn trouble(&self, what: impl Into<String>) {
        let mut kept = self.kept();
        let mut what: String = what.into();
        if !kept.troubles.contains_key(&what) && kept.troubles.len() >= MOST_TROUBLES {
            what = "and more that is not told apart".into();
        }
        let times = kept.troubles.entry(what.clone()).or_default();
        *times += 1;
        if *times == 1 {
            // Nobody reads so fast that a thousand lines wait for him.
            let _ = self.notices.try_send(Notice::Trouble(what));
        }
    }

    /// A part of the memory for what is on its way; None while there is none.
    pub(crate) fn hold(&self, bytes: usize) -> Option<Held<'_>> {
        let mut held = Held { recorder: self, bytes: 0 };
        held.grow(bytes).then_some(held)
    }

    pub(crate) fn begin(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self)
    }

    /// Keeps an exchange that is over.
    pub(crate) fn keep(&self, mut exchange: Exchange) {
        let bytes = size(&exchange);
        if let Some(held) = self.hold(bytes) {
            // What is kept is given back by nobody.
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

    /// What was recorded, in the order in which it began, and how often each trouble came about.
    #[must_use]
    pub fn finish(&self) -> (Vec<Exchange>, Vec<(String, usize)>) {
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

/// A request that has come and has no whole answer yet.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a Recorder);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory that is in use.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    recorder: &'a Recorder,
    bytes: usize,
}

impl Held<'_> {
    /// False: there is no more.
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

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.recorder.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn size(exchange: &Exchange) -> usize {
    let pairs = |all: &[(String, String)]| all.iter().map(|(n, v)| n.len() + v.len() + 48).sum::<usize>();
    let body = match &exchange.body {
        Sent::Nothing | Sent::Lost => 0,
        Sent::Text(text) | Sent::File(text) => text.len(),
        Sent::Form(fields) | Sent::Multipart(fields) => pairs(fields),
    };
    let answer = exchange.answer.as_ref().map_or(0, |a| a.text.len() + pairs(&a.headers));
    exchange.url.path.len() + pairs(&exchange.headers) + body + answer + 300
}

/// µs since 1970, as it was when this was first asked: a clock that is set while a user is recorded makes no pause of his.
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
