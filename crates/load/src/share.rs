//! Divides a run: among agents by their weights, and an agent's share among its threads.
//!
//! Arrivals, users, rows of data, requests in order and counted ends are all numbered from 0 and divided the same way.
//! So number `i` of each kind belongs to exactly one thread of one agent. All of them together do what one thread on
//! one machine would do. Agents take turns as smoothly as their weights allow (`a*2,b`: a b a a b a …), so that each
//! has its share of every second.

use std::sync::Arc;

/// An agent's share of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The agent's number, which seeds its random numbers.
    agent: u32,
    /// The agent's numbers out of every `of` consecutive ones, in order; at least one.
    own: Arc<[u32]>,
    of: u32,
}

/// Largest sum of weights in a fleet: a larger table of turns would fit into no cache.
pub const MOST_WEIGHT: u32 = 100_000;

impl Share {
    /// A whole run, for one machine.
    #[must_use]
    pub fn whole() -> Share {
        Share { agent: 0, own: Arc::new([0]), of: 1 }
    }

    /// The share of each agent, by their weights. `None` without agents, if a weight is 0, or if their sum is above
    /// [`MOST_WEIGHT`].
    #[must_use]
    pub fn by_weight(weights: &[u32]) -> Option<Vec<Share>> {
        let divisor = weights.iter().copied().reduce(common_divisor)?;
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        if weights.contains(&0) || sum > u64::from(MOST_WEIGHT) {
            return None;
        }
        let weights: Vec<i64> = weights.iter().map(|w| i64::from(w / divisor)).collect();
        let of: i64 = weights.iter().sum();
        let mut own = vec![Vec::new(); weights.len()];
        // The agent furthest behind its weight is next (smooth weighted round robin, as in load balancers).
        let mut ahead = vec![0i64; weights.len()];
        for turn in 0..of as u32 {
            ahead.iter_mut().zip(&weights).for_each(|(a, w)| *a += w);
            let next = (0..weights.len()).max_by_key(|i| (ahead[*i], std::cmp::Reverse(*i)))?;
            ahead[next] -= of;
            own[next].push(turn);
        }
        let share = |(agent, own): (usize, Vec<u32>)| Share { agent: agent as u32, own: own.into(), of: of as u32 };
        Some(own.into_iter().enumerate().map(share).collect())
    }

    /// The part of one of the agent's threads.
    #[must_use]
    pub fn of_thread(&self, thread: usize, threads: usize) -> Shard {
        Shard { share: self.clone(), thread: thread as u64, threads: threads.max(1) as u64 }
    }

    /// Whether this number is the agent's.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        self.own.binary_search(&((number % u64::from(self.of)) as u32)).is_ok()
    }

    /// How many of the first `total` numbers are the agent's.
    #[must_use]
    pub fn count(&self, total: u64) -> u64 {
        let (rounds, rest) = (total / u64::from(self.of), total % u64::from(self.of));
        // No overflow: `own` has at most `of` numbers.
        rounds * self.own.len() as u64 + self.own.partition_point(|n| u64::from(*n) < rest) as u64
    }
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// A thread's part of a run.
#[derive(Debug, Clone)]
pub struct Shard {
    share: Share,
    thread: u64,
    threads: u64,
}

impl Shard {
    /// A whole run.
    #[must_use]
    pub fn whole() -> Shard {
        Share::whole().of_thread(0, 1)
    }

    /// The `k`-th (from 0) of this thread's numbers.
    #[inline]
    #[must_use]
    pub fn nth(&self, k: u64) -> u64 {
        let of_agent = self.thread + k * self.threads;
        let own = &self.share.own;
        if own.len() == 1 {
            return of_agent * u64::from(self.share.of) + u64::from(own[0]);
        }
        let (round, turn) = (of_agent / own.len() as u64, of_agent % own.len() as u64);
        round * u64::from(self.share.of) + u64::from(own[turn as usize])
    }

    /// How many of the first `total` numbers are this thread's.
    #[must_use]
    pub fn count(&self, total: u64) -> u64 {
        let of_agent = self.share.count(total);
        of_agent / self.threads + u64::from(self.thread < of_agent % self.threads)
    }

    /// Total over all threads if each has as much for its share as this one: `own`, scaled up.
    #[must_use]
    pub fn scale(&self, own: u64) -> u64 {
        own * self.threads * u64::from(self.share.of) / self.share.own.len() as u64
    }

