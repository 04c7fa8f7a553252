//! One-factor search: sweeps each parameter by itself from the present value, as people do by hand; then combines the
//! best of each.

use crate::space::{Point, Space};
use crate::strategy::{History, Strategy};

#[derive(Debug)]
pub struct OneFactorSearch {
    queue: Vec<Point>,
    begun: bool,
    combined: bool,
    /// Trials that it may use.
    budget: usize,
}

impl OneFactorSearch {
    #[must_use]
    pub fn new(budget: usize) -> OneFactorSearch {
        OneFactorSearch { queue: Vec::new(), begun: false, combined: false, budget }
    }

    fn sweeps(&self, space: &Space) -> Vec<Point> {
        let each = ((self.budget - 2) / space.parameters.len().max(1)).max(1);
        let mut points = Vec::new();
        for (parameter, p) in space.parameters.iter().enumerate() {
            let last = p.levels.len() - 1;
            let mut levels: Vec<usize> = (0..=each).map(|i| i * last / each.max(1)).collect();
            levels.dedup();
            levels.retain(|l| *l != p.present);
            levels.truncate(each);
            points.extend(levels.into_iter().map(|level| {
                let mut point = space.start();
                point[parameter] = level;
                space.canonical(point)
            }));
        }
        points.retain(|p| space.allows(p) && *p != space.start());
        points.dedup();
        points.reverse();
        points
    }

    /// Returns the point with each parameter at its best level by itself.
    fn together(space: &Space, history: &History) -> Point {
        let start = space.start();
        let mut point = start.clone();
        for parameter in 0..point.len() {
            let alone = |p: &&Point| (0..p.len()).all(|other| other == parameter || p[other] == start[other]);
            let value = |p: &&Point| history.mean(p).map_or(f64::NEG_INFINITY, |m| m.0);
            let best = history.points().into_iter().filter(alone).max_by(|a, b| value(a).total_cmp(&value(b)));
            if let Some(best) = best {
                point[parameter] = best[parameter];
            }
        }
        space.canonical(point)
    }
}

impl Strategy for OneFactorSearch {
    fn name(&self) -> &'static str {
        "one factor"
    }

    fn next(&mut self, space: &Space, history: &History) -> Option<Point> {
        if history.trials.is_empty() {
            return Some(space.start());
        }
        if !std::mem::replace(&mut self.begun, true) {
            self.queue = self.sweeps(space);
        }
        if let Some(point) = self.queue.pop() {
            return Some(point);
        }
        if std::mem::replace(&mut self.combined, true) {
            return None;
        }
        Some(OneFactorSearch::together(space, history)).filter(|p| space.allows(p) && !history.was_tried(p))
    }
}
