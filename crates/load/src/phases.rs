//! The state of a run: the current phase and its end, what makes requests come due, and how many still may.

use std::collections::VecDeque;

use lastdrop_model::Micros;

use crate::arrivals::Arrivals;

/// What makes requests come due in a phase.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Closed loop: the number of users at the beginning and at the end.
    Closed {
        from: f64,
        to: f64,
    },
    Open,
}

/// Arrivals of a phase that have not all been sent.
#[derive(Debug)]
pub(crate) struct ArrivalQueue {
    pub phase: u16,
    pub start: Micros,
    pub end: Option<Micros>,
    pub arrivals: Arrivals,
    /// Requests that may still be sent.
    pub budget: u64,
}

impl ArrivalQueue {
    /// When its next request is due, if it has one that may be sent.
    pub fn next_due(&self) -> Option<Micros> {
        if self.budget == 0 {
            return None;
        }
        let due = self.start.checked_add(self.arrivals.next_due())?;
        self.end.is_none_or(|end| due < end).then_some(due)
    }
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct Phases {
    /// The current phase.
    pub phase: u16,
    pub phase_start: Micros,
    pub phase_end: Option<Micros>,
    pub source: Source,
    /// Requests that may still come due in this phase.
    pub remaining: u64,
    /// Nothing comes due any more.
    pub over: bool,
    /// The end is due to `-n`: follow-up requests still come due until the time is up.
    pub used_up: bool,
    /// The end is due to the plan's limit of bad results.
    pub given_up: bool,
    /// Open loop: up to where due requests are counted, and the requests to be sent.
    pub due_cursor: Option<ArrivalQueue>,
    pub queues: VecDeque<ArrivalQueue>,
}

impl Phases {
    pub fn new() -> Phases {
        Phases {
            phase: 0,
            phase_start: 0,
            phase_end: None,
            source: Source::Open,
            remaining: 0,
            over: false,
            used_up: false,
            given_up: false,
            due_cursor: None,
            queues: VecDeque::new(),
        }
    }

    /// Whether follow-up requests may still be sent: a redirect, the rest of a page.
    pub fn may_follow(&self, now: Micros) -> bool {
        !self.over || self.used_up && self.phase_end.is_none_or(|end| now < end)
    }

    /// Open loop: returns the phase, and how many of its requests have come due since the last call.
    pub fn come_due(&mut self, now: Micros) -> Option<(u16, u64)> {
        let cursor = self.due_cursor.as_mut()?;
        let until = cursor.end.map_or(now, |end| end.min(now)).saturating_sub(cursor.start);
        let due = cursor.arrivals.advance_to(until).min(self.remaining);
        self.remaining -= due;
        Some((cursor.phase, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Profile;
    use crate::share::Shard;
    use lastdrop_model::Arrival;

    /// One request per millisecond from `start` on.
    fn queue(start: Micros, end: Option<Micros>, budget: u64) -> ArrivalQueue {
        let arrivals = Arrivals::new(Arrival::Uniform, Profile::constant(1000.0), 1, 1, Shard::whole());
        ArrivalQueue { phase: 0, start, end, arrivals, budget }
    }

    #[test]
    fn what_has_come_due_is_counted_once_and_never_beyond_the_end_or_the_limit() {
        let mut phases = Phases::new();
        phases.remaining = 8;
        phases.due_cursor = Some(queue(5_000, Some(15_000), 8));
        let counted: Vec<u64> =
            [5_000, 5_001, 9_001, 9_001, 90_000].iter().map(|at| phases.come_due(*at).expect("open").1).collect();
        assert_eq!((counted, phases.remaining), (vec![0, 1, 4, 0, 3], 0));
        phases.remaining = u64::MAX;
        phases.due_cursor = Some(queue(5_000, Some(15_000), u64::MAX));
        assert_eq!(phases.come_due(90_000), Some((0, 10)));
    }

    #[test]
    fn a_queue_has_no_request_at_its_end_or_beyond_its_budget() {
        let mut queue = queue(5_000, Some(7_000), 5);
        let mut due = Vec::new();
        while let Some(at) = queue.next_due() {
            due.push(at);
            queue.arrivals.advance();
            queue.budget -= 1;
        }
        assert_eq!(due, [5_000, 6_000]);
        queue.budget = 0;
        assert_eq!(queue.next_due(), None);
    }

    #[test]
    fn what_follows_may_be_sent_after_the_last_of_n_but_not_after_the_time() {
        let mut phases = Phases::new();
        phases.phase_end = Some(100);
        assert!(phases.may_follow(200));
        phases.over = true;
        assert!(!phases.may_follow(50));
        phases.used_up = true;
        assert!(phases.may_follow(99) && !phases.may_follow(100));
    }
}
