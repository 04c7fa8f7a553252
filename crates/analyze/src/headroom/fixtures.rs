//! Logs with known growth, rhythm and noise.

use lastdrop_model::demand::{DayCounts, MINUTES_OF_DAY, RequestCounts};
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::days::{WholeDay, whole_days};
use crate::compare::fixtures::{normal, uniform};

/// The truth behind a log.
#[derive(Debug, Clone)]
pub struct Course {
    pub weeks: i64,
    /// 0.02 is 2 % per week.
    pub per_week: f64,
    /// Each week adds as much as the first, instead of a share of the week before.
    pub linear: bool,
    /// Standard deviation of a day's logarithm.
    pub noise: f64,
    /// Expected requests of the first day's busiest minute, before the rhythm of the week.
    pub per_minute: f64,
    /// Monday first.
    pub rhythm: [f64; 7],
    /// 2026-01-05, a Monday.
    pub begin: i64,
}

impl Default for Course {
    fn default() -> Course {
        Course {
            weeks: 8,
            per_week: 0.03,
            linear: false,
            noise: 0.03,
            per_minute: 1200.0,
            rhythm: [1.0, 1.02, 1.04, 1.0, 0.95, 0.6, 0.55],
            begin: 20_458,
        }
    }
}

impl Course {
    /// Expected requests of the busiest minute of a day.
    fn expected(&self, day: i64) -> f64 {
        let weeks = (day - self.begin) as f64 / 7.0;
        let growth = if self.linear { 1.0 + self.per_week * weeks } else { (1.0 + self.per_week).powf(weeks) };
        self.per_minute * growth * self.rhythm[lastdrop_model::demand::weekday(day)]
    }

    /// Expected requests of the log's busiest minute.
    pub fn busiest_minute(&self) -> f64 {
        (self.begin..self.begin + 7 * self.weeks).map(|day| self.expected(day)).fold(0.0, f64::max)
    }

    /// The first day whose expected busiest minute has so many times the requests of the log's.
    pub fn reached(&self, times: f64) -> i64 {
        let goal = self.busiest_minute() * times;
        (self.begin + 7 * self.weeks..).find(|day| self.expected(*day) >= goal).expect("it grows")
    }
}

/// By Knuth for few, by the normal distribution for many.
pub fn poisson(rng: &mut Xoshiro256PlusPlus, mean: f64) -> u32 {
    if mean > 30.0 {
        return (mean + mean.sqrt() * normal(rng)).round().max(0.0) as u32;
    }
    let (least, mut product, mut n) = ((-mean).exp(), uniform(rng), 0);
    while product > least {
        product *= uniform(rng);
        n += 1;
    }
    n
}

/// The requests of a course by minute: a daily wave with its maximum in the afternoon.
pub fn counts_of(course: &Course, seed: u64) -> RequestCounts {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let wave = |minute: usize| {
        let angle = (minute as f64 / MINUTES_OF_DAY as f64 - 0.6) * std::f64::consts::TAU;
        0.55 + 0.45 * angle.cos()
    };
    let day = |day: i64| {
        let level = course.expected(day) * (course.noise * normal(&mut rng)).exp();
        DayCounts { day, minutes: (0..MINUTES_OF_DAY).map(|m| poisson(&mut rng, level * wave(m))).collect() }
    };
    let days: Vec<DayCounts> = (course.begin..course.begin + 7 * course.weeks).map(day).collect();
    let requests = days.iter().map(DayCounts::total).sum();
    RequestCounts {
        requests,
        first_s: course.begin * 86_400,
        last_s: (course.begin + 7 * course.weeks) * 86_400 - 1,
        days,
        ..RequestCounts::default()
    }
}

pub fn days_of(course: &Course, seed: u64) -> Vec<WholeDay> {
    whole_days(&counts_of(course, seed))
}
