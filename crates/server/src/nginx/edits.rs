//! Changes of a configuration: some bytes of some of its files.

use std::collections::HashMap;
use std::ops::Range;

/// Changes of some bytes of some sources. None of them adds or takes away a line.
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
