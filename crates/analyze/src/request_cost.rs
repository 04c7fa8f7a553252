//! What a request costs in processor time, once the workers have started.
//!
//! The first request of a worker loads the application: with Perl or Python it takes as long as a hundred others. While a
//! pool grows, a short load therefore measures mostly that. A new worker counts as starting until it has used a certain
//! processor time, and intervals in which a starting worker is at work are left out. That time is the shortest after which
//! requests cost about the least that can be shown.

/// A part of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadInterval {
    /// Seconds of processor time.
    pub cpu_s: f64,
    pub answered: f64,
    /// Seconds of processor time that the newest worker had used when the interval began, of those that began to work in this
    /// load and worked in this interval. Infinite if there was none.
    pub newest_s: f64,
}

/// The cost of a request without starting workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SettledCost {
    /// Seconds of processor time.
    pub cpu_s: f64,
    /// False if too little of the load was without starting workers: then it is the cost of the whole load.
    pub settled: bool,
}

/// This share of the answers at least has to be left.
const LEAST_LEFT: f64 = 0.2;
/// So many answers at least.
const LEAST_ANSWERS: f64 = 10.0;
/// Costs that differ by no more are the same.
const SAME: f64 = 1.05;
/// The halves of what is left may differ by this factor.
const STEADY: f64 = 1.25;
/// A worker that has used the processor time of so many requests has surely answered its first one.
const SURELY_STARTED: f64 = 30.0;

/// Returns the cost of a request in these intervals.
fn cost<'a>(intervals: impl IntoIterator<Item = &'a LoadInterval>) -> Option<f64> {
    let (cpu_s, answered) =
        intervals.into_iter().fold((0.0, 0.0), |(cpu_s, answered), i| (cpu_s + i.cpu_s, answered + i.answered));
    (answered > 0.0).then_some(cpu_s / answered)
}

/// Returns true if requests cost about the same in the earlier and the later half of these intervals.
fn is_steady(intervals: &[&LoadInterval]) -> bool {
    let half = intervals.iter().map(|i| i.answered).sum::<f64>() / 2.0;
    let mut earlier = 0.0;
    let middle = intervals.iter().take_while(|i| {
        earlier += i.answered;
        earlier <= half
    });
    let (first, second) = intervals.split_at(middle.count().max(1).min(intervals.len()));
    let costs = cost(first.iter().copied()).zip(cost(second.iter().copied()));
    costs.is_some_and(|(a, b)| a <= STEADY * b && b <= STEADY * a)
}

