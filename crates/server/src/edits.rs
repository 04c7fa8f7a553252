//! Edits of byte ranges in the files of a configuration, and the whole configuration as one text for testing.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A word of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWord {
    /// Text without quotes and escapes.
    pub text: String,
    /// Byte range of the word including quotes and escapes.
    pub at: Range<usize>,
}

/// A file of a configuration, which may include others, or the directives of a command line.
#[derive(Debug)]
pub struct Source {
    /// The path as the server names it.
    pub name: PathBuf,
    /// The file with symbolic links resolved; `None` for the command line.
    pub file: Option<PathBuf>,
    pub text: Vec<u8>,
    /// Byte ranges of the include directives, in order, with the sources that each includes.
    pub includes: Vec<(Range<usize>, Vec<usize>)>,
}

impl Source {
    /// Line number of a byte, from 1.
    pub fn line(&self, at: usize) -> usize {
        1 + self.text[..at.min(self.text.len())].iter().filter(|b| **b == b'\n').count()
    }
}

/// Replacements of byte ranges, by source.
#[derive(Debug, Default)]
pub struct Edits(HashMap<usize, Vec<(Range<usize>, String)>>);

impl Edits {
    /// Replaces some bytes by a text. For a file that is included twice, the same replacement counts once.
    pub fn replace(&mut self, source: usize, at: Range<usize>, text: String) {
        let own = self.0.entry(source).or_default();
        if !own.iter().any(|(a, t)| (a, t) == (&at, &text)) {
            own.push((at, text));
            own.sort_by_key(|(at, _)| (at.start, at.end));
        }
    }

    /// Adds the replacements of others.
    pub fn extend(&mut self, others: Edits) {
        for (source, all) in others.0 {
            all.into_iter().for_each(|(at, text)| self.replace(source, at, text));
        }
    }

    pub fn sources(&self) -> impl Iterator<Item = usize> {
        self.0.keys().copied()
    }

    /// A range of a source's text with its edits applied.
    pub fn apply(&self, source: usize, text: &[u8], range: Range<usize>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut from = range.start;
        let own = self.0.get(&source).into_iter().flatten();
        for (at, new) in own.filter(|(at, _)| range.start <= at.start && at.end <= range.end) {
            out.extend(&text[from.min(at.start)..at.start]);
            out.extend(new.bytes());
            from = from.max(at.end);
        }
        out.extend(&text[from.min(range.end)..range.end]);
        out
    }
}

const MOST_PIECES: usize = 100_000;

/// A configuration as one text that knows the origin of each line.
#[derive(Debug, Default)]
pub struct FlatText {
    pub text: Vec<u8>,
    /// For each piece: its first line in this text, and the name and line it comes from.
    pieces: Vec<(usize, PathBuf, usize)>,
    /// Number of bytes counted so far, and of line ends in them.
    counted: (usize, usize),
}

impl FlatText {
    /// Flattens a source with all its includes up to a depth, with edits applied.
    pub fn of(sources: &[Source], main: usize, edits: &Edits, deepest: usize) -> FlatText {
        let mut flat = FlatText::default();
        flat.flatten(sources, main, edits, deepest);
        flat
    }

    fn flatten(&mut self, sources: &[Source], source: usize, edits: &Edits, deeper: usize) {
        // Files may include each other endlessly.
        if self.pieces.len() > MOST_PIECES {
            return;
        }
        let own = &sources[source];
        let mut from = 0;
        for (at, included) in &own.includes {
            self.add(&own.name, own.line(from), &edits.apply(source, &own.text, from..at.start));
            for inner in included.iter().filter(|_| deeper > 0) {
                self.text.push(b'\n');
                self.flatten(sources, *inner, edits, deeper - 1);
                self.text.push(b'\n');
            }
            from = at.end;
        }
        self.add(&own.name, own.line(from), &edits.apply(source, &own.text, from..own.text.len()));
    }

    /// Origin of a line of this text: file name and line number.
    pub fn place(&self, line: usize) -> Option<(&Path, usize)> {
        let (first, name, own) = self.pieces.iter().rev().find(|(first, ..)| *first <= line)?;
        Some((name, own + (line - first)))
    }

    /// Appends a text that begins at this line of a file.
    pub fn add(&mut self, name: &Path, line: usize, text: &[u8]) {
        let new = self.text[self.counted.0..].iter().filter(|b| **b == b'\n').count();
        self.counted = (self.text.len(), self.counted.1 + new);
        self.pieces.push((1 + self.counted.1, name.into(), line));
        self.text.extend(text);
    }

    /// Translates line numbers in a server's messages about this text, stored at `file`, to the original files.
    pub fn told_of_its_files(&self, said: &str, file: &Path) -> String {
        let mark = format!("{}:", file.display());
        let mut parts = said.split(&mark);
        let mut out = parts.next().unwrap_or_default().to_string();
        for part in parts {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let number = part[..digits].parse::<usize>().ok();
            match number.and_then(|n| self.place(n)) {
                Some((name, line)) => out.push_str(&format!("{}:{line}", name.display())),
                None => out.push_str(&format!("{mark}{}", &part[..digits])),
            }
            out.push_str(&part[digits..]);
        }
        out
    }
}
