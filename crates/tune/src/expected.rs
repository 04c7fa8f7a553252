//! The search that ships: expected improvement under a Gaussian process, after the first moves of an expert.
//!
//! Jones, Schonlau and Welch, "Efficient global optimization of expensive black-box functions" (1998), equation 15.
//! With noise, the augmented form of Huang, Allen, Notz and Zeng, "Global optimization of stochastic black-box systems"
//! (2006), equation 11. No point is tried twice: a point nearby tells as much about it and more about the rest, and a
//! race shows whether the best is really better.

use std::collections::VecDeque;

use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use crate::gaussian::{GaussianProcess, Hyperparameters};
use crate::space::{Point, Space};
use crate::strategy::{History, Strategy};

/// Up to this many combinations, all are candidates; of more, `CHANCE` random ones and the neighbours of the `BEST`
/// best.
const ALL: usize = 1500;
const CHANCE: usize = 300;
const BEST: usize = 3;
/// An invalid trial counts as this much worse than the worst valid one (a factor of e^0.3).
const FAILED: f64 = 0.3;

/// Differences from the best up to about this (natural logarithm) are used unchanged, larger ones by their logarithm.
const NEAR: f64 = 0.3;
/// A change with less expected gain than this (natural logarithm) is not worth asking for.
const NOTHING: f64 = 0.004;
/// Weight of a point's own measurements against the prediction from all points: servers are less smooth than the
/// process assumes.
const ITSELF: f64 = 0.05;

#[derive(Debug)]
pub struct ExpectedImprovement {
    rng: Xoshiro256PlusPlus,
    /// First moves of an expert, the most promising first.
    moves: VecDeque<Point>,
    /// The search ends when it promises less than this (natural logarithm).
    worth: f64,
    assumed: Option<Hyperparameters>,
    /// There were first moves.
    has_moves: bool,
    spread: Option<VecDeque<Point>>,
}

impl ExpectedImprovement {
    #[must_use]
    pub fn new(seed: u64, moves: Vec<Point>, worth: f64) -> ExpectedImprovement {
        let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let has_moves = !moves.is_empty();
        ExpectedImprovement { rng, moves: moves.into(), worth, assumed: None, has_moves, spread: None }
    }

    /// Returns one point more than there are parameters, each in another part of every parameter's levels (a Latin
    /// hypercube). After first moves, which have shown much already, half as many.
    fn spread(&mut self, space: &Space) -> VecDeque<Point> {
        use rand_core::Rng;
        let parameters = space.parameters.len();
        let count = if self.has_moves { (parameters / 2 + 1).max(2) } else { (parameters + 1).max(3) };
        let mut points = vec![space.start(); count];
        for (parameter, p) in space.parameters.iter().enumerate() {
            let mut parts: Vec<usize> = (0..count).collect();
            for i in (1..count).rev() {
                parts.swap(i, (self.rng.next_u64() % (i as u64 + 1)) as usize);
            }
            for (point, part) in points.iter_mut().zip(parts) {
                point[parameter] = (2 * part + 1) * p.levels.len() / (2 * count);
            }
        }
        points.into_iter().map(|p| space.canonical(p)).filter(|p| space.allows(p)).collect()
    }

    fn candidates(&mut self, space: &Space, best: &[Point]) -> Vec<Point> {
        if let Some(all) = space.all(ALL) {
            return all;
        }
        let mut points: Vec<Point> = (0..CHANCE).map(|_| space.any(&mut self.rng)).collect();
        for point in best {
            points.extend(space.beside(point));
            points.push(point.clone());
        }
        points.sort_unstable();
        points.dedup();
        points
    }
}

/// The effect of one parameter on a point's value: the point compared with the same point at another level.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    pub parameter: usize,
    pub level: usize,
    pub other: usize,
    /// How many times better, with the bounds of 95 %.
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
}

impl ExpectedImprovement {
    /// Returns the effect of each active parameter at a point: compared with its present level, or, if it has that
    /// level, with the best other one.
    #[must_use]
    pub fn effects(&self, space: &Space, history: &History, point: &Point) -> Vec<Effect> {
        let (points, values, noise) = told(history);
        let assumed = self.assumed.clone().unwrap_or_else(|| Hyperparameters::of(space));
        let Some(process) = GaussianProcess::fitted(space, points, &values, &noise, assumed) else { return Vec::new() };
        let start = space.start();
        let with = |parameter: usize, level: usize| {
            let mut other = point.clone();
            other[parameter] = level;
            space.canonical(other)
        };
        let effect = |parameter: usize| {
            let levels = 0..space.parameters[parameter].levels.len();
            let others = levels.filter(|level| *level != point[parameter] && space.allows(&with(parameter, *level)));
            let value = |level: &usize| process.predict(&with(parameter, *level)).0;
            let other = if point[parameter] == start[parameter] {
                others.max_by(|a, b| value(a).total_cmp(&value(b)))?
            } else {
                start[parameter]
            };
            let (mean, sd) = process.difference(point, &with(parameter, other));
            let [low, ratio, high] = [mean - 1.96 * sd, mean, mean + 1.96 * sd].map(|d| far(d).exp());
            Some(Effect { parameter, level: point[parameter], other, ratio, low, high })
        };
        (0..point.len()).filter(|p| space.matters(point, *p)).filter_map(effect).collect()
    }
}

