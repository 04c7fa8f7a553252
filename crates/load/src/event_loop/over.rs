//! Decides what a user does after a request has ended.

use lastdrop_model::Micros;

use super::EventLoop;
use crate::ids::{Placement, Slot};
use crate::phases::Source;
use crate::prepare::{Choice, draw};
use crate::transport::State;
use crate::users::RequestEnd;
use crate::world::World;

/// Pause of a user whose connection was refused: no real user retries without one.
const REFUSED_PAUSE_US: Micros = 50_000;

impl<W: World> EventLoop<'_, W> {
    /// Handles the end of a request that its connection no longer carries.
    #[inline]
    pub(super) fn request_over(&mut self, place: Placement, now: Micros, end: RequestEnd) {
        let user = self.users.user_of(place.stream);
        self.offer(place.slot);
        if self.job.prepared.personal {
            self.personal_over(user, place, now, end);
        } else {
            let request = self.streams[place.stream].request as usize;
            self.unit_over(user, request, now, matches!(end, RequestEnd::Lost { refused: true, .. }));
        }
        if self.waiting.pool.is_bounded() {
            self.serve_line(now);
        }
    }

    /// Ends a user's request, session or page; the next one follows after the think time.
    pub(super) fn unit_over(&mut self, user: u32, request: usize, now: Micros, refused: bool) {
        let closed = matches!(self.phases.source, Source::Closed { .. });
        if closed && refused && !self.phases.over {
            return self.pause(user, now + REFUSED_PAUSE_US);
        }
        if closed && !self.phases.over {
            let think = draw(self.job.prepared.requests[request].think, &mut self.users.rng);
            if !think.is_zero() {
                return self.pause(user, now + think.as_micros() as Micros);
            }
        }
        self.free(user, now);
    }

    pub(super) fn personal_over(&mut self, user: u32, place: Placement, now: Micros, end: RequestEnd) {
        let c = &mut self.transport.connections[place.slot];
        let s = &mut self.streams[place.stream];
        let request = s.request as usize;
        let phase = s.phase;
        let endpoint = c.endpoint as usize;
        let follow_up = s.follow_up.take().unwrap_or_default();
        let (mut good, mut refused, mut status, mut capture) = (false, false, 0, None);
        match end {
            RequestEnd::Answered { status: s, capture: c } => {
                good = true;
                status = s;
                capture = c;
            }
            RequestEnd::Lost { on_reuse: true, .. }
                if self.job.plan.abandon.lost_is_sent_again
                    && self.job.plan.page.is_none()
                    && self.phases.may_follow(now) =>
            {
                self.users.people[user as usize].step = request;
                return self.next_step(user, now, now);
            }
            RequestEnd::Lost { refused: r, .. } => refused = r,
        }
        if let Some(seen) = &mut capture {
            seen.finish();
            self.keep_cookies(user, endpoint, &follow_up, seen);
            let may_follow = self.phases.may_follow(now);
            if may_follow && let Some(next) = self.what_follows(user, request, endpoint, &follow_up, status, seen) {
                // A follow-up is a request like any other: due now, in this phase.
                let phase = self.phases.phase;
                self.record.slice(phase).counts.due += 1;
                return self.issue(user, request, now, phase, Some(Box::new(next)), now, true);
            }
            if may_follow || !self.is_cut_off(request, &follow_up, status, seen) {
                good &= self.judge(user, request, phase, status, seen, &follow_up);
            }
        }
        if self.job.plan.page.is_some() {
            return self.page_part_over(user, place.slot, &follow_up, endpoint, (good, status), refused, capture, now);
        }
        self.step_over(user, place.slot, request, (good, status), refused, now);
    }

    /// Ends a step: a request with all that followed from it, or a page. The session continues, or the user is done.
    pub(super) fn step_over(
        &mut self,
        user: u32,
        slot: Slot,
        request: usize,
        (good, status): (bool, u16),
        refused: bool,
        now: Micros,
    ) {
        if matches!(self.job.prepared.choice, Choice::Session | Choice::Sessions(_)) {
            let person = &mut self.users.people[user as usize];
            let requests = &self.job.prepared.requests;
            let last_once = requests.iter().rposition(|r| r.once);
            if good && last_once == Some(request) {
                person.past_once = true;
            }
            let past = person.past_once;
            // Skip requests that are sent once, if they are done.
            person.step =
                (request + 1..requests.len()).find(|i| !(requests[*i].once && past)).unwrap_or(requests.len());
            let abandon = &self.job.plan.abandon;
            let abandoned = abandon.session_with_status.is_some_and(|s| s == status)
                || abandon.session_with_connection && self.transport.connections[slot].state == State::Closed;
            if abandoned && self.transport.connections[slot].state == State::Idle {
                self.transport.close(slot);
            }
            let person = &mut self.users.people[user as usize];
            let more = person.step < requests.len() && !requests[request].last && !abandoned;
            if good && more && self.phases.may_follow(now) {
                self.users.people[user as usize].mid_session = true;
                let think = draw(self.job.prepared.requests[request].think, &mut self.users.rng);
                if think.is_zero() {
                    return self.next_step(user, now, now);
                }
                return self.pause(user, now + think.as_micros() as Micros);
            }
            self.users.end_session(user, self.job.prepared.columns());
        }
        self.unit_over(user, request, now, refused);
    }
}
