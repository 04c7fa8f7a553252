//! A tree-structured Parzen estimator: Bergstra, Bardenet, Bengio and Kégl, "Algorithms for hyper-parameter
//! optimization" (2011).

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::space::{Point, Space};
use crate::strategy::{History, Strategy};

/// Random trials at the start, the share of good trials, and candidates per step, as in the paper and its
/// implementations.
const FIRST: usize = 8;
const GOOD: f64 = 0.25;
const CANDIDATES: usize = 24;
/// Width of a kernel as a share of the whole range.
const WIDTH: f64 = 0.15;

#[derive(Debug)]
pub struct ParzenSearch {
    rng: Xoshiro256PlusPlus,
}

impl ParzenSearch {
    #[must_use]
    pub fn new(seed: u64) -> ParzenSearch {
        ParzenSearch { rng: Xoshiro256PlusPlus::seed_from_u64(seed) }
    }

    /// Returns the density of a parameter's levels among some points, plus a uniform part.
    fn density(space: &Space, parameter: usize, of: &[&Point]) -> Vec<f64> {
        let p = &space.parameters[parameter];
        let count = p.levels.len();
        let near = |a: usize, b: usize| (-0.5 * (p.distance(a, b) / WIDTH).powi(2)).exp();
        let mut weights = vec![1.0 / count as f64; count];
        for point in of.iter().filter(|point| space.matters(point, parameter)) {
            let whole: f64 = (0..count).map(|level| near(level, point[parameter])).sum();
            for (level, weight) in weights.iter_mut().enumerate() {
                *weight += near(level, point[parameter]) / whole;
            }
        }
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|w| w / sum).collect()
    }

    fn draw(&mut self, weights: &[f64]) -> usize {
        let mut left = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        weights
            .iter()
            .position(|w| {
                left -= w;
                left < 0.0
            })
            .unwrap_or(weights.len() - 1)
    }
}

impl Strategy for ParzenSearch {
    fn name(&self) -> &'static str {
        "parzen"
    }

    fn next(&mut self, space: &Space, history: &History) -> Option<Point> {
        if history.trials.is_empty() {
            return Some(space.start());
        }
        if history.trials.len() < FIRST {
            return Some(space.any(&mut self.rng));
        }
        let value = |p: &Point| history.mean(p).map_or(f64::NEG_INFINITY, |m| m.0);
        let mut points: Vec<&Point> = Vec::new();
        for (point, _) in &history.trials {
            if !points.contains(&point) {
                points.push(point);
            }
        }
        points.sort_by(|a, b| value(b).total_cmp(&value(a)));
        let split = ((points.len() as f64 * GOOD).ceil() as usize).max(1);
        let (good, bad) = points.split_at(split);
        let parameters = 0..space.parameters.len();
        let of =
            |points: &[&Point]| parameters.clone().map(|p| ParzenSearch::density(space, p, points)).collect::<Vec<_>>();
        let (good, bad) = (of(good), of(bad));
        let mut best: Option<(f64, Point)> = None;
        for _ in 0..CANDIDATES {
            let point: Point = good.iter().map(|weights| self.draw(weights)).collect();
            let point = space.canonical(point);
            if !space.allows(&point) || history.was_tried(&point) {
                continue;
            }
            let ratio = |(p, level): (usize, &usize)| (good[p][*level] / bad[p][*level]).ln();
            let score: f64 = point.iter().enumerate().map(ratio).sum();
            if best.as_ref().is_none_or(|(s, _)| score > *s) {
                best = Some((score, point));
            }
        }
        Some(best.map_or_else(|| space.any(&mut self.rng), |(_, point)| point))
    }
}
