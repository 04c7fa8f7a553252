//! A Gaussian process over the points of a space: predicts the value of untried points, and its uncertainty.
//!
//! Rasmussen and Williams, *Gaussian Processes for Machine Learning* (2006): prediction by equations 2.25 and 2.26,
//! marginal likelihood 2.30, Matérn's covariance with ν = 5/2 (4.17), a length for each parameter (5.1).

use crate::space::{Point, Space};

/// Inverse squares of length scales; each parameter gets the one that explains most. With the first a parameter does
/// next to nothing; with 0 a few unlucky trials would exclude it for good.
const WEIGHTS: [f64; 6] = [0.05, 0.3, 1.5, 6.0, 25.0, 100.0];
/// Standard deviations of the modelled values, as logarithms: from 3 % to a factor of 5.
const AMPLITUDES: [f64; 7] = [0.03, 0.06, 0.12, 0.25, 0.5, 0.9, 1.6];
/// Standard deviations of a point's own part, which its neighbours do not predict.
const ROUGH: [f64; 4] = [0.0, 0.01, 0.02, 0.04];
const SWEEPS: usize = 3;

/// Hyperparameters of the process: how much each parameter matters, and how far values spread.
#[derive(Debug, Clone, PartialEq)]
pub struct Hyperparameters {
    weights: Vec<f64>,
    amplitude: f64,
    /// Each point's own part, in addition to the noise of trials: servers are not smooth.
    rough: f64,
}

/// A process fitted to points with values, which predicts others.
#[derive(Debug)]
pub struct GaussianProcess<'a> {
    space: &'a Space,
    points: Vec<Point>,
    assumed: Hyperparameters,
    mean: f64,
    /// Lower triangle of the Cholesky factor, row by row.
    factor: Vec<Vec<f64>>,
    /// (K + noise)⁻¹ (values − mean)
    solved: Vec<f64>,
}

fn matern(squared: f64) -> f64 {
    let r = (5.0 * squared).sqrt();
    (1.0 + r + r * r / 3.0) * (-r).exp()
}

impl Hyperparameters {
    /// Returns true if a parameter does next to nothing at any level.
    #[must_use]
    pub fn is_idle(&self, parameter: usize) -> bool {
        self.weights[parameter] <= WEIGHTS[0]
    }

    #[must_use]
    pub fn of(space: &Space) -> Hyperparameters {
        Hyperparameters { weights: vec![1.5; space.parameters.len()], amplitude: 0.25, rough: 0.0 }
    }

    fn covariance(&self, space: &Space, a: &Point, b: &Point) -> f64 {
        let parts = space.parameters.iter().zip(&self.weights).zip(a.iter().zip(b));
        let squared = parts.filter(|((_, w), _)| **w > 0.0).map(|((p, w), (a, b))| w * p.distance(*a, *b).powi(2));
        let own = if a == b { self.rough.powi(2) } else { 0.0 };
        self.amplitude.powi(2) * matern(squared.sum()) + own
    }

    /// Returns the prior variance of a point's value.
    fn variance(&self) -> f64 {
        self.amplitude.powi(2) + self.rough.powi(2)
    }

    /// Returns a hyperparameter and its possible values: the weights, then the amplitude, then the roughness.
    fn turn(&mut self, which: usize) -> (&mut f64, &'static [f64]) {
        match which.checked_sub(self.weights.len()) {
            None => (&mut self.weights[which], &WEIGHTS),
            Some(0) => (&mut self.amplitude, &AMPLITUDES),
            Some(_) => (&mut self.rough, &ROUGH),
        }
    }
}

/// Computes the Cholesky factor of a covariance with noise; None if rounding makes the matrix not positive definite.
fn factor(space: &Space, points: &[Point], assumed: &Hyperparameters, noise: &[f64]) -> Option<Vec<Vec<f64>>> {
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(points.len());
    for (i, point) in points.iter().enumerate() {
        let mut row = Vec::with_capacity(i + 1);
        for (j, other) in points[..=i].iter().enumerate() {
            let own = if i == j { noise[i] + 1e-9 } else { 0.0 };
            let before = if j < i { &rows[j] } else { &row };
            let dot: f64 = row.iter().zip(before).take(j).map(|(a, b): (&f64, &f64)| a * b).sum();
            let left = assumed.covariance(space, point, other) + own - dot;
            let entry = if i == j { Some(left).filter(|l| *l > 0.0)?.sqrt() } else { left / rows[j][j] };
            row.push(entry);
        }
        rows.push(row);
    }
    Some(rows)
}

