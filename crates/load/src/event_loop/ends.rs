//! The ends that a request can have, each recorded exactly once: answered, failed, timed out.

use lastdrop_model::plan::GiveUpRule;
use lastdrop_model::{Failure, IdentifiedAnswer, Kind, Micros, RequestOutcome, Url};

use super::{EventLoop, LONGEST_TURN_US};
use crate::answer_check::CheckedAnswer;
use crate::ids::{Placement, Slot};
use crate::protocol::HttpState;
use crate::transport::State;
use crate::users::RequestEnd;
use crate::world::World;

impl<W: World> EventLoop<'_, W> {
    /// Records one answer.
    #[inline]
    pub(super) fn record_answer(&mut self, place: Placement, now: Micros, kept: bool) {
        let c = &self.transport.connections[place.slot];
        let s = &self.streams[place.stream];
        let status = c.wire.answer(place.stream).status;
        let (class, due) = (s.class, s.times.due);
        // The rate of a phase counts the answers within its time, whichever phase asked. It includes late answers to
        // the previous phase and excludes its own late ones. Counting otherwise would lose the requests in flight.
        if self.phases.phase_end.is_none_or(|end| now < end) {
            self.record.slice(self.phases.phase).count(class, |c| c.answered_in_time += 1);
        }
        self.record.answered(s, status, now);
        if self.job.plan.server_time.is_some() {
            self.record_parts(place, now);
        }
        if self.tape.is_some() {
            self.compare_with_log(place);
        }
        if self.streams[place.stream].looked_at {
            self.look_at_answer(place);
        }
        self.note_end(place, due, now, RequestOutcome::Answered, kept);
        if self.record.exchanges.is_some() && self.record.outcome.first_answer.is_none() {
            self.note_first_answer(place.slot);
        }
    }

    /// Checks whether an answer without expectations looks as if the server did the work.
    #[cold]
    fn look_at_answer(&mut self, place: Placement) {
        let c = &self.transport.connections[place.slot];
        let s = &self.streams[place.stream];
        let Some(seen) = &s.capture else { return };
        let spec = &self.job.plan.requests[s.request as usize];
        let e = &self.transport.endpoints[c.endpoint as usize];
        let follow_up = s.follow_up.as_deref();
        let path = follow_up.map_or(spec.url.path.clone(), |e| String::from_utf8_lossy(&e.target).into_owned());
        let here = Url { tls: e.tls, host: e.host.clone(), port: e.port, path };
        let looked = CheckedAnswer {
            spec,
            method: follow_up.and_then(|e| e.detour.as_ref()).map_or(spec.method.as_str(), |d| d.method.as_str()),
            here: &here,
            status: c.wire.answer(place.stream).status,
            location: seen.location.as_deref(),
            is_followed: follow_up.map_or(0, |e| e.hops) < self.job.plan.http.redirects,
            body: seen.body(),
        };
        if !looked.leads_on() {
            self.record.note_look(&looked);
        }
    }

    /// Records the answer to the first of several pipelined requests; the next answer follows.
    pub(super) fn first_of_pipeline(&mut self, place: Placement, now: Micros) {
        self.record_answer(place, now, true);
        let HttpState::One(wire) = &mut self.transport.connections[place.slot].wire else { return };
        let s = &mut self.streams[place.stream];
        s.id += 1;
        s.received = 0;
        s.times.due = wire.next_behind();
    }

    #[inline]
    pub(super) fn answered(&mut self, place: Placement, now: Micros, reusable: bool) {
        let Placement { stream, slot } = place;
        let c = &self.transport.connections[slot];
        let s = &self.streams[stream];
        let request = &self.job.prepared.requests[s.request as usize];
        let keep = reusable
            && !c.peer_closed
            && c.served < self.transport.requests_per_connection
            && !request.last
            && !request.closes;
        self.record_answer(place, now, keep);
        self.streams.remove(stream);
        let c = &mut self.transport.connections[slot];
        let s = &mut self.streams[stream];
        let status = c.wire.answer(stream).status;
        let end = RequestEnd::Answered { status, capture: s.capture.take() };
        c.state = State::Idle;
        if !keep {
            self.transport.close(slot);
        }
        self.record.last_end = now;
        self.count_towards_end(now, |g| g.statuses.contains(&status));
        self.request_over(place, now, end);
    }

    /// Fails everything in flight on a connection that is of no further use.
    pub(super) fn fail(&mut self, slot: Slot, failure: Failure, now: Micros) {
        let wire = &self.transport.connections[slot].wire;
        if wire.is_shared() {
            return self.fail_shared(slot, failure, now);
        }
        for stream in wire.streams(slot) {
            self.fail_stream(Placement { stream, slot }, failure, now);
        }
    }

    fn fail_stream(&mut self, place: Placement, failure: Failure, now: Micros) {
        let Placement { stream, slot } = place;
        if self.record.exchanges.is_some() && self.record.outcome.first_answer.is_none() {
            // The part of an answer that arrived identifies the server as well as a whole one.
            let answer = self.transport.connections[slot].wire.answer(stream);
            if answer.started && answer.has_head {
                self.note_first_answer(slot);
            }
        }
        let c = &self.transport.connections[slot];
        let s = &self.streams[stream];
        let before_first_byte = !c.wire.answer(stream).started && matches!(failure, Failure::Reset | Failure::Closed);
        let lost_on_reuse = before_first_byte && c.reused() && c.wire.behind().is_empty();
        let (phase, class) = (s.phase, s.class);
        let dues: Vec<Micros> = std::iter::once(s.times.due).chain(c.wire.behind().iter().copied()).collect();
        for due in &dues {
            self.note_end(place, *due, now, RequestOutcome::Failed(failure), false);
            self.record.failed(phase, class, failure);
        }
        if lost_on_reuse {
            self.count(stream, |c| c.lost_on_reuse += 1);
        }
        let refused = failure == Failure::Connect;
        self.record.refused += u64::from(refused);
        self.count_towards_end(now, |g| g.failures.contains(&failure));
        self.lose(place, now, refused, lost_on_reuse);
    }

    /// Counts an end towards the number after which the run gives up.
    pub(super) fn count_towards_end(&mut self, now: Micros, counts: impl FnOnce(&GiveUpRule) -> bool) {
        if let Some(limit) = &self.job.plan.abandon.run
            && counts(limit)
        {
            self.record.ends_counted += 1;
            if self.record.ends_counted >= limit.after {
                self.give_up(now);
            }
        }
    }

    /// Ends requests whose timeout lies before `seen`. Everything that had arrived by then has been read, so an answer
    /// that waited while this thread was busy is no timeout. After one turn's time the remaining requests wait for the
    /// next turn: each end may begin another request, and the loop has to poll.
    pub(super) fn expire(&mut self, seen: Micros) {
        let mut began = None;
        while let Some(stream) = self.streams.expired(seen) {
            let now = self.now();
            if now >= *began.get_or_insert(now) + LONGEST_TURN_US {
                break;
            }
            let place = self.place_of(stream);
            let c = &self.transport.connections[place.slot];
            let s = &self.streams[stream];
            let (phase, class) = (s.phase, s.class);
            let not_connected = c.state == State::Connecting;
            let dues: Vec<Micros> = std::iter::once(s.times.due).chain(c.wire.behind().iter().copied()).collect();
            let first = s.id;
            for (number, due) in (first..).zip(&dues) {
                self.record.timed_out(phase, class, number, now.saturating_sub(*due));
                self.note_end(place, *due, now, RequestOutcome::TimedOut, false);
            }
            self.record.refused += u64::from(not_connected);
            let silent = self.streams.is_silent_since(stream, self.record.last_end);
            if silent && self.job.plan.abandon.run.as_ref().is_some_and(|g| g.silence) {
                self.give_up(now);
            }
            self.count_towards_end(now, |g| g.timeouts);
            self.lose(place, now, false, false);
        }
    }

    /// Takes a request without an answer off its connection, and closes the connection unless others share it.
    pub(super) fn lose(&mut self, place: Placement, now: Micros, refused: bool, on_reuse: bool) {
        let Placement { stream, slot } = place;
        let HttpState::One(wire) = &mut self.transport.connections[slot].wire else {
            return self.lose_shared(place, now);
        };
        wire.lost();
        self.streams.remove(stream);
        self.streams[stream].capture = None;
        self.transport.close(slot);
        self.record.last_end = now;
        self.request_over(place, now, RequestEnd::Lost { refused, on_reuse });
    }

    /// Records how the time of a complete answer divides up: link, queue, server, transfer.
    pub(super) fn record_parts(&mut self, place: Placement, now: Micros) {
        let origin = (self.transport.world.unix_us() + self.job.start) as i64;
        let c = &mut self.transport.connections[place.slot];
        let s = &mut self.streams[place.stream];
        let (said, id) = (s.said.as_deref_mut().map(std::mem::take).unwrap_or_default(), s.id);
        let (phase, class, first_byte, written) = (s.phase, s.class, s.times.first_byte, s.times.written);
        let link = c.socket.as_ref().and_then(|socket| self.transport.world.round_trip_us(socket));
        let mut queue = said.queued_us;
        if let (None, Some(began), Some(link)) = (queue, said.began_unix_us, link)
            && written > 0
        {
            let (began, written, received) = (began as i64, origin + written as i64, origin + first_byte as i64);
            let ended = began.saturating_add(said.took_us.unwrap_or(0) as i64);
            self.record.clock_offset.learn(began, ended, written, received, link as i64);
            let arrived = written + (link / 2) as i64;
            queue = Some((began - self.record.clock_offset.ahead() - arrived).max(0) as u64);
        }
        let transfer = Some(now.saturating_sub(first_byte));
        let joins_log = self.record.ids.as_ref().is_some_and(|ids| ids.joins_log);
        let slice = self.record.slice(phase);
        if joins_log {
            slice.identified.push(IdentifiedAnswer { id, class });
        }
        for (kind, us) in [
            (Kind::Link, link),
            (Kind::Queue, queue),
            (Kind::Server, said.took_us),
            (Kind::Upstream, said.upstream_us),
            (Kind::Transfer, transfer),
        ] {
            if let Some(us) = us {
                slice.record_part(class, kind, us);
            }
        }
    }
}
