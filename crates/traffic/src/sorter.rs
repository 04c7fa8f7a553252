//! Puts requests in the order of their times, though lines are in the order of their ends.
//!
//! An entry is held until one has been read that is later by the window. Most logs are in order except for slow
//! requests. So entries in order wait in a queue, and only the others in a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::entry::LogEntry;

/// Memory for all held entries; beyond it the oldest is released early.
const MOST_HELD_BYTES: usize = 32 << 20;
/// Most memory that a released entry keeps for reuse.
const MOST_KEPT_LINE_BYTES: usize = 4 << 10;

/// A held entry with its position in the log.
#[derive(Debug)]
struct HeldEntry(Box<LogEntry>, u64);

impl HeldEntry {
    fn order(&self) -> (i64, u64) {
        (self.0.time_us, self.1)
    }
}

impl PartialEq for HeldEntry {
    fn eq(&self, other: &HeldEntry) -> bool {
        self.order() == other.order()
    }
}

impl Eq for HeldEntry {}

impl PartialOrd for HeldEntry {
    fn partial_cmp(&self, other: &HeldEntry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeldEntry {
    fn cmp(&self, other: &HeldEntry) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// Holds entries until no earlier one can follow.
#[derive(Debug)]
pub(crate) struct EntrySorter {
    window_us: i64,
    in_order: VecDeque<HeldEntry>,
    others: BinaryHeap<Reverse<HeldEntry>>,
    held_bytes: usize,
    read: u64,
    newest_us: i64,
    given_us: i64,
    // Boxed, because they are passed around.
    #[allow(clippy::vec_box)]
    free: Vec<Box<LogEntry>>,
}

impl EntrySorter {
    pub(crate) fn new(window_us: i64) -> EntrySorter {
        EntrySorter {
            window_us,
            in_order: VecDeque::new(),
            others: BinaryHeap::new(),
            held_bytes: 0,
            read: 0,
            newest_us: i64::MIN,
            given_us: i64::MIN,
            free: Vec::new(),
        }
    }

    /// Returns an empty entry to fill.
    pub(crate) fn empty(&mut self) -> Box<LogEntry> {
        self.free.pop().unwrap_or_default()
    }

    /// Takes back an entry that is no longer needed.
    pub(crate) fn give_back(&mut self, mut entry: Box<LogEntry>) {
        entry.reset();
        entry.line.shrink_to(MOST_KEPT_LINE_BYTES);
        self.free.push(entry);
    }

    /// Adds an entry; marks it if it is too late for its place.
    pub(crate) fn push(&mut self, mut entry: Box<LogEntry>) {
        self.read += 1;
        entry.late = entry.time_us < self.given_us;
        self.newest_us = self.newest_us.max(entry.time_us);
        self.held_bytes += entry.weight();
        let held = HeldEntry(entry, self.read);
        match self.in_order.back() {
            Some(last) if *last > held => self.others.push(Reverse(held)),
            _ => self.in_order.push_back(held),
        }
    }

    /// Returns the next entry if no earlier one can follow, or if the input has ended.
    pub(crate) fn next(&mut self, at_end: bool) -> Option<Box<LogEntry>> {
        let other = match (self.in_order.front(), self.others.peek()) {
            (Some(first), Some(Reverse(other))) => other < first,
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) => return None,
        };
        let oldest = if other { self.others.peek().map(|h| &h.0) } else { self.in_order.front() };
        let time_us = oldest.map(|held| held.0.time_us)?;
        let ripe = time_us.saturating_add(self.window_us) <= self.newest_us || self.held_bytes > MOST_HELD_BYTES;
        if !(at_end || ripe || time_us < self.given_us) {
            return None;
        }
        let held = if other { self.others.pop().map(|Reverse(held)| held) } else { self.in_order.pop_front() };
        let HeldEntry(entry, _) = held?;
        self.held_bytes = self.held_bytes.saturating_sub(entry.weight());
        self.given_us = self.given_us.max(entry.time_us);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(time_us: i64) -> Box<LogEntry> {
        Box::new(LogEntry { time_us, ..LogEntry::default() })
    }

    fn ordered(window_us: i64, times: &[i64]) -> Vec<(i64, bool)> {
        let mut order = EntrySorter::new(window_us);
        let mut out = Vec::new();
        for t in times {
            order.push(entry(*t));
            while let Some(e) = order.next(false) {
                out.push((e.time_us, e.late));
            }
        }
        while let Some(e) = order.next(true) {
            out.push((e.time_us, e.late));
        }
        out
    }

    #[test]
    fn what_is_out_of_order_within_the_window_is_sorted() {
        let got = ordered(10, &[1, 5, 3, 9, 2, 12, 11, 30]);
        assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), [1, 2, 3, 5, 9, 11, 12, 30]);
        assert!(got.iter().all(|g| !g.1));
    }

    #[test]
    fn what_is_older_comes_at_once_and_is_marked() {
        assert_eq!(
            ordered(10, &[0, 100, 120, 5, 130]),
            [(0, false), (100, false), (5, true), (120, false), (130, false)]
        );
    }

    #[test]
    fn equal_times_keep_the_order_of_their_lines() {
        let mut order = EntrySorter::new(0);
        for status in [1, 2, 3] {
            order.push(Box::new(LogEntry { time_us: 7, status, ..LogEntry::default() }));
        }
        let got: Vec<u16> = std::iter::from_fn(|| order.next(true)).map(|e| e.status).collect();
        assert_eq!(got, [1, 2, 3]);
    }

    #[test]
    fn what_is_held_has_a_bound() {
        let mut order = EntrySorter::new(i64::MAX);
        for t in 0..200_000 {
            order.push(Box::new(LogEntry { time_us: t, line: vec![0; 1000], ..LogEntry::default() }));
            while let Some(e) = order.next(false) {
                order.give_back(e);
            }
        }
        assert!(order.held_bytes <= MOST_HELD_BYTES);
    }
}
