//! A line for each request, where that is asked for: when it was due, sent and answered, and its fate.

use lastdrop_model::Micros;

use crate::collector::Message;
use crate::event_loop::EventLoop;

/// The columns of the log of requests; times are microseconds since 1970, empty where there is none.
pub const LOG_COLUMNS: &str = "phase,request,due_us,sent_us,first_byte_us,done_us,fate,status\n";

#[allow(clippy::too_many_arguments)]
fn log_line(
    log: &mut Vec<u8>,
    origin: u64,
    phase: u16,
    request: u32,
    due: Micros,
    times: Option<(Micros, Micros, Micros)>,
    fate: &str,
    status: u16,
) {
    use std::io::Write as _;
    // Writing to memory cannot fail.
    let _ = write!(log, "{phase},{request},{},", origin + due);
    let (sent, first_byte, done) = times.unwrap_or((0, 0, 0));
    for (at, known) in [(sent, times.is_some()), (first_byte, first_byte > 0), (done, done > 0)] {
        let _ = if known { write!(log, "{},", origin + at) } else { write!(log, ",") };
    }
    let _ = writeln!(log, "{fate},{status}");
}

impl EventLoop<'_> {
    pub(crate) fn hand_over_log(&mut self) {
        if let Some(log) = &mut self.log
            && !log.is_empty()
        {
            let _ = self.wiring.out.send(Message::Log(std::mem::take(log)));
        }
    }

    /// Requests that came due and were not sent, for the log: they are what lies between the two cursors.
    pub(crate) fn log_unsent(&mut self) {
        if self.log.is_none() {
            return;
        }
        let until = self.phase_end.map_or(self.now(), |end| end.min(self.now()));
        let origin = self.log_origin();
        let Some(log) = &mut self.log else { return };
        for queue in &mut self.queues {
            while queue.budget > 0
                && let Some(due) = queue.next_due()
                && due < until
            {
                log_line(log, origin, queue.phase, 0, due, None, "unsent", 0);
                queue.arrivals.advance();
                queue.budget -= 1;
            }
        }
        for s in &self.stranded {
            log_line(log, origin, s.phase, s.request, s.due, None, "unsent", 0);
        }
    }

    pub(crate) fn log_censored(&mut self) {
        if self.log.is_none() {
            return;
        }
        let origin = self.log_origin();
        let Some(log) = &mut self.log else { return };
        for c in self.connections.iter().filter(|c| c.busy()) {
            for due in std::iter::once(c.due).chain(c.pipelined.iter().copied()) {
                log_line(log, origin, c.phase, c.request, due, Some((c.sent, 0, 0)), "censored", 0);
            }
        }
    }

    /// Microseconds since 1970 at the start of the run.
    fn log_origin(&self) -> u64 {
        self.wiring.clock.unix_us() + self.job.start
    }

    /// Writes down the end of the request in flight on a connection.
    #[inline]
    pub(crate) fn note_end(&mut self, slot: u32, due: Micros, done: Micros, fate: &str, status: u16) {
        if self.log.is_some() {
            let origin = self.log_origin();
            let c = &self.connections[slot as usize];
            let first_byte = if c.parser.started() { c.first_byte } else { 0 };
            let times = (c.sent, first_byte, done);
            let (phase, request) = (c.phase, c.request);
            if let Some(log) = &mut self.log {
                log_line(log, origin, phase, request, due, Some(times), fate, status);
            }
        }
    }
}
