//! Throughput against users: a fit of Gunther's Universal Scalability Law, and the knee.
//!
//! With N users, X(N) = λN / (1 + σ(N − 1) + κN(N − 1)). λ is the throughput of one user, σ the serial
//! fraction of the work, and κ the cost of coordination between every two users (Gunther, "Guerrilla Capacity
//! Planning", 2007). N / X is linear in 1, N − 1 and N(N − 1), so weighted least squares find the parameters
//! directly. The weights make relative errors count alike.

use lastdrop_model::documents::{Knee, StaircaseStep, Usl};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Fitting three parameters and checking the fit takes this many steps.
const FEWEST: usize = 5;
/// A good fit has at most this root mean square and this largest relative residual.
const RMS: f64 = 0.04;
const LARGEST: f64 = 0.1;

/// The fitted law: λ, σ, κ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law {
    pub lambda: f64,
    pub sigma: f64,
    pub kappa: f64,
}

impl Law {
    /// Returns the throughput with `n` users.
    #[must_use]
    pub fn rps(&self, n: f64) -> f64 {
        self.lambda * n / (1.0 + self.sigma * (n - 1.0) + self.kappa * n * (n - 1.0))
    }

    /// Returns the users at the highest throughput; `None` if throughput only grows.
    #[must_use]
    pub fn peak(&self) -> Option<f64> {
        (self.kappa > 0.0).then(|| ((1.0 - self.sigma).max(0.0) / self.kappa).sqrt().max(1.0))
    }

    /// Returns the users at the highest power X²/N: the positive root of its derivative, 3κN² + (σ − κ)N − (1
    /// − σ) = 0.
    #[must_use]
    pub fn knee(&self) -> Option<f64> {
        let (a, b, c) = (3.0 * self.kappa, self.sigma - self.kappa, self.sigma - 1.0);
        let root = if a > 1e-12 {
            (-b + (b * b - 4.0 * a * c).max(0.0).sqrt()) / (2.0 * a)
        } else if b > 1e-12 {
            -c / b
        } else {
            return None;
        };
        Some(root.max(1.0))
    }
}

/// Coefficients of N/X = a + b(N − 1) + cN(N − 1) and their covariance; columns may be left out.
struct Fit {
    coefficients: [f64; 3],
    covariance: [[f64; 3]; 3],
    squares: f64,
}

fn fit_columns(points: &[(f64, f64)], used: [bool; 3]) -> Option<Fit> {
    let columns: Vec<usize> = (0..3).filter(|i| used[*i]).collect();
    let k = columns.len();
    let row = |n: f64| [1.0, n - 1.0, n * (n - 1.0)];
    let (mut normal, mut right) = (vec![vec![0.0; k]; k], vec![0.0; k]);
    for (n, x) in points {
        let (y, r) = (n / x, row(*n));
        let w = 1.0 / (y * y);
        for (i, ci) in columns.iter().enumerate() {
            right[i] += w * r[*ci] * y;
            for (j, cj) in columns.iter().enumerate() {
                normal[i][j] += w * r[*ci] * r[*cj];
            }
        }
    }
    let inverse = invert(normal)?;
    let mut fit = Fit { coefficients: [0.0; 3], covariance: [[0.0; 3]; 3], squares: 0.0 };
    for (i, ci) in columns.iter().enumerate() {
        fit.coefficients[*ci] = (0..k).map(|j| inverse[i][j] * right[j]).sum();
    }
    for (n, x) in points {
        let (y, r) = (n / x, row(*n));
        let law: f64 = (0..3).map(|i| fit.coefficients[i] * r[i]).sum();
        fit.squares += ((y - law) / y).powi(2);
    }
    let variance = fit.squares / (points.len().saturating_sub(k)).max(1) as f64;
    for (i, ci) in columns.iter().enumerate() {
        for (j, cj) in columns.iter().enumerate() {
            fit.covariance[*ci][*cj] = inverse[i][j] * variance;
        }
    }
    Some(fit)
}

