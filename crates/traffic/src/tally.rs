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
}

/// A line that was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub file: String,
    /// From 1.
    pub line: u64,
    pub why: String,
    /// Its beginning; bytes that are no text are shown.
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
    }

    pub(crate) fn reject(&mut self, file: &Path, line: u64, text: &[u8], why: impl FnOnce() -> String) {
        self.unparsed += 1;
        if self.rejected.len() < MOST_REJECTED {
            let text = lossless(&text[..text.len().min(MOST_SHOWN_BYTES)]);
            self.rejected.push(Rejected { file: file.display().to_string(), line, why: why(), text });
        }
    }
}
