//! Reads a log for its classes, and then for its requests, which it hands to the load a few hundred at a time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_load::{Arrivals, LoggedAnswer, Played};
use lastdrop_model::class::{MOST, pattern};
use lastdrop_model::plan;
use lastdrop_traffic::{Entries, Entry, Key, LogError, LogOptions};

use super::spread::Spread;
use super::target::{Left, Targets};
use super::usual::AnswerCounts;

/// Requests at the beginning of a log that say which classes there are.
const SAMPLED: u64 = 200_000;
/// Patterns that are counted at a time.
const MOST_PATTERNS: usize = 10_000;
/// Requests that are handed over together, and how many of these wait at most: some megabytes.
const TOGETHER: usize = 256;
const WAITING: usize = 32;

/// A class of a log's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub name: String,
    pub method: String,
    pub count: u64,
    pub answers: AnswerCounts,
}

/// What the beginning of a log has.
#[derive(Debug, Default)]
pub struct Sample {
    /// The most frequent first.
    pub classes: Vec<Found>,
    pub requests: u64,
    /// From the first request to the last, µs.
    pub lasted_us: u64,
}

/// Reads the beginning of a log.
///
/// # Errors
/// When it cannot be read.
pub fn sample(logs: &[PathBuf], options: &LogOptions, targets: &Targets) -> Result<Sample, LogError> {
    // In what order they are is nothing to a sample, and costs memory.
    let mut entries = Entries::open(logs, &LogOptions { window: Duration::ZERO, ..options.clone() })?;
    let mut counts: HashMap<String, Found> = HashMap::new();
    let (mut sample, mut first, mut last) = (Sample::default(), None, 0);
    while sample.requests < SAMPLED
        && let Some(entry) = entries.next()
    {
        let Ok(sent) = targets.read(entry) else { continue };
        sample.requests += 1;
        last = entry.time_us;
        first.get_or_insert(last);
        let name = pattern(&sent.method, &sent.target);
        let is_new = !counts.contains_key(&name);
        let found = counts.entry(name).or_insert_with_key(|name| Found {
            name: name.clone(),
            method: sent.method,
            count: 0,
            answers: AnswerCounts::default(),
        });
        found.count += 1;
        found.answers.count(entry.status, entry.bytes);
        if is_new {
            forget_rare(&mut counts);
        }
    }
    sample.lasted_us = first.map_or(0, |first| last.saturating_sub(first).max(0) as u64);
    sample.classes = counts.into_values().collect();
    sample.classes.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
    sample.classes.truncate(MOST - 1);
    Ok(sample)
}

/// A log may have any number of patterns: of too many the rarest go.
fn forget_rare(counts: &mut HashMap<String, Found>) {
    let mut rare = 1;
    while counts.len() > MOST_PATTERNS {
        counts.retain(|_, found| found.count > rare);
        rare *= 2;
    }
}

/// When requests are sent.
#[derive(Debug)]
pub enum Pacing {
    Original(Spread),
    Rate(Box<Arrivals>),
    /// By the users who made them.
    Sessions(Key),
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// After so many requests of the log.
    Number(u64),
    /// At this time, µs since 1970.
    Time(i64),
}

/// A log that is played.
#[derive(Debug)]
pub struct Feed {
    pub entries: Entries,
    pub targets: Targets,
    /// Which request of the plan a pattern is; the last one is of all others.
    pub classes: HashMap<String, u32>,
    pub others: u32,
    pub from: From,
    pub pacing: Pacing,
}

/// A feed that is running.
#[derive(Debug)]
pub struct Running {
    tally: Arc<Mutex<plan::ReplaySummary>>,
    thread: JoinHandle<()>,
}

impl Running {
    /// What came of the log, once nobody takes any more of it.
    ///
    /// # Errors
    /// When its thread has panicked.
    pub fn finish(self) -> Result<plan::ReplaySummary, &'static str> {
        self.thread.join().map_err(|_| "the log's reader ended early; please report this")?;
        Ok(self.tally.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Feed {
    /// Begins to read, in a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(self) -> io::Result<(Receiver<Vec<Played>>, Running)> {
        let (out, played) = sync_channel(WAITING);
        let tally = Arc::new(Mutex::new(plan::ReplaySummary::default()));
        let shared = Arc::clone(&tally);
        let thread = thread::Builder::new().name("log".into()).spawn(move || {
            let result = self.run(&out);
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = result;
        })?;
        Ok((played, Running { tally, thread }))
    }

    fn run(mut self, out: &SyncSender<Vec<Played>>) -> plan::ReplaySummary {
        let mut tally = plan::ReplaySummary::default();
        let mut batch = Vec::with_capacity(TOGETHER);
        while let Some(entry) = self.entries.next() {
            tally.requests += 1;
            if before(self.from, tally.requests, entry.time_us) {
                tally.skipped += 1;
                continue;
            }
            match self.targets.read(entry) {
                Err(Left::Unsafe) => tally.unsafe_left_out += 1,
                Err(Left::Unusable) => tally.unusable += 1,
                Ok(sent) => {
                    tally.late += u64::from(entry.late);
                    let location = entry.location().and_then(|location| self.targets.redirect(entry, location));
                    let request = self.classes.get(&pattern(&sent.method, &sent.target)).copied();
                    let played = Played {
                        due: 0,
                        request: request.unwrap_or(self.others),
                        method: sent.method,
                        target: sent.target,
                        host: sent.host,
                        who: 0,
                        number: tally.requests,
                        logged: LoggedAnswer::new(entry.status, location),
                    };
                    self.pacing.take(played, entry, &mut batch);
                }
            }
            if batch.len() >= TOGETHER && out.send(std::mem::take(&mut batch)).is_err() {
                break;
            }
        }
        self.pacing.finish(&mut batch);
        // Nobody may be there any more.
        let _ = out.send(batch);
        let lines = self.entries.tally();
        (tally.lines, tally.unparsed) = (lines.lines, lines.unparsed);
        // Where they are and not what they say: a line may have anything in it, and a run is kept.
        let rejected = lines.rejected.iter().map(|r| format!("{}:{}: {}", r.file, r.line, r.why));
        tally.rejected = rejected.chain(lines.damaged.iter().cloned()).chain(lines.notes()).collect();
        tally
    }
}

fn before(from: From, number: u64, time_us: i64) -> bool {
    match from {
        From::Number(n) => number <= n,
        From::Time(t) => time_us < t,
    }
}

impl Pacing {
    fn take(&mut self, mut played: Played, entry: &Entry, out: &mut Vec<Played>) {
        match self {
            Pacing::Original(spread) => spread.take(played, entry.time_us, entry.resolution_us, entry.late, out),
            Pacing::Rate(arrivals) => {
                played.due = arrivals.next_due();
                arrivals.advance();
                out.push(played);
            }
            Pacing::Sessions(key) => {
                // One hash for all runs: whoever has no such field is one user.
                let mut hasher = DefaultHasher::new();
                entry.key(key).hash(&mut hasher);
                played.who = hasher.finish();
                out.push(played);
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<Played>) {
        if let Pacing::Original(spread) = self {
            spread.finish(out);
        }
    }
}