/// Reverses the compression of large differences.
fn far(difference: f64) -> f64 {
    NEAR * ((difference.abs() / NEAR).exp() - 1.0) * difference.signum()
}

/// Returns the tried points with mean values and variances of these; invalid ones count as bad.
fn told(history: &History) -> (Vec<Point>, Vec<f64>, Vec<f64>) {
    let worst = history.trials.iter().filter_map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let bad = if worst.is_finite() { worst - FAILED } else { 0.0 };
    let best = history.points().iter().filter_map(|p| Some(history.mean(p)?.0)).fold(f64::NEG_INFINITY, f64::max);
    // How bad a bad point is says little about where the best is, and would make the surface look rough.
    let near = |value: f64| best - NEAR * ((best - value) / NEAR).max(0.0).ln_1p();
    let (mut points, mut values, mut noise) = (Vec::<Point>::new(), Vec::new(), Vec::new());
    for (point, _) in &history.trials {
        if !points.contains(point) {
            let (mean, n) = history.mean(point).unwrap_or((bad, 1));
            points.push(point.clone());
            values.push(if best.is_finite() { near(mean) } else { mean });
            noise.push(history.noise.powi(2) / n as f64);
        }
    }
    (points, values, noise)
}

/// Returns the expected improvement over `best` of a value with this mean and deviation.
fn improvement(mean: f64, sd: f64, best: f64) -> f64 {
    if sd <= 0.0 {
        return (mean - best).max(0.0);
    }
    let z = (mean - best) / sd;
    (mean - best) * Normal::standard().cdf(z) + sd * Normal::standard().pdf(z)
}

/// Returns a point that has to be tried before the search ends. The effect of a level may depend on parameters that are
/// active only with it, and trials with bad values of these say nothing. So each such level is tried from the best
/// point with both ends of the dependent parameter.
fn doubt(space: &Space, history: &History, best: &Point) -> Option<Point> {
    for (child, parameter) in space.parameters.iter().enumerate() {
        let Some((parent, levels)) = &parameter.when else { continue };
        for level in levels.iter().filter(|level| **level != best[*parent]) {
            for end in [0, parameter.levels.len() - 1] {
                let mut point = best.clone();
                (point[*parent], point[child]) = (*level, end);
                let point = space.canonical(point);
                if space.allows(&point) && !history.was_tried(&point) {
                    return Some(point);
                }
            }
        }
    }
    None
}

/// Returns the point that joins, for each parameter, the level that was best where it alone was changed; the start's where none was
/// better.
fn joined(space: &Space, history: &History) -> Point {
    let start = space.start();
    let points = history.points();
    let level = |parameter: usize| {
        let alone = |point: &&&Point| (0..point.len()).all(|p| p == parameter || point[p] == start[p]);
        let means = points.iter().filter(alone).filter_map(|point| Some((history.mean(point)?.0, point[parameter])));
        means.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(start[parameter], |(_, level)| level)
    };
    space.canonical((0..start.len()).map(level).collect())
}

