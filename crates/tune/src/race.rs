//! Baseline against best in interleaved blocks, until the answer is clear or the blocks are used up.

/// What an interval says about best / baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioInterval {
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaceVerdict {
    Improved,
    NoGain,
    Inconclusive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run another pair; true: the best goes first.
    Pair {
        best_first: bool,
    },
    Stop(RaceVerdict),
}

/// The rules of a race.
#[derive(Debug, Clone, Copy)]
pub struct Race {
    pub min_pairs: usize,
    pub max_pairs: usize,
    /// The smallest ratio worth a change, such as 1.05.
    pub worth: f64,
}

/// A gain of this ratio must not hide in an interval that is called no gain.
const HIDDEN: f64 = 1.15;

impl Race {
    /// What to do after `pairs` pairs. `strict` is the interval at 99 %, for stopping early: looking after every pair
    /// gives chance several tries. `plain` is the one at 95 %, which is reported.
    #[must_use]
    pub fn decide(&self, pairs: usize, strict: Option<RatioInterval>, plain: Option<RatioInterval>) -> Decision {
        // Baseline, best, best, baseline: a drift over time hits both alike.
        let another = Decision::Pair { best_first: pairs % 2 == 1 };
        if pairs < self.min_pairs {
            return another;
        }
        if let Some(i) = strict {
            if i.low > 1.0 && i.ratio >= self.worth {
                return Decision::Stop(RaceVerdict::Improved);
            }
            if i.high < self.worth {
                return Decision::Stop(RaceVerdict::NoGain);
            }
        }
        if pairs < self.max_pairs {
            return another;
        }
        Decision::Stop(match plain {
            Some(i) if i.low > 1.0 && i.ratio >= self.worth => RaceVerdict::Improved,
            Some(i) if i.high < HIDDEN.max(self.worth) => RaceVerdict::NoGain,
            _ => RaceVerdict::Inconclusive,
        })
    }
}

/// A block of the server as it is should have at least so many answers: the noise of their number is below a fifth.
pub const LEAST_ANSWERS: u64 = 30;
/// With fewer answers than this in a block nothing is divided by their number.
const DIVISIBLE: u64 = 5;

/// Have all blocks, pairs of answers of baseline and best, enough of them for a ratio?
#[must_use]
pub fn are_divisible(pairs: &[(u64, u64)]) -> bool {
    pairs.iter().all(|(baseline, best)| baseline.min(best) >= &DIVISIBLE)
}

/// So many pairs in which the best is ahead each time come once in 256 by chance (the sign test).
const ALL_AHEAD: usize = 8;

/// Is the best better without a ratio: in every pair it answers a good deal, and the baseline next to nothing; or it is ahead in
/// each of many, with twice the answers of all?
#[must_use]
pub fn is_clear(pairs: &[(u64, u64)]) -> bool {
    let far = !pairs.is_empty() && pairs.iter().all(|(baseline, best)| *best >= LEAST_ANSWERS.max(2 * baseline));
    let (ours, theirs) = pairs.iter().fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    let ahead = pairs.len() >= ALL_AHEAD && pairs.iter().all(|(baseline, best)| best > baseline);
    far || ahead && theirs >= LEAST_ANSWERS.max(2 * ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACE: Race = Race { min_pairs: 4, max_pairs: 10, worth: 1.05 };

    fn interval(low: f64, high: f64) -> Option<RatioInterval> {
        Some(RatioInterval { ratio: (low * high).sqrt(), low, high })
    }

    #[test]
    fn what_answers_nothing_has_no_ratio() {
        assert!(are_divisible(&[(30, 40), (5, 5000)]) && !are_divisible(&[(30, 40), (4, 5000)]));
        // One answer against thousands is no number of times, and clear all the same.
        assert!(is_clear(&[(0, 5704), (1, 5000)]));
        // Ahead in each of eight, which chance seldom is; in one of them behind.
        let mut pairs = [(94, 488), (183, 196), (16, 963), (0, 1515), (20, 684), (145, 199), (0, 754), (235, 981)];
        assert!(is_clear(&pairs) && !is_clear(&pairs[..7]));
        pairs[1].1 = 180;
        assert!(!is_clear(&pairs));
        // Neither answers enough, or not each time: nothing is clear.
        assert!(!is_clear(&[(0, 29)]) && !is_clear(&[(0, 900), (600, 900)]) && !is_clear(&[]));
    }

    #[test]
    fn blocks_are_interleaved() {
        let first: Vec<_> = (0..4).map(|n| RACE.decide(n, None, None)).collect();
        let pair = |best_first| Decision::Pair { best_first };
        assert_eq!(first, [pair(false), pair(true), pair(false), pair(true)]);
    }

    #[test]
    fn a_clear_answer_ends_it_early() {
        assert_eq!(RACE.decide(4, interval(2.0, 3.0), None), Decision::Stop(RaceVerdict::Improved));
        assert_eq!(RACE.decide(4, interval(0.9, 1.0), None), Decision::Stop(RaceVerdict::NoGain));
        assert_eq!(RACE.decide(4, interval(0.9, 1.2), None), Decision::Pair { best_first: false });
    }

    #[test]
    fn at_the_end_it_says_what_it_knows() {
        assert_eq!(RACE.decide(10, None, interval(1.02, 1.2)), Decision::Stop(RaceVerdict::Improved));
        assert_eq!(RACE.decide(10, None, interval(1.01, 1.05)), Decision::Stop(RaceVerdict::NoGain));
        assert_eq!(RACE.decide(10, None, interval(0.9, 1.1)), Decision::Stop(RaceVerdict::NoGain));
        assert_eq!(RACE.decide(10, None, interval(0.5, 2.0)), Decision::Stop(RaceVerdict::Inconclusive));
        assert_eq!(RACE.decide(10, None, None), Decision::Stop(RaceVerdict::Inconclusive));
    }
}
