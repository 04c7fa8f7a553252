//! Reads many log files as one stream of requests in time order.
//!
//! When the stream is created, each file is read for its format and its first time. It is opened again when that time
//! has come, so that a year of packed logs needs only the memory of files that overlap. A time far ahead of its
//! neighbours' is not believed: it would hold up everything after it.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::entry::LogEntry;
use crate::format::{Format, LineOutcome, UnknownFormat, recognise};
use crate::line_counts::LineCounts;
use crate::lines::{LineRead, Lines};
use crate::sorter::EntrySorter;

/// A larger step ahead is believed only if the next line confirms it.
const STEP_US: i64 = 600_000_000;

/// How logs are read.
#[derive(Debug, Clone)]
pub struct LogOptions {
    /// `None` recognises each file's format.
    pub format: Option<Format>,
    /// How far lines may be out of order.
    pub window: Duration,
}

impl Default for LogOptions {
    /// One minute: a line is written at the end of its request, with the time of its beginning.
    fn default() -> LogOptions {
        LogOptions { format: None, window: Duration::from_secs(60) }
    }
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error(
        "the format of {} is not recognised (its first line: {first}){nearest}; --format takes the LogFormat or log_format that it was written with",
        path.display()
    )]
    Unknown { path: PathBuf, first: String, nearest: String },
}

/// A file being read.
#[derive(Debug)]
struct LogSource {
    path: PathBuf,
    number: u32,
    format: Arc<Format>,
    /// `None` until its time has come.
    lines: Option<Lines>,
    /// The time of its first request, as far as known.
    first_us: i64,
    /// Its next request.
    head: Option<Box<LogEntry>>,
    /// The requests after it.
    believed: VecDeque<Box<LogEntry>>,
    /// A request far ahead, until the next line decides whether to believe it.
    doubtful: Option<Box<LogEntry>>,
    newest_us: Option<i64>,
    /// Nothing is left to read.
    drained: bool,
    /// Nothing is left to return.
    over: bool,
}

/// The requests of logs in time order.
#[derive(Debug)]
pub struct LogEntries {
    sources: Vec<LogSource>,
    order: EntrySorter,
    given: Option<Box<LogEntry>>,
    tally: LineCounts,
}

impl LogEntries {
    /// Opens all files and samples them; `-` is stdin.
    ///
    /// # Errors
    /// A file cannot be read, or its format is not recognised.
    pub fn open(paths: &[PathBuf], options: &LogOptions) -> Result<LogEntries, LogError> {
        let given = options.format.clone().map(Arc::new);
        let mut sources = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            sources.extend(LogSource::look(path, number as u32, given.as_ref())?);
        }
        let window_us = i64::try_from(options.window.as_micros()).unwrap_or(i64::MAX);
        Ok(LogEntries { sources, order: EntrySorter::new(window_us), given: None, tally: LineCounts::default() })
    }

    /// Reads one input in a known format.
    #[must_use]
    pub fn of(lines: Lines, format: Format, window: Duration) -> LogEntries {
        let source = LogSource::new(Path::new("-"), 0, Arc::new(format), Some(lines), i64::MIN);
        let window_us = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
        LogEntries {
            sources: vec![source],
            order: EntrySorter::new(window_us),
            given: None,
            tally: LineCounts::default(),
        }
    }

    /// Returns the next request; `None` at the end of all files. Lines that do not parse, and damaged files, are
    /// counted.
    #[allow(clippy::should_implement_trait)] // It lends: nothing is allocated for a request.
    pub fn next(&mut self) -> Option<&LogEntry> {
        if let Some(entry) = self.given.take() {
            self.order.give_back(entry);
        }
        loop {
            if let Some(entry) = self.order.next(false) {
                return Some(self.give(entry));
            }
            let Some(entry) = self.read() else { break };
            self.order.push(entry);
        }
        let last = self.order.next(true)?;
        Some(self.give(last))
    }

    fn give(&mut self, entry: Box<LogEntry>) -> &LogEntry {
        self.tally.late += u64::from(entry.late);
        self.given.insert(entry)
    }

    /// The counts of the lines so far.
    #[must_use]
    pub fn tally(&self) -> &LineCounts {
        &self.tally
    }

    /// The formats of the files, in order. Empty files have none.
    pub fn formats(&self) -> impl Iterator<Item = (&Path, &Format)> {
        self.sources.iter().map(|s| (s.path.as_path(), s.format.as_ref()))
    }

    /// Reads the next request from the file whose next request is the oldest.
    fn read(&mut self) -> Option<Box<LogEntry>> {
        loop {
            let oldest = |s: &LogSource| s.head.as_ref().map_or(s.first_us, |e| e.time_us);
            let source = self.sources.iter_mut().filter(|s| !s.over).min_by_key(|s| oldest(s))?;
            let entry = source.head.take();
            source.advance(&mut self.order, &mut self.tally);
            if entry.is_some() {
                return entry;
            }
        }
    }
}

