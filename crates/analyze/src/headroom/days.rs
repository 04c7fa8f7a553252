//! The days of logs that can be compared: whole ones, from midnight to midnight, without a gap.
//!
//! A gap is a stretch without a request where like days have some. It is believed if a day as busy as the typical one
//! would have had at least [`FEWEST_MISSED`] requests in it, and [`SHARE_MISSED`] of its own: by chance (Poisson) that
//! happens in 6 of a million stretches. The first and the last day of a log, which begin or end within, have such gaps.

use lastdrop_model::demand::{DayCounts, MINUTES_OF_DAY, RequestCounts};

const FEWEST_MISSED: f64 = 12.0;
const SHARE_MISSED: f64 = 0.01;
/// Other days of the same weekday that show its usual course; with fewer, all other days do.
const FEWEST_ALIKE: usize = 2;
/// Minutes over which the level around the busiest minute is averaged.
const LEVEL_MINUTES: usize = 30;
/// A busiest minute further above its surroundings, in standard deviations of a Poisson count, is no chance. The largest
/// of a day's 1440 counts is rarely beyond 4.
const CHANCE: f64 = 4.5;

/// A whole day.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WholeDay {
    /// Days since 1970.
    pub day: i64,
    pub weekday: usize,
    pub requests: f64,
    /// Requests of its busiest minute.
    pub busiest: f64,
    /// Requests per minute around it: as `busiest`, but without what may be chance.
    pub level: f64,
}

/// Returns the whole days, in order.
#[must_use]
pub fn whole_days(counts: &RequestCounts) -> Vec<WholeDay> {
    let courses = Courses::new(&counts.days);
    counts.days.iter().filter(|day| !courses.has_gap(day)).filter_map(WholeDay::new).collect()
}

impl WholeDay {
    fn new(day: &DayCounts) -> Option<WholeDay> {
        let busiest = f64::from(day.minutes.iter().max().copied()?);
        if busiest == 0.0 {
            return None;
        }
        let mut sum: u64 = 0;
        let mut most = 0;
        for (i, n) in day.minutes.iter().enumerate() {
            sum += u64::from(*n);
            if i >= LEVEL_MINUTES {
                sum -= u64::from(day.minutes[i - LEVEL_MINUTES]);
            }
            most = most.max(sum);
        }
        let level = most as f64 / LEVEL_MINUTES as f64;
        let is_chance = busiest - level <= CHANCE * level.max(1.0).sqrt();
        Some(WholeDay {
            day: day.day,
            weekday: day.weekday(),
            requests: day.total() as f64,
            busiest,
            level: if is_chance { level } else { busiest },
        })
    }
}

/// The usual course of a day: of each weekday, and of all days.
struct Courses {
    sums: [Vec<f64>; 7],
    days: [usize; 7],
    typical: f64,
}

impl Courses {
    fn new(all: &[DayCounts]) -> Courses {
        let mut sums: [Vec<f64>; 7] = std::array::from_fn(|_| vec![0.0; MINUTES_OF_DAY]);
        let mut days = [0; 7];
        let mut totals: Vec<f64> = Vec::with_capacity(all.len());
        for day in all {
            days[day.weekday()] += 1;
            totals.push(day.total() as f64);
            sums[day.weekday()].iter_mut().zip(&day.minutes).for_each(|(sum, n)| *sum += f64::from(*n));
        }
        totals.sort_by(f64::total_cmp);
        let typical = totals.get(totals.len() / 2).copied().unwrap_or(0.0);
        Courses { sums, days, typical }
    }

    /// The course of the other days: those of the same weekday if there are enough.
    fn of_others(&self, day: &DayCounts) -> Vec<f64> {
        let weekday = day.weekday();
        let sum = |minute: usize| match self.days[weekday] > FEWEST_ALIKE {
            true => self.sums[weekday][minute],
            false => self.sums.iter().map(|s| s[minute]).sum(),
        };
        (0..MINUTES_OF_DAY).map(|m| (sum(m) - f64::from(day.minutes[m])).max(0.0)).collect()
    }

    fn has_gap(&self, day: &DayCounts) -> bool {
        let course = self.of_others(day);
        let whole: f64 = course.iter().sum();
        if whole == 0.0 {
            // Of a single day nothing is known but its own edges.
            return day.minutes.first() == Some(&0) || day.minutes.last() == Some(&0);
        }
        let least = SHARE_MISSED.max(FEWEST_MISSED / self.typical.max(1.0));
        let (mut missed, mut most) = (0.0, 0.0f64);
        for (n, usual) in day.minutes.iter().zip(&course) {
            missed = if *n == 0 { missed + usual / whole } else { 0.0 };
            most = most.max(missed);
        }
        most > least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(day: i64, course: impl Fn(usize) -> u32) -> DayCounts {
        DayCounts { day, minutes: (0..MINUTES_OF_DAY).map(course).collect() }
    }

    fn whole(days: Vec<DayCounts>) -> Vec<i64> {
        whole_days(&RequestCounts { days, ..RequestCounts::default() }).iter().map(|d| d.day).collect()
    }

    #[test]
    fn days_that_begin_or_end_within_or_have_a_gap_are_left_out() {
        let mut days: Vec<DayCounts> = (0..10).map(|d| day(d, |_| 5)).collect();
        days[0] = day(0, |m| if m < 600 { 0 } else { 5 });
        days[4] = day(4, |m| if (700..760).contains(&m) { 0 } else { 5 });
        days[9] = day(9, |m| if m > 1300 { 0 } else { 5 });
        assert_eq!(whole(days), [1, 2, 3, 5, 6, 7, 8]);
    }

    #[test]
    fn a_quiet_night_is_no_gap() {
        let days: Vec<DayCounts> = (0..8).map(|d| day(d, |m| if m < 400 { 0 } else { 5 })).collect();
        assert_eq!(whole(days).len(), 8);
    }

    #[test]
    fn two_lines_of_a_wrong_clock_are_no_day() {
        let mut days: Vec<DayCounts> = (0..8).map(|d| day(d, |_| 5)).collect();
        days.push(day(40_000, |m| u32::from(m == 77) * 2));
        assert_eq!(whole(days).len(), 8);
    }

    #[test]
    fn a_burst_is_above_its_surroundings_and_chance_is_not() {
        let burst = day(0, |m| if m == 500 { 1000 } else { 100 });
        let d = WholeDay::new(&burst).expect("it has requests");
        assert_eq!((d.busiest, d.level), (1000.0, 1000.0));
        let chance = day(0, |m| if m == 500 { 130 } else { 100 });
        let d = WholeDay::new(&chance).expect("it has requests");
        assert_eq!((d.busiest, d.level), (130.0, 101.0));
        assert_eq!(WholeDay::new(&DayCounts::new(3)), None);
    }
}
