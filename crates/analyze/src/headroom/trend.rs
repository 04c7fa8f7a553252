//! The trend of day totals with a weekly rhythm, by a robust regression.
//!
//! ln(requests of day t) = rhythm(weekday) + growth(t) + noise. Growth is compound, g·t, or linear, ln(1 + g·t), with t
//! in days from the middle of the log. Holidays and failures are outliers, so the fit is an M-estimator with Tukey's
//! bisquare, by iteratively reweighted least squares (Huber & Ronchetti, "Robust Statistics", 2009, 7.8), begun by
//! Huber's weights. The linear law is fitted by Gauss-Newton steps in the same loop. With few days more than parameters
//! the scale is poorly known and a bisquare would reject good days, so Huber's weights stay.
//!
//! Neighbouring days that err alike tell less than their number: if the residuals' lag-1 correlation is r > 0, variances
//! are multiplied by (1 + r) / (1 − r), as for a mean of an AR(1) process.

use super::days::WholeDay;

/// Constants of 95 % efficiency with normal noise.
const HUBER: f64 = 1.345;
const BISQUARE: f64 = 4.685;
const ROUNDS: usize = 30;
/// With fewer days beyond the parameters the weights stay Huber's.
const FEWEST_FOR_BISQUARE: usize = 12;
/// Days differ by at least this, as a share; of a log without any noise nothing would be an outlier.
const LEAST_SCALE: f64 = 1e-4;
/// Days from which a correlation of neighbours is believed, and the most that it widens variances.
const FEWEST_FOR_CORRELATION: usize = 28;
const MOST_INFLATION: f64 = 5.0;

/// How growth continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrowthLaw {
    Compound,
    Linear,
}

/// A fitted trend.
#[derive(Debug, Clone, PartialEq)]
pub struct Trend {
    pub law: GrowthLaw,
    /// The day at which t is 0.
    pub middle: f64,
    /// ln(requests) of each weekday at t = 0; `None` for one that the log does not have.
    pub levels: [Option<f64>; 7],
    /// Growth per day.
    pub growth: f64,
    /// Variances of the levels and of the growth, and each level's covariance with it.
    pub level_variances: [f64; 7],
    pub covariances: [f64; 7],
    pub growth_variance: f64,
    /// Days beyond the parameters.
    pub freedom: f64,
    /// Standard deviation of a day's logarithm.
    pub noise: f64,
    residuals: Vec<f64>,
    inflation: f64,
}

impl GrowthLaw {
    /// The logarithm of the growth up to t, and its derivative by g.
    fn at(self, g: f64, t: f64) -> (f64, f64) {
        match self {
            GrowthLaw::Compound => (g * t, t),
            GrowthLaw::Linear => {
                let x = (1.0 + g * t).max(0.05);
                (x.ln(), t / x)
            }
        }
    }

    /// The t at which the logarithm of the growth is `log`; infinite if never.
    #[must_use]
    pub fn reaches(self, log: f64, g: f64) -> f64 {
        let most = match self {
            GrowthLaw::Compound => log,
            GrowthLaw::Linear => log.exp_m1(),
        };
        if g > 0.0 { most / g } else { f64::INFINITY }
    }
}

impl Trend {
    /// Fits a law; `None` if there are too few days.
    #[must_use]
    pub fn fit(days: &[WholeDay], law: GrowthLaw) -> Option<Trend> {
        let (first, last) = (days.first()?.day as f64, days.last()?.day as f64);
        let middle = (first + last) / 2.0;
        let half = (last - first) / 2.0;
        let mut columns = [None; 7];
        let mut used = 0;
        for (weekday, column) in columns.iter_mut().enumerate() {
            if days.iter().any(|d| d.weekday == weekday) {
                *column = Some(used);
                used += 1;
            }
        }
        let k = used + 1;
        let freedom = days.len().checked_sub(k).filter(|f| *f >= 3)? as f64;
        let points: Vec<(f64, usize, f64)> = days
            .iter()
            .filter_map(|d| Some((d.day as f64 - middle, columns[d.weekday]?, d.requests.max(0.5).ln())))
            .collect();
        let mut theta = vec![0.0; k];
        let mut weights = vec![1.0; points.len()];
        let mut residuals = vec![0.0; points.len()];
        let mut inverse = Vec::new();
        // A linear law must be positive over the whole log.
        let steepest = 0.9 / half.max(1.0);
        let residual = |theta: &[f64], (t, column, y): (f64, usize, f64)| y - theta[column] - law.at(theta[k - 1], t).0;
        for round in 0..ROUNDS {
            residuals.iter_mut().zip(&points).for_each(|(r, p)| *r = residual(&theta, *p));
            if round > 0 {
                let scale = scale(&residuals, freedom);
                let bisquare = round > ROUNDS / 3 && freedom >= FEWEST_FOR_BISQUARE as f64;
                weights.iter_mut().zip(&residuals).for_each(|(w, r)| *w = weight(r / scale, bisquare));
            }
            let mut normal = vec![vec![0.0; k]; k];
            let mut right = vec![0.0; k];
            for ((p, w), r) in points.iter().zip(&weights).zip(&residuals) {
                let slope = law.at(theta[k - 1], p.0).1;
                normal[p.1][p.1] += w;
                normal[p.1][k - 1] += w * slope;
                normal[k - 1][p.1] += w * slope;
                normal[k - 1][k - 1] += w * slope * slope;
                right[p.1] += w * r;
                right[k - 1] += w * slope * r;
            }
            inverse = crate::usl::invert(normal)?;
            for i in 0..k {
                theta[i] += (0..k).map(|j| inverse[i][j] * right[j]).sum::<f64>();
            }
            if law == GrowthLaw::Linear {
                theta[k - 1] = theta[k - 1].clamp(-steepest, steepest);
            }
        }
        residuals.iter_mut().zip(&points).for_each(|(r, p)| *r = residual(&theta, *p));
        let squares: f64 = residuals.iter().zip(&weights).map(|(r, w)| w * r * r).sum();
        let kept: f64 = weights.iter().sum();
        // Huber's weights cut the squares of outliers, bisquare's drop them: both keep `kept` days.
        let variance = (squares / (kept - k as f64).max(1.0)).max(LEAST_SCALE * LEAST_SCALE);
        let inflation = inflation(days, &residuals);
        let spread = variance * inflation;
        let mut trend = Trend {
            law,
            middle,
            levels: [None; 7],
            growth: theta[k - 1],
            level_variances: [0.0; 7],
            covariances: [0.0; 7],
            growth_variance: inverse[k - 1][k - 1] * spread,
            freedom: (kept - k as f64).max(1.0),
            noise: variance.sqrt(),
            residuals,
            inflation,
        };
        for (weekday, column) in columns.iter().enumerate() {
            if let Some(c) = *column {
                trend.levels[weekday] = Some(theta[c]);
                trend.level_variances[weekday] = inverse[c][c] * spread;
                trend.covariances[weekday] = inverse[c][k - 1] * spread;
            }
        }
        trend.growth.is_finite().then_some(trend)
    }

