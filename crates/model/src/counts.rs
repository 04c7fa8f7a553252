//! The exact accounting of requests: every request that came due ends in exactly one of these counts.
//!
//! Two sums hold in every run however it ends:
//! `due = sent + unsent` and `sent = answered + Σ failed + timed_out + censored`.

use serde::{Deserialize, Serialize};

/// Why a request that was sent has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Failure {
    /// No connection could be made: refused, unreachable, no local port.
    Connect,
    /// The server reset the connection.
    Reset,
    /// The server closed the connection before a whole answer.
    Closed,
    /// What came back is not HTTP, or breaks its rules.
    Protocol,
    /// HTTP/2: the server refused the request without processing it, twice.
    Refused,
}

/// Failures by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCounts {
    pub connect: u64,
    pub reset: u64,
    pub closed: u64,
    pub protocol: u64,
    #[serde(default)]
    pub refused: u64,
}

impl FailureCounts {
    #[must_use]
    pub fn total(&self) -> u64 {
        self.connect + self.reset + self.closed + self.protocol + self.refused
    }

    pub fn count(&mut self, failure: Failure) {
        match failure {
            Failure::Connect => self.connect += 1,
            Failure::Reset => self.reset += 1,
            Failure::Closed => self.closed += 1,
            Failure::Protocol => self.protocol += 1,
            Failure::Refused => self.refused += 1,
        }
    }
}

/// Counts of one stretch of a run; stretches add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    pub due: u64,
    pub sent: u64,
    pub answered: u64,
    pub failed: FailureCounts,
    pub timed_out: u64,
    /// Answers that arrived within the time of the phase, even to requests of an earlier phase; later ones came during
    /// the drain.
    pub answered_in_time: u64,
    /// Connections on which connect() succeeded.
    pub opened: u64,
    /// Failures on a reused connection before the first byte of an answer: the server had closed it.
    pub lost_on_reuse: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Answers that missed an expectation of the plan.
    pub missed: u64,
    /// Full TLS handshakes, and handshakes that resumed a session.
    pub handshakes_full: u64,
    pub handshakes_resumed: u64,
    /// Requests that follow from an answer: to a redirect, and repeated with the response to a challenge.
    pub redirected: u64,
    pub challenged: u64,
    /// Redirects and parts of pages that were not requested. Their host is not in the plan (`elsewhere`), they are not
    /// URLs that can be loaded (`unusable`), or they exceed a limit on redirects in a row, references of a page, or
    /// bytes searched (`left_out`).
    pub elsewhere: u64,
    pub unusable: u64,
    pub left_out: u64,
    /// Bytes of gzip and brotli bodies that were decoded: before, and after decoding.
    pub bytes_coded: u64,
    pub bytes_decoded: u64,
    /// Complete pages, and pages of which a part got no good answer.
    pub pages: u64,
    pub pages_failed: u64,
    /// Replays: answers compared with the log's; of these, answers with another status class or redirect target, and
    /// further answers whose size is unusual for their class in the log.
    pub compared: u64,
    pub mismatched: u64,
    pub odd_sizes: u64,
    /// HTTP/2: connections that the server told to end (GOAWAY), and requests sent again because the server surely had
    /// not processed them. A request counts once as sent.
    pub goaway: u64,
    pub sent_again: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.due += other.due;
        self.sent += other.sent;
        self.answered += other.answered;
        self.failed.connect += other.failed.connect;
        self.failed.reset += other.failed.reset;
        self.failed.closed += other.failed.closed;
        self.failed.protocol += other.failed.protocol;
        self.failed.refused += other.failed.refused;
        self.timed_out += other.timed_out;
        self.answered_in_time += other.answered_in_time;
        self.opened += other.opened;
        self.lost_on_reuse += other.lost_on_reuse;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.missed += other.missed;
        self.handshakes_full += other.handshakes_full;
        self.handshakes_resumed += other.handshakes_resumed;
        self.redirected += other.redirected;
        self.challenged += other.challenged;
        self.elsewhere += other.elsewhere;
        self.unusable += other.unusable;
        self.left_out += other.left_out;
        self.bytes_coded += other.bytes_coded;
        self.bytes_decoded += other.bytes_decoded;
        self.pages += other.pages;
        self.pages_failed += other.pages_failed;
        self.compared += other.compared;
        self.mismatched += other.mismatched;
        self.odd_sizes += other.odd_sizes;
        self.goaway += other.goaway;
        self.sent_again += other.sent_again;
    }

    /// Requests that came due and were never sent.
    #[must_use]
    pub fn unsent(&self) -> u64 {
        self.due.saturating_sub(self.sent)
    }

    /// Requests that were sent and have ended: answered, failed or timed out.
    #[must_use]
    pub fn ended(&self) -> u64 {
        self.answered + self.failed.total() + self.timed_out
    }

    /// Requests still in flight when the run ended. Derived, so that the sums hold for a killed run, too.
    #[must_use]
    pub fn censored(&self) -> u64 {
        self.sent.saturating_sub(self.ended())
    }
}
