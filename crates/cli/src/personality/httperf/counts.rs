//! The counts of httperf: requests, connections and sessions.

use std::collections::{BTreeMap, HashMap};

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, Failure, Micros, Plan, RequestOutcome};

use super::flags::{HttperfOptions, Workload};
use crate::stdio::out;

/// Interval of a sample of the reply rate.
pub const RATE_INTERVAL_US: Micros = 5_000_000;
/// The empty line after the last chunk.
const FOOTER_BYTES: u64 = 2;

/// An open connection.
#[derive(Debug, Default)]
struct ConnectionLife {
    start: Micros,
    end: Micros,
    replies: u64,
}

#[derive(Debug, Default)]
pub struct HttperfCounts {
    pub start: Option<Micros>,
    pub end: Micros,
    pub connections: u64,
    pub connected: Samples,
    lives: HashMap<u64, ConnectionLife>,
    /// Lifetimes of closed connections that had replies.
    pub lifetime: Samples,
    pub replies_of_lives: u64,
    pub lives_counted: u64,
    pub requests: u64,
    pub request_bytes: u64,
    pub replies: u64,
    pub response: Samples,
    pub transfer: Samples,
    pub header_bytes: u64,
    pub content_bytes: u64,
    /// Bytes that end chunked bodies.
    pub footer_bytes: u64,
    pub status: [u64; 5],
    pub client_timeouts: u64,
    pub resets: u64,
    /// Replies in each interval of the rate.
    pub samples: BTreeMap<u64, u64>,
    printed: u64,
    pub sessions: Sessions,
}

/// One session.
#[derive(Debug, Default)]
struct Session {
    start: Micros,
    end: Micros,
    replies: u64,
    connections: u64,
}

/// The open sessions, and totals of the ended ones.
#[derive(Debug, Default)]
pub struct Sessions {
    under_way: HashMap<u64, Session>,
    pub good: SessionTotals,
    pub bad: SessionTotals,
    /// Sessions by how many replies they had.
    pub lengths: BTreeMap<u64, u64>,
    /// Successful sessions that ended in each interval of the rate.
    pub rates: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
pub struct SessionTotals {
    pub count: u64,
    pub lifetime_s: f64,
    pub connections: u64,
}

impl SessionTotals {
    pub fn mean_s(&self) -> f64 {
        self.lifetime_s / self.count.max(1) as f64
    }
}

impl Sessions {
    /// Counts an ended session; `complete`: its last call was answered.
    fn over(&mut self, session: &Session, complete: bool, begin: Micros) {
        let ended = if complete { &mut self.good } else { &mut self.bad };
        ended.count += 1;
        ended.connections += session.connections;
        ended.lifetime_s += session.end.saturating_sub(session.start) as f64 / 1e6;
        *self.lengths.entry(session.replies).or_default() += 1;
        if complete {
            *self.rates.entry(session.end.saturating_sub(begin) / RATE_INTERVAL_US).or_default() += 1;
        }
    }

    pub fn count(&self) -> u64 {
        self.good.count + self.bad.count
    }
}

/// True for a response with --failure-status, at which a session fails.
fn is_failure(e: &Exchange, o: &HttperfOptions) -> bool {
    e.fate == RequestOutcome::Answered && o.failure_status == Some(u64::from(e.status))
}

impl HttperfCounts {
    /// True if the server closed the connection after a response although another call was to follow. httperf sends that call
    /// and counts a reset.
    pub fn is_cut_short(e: &Exchange, o: &HttperfOptions, plan: &Plan) -> bool {
        let sessions = matches!(o.work, Workload::Sessions(..) | Workload::SessionLog(..));
        let session_failed = sessions && is_failure(e, o);
        let was_last = e.kept || plan.requests[e.request as usize].last || session_failed;
        e.fate == RequestOutcome::Answered && !was_last
    }

    /// True for a call of a session that is repeated because its reused connection was closed.
    pub fn is_sent_again(e: &Exchange, o: &HttperfOptions) -> bool {
        matches!(o.work, Workload::Sessions(..) | Workload::SessionLog(..))
            && matches!(e.fate, RequestOutcome::Failed(Failure::Reset | Failure::Closed))
            && !e.first
            && e.first_byte.is_none()
    }

