//! Counts of a log's requests by time, from which demand and its growth are computed.
//!
//! Days are those of UTC. A weekly rhythm repeats after seven of them in any zone.

use std::time::{Duration, UNIX_EPOCH};

pub const DAY_S: i64 = 86_400;
pub const MINUTE_S: i64 = 60;
pub const MINUTES_OF_DAY: usize = 1440;

/// The requests of a day by minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayCounts {
    /// Days since 1970-01-01.
    pub day: i64,
    /// Always [`MINUTES_OF_DAY`] counts.
    pub minutes: Vec<u32>,
}

impl DayCounts {
    #[must_use]
    pub fn new(day: i64) -> DayCounts {
        DayCounts { day, minutes: vec![0; MINUTES_OF_DAY] }
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        self.minutes.iter().map(|n| u64::from(*n)).sum()
    }

    /// The day of the week, 0 for Monday. 1970-01-01 was a Thursday.
    #[must_use]
    pub fn weekday(&self) -> usize {
        weekday(self.day)
    }
}

/// The day of the week of a day since 1970-01-01, 0 for Monday.
#[must_use]
pub fn weekday(day: i64) -> usize {
    (day + 3).rem_euclid(7) as usize
}

/// A day since 1970-01-01 as `2026-01-31`. Earlier days are shown as the first.
#[must_use]
pub fn date(day: i64) -> String {
    // humantime formats years up to 9999.
    let seconds = day.clamp(0, 2_932_896).unsigned_abs() * DAY_S.unsigned_abs();
    let text = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string();
    text.chars().take(10).collect()
}

/// The requests of logs by time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RequestCounts {
    pub requests: u64,
    /// Seconds since 1970 of the first and the last request.
    pub first_s: i64,
    pub last_s: i64,
    /// Days with requests, in order.
    pub days: Vec<DayCounts>,
    /// Requests of the busiest second, and its time.
    pub busiest_second: (u64, i64),
    /// Requests on days beyond the number that is counted.
    pub beyond: u64,
    /// Mean of the server's own times, microseconds, if the log has them.
    pub server_us: Option<f64>,
    /// Mean size of an answer, if the log has it.
    pub answer_bytes: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates_and_weekdays() {
        assert_eq!((date(0), date(20_484), date(-5)), ("1970-01-01".into(), "2026-01-31".into(), "1970-01-01".into()));
        // 1970-01-01 was a Thursday, 2026-01-31 a Saturday.
        assert_eq!((weekday(0), weekday(20_484), weekday(-1)), (3, 5, 2));
        assert_eq!(date(i64::MAX), "9999-12-31");
    }
}
