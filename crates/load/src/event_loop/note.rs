//! Hands over each request with its result, if the caller wants all of them.

use lastdrop_model::exchange::DetourRequest;
use lastdrop_model::{CaptureLevel, Exchange, Failure, Micros, RequestOutcome};

use super::EventLoop;
use crate::ids::Placement;
use crate::phases::ArrivalQueue;
use crate::wiring::Message;
use crate::world::World;

/// Size of a batch: large enough that the channel costs nothing, small enough to use little memory.
const TOGETHER: usize = 4096;

fn unsent(phase: u16, request: u32, due: Micros) -> Exchange {
    Exchange {
        phase,
        request,
        detour: None,
        fate: RequestOutcome::Unsent,
        error: None,
        status: 0,
        http10: false,
        connection: 0,
        unit: 0,
        first: false,
        kept: false,
        due,
        sent: None,
        connected: None,
        ready: None,
        written: None,
        first_byte: None,
        done: None,
        bytes_sent: 0,
        bytes_received: 0,
        head_bytes: 0,
        body_bytes: 0,
        raw: None,
    }
}

impl<W: World> EventLoop<'_, W> {
    pub(super) fn hand_over_exchanges(&mut self) {
        if let Some(exchanges) = &mut self.record.exchanges
            && !exchanges.is_empty()
        {
            let _ = self.wiring.out.send(Message::Exchanges(std::mem::take(exchanges)));
        }
    }

    /// Notes the requests that came due and were not sent: those between the two cursors.
    pub(super) fn note_unsent(&mut self, now: Micros) {
        let until = self.phases.phase_end.map_or(now + 1, |end| end.min(now + 1));
        self.note_waiting(until);
    }

    /// Notes, at the end of a run, the requests that were due and never found a connection.
    pub(super) fn note_stranded(&mut self) {
        let origin = self.origin();
        let mut waiting = Vec::new();
        for s in &self.waiting.stranded {
            waiting.push(unsent(s.phase, s.request, origin + s.due));
            // Include the requests that were to be pipelined behind it.
            waiting.extend(self.behind(s).iter().map(|due| unsent(s.phase, s.request, origin + due)));
        }
        // Sent, and not processed; the run ended before they could be sent again.
        for s in &self.waiting.refused {
            let sent = self.streams[self.users.stream(s.user, 0)].times.sent;
            let fate = RequestOutcome::Censored;
            let unsent = unsent(s.phase, s.request, origin + s.due);
            waiting.push(Exchange { fate, sent: Some(origin + sent), ..unsent });
        }
        if let Some(exchanges) = &mut self.record.exchanges {
            exchanges.append(&mut waiting);
            self.hand_over_exchanges();
        }
    }

    /// Notes the open-loop arrivals before `until` that still wait for a free user.
    pub(super) fn note_waiting(&mut self, until: Micros) {
        let origin = self.origin();
        if self.record.exchanges.is_none() {
            return;
        }
        self.hand_over_exchanges();
        let out = self.wiring.out;
        let mut batch = Vec::new();
        let mut push = |exchange| {
            batch.push(exchange);
            // An overloaded run leaves millions of them.
            if batch.len() >= TOGETHER {
                let _ = out.send(Message::Exchanges(std::mem::take(&mut batch)));
            }
        };
        for queue in &mut self.phases.queues {
            while queue.budget > 0
                && let Some(due) = ArrivalQueue::next_due(queue)
                && due < until
            {
                push(unsent(queue.phase, 0, origin + due));
                queue.arrivals.advance();
                queue.budget -= 1;
            }
        }
        let _ = out.send(Message::Exchanges(batch));
    }

    pub(super) fn note_censored(&mut self) {
        if self.record.exchanges.is_none() {
            return;
        }
        for slot in self.transport.connections.slots() {
            let c = &self.transport.connections[slot];
            if !c.busy() {
                continue;
            }
            for stream in c.wire.streams(slot) {
                let behind = self.transport.connections[slot].wire.behind().to_vec();
                for due in std::iter::once(self.streams[stream].times.due).chain(behind) {
                    self.note_end(Placement { stream, slot }, due, 0, RequestOutcome::Censored, false);
                }
            }
        }
    }

    /// Microseconds since 1970 at the start of the run.
    pub(super) fn origin(&self) -> u64 {
        self.transport.world.unix_us() + self.job.start
    }

    /// Notes the end of a request.
    #[inline]
    pub(super) fn note_end(&mut self, place: Placement, due: Micros, done: Micros, fate: RequestOutcome, kept: bool) {
        if self.record.exchanges.is_some() {
            self.push_exchange(place, due, done, fate, kept);
        }
    }

    pub(super) fn push_exchange(
        &mut self,
        place: Placement,
        due: Micros,
        done: Micros,
        fate: RequestOutcome,
        kept: bool,
    ) {
        let origin = self.origin();
        let keeps = self.job.wish == CaptureLevel::Answers;
        let error =
            if fate == RequestOutcome::Failed(Failure::Connect) { self.record.connect_error.clone() } else { None };
        let Placement { stream, slot } = place;
        let c = &mut self.transport.connections[slot];
        let s = &mut self.streams[stream];
        let answer = c.wire.answer(stream);
        let person = self.users.people.get(self.users.user_of(stream) as usize);
        let unit = person.map_or(0, |p| p.number << 40 | p.iteration);
        let raw = keeps.then(|| std::mem::take(&mut s.raw).into());
        let at = |t: Micros| (t > 0).then_some(origin + t);
        let first = c.served <= 1;
        let detour = s.follow_up.as_ref().and_then(|e| e.detour.as_ref());
        let exchange = Exchange {
            phase: s.phase,
            request: s.request,
            detour: detour.map(|d| Box::new(DetourRequest { method: d.method.clone(), path: d.path.clone() })),
            fate,
            error,
            status: if fate == RequestOutcome::Answered { answer.status } else { 0 },
            http10: fate == RequestOutcome::Answered && answer.http10,
            connection: c.token(slot) | (self.job.thread as u64) << 56,
            unit,
            first,
            kept,
            due: origin + due,
            sent: Some(origin + s.times.sent),
            connected: at(c.dialed.connected).filter(|_| first),
            ready: at(s.times.ready),
            written: at(s.times.written),
            first_byte: at(s.times.first_byte).filter(|_| answer.started),
            done: at(done),
            bytes_sent: c.wire.bytes_of(stream) as u64,
            bytes_received: s.received,
            head_bytes: if answer.started { answer.head_bytes } else { 0 },
            body_bytes: if answer.started { answer.body_bytes } else { 0 },
            raw,
        };
        if let Some(exchanges) = &mut self.record.exchanges {
            exchanges.push(exchange);
            if exchanges.len() >= TOGETHER {
                self.hand_over_exchanges();
            }
        }
    }
}
