//! When demand reaches a capacity: an 80 % interval of days, or why that cannot be said.
//!
//! Demand is the busiest minute of a day. Its expected rate is the trend of the strongest weekday times the share that a
//! busiest minute has in its day. The day on which it reaches the capacity follows from the trend's parameters. These
//! are drawn from their joint t distribution (a parametric bootstrap: Davison & Hinkley, "Bootstrap Methods and their
//! Application", 1997, 2.2), and an interval is what the middle 80 % of the draws say.
//!
//! Two things a log of weeks does not tell. Compound and linear growth fit it alike but lead to different years: each law
//! with an Akaike weight of at least [`LEAST_SHARE`] gives an interval. And a busiest minute is above the rate behind it
//! by chance, and whether that surplus grows with demand is unknown: there is an interval with it and one without. The
//! result spans them all, so it holds the day at least as often as 80 % in each case.

use lastdrop_model::demand::weekday;
use lastdrop_model::documents::DemandGrowth;
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::days::WholeDay;
use super::trend::{GrowthLaw, Trend};

/// A rhythm is one if it was there twice.
pub const FEWEST_DAYS: usize = 14;
/// 80 % of the draws are between these quantiles.
const QUANTILES: [f64; 2] = [0.1, 0.9];
const DRAWS: usize = 1500;
/// A law of growth that fits worse is not considered.
const LEAST_SHARE: f64 = 0.05;
/// Growth that chance would show more often than this is none.
const LEVEL: f64 = 0.05;
/// A day further away than this is no forecast, nor is an interval of more than half a year whose end is so many times as far as
/// its beginning.
const HORIZON_DAYS: f64 = 3653.0;
const LEAST_WIDE_DAYS: f64 = 183.0;
const MOST_WIDE: f64 = 8.0;

/// Growth and rhythm of demand.
#[derive(Debug, Clone, PartialEq)]
pub struct DemandTrend {
    compound: Trend,
    linear: Option<Trend>,
    share: f64,
    last_day: i64,
    /// The weekday with the busiest minutes.
    strongest: usize,
    /// ln of the strongest weekday's busiest minute as a share of its day: without what may be chance, and with it.
    shares: [f64; 2],
    share_error: f64,
}

impl DemandTrend {
    /// Fits the trend of whole days.
    ///
    /// # Errors
    /// Says why there is none.
    pub fn fit(days: &[WholeDay]) -> Result<DemandTrend, String> {
        let few =
            || format!("the logs have {} whole days; growth beside a weekly rhythm needs {FEWEST_DAYS}", days.len());
        let (Some(first), Some(last)) = (days.first(), days.last()) else { return Err(few()) };
        if days.len() < FEWEST_DAYS || last.day - first.day + 1 < FEWEST_DAYS as i64 {
            return Err(few());
        }
        let compound = Trend::fit(days, GrowthLaw::Compound).ok_or_else(few)?;
        let linear = Trend::fit(days, GrowthLaw::Linear);
        let share = linear.as_ref().map_or(1.0, |linear| compound.share_beside(linear));
        let of_weekday = |weekday: usize, of: fn(&WholeDay) -> f64| {
            let shares = days.iter().filter(|d| d.weekday == weekday).map(|d| (of(d) / d.requests).ln());
            median(shares.collect())
        };
        let busiest = std::array::from_fn::<_, 7, _>(|w| of_weekday(w, |d| d.busiest));
        let strength = |w: &usize| compound.levels[*w].zip(busiest[*w]).map(|(level, share)| level + share);
        let strongest = (0..7)
            .filter(|w| strength(w).is_some())
            .max_by(|a, b| strength(a).partial_cmp(&strength(b)).unwrap_or(std::cmp::Ordering::Equal))
            .ok_or_else(few)?;
        let shares = [of_weekday(strongest, |d| d.level), busiest[strongest]].map(Option::unwrap_or_default);
        let errors = days.iter().filter_map(|d| Some((d.busiest / d.requests).ln() - busiest[d.weekday]?));
        let errors: Vec<f64> = errors.map(f64::abs).collect();
        // Each weekday's median takes a degree of freedom.
        let freedom = (days.len() as f64 / (days.len() as f64 - 7.0).max(1.0)).sqrt();
        let spread = 1.4826 * median(errors).unwrap_or(0.0) * freedom;
        let alike = days.iter().filter(|d| d.weekday == strongest).count() as f64;
        // The standard error of a median of normal values.
        let share_error = 1.2533 * spread / alike.sqrt();
        Ok(DemandTrend { compound, linear, share, last_day: last.day, strongest, shares, share_error })
    }

