//! Divides the time of an answer into parts measured separately. The kernel reports the link's. The server reports its
//! own time and its wait for others. Its reported start gives the wait in its queue.
//!
//! The server's start is a time of its own clock, which on one machine is ours. Otherwise each answer bounds the
//! difference: the server cannot have begun before the request arrived, nor ended after the answer was sent. As long as
//! no difference is possible, none is assumed; otherwise the middle of the possible range is.

use lastdrop_http::Sink;
use lastdrop_http::server_time::{ServerTime, Unit};
use lastdrop_model::plan::{ServerTimeFrom, TimeUnit};

/// Reads the server's time from an answer's fields, and passes everything on.
pub(crate) struct ServerTimeReader<'a> {
    pub from: &'a ServerTimeFrom,
    pub said: &'a mut ServerTime,
    pub next: &'a mut dyn Sink,
}

impl Sink for ServerTimeReader<'_> {
    fn field(&mut self, name: &str, value: &[u8]) {
        match self.from {
            ServerTimeFrom::Known => self.said.take_known(name, value),
            ServerTimeFrom::Field { name: wanted, unit } if name.eq_ignore_ascii_case(wanted) => {
                let unit = match unit {
                    TimeUnit::Seconds => Unit::Seconds,
                    TimeUnit::Milliseconds => Unit::Milliseconds,
                    TimeUnit::Microseconds => Unit::Microseconds,
                    TimeUnit::AsWritten => Unit::AsWritten,
                };
                self.said.take_named(name, value, unit);
            }
            ServerTimeFrom::Field { .. } | ServerTimeFrom::Log { .. } => {}
        }
        self.next.field(name, value);
    }

    fn body(&mut self, bytes: &[u8]) {
        self.next.body(bytes);
    }
}

/// Bounds of how far the server's clock may be ahead of ours, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockOffset {
    least: i64,
    most: i64,
    /// The shortest round trip of all connections. A single connection's may be a delayed one.
    round_trip: i64,
}

impl Default for ClockOffset {
    fn default() -> Self {
        ClockOffset { least: i64::MIN, most: i64::MAX, round_trip: i64::MAX }
    }
}

impl ClockOffset {
    /// Adds one answer: the server began at `began` and ended at `ended` by its clock. By ours, the request was `written`
    /// and the answer `received`. `round_trip` is the time of the link alone.
    pub fn learn(&mut self, began: i64, ended: i64, written: i64, received: i64, round_trip: i64) {
        let (least, most) = (ended - received, began - written);
        // Clocks drift: a contradicting measurement replaces the bounds.
        if least > self.most || most < self.least {
            (self.least, self.most) = (least, most);
        }
        (self.least, self.most) = (self.least.max(least), self.most.min(most));
        self.round_trip = self.round_trip.min(round_trip);
    }

    pub fn ahead(self) -> i64 {
        let one_way = self.round_trip / 2;
        // Timestamps are truncated to microseconds, and one way is taken as half of the round trip.
        if self.least.saturating_add(one_way) <= SLACK_US && self.most.saturating_sub(one_way) >= -SLACK_US {
            0
        } else {
            self.least.midpoint(self.most)
        }
    }
}

/// Error allowed in the bounds of a clock that is our own.
const SLACK_US: i64 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_may_be_ours_is() {
        let mut offset = ClockOffset::default();
        // It waited 40 ms in a queue: a possible offset of up to 40 ms counts as none.
        offset.learn(1_040_000, 1_060_000, 1_000_000, 1_060_000, 0);
        assert_eq!(offset.ahead(), 0);
    }

    #[test]
    fn a_round_trip_that_was_delayed_moves_no_clock() {
        let mut offset = ClockOffset::default();
        // Each way takes 5 ms. The answers wait 60 ms in a queue, and are served in 20 ms.
        for (at, round_trip) in [(0, 10_000), (1_000_000, 50_000), (2_000_000, 10_000)] {
            offset.learn(at + 65_000, at + 85_000, at, at + 90_000, round_trip);
            assert_eq!(offset.ahead(), 0);
        }
    }

    #[test]
    fn a_clock_that_cannot_be_ours_is_found_out() {
        let mut offset = ClockOffset::default();
        let (ahead, one_way) = (5_000_000, 3_000);
        for queue in [40_000, 10_000, 0] {
            let (written, began) = (1_000_000 - one_way, 1_000_000 + queue);
            let received = began + 20_000 + one_way;
            offset.learn(began + ahead, began + 20_000 + ahead, written, received, 2 * one_way);
        }
        assert_eq!(offset.ahead(), ahead);
        let mut behind = ClockOffset::default();
        behind.learn(1_000_000 - ahead, 1_020_000 - ahead, 1_000_000, 1_020_000, 0);
        assert_eq!(behind.ahead(), -ahead);
    }
}
