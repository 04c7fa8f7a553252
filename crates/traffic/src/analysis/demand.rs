//! Counts the requests of logs by minute and, for the busiest one, by second.
//!
//! Memory depends on the number of days alone: 6 KB for each, for at most [`MOST_DAYS`]. Requests of further days are
//! counted together. Seconds are counted in a ring, so that lines may be out of order by up to [`RING_S`].

use std::collections::BTreeMap;

use lastdrop_model::demand::{DAY_S, DayCounts, MINUTE_S, RequestCounts};

use super::SECOND_US;
use crate::LogEntry;

/// Eleven years.
const MOST_DAYS: usize = 4_000;
const RING_S: usize = 4_096;

/// Counts requests by time.
#[derive(Debug)]
pub struct DemandCounter {
    days: BTreeMap<i64, DayCounts>,
    /// The second that a place of the ring is for, and its requests.
    ring: Vec<(i64, u32)>,
    counts: RequestCounts,
    server_us: (u64, f64),
    answer_bytes: (u64, f64),
}

impl Default for DemandCounter {
    fn default() -> DemandCounter {
        DemandCounter {
            days: BTreeMap::new(),
            ring: vec![(i64::MIN, 0); RING_S],
            counts: RequestCounts { first_s: i64::MAX, last_s: i64::MIN, ..RequestCounts::default() },
            server_us: (0, 0.0),
            answer_bytes: (0, 0.0),
        }
    }
}

impl DemandCounter {
    /// Counts a request.
    pub fn take(&mut self, entry: &LogEntry) {
        self.count(entry.time_us.div_euclid(SECOND_US));
        let add = |sum: &mut (u64, f64), value: Option<u64>| {
            if let Some(value) = value {
                *sum = (sum.0 + 1, sum.1 + value as f64);
            }
        };
        add(&mut self.server_us, entry.server_us);
        add(&mut self.answer_bytes, entry.bytes);
    }

    fn count(&mut self, second: i64) {
        let day = second.div_euclid(DAY_S);
        if !self.days.contains_key(&day) && self.days.len() >= MOST_DAYS {
            self.counts.beyond += 1;
            return;
        }
        let minute = (second.rem_euclid(DAY_S) / MINUTE_S) as usize;
        let minutes = &mut self.days.entry(day).or_insert_with(|| DayCounts::new(day)).minutes;
        minutes[minute] = minutes[minute].saturating_add(1);
        self.counts.requests += 1;
        self.counts.first_s = self.counts.first_s.min(second);
        self.counts.last_s = self.counts.last_s.max(second);
        let slot = &mut self.ring[second.rem_euclid(RING_S as i64) as usize];
        if slot.0 < second {
            *slot = (second, 0);
        }
        if slot.0 == second {
            slot.1 = slot.1.saturating_add(1);
            if u64::from(slot.1) > self.counts.busiest_second.0 {
                self.counts.busiest_second = (slot.1.into(), second);
            }
        }
    }

    /// Returns the counts, once the entries have ended.
    #[must_use]
    pub fn finish(self) -> RequestCounts {
        let mut counts = self.counts;
        if counts.requests == 0 {
            (counts.first_s, counts.last_s) = (0, 0);
        }
        counts.days = self.days.into_values().collect();
        let mean = |(n, sum): (u64, f64)| (n > 0).then(|| sum / n as f64);
        counts.server_us = mean(self.server_us);
        counts.answer_bytes = mean(self.answer_bytes);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_minutes_are_counted_in_any_order() {
        let mut counter = DemandCounter::default();
        for second in [100, 40, 100, 41, 100, 90_000, 41, -1] {
            counter.count(second);
        }
        let counts = counter.finish();
        assert_eq!((counts.requests, counts.first_s, counts.last_s, counts.busiest_second), (8, -1, 90_000, (3, 100)));
        let days: Vec<(i64, u64)> = counts.days.iter().map(|d| (d.day, d.total())).collect();
        assert_eq!(days, [(-1, 1), (0, 6), (1, 1)]);
        assert_eq!((counts.days[1].minutes[0], counts.days[1].minutes[1]), (3, 3));
    }

    #[test]
    fn memory_is_bounded_whatever_the_times_are() {
        let mut counter = DemandCounter::default();
        (0..10_000).for_each(|day| counter.count(day * DAY_S));
        counter.count(i64::MAX / 2_000_000);
        let counts = counter.finish();
        assert_eq!((counts.days.len(), counts.requests, counts.beyond), (MOST_DAYS, 4_000, 6_001));
    }

    #[test]
    fn an_empty_log_has_no_times() {
        assert_eq!(DemandCounter::default().finish(), RequestCounts::default());
    }
}
