//! Each request with what came of it, where somebody wants them all.

use lastdrop_model::exchange::{Detoured, Exchange, Fate, Wish};
use lastdrop_model::{Failure, Micros};

use crate::collector::Message;
use crate::event_loop::{EventLoop, Queue};

/// So many are handed over together: enough that the channel costs nothing, few enough to be no burden.
const TOGETHER: usize = 4096;

fn unsent(phase: u16, request: u32, due: Micros) -> Exchange {
    Exchange {
        phase,
        request,
        detour: None,
        fate: Fate::Unsent,
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

impl EventLoop<'_> {
    pub(crate) fn hand_over_exchanges(&mut self) {
        if let Some(exchanges) = &mut self.exchanges
            && !exchanges.is_empty()
        {
            let _ = self.wiring.out.send(Message::Exchanges(std::mem::take(exchanges)));
        }
    }

    /// Requests that came due and were not sent: they are what lies between the two cursors.
    pub(crate) fn note_unsent(&mut self) {
        let until = self.phase_end.map_or(self.now(), |end| end.min(self.now()));
        let origin = self.origin();
        if self.exchanges.is_none() {
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
        for queue in &mut self.queues {
            while queue.budget > 0
                && let Some(due) = Queue::next_due(queue)
                && due < until
            {
                push(unsent(queue.phase, 0, origin + due));
                queue.arrivals.advance();
                queue.budget -= 1;
            }
        }
        self.stranded.iter().for_each(|s| push(unsent(s.phase, s.request, origin + s.due)));
        let _ = out.send(Message::Exchanges(batch));
    }

    pub(crate) fn note_censored(&mut self) {
        if self.exchanges.is_none() {
            return;
        }
        for slot in 0..self.connections.len() as u32 {
            let c = &self.connections[slot as usize];
            if c.busy() {
                for due in std::iter::once(c.due).chain(c.pipelined.clone()) {
                    self.note_end(slot, due, 0, Fate::Censored, false);
                }
            }
        }
    }

    /// Microseconds since 1970 at the start of the run.
    fn origin(&self) -> u64 {
        self.wiring.clock.unix_us() + self.job.start
    }

    /// Writes down the end of the request in flight on a connection.
    #[inline]
    pub(crate) fn note_end(&mut self, slot: u32, due: Micros, done: Micros, fate: Fate, kept: bool) {
        if self.exchanges.is_some() {
            self.push_exchange(slot, due, done, fate, kept);
        }
    }

    fn push_exchange(&mut self, slot: u32, due: Micros, done: Micros, fate: Fate, kept: bool) {
        let origin = self.origin();
        let keeps = self.job.wish == Wish::Answers;
        let error = if fate == Fate::Failed(Failure::Connect) { self.connect_error.clone() } else { None };
        let c = &mut self.connections[slot as usize];
        let person = self.people.get((slot / self.per_user) as usize);
        let unit = person.map_or(0, |p| p.number << 40 | p.iteration);
        let raw = keeps.then(|| std::mem::take(&mut c.raw).into());
        let at = |t: Micros| (t > 0).then_some(origin + t);
        let first = c.served <= 1;
        let detour = c.errand.as_ref().and_then(|e| e.detour.as_ref());
        let exchange = Exchange {
            phase: c.phase,
            request: c.request,
            detour: detour.map(|d| Box::new(Detoured { method: d.method.clone(), path: d.path.clone() })),
            fate,
            error,
            status: if fate == Fate::Answered { c.parser.status() } else { 0 },
            http10: fate == Fate::Answered && c.parser.http10(),
            connection: c.token(slot) | (self.job.thread as u64) << 56,
            unit,
            first,
            kept,
            due: origin + due,
            sent: Some(origin + c.sent),
            connected: at(c.connected).filter(|_| first),
            ready: at(c.ready),
            written: at(c.all_written),
            first_byte: at(c.first_byte).filter(|_| c.parser.started()),
            done: at(done),
            bytes_sent: c.written as u64,
            bytes_received: c.received,
            head_bytes: if c.parser.started() { c.parser.head_bytes() } else { 0 },
            body_bytes: if c.parser.started() { c.parser.body_bytes() } else { 0 },
            raw,
        };
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.push(exchange);
            if exchanges.len() >= TOGETHER {
                self.hand_over_exchanges();
            }
        }
    }
}