/// Inverts a matrix by Gauss–Jordan elimination with pivots; `None` if it is singular. At most 8 × 8.
pub(crate) fn invert(mut m: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let n = m.len();
    for (i, row) in m.iter_mut().enumerate() {
        row.extend((0..n).map(|j| f64::from(u8::from(i == j))));
    }
    for i in 0..n {
        let pivot = (i..n).max_by(|a, b| m[*a][i].abs().total_cmp(&m[*b][i].abs()))?;
        if m[pivot][i].abs() < 1e-300 {
            return None;
        }
        m.swap(i, pivot);
        let scale = m[i][i];
        m[i].iter_mut().for_each(|x| *x /= scale);
        let base = m[i].clone();
        for (j, row) in m.iter_mut().enumerate() {
            if j != i {
                let factor = row[i];
                row.iter_mut().zip(&base).for_each(|(x, b)| *x -= factor * b);
            }
        }
    }
    Some(m.into_iter().map(|row| row[n..].to_vec()).collect())
}

/// Fits the law to (users, throughput) with non-negative σ and κ.
#[must_use]
pub fn law(points: &[(f64, f64)]) -> Option<Law> {
    let mut best: Option<Fit> = None;
    for used in [[true, true, true], [true, false, true], [true, true, false], [true, false, false]] {
        if points.len() < used.iter().filter(|u| **u).count() {
            continue;
        }
        let Some(fit) = fit_columns(points, used) else { continue };
        let [a, b, c] = fit.coefficients;
        if a > 0.0 && b >= 0.0 && c >= 0.0 && best.as_ref().is_none_or(|f| fit.squares < f.squares) {
            best = Some(fit);
        }
    }
    let [a, b, c] = best?.coefficients;
    Some(Law { lambda: 1.0 / a, sigma: b / a, kappa: c / a })
}

fn points(stairs: &[StaircaseStep]) -> Vec<(f64, f64)> {
    stairs.iter().filter(|s| s.rps > 0.0).map(|s| (f64::from(s.users), s.rps)).collect()
}

/// Fits the law to a staircase. `None` with fewer than five steps.
#[must_use]
pub fn fit(stairs: &[StaircaseStep]) -> Option<Usl> {
    let points = points(stairs);
    if points.len() < FEWEST {
        return None;
    }
    let law = law(&points)?;
    let full = fit_columns(&points, [true; 3])?;
    let t = StudentsT::new(0.0, 1.0, (points.len() - 3) as f64).ok()?.inverse_cdf(0.975);
    let [a, ..] = full.coefficients;
    // First-order error propagation through 1/a, b/a, c/a.
    let of = |i: usize| -> [f64; 2] {
        let v = &full.covariance;
        let (value, variance) = if i == 0 {
            (1.0 / a, v[0][0] / a.powi(4))
        } else {
            let q = full.coefficients[i] / a;
            (q, (v[i][i] - 2.0 * q * v[0][i] + q * q * v[0][0]) / (a * a))
        };
        let half = t * variance.max(0.0).sqrt();
        [(value - half).max(0.0), (value + half).max(0.0)]
    };
    let residuals: Vec<f64> = points.iter().map(|(n, x)| x / law.rps(*n) - 1.0).collect();
    let rms = (residuals.iter().map(|r| r * r).sum::<f64>() / residuals.len() as f64).sqrt();
    let largest = residuals.iter().fold(0.0f64, |m, r| m.max(r.abs()));
    let fits = rms <= RMS && largest <= LARGEST;
    let why = if fits {
        String::new()
    } else {
        format!(
            "the measured throughput is off by up to {:.0} % (root mean square {:.1} %): the law does not describe this server",
            largest * 100.0,
            rms * 100.0
        )
    };
    Some(Usl {
        lambda: law.lambda,
        sigma: law.sigma,
        kappa: law.kappa,
        lambda_interval: of(0),
        sigma_interval: of(1),
        kappa_interval: of(2),
        peak_users: law.peak(),
        peak_rps: law.peak().map(|n| law.rps(n)),
        residuals: residuals.iter().map(|r| (r * 1e4).round() / 1e4).collect(),
        fits,
        why,
    })
}

