//! Cuts large records into messages and puts them together again, and tracks which records were seen.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;

use crate::subjects::PartId;

/// Reserved for headers and the subject, which count towards the broker's limit.
const SPARE: usize = 1 << 10;
/// Largest size of a record, whatever its parts claim.
const RECORD_BYTES: usize = 1 << 30;
const PARTS: u32 = 1 << 16;

/// Cuts a record into at least one message, each of at most `max_payload` bytes.
pub(crate) fn split(kind: u8, record: &[u8], max_payload: usize) -> Vec<Bytes> {
    let each = max_payload.saturating_sub(SPARE).max(256);
    let whole = Bytes::from([&[kind], record].concat());
    (0..whole.len()).step_by(each).map(|from| whole.slice(from..(from + each).min(whole.len()))).collect()
}

/// Records with missing parts. Each part comes with a `T`, its acknowledgement.
#[derive(Debug)]
pub(crate) struct Reassembly<T> {
    /// The key ignores the part number. A record that is cut differently the second time has another key.
    open: HashMap<PartId, Vec<Option<(Bytes, T)>>>,
}

/// A complete record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CompleteMessage<T> {
    pub kind: u8,
    pub content: Vec<u8>,
    /// The values that came with the parts, in order.
    pub with: Vec<T>,
}

impl<T> Default for Reassembly<T> {
    fn default() -> Self {
        Reassembly { open: HashMap::new() }
    }
}

impl<T> Reassembly<T> {
    /// Adds a part; returns the record if it is complete.
    ///
    /// # Errors
    /// If no record can have such a part; the part's `T` is returned.
    pub fn add(&mut self, of: &PartId, bytes: Bytes, with: T) -> Result<Option<CompleteMessage<T>>, T> {
        if of.parts > PARTS || of.part >= of.parts {
            return Err(with);
        }
        if of.parts == 1 {
            return match bytes.split_first() {
                Some((kind, content)) => {
                    Ok(Some(CompleteMessage { kind: *kind, content: content.to_vec(), with: vec![with] }))
                }
                None => Err(with),
            };
        }
        let key = PartId { part: 0, ..of.clone() };
        let parts = self.open.entry(key.clone()).or_insert_with(|| (0..of.parts).map(|_| None).collect());
        if parts.iter().flatten().map(|(b, _)| b.len()).sum::<usize>() + bytes.len() > RECORD_BYTES {
            return Err(with);
        }
        parts[of.part as usize] = Some((bytes, with));
        if parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        let mut whole = CompleteMessage { kind: 0, content: Vec::new(), with: Vec::new() };
        for (bytes, with) in self.open.remove(&key).into_iter().flatten().flatten() {
            whole.content.extend_from_slice(&bytes);
            whole.with.push(with);
        }
        // A record whose parts are all empty gets kind 0, which nobody accepts.
        if !whole.content.is_empty() {
            whole.kind = whole.content.remove(0);
        }
        Ok(Some(whole))
    }
}

/// A set of sequence numbers: all below a bound, and some above it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SequenceSet {
    below: u64,
    beyond: BTreeSet<u64>,
}

impl SequenceSet {
    /// Returns whether the number is new.
    pub fn insert(&mut self, seq: u64) -> bool {
        if self.contains(seq) {
            return false;
        }
        self.beyond.insert(seq);
        while self.beyond.remove(&self.below) {
            self.below += 1;
        }
        true
    }

    pub fn contains(&self, seq: u64) -> bool {
        seq < self.below || self.beyond.contains(&seq)
    }

    /// Returns whether all of 0 to `count` - 1 are in the set.
    pub fn has_all_below(&self, count: u64) -> bool {
        self.below >= count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(part: u32, parts: u32) -> PartId {
        PartId { run: "r".into(), agent: "a".into(), epoch: 1, seq: 0, part, parts }
    }

    #[test]
    fn a_record_of_any_size_comes_back_whole_whatever_the_order_of_its_parts() {
        for size in [0, 1, 255, 256, 257, 1_000, 4_096] {
            let record: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let parts = split(b'r', &record, SPARE + 256);
            assert!(parts.iter().all(|p| p.len() <= 256));
            let mut reassembly = Reassembly::default();
            let count = parts.len() as u32;
            let mut whole = None;
            for (i, bytes) in parts.iter().enumerate().rev() {
                assert!(whole.is_none());
                whole = reassembly.add(&part(i as u32, count), bytes.clone(), i).expect("a part");
            }
            let whole = whole.expect("all parts are there");
            assert_eq!(whole, CompleteMessage { kind: b'r', content: record, with: (0..parts.len()).collect() });
        }
    }

    #[test]
    fn a_part_twice_or_of_another_cut_does_not_mix() {
        let mut reassembly = Reassembly::default();
        assert!(reassembly.add(&part(0, 2), Bytes::from_static(b"rab"), 1).expect("a part").is_none());
        assert!(reassembly.add(&part(0, 2), Bytes::from_static(b"rab"), 2).expect("a part").is_none());
        assert!(reassembly.add(&part(1, 3), Bytes::from_static(b"xx"), 3).expect("a part").is_none());
        let whole = reassembly.add(&part(1, 2), Bytes::from_static(b"cd"), 4).expect("a part");
        assert_eq!(whole, Some(CompleteMessage { kind: b'r', content: b"abcd".to_vec(), with: vec![2, 4] }));
        let mut empty = Reassembly::default();
        assert_eq!(empty.add(&part(0, 2), Bytes::new(), 1), Ok(None));
        assert_eq!(
            empty.add(&part(1, 2), Bytes::new(), 2),
            Ok(Some(CompleteMessage { kind: 0, content: Vec::new(), with: vec![1, 2] }))
        );
    }

    #[test]
    fn what_no_record_looks_like_is_given_back() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.add(&part(0, 1), Bytes::new(), 7), Err(7));
        assert_eq!(reassembly.add(&part(0, PARTS + 1), Bytes::from_static(b"r"), 8), Err(8));
    }

    #[test]
    fn numbers_are_new_once() {
        let mut seen = SequenceSet::default();
        for seq in [0, 2, 1, 5] {
            assert!(seen.insert(seq));
            assert!(!seen.insert(seq));
        }
        assert!(seen.has_all_below(3) && !seen.has_all_below(4) && seen.contains(5) && !seen.contains(3));
    }
}