impl LogSource {
    fn new(path: &Path, number: u32, format: Arc<Format>, lines: Option<Lines>, first_us: i64) -> LogSource {
        LogSource {
            path: path.to_path_buf(),
            number,
            format,
            lines,
            first_us,
            head: None,
            believed: VecDeque::new(),
            doubtful: None,
            newest_us: None,
            drained: false,
            over: false,
        }
    }

    /// Samples a file's first lines; `None` for an empty one.
    fn look(path: &Path, number: u32, given: Option<&Arc<Format>>) -> Result<Option<LogSource>, LogError> {
        let unreadable = |error| LogError::Unreadable { path: path.to_path_buf(), error };
        let mut lines = Lines::open(path).map_err(unreadable)?;
        let sample = lines.sample().map_err(unreadable)?;
        let format = match given {
            Some(format) => format.fitted(sample),
            None => match recognise(sample) {
                Ok(format) => format,
                Err(unrecognised) => return LogSource::unknown(path, &mut lines, unrecognised),
            },
        };
        let mut entry = LogEntry::default();
        let first_us = lines.sample().ok().and_then(|sample| {
            let times = sample.filter_map(|line| {
                entry.reset();
                entry.line.extend_from_slice(line);
                (format.read(&mut entry) == LineOutcome::Request).then_some(entry.time_us)
            });
            times.take(crate::format::SAMPLE_LINES).min()
        });
        // A file that cannot be read twice stays open.
        let again = fs::metadata(path).is_ok_and(|m| m.is_file());
        Ok(Some(LogSource::new(path, number, format, (!again).then_some(lines), first_us.unwrap_or(i64::MIN))))
    }

    fn unknown(path: &Path, lines: &mut Lines, unrecognised: UnknownFormat) -> Result<Option<LogSource>, LogError> {
        let unreadable = |error| LogError::Unreadable { path: path.to_path_buf(), error };
        let mut sample = lines.sample().map_err(unreadable)?;
        match sample.find(|line| !line.is_empty()) {
            None => Ok(None),
            Some(line) => {
                let first = lastdrop_model::printable::lossless(&line[..line.len().min(120)]);
                let nearest = unrecognised.nearest.map_or(String::new(), |n| format!("; nearest is {n}"));
                Err(LogError::Unknown { path: path.to_path_buf(), first, nearest })
            }
        }
    }

    /// Sets the next request of the file.
    fn advance(&mut self, order: &mut EntrySorter, tally: &mut LineCounts) {
        while self.head.is_none() {
            if let Some(entry) = self.believed.pop_front() {
                self.head = Some(entry);
            } else if !self.drained {
                match self.next(order, tally) {
                    Ok(Some(next)) => self.judge(next, tally),
                    Ok(None) => self.drain(None, tally),
                    Err(e) => self.drain(Some(e), tally),
                }
            } else {
                self.over = true;
                return;
            }
        }
    }