impl Strategy for ExpectedImprovement {
    fn name(&self) -> &'static str {
        "expected improvement"
    }

    fn next(&mut self, space: &Space, history: &History) -> Option<Point> {
        if history.trials.is_empty() {
            return Some(space.start());
        }
        while let Some(point) = self.moves.pop_front() {
            let point = space.canonical(point);
            if space.allows(&point) && !history.was_tried(&point) {
                return Some(point);
            }
        }
        if self.spread.is_none() {
            let joined = self.has_moves.then(|| joined(space, history));
            self.spread = Some(joined.into_iter().chain(self.spread(space)).collect());
        }
        while let Some(point) = self.spread.as_mut().and_then(VecDeque::pop_front) {
            if space.allows(&point) && !history.was_tried(&point) {
                return Some(point);
            }
        }
        let (points, values, noise) = told(history);
        let assumed = self.assumed.take().unwrap_or_else(|| Hyperparameters::of(space));
        let process = GaussianProcess::fitted(space, points, &values, &noise, assumed)?;
        self.assumed = Some(process.assumed().clone());
        let counted = history.points();
        let careful = |p: &Point| {
            let (mean, sd) = process.predict(p);
            mean - sd
        };
        let mut best: Vec<Point> = counted.into_iter().cloned().collect();
        best.sort_by(|a, b| careful(b).total_cmp(&careful(a)));
        best.truncate(BEST);
        let least = best.first().map_or(f64::NEG_INFINITY, |p| process.predict(p).0);
        let candidates = self.candidates(space, &best);
        let promise = |point: Point| {
            let (mean, sd) = process.predict(&point);
            // What another noisy trial would reveal about it.
            let learnt = 1.0 - history.noise / (sd * sd + history.noise.powi(2)).sqrt().max(1e-12);
            (improvement(mean, sd, least) * learnt, point)
        };
        let new = candidates.into_iter().filter(|p| !history.was_tried(p)).map(promise);
        let promising = new.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(promised, _)| *promised >= self.worth);
        promising.map(|(_, point)| point).or_else(|| doubt(space, history, best.first()?))
    }

    fn ranked(&self, space: &Space, history: &History) -> Vec<Point> {
        let (points, values, noise) = told(history);
        let assumed = self.assumed.clone().unwrap_or_else(|| Hyperparameters::of(space));
        let Some(process) = GaussianProcess::fitted(space, points, &values, &noise, assumed) else { return Vec::new() };
        let worth = |p: &Point| {
            let predicted = process.predict(p).0;
            predicted + ITSELF * history.mean(p).map_or(0.0, |(mean, _)| mean - predicted)
        };
        let mut all: Vec<(f64, &Point)> = history.points().into_iter().map(|p| (worth(p), p)).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.into_iter().map(|(_, p)| p.clone()).collect()
    }

    /// Takes back changes that do next to nothing anywhere, the one with the smallest expected gain first, as long as
    /// that gain is negligible: the effect of the others may depend on it. A parameter that matters elsewhere may
    /// matter here too, hidden by noise.
    fn plain(&self, space: &Space, history: &History, point: &Point) -> Point {
        let (points, values, noise) = told(history);
        let assumed = self.assumed.clone().unwrap_or_else(|| Hyperparameters::of(space));
        let Some(process) = GaussianProcess::fitted(space, points, &values, &noise, assumed) else {
            return point.clone();
        };
        let start = space.start();
        let mut plain = point.clone();
        loop {
            let without = |parameter: usize| {
                let mut other = plain.clone();
                other[parameter] = start[parameter];
                space.canonical(other)
            };
            let idle = |p: &usize| plain[*p] != start[*p] && process.assumed().is_idle(*p);
            let changed = (0..plain.len()).filter(idle).map(without);
            let fewer = changed.filter(|other| *other != start && space.allows(other));
            let gains = fewer.map(|other| (process.difference(&plain, &other).0, other));
            match gains.min_by(|a, b| a.0.total_cmp(&b.0)) {
                Some((gain, other)) if gain < NOTHING => plain = other,
                _ => return plain,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_and_what_does_not_is_told_with_an_interval() {
        use crate::space::Parameter;
        let parameters = vec![
            Parameter::sizes("workers", 4, 64, 1, 4),
            Parameter::kinds("nothing", vec!["On".into(), "Off".into()], 0),
        ];
        let space = Space { parameters, limits: Vec::new() };
        let mut strategy = ExpectedImprovement::new(3, Vec::new(), 0.0);
        let mut history = History { noise: 0.02, ..History::default() };
        let value = |p: &Point| -space.parameters[0].distance(p[0], 8);
        while history.trials.len() < 20
            && let Some(point) = strategy.next(&space, &history)
        {
            let luck = 0.02 * ((history.trials.len() * 7 % 5) as f64 - 2.0) / 2.0;
            history.trials.push((point.clone(), Some(value(&point) + luck)));
        }
        let best = strategy.ranked(&space, &history).remove(0);
        let effects = strategy.effects(&space, &history, &best);
        let truth = (value(&best) - value(&space.start())).exp();
        let workers = &effects[0];
        assert!(workers.parameter == 0 && workers.other == 0 && workers.low > 1.2, "{effects:?}");
        assert!((workers.low * 0.9..workers.high * 1.1).contains(&truth), "{truth}: {effects:?}");
        assert!(effects[1].low < 1.0 && effects[1].high > 1.0 && effects[1].high < 1.2, "{effects:?}");
    }

    #[test]
    fn what_helped_alone_is_tried_together() {
        use crate::space::Parameter;
        let kinds = |name| Parameter::kinds(name, vec!["Off".into(), "On".into()], 0);
        let space = Space { parameters: vec![kinds("a"), kinds("b"), kinds("c")], limits: Vec::new() };
        let trials = [(vec![0, 0, 0], 1.0), (vec![1, 0, 0], 1.2), (vec![0, 1, 0], 0.9), (vec![0, 0, 1], 1.1)];
        let trials = trials.map(|(point, value)| (point, Some(value))).to_vec();
        let history = History { noise: 0.01, trials };
        let mut strategy = ExpectedImprovement::new(1, vec![vec![1, 0, 0]], 0.0);
        assert_eq!(strategy.next(&space, &history), Some(vec![1, 0, 1]));
    }

    #[test]
    fn improvement_is_that_of_the_formula() {
        // Mean at the best: sd · φ(0).
        assert!((improvement(1.0, 2.0, 1.0) - 2.0 * 0.398_942_28).abs() < 1e-6);
        assert!((improvement(3.0, 0.0, 1.0) - 2.0).abs() < 1e-12 && improvement(0.0, 0.0, 1.0) == 0.0);
        assert!(improvement(0.0, 1.0, 3.0) < 0.001);
    }
}