/// Returns the cost of a request without starting workers. None without answers.
#[must_use]
pub fn settled(intervals: &[LoadInterval]) -> Option<SettledCost> {
    let whole = cost(intervals)?;
    let answered: f64 = intervals.iter().map(|i| i.answered).sum();
    let least_left = (LEAST_LEFT * answered).max(LEAST_ANSWERS);
    let started_after = |start_s: f64| intervals.iter().filter(move |i| i.newest_s >= start_s);
    let starts_any = intervals.iter().any(|i| i.newest_s.is_finite());
    let mut starts: Vec<f64> = intervals.iter().map(|i| i.newest_s).collect();
    starts.sort_by(f64::total_cmp);
    starts.dedup();
    let costs: Vec<(f64, f64)> = starts
        .into_iter()
        .filter(|start_s| started_after(*start_s).map(|i| i.answered).sum::<f64>() >= least_left)
        .filter_map(|start_s| Some((start_s, cost(started_after(start_s))?)))
        .collect();
    if costs.is_empty() && starts_any {
        return Some(SettledCost { cpu_s: whole, settled: false });
    }
    let least = costs.iter().map(|(_, cost)| *cost).fold(whole, f64::min);
    // Where workers start throughout the load, nothing shows what a request costs after that.
    let is_shown = |start_s: f64, cost_s: f64| {
        let surely_s = start_s.max(SURELY_STARTED * cost_s);
        !starts_any || started_after(surely_s).map(|i| i.answered).sum::<f64>() >= least_left
    };
    if whole <= SAME * least {
        return Some(SettledCost { cpu_s: whole, settled: is_shown(0.0, whole) });
    }
    let (start_s, cost) = *costs.iter().find(|(_, cost)| *cost <= SAME * least)?;
    let settled = is_shown(start_s, cost) && is_steady(&started_after(start_s).collect::<Vec<_>>());
    Some(SettledCost { cpu_s: if settled { cost } else { whole }, settled })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: f64 = f64::INFINITY;

    /// Intervals with this processor time, so many answers, and that time of the newest worker.
    fn load(parts: &[(f64, f64, f64)]) -> Option<SettledCost> {
        let interval = |&(cpu_s, answered, newest_s): &(f64, f64, f64)| LoadInterval { cpu_s, answered, newest_s };
        settled(&parts.iter().map(interval).collect::<Vec<_>>())
    }

    #[test]
    fn what_workers_load_first_is_no_cost_of_a_request() {
        // Request Tracker: a worker begins with 1.5 s of processor time, each request takes 12 ms.
        let cost = load(&[
            (1.0, 20.0, 0.0),
            (1.2, 60.0, 1.0),
            (1.2, 100.0, 1.5),
            (1.44, 120.0, 2.1),
            // Another one starts in the middle.
            (2.0, 40.0, 0.0),
            (1.7, 81.0, 1.0),
            (2.4, 200.0, 1.6),
        ]);
        let cost = cost.expect("answers");
        assert!(cost.settled && (cost.cpu_s - 0.012).abs() < 1e-9, "{cost:?}");
    }

    #[test]
    fn two_intervals_after_the_start_suffice() {
        let cost =
            load(&[(6.9, 0.0, 0.0), (0.68, 1.7, 1.35), (0.7, 47.0, 1.49), (0.87, 73.0, 1.65), (0.61, 55.0, 1.84)]);
        let cost = cost.expect("answers");
        assert!(cost.settled && (cost.cpu_s - 0.0116).abs() < 1e-4, "{cost:?}");
    }

    #[test]
    fn an_even_cost_is_that_of_the_whole_load() {
        let cost = load(&[(1.0, 100.0, 0.0), (1.04, 100.0, 0.3), (0.98, 100.0, 0.6), (1.02, 100.0, 0.9)]);
        let cost = cost.expect("answers");
        assert!(cost.settled && (cost.cpu_s - 0.0101).abs() < 1e-9, "{cost:?}");
        // An expensive request that comes again and again is a cost.
        let again = [(1.0, 100.0, NONE), (3.0, 100.0, NONE), (1.0, 100.0, NONE), (3.0, 100.0, NONE)];
        assert_eq!(load(&again).map(|c| c.cpu_s), Some(0.02));
        // Also where new workers answer it.
        let new = [(1.0, 100.0, 0.0), (3.0, 100.0, 0.5), (1.0, 100.0, 1.0), (3.0, 100.0, 1.5), (1.0, 100.0, 2.0)];
        assert_ne!(load(&new), Some(SettledCost { cpu_s: 0.01, settled: true }));
    }

    #[test]
    fn a_cost_is_not_known_where_workers_start_throughout() {
        // Twenty workers share two processors: each is at its first request for the whole load.
        let cost = load(&[(2.0, 60.0, 0.0), (2.0, 90.0, 0.1), (2.0, 110.0, 0.2), (2.0, 80.0, 0.3), (2.0, 70.0, 0.4)]);
        let cost = cost.expect("answers");
        assert!(!cost.settled && (cost.cpu_s - 10.0 / 410.0).abs() < 1e-9, "{cost:?}");
        // One of them begins late.
        let cost = load(&[(2.0, 200.0, NONE), (2.0, 200.0, NONE), (2.0, 200.0, 0.0)]).expect("answers");
        assert!(cost.settled, "{cost:?}");
    }

    #[test]
    fn a_cost_that_still_falls_is_said_to() {
        let falls = [(2.0, 1.0, 0.0), (2.0, 1.0, 0.5), (2.0, 3.0, 1.0), (2.0, 20.0, 1.5), (2.0, 60.0, 2.0)];
        let cost = load(&falls).expect("answers");
        assert!(!cost.settled && (cost.cpu_s - 10.0 / 85.0).abs() < 1e-9, "{cost:?}");
        // All of ten answers came from workers that had served nothing.
        assert_eq!(load(&[(9.0, 2.0, 0.0), (9.1, 7.0, 0.9)]).map(|c| c.settled), Some(false));
        assert_eq!(load(&[(1.0, 0.0, 0.0)]), None);
    }
}
