//! Coordinate search: one parameter after the other, coarse levels first, then between the best and its neighbours.

use crate::space::{Point, Scale, Space};
use crate::strategy::{History, Strategy};

/// Levels of a parameter in the coarse pass.
const COARSE: usize = 5;
/// Standard deviations of one trial by which a point has to be ahead to become the best so far.
const AHEAD: f64 = 1.0;

#[derive(Debug)]
pub struct CoordinateSearch {
    /// Index of the parameter that is varied, and whether in the fine pass.
    at: (usize, bool),
    queue: Vec<Point>,
    rounds: usize,
    changed: bool,
}

impl CoordinateSearch {
    #[must_use]
    pub fn new() -> CoordinateSearch {
        CoordinateSearch { at: (0, false), queue: Vec::new(), rounds: 0, changed: true }
    }

    /// Returns the first tried point that no other is ahead of.
    fn best(space: &Space, history: &History) -> Point {
        let mut best = (space.start(), history.mean(&space.start()).map_or(f64::NEG_INFINITY, |m| m.0));
        for point in history.points() {
            let (value, _) = history.mean(point).unwrap_or((f64::NEG_INFINITY, 0));
            if value > best.1 + AHEAD * history.noise {
                best = (point.clone(), value);
            }
        }
        best.0
    }

    fn proposals(space: &Space, history: &History, (parameter, close): (usize, bool)) -> Vec<Point> {
        let best = CoordinateSearch::best(space, history);
        if !space.matters(&best, parameter) {
            return Vec::new();
        }
        let p = &space.parameters[parameter];
        let count = p.levels.len();
        let levels: Vec<usize> = match (&p.scale, close) {
            (Scale::Kinds, true) => Vec::new(),
            (Scale::Kinds, false) => (0..count).collect(),
            (Scale::Places(_), false) => (0..COARSE).map(|i| i * (count - 1) / (COARSE - 1)).collect(),
            (Scale::Places(_), true) => {
                let tried = |level: &usize| {
                    let mut point = best.clone();
                    point[parameter] = *level;
                    history.was_tried(&point)
                };
                let all: Vec<usize> = (0..count).filter(tried).collect();
                let below = all.iter().rev().find(|l| **l < best[parameter]);
                let above = all.iter().find(|l| **l > best[parameter]);
                [below, above].into_iter().flatten().map(|l| (l + best[parameter]) / 2).collect()
            }
        };
        let turned = |level: usize| {
            let mut point = best.clone();
            point[parameter] = level;
            space.canonical(point)
        };
        let mut points: Vec<Point> = levels.into_iter().map(turned).collect();
        points.retain(|p| space.allows(p) && !history.was_tried(p));
        points.dedup();
        points.reverse();
        points
    }
}

impl Default for CoordinateSearch {
    fn default() -> CoordinateSearch {
        CoordinateSearch::new()
    }
}

impl Strategy for CoordinateSearch {
    fn name(&self) -> &'static str {
        "coordinate"
    }

    fn next(&mut self, space: &Space, history: &History) -> Option<Point> {
        if history.trials.is_empty() {
            return Some(space.start());
        }
        loop {
            if let Some(point) = self.queue.pop() {
                self.changed = true;
                return Some(point);
            }
            if self.at.0 >= space.parameters.len() {
                if !std::mem::take(&mut self.changed) || self.rounds == 3 {
                    return None;
                }
                self.rounds += 1;
                self.at = (0, true);
                continue;
            }
            self.queue = CoordinateSearch::proposals(space, history, self.at);
            self.at = match self.at {
                (parameter, false) => (parameter, true),
                (parameter, true) => (parameter + 1, self.rounds > 0),
            };
        }
    }
}
