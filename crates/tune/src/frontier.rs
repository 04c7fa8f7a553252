//! Finds the Pareto frontier: items that no other item beats in all respects.

/// Returns the indices of items for which no other is at least as good in everything and better in something. More is
/// better. An unknown value (NaN) makes an item neither better nor worse.
#[must_use]
pub fn undominated(all: &[Vec<f64>]) -> Vec<usize> {
    let beats = |a: &[f64], b: &[f64]| {
        let pairs = || a.iter().zip(b).filter(|(a, b)| !a.is_nan() && !b.is_nan());
        pairs().all(|(a, b)| a >= b) && pairs().any(|(a, b)| a > b)
    };
    (0..all.len()).filter(|i| !all.iter().any(|other| beats(other, &all[*i]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_is_better_than_in_everything_is_no_choice() {
        let all = [vec![10.0, 1.0], vec![8.0, 2.0], vec![7.0, 1.5], vec![10.0, 1.0], vec![3.0, f64::NAN]];
        assert_eq!(undominated(&all), [0, 1, 3]);
        assert_eq!(undominated(&[]), Vec::<usize>::new());
    }
}