fn forward(rows: &[Vec<f64>], values: &[f64]) -> Vec<f64> {
    let mut out: Vec<f64> = Vec::with_capacity(values.len());
    for (row, value) in rows.iter().zip(values) {
        let dot: f64 = row.iter().zip(&out).map(|(a, b)| a * b).sum();
        out.push((value - dot) / row[out.len()]);
    }
    out
}

fn backward(rows: &[Vec<f64>], values: &[f64]) -> Vec<f64> {
    let mut out = values.to_vec();
    for i in (0..rows.len()).rev() {
        out[i] /= rows[i][i];
        let solved = out[i];
        for (above, entry) in out[..i].iter_mut().zip(&rows[i]) {
            *above -= entry * solved;
        }
    }
    out
}

/// A fit and its log-likelihood.
struct ProcessFit {
    mean: f64,
    factor: Vec<Vec<f64>>,
    solved: Vec<f64>,
    likelihood: f64,
}

fn fit(
    space: &Space,
    points: &[Point],
    values: &[f64],
    noise: &[f64],
    assumed: &Hyperparameters,
) -> Option<ProcessFit> {
    let factor = factor(space, points, assumed, noise)?;
    let ones = forward(&factor, &vec![1.0; values.len()]);
    let half = forward(&factor, values);
    // The mean that makes the values most likely (generalised least squares).
    let mean = half.iter().zip(&ones).map(|(v, o)| v * o).sum::<f64>() / ones.iter().map(|o| o * o).sum::<f64>();
    let half: Vec<f64> = half.iter().zip(&ones).map(|(v, o)| v - mean * o).collect();
    let determinant: f64 = factor.iter().enumerate().map(|(i, row)| row[i].ln()).sum();
    let likelihood = -0.5 * half.iter().map(|v| v * v).sum::<f64>() - determinant;
    let solved = backward(&factor, &half);
    Some(ProcessFit { mean, factor, solved, likelihood })
}