    /// This thread's part of `total` requests by `users` users, who each send an equal part; some may send none. All
    /// threads together send `total`; a thread without users sends none.
    #[must_use]
    pub fn requests_of(&self, total: u64, users: u64) -> u64 {
        let users = users.max(1);
        total / users * self.count(users) + self.count(total % users)
    }

    /// How often a random number generator has to jump so that each thread has its own numbers: for the agent, and for
    /// the thread.
    #[must_use]
    pub fn jumps(&self) -> (u32, u32) {
        (self.share.agent, self.thread as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every thread of a fleet with these weights, with a number of threads per agent.
    pub fn shards(weights: &[u32], threads: &[usize]) -> Vec<Shard> {
        let shares = Share::by_weight(weights).expect("weights");
        let of_agent = |(share, n): (&Share, &usize)| (0..*n).map(|t| share.of_thread(t, *n)).collect::<Vec<_>>();
        shares.iter().zip(threads.iter().cycle()).flat_map(of_agent).collect()
    }

    /// Fleets of one to eight agents, alike and not.
    fn fleets() -> Vec<Vec<Shard>> {
        let mut all: Vec<Vec<Shard>> =
            (1..=8).flat_map(|agents| [1, 2, 3].map(|threads| shards(&vec![1; agents], &[threads]))).collect();
        all.extend([shards(&[2, 1], &[1, 3]), shards(&[3, 5, 7], &[2, 1]), shards(&[10, 4], &[4, 1])]);
        all
    }

    #[test]
    fn every_number_belongs_to_exactly_one_thread() {
        for fleet in fleets() {
            let mut seen: Vec<u64> = fleet
                .iter()
                .flat_map(|shard| (0..).map(|k| shard.nth(k)).take_while(|n| *n < 1000).collect::<Vec<_>>())
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..1000).collect::<Vec<_>>(), "{fleet:?}");
        }
    }

    #[test]
    fn counts_are_those_of_the_numbers_and_add_up() {
        for fleet in fleets() {
            for total in [0, 1, 7, 100, 1001] {
                for shard in &fleet {
                    let has = (0..total).filter(|n| shard.share.has(*n)).count() as u64;
                    assert_eq!(shard.share.count(total), has);
                    let numbers = (0..).map(|k| shard.nth(k)).take_while(|n| *n < total).count() as u64;
                    assert_eq!(shard.count(total), numbers);
                }
                for users in [1, 2, 5, 400] {
                    let sum: u64 = fleet.iter().map(|s| s.requests_of(total, users)).sum();
                    assert_eq!(sum, total, "{users} users");
                    let idle = fleet.iter().filter(|s| s.count(users) == 0).map(|s| s.requests_of(total, users));
                    assert_eq!(idle.sum::<u64>(), 0, "{users} users");
                }
            }
        }
    }

    #[test]
    fn weights_take_turns_smoothly() {
        let owners = |weights: &[u32]| {
            let fleet = shards(weights, &[1]);
            (0..6u64).map(|n| fleet.iter().position(|s| s.count(n + 1) > s.count(n)).expect("one")).collect::<Vec<_>>()
        };
        assert_eq!(owners(&[2, 1]), [0, 1, 0, 0, 1, 0]);
        assert_eq!(owners(&[20, 10]), [0, 1, 0, 0, 1, 0]);
        assert_eq!(owners(&[1, 1, 1]), [0, 1, 2, 0, 1, 2]);
        assert_eq!(owners(&[1, 2]), [1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn weights_that_mean_nothing_are_refused() {
        assert_eq!(Share::by_weight(&[]), None);
        assert_eq!(Share::by_weight(&[1, 0]), None);
        assert_eq!(Share::by_weight(&[MOST_WEIGHT, 1]), None);
        assert_eq!(Share::by_weight(&[7]), Some(vec![Share::whole()]));
        assert_eq!(Share::by_weight(&[u32::MAX, u32::MAX]), None);
    }

    #[test]
    fn what_one_thread_has_says_what_all_have() {
        for fleet in fleets() {
            let all = 8 * 15 * 14 * 6 * 11;
            assert!(fleet.iter().all(|s| s.scale(s.count(all)) == all), "{fleet:?}");
        }
    }
}
