//! What comes due in a phase, known before anything is sent: for the event loop, and for whoever has to say what was not.

use lastdrop_model::plan::{Load, Phase};
use lastdrop_model::{Micros, Plan};

use crate::arrivals::{Arrivals, Profile};
use crate::share::{Shard, Share};

/// The arrivals of a phase that are a thread's; None in a closed loop.
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

/// How many requests of a share come due in a phase, counted as time goes on.
#[derive(Debug)]
pub struct Due {
    arrivals: Option<Arrivals>,
    end_us: Micros,
    left: u64,
}

impl Due {
    /// Of a share of a phase. In a closed loop nothing is due before it is asked for: 0.
    #[must_use]
    pub fn of(plan: &Plan, phase: usize, share: &Share) -> Due {
        let p = plan.phases.get(phase);
        Due {
            arrivals: arrivals(plan, phase, share.of_thread(0, 1)),
            end_us: p.and_then(|p| p.duration).map_or(Micros::MAX, |d| d.as_micros() as Micros),
            left: p.and_then(|p| p.requests).map_or(u64::MAX, |n| share.count(n)),
        }
    }

    /// How many more come due up to `until` microseconds after the phase began.
    pub fn up_to(&mut self, until: Micros) -> u64 {
        let Some(arrivals) = &mut self.arrivals else { return 0 };
        let mut due = 0;
        while self.left > 0 && arrivals.next_due() < until.min(self.end_us) {
            arrivals.advance();
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
                let mut due = Due::of(&plan, 0, share);
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
        assert_eq!(Due::of(&plan, 0, &Share::whole()).up_to(Micros::MAX), 0);
    }
}