    pub fn take(&mut self, e: &Exchange, o: &HttperfOptions, plan: &Plan) {
        let Some(sent) = e.sent else { return };
        let start = *self.start.get_or_insert(sent);
        self.start = Some(start.min(sent));
        let done = e.done.unwrap_or(sent);
        self.end = self.end.max(done);
        if e.first {
            self.connections += 1;
            if let Some(connected) = e.ready.or(e.connected) {
                self.connected.record(connected.saturating_sub(sent));
            }
            self.lives.insert(e.connection, ConnectionLife { start: sent, end: done, replies: 0 });
        }
        if e.written.is_some() {
            self.requests += 1;
            self.request_bytes += e.bytes_sent;
        }
        match e.fate {
            RequestOutcome::Answered => {
                self.replies += 1;
                self.status[usize::from(e.status / 100).clamp(1, 5) - 1] += 1;
                let first = e.first_byte.unwrap_or(done);
                let from = e.ready.filter(|_| e.first).unwrap_or(sent);
                self.response.record(first.saturating_sub(from));
                self.transfer.record(done.saturating_sub(first));
                self.content_bytes += e.body_bytes;
                self.header_bytes += e.head_bytes;
                let framing = e.bytes_received.saturating_sub(e.head_bytes + e.body_bytes);
                self.footer_bytes += u64::from(framing > 0) * FOOTER_BYTES;
                let interval = done.saturating_sub(start) / RATE_INTERVAL_US;
                *self.samples.entry(interval).or_default() += 1;
                while o.verbose > 0 && self.printed < interval {
                    let n = self.samples.get(&self.printed).copied().unwrap_or(0);
                    out(format!("reply-rate = {:<8.1}\n", n as f64 / 5.0));
                    self.printed += 1;
                }
            }
            RequestOutcome::TimedOut => self.client_timeouts += 1,
            // httperf counts a connection that ends before its calls do as reset.
            RequestOutcome::Failed(Failure::Reset | Failure::Closed | Failure::Protocol) => self.resets += 1,
            _ => {}
        }
        if HttperfCounts::is_cut_short(e, o, plan) {
            self.requests += 1;
            self.request_bytes += e.bytes_sent;
            self.resets += 1;
        }
        if matches!(o.work, Workload::Sessions(..) | Workload::SessionLog(..)) {
            let new = || Session { start: sent, ..Session::default() };
            let session = self.sessions.under_way.entry(e.unit).or_insert_with(new);
            session.end = done;
            session.connections += u64::from(e.first);
            let answered = e.fate == RequestOutcome::Answered;
            session.replies += u64::from(answered);
            let good = answered && !is_failure(e, o);
            // A call that fails ends its session, unless it is repeated on a new connection.
            if !HttperfCounts::is_sent_again(e, o)
                && (!good || plan.requests[e.request as usize].last)
                && let Some(session) = self.sessions.under_way.remove(&e.unit)
            {
                self.sessions.over(&session, good, start);
            }
        }
        if let Some(life) = self.lives.get_mut(&e.connection) {
            life.end = done;
            life.replies += u64::from(e.fate == RequestOutcome::Answered);
            if !e.kept
                && let Some(life) = self.lives.remove(&e.connection)
            {
                self.over(&life);
            }
        }
    }

    fn over(&mut self, life: &ConnectionLife) {
        if life.replies > 0 {
            self.lifetime.record(life.end.saturating_sub(life.start));
            self.replies_of_lives += life.replies;
            self.lives_counted += 1;
        }
    }

    pub fn finish(&mut self) {
        let rest: Vec<ConnectionLife> = std::mem::take(&mut self.lives).into_values().collect();
        rest.iter().for_each(|life| self.over(life));
        for session in std::mem::take(&mut self.sessions.under_way).into_values() {
            self.sessions.over(&session, false, self.start.unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_counted_without_being_kept() {
        let mut s = Sessions::default();
        for i in 0..100_000u64 {
            s.over(&Session { start: i, end: i + 2_000_000, replies: i % 3, connections: 1 }, i % 3 == 2, 0);
        }
        assert_eq!((s.good.count, s.count(), s.under_way.len()), (33_333, 100_000, 0));
        assert_eq!(s.lengths.values().copied().collect::<Vec<_>>(), [33_334, 33_333, 33_333]);
        assert!((s.bad.mean_s() - 2.0).abs() < 1e-6 && s.rates.len() == 1);
    }
}
