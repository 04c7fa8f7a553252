//! The numbers of a run in progress, with the same columns as an ended run in the list.

use lastdrop_model::Histogram;
use lastdrop_report::{listed_load, listed_numbers};
use lastdrop_store::{Store, StoreError};

/// A number of seconds that no run reaches.
const ALL: usize = 1 << 40;

/// Running totals of the measured phase.
#[derive(Debug)]
pub struct RunningTotals {
    load: String,
    /// `None` if the plan measures nothing.
    phase: Option<usize>,
    /// Key of the second that was added last.
    key: i64,
    seconds: u32,
    answered_in_time: u64,
    unanswered: u64,
    response: Histogram,
}

impl RunningTotals {
    /// Starts with nothing.
    pub fn begin(store: &Store, id: &str) -> Result<RunningTotals, StoreError> {
        let plan = store.progress(id)?.plan;
        Ok(RunningTotals {
            load: listed_load(&plan),
            phase: plan.phases.iter().position(|p| p.measured),
            key: store.key_before_latest(id, ALL)?,
            seconds: 0,
            answered_in_time: 0,
            unanswered: 0,
            response: Histogram::new(),
        })
    }

    /// Adds up everything stored so far.
    pub fn of(store: &Store, id: &str) -> Result<RunningTotals, StoreError> {
        let mut so_far = RunningTotals::begin(store, id)?;
        so_far.catch_up(store, id)?;
        Ok(so_far)
    }

    /// Adds what was stored since the last call; returns whether there was anything.
    pub fn catch_up(&mut self, store: &Store, id: &str) -> Result<bool, StoreError> {
        let before = self.key;
        loop {
            let news = store.seconds_after(id, self.key)?;
            let Some(last) = news.last() else { return Ok(self.key > before) };
            self.key = last.key;
            for second in news.iter().filter(|s| self.phase == Some(usize::from(s.phase))) {
                self.seconds = self.seconds.max(second.second + 1);
                self.answered_in_time += second.counts.answered_in_time;
                self.unanswered += second.counts.failed.total() + second.counts.timed_out;
                self.response.add(&second.response);
            }
        }
    }

    /// Answers per second, p99, and requests without an answer, not counting those in flight.
    pub fn numbers(&self) -> [String; 3] {
        let p99 = (self.response.count() > 0).then(|| self.response.quantile(0.99) as f64);
        listed_numbers(self.answered_in_time as f64 / f64::from(self.seconds.max(1)), p99, self.unanswered)
    }

    /// The numbers and the load, as cells of the list.
    pub fn cells(&self) -> Vec<String> {
        self.numbers().into_iter().chain([self.load.clone()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::{Counts, KeptPlan, Kind, Plan, Slice};

    use super::*;

    #[test]
    fn a_run_under_way_has_the_numbers_of_what_it_measures() {
        let store = Store::scratch().expect("a store");
        let mut plan = Plan::new("http://127.0.0.1/".parse().expect("valid"), 1);
        let mut warm = plan.phases[0].clone();
        warm.measured = false;
        plan.phases.insert(0, warm);
        store.begin("a", 1, "", &KeptPlan::from(&plan), &serde_json::json!({})).expect("writes");
        let write = |phase: u16, n: u32, answered: u64| {
            let mut second = Slice::new(phase, n);
            second.counts = Counts { answered, answered_in_time: answered, timed_out: 1, ..Counts::default() };
            second.counts.failed.reset = 1;
            (0..answered).for_each(|_| second.record(Kind::Response, 2000));
            store.second("a", &second).expect("writes");
        };
        let mut so_far = RunningTotals::of(&store, "a").expect("reads");
        assert_eq!(so_far.numbers(), ["0.0", "–", "0"]);
        write(0, 0, 70);
        write(1, 0, 30);
        assert!(so_far.catch_up(&store, "a").expect("reads"));
        assert!(!so_far.catch_up(&store, "a").expect("reads"), "each second once");
        assert_eq!(so_far.numbers(), ["30.0", "2.00 ms", "2"]);
        write(1, 1, 10);
        assert!(so_far.catch_up(&store, "a").expect("reads"));
        assert_eq!(so_far.numbers(), RunningTotals::of(&store, "a").expect("reads").numbers());
        assert_eq!(so_far.cells()[..], ["20.0", "2.00 ms", "4", "10 users"]);
    }
}
