//! How many bytes a request of each class adds to the workers of a server.
//!
//! The memory is read between blocks of requests. A block sends many requests of one class, then a few of every class.
//! Without these few, memory that one class had freed would hide the growth of the next, and the class after it would
//! seem to grow. So a block has requests of several classes, and the growth of each class solves a system of linear
//! equations: one block is one equation. Each round has one block per class and gives one growth for each class. The
//! interval is Student's, over the rounds.

use lastdrop_model::documents::{ClassVerdict, Interval};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::memory_model::is_falling;
use crate::series::mean_and_variance;

/// The chance that a class which does not grow is said to grow, for all classes of a report together.
const FALSE_ALARMS: f64 = 0.01;
/// Fewer rounds give no interval worth its name.
pub const FEWEST_ROUNDS: usize = 3;
/// A worker that gained no more than these pages may just have touched the rest of its heap.
const FLAT_BYTES: f64 = 16.0 * 4096.0;
/// A garbage-collected heap gains more than this before a collection.
const UNCOLLECTED_BYTES: f64 = 16_000_000.0;
/// Each round of a leak gains at least this share of the mean.
const EVENLY: f64 = 0.3;
/// With less new resident memory than this share of the new private memory, workers only stop sharing.
const OWN: f64 = 0.6;
/// A cache that fills gains at most this share of its first half's growth in the second half.
const SLOWER: f64 = 0.8;

/// The rounds of one class.
#[derive(Debug, Clone, Copy)]
pub struct ClassRounds<'a> {
    /// Private bytes per request, one value per round.
    pub private: &'a [f64],
    /// Resident bytes per request, one value per round.
    pub resident: &'a [f64],
    /// Requests of the class in all rounds.
    pub requests: f64,
}

/// The pool in which classes are judged.
#[derive(Debug, Clone, Copy)]
pub struct PoolFacts {
    pub workers: usize,
    pub classes: usize,
    /// The language collects garbage now and then, and does not free memory at once.
    pub collects: bool,
}

/// Returns the bytes that a request of each class adds, from the blocks of one round.
///
/// `counts[block][class]` are requests, `gained[block]` bytes. `None` if the blocks do not tell the classes apart.
#[must_use]
pub fn per_request(counts: &[Vec<f64>], gained: &[f64]) -> Option<Vec<f64>> {
    let n = counts.len();
    if gained.len() != n || counts.iter().any(|row| row.len() != n) {
        return None;
    }
    // Gaussian elimination with partial pivoting (Golub & Van Loan, "Matrix Computations", ch. 3).
    let mut rows: Vec<Vec<f64>> =
        counts.iter().zip(gained).map(|(row, gained)| row.iter().copied().chain([*gained]).collect()).collect();
    for at in 0..n {
        let pivot = (at..n).max_by(|a, b| rows[*a][at].abs().total_cmp(&rows[*b][at].abs()))?;
        rows.swap(at, pivot);
        if rows[at][at].abs() < 1e-9 {
            return None;
        }
        let (above, below) = rows.split_at_mut(at + 1);
        let own = &above[at];
        for row in below {
            let factor = row[at] / own[at];
            row.iter_mut().zip(own).skip(at).for_each(|(x, own)| *x -= factor * own);
        }
    }
    let mut solved = vec![0.0; n];
    for at in (0..n).rev() {
        let known: f64 = (at + 1..n).map(|other| rows[at][other] * solved[other]).sum();
        solved[at] = (rows[at][n] - known) / rows[at][at];
    }
    Some(solved)
}

/// Returns the mean of the rounds with its 95 % interval.
#[must_use]
pub fn mean_of(rounds: &[f64]) -> Interval {
    let (mean, _) = mean_and_variance(rounds);
    let half = half_width(rounds, 0.05);
    Interval { value: mean, interval: [mean - half, mean + half] }
}

/// Half the width of the two-sided interval that misses the truth with this chance.
fn half_width(rounds: &[f64], misses: f64) -> f64 {
    let n = rounds.len();
    let (_, variance) = mean_and_variance(rounds);
    let Ok(t) = StudentsT::new(0.0, 1.0, n.saturating_sub(1).max(1) as f64) else { return f64::INFINITY };
    t.inverse_cdf(1.0 - misses / 2.0) * (variance / n.max(1) as f64).sqrt()
}

/// Returns whether a class makes the workers grow, and the smallest growth per request that would count as growth.
#[must_use]
pub fn judge(class: &ClassRounds<'_>, pool: PoolFacts) -> (ClassVerdict, f64) {
    let (private, _) = mean_and_variance(class.private);
    let (resident, _) = mean_and_variance(class.resident);
    // The chance of a false alarm is divided among the classes (Bonferroni). Only one side of the interval raises one.
    let half = half_width(class.private, 2.0 * FALSE_ALARMS / pool.classes.max(1) as f64);
    let flat = if pool.collects { UNCOLLECTED_BYTES } else { FLAT_BYTES };
    let smallest = half.max(flat * pool.workers.max(1) as f64 / class.requests.max(1.0));
    let least = class.private.iter().copied().fold(f64::INFINITY, f64::min);
    let is_even = pool.collects || least >= EVENLY * private;
    let verdict = if class.private.len() < FEWEST_ROUNDS || private <= smallest || !is_even {
        ClassVerdict::Steady
    } else if resident < OWN * private {
        ClassVerdict::Unshares
    } else if is_falling(class.private) && is_lower_at_the_end(class.private) {
        ClassVerdict::Slows
    } else {
        ClassVerdict::Grows
    };
    (verdict, smallest)
}