    /// How well this trend fits beside another: its share of both Akaike weights (Burnham & Anderson, "Model Selection
    /// and Multimodel Inference", 2002, 2.9). Both have as many parameters. Outliers count as three deviations.
    #[must_use]
    pub fn share_beside(&self, other: &Trend) -> f64 {
        let scale = self.noise.min(other.noise).max(LEAST_SCALE);
        let loss = |trend: &Trend| {
            let sum: f64 = trend.residuals.iter().map(|r| (r / scale).powi(2).min(9.0)).sum();
            sum / 2.0 / self.inflation.max(other.inflation)
        };
        1.0 / (1.0 + (loss(self) - loss(other)).clamp(-50.0, 50.0).exp())
    }
}

fn weight(u: f64, bisquare: bool) -> f64 {
    match bisquare {
        true => (1.0 - (u / BISQUARE).powi(2)).max(0.0).powi(2),
        false => (HUBER / u.abs()).min(1.0),
    }
}

/// The standard deviation by the median of absolute residuals, which a few outliers do not change.
fn scale(residuals: &[f64], freedom: f64) -> f64 {
    let mut sizes: Vec<f64> = residuals.iter().map(|r| r.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0.0);
    (1.4826 * median * (residuals.len() as f64 / freedom).sqrt()).max(LEAST_SCALE)
}

fn inflation(days: &[WholeDay], residuals: &[f64]) -> f64 {
    if days.len() < FEWEST_FOR_CORRELATION {
        return 1.0;
    }
    let cut = 3.0 * scale(residuals, residuals.len() as f64);
    let cut_to = |r: f64| r.clamp(-cut, cut);
    let (mut pairs, mut products, mut squares) = (0.0, 0.0, 0.0);
    for (i, r) in residuals.iter().enumerate() {
        squares += cut_to(*r).powi(2);
        if i > 0 && days[i].day == days[i - 1].day + 1 {
            products += cut_to(*r) * cut_to(residuals[i - 1]);
            pairs += 1.0;
        }
    }
    if pairs < FEWEST_FOR_CORRELATION as f64 / 2.0 || squares == 0.0 {
        return 1.0;
    }
    let r = (products / pairs) / (squares / residuals.len() as f64);
    ((1.0 + r) / (1.0 - r).max(0.01)).clamp(1.0, MOST_INFLATION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headroom::fixtures::{Course, days_of};

    #[test]
    fn growth_and_rhythm_are_found_in_spite_of_holidays() {
        let course = Course { weeks: 8, per_week: 0.03, noise: 0.02, ..Course::default() };
        let mut days = days_of(&course, 1);
        for holiday in [5, 6, 40] {
            days[holiday].requests *= 0.3;
        }
        let trend = Trend::fit(&days, GrowthLaw::Compound).expect("eight weeks");
        let per_week = (7.0 * trend.growth).exp_m1();
        assert!((per_week - 0.03).abs() < 0.006, "{per_week}");
        let rhythm = |weekday: usize| trend.levels[weekday].expect("a level");
        assert!((rhythm(5) - rhythm(2) - 0.6f64.ln()).abs() < 0.05, "{trend:?}");
    }

    #[test]
    fn too_few_days_have_no_trend() {
        let days = days_of(&Course { weeks: 1, ..Course::default() }, 1);
        assert_eq!(Trend::fit(&days, GrowthLaw::Compound), None);
        assert_eq!(Trend::fit(&[], GrowthLaw::Linear), None);
    }

    #[test]
    fn a_long_log_tells_linear_from_compound_growth() {
        let course = Course { weeks: 40, per_week: 0.04, noise: 0.01, ..Course::default() };
        let days = days_of(&course, 3);
        let compound = Trend::fit(&days, GrowthLaw::Compound).expect("40 weeks");
        let linear = Trend::fit(&days, GrowthLaw::Linear).expect("40 weeks");
        assert!(compound.share_beside(&linear) > 0.99, "{}", compound.share_beside(&linear));
        let few = days_of(&Course { weeks: 3, ..course }, 3);
        let compound = Trend::fit(&few, GrowthLaw::Compound).expect("3 weeks");
        let linear = Trend::fit(&few, GrowthLaw::Linear).expect("3 weeks");
        assert!((0.1..0.9).contains(&compound.share_beside(&linear)));
    }
}
