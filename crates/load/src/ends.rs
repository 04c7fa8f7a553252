//! The ends that a request can meet, each recorded exactly once: answered, failed, timed out.

use lastdrop_model::plan::GiveUp;
use lastdrop_model::{ClassAnswer, Failure, Fate, Kind, Micros};

use crate::connection::State;
use crate::event_loop::EventLoop;
use crate::users::End;
use crate::world::{Outgoing, World};

impl<W: World> EventLoop<'_, W> {
    /// Records one answer.
    #[inline]
    pub(crate) fn record_answer(&mut self, slot: u32, now: Micros, kept: bool) {
        let c = &self.connections[slot as usize];
        let status = c.parser.status();
        let (phase, class, due, sent, first_byte) = (c.phase, c.class, c.due, c.sent, c.first_byte);
        // The rate of a phase is that of its time, whoever asked: with the last answers to the phase before it, as without
        // the last ones of its own. Anything else would be too low by what is in flight.
        if self.phase_end.is_none_or(|end| now < end) {
            let current = self.phase;
            self.slice(current).count(class, |c| c.answered_in_time += 1);
        }
        let live = self.live(phase);
        live.in_flight -= 1;
        let slice = &mut live.slice;
        slice.count(class, |c| c.answered += 1);
        slice.status[usize::from(status).min(999)] += 1;
        let (response, service, first) =
            (now.saturating_sub(due), now.saturating_sub(sent), first_byte.saturating_sub(sent));
        slice.record(Kind::Response, response);
        slice.record(Kind::Service, service);
        slice.record(Kind::FirstByte, first);
        slice.record_class(ClassAnswer::new(class, status, response, service, first));
        if self.job.plan.server_time.is_some() {
            self.record_parts(slot, now);
        }
        self.note_end(slot, due, now, Fate::Answered, kept);
        if self.exchanges.is_some() && self.outcome.first_answer.is_none() {
            self.note_first_answer(slot);
        }
    }

    /// The first of several pipelined requests is answered; the next one's answer follows.
    pub(crate) fn first_of_pipeline(&mut self, slot: u32, now: Micros) {
        self.record_answer(slot, now, true);
        let c = &mut self.connections[slot as usize];
        c.received = 0;
        c.due = c.pipelined.remove(0);
        c.parser.start(false);
    }

    #[inline]
    pub(crate) fn answered(&mut self, slot: u32, now: Micros, reusable: bool) {
        let c = &self.connections[slot as usize];
        let keep = reusable
            && !c.peer_closed
            && c.served < self.requests_per_connection
            && !self.job.prepared.requests[c.request as usize].last;
        self.record_answer(slot, now, keep);
        self.in_flight.remove(slot);
        let c = &mut self.connections[slot as usize];
        let status = c.parser.status();
        let end = End::Answered { status, capture: c.capture.take() };
        c.state = State::Idle;
        if !keep {
            self.close(slot);
        }
        self.last_end = now;
        self.count_towards_end(now, |g| g.statuses.contains(&status));
        self.request_over(slot, now, end);
    }

    pub(crate) fn fail(&mut self, slot: u32, failure: Failure, now: Micros) {
        if self.exchanges.is_some() && self.outcome.first_answer.is_none() {
            // What came of it says as much of the server as a whole one.
            let parser = &self.connections[slot as usize].parser;
            if parser.started() && parser.has_head() {
                self.note_first_answer(slot);
            }
        }
        let c = &self.connections[slot as usize];
        let before_first_byte = !c.parser.started() && matches!(failure, Failure::Reset | Failure::Closed);
        let lost_on_reuse = before_first_byte && c.reused() && c.pipelined.is_empty();
        let phase = c.phase;
        let dues: Vec<Micros> = std::iter::once(c.due).chain(c.pipelined.iter().copied()).collect();
        for due in &dues {
            self.note_end(slot, *due, now, Fate::Failed(failure), false);
            self.count(slot, |c| c.failed.count(failure));
        }
        self.live(phase).in_flight -= dues.len() as u64;
        if lost_on_reuse {
            self.count(slot, |c| c.lost_on_reuse += 1);
        }
        let refused = failure == Failure::Connect;
        self.refused += u64::from(refused);
        self.count_towards_end(now, |g| g.failures.contains(&failure));
        self.lose(slot, now, refused, lost_on_reuse);
    }

    /// One of the ends of which a run may have only so many.
    fn count_towards_end(&mut self, now: Micros, counts: impl FnOnce(&GiveUp) -> bool) {
        if let Some(limit) = &self.job.plan.abandon.run
            && counts(limit)
        {
            self.ends_counted += 1;
            if self.ends_counted >= limit.after {
                self.give_up(now);
            }
        }
    }

    /// Ends requests whose timeout came before `seen`, whatever their server does. All that had come by then has been read:
    /// an answer that lay there while this thread was busy is no timeout.
    pub(crate) fn expire(&mut self, seen: Micros) {
        while let Some(slot) = self.in_flight.oldest() {
            let c = &self.connections[slot as usize];
            if c.sent.saturating_add(self.timeout_us) > seen {
                return;
            }
            let now = self.now();
            let c = &self.connections[slot as usize];
            let (phase, class) = (c.phase, c.class);
            let not_connected = c.state == State::Connecting;
            let dues: Vec<Micros> = std::iter::once(c.due).chain(c.pipelined.iter().copied()).collect();
            for due in &dues {
                let waited = now.saturating_sub(*due);
                self.record(phase, Kind::Response, waited);
                let slice = self.slice(phase);
                slice.count(class, |c| c.timed_out += 1);
                slice.record_class(ClassAnswer::new(class, 0, waited, 0, 0));
                self.note_end(slot, *due, now, Fate::TimedOut, false);
            }
            self.live(phase).in_flight -= dues.len() as u64;
            self.refused += u64::from(not_connected);
            let silent = self.last_end <= self.connections[slot as usize].sent.saturating_add(self.timeout_us / 2);
            if silent && self.job.plan.abandon.run.as_ref().is_some_and(|g| g.silence) {
                self.give_up(now);
            }
            self.count_towards_end(now, |g| g.timeouts);
            self.lose(slot, now, false, false);
        }
    }

    /// A request without an answer leaves its connection, which is closed.
    fn lose(&mut self, slot: u32, now: Micros, refused: bool, on_reuse: bool) {
        self.in_flight.remove(slot);
        let c = &mut self.connections[slot as usize];
        c.pipelined.clear();
        c.capture = None;
        self.close(slot);
        self.last_end = now;
        self.request_over(slot, now, End::Lost { refused, on_reuse });
    }

    pub(crate) fn close(&mut self, slot: u32) {
        let c = &mut self.connections[slot as usize];
        let (socket, tls) = (c.socket.take(), c.tls.take());
        let idle = c.state == State::Idle;
        c.state = State::Closed;
        c.doomed = false;
        c.tunnel = false;
        if let Some(socket) = socket {
            if let (true, Some(mut tls)) = (idle, tls) {
                tls.say_goodbye(&mut Outgoing::new(&mut self.world, &socket));
            }
            self.world.close(socket);
            self.open_sockets -= 1;
        }
    }
}
