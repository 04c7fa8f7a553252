//! What came of the lines of a log, beside its requests.

use std::path::Path;

use lastdrop_model::printable::lossless;

/// Lines that were not understood, of which so many are kept.
const MOST_REJECTED: usize = 10;
/// And of each so much.
const MOST_SHOWN_BYTES: usize = 160;

/// Counts of lines. `lines = requests + nothing + unparsed`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    pub lines: u64,
    pub requests: u64,
    /// Blank lines, comments, and others that should be no requests.
    pub nothing: u64,
    /// Not understood, those too long among them.
    pub unparsed: u64,
    /// Longer than 64 KB.
    pub too_long: u64,
    /// The last line of a file, without its end and not understood: the server was still writing it.
    pub torn: u64,
    /// Requests that came after later ones had been given out: out of order by more than the window.
    pub late: u64,
    /// Requests with a time far ahead of those before and after them; they were given that of the one before.
    pub jumps: u64,
    /// Files that could not be read to their end, and why.
    pub damaged: Vec<String>,
    /// The first lines that were not understood.
    pub rejected: Vec<Rejected>,
    /// Keys of durations that were left out, because nothing says their unit, and how often.
    pub unitless: Vec<(String, u64)>,
}

/// A line that was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub file: String,
    /// From 1.
    pub line: u64,
    pub why: String,
    /// The line about the place that does not fit; bytes that are no text are shown.
    pub text: String,
}

impl Tally {
    /// Adds those of another log.
    pub fn add(&mut self, other: &Tally) {
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

    /// Counts a duration whose unit is not known, by its key.
    pub(crate) fn note_unitless(&mut self, key: &[u8]) {
        if !key.is_empty() {
            self.add_unitless(&String::from_utf8_lossy(key), 1);
        }
    }

    /// What there is to be said of durations that were left out.
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

    /// Counts a line that is not understood; `at` is the place that does not fit.
    pub(crate) fn reject(&mut self, file: &Path, line: u64, text: &[u8], at: usize, why: impl FnOnce() -> String) {
        self.unparsed += 1;
        if self.rejected.len() < MOST_REJECTED {
            // A place far in a long line is shown with what is before it.
            let from = if at + MOST_SHOWN_BYTES / 4 > MOST_SHOWN_BYTES {
                at.min(text.len()).saturating_sub(MOST_SHOWN_BYTES / 2)
            } else {
                0
            };
            let dots = if from > 0 { "…" } else { "" };
            let shown = lossless(&text[from..text.len().min(from + MOST_SHOWN_BYTES)]);
            let text = format!("{dots}{shown}");
            self.rejected.push(Rejected { file: file.display().to_string(), line, why: why(), text });
        }
    }
}
