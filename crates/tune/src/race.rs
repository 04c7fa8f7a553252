//! Races the baseline against the best in interleaved blocks, until the answer is clear or the blocks are used up.

/// The confidence interval of the ratio best / baseline.
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

/// If the interval includes a gain of this ratio, the verdict is not "no gain".
const HIDDEN: f64 = 1.15;

/// Confidence of the interval of a race that ended early: more often than not its pairs agreed by chance. At 95 % it held the
/// truth of only 91 % of simulated tunes.
const EARLY: f64 = 0.975;

impl Race {
    /// Decides what to do after `pairs` pairs. `strict` is the interval at 99 %, for stopping early, because looking
    /// after every pair gives chance several tries. `plain` is the interval at 95 %.
    #[must_use]
    pub fn decide(&self, pairs: usize, strict: Option<RatioInterval>, plain: Option<RatioInterval>) -> Decision {
        // Baseline, best, best, baseline: a drift over time affects both alike.
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

    /// Returns the confidence with which to compute an interval that holds the truth in 95 % of races that end after `pairs`.
    #[must_use]
    pub fn confidence(&self, pairs: usize) -> f64 {
        if pairs < self.max_pairs { EARLY } else { 0.95 }
    }
}

/// A block of the baseline should have at least this many responses: then the noise of their number is below a fifth.
pub const LEAST_ANSWERS: u64 = 30;
/// Ratios are computed only if every block has at least this many responses.
const DIVISIBLE: u64 = 5;

/// Returns true if all blocks, pairs of responses of baseline and best, have enough of them for a ratio.
#[must_use]
pub fn are_divisible(pairs: &[(u64, u64)]) -> bool {
    pairs.iter().all(|(baseline, best)| baseline.min(best) >= &DIVISIBLE)
}

/// This many pairs with the best ahead in each happen by chance once in 256 times (the sign test).
const ALL_AHEAD: usize = 8;

/// Returns true if the best is clearly better without a ratio. It may have many responses in every pair and the
/// baseline next to none. Or it is ahead in each of many pairs, with twice the responses in total.
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
        // One response against thousands gives no ratio, but is clear.
        assert!(is_clear(&[(0, 5704), (1, 5000)]));
        // Ahead in each of eight pairs, which rarely happens by chance; then behind in one of them.
        let mut pairs = [(94, 488), (183, 196), (16, 963), (0, 1515), (20, 684), (145, 199), (0, 754), (235, 981)];
        assert!(is_clear(&pairs) && !is_clear(&pairs[..7]));
        pairs[1].1 = 180;
        assert!(!is_clear(&pairs));
        // Too few responses on both sides, or not ahead each time: nothing is clear.
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
