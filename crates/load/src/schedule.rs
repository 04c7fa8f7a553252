//! The requests that come due in a phase, known before any is sent: for the event loop, and to count those that were
//! not sent.

use std::sync::Arc;

use lastdrop_model::plan::{Load, Phase};
use lastdrop_model::{Micros, Plan};

use crate::arrivals::{Arrivals, Profile};
use crate::share::{Shard, Share};

/// The arrivals of one thread in a phase; `None` in a closed loop.
#[must_use]
pub fn arrivals(plan: &Plan, phase: usize, shard: Shard) -> Option<Arrivals> {
    let Phase { load: Load::Open { rate_rps, to_rps, steps, arrivals, burst, .. }, duration, .. } =
        plan.phases.get(phase)?
    else {
        return None;
    };
    let profile = match (to_rps, steps, duration) {
        (Some(to), Some(steps), Some(d)) => Profile::steps(*rate_rps, *to, *steps, d.as_micros() as Micros),
        (Some(to), None, Some(d)) => Profile::linear(*rate_rps, *to, d.as_micros() as Micros),
        _ => Profile::constant(*rate_rps),
    };
    Some(Arrivals::new(*arrivals, profile, *burst, plan.seed.wrapping_add(phase as u64), shard))
}

/// Counts the requests of a share that come due in a phase as time goes on.
#[derive(Debug)]
pub struct DueCounter {
    from: DueTimes,
    end_us: Micros,
    left: u64,
}

/// Where due times come from.
#[derive(Debug)]
enum DueTimes {
    Arrivals(Arrivals),
    /// A tape: when each of its requests is due, which of them are ours, and how many of ours have passed.
    Tape {
        dues: Arc<[Micros]>,
        own: Shard,
        behind: u64,
    },
    /// All at once.
    Once(Micros),
    /// In a closed loop nothing is due before it is sent.
    Nowhere,
}

impl DueTimes {
    /// When the next request is due.
    fn next_due(&self) -> Option<Micros> {
        match self {
            DueTimes::Arrivals(arrivals) => Some(arrivals.next_due()),
            DueTimes::Tape { dues, own, behind } => dues.get(usize::try_from(own.nth(*behind)).ok()?).copied(),
            DueTimes::Once(at) => Some(*at),
            DueTimes::Nowhere => None,
        }
    }

    fn advance(&mut self) {
        match self {
            DueTimes::Arrivals(arrivals) => arrivals.advance(),
            DueTimes::Tape { behind, .. } => *behind += 1,
            DueTimes::Once(_) | DueTimes::Nowhere => {}
        }
    }
}

impl DueCounter {
    /// The requests of a share of a phase. In a closed loop nothing is due before it is sent: 0.
    #[must_use]
    pub fn of(plan: &Plan, phase: usize, share: &Share) -> DueCounter {
        let p = plan.phases.get(phase);
        DueCounter {
            from: arrivals(plan, phase, share.of_thread(0, 1)).map_or(DueTimes::Nowhere, DueTimes::Arrivals),
            end_us: p.and_then(|p| p.duration).map_or(Micros::MAX, |d| d.as_micros() as Micros),
            left: p.and_then(|p| p.requests).map_or(u64::MAX, |n| share.count(n)),
        }
    }

    /// Like `of`, for a phase that plays a tape with these due times.
    #[must_use]
    pub fn of_tape(plan: &Plan, phase: usize, share: &Share, dues: Arc<[Micros]>) -> DueCounter {
        let from = DueTimes::Tape { dues, own: share.of_thread(0, 1), behind: 0 };
        DueCounter { from, ..DueCounter::of(plan, phase, share) }
    }

    /// This many requests, of which only the latest due time is known.
    #[must_use]
    pub fn by(requests: u64, at: Micros) -> DueCounter {
        DueCounter { from: DueTimes::Once(at.saturating_sub(1)), end_us: Micros::MAX, left: requests }
    }

    /// Returns how many more come due up to `until` microseconds after the phase began.
    pub fn up_to(&mut self, until: Micros) -> u64 {
        let until = until.min(self.end_us);
        let mut due = 0;
        while self.left > 0 && self.from.next_due().is_some_and(|at| at < until) {
            self.from.advance();
            (self.left, due) = (self.left - 1, due + 1);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::Arrival;
    use std::time::Duration;

    #[test]
    fn shares_of_what_is_due_add_up_second_by_second() {
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 7);
        plan.phases[0].load = Load::open(333.3, Arrival::Poisson, 10);
        plan.phases[0].duration = Some(Duration::from_millis(2500));
        for requests in [None, Some(500)] {
            plan.phases[0].requests = requests;
            let of = |share: &Share| {
                let mut due = DueCounter::of(&plan, 0, share);
                (1..=5).map(|s| due.up_to(s * 1_000_000)).collect::<Vec<_>>()
            };
            let whole = of(&Share::whole());
            let mut sum = vec![0; 5];
            for share in Share::by_weight(&[2, 1, 4]).expect("weights") {
                sum.iter_mut().zip(of(&share)).for_each(|(a, b)| *a += b);
            }
            assert_eq!(sum, whole);
            assert_eq!((whole[3], whole[4]), (0, 0));
            let all: u64 = whole.iter().sum();
            assert!(requests.map_or((700..1000).contains(&all), |n| n == all), "{whole:?}");
        }
        plan.phases[0].load = Load::closed(10);
        assert_eq!(DueCounter::of(&plan, 0, &Share::whole()).up_to(Micros::MAX), 0);
    }

    #[test]
    fn what_is_due_of_a_tape_is_known_from_its_times() {
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 7);
        (plan.phases[0].load, plan.phases[0].duration) = (Load::open(10.0, Arrival::Uniform, 10), None);
        plan.phases[0].requests = Some(1_000_000);
        let dues: Arc<[Micros]> = [0, 5, 10, 10, 2_000_000, 3_000_000, 9_000_000].into();
        let [mut a, mut b] = <[Share; 2]>::try_from(Share::by_weight(&[1, 1]).expect("weights"))
            .expect("two")
            .map(|share| DueCounter::of_tape(&plan, 0, &share, Arc::clone(&dues)));
        assert_eq!((a.up_to(11), b.up_to(11)), (2, 2));
        assert_eq!((a.up_to(3_000_000), b.up_to(3_000_001)), (1, 1));
        assert_eq!((a.up_to(Micros::MAX), b.up_to(Micros::MAX)), (1, 0));
        let mut late = DueCounter::by(3, 500);
        assert_eq!((late.up_to(499), late.up_to(500), late.up_to(Micros::MAX)), (0, 3, 0));
    }
}
