//! Requests in the order of their times, though lines are in that of their ends.
//!
//! An entry is held until one has been read that is later by the window. Most logs are in order but for slow
//! requests, so that what is in order waits in a queue, and only what is not in a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::entry::Entry;

/// All that is held may have so much memory; beyond it the oldest goes before its time.
const MOST_HELD_BYTES: usize = 32 << 20;
/// Memory of an entry that it does not keep for the next one.
const MOST_KEPT_LINE_BYTES: usize = 4 << 10;

/// An entry with its place in the order.
#[derive(Debug)]
struct Held(Box<Entry>, u64);

impl Held {
    fn order(&self) -> (i64, u64) {
        (self.0.time_us, self.1)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

/// Holds entries until nothing can come before them any more.
#[derive(Debug)]
pub(crate) struct Order {
    window_us: i64,
    in_order: VecDeque<Held>,
    others: BinaryHeap<Reverse<Held>>,
    held_bytes: usize,
    read: u64,
    newest_us: i64,
    given_us: i64,
    // In boxes, as they go from hand to hand.
    #[allow(clippy::vec_box)]
    free: Vec<Box<Entry>>,
}

impl Order {
    pub(crate) fn new(window_us: i64) -> Order {
        Order {
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

    /// An entry to be filled.
    pub(crate) fn empty(&mut self) -> Box<Entry> {
        self.free.pop().unwrap_or_default()
    }

    /// Takes back one that is not needed any more.
    pub(crate) fn give_back(&mut self, mut entry: Box<Entry>) {
        entry.reset();
        entry.line.shrink_to(MOST_KEPT_LINE_BYTES);
        self.free.push(entry);
    }

    /// Takes an entry; one that is too old for its place is marked.
    pub(crate) fn push(&mut self, mut entry: Box<Entry>) {
        self.read += 1;
        entry.late = entry.time_us < self.given_us;
        self.newest_us = self.newest_us.max(entry.time_us);
        self.held_bytes += entry.weight();
        let held = Held(entry, self.read);
        match self.in_order.back() {
            Some(last) if *last > held => self.others.push(Reverse(held)),
            _ => self.in_order.push_back(held),
        }
    }

    /// The next one, if nothing can come before it; at the end of all, the next one.
    pub(crate) fn next(&mut self, at_end: bool) -> Option<Box<Entry>> {
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
        let Held(entry, _) = held?;
        self.held_bytes = self.held_bytes.saturating_sub(entry.weight());
        self.given_us = self.given_us.max(entry.time_us);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(time_us: i64) -> Box<Entry> {
        Box::new(Entry { time_us, ..Entry::default() })
    }

    fn ordered(window_us: i64, times: &[i64]) -> Vec<(i64, bool)> {
        let mut order = Order::new(window_us);
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
        let mut order = Order::new(0);
        for status in [1, 2, 3] {
            order.push(Box::new(Entry { time_us: 7, status, ..Entry::default() }));
        }
        let got: Vec<u16> = std::iter::from_fn(|| order.next(true)).map(|e| e.status).collect();
        assert_eq!(got, [1, 2, 3]);
    }

    #[test]
    fn what_is_held_has_a_bound() {
        let mut order = Order::new(i64::MAX);
        for t in 0..200_000 {
            order.push(Box::new(Entry { time_us: t, line: vec![0; 1000], ..Entry::default() }));
            while let Some(e) = order.next(false) {
                order.give_back(e);
            }
        }
        assert!(order.held_bytes <= MOST_HELD_BYTES);
    }
}