    fn drain(&mut self, error: Option<io::Error>, tally: &mut LineCounts) {
        self.drained = true;
        self.lines = None;
        self.believed.extend(self.doubtful.take());
        tally.damaged.extend(error.map(|e| format!("{}: {e}", self.path.display())));
    }

    /// Decides whether to believe the time of a request: one that steps ahead waits for the next line to confirm it.
    fn judge(&mut self, next: Box<LogEntry>, tally: &mut LineCounts) {
        match self.doubtful.take() {
            // The log continued from there: a pause, or another day.
            Some(ahead) if next.time_us >= ahead.time_us.saturating_sub(STEP_US) => {
                self.newest_us = Some(ahead.time_us);
                self.believed.push_back(ahead);
            }
            Some(mut ahead) => {
                tally.jumps += 1;
                ahead.time_us = self.newest_us.unwrap_or(next.time_us);
                self.newest_us = Some(ahead.time_us);
                self.believed.push_back(ahead);
            }
            None => {}
        }
        match self.newest_us {
            Some(newest_us) if next.time_us <= newest_us.saturating_add(STEP_US) => {
                self.newest_us = Some(newest_us.max(next.time_us));
                self.believed.push_back(next);
            }
            _ => self.doubtful = Some(next),
        }
    }

    /// Reads the next request of the file; `None` at its end.
    fn next(&mut self, order: &mut EntrySorter, tally: &mut LineCounts) -> io::Result<Option<Box<LogEntry>>> {
        let lines = match &mut self.lines {
            Some(lines) => lines,
            None => self.lines.insert(Lines::open(&self.path)?),
        };
        let mut entry = order.empty();
        loop {
            let got = lines.next(&mut entry.line)?;
            let number = lines.number;
            tally.lines += u64::from(got != LineRead::End);
            match got {
                LineRead::End => {
                    order.give_back(entry);
                    return Ok(None);
                }
                LineRead::TooLong(length) => {
                    tally.too_long += 1;
                    tally.reject(&self.path, number, b"", 0, || format!("a line of {length} bytes"));
                    continue;
                }
                LineRead::Line | LineRead::Torn => {}
            }
            match self.format.read(&mut entry) {
                LineOutcome::Request => {
                    tally.requests += 1;
                    tally.note_unitless(&entry.unitless);
                    (entry.file, entry.number) = (self.number, number);
                    return Ok(Some(entry));
                }
                LineOutcome::Nothing => tally.nothing += 1,
                LineOutcome::Rejected(misread) => {
                    tally.torn += u64::from(got == LineRead::Torn);
                    tally.reject(&self.path, number, &entry.line, misread.at(), || self.format.explain(misread));
                }
            }
            entry.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn at(second: u32, what: &str) -> String {
        let (minute, second) = (second / 60, second % 60);
        format!("10.0.0.1 - - [10/Oct/2000:13:{minute:02}:{second:02} +0000] \"GET /{what} HTTP/1.1\" 200 5\n")
    }

    fn file(folder: &tempfile::TempDir, name: &str, text: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path
    }

    /// The targets in order, and the counts of the lines.
    fn read(paths: &[PathBuf]) -> (Vec<String>, LineCounts) {
        let mut entries = LogEntries::open(paths, &LogOptions::default()).expect("readable");
        let mut targets = Vec::new();
        while let Some(entry) = entries.next() {
            targets.push(String::from_utf8_lossy(entry.path().unwrap_or_default()).into_owned());
        }
        let tally = entries.tally().clone();
        assert_eq!(tally.lines, tally.requests + tally.nothing + tally.unparsed);
        assert_eq!(tally.requests, targets.len() as u64);
        (targets, tally)
    }

    #[test]
    fn files_are_merged_by_time_whatever_their_order_and_packing() {
        let folder = tempfile::tempdir().expect("a folder");
        let gzip = |text: &str| {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packed.write_all(text.as_bytes()).expect("memory");
            packed.finish().expect("memory")
        };
        let paths = [
            file(&folder, "b", (at(10, "3") + &at(12, "5") + &at(11, "4")).as_bytes()),
            file(&folder, "a.gz", &gzip(&(at(1, "1") + &at(2, "2")))),
            file(&folder, "c", (at(9, "before-3") + &at(2000, "last")).as_bytes()),
            file(&folder, "empty", b""),
        ];
        let (targets, tally) = read(&paths);
        assert_eq!(targets, ["/1", "/2", "/before-3", "/3", "/4", "/5", "/last"]);
        assert_eq!((tally.late, tally.jumps, tally.unparsed), (0, 0, 0));
    }

    #[test]
    fn a_clock_that_jumps_ahead_and_back_holds_nothing_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let far = at(0, "far").replace("2000", "2099");
        let path = file(&folder, "log", (far.clone() + &at(1, "1") + &at(2, "2") + &far + &at(3, "3")).as_bytes());
        let (targets, tally) = read(&[path]);
        assert_eq!((targets, tally.jumps), (["/far", "/1", "/2", "/far", "/3"].map(String::from).to_vec(), 2));
    }

    #[test]
    fn a_pause_of_days_is_no_jump() {
        let folder = tempfile::tempdir().expect("a folder");
        let next = at(3, "next").replace("10/Oct", "12/Oct");
        let path = file(&folder, "log", (at(1, "1") + &at(2, "2") + &next + &next).as_bytes());
        let (targets, tally) = read(&[path]);
        assert_eq!((targets.len(), tally.jumps, tally.late), (4, 0, 0));
    }

    #[test]
    fn what_is_no_line_of_a_log_is_counted_and_shown_with_its_number() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut text = at(1, "1").into_bytes();
        text.extend_from_slice(b"\x16\x03\x01 rubbish \xff\n\n# comment\n");
        text.extend_from_slice(&[b'z'; 1 << 20]);
        text.extend_from_slice(at(2, "2").as_bytes());
        text.extend_from_slice(at(3, "3").as_bytes());
        text.extend_from_slice(b"10.0.0.1 - - [10/Oct/2000:13:00");
        let path = file(&folder, "log", &text);
        let (targets, tally) = read(&[path]);
        assert_eq!(targets, ["/1", "/3"]);
        assert_eq!((tally.lines, tally.nothing, tally.unparsed, tally.too_long, tally.torn), (7, 2, 3, 1, 1));
        let numbers: Vec<u64> = tally.rejected.iter().map(|r| r.line).collect();
        assert_eq!(numbers, [2, 5, 7]);
        assert!(tally.rejected[0].text.contains("rubbish \\xff"), "{:?}", tally.rejected[0]);
        assert_eq!(
            tally.rejected[2].why,
            "%t expected at byte 13: a time such as 10/Oct/2000:13:55:36 -0700 after \" [\""
        );
    }

    #[test]
    fn a_packed_file_that_breaks_off_gives_what_it_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let text: String = (0..3000).map(|n| at(n, &n.to_string())).collect();
        let frame = ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        let torn = [&frame, &frame[..frame.len() - 20]].concat();
        let (targets, tally) = read(&[file(&folder, "log.zst", &torn)]);
        assert!(targets.len() >= 3000 && tally.damaged.len() == 1, "{} {:?}", targets.len(), tally.damaged);
        let nothing = LogEntries::open(&[file(&folder, "torn.zst", &frame[..40])], &LogOptions::default());
        assert!(matches!(nothing, Err(LogError::Unreadable { .. })), "{nothing:?}");
    }

    #[test]
    fn an_unknown_format_is_told_with_its_first_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = file(&folder, "log", b"who knows what\nthis is\n");
        let error = LogEntries::open(&[path], &LogOptions::default()).expect_err("unknown");
        let text = error.to_string();
        assert!(
            text.contains("who knows what") && text.contains("; nearest is ") && text.contains(" expected at byte "),
            "{text}"
        );
    }
}
