//! Counts of a log's lines, and the lines that did not parse.

use std::path::Path;

use lastdrop_model::printable::lossless;

/// Most rejected lines that are kept.
const MOST_REJECTED: usize = 10;
/// Most bytes kept of each.
const MOST_SHOWN_BYTES: usize = 160;

/// Counts of lines. `lines = requests + nothing + unparsed`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineCounts {
    pub lines: u64,
    pub requests: u64,
    /// Blank lines, comments, and others that are not requests by design.
    pub nothing: u64,
    /// Lines that did not parse, including those too long.
    pub unparsed: u64,
    /// Longer than 64 KB.
    pub too_long: u64,
    /// The last line of a file, without its line end and not parsable: the server was still writing it.
    pub torn: u64,
    /// Requests out of order by more than the window.
    pub late: u64,
    /// Requests with a time far ahead of their neighbours'; they got the time of the previous one.
    pub jumps: u64,
    /// Files that could not be read to their end, with the reason.
    pub damaged: Vec<String>,
    /// The first lines that did not parse.
    pub rejected: Vec<RejectedLine>,
    /// Keys of durations that were ignored because their unit is unknown, with their counts.
    pub unitless: Vec<(String, u64)>,
}

/// A line that did not parse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedLine {
    pub file: String,
    /// From 1.
    pub line: u64,
    pub why: String,
    /// The line around the position of the error, with unprintable bytes escaped.
    pub text: String,
}

impl LineCounts {
    /// Adds the counts of another log.
    pub fn add(&mut self, other: &LineCounts) {
        self.lines += other.lines;
        self.requests += other.requests;
        self.nothing += other.nothing;
        self.unparsed += other.unparsed;
        self.too_long += other.too_long;
        self.torn += other.torn;
        self.late += other.late;
        self.jumps += other.jumps;
        self.damaged.extend_from_slice(&other.damaged);
        let room = MOST_REJECTED.saturating_sub(self.rejected.len());
        self.rejected.extend(other.rejected.iter().take(room).cloned());
        other.unitless.iter().for_each(|(key, n)| self.add_unitless(key, *n));
    }

    fn add_unitless(&mut self, key: &str, times: u64) {
        if let Some((_, n)) = self.unitless.iter_mut().find(|(known, _)| known == key) {
            *n += times;
        } else if self.unitless.len() < MOST_REJECTED {
            self.unitless.push((key.into(), times));
        }
    }

    /// Counts a duration with an unknown unit, by its key.
    pub(crate) fn note_unitless(&mut self, key: &[u8]) {
        if !key.is_empty() {
            self.add_unitless(&String::from_utf8_lossy(key), 1);
        }
    }

    /// Describes the durations that were ignored.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let note = |(key, n): &(String, u64)| {
            let key = lossless(key.as_bytes());
            format!(
                "{key} says no unit, so that of {n} requests is not used; --format json,{key}:ms (or s, us, ns) says it"
            )
        };
        self.unitless.iter().map(note).collect()
    }

    /// Counts a line that does not parse; `at` is the position of the error.
    pub(crate) fn reject(&mut self, file: &Path, line: u64, text: &[u8], at: usize, why: impl FnOnce() -> String) {
        self.unparsed += 1;
        if self.rejected.len() < MOST_REJECTED {
            // A position far into a long line is shown with the text before it.
            let from = if at + MOST_SHOWN_BYTES / 4 > MOST_SHOWN_BYTES {
                at.min(text.len()).saturating_sub(MOST_SHOWN_BYTES / 2)
            } else {
                0
            };
            let dots = if from > 0 { "…" } else { "" };
            let shown = lossless(&text[from..text.len().min(from + MOST_SHOWN_BYTES)]);
            let text = format!("{dots}{shown}");
            self.rejected.push(RejectedLine { file: file.display().to_string(), line, why: why(), text });
        }
    }
}
