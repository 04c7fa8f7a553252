//! Requests come due: a user begins, an arrival finds a free user, a session continues.

use lastdrop_model::Micros;

use super::EventLoop;
use crate::phases::Source;
use crate::prepare::Choice;
use crate::users::{PageLoad, Presence};
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Closed loop: begins the user's next request, session or page.
    pub(super) fn begin_unit(&mut self, user: u32, due: Micros, now: Micros) {
        while !self.phases.over && self.phases.phase_end.is_some_and(|end| now >= end) {
            if usize::from(self.phases.phase) + 1 == self.job.plan.phases.len() {
                return self.send_away(user);
            }
            self.users.presence[user as usize] = Presence::Away;
            let end = self.phases.phase_end.unwrap_or(now);
            self.enter_phase(self.phases.phase + 1, end);
            if self.users.presence[user as usize] != Presence::Away || matches!(self.phases.source, Source::Open) {
                return;
            }
        }
        if self.phases.over || user >= self.users.wanted {
            return self.send_away(user);
        }
        if self.phases.remaining == 0 {
            self.send_away(user);
            return self.nothing_remains(now);
        }
        if self.tape.is_some() {
            return self.play_for(user, due, now);
        }
        self.users.presence[user as usize] = Presence::Busy;
        self.phases.remaining -= 1;
        let phase = self.phases.phase;
        self.record.slice(phase).counts.due += 1;
        let request = self.users.choose(self.job.prepared, &self.job.shard);
        self.start(user, request, due, phase, now, false);
        if self.phases.remaining == 0 {
            self.nothing_remains(now);
        }
    }

    /// A user begins something: a request, a session, a page.
    pub(super) fn start(&mut self, user: u32, mut request: usize, due: Micros, phase: u16, now: Micros, arrived: bool) {
        if self.job.prepared.personal {
            if let Some(rows) = &self.job.prepared.rows {
                self.users.take_row(user, rows, &self.job.shard);
            }
            let page = self.job.plan.page.is_some();
            let person = &mut self.users.people[user as usize];
            person.iteration += 1;
            if matches!(self.job.prepared.choice, Choice::Session) {
                // Requests marked `once` are skipped if this user has already got through all of them.
                let requests = &self.job.prepared.requests;
                person.step = (0..requests.len()).find(|i| !(requests[*i].once && person.past_once)).unwrap_or(0);
                request = person.step;
            } else {
                person.step = request;
            }
            if page {
                person.page = Some(PageLoad::begin(due, phase, request));
            }
        }
        self.issue(user, request, due, phase, None, now, arrived);
    }

    /// Sends the next request of a session.
    pub(super) fn next_step(&mut self, user: u32, due: Micros, now: Micros) {
        // A step counts like any other request of a closed loop; in an open loop `-n` counts arrivals.
        let counts =
            matches!(self.phases.source, Source::Closed { .. }) && matches!(self.job.prepared.choice, Choice::Session);
        if counts {
            if self.phases.remaining == 0 {
                self.users.end_session(user, self.job.prepared.columns());
                self.send_away(user);
                return self.nothing_remains(now);
            }
            self.phases.remaining -= 1;
        }
        self.users.presence[user as usize] = Presence::Busy;
        let phase = self.phases.phase;
        self.record.slice(phase).counts.due += 1;
        let is_page = self.job.plan.page.is_some();
        let person = &mut self.users.people[user as usize];
        let step = person.step;
        if is_page {
            person.page = Some(PageLoad::begin(due, phase, step));
        }
        self.issue(user, step, due, phase, None, now, false);
        if self.phases.remaining == 0 && counts {
            self.nothing_remains(now);
        }
    }

    /// Open loop: sends every request that is due and finds a free user. Returns the latest time it read.
    pub(super) fn dispatch(&mut self, mut now: Micros) -> Micros {
        if self.tape.is_some() {
            return self.play(now);
        }
        // A request that fails at once frees its user inside this call. The loop below continues then; it does not
        // recurse.
        if self.waiting.dispatching
            || self.waiting.exhausted
            || self.phases.queues.is_empty()
            || now < self.waiting.no_socket_until
        {
            return now;
        }
        self.waiting.dispatching = true;
        let mut begun = false;
        while let Some(queue) = self.phases.queues.front_mut() {
            let Some(due) = queue.next_due() else {
                // The current phase keeps its queue until it is over.
                if queue.phase == self.phases.phase {
                    break;
                }
                self.phases.queues.pop_front();
                continue;
            };
            if due > now || now < self.waiting.no_socket_until {
                break;
            }
            let phase = queue.phase;
            // Read the time again: this request goes out later than the last one. Thousands due together must not keep
            // the loop from its events.
            if begun {
                let Some(later) = self.still_in_turn() else { break };
                now = later;
            }
            let request = self.users.choose(self.job.prepared, &self.job.shard);
            let endpoint = self.job.prepared.requests[request].endpoint;
            let Some(user) = self.waiting.take_user(endpoint) else {
                // In order: this request stays next.
                if matches!(self.job.prepared.choice, Choice::Order) {
                    self.users.next_request -= 1;
                }
                self.waiting.exhausted = true;
                break;
            };
            let depth = self.job.plan.http.pipeline.max(1);
            let mut behind = Vec::new();
            if let Some(queue) = self.phases.queues.front_mut() {
                queue.budget -= 1;
                queue.arrivals.advance();
                while (behind.len() as u32) + 1 < depth && queue.budget > 0 {
                    let Some(next) = queue.next_due().filter(|next| *next <= now) else { break };
                    behind.push(next);
                    queue.budget -= 1;
                    queue.arrivals.advance();
                }
            }
            self.users.presence[user as usize] = Presence::Busy;
            if depth > 1 {
                let slot = self.place_of(self.users.stream(user, 0)).slot;
                self.transport.connections[slot].wire.put_behind(behind);
            }
            self.start(user, request, due, phase, now, true);
            if phase == self.phases.phase {
                self.open_budget_used(now);
            }
            begun = true;
        }
        self.waiting.dispatching = false;
        now
    }

    /// Open loop: ends the phase when its last permitted request has gone out.
    pub(super) fn open_budget_used(&mut self, now: Micros) {
        let phase = self.phases.phase;
        if !self.phases.over && self.phases.queues.iter().any(|q| q.phase == phase && q.budget == 0) {
            // The last one came due by now; a request due at exactly this moment counts.
            self.count_due(now + 1);
            self.nothing_remains(now);
        }
    }
}
