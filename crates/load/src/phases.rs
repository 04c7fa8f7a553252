//! Where a run is: which phase, until when, what makes requests come due in it and how many still may.

use std::collections::VecDeque;

use lastdrop_model::Micros;

use crate::arrivals::Arrivals;

/// What makes requests come due in a phase.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// This many users at the beginning and at the end.
    Closed {
        from: f64,
        to: f64,
    },
    Open,
}

/// Arrivals of a phase that have not all been sent.
#[derive(Debug)]
pub(crate) struct Queue {
    pub phase: u16,
    pub start: Micros,
    pub end: Option<Micros>,
    pub arrivals: Arrivals,
    /// Requests that may still be sent.
    pub budget: u64,
}

impl Queue {
    /// When its next request is due, if it has one that may be sent.
    pub fn next_due(&self) -> Option<Micros> {
        if self.budget == 0 {
            return None;
        }
        let due = self.start.checked_add(self.arrivals.next_due())?;
        self.end.is_none_or(|end| due < end).then_some(due)
    }
}

/// Where a run is.
#[derive(Debug)]
pub(crate) struct Phases {
    /// The phase that the clock is in.
    pub phase: u16,
    pub phase_start: Micros,
    pub phase_end: Option<Micros>,
    pub source: Source,
    /// Requests that may still come due in this phase.
    pub remaining: u64,
    /// Nothing comes due any more.
    pub over: bool,
    /// It is because of `-n`: what follows from answers still comes due, until the time is up.
    pub used_up: bool,
    /// It is because of what the plan gives up at, of which there were so many.
    pub given_up: bool,
    /// Open loop: what has come due is counted up to here; what is to be sent.
    pub due_cursor: Option<Queue>,
    pub queues: VecDeque<Queue>,
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

    /// May what follows from an answer still be sent: a redirect, the rest of a page?
    pub fn may_follow(&self, now: Micros) -> bool {
        !self.over || self.used_up && self.phase_end.is_none_or(|end| now < end)
    }
}
