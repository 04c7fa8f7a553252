//! The last choice: settings that trials cannot tell apart are measured again, and the worst is dropped, until one is
//! left.
//!
//! This is sequential halving (Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", 2013) of
//! a few, one by one, in the ranking of the search.

use std::collections::VecDeque;

use crate::space::Point;
use crate::strategy::History;

/// Most finalists, and how far their mean may be behind the first, in standard deviations of a trial.
const MOST: usize = 5;
const NEAR: f64 = 2.0;

#[derive(Debug)]
pub struct Finals {
    left: Vec<Point>,
    round: VecDeque<Point>,
}

/// Returns the trials that finals of this many take: each round measures all that are left and drops the last.
#[must_use]
pub fn trials_of_finals(finalists: usize) -> usize {
    (2..=finalists).sum()
}

/// Returns how many finalists can be measured with this many trials left.
fn most(left: usize) -> usize {
    (1..=MOST).rev().find(|n| trials_of_finals(*n) <= left).unwrap_or(1)
}

impl Finals {
    /// Starts finals of the ranked points, the best first, with this many trials left in the budget.
    #[must_use]
    pub fn new(mut ranked: Vec<Point>, history: &History, left: usize) -> Finals {
        let value = |point: &Point| history.mean(point).map_or(f64::NEG_INFINITY, |(mean, _)| mean);
        if let Some(first) = ranked.first().map(value) {
            ranked.retain(|p| value(p) >= first - NEAR * history.noise);
        }
        ranked.truncate(most(left));
        Finals { round: ranked.iter().cloned().collect(), left: ranked }
    }

    /// Returns the next point to measure again. `ranked` is the present ranking of the search.
    pub fn next(&mut self, ranked: impl FnOnce() -> Vec<Point>) -> Option<Point> {
        if self.left.len() < 2 {
            return None;
        }
        if self.round.is_empty() {
            let order = ranked();
            let place = |p: &Point| order.iter().position(|known| known == p).unwrap_or(usize::MAX);
            self.left.sort_by_key(place);
            self.left.pop();
            if self.left.len() < 2 {
                return None;
            }
            // The order is reversed each round, so that a drift favours none.
            self.round = self.left.iter().rev().cloned().collect();
        }
        self.round.pop_front()
    }

    /// Returns the point that is left, or leads.
    #[must_use]
    pub fn winner(&self) -> Option<&Point> {
        self.left.first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finals_take_no_more_trials_than_are_left() {
        let mut history = History { noise: 0.05, ..History::default() };
        history.trials = (0..9).map(|i| (vec![i], Some(-0.001 * i as f64))).collect();
        let measured = |left| {
            let mut finals = Finals::new(history.by_mean(), &history, left);
            std::iter::from_fn(|| finals.next(|| history.by_mean())).count()
        };
        assert_eq!([0, 1, 2, 4, 5, 8, 9, 13, 14, 1000].map(measured), [0, 0, 2, 2, 5, 5, 9, 9, 14, 14]);
    }

    #[test]
    fn who_was_lucky_once_does_not_win() {
        let (lucky, better, far) = (vec![0], vec![1], vec![2]);
        let mut history = History { noise: 0.05, ..History::default() };
        let truth = |p: &Point| if *p == better { 0.0 } else { -0.06 };
        history.trials = vec![(lucky.clone(), Some(0.04)), (better.clone(), Some(0.0)), (far.clone(), Some(-0.5))];
        let mut finals = Finals::new(history.by_mean(), &history, 5);
        let mut measured = Vec::new();
        while let Some(point) = finals.next(|| history.by_mean()) {
            history.trials.push((point.clone(), Some(truth(&point))));
            measured.push(point);
        }
        assert_eq!(measured, [lucky.clone(), better.clone()]);
        assert_eq!(finals.winner(), Some(&better));
        let three = [lucky.clone(), better.clone(), vec![3]];
        history.trials = three.iter().map(|p| (p.clone(), Some(0.0))).collect();
        let mut finals = Finals::new(history.by_mean(), &history, 5);
        let mut measured = 0;
        while let Some(point) = finals.next(|| history.by_mean()) {
            history.trials.push((point.clone(), Some(truth(&point))));
            measured += 1;
        }
        assert_eq!((measured, finals.winner()), (5, Some(&better)));
        assert_eq!(Finals::new(Vec::new(), &history, 0).winner(), None);
    }
}