    /// Growth as a document has it.
    #[must_use]
    pub fn growth(&self) -> DemandGrowth {
        let trend = &self.compound;
        let error = trend.growth_variance.sqrt();
        let per_week = |g: f64| (7.0 * g).clamp(-50.0, 50.0).exp_m1();
        let reach = quantile(trend.freedom, QUANTILES[1]) * error;
        DemandGrowth {
            per_week: per_week(trend.growth),
            interval: [per_week(trend.growth - reach), per_week(trend.growth + reach)],
            significant: self.is_significant(),
            noise: trend.noise,
            compound: self.share,
        }
    }

    fn is_significant(&self) -> bool {
        let trend = &self.compound;
        trend.growth > quantile(trend.freedom, 1.0 - LEVEL) * trend.growth_variance.sqrt()
    }

    /// Requests of each weekday against the mean of the week, Monday first; 0 for days that the logs do not have.
    #[must_use]
    pub fn rhythm(&self) -> Vec<f64> {
        let levels = self.compound.levels.map(|level| level.map(f64::exp));
        let known: Vec<f64> = levels.iter().flatten().copied().collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        levels.iter().map(|level| level.map_or(0.0, |level| level / mean)).collect()
    }

    /// The first and the last day (since 1970) of the 80 % interval in which the busiest minute reaches so many requests. The
    /// number itself may be known as an interval.
    ///
    /// # Errors
    /// Says why that cannot be told.
    pub fn reaches(&self, per_minute: [f64; 2]) -> Result<[i64; 2], String> {
        let growth = self.growth();
        let percent = |share: f64| format!("{:+.1} %", share * 100.0);
        let between = format!("{} to {} per week", percent(growth.interval[0]), percent(growth.interval[1]));
        if self.compound.growth <= 0.0 {
            return Err(format!("demand does not grow ({between})"));
        }
        if !growth.significant {
            return Err(format!("the growth may be chance ({between})"));
        }
        let cases = self.laws().flat_map(|trend| self.shares.map(|share| (trend, share)));
        let [mut from, mut to] = [f64::INFINITY, f64::NEG_INFINITY];
        for (trend, share) in cases {
            let [least, most] = per_minute.map(|goal| self.interval(trend, share, goal));
            from = from.min(least[0]);
            to = to.max(most[1]);
        }
        let (near, far) = (from - self.last_day as f64, to - self.last_day as f64);
        if far > HORIZON_DAYS {
            return Err(format!("at this growth ({between}) it may take more than ten years"));
        }
        if far - near > LEAST_WIDE_DAYS && far > MOST_WIDE * near.max(1.0) {
            return Err(format!("the growth ({between}) is too uncertain: in {near:.0} to {far:.0} days"));
        }
        // It happens on a strong day of the week in which the trend gets there.
        let first = (from.floor() as i64).max(self.last_day + 1);
        let last = to.ceil() as i64;
        let later = (0..7).find(|later| weekday(last + later) == self.strongest).unwrap_or(0);
        Ok([first, (last + later).max(first)])
    }

    /// The trends that fit.
    fn laws(&self) -> impl Iterator<Item = &Trend> {
        let compound = Some(&self.compound).filter(|_| self.share >= LEAST_SHARE);
        let linear = self.linear.as_ref().filter(|_| 1.0 - self.share >= LEAST_SHARE);
        compound.into_iter().chain(linear)
    }

    /// The 80 % interval of the day on which the busiest minute has so many requests.
    fn interval(&self, trend: &Trend, share: f64, per_minute: f64) -> [f64; 2] {
        // Any seed will do: the same logs give the same days.
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let goal = per_minute.max(f64::MIN_POSITIVE).ln() - share;
        let draw = |_| {
            let [level, growth] = self.draw_of(trend, &mut random);
            let goal = goal + self.share_error * normal(&mut random);
            trend.middle + trend.law.reaches(goal - level, growth)
        };
        let mut days: Vec<f64> = (0..DRAWS).map(draw).collect();
        days.sort_by(f64::total_cmp);
        QUANTILES.map(|q| days[((DRAWS - 1) as f64 * q).round() as usize])
    }

