//! What users ask for: the busiest second, minute and hour of logs, or what a number of requests a day amounts to.

use lastdrop_model::demand::{DAY_S, MINUTE_S, MINUTES_OF_DAY, RequestCounts};
use lastdrop_model::documents::{Demand, LogMoment};

use super::days::WholeDay;

const MINUTES_OF_HOUR: usize = 60;

/// Demand without a log: requests a day, and how much busier its busiest minute is than its mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DailyDemand {
    pub requests: f64,
    pub peak: f64,
    /// Bytes of an answer, if known.
    pub answer_bytes: Option<u64>,
}

impl DailyDemand {
    /// Requests per second, in the mean and in the busiest minute.
    #[must_use]
    pub fn demand(&self) -> Demand {
        let mean = self.requests / DAY_S as f64;
        let busiest = mean * self.peak;
        Demand {
            peak_rps: busiest,
            busiest_minute_rps: busiest,
            busiest_hour_rps: busiest,
            mean_rps: mean,
            requests: self.requests.round() as u64,
            bytes_per_s: self.answer_bytes.map(|bytes| bytes as f64 * busiest),
            ..Demand::default()
        }
    }
}

/// The demand of logs. The rate of a minute or an hour is over all of it, or over the log if that is shorter.
#[must_use]
pub fn demand_of(counts: &RequestCounts, whole: &[WholeDay]) -> Demand {
    if counts.requests == 0 {
        return Demand::default();
    }
    let lasted = (counts.last_s - counts.first_s + 1).max(1);
    let moment = |n: u64, unix_s: i64, length: i64| LogMoment { unix_s, rps: n as f64 / length.min(lasted) as f64 };
    let second = moment(counts.busiest_second.0, counts.busiest_second.1, 1);
    let (mut minute, mut hour) = ((0, 0), (0, 0));
    for day in &counts.days {
        let begin = day.day * DAY_S;
        for (i, n) in day.minutes.iter().enumerate() {
            if u64::from(*n) > minute.0 {
                minute = (u64::from(*n), begin + i as i64 * MINUTE_S);
            }
        }
        for (i, minutes) in day.minutes.chunks(MINUTES_OF_HOUR).enumerate() {
            let n = minutes.iter().map(|n| u64::from(*n)).sum();
            if n > hour.0 {
                hour = (n, begin + (i * MINUTES_OF_HOUR) as i64 * MINUTE_S);
            }
        }
    }
    let minute = moment(minute.0, minute.1, MINUTE_S);
    let hour = moment(hour.0, hour.1, MINUTES_OF_HOUR as i64 * MINUTE_S);
    // Days between the first and the last that have no request at all were not counted.
    let touched = counts.days.iter().filter(|day| day.minutes.iter().any(|n| *n > 0)).count();
    Demand {
        peak_rps: second.rps.max(minute.rps),
        busiest_minute_rps: minute.rps,
        busiest_hour_rps: hour.rps,
        mean_rps: counts.requests as f64 / lasted as f64,
        bytes_per_s: counts.answer_bytes.map(|bytes| bytes * minute.rps),
        busiest_second: Some(second),
        busiest_minute: Some(minute),
        busiest_hour: Some(hour),
        requests: counts.requests,
        begin_unix_s: counts.first_s,
        end_unix_s: counts.last_s,
        whole_days: whole.len() as u64,
        partial_days: touched.saturating_sub(whole.len()) as u64,
        ..Demand::default()
    }
}

/// The first day whose busiest minute has at least so many requests per second.
#[must_use]
pub fn first_day_above(counts: &RequestCounts, rps: f64) -> Option<i64> {
    let least = rps * MINUTE_S as f64;
    let above = |minutes: &[u32]| minutes.iter().take(MINUTES_OF_DAY).any(|n| f64::from(*n) >= least);
    counts.days.iter().find(|day| above(&day.minutes)).map(|day| day.day)
}

#[cfg(test)]
mod tests {
    use lastdrop_model::demand::DayCounts;

    use super::*;

    #[test]
    fn eight_million_a_day_are_93_a_second_and_three_times_as_many_at_the_peak() {
        let d = DailyDemand { requests: 8e6, peak: 3.0, answer_bytes: Some(3072) }.demand();
        assert!((d.mean_rps - 92.59).abs() < 0.01 && (d.busiest_minute_rps - 277.78).abs() < 0.01, "{d:?}");
        assert!((d.bytes_per_s.expect("known") - 853_333.3).abs() < 1.0, "{d:?}");
    }

    #[test]
    fn the_busiest_minute_and_hour_are_found() {
        let mut day = DayCounts::new(10);
        day.minutes[125] = 600;
        day.minutes[180..240].fill(60);
        let counts = RequestCounts {
            requests: 4200,
            first_s: 10 * DAY_S,
            last_s: 11 * DAY_S - 1,
            days: vec![day],
            busiest_second: (30, 864_000 + 7501),
            ..RequestCounts::default()
        };
        let d = demand_of(&counts, &[]);
        assert_eq!((d.peak_rps, d.busiest_minute_rps, d.busiest_hour_rps), (30.0, 10.0, 1.0));
        assert_eq!(d.busiest_minute.expect("one").unix_s, 864_000 + 7500);
        assert_eq!(d.busiest_hour.expect("one").unix_s, 864_000 + 3 * 3600);
        assert_eq!((first_day_above(&counts, 10.0), first_day_above(&counts, 10.1)), (Some(10), None));
    }

    #[test]
    fn a_log_of_one_line_and_an_empty_one_have_a_demand() {
        assert_eq!(demand_of(&RequestCounts::default(), &[]), Demand::default());
        let mut day = DayCounts::new(0);
        day.minutes[0] = 1;
        let one = RequestCounts {
            requests: 1,
            days: vec![day],
            busiest_second: (1, 5),
            first_s: 5,
            last_s: 5,
            ..RequestCounts::default()
        };
        let d = demand_of(&one, &[]);
        assert_eq!((d.peak_rps, d.busiest_minute_rps, d.mean_rps), (1.0, 1.0, 1.0));
    }
}
