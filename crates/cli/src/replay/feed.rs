//! Reads a log twice: for its classes, and then for its requests, which it passes to the load a few hundred at a time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lastdrop_load::{Arrivals, LoggedAnswer, RecordedRequest};
use lastdrop_model::class::{MOST, pattern};
use lastdrop_model::plan;
use lastdrop_traffic::{LogEntries, LogEntry, LogError, LogOptions, SessionKey};

use super::spread::Spread;
use super::target::{SkipReason, Targets};
use super::usual::AnswerCounts;

/// Number of requests at the beginning of a log that decide on the classes.
const SAMPLED: u64 = 200_000;
/// Limit of the patterns that are counted at a time.
const MOST_PATTERNS: usize = 10_000;
/// Requests in a batch, and the limit of waiting batches: some megabytes.
const TOGETHER: usize = 256;
const WAITING: usize = 32;

/// A class of a log's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogClass {
    pub name: String,
    pub method: String,
    pub count: u64,
    pub answers: AnswerCounts,
}

/// The classes and requests at the beginning of a log.
#[derive(Debug, Default)]
pub struct LogSample {
    /// The most frequent first.
    pub classes: Vec<LogClass>,
    pub requests: u64,
    /// From the first request to the last, µs.
    pub lasted_us: u64,
}

/// Reads the beginning of a log.
///
/// # Errors
/// When it cannot be read.
pub fn sample(logs: &[PathBuf], options: &LogOptions, targets: &Targets) -> Result<LogSample, LogError> {
    // Sorting costs memory, and a sample does not need it.
    let mut entries = LogEntries::open(logs, &LogOptions { window: Duration::ZERO, ..options.clone() })?;
    let mut counts: HashMap<String, LogClass> = HashMap::new();
    let (mut sample, mut first, mut last) = (LogSample::default(), None, 0);
    while sample.requests < SAMPLED
        && let Some(entry) = entries.next()
    {
        let Ok(sent) = targets.read(entry) else { continue };
        sample.requests += 1;
        last = entry.time_us;
        first.get_or_insert(last);
        let name = pattern(&sent.method, &sent.target);
        let is_new = !counts.contains_key(&name);
        let found = counts.entry(name).or_insert_with_key(|name| LogClass {
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

/// Drops the rarest patterns if there are too many; a log may have any number.
fn forget_rare(counts: &mut HashMap<String, LogClass>) {
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
    Sessions(SessionKey),
}

/// Where to begin in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartAt {
    /// After this many requests of the log.
    Number(u64),
    /// At this time, µs since 1970.
    Time(i64),
}

/// A log and how to replay it.
#[derive(Debug)]
pub struct Feed {
    pub entries: LogEntries,
    pub targets: Targets,
    /// The index of each pattern's request in the plan.
    pub classes: HashMap<String, u32>,
    /// The index of the request for all other patterns.
    pub others: u32,
    pub from: StartAt,
    pub pacing: Pacing,
}

/// A feed whose thread is reading.
#[derive(Debug)]
pub struct RunningFeed {
    tally: Arc<Mutex<plan::ReplaySummary>>,
    thread: JoinHandle<()>,
}

impl RunningFeed {
    /// Waits for the thread and returns its counts. Call it after the receiver is dropped or empty.
    ///
    /// # Errors
    /// When its thread has panicked.
    pub fn finish(self) -> Result<plan::ReplaySummary, &'static str> {
        self.thread.join().map_err(|_| "the log's reader ended early; please report this")?;
        Ok(self.tally.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Feed {
    /// Starts to read in a thread of its own.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(self) -> io::Result<(Receiver<Vec<RecordedRequest>>, RunningFeed)> {
        let (out, played) = sync_channel(WAITING);
        let tally = Arc::new(Mutex::new(plan::ReplaySummary::default()));
        let shared = Arc::clone(&tally);
        let thread = thread::Builder::new().name("log".into()).spawn(move || {
            let result = self.run(&out);
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = result;
        })?;
        Ok((played, RunningFeed { tally, thread }))
    }

    fn run(mut self, out: &SyncSender<Vec<RecordedRequest>>) -> plan::ReplaySummary {
        let mut tally = plan::ReplaySummary::default();
        let mut batch = Vec::with_capacity(TOGETHER);
        while let Some(entry) = self.entries.next() {
            tally.requests += 1;
            if before(self.from, tally.requests, entry.time_us) {
                tally.skipped += 1;
                continue;
            }
            match self.targets.read(entry) {
                Err(SkipReason::Unsafe) => tally.unsafe_left_out += 1,
                Err(SkipReason::Unusable) => tally.unusable += 1,
                Ok(sent) => {
                    tally.late += u64::from(entry.late);
                    let location = entry.location().and_then(|location| self.targets.redirect(entry, location));
                    let request = self.classes.get(&pattern(&sent.method, &sent.target)).copied();
                    let played = RecordedRequest {
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
        // The run may have ended.
        let _ = out.send(batch);
        let lines = self.entries.tally();
        (tally.lines, tally.unparsed) = (lines.lines, lines.unparsed);
        // Only their places, not their text: a line may contain secrets, and the run is stored.
        let rejected = lines.rejected.iter().map(|r| format!("{}:{}: {}", r.file, r.line, r.why));
        tally.rejected = rejected.chain(lines.damaged.iter().cloned()).chain(lines.notes()).collect();
        tally
    }
}

fn before(from: StartAt, number: u64, time_us: i64) -> bool {
    match from {
        StartAt::Number(n) => number <= n,
        StartAt::Time(t) => time_us < t,
    }
}

impl Pacing {
    fn take(&mut self, mut played: RecordedRequest, entry: &LogEntry, out: &mut Vec<RecordedRequest>) {
        match self {
            Pacing::Original(spread) => spread.take(played, entry.time_us, entry.resolution_us, entry.late, out),
            Pacing::Rate(arrivals) => {
                played.due = arrivals.next_due();
                arrivals.advance();
                out.push(played);
            }
            Pacing::Sessions(key) => {
                // The same hash in every run. All requests without the field count as one user.
                let mut hasher = DefaultHasher::new();
                entry.key(key).hash(&mut hasher);
                played.who = hasher.finish();
                out.push(played);
            }
        }
    }

    fn finish(&mut self, out: &mut Vec<RecordedRequest>) {
        if let Pacing::Original(spread) = self {
            spread.finish(out);
        }
    }
}
