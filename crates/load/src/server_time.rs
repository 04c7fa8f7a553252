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
}

impl Default for ClockOffset {
    fn default() -> Self {
        ClockOffset { least: i64::MIN, most: i64::MAX }
    }
}

impl ClockOffset {
    /// Adds one answer: the server began at `began` and ended at `ended` by its clock, between `arrived` and `left` by
    /// ours.
    pub fn learn(&mut self, began: i64, ended: i64, arrived: i64, left: i64) {
        let (least, most) = (ended - left, began - arrived);
        // Clocks drift: a contradicting measurement replaces the bounds.
        if least > self.most || most < self.least {
            *self = ClockOffset { least, most };
        }
        (self.least, self.most) = (self.least.max(least), self.most.min(most));
    }

    pub fn ahead(self) -> i64 {
        // Timestamps are truncated to microseconds, and one way is taken as half of the round trip.
        if self.least <= SLACK_US && self.most >= -SLACK_US { 0 } else { self.least.midpoint(self.most) }
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
        offset.learn(1_040_000, 1_060_000, 1_000_000, 1_060_000);
        assert_eq!(offset.ahead(), 0);
    }

    #[test]
    fn a_clock_that_cannot_be_ours_is_found_out() {
        let mut offset = ClockOffset::default();
        let ahead = 5_000_000;
        for queue in [40_000, 10_000, 0] {
            let began = 1_000_000 + queue;
            offset.learn(began + ahead, began + 20_000 + ahead, 1_000_000, began + 20_000);
        }
        assert_eq!(offset.ahead(), ahead);
        let mut behind = ClockOffset::default();
        behind.learn(1_000_000 - ahead, 1_020_000 - ahead, 1_000_000, 1_020_000);
        assert_eq!(behind.ahead(), -ahead);
    }
}