impl<'a> GaussianProcess<'a> {
    /// Returns the process under which these values, each with its noise variance, are most likely. Searches from the
    /// hyperparameters given. None without a point.
    #[must_use]
    pub fn fitted(
        space: &'a Space,
        points: Vec<Point>,
        values: &[f64],
        noise: &[f64],
        assumed: Hyperparameters,
    ) -> Option<GaussianProcess<'a>> {
        let mut best = fit(space, &points, values, noise, &assumed)?;
        let mut assumed = assumed;
        for _ in 0..SWEEPS {
            let before = assumed.clone();
            for turned in 0..assumed.weights.len() + 2 {
                let others = assumed.turn(turned).1;
                for value in others {
                    let mut other = assumed.clone();
                    *other.turn(turned).0 = *value;
                    if other == assumed {
                        continue;
                    }
                    let tried = fit(space, &points, values, noise, &other);
                    if let Some(better) = tried.filter(|t| t.likelihood > best.likelihood) {
                        (best, assumed) = (better, other);
                    }
                }
            }
            if assumed == before {
                break;
            }
        }
        let ProcessFit { mean, factor, solved, .. } = best;
        Some(GaussianProcess { space, points, assumed, mean, factor, solved })
    }

    #[must_use]
    pub fn assumed(&self) -> &Hyperparameters {
        &self.assumed
    }

    /// Returns the mean and standard deviation of the difference between the values of two points.
    #[must_use]
    pub fn difference(&self, a: &Point, b: &Point) -> (f64, f64) {
        let covariance = |a: &Point, b: &Point| self.assumed.covariance(self.space, a, b);
        let near: Vec<f64> = self.points.iter().map(|p| covariance(p, a) - covariance(p, b)).collect();
        let mean = near.iter().zip(&self.solved).map(|(a, b)| a * b).sum();
        let known: f64 = forward(&self.factor, &near).iter().map(|v| v * v).sum();
        let apart = 2.0 * (self.assumed.variance() - covariance(a, b));
        (mean, (apart - known).max(0.0).sqrt())
    }

    /// Returns the mean and standard deviation of a point's value, without noise.
    #[must_use]
    pub fn predict(&self, point: &Point) -> (f64, f64) {
        let near: Vec<f64> = self.points.iter().map(|p| self.assumed.covariance(self.space, p, point)).collect();
        let mean = self.mean + near.iter().zip(&self.solved).map(|(a, b)| a * b).sum::<f64>();
        let known: f64 = forward(&self.factor, &near).iter().map(|v| v * v).sum();
        (mean, (self.assumed.variance() - known).max(0.0).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Parameter;

    fn space() -> Space {
        let parameters = vec![Parameter::sizes("a", 1, 64, 1, 1), Parameter::sizes("b", 1, 64, 1, 1)];
        Space { parameters, limits: Vec::new() }
    }

    fn fitted(space: &Space, of: impl Fn(&Point) -> f64, noise: f64) -> GaussianProcess<'_> {
        let levels = space.parameters[0].levels.len();
        let points: Vec<Point> = (0..16).map(|i| vec![(i * 7) % levels, (i * 5) % levels]).collect();
        let values: Vec<f64> = points.iter().map(of).collect();
        let noise = vec![noise * noise; points.len()];
        GaussianProcess::fitted(space, points, &values, &noise, Hyperparameters::of(space)).expect("points")
    }

    #[test]
    fn the_factor_times_itself_is_the_covariance_and_solving_undoes_it() {
        let space = space();
        let points: Vec<Point> = vec![vec![0, 0], vec![5, 3], vec![9, 9]];
        let assumed = Hyperparameters::of(&space);
        let rows = factor(&space, &points, &assumed, &[0.01; 3]).expect("a covariance");
        for i in 0..3 {
            for j in 0..=i {
                let product: f64 = rows[i].iter().zip(&rows[j]).map(|(a, b)| a * b).sum();
                let entry = assumed.covariance(&space, &points[i], &points[j]) + if i == j { 0.01 } else { 0.0 };
                assert!((product - entry).abs() < 1e-6, "{i} {j}");
            }
        }
        let solved = backward(&rows, &forward(&rows, &[1.0, 2.0, 3.0]));
        let back: f64 = (0..3)
            .map(|j| (assumed.covariance(&space, &points[1], &points[j]) + if j == 1 { 0.01 } else { 0.0 }) * solved[j])
            .sum();
        assert!((back - 2.0).abs() < 1e-6, "{back}");
    }

    #[test]
    fn it_finds_which_parameter_matters_and_what_lies_between() {
        let space = space();
        let of = |p: &Point| -(space.parameters[0].distance(p[0], 10)).powi(2);
        let process = fitted(&space, of, 0.01);
        assert!(process.assumed.weights[0] > process.assumed.weights[1], "{:?}", process.assumed);
        let (mean, sd) = process.predict(&vec![10, 2]);
        assert!(mean.abs() < 0.03 && sd < 0.05, "{mean} ± {sd}");
        assert!(process.predict(&vec![0, 0]).0 < -0.2);
        let (better, sd) = process.difference(&vec![10, 2], &vec![0, 2]);
        let apart = process.predict(&vec![10, 2]).0 - process.predict(&vec![0, 2]).0;
        assert!((better - apart).abs() < 1e-9 && sd < 0.15, "{better} ± {sd}, {apart}");
        assert!(process.difference(&vec![10, 2], &vec![10, 2]).1 < 1e-6);
    }

    #[test]
    fn where_nothing_matters_nothing_is_promised() {
        let space = space();
        let process = fitted(&space, |p| 0.02 * f64::from((p[0] * 31 + p[1] * 17) as u32 % 7) / 7.0, 0.02);
        let (mean, sd) = process.predict(&vec![3, 3]);
        assert!((mean - 0.009).abs() < 0.02 && sd < 0.04, "{mean} ± {sd}");
    }
}
