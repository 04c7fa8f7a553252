//! Events of runs, as server-sent events. They come from the store, so runs of any process are followed,
//! without those processes knowing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::thread;
use std::time::Instant;

use lastdrop_model::plan::Phase;
use lastdrop_report::html::{LiveRun, LiveSample, LiveSecond};
use lastdrop_store::{LatestSecond, Progress, Store, StoreError};
use lastdrop_wire::{Acceptor, Wire};

use crate::answer::begun;
use crate::bounds;
use crate::progress::RunningTotals;

/// The position of a client in a run's events: the keys of its latest second and sample. The browser sends it
/// back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamPosition {
    second: i64,
    look: i64,
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.second, self.look)
    }
}

impl FromStr for StreamPosition {
    type Err = Infallible;

    /// Any other value means the client has no data yet.
    fn from_str(text: &str) -> Result<StreamPosition, Infallible> {
        let (second, look) = text.split_once('.').unwrap_or((text, ""));
        Ok(StreamPosition { second: second.parse().unwrap_or_default(), look: look.parse().unwrap_or_default() })
    }
}

/// Seconds that the plots of a run in progress show.
const SHOWN: usize = 900;

/// When each phase of a run began, in seconds since the run began.
#[derive(Debug, Default)]
struct PhaseStarts(HashMap<u16, f64>);

impl PhaseStarts {
    /// For a phase whose end is not stored yet, the planned length is used.
    fn of(&mut self, phase: u16, progress: impl FnOnce() -> Result<Progress, StoreError>) -> Result<f64, StoreError> {
        if phase == 0 {
            return Ok(0.0);
        }
        if let Some(start) = self.0.get(&phase) {
            return Ok(*start);
        }
        let progress = progress()?;
        let lasted = |(i, planned): (usize, &Phase)| match progress.ended_us.get(i) {
            Some(us) => *us as f64 / 1e6,
            None => planned.duration.map_or(0.0, |d| d.as_secs_f64()),
        };
        let start = progress.plan.phases.iter().enumerate().take(usize::from(phase)).map(lasted).sum();
        self.0.insert(phase, start);
        Ok(start)
    }
}

fn moment(second: &LatestSecond, start_s: f64) -> LiveSecond {
    let h = &second.response;
    let some = |value: u64| (h.count() > 0).then_some(value);
    LiveSecond {
        at_s: (start_s + f64::from(second.second)).floor() + 0.5,
        answered: second.counts.answered,
        failed: second.counts.failed.total() + second.counts.timed_out,
        p50: some(h.quantile(0.5)),
        p90: some(h.quantile(0.9)),
        p99: some(h.quantile(0.99)),
        max: some(h.max()),
    }
}

/// Returns the stored part of a run in progress.
pub fn live<'a>(store: &Store, id: &'a str, progress: &'a Progress) -> Result<LiveRun<'a>, StoreError> {
    let mut position =
        StreamPosition { second: store.key_before_latest(id, SHOWN)?, look: store.look_key_before_latest(id, SHOWN)? };
    let (mut starts, mut moments) = (PhaseStarts::default(), Vec::<LiveSecond>::new());
    loop {
        let news = store.seconds_after(id, position.second)?;
        let Some(last) = news.last() else { break };
        position.second = last.key;
        for second in &news {
            let moment = moment(second, starts.of(second.phase, || store.progress(id))?);
            // Answers that were in flight at the end of a phase fall into the same second as the next
            // phase's.
            if moments.last().is_none_or(|last| last.at_s < moment.at_s) {
                moments.push(moment);
            }
        }
    }
    let mut sights = Vec::new();
    loop {
        let news = store.looks_after(id, position.look)?;
        let Some(last) = news.last() else { break };
        position.look = last.key;
        sights.extend(news.iter().map(|l| LiveSample::of(&l.look)));
    }
    let (answered, failed) = store.ends_until(id, position.second)?;
    Ok(LiveRun {
        id,
        label: &progress.label,
        started_unix_ms: progress.started_unix_ms,
        plan: &progress.plan,
        moments,
        sights,
        answered,
        failed,
        key: position.to_string(),
        address: format!("/run/{id}/events"),
    })
}

