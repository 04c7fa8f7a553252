//! What a search is: something that looks at what was tried and says what to try next.

use crate::space::{Point, Space};

/// What has come of the points tried, in their order. A value is the natural logarithm of how good a point is, so that a
/// difference of 0.01 is one percent; none is a point that did not count (it was refused, failed or broke a limit).
#[derive(Debug, Clone, Default)]
pub struct History {
    pub trials: Vec<(Point, Option<f64>)>,
    /// Standard deviation of the value of one trial, from the same thing measured again.
    pub noise: f64,
}

impl History {
    /// Mean value and number of a point's trials that counted.
    #[must_use]
    pub fn mean(&self, point: &Point) -> Option<(f64, usize)> {
        let values: Vec<f64> = self.trials.iter().filter(|(p, _)| p == point).filter_map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| (values.iter().sum::<f64>() / values.len() as f64, values.len()))
    }

    #[must_use]
    pub fn was_tried(&self, point: &Point) -> bool {
        self.trials.iter().any(|(p, _)| p == point)
    }

    /// Those that counted, each once, in the order in which they were first tried.
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

    /// Those, the best mean first.
    #[must_use]
    pub fn by_mean(&self) -> Vec<Point> {
        let mut all: Vec<(f64, &Point)> =
            self.points().into_iter().filter_map(|p| Some((self.mean(p)?.0, p))).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.into_iter().map(|(_, p)| p.clone()).collect()
    }
}

/// A way to search. It is asked and told nothing but what is in the history: the same seed and the same values lead to the
/// same trials, so that a search goes on from what is stored.
pub trait Strategy {
    fn name(&self) -> &'static str;

    /// What to try next; none when nothing promises a gain that could be seen.
    fn next(&mut self, space: &Space, history: &History) -> Option<Point>;

    /// Points that counted, those to be raced first.
    fn ranked(&self, _space: &Space, history: &History) -> Vec<Point> {
        history.by_mean()
    }

    /// A point without the changes that are not seen to bring anything.
    fn plain(&self, _space: &Space, _history: &History, point: &Point) -> Point {
        point.clone()
    }
}
