//! Plays the requests of a log instead of the plan's own.

use lastdrop_model::{Micros, Url};

use super::EventLoop;
use crate::ids::Placement;
use crate::phases::Source;
use crate::prepare::Detour;
use crate::stream::FollowUp;
use crate::tape::{BEHIND_US, NOTHING_YET_US, RecordedRequest, TapeReader};
use crate::users::Presence;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Whether a tape is played by its times (open loop).
    #[inline]
    pub(super) fn plays_open(&self) -> bool {
        self.tape.is_some() && matches!(self.phases.source, Source::Open)
    }

    /// Open loop: sends every request that is due and finds a free user. Returns the latest time it read.
    pub(super) fn play(&mut self, mut now: Micros) -> Micros {
        let open = matches!(self.phases.source, Source::Open);
        if !open
            || self.waiting.dispatching
            || self.waiting.exhausted
            || self.phases.over
            || now < self.waiting.no_socket_until
        {
            return now;
        }
        self.waiting.dispatching = true;
        let mut begun = false;
        while self.phases.remaining > 0 {
            let start = self.phases.phase_start;
            let end = self.phases.phase_end;
            let Some(tape) = &mut self.tape else { break };
            let Some(due) = tape.next_due().map(|due| start + due) else { break };
            if due > now || end.is_some_and(|end| due >= end) {
                break;
            }
            // As in `dispatch`.
            if begun {
                let Some(later) = self.still_in_turn() else { break };
                now = later;
            }
            let Some(user) = self.waiting.take_user(0) else {
                self.waiting.exhausted = true;
                break;
            };
            let Some(played) = self.tape.as_mut().and_then(TapeReader::take) else { break };
            self.phases.remaining -= 1;
            self.users.presence[user as usize] = Presence::Busy;
            self.send_played(user, played, due, now, true);
            begun = true;
        }
        self.waiting.dispatching = false;
        if self.tape.as_ref().is_some_and(TapeReader::over) {
            self.phases.remaining = 0;
        }
        if self.phases.remaining == 0 {
            self.nothing_remains(now);
        }
        now
    }

    /// Closed loop: sends the user's own next request from the tape.
    pub(super) fn play_for(&mut self, user: u32, due: Micros, now: Micros) {
        let (number, users) = (user as usize, self.users.presence.len());
        match self.tape.as_mut().and_then(|tape| tape.of_user(number, users)) {
            Some(played) => {
                self.users.presence[user as usize] = Presence::Busy;
                self.phases.remaining -= 1;
                self.send_played(user, played, due, now, false);
                if self.phases.remaining == 0 {
                    self.nothing_remains(now);
                }
            }
            None if self.tape.as_ref().is_some_and(TapeReader::over) => {
                self.send_away(user);
                let asking = |p: &Presence| *p != Presence::Away;
                if !self.users.presence.iter().any(asking) {
                    self.phases.remaining = 0;
                    self.nothing_remains(now);
                }
            }
            // Other users, or the reader of the log, have to get ahead first.
            None => self.pause(user, now + NOTHING_YET_US),
        }
    }

    pub(super) fn send_played(&mut self, user: u32, played: RecordedRequest, due: Micros, now: Micros, arrived: bool) {
        let phase = self.phases.phase;
        self.record.slice(phase).counts.due += 1;
        let RecordedRequest { request, method, target, host, logged, .. } = played;
        let endpoint = self.job.prepared.requests[request as usize].endpoint;
        if let Some(person) = self.users.people.get_mut(user as usize) {
            person.iteration += 1;
        }
        let detour = Detour { endpoint, method, path: target, body: false, host };
        let follow_up = FollowUp { detour: Some(detour), logged, ..FollowUp::default() };
        self.issue(user, request as usize, due, phase, Some(Box::new(follow_up)), now, arrived);
    }

    /// Compares an answer with the one in the log.
    pub(super) fn compare_with_log(&mut self, place: Placement) {
        let c = &self.transport.connections[place.slot];
        let s = &self.streams[place.stream];
        let Some((follow_up, logged)) = s.follow_up.as_ref().and_then(|e| Some((e, e.logged.as_ref()?))) else {
            return;
        };
        let answer = c.wire.answer(place.stream);
        let e = &self.transport.endpoints[c.endpoint as usize];
        let path = String::from_utf8_lossy(&follow_up.target).into_owned();
        let here = Url { tls: e.tls, host: e.host.clone(), port: e.port, path };
        let location = s.capture.as_ref().and_then(|seen| seen.location.as_deref());
        let differs = logged.differs(answer.status, location, &here);
        let usual = self.job.plan.replay.as_ref().and_then(|r| r.usual.get(s.request as usize));
        let far = !differs
            && (200..300).contains(&answer.status)
            && (200..300).contains(&logged.status)
            && usual.is_some_and(|usual| usual.is_far(answer.head_bytes, answer.body_bytes));
        let (phase, class) = (s.phase, s.class);
        self.record.slice(phase).count(class, |c| {
            c.compared += 1;
            c.mismatched += u64::from(differs);
            c.odd_sizes += u64::from(far);
        });
    }

    /// Returns when the next request of the tape is due, or when to ask the reader again.
    pub(super) fn next_played(&mut self, now: Micros) -> Option<Micros> {
        let start = self.phases.phase_start;
        let tape = self.tape.as_mut().filter(|_| matches!(self.phases.source, Source::Open))?;
        match tape.next_due() {
            Some(due) => Some(start + due),
            None if tape.over() => None,
            None => Some(now + BEHIND_US),
        }
    }

    /// Counts the requests that have come due by now and will not be sent.
    pub(super) fn count_unplayed(&mut self, now: Micros) {
        if let Some(tape) = &mut self.tape {
            tape.tell();
        }
        if !matches!(self.phases.source, Source::Open) || self.phases.remaining == 0 {
            return;
        }
        let until = self.phases.phase_end.map_or(now, |end| end.min(now)).saturating_sub(self.phases.phase_start);
        let (phase, mut left) = (self.phases.phase, self.phases.remaining);
        let Some(mut tape) = self.tape.take() else { return };
        let (prepared, wiring) = (self.job.prepared, self.wiring);
        let slice = self.record.slice(phase);
        tape.rest(
            until,
            || wiring.told_to_stop(),
            |played| {
                if left > 0 {
                    left -= 1;
                    slice.counts.due += 1;
                    let class = prepared.requests.get(played.request as usize).map_or(0, |r| r.class);
                    if let Some(counts) = slice.by_class.counts.get_mut(usize::from(class)) {
                        counts.due += 1;
                    }
                }
            },
        );
        self.tape = Some(tape);
    }
}
