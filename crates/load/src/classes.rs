//! The classes of requests, sent and unsent.

use crate::prepare::{Choice, PreparedPlan};
use crate::stream::FollowUp;

impl PreparedPlan {
    /// The class of a request that is sent.
    #[inline]
    pub(crate) fn class_of(&self, request: u32, follow_up: Option<&FollowUp>) -> u16 {
        if self.classes == 0 {
            return 0;
        }
        match follow_up {
            Some(follow_up) if follow_up.embedded => self.class_of_parts,
            _ => self.requests[request as usize].class,
        }
    }

    /// Divides `total` open-loop requests among the classes by the plan's weights. The shares add up.
    pub(crate) fn mixed(&self, total: u64) -> Vec<u64> {
        let weights: Vec<(u16, f64)> = match &self.choice {
            Choice::Only | Choice::Session => vec![(self.requests[0].class, 1.0)],
            Choice::Sessions(starts) => starts.iter().map(|at| (self.requests[*at].class, 1.0)).collect(),
            Choice::Order => self.requests.iter().map(|r| (r.class, 1.0)).collect(),
            Choice::Weighted(sums) => {
                let before = std::iter::once(0.0).chain(sums.iter().copied());
                self.requests.iter().zip(before.zip(sums)).map(|(r, (before, sum))| (r.class, sum - before)).collect()
            }
        };
        let whole: f64 = weights.iter().map(|(_, w)| w).sum();
        let mut shares = vec![0; self.classes];
        let (mut sum, mut given) = (0.0, 0);
        for (at, (class, weight)) in weights.iter().enumerate() {
            sum += weight;
            let until = if at + 1 == weights.len() { total } else { (total as f64 * sum / whole).floor() as u64 };
            let own = until.min(total).saturating_sub(given);
            shares[usize::from(*class)] += own;
            given += own;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lastdrop_model::Plan;

    #[test]
    fn shares_of_the_mix_add_up() {
        let mut plan = Plan::new("http://127.0.0.1:1/".parse().expect("valid"), 1);
        plan.requests = vec![plan.requests[0].clone(); 3];
        for (i, request) in plan.requests.iter_mut().enumerate() {
            (request.name, request.weight) = (i.to_string(), [0.1, 0.6, 0.3][i]);
        }
        let prepared = PreparedPlan::new(&plan).expect("valid");
        for total in [0, 1, 2, 9, 10, 1_000_001] {
            assert_eq!(prepared.mixed(total).iter().sum::<u64>(), total);
        }
        assert_eq!(prepared.mixed(1000), [100, 600, 300]);
    }
}