/// Returns the knee of a staircase, where power X²/N is highest. It comes from the law if that fits and the
/// knee lies among the steps, otherwise from the best step. `None` if power still rises at the last step,
/// because finding it then takes more users.
#[must_use]
pub fn knee(stairs: &[StaircaseStep], usl: Option<&Usl>) -> Option<Knee> {
    let mut sorted: Vec<&StaircaseStep> = stairs.iter().filter(|s| s.rps > 0.0).collect();
    sorted.sort_by_key(|s| s.users);
    let best = best_power(&sorted)?;
    if best + 1 >= sorted.len() {
        return None;
    }
    let last = f64::from(sorted.last()?.users);
    if let Some(usl) = usl.filter(|u| u.fits) {
        let law = Law { lambda: usl.lambda, sigma: usl.sigma, kappa: usl.kappa };
        if let Some(users) = law.knee().filter(|n| *n <= last) {
            return Some(Knee {
                users,
                interval: knee_interval(stairs, law, usl),
                rps: law.rps(users),
                from: "usl".into(),
            });
        }
    }
    let below = if best == 0 { sorted[0] } else { sorted[best - 1] };
    Some(Knee {
        users: f64::from(sorted[best].users),
        interval: [f64::from(below.users), f64::from(sorted[best + 1].users)],
        rps: sorted[best].rps,
        from: "measured".into(),
    })
}

fn best_power(sorted: &[&StaircaseStep]) -> Option<usize> {
    let power = |s: &StaircaseStep| s.rps * s.rps / f64::from(s.users.max(1));
    (0..sorted.len()).max_by(|a, b| power(sorted[*a]).total_cmp(&power(sorted[*b])))
}

/// The 95 % interval, by a bootstrap of the residuals.
fn knee_interval(stairs: &[StaircaseStep], law: Law, usl: &Usl) -> [f64; 2] {
    const REPLICATES: usize = 400;
    let points = points(stairs);
    // Residuals underestimate the errors, because the fit has parameters.
    let inflate = (points.len() as f64 / (points.len() as f64 - 3.0)).sqrt();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(points.len() as u64);
    let mut knees: Vec<f64> = (0..REPLICATES)
        .filter_map(|_| {
            let resampled: Vec<(f64, f64)> = points
                .iter()
                .map(|(n, _)| {
                    let r = usl.residuals[(rng.next_u64() % usl.residuals.len() as u64) as usize];
                    (*n, law.rps(*n) * (1.0 + r * inflate))
                })
                .collect();
            self::law(&resampled)?.knee()
        })
        .collect();
    knees.sort_by(f64::total_cmp);
    let at = |q: f64| knees.get((q * knees.len() as f64) as usize).copied().unwrap_or_default();
    [at(0.025), at(0.975)]
}

/// Chooses the numbers of users for a staircase: doubles until more users clearly add nothing, then refines
/// around the best power.
#[derive(Debug, Clone)]
pub struct Staircase {
    most: u32,
    refinements: u32,
}

/// Largest number of refinement steps.
const REFINEMENTS: u32 = 6;
/// Neighbours of the best step within this factor are close enough.
const CLOSE: f64 = 1.12;

impl Staircase {
    /// Creates a staircase of up to `most` users.
    #[must_use]
    pub fn new(most: u32) -> Staircase {
        Staircase { most: most.max(1), refinements: 0 }
    }

    /// Returns the next number of users after the measured ones; `None` when done.
    pub fn ask(&mut self, measured: &[StaircaseStep]) -> Option<u32> {
        let mut sorted: Vec<&StaircaseStep> = measured.iter().collect();
        sorted.sort_by_key(|s| s.users);
        let Some(last) = sorted.last() else { return Some(1) };
        if self.refinements == 0 && last.users < self.most && !is_past(&sorted) {
            return Some((last.users * 2).min(self.most));
        }
        if self.refinements >= REFINEMENTS {
            return None;
        }
        self.refinements += 1;
        let best = best_power(&sorted)?;
        let gap = |a: usize, b: usize| -> Option<(f64, u32)> {
            let (low, high) = (sorted.get(a)?.users, sorted.get(b)?.users);
            let middle = (f64::from(low) * f64::from(high)).sqrt().round() as u32;
            let ratio = f64::from(high) / f64::from(low);
            (middle > low && middle < high && ratio > CLOSE).then_some((ratio, middle))
        };
        let below = best.checked_sub(1).and_then(|b| gap(b, best));
        let above = gap(best, best + 1);
        below.into_iter().chain(above).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, users)| users)
    }
}

