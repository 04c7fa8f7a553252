//! Chooses a user's next request and its values.

use lastdrop_model::request::RowScope;
use rand_core::Rng;

use super::Users;
use crate::prepare::{Choice, PreparedPlan, Rows};
use crate::share::Shard;

impl Users {
    /// Returns the index of the next request.
    pub fn choose(&mut self, prepared: &PreparedPlan, shard: &Shard) -> usize {
        match &prepared.choice {
            Choice::Only | Choice::Session => 0,
            Choice::Sessions(starts) => {
                let n = shard.nth(self.next_request);
                self.next_request += 1;
                starts[(n % starts.len() as u64) as usize]
            }
            Choice::Weighted(sums) => Choice::by_weight(sums, &mut self.rng),
            Choice::Order => {
                let n = shard.nth(self.next_request);
                self.next_request += 1;
                (n % prepared.requests.len() as u64) as usize
            }
        }
    }

    /// Gives a user the next row of values, unless it keeps the one it has.
    pub fn take_row(&mut self, user: u32, rows: &Rows, shard: &Shard) {
        let person = &mut self.people[user as usize];
        if person.has_row && rows.per == RowScope::User {
            return;
        }
        let n = if rows.random {
            self.rng.next_u64()
        } else {
            let n = shard.nth(self.next_row);
            self.next_row += 1;
            n
        };
        let row = &rows.rows[(n % rows.rows.len() as u64) as usize];
        person.values[..rows.columns].clone_from_slice(row);
        person.has_row = true;
    }

    /// Ends a user's session: the next one begins without what this one collected.
    pub fn end_session(&mut self, user: u32, columns: usize) {
        let person = &mut self.people[user as usize];
        person.step = 0;
        person.mid_session = false;
        if !person.past_once {
            // The next session stands for a new user.
            person.jar.clear();
            person.cached.clear();
            person.values[columns..].iter_mut().for_each(Vec::clear);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::Share;
    use crate::users::Person;
    use lastdrop_model::Plan;
    use lastdrop_model::request::Pick;

    fn prepared(weights: &[f64], pick: Pick) -> PreparedPlan {
        let mut plan = Plan::new("http://127.0.0.1:1/".parse().expect("valid"), 1);
        plan.requests = vec![plan.requests[0].clone(); weights.len()];
        plan.requests.iter_mut().zip(weights).for_each(|(request, weight)| request.weight = *weight);
        plan.pick = pick;
        PreparedPlan::new(&plan).expect("valid")
    }

    #[test]
    fn threads_take_turns_through_the_requests() {
        let prepared = prepared(&[1.0; 5], Pick::Order);
        let mut all: Vec<usize> = Vec::new();
        let shards = [0, 1, 2].map(|thread| Share::whole().of_thread(thread, 3));
        let mut threads = shards.clone().map(|shard| Users::of(0, 1, 1, &shard));
        for _ in 0..5 {
            all.extend(threads.iter_mut().zip(&shards).map(|(users, shard)| users.choose(&prepared, shard)));
        }
        assert_eq!(all, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn agents_and_their_threads_have_each_row_and_each_user_once() {
        let rows = (0..120u32).map(|n| vec![n.to_string().into_bytes()]).collect();
        let rows = Rows { rows, per: RowScope::Request, random: false, columns: 1 };
        let shares = Share::by_weight(&[2, 1, 3]).expect("weights");
        let shards = (0..2).flat_map(|thread| shares.iter().map(move |s| s.of_thread(thread, 2)));
        let (mut taken, mut numbers, mut drawn) = (Vec::new(), Vec::new(), Vec::new());
        for shard in shards {
            let mut users = Users::of(1, 1, 1, &shard);
            users.people = vec![Person::new(1, 1)];
            for _ in 0..shard.count(120) {
                users.take_row(0, &rows, &shard);
                let row = String::from_utf8_lossy(&users.people[0].values[0]).into_owned();
                taken.push(row.parse::<u32>().expect("a number"));
            }
            numbers.extend((0..shard.count(31)).map(|user| shard.nth(user) + 1));
            drawn.push(users.rng.next_u64());
        }
        taken.sort_unstable();
        numbers.sort_unstable();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!((taken, numbers, drawn.len()), ((0..120).collect(), (1..=31).collect(), 6));
    }

    #[test]
    fn requests_are_chosen_by_their_weight() {
        let prepared = prepared(&[1.0, 0.0, 3.0], Pick::Weighted);
        let mut users = Users::of(0, 1, 1, &Shard::whole());
        let mut chosen = [0u32; 3];
        (0..4000).for_each(|_| chosen[users.choose(&prepared, &Shard::whole())] += 1);
        assert!(chosen[1] == 0 && chosen[0].abs_diff(1000) < 100, "{chosen:?}");
    }

    #[test]
    fn a_row_may_be_kept_by_its_user_and_a_session_leaves_nothing_behind() {
        let row = |text: &str| vec![text.as_bytes().to_vec()];
        let mut rows = Rows { rows: vec![row("a"), row("b")], per: RowScope::User, random: false, columns: 1 };
        let mut users = Users::of(0, 1, 1, &Shard::whole());
        users.people = vec![Person::new(1, 2)];
        users.take_row(0, &rows, &Shard::whole());
        users.take_row(0, &rows, &Shard::whole());
        assert_eq!(users.people[0].values[0], b"a");
        rows.per = RowScope::Request;
        users.take_row(0, &rows, &Shard::whole());
        users.people[0].values[1] = b"a token".to_vec();
        users.end_session(0, rows.columns);
        assert_eq!(users.people[0].values, [b"b".to_vec(), Vec::new()]);
    }
}