    /// Level of the strongest weekday and growth, by a bivariate t distribution.
    fn draw_of(&self, trend: &Trend, random: &mut Xoshiro256PlusPlus) -> [f64; 2] {
        let w = self.strongest;
        let (a, b) = (normal(random), normal(random));
        // χ² with whole degrees of freedom, divided by them.
        let freedom = trend.freedom.round().clamp(1.0, 1000.0) as usize;
        let chi = (0..freedom).map(|_| normal(random).powi(2)).sum::<f64>() / freedom as f64;
        let wide = 1.0 / chi.max(1e-6).sqrt();
        let growth_error = trend.growth_variance.sqrt();
        let slope = trend.covariances[w] / growth_error.max(f64::MIN_POSITIVE);
        let rest = (trend.level_variances[w] - slope * slope).max(0.0).sqrt();
        let level = trend.levels[w].unwrap_or_default() + wide * (slope * a + rest * b);
        [level, trend.growth + wide * growth_error * a]
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|v| v.is_finite());
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

fn quantile(freedom: f64, p: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom.max(1.0)).map_or(f64::INFINITY, |t| t.inverse_cdf(p))
}

/// In (0, 1].
fn uniform(random: &mut Xoshiro256PlusPlus) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// By Box and Muller.
fn normal(random: &mut Xoshiro256PlusPlus) -> f64 {
    let (u, v) = (uniform(random), uniform(random));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headroom::fixtures::{Course, days_of};

    /// How many of `logs` logs get an interval, and how many of these hold the true day.
    fn coverage(course: &Course, logs: u64, times: f64) -> (u64, u64) {
        let (mut told, mut held) = (0, 0);
        for seed in 0..logs {
            let days = days_of(course, seed);
            let trend = DemandTrend::fit(&days).expect("two weeks");
            let truth = course.reached(times);
            if let Ok([from, to]) = trend.reaches([course.busiest_minute() * times; 2]) {
                told += 1;
                held += u64::from((from..=to).contains(&truth));
            }
        }
        (told, held)
    }

    #[test]
    fn intervals_hold_the_true_day_as_often_as_they_say() {
        // Logs that grow by a share, and logs that grow by a number: of each at least 80 % are held, but for chance.
        for linear in [false, true] {
            let mut sums = (0, 0);
            for (weeks, noise) in [(4, 0.02), (6, 0.04), (8, 0.04), (12, 0.04), (16, 0.06)] {
                let (told, held) = coverage(&Course { weeks, noise, linear, ..Course::default() }, 16, 1.6);
                sums = (sums.0 + told, sums.1 + held);
            }
            assert!(sums.0 >= 72 && sums.1 * 100 >= 78 * sums.0, "linear {linear}: {sums:?}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_not_told() {
        let none = DemandTrend::fit(&days_of(&Course { weeks: 1, ..Course::default() }, 1));
        assert!(none.expect_err("one week").contains("needs 14"));
        let flat = Course { per_week: 0.0, weeks: 8, noise: 0.05, ..Course::default() };
        let told = (0..40).filter(|seed| {
            let trend = DemandTrend::fit(&days_of(&flat, *seed)).expect("eight weeks");
            trend.reaches([flat.busiest_minute() * 1.5; 2]).is_ok()
        });
        assert!(told.count() <= 5);
        let falling = Course { per_week: -0.03, weeks: 8, ..Course::default() };
        let trend = DemandTrend::fit(&days_of(&falling, 1)).expect("eight weeks");
        assert!(trend.reaches([1e6; 2]).expect_err("it falls").contains("does not grow"));
        let slow = Course { per_week: 0.002, weeks: 26, noise: 0.005, ..Course::default() };
        let trend = DemandTrend::fit(&days_of(&slow, 1)).expect("half a year");
        assert!(trend.reaches([slow.busiest_minute() * 50.0; 2]).expect_err("far").contains("ten years"));
    }
}