/// Returns whether two doublings in a row added next to nothing, or throughput fell well below its best.
fn is_past(sorted: &[&StaircaseStep]) -> bool {
    let gain = |i: usize| sorted[i].rps < 1.1 * sorted[i - 1].rps;
    let n = sorted.len();
    n >= 4 && gain(n - 1) && gain(n - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stair(users: u32, rps: f64) -> StaircaseStep {
        StaircaseStep { users, rps, mean_us: 0.0, p50_us: 0.0, p99_us: 0.0, errors: 0.0, run: String::new() }
    }

    fn climb(most: u32, rps: impl Fn(f64) -> f64) -> Vec<StaircaseStep> {
        let (mut staircase, mut stairs) = (Staircase::new(most), Vec::new());
        while let Some(users) = staircase.ask(&stairs) {
            stairs.push(stair(users, rps(f64::from(users))));
        }
        stairs
    }

    fn noisy(seed: u64, by: f64) -> impl FnMut() -> f64 {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        move || {
            let normal = (0..12).map(|_| (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0;
            1.0 + by * normal
        }
    }

    #[test]
    fn parameters_of_synthetic_data_come_back() {
        for (sigma, kappa) in [(0.05, 0.001), (0.02, 0.0005), (0.2, 0.0001), (0.0, 0.004), (0.1, 0.0)] {
            let law = Law { lambda: 50.0, sigma, kappa };
            let stairs: Vec<StaircaseStep> =
                [1, 2, 4, 8, 16, 32, 64, 128].map(|n| stair(n, law.rps(f64::from(n)))).into();
            let usl = fit(&stairs).expect("eight steps");
            assert!(usl.fits, "{usl:?}");
            for (found, planted) in [(usl.lambda, 50.0), (usl.sigma, sigma), (usl.kappa, kappa)] {
                assert!((found - planted).abs() <= 0.05 * planted + 1e-9, "{found} for {planted}: {usl:?}");
            }
        }
    }

    #[test]
    fn with_noise_they_lie_in_their_intervals() {
        let law = Law { lambda: 50.0, sigma: 0.05, kappa: 0.001 };
        let inside = (0..100)
            .filter(|seed| {
                let mut noise = noisy(*seed, 0.01);
                let stairs: Vec<StaircaseStep> =
                    [1, 2, 4, 8, 12, 16, 24, 32, 64, 128].map(|n| stair(n, law.rps(f64::from(n)) * noise())).into();
                let usl = fit(&stairs).expect("ten steps");
                let within = |i: [f64; 2], x: f64| i[0] <= x && x <= i[1];
                within(usl.lambda_interval, 50.0)
                    && within(usl.sigma_interval, 0.05)
                    && within(usl.kappa_interval, 0.001)
            })
            .count();
        // Each interval holds in 95 of 100 cases; all three together in at least 85.
        assert!(inside >= 80, "{inside} of 100");
    }

    #[test]
    fn the_knee_of_a_fixed_pool_is_its_size() {
        for workers in [3u32, 4, 11, 16, 23, 50] {
            let stairs = climb(256, |n| n.min(f64::from(workers)) / 0.02);
            let usl = fit(&stairs);
            let knee = knee(&stairs, usl.as_ref()).expect("a knee");
            let off = knee.users / f64::from(workers) - 1.0;
            assert!(off.abs() <= 0.15, "{workers} workers: {knee:?}");
            assert!(knee.interval[0] <= f64::from(workers) && f64::from(workers) <= knee.interval[1]);
        }
    }

    #[test]
    fn the_knee_of_a_law_is_found_through_noise() {
        let law = Law { lambda: 25.0, sigma: 0.0, kappa: 0.0039 };
        let planted = law.knee().expect("it has one");
        let right = (0..50)
            .filter(|seed| {
                let mut noise = noisy(*seed, 0.01);
                let mut factors: Vec<f64> = (0..300).map(|_| noise()).collect();
                let stairs = climb(64, |n| law.rps(n) * std::mem::take(&mut factors.clone()[n as usize]));
                factors.clear();
                let found = knee(&stairs, fit(&stairs).as_ref()).expect("a knee").users;
                (found / planted - 1.0).abs() <= 0.15
            })
            .count();
        assert!(right >= 47, "{right} of 50");
    }

    #[test]
    fn what_does_not_fit_says_so() {
        let stairs: Vec<StaircaseStep> =
            [1, 2, 4, 8, 16, 32, 64].map(|n: u32| stair(n, f64::from(n.min(8)) * 50.0)).into();
        let usl = fit(&stairs).expect("seven steps");
        assert!(!usl.fits && usl.why.contains("does not describe"), "{usl:?}");
    }

    #[test]
    fn a_knee_beyond_the_last_step_is_not_made_up() {
        let stairs = climb(16, |n| 50.0 * n);
        assert_eq!(knee(&stairs, fit(&stairs).as_ref()), None);
    }
}