/// Returns whether the second half of the rounds gained clearly less than the first. Three rounds alone may fall by chance.
fn is_lower_at_the_end(rounds: &[f64]) -> bool {
    let (first, second) = rounds.split_at(rounds.len() / 2);
    mean_and_variance(second).0 <= SLOWER * mean_and_variance(first).0
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolFacts = PoolFacts { workers: 2, classes: 3, collects: false };

    fn judged(private: &[f64], resident: &[f64], pool: PoolFacts) -> ClassVerdict {
        judge(&ClassRounds { private, resident, requests: 600.0 }, pool).0
    }

    #[test]
    fn requests_of_all_classes_in_each_block_are_told_apart() {
        let truth = [20_000.0, 0.0, 512.0];
        let counts = vec![vec![100.0, 4.0, 4.0], vec![4.0, 80.0, 4.0], vec![4.0, 4.0, 250.0]];
        let gained: Vec<f64> = counts.iter().map(|row| row.iter().zip(truth).map(|(n, g)| n * g).sum()).collect();
        let solved = per_request(&counts, &gained).expect("a solution");
        assert!(solved.iter().zip(truth).all(|(s, g)| (s - g).abs() < 1e-6), "{solved:?}");
        assert_eq!(per_request(&[vec![1.0, 1.0], vec![1.0, 1.0]], &[1.0, 1.0]), None);
        assert_eq!(per_request(&[vec![1.0]], &[1.0, 2.0]), None);
    }

    #[test]
    fn the_interval_is_students_over_the_rounds() {
        // Mean 20, s 10, t(2, 97.5 %) = 4.3027: half width 24.842.
        let Interval { value, interval } = mean_of(&[10.0, 20.0, 30.0]);
        assert!((value - 20.0).abs() < 1e-9 && (interval[0] + 4.842).abs() < 1e-2, "{interval:?}");
        assert_eq!(mean_of(&[7.0; 5]).interval, [7.0, 7.0]);
    }

    #[test]
    fn steady_growth_is_a_leak_and_noise_is_none() {
        let leak = [16_400.0, 16_380.0, 16_500.0, 16_300.0, 16_420.0, 16_390.0];
        assert_eq!(judged(&leak, &leak, POOL), ClassVerdict::Grows);
        let noise = [900.0, -700.0, 300.0, -200.0, 650.0, 100.0];
        assert_eq!(judged(&noise, &noise, POOL), ClassVerdict::Steady);
        // Significant, and yet no more than the rest of a heap's last pages: 600 requests add 60 KB to two workers.
        let pages = [100.0, 101.0, 99.0, 100.0, 102.0, 98.0];
        assert_eq!(judged(&pages, &pages, POOL), ClassVerdict::Steady);
        // One large step is no growth that goes on.
        let step = [0.0, 0.0, 50_000.0, 0.0, 0.0, 0.0];
        assert_eq!(judged(&step, &step, POOL), ClassVerdict::Steady);
        assert_eq!(judged(&leak[..2], &leak[..2], POOL), ClassVerdict::Steady, "two rounds are too few");
    }

    #[test]
    fn unsharing_and_a_filling_cache_are_no_leak() {
        let private = [9_000.0, 9_100.0, 8_900.0, 9_050.0, 9_000.0, 8_950.0];
        assert_eq!(judged(&private, &[0.0; 6], POOL), ClassVerdict::Unshares);
        let falling = [9_000.0, 8_000.0, 7_000.0, 6_000.0, 5_000.0, 4_000.0];
        assert_eq!(judged(&falling, &falling, POOL), ClassVerdict::Slows);
    }

    #[test]
    fn a_collected_heap_has_to_gain_more_than_one_collection_frees() {
        let collected = PoolFacts { collects: true, ..POOL };
        let small = [9_000.0, 9_100.0, 8_900.0, 9_050.0, 9_000.0, 8_950.0];
        assert_eq!(judged(&small, &small, collected), ClassVerdict::Steady);
        let large = [90_000.0, 91_000.0, 89_000.0, 90_500.0, 90_000.0, 89_500.0];
        assert_eq!(judged(&large, &large, collected), ClassVerdict::Grows);
    }

    #[test]
    fn chance_names_no_class() {
        // A thousand reports of three classes that gain Gaussian noise of zero mean.
        let mut state = 1_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
        };
        let mut alarms = 0;
        for _ in 0..3_000 {
            let rounds: Vec<f64> = (0..6).map(|_| 5_000.0 * ((0..12).map(|_| uniform()).sum::<f64>() - 6.0)).collect();
            alarms += u32::from(judged(&rounds, &rounds, POOL) != ClassVerdict::Steady);
        }
        assert!(alarms <= 15, "{alarms} of 1,000 reports");
    }
}
