//! Requests by a number at which each is next: a time, or an amount of service.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::RequestId;

/// A heap with the smallest number first. Number and request are one integer, which compares four times as fast as two.
#[derive(Debug, Default)]
pub(super) struct Schedule(BinaryHeap<Reverse<u128>>);

impl Schedule {
    /// Inserts a request at a number that is not negative; such floating-point numbers have the order of their bits.
    #[inline]
    pub fn push(&mut self, at: f64, id: RequestId) {
        debug_assert!(at >= 0.0, "{at}");
        self.0.push(Reverse(u128::from(at.to_bits()) << 32 | u128::from(id)));
    }

    /// Returns the smallest number; infinity if it is empty.
    #[inline]
    pub fn next(&self) -> f64 {
        self.0.peek().map_or(f64::INFINITY, |Reverse(first)| f64::from_bits((first >> 32) as u64))
    }

    /// Removes the first request.
    #[inline]
    pub fn pop(&mut self) -> Option<RequestId> {
        self.0.pop().map(|Reverse(first)| first as RequestId)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_number_comes_first_and_equal_ones_by_their_request() {
        let mut schedule = Schedule::default();
        for (at, id) in [(3.5, 1), (0.0, 9), (1e12, 2), (3.5, 0), (1e-9, 4)] {
            schedule.push(at, id);
        }
        let order: Vec<(f64, RequestId)> = std::iter::from_fn(|| Some((schedule.next(), schedule.pop()?))).collect();
        assert_eq!(order, [(0.0, 9), (1e-9, 4), (3.5, 0), (3.5, 1), (1e12, 2)]);
        assert_eq!((schedule.next(), schedule.len()), (f64::INFINITY, 0));
    }
}