/// A stream of events to one browser.
#[derive(Debug)]
pub struct EventStream<'a> {
    wire: &'a mut Wire,
    acceptor: &'a Acceptor,
    last: Instant,
}

impl<'a> EventStream<'a> {
    pub fn begin(wire: &'a mut Wire, acceptor: &'a Acceptor) -> io::Result<EventStream<'a>> {
        let mut bytes = begun(200);
        bytes.extend_from_slice(b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\nretry: 1000\n\n");
        let mut stream = EventStream { wire, acceptor, last: Instant::now() };
        stream.send(&bytes)?;
        Ok(stream)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.last = Instant::now();
        self.wire.within(bounds::ANSWER);
        self.wire.write(bytes)
    }

    fn event(&mut self, name: &str, id: impl fmt::Display, data: &str) -> io::Result<()> {
        self.send(format!("id: {id}\nevent: {name}\ndata: {data}\n\n").as_bytes())
    }

    /// Waits until the next read of the store; an error ends the stream.
    fn pause(&mut self) -> io::Result<()> {
        if self.acceptor.is_over() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if self.last.elapsed() > bounds::SIGN_OF_LIFE {
            self.send(b":\n\n")?;
        }
        thread::sleep(bounds::LOOK);
        Ok(())
    }

    /// Sends each second and sample that the client lacks, and the end of the run.
    pub fn run(mut self, store: &Store, id: &str, mut position: StreamPosition) -> io::Result<()> {
        let mut starts = PhaseStarts::default();
        loop {
            // Ask first, so that everything written before the end is still read below.
            let is_over = store.run_owner(id).map_err(io::Error::other)?.is_none();
            let news = store.seconds_after(id, position.second).map_err(io::Error::other)?;
            for second in &news {
                let start_s = starts.of(second.phase, || store.progress(id)).map_err(io::Error::other)?;
                position.second = second.key;
                self.event("second", position, &serde_json::to_string(&moment(second, start_s))?)?;
            }
            for seen in store.looks_after(id, position.look).map_err(io::Error::other)? {
                position.look = seen.key;
                self.event("look", position, &serde_json::to_string(&LiveSample::of(&seen.look))?)?;
            }
            if is_over && news.is_empty() {
                return self.event("ended", position, "");
            }
            self.pause()?;
        }
    }

    /// Sends an event when a run begins or ends, and every second the progress of the running ones.
    pub fn list(mut self, store: &Store) -> io::Result<()> {
        let mut followed: HashMap<String, RunningTotals> = HashMap::new();
        let now = || -> Result<_, StoreError> { Ok((store.how_many()?, store.under_way()?)) };
        let now = || now().map_err(io::Error::other);
        let mut seen = now()?;
        loop {
            self.pause()?;
            let fresh = now()?;
            if fresh != seen {
                seen = fresh;
                followed.retain(|run, _| seen.1.contains(run));
                self.event("changed", 0, "")?;
            }
            for run in &seen.1 {
                if !followed.contains_key(run) {
                    followed.insert(run.clone(), RunningTotals::begin(store, run).map_err(io::Error::other)?);
                }
                let Some(so_far) = followed.get_mut(run) else { continue };
                if so_far.catch_up(store, run).map_err(io::Error::other)? {
                    let news = serde_json::json!({"run": run, "numbers": so_far.numbers()});
                    self.event("progress", 0, &news.to_string())?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_has_is_read_as_it_was_said() {
        let position = StreamPosition { second: 12, look: 7 };
        assert_eq!(position.to_string().parse(), Ok(position));
        for (text, is) in
            [("", (0, 0)), ("5", (5, 0)), ("x.y", (0, 0)), ("5.x", (5, 0)), ("99999999999999999999.1", (0, 1))]
        {
            assert_eq!(text.parse(), Ok(StreamPosition { second: is.0, look: is.1 }), "{text}");
        }
    }
}
