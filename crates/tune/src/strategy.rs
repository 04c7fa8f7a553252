//! The interface of a search: from what was tried, it returns what to try next.

use crate::space::{Point, Space};

/// Results of the tried points in order. A value is the natural logarithm of how good a point is, so a difference of
/// 0.01 is one percent. None is an invalid trial (refused, failed, or over a limit).
#[derive(Debug, Clone, Default)]
pub struct History {
    pub trials: Vec<(Point, Option<f64>)>,
    /// Standard deviation of one trial's value, from repeated measurements.
    pub noise: f64,
}

impl History {
    /// Returns the mean value and the number of a point's valid trials.
    #[must_use]
    pub fn mean(&self, point: &Point) -> Option<(f64, usize)> {
        let values: Vec<f64> = self.trials.iter().filter(|(p, _)| p == point).filter_map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| (values.iter().sum::<f64>() / values.len() as f64, values.len()))
    }

    #[must_use]
    pub fn was_tried(&self, point: &Point) -> bool {
        self.trials.iter().any(|(p, _)| p == point)
    }

    /// Returns the points with valid trials, each once, in the order first tried.
    #[must_use]
    pub fn points(&self) -> Vec<&Point> {
        let mut all: Vec<&Point> = Vec::new();
        for (point, value) in &self.trials {
            if value.is_some() && !all.contains(&point) {
                all.push(point);
            }
        }
        all
    }

    /// Returns these points, the best mean first.
    #[must_use]
    pub fn by_mean(&self) -> Vec<Point> {
        let mut all: Vec<(f64, &Point)> =
            self.points().into_iter().filter_map(|p| Some((self.mean(p)?.0, p))).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.into_iter().map(|(_, p)| p.clone()).collect()
    }
}

/// A search method. It sees nothing but the history: the same seed and the same values lead to the same trials, so a
/// stored search can be resumed.
pub trait Strategy {
    fn name(&self) -> &'static str;

    /// Returns the point to try next; None if no point promises a measurable gain.
    fn next(&mut self, space: &Space, history: &History) -> Option<Point>;

    /// Returns the points with valid trials, those to race first coming first.
    fn ranked(&self, _space: &Space, history: &History) -> Vec<Point> {
        history.by_mean()
    }

    /// Returns a point without the changes that show no benefit.
    fn plain(&self, _space: &Space, _history: &History, point: &Point) -> Point {
        point.clone()
    }
}
