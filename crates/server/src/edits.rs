//! Changes of a configuration: some bytes of some of its files; and all of it in one text, so that it can be tested.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A word of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    /// Without quotes and escapes.
    pub text: String,
    /// The bytes that it stands in, with them.
    pub at: Range<usize>,
}

/// A file of a configuration that others may include, or the directives of a command line.
#[derive(Debug)]
pub struct Source {
    /// As the server names it.
    pub name: PathBuf,
    /// The file itself, behind symbolic links; none for the command line.
    pub file: Option<PathBuf>,
    pub text: Vec<u8>,
    /// What includes others in it, in order, with the sources that each brings in.
    pub includes: Vec<(Range<usize>, Vec<usize>)>,
}

impl Source {
    /// The line of a byte, counted from 1.
    pub fn line(&self, at: usize) -> usize {
        1 + self.text[..at.min(self.text.len())].iter().filter(|b| **b == b'\n').count()
    }
}

/// Changes of some bytes of some sources.
#[derive(Debug, Default)]
pub struct Edits(HashMap<usize, Vec<(Range<usize>, String)>>);

impl Edits {
    /// Puts a text in the place of some bytes. The same change of a file that is included twice is one.
    pub fn replace(&mut self, source: usize, at: Range<usize>, text: String) {
        let own = self.0.entry(source).or_default();
        if !own.iter().any(|(a, t)| (a, t) == (&at, &text)) {
            own.push((at, text));
            own.sort_by_key(|(at, _)| (at.start, at.end));
        }
    }

    pub fn sources(&self) -> impl Iterator<Item = usize> {
        self.0.keys().copied()
    }

    /// A range of a source's text with the changes in it.
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

/// A configuration in one text, and which line of it comes from where.
#[derive(Debug, Default)]
pub struct Flat {
    pub text: Vec<u8>,
    /// For each piece: the line of this text where it begins, and the name and line of where it is from.
    pieces: Vec<(usize, PathBuf, usize)>,
    /// So many of its bytes have so many line ends.
    counted: (usize, usize),
}

impl Flat {
    /// A source with all that it includes, so deep at the most, after some changes.
    pub fn of(sources: &[Source], main: usize, edits: &Edits, deepest: usize) -> Flat {
        let mut flat = Flat::default();
        flat.flatten(sources, main, edits, deepest);
        flat
    }

    fn flatten(&mut self, sources: &[Source], source: usize, edits: &Edits, deeper: usize) {
        // Files that include each other have no end.
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

    /// Where a line of this text is from: the name of its file, and the line there.
    pub fn place(&self, line: usize) -> Option<(&Path, usize)> {
        let (first, name, own) = self.pieces.iter().rev().find(|(first, ..)| *first <= line)?;
        Some((name, own + (line - first)))
    }

    /// Goes on with a text that is from this line of a file.
    pub fn add(&mut self, name: &Path, line: usize, text: &[u8]) {
        let new = self.text[self.counted.0..].iter().filter(|b| **b == b'\n').count();
        self.counted = (self.text.len(), self.counted.1 + new);
        self.pieces.push((1 + self.counted.1, name.into(), line));
        self.text.extend(text);
    }

    /// What a server says of this text at `file`, said of the files that it is made of.
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
