//! What a request costs in processor time, once the workers have started.
//!
//! The first request of a worker loads the application: with Perl or Python it takes as long as a hundred others. While a
//! pool grows, a short load therefore measures mostly that. The beginning is left out as in simulations (deletion of the
//! initial transient; Law, "Simulation Modeling and Analysis", 9.5.1): from the first moment on after which requests cost
//! about the least that the rest of the load shows.

/// Processor time and answers from the beginning of a load to some moment of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostSample {
    pub cpu_s: f64,
    pub answered: f64,
}

/// The cost of a request after the beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SettledCost {
    /// Seconds of processor time.
    pub cpu_s: f64,
    /// False if the cost still fell at the end: then it is that of the whole load.
    pub settled: bool,
}

/// This share of the answers at least has to be left.
const LEAST_LEFT: f64 = 0.3;
/// So many answers at least.
const LEAST_ANSWERS: f64 = 10.0;
/// Costs that differ by no more are the same.
const SAME: f64 = 1.05;
/// The halves of what is left may differ by this factor.
const STEADY: f64 = 1.25;

/// Returns the cost of a request without the beginning. `samples` start with the load (zeros) and end with it. None without
/// answers.
#[must_use]
pub fn settled(samples: &[CostSample]) -> Option<SettledCost> {
    let (last, rest) = samples.split_last()?;
    let between = |from: &CostSample, to: &CostSample| {
        let answered = to.answered - from.answered;
        (answered > 0.0).then(|| (to.cpu_s - from.cpu_s) / answered)
    };
    let whole = last.cpu_s / (last.answered > 0.0).then_some(last.answered)?;
    let left = |from: &CostSample| last.answered - from.answered;
    let costs: Vec<(usize, f64)> = rest
        .iter()
        .enumerate()
        .filter(|(_, from)| left(from) >= (LEAST_LEFT * last.answered).max(LEAST_ANSWERS))
        .filter_map(|(i, from)| Some((i, between(from, last)?)))
        .collect();
    let least = costs.iter().map(|(_, cost)| *cost).fold(whole, f64::min);
    if whole <= SAME * least {
        return Some(SettledCost { cpu_s: whole, settled: true });
    }
    let (first, cost) = *costs.iter().find(|(_, cost)| *cost <= SAME * least)?;
    // The sample nearest to the middle of what is left.
    let middle = samples[first].answered + left(&samples[first]) / 2.0;
    let far = |sample: &CostSample| (sample.answered - middle).abs();
    let halves = samples[first + 1..].split_last().and_then(|(_, inner)| {
        let at = inner.iter().min_by(|a, b| far(a).total_cmp(&far(b)))?;
        Some((between(&samples[first], at)?, between(at, last)?))
    });
    let settled = halves.is_some_and(|(a, b)| a <= STEADY * b && b <= STEADY * a);
    Some(SettledCost { cpu_s: if settled { cost } else { whole }, settled })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of a load with this processor time and so many answers in each part.
    fn load(parts: &[(f64, f64)]) -> Vec<CostSample> {
        let mut all = vec![CostSample { cpu_s: 0.0, answered: 0.0 }];
        for (cpu_s, answered) in parts {
            let CostSample { cpu_s: before, answered: so_far } = all[all.len() - 1];
            all.push(CostSample { cpu_s: before + cpu_s, answered: so_far + answered });
        }
        all
    }

    #[test]
    fn what_workers_load_first_is_no_cost_of_a_request() {
        // Request Tracker: a worker begins with 1.5 s of processor time, each request takes 12 ms.
        let cost =
            settled(&load(&[(1.0, 20.0), (1.2, 60.0), (1.2, 100.0), (1.44, 120.0), (2.4, 200.0)])).expect("answers");
        assert!(cost.settled && (cost.cpu_s - 0.012).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn an_even_cost_is_that_of_the_whole_load() {
        let parts = [(1.0, 100.0), (1.04, 100.0), (0.98, 100.0), (1.02, 100.0)];
        let cost = settled(&load(&parts)).expect("answers");
        assert!(cost.settled && (cost.cpu_s - 0.0101).abs() < 1e-9, "{cost:?}");
        // An expensive request that comes again and again is a cost.
        let again = [(1.0, 100.0), (3.0, 100.0), (1.0, 100.0), (3.0, 100.0), (1.0, 100.0), (3.0, 100.0)];
        assert_eq!(settled(&load(&again)).map(|c| c.cpu_s), Some(0.02));
    }

    #[test]
    fn a_cost_that_still_falls_is_said_to() {
        let cost = settled(&load(&[(2.0, 1.0), (2.0, 1.0), (2.0, 3.0), (2.0, 20.0), (2.0, 60.0)])).expect("answers");
        assert!(!cost.settled && (cost.cpu_s - 10.0 / 85.0).abs() < 1e-9, "{cost:?}");
        // All of ten answers came from workers that had served nothing.
        assert_eq!(settled(&load(&[(9.0, 2.0), (10.0, 8.0)])), Some(SettledCost { cpu_s: 1.9, settled: true }));
        assert_eq!(settled(&load(&[(1.0, 0.0)])), None);
    }
}
