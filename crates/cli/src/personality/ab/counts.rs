//! The counts and times that ab records of each request.

use lastdrop_analyze::samples::Samples;
use lastdrop_model::{Exchange, Failure, Micros, RequestOutcome};

use super::flags::AbOptions;
use crate::stdio::note;

/// The times of one request, for -g.
#[derive(Debug, Clone, Copy)]
pub struct RequestTimes {
    pub start: Micros,
    pub connect: Micros,
    pub total: Micros,
    pub wait: Micros,
}

/// The counts of ab.
#[derive(Debug, Default)]
pub struct AbCounts {
    pub done: u64,
    /// End of the last request.
    pub last_end: Micros,
    pub failed_receive: u64,
    pub failed_length: u64,
    pub exceptions: u64,
    pub bad_status: u64,
    pub kept: u64,
    pub read: u64,
    pub body: u64,
    pub sent: u64,
    pub length: Option<u64>,
    pub connect: Samples,
    pub processing: Samples,
    pub waiting: Samples,
    pub total: Samples,
    pub samples: Vec<RequestTimes>,
    announced: u64,
}

impl AbCounts {
    pub fn failed(&self) -> u64 {
        self.failed_receive + self.failed_length + self.exceptions
    }

    pub fn take(&mut self, e: &Exchange, o: &AbOptions) {
        match e.fate {
            RequestOutcome::Censored | RequestOutcome::Unsent => return,
            // ab counts a close without a response as a complete request of length 0.
            RequestOutcome::Answered | RequestOutcome::Failed(Failure::Closed) => {}
            RequestOutcome::Failed(Failure::Protocol) => self.exceptions += 1,
            RequestOutcome::Failed(Failure::Connect | Failure::Reset | Failure::Refused) | RequestOutcome::TimedOut => {
                self.failed_receive += 1
            }
        }
        self.done += 1;
        self.last_end = self.last_end.max(e.done.unwrap_or_default());
        self.read += e.bytes_received;
        self.body += e.body_bytes;
        self.sent += e.bytes_sent;
        if e.fate == RequestOutcome::Answered {
            self.bad_status += u64::from(!(200..300).contains(&e.status));
            self.kept += u64::from(o.keep_alive && e.kept);
        }
        let expected = *self.length.get_or_insert(e.body_bytes);
        if expected != e.body_bytes
            && !o.any_length
            && matches!(e.fate, RequestOutcome::Answered | RequestOutcome::Failed(Failure::Closed))
        {
            self.failed_length += 1;
        }
        let sent = e.sent.unwrap_or(e.due);
        let connect = if e.first { e.ready.map_or(0, |ready| ready.saturating_sub(sent)) } else { 0 };
        let total = e.service_us();
        let wait = e.first_byte.zip(e.written).map_or(0, |(first, written)| first.saturating_sub(written));
        self.connect.record(connect);
        self.processing.record(total.saturating_sub(connect));
        self.waiting.record(wait);
        self.total.record(total);
        if o.gnuplot.is_some() {
            self.samples.push(RequestTimes { start: sent, connect, total, wait });
        }
        if let Some(each) = o.heartbeat()
            && self.done / each > self.announced
        {
            self.announced = self.done / each;
            note!("Completed {} requests", self.announced * each);
        }
    }
}
