//! One request and its outcome, for observers that need every request: the request log, the reports of personalities.

use serde::{Deserialize, Serialize, Serializer};

use crate::counts::Failure;
use crate::{Micros, secrets};

/// How much an observer needs to know of each request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaptureLevel {
    /// Only the sums.
    #[default]
    Nothing,
    Exchanges,
    /// Each exchange, and the bytes of the answer.
    Answers,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    Answered,
    Failed(Failure),
    TimedOut,
    /// Still in flight when the run ended.
    Censored,
    /// Came due and was never sent.
    Unsent,
}

impl RequestOutcome {
    /// Returns the word for it in the request log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestOutcome::Answered => "answered",
            RequestOutcome::Failed(Failure::Connect) => "connect",
            RequestOutcome::Failed(Failure::Reset) => "reset",
            RequestOutcome::Failed(Failure::Closed) => "closed",
            RequestOutcome::Failed(Failure::Protocol) => "protocol",
            RequestOutcome::Failed(Failure::Refused) => "refused",
            RequestOutcome::TimedOut => "timed_out",
            RequestOutcome::Censored => "censored",
            RequestOutcome::Unsent => "unsent",
        }
    }
}

/// A request that has ended. Times are microseconds since 1970 by the run's monotonic clock; `None` if the request did
/// not reach that point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    pub phase: u16,
    /// Index of the request in the plan.
    pub request: u32,
    /// The request that was sent instead: the target of a redirect, a part of a page.
    pub detour: Option<Box<DetourRequest>>,
    pub fate: RequestOutcome,
    /// The system's message when connecting failed; only with [`Failure::Connect`].
    pub error: Option<Box<str>>,
    /// HTTP status; 0 if there was no answer.
    pub status: u16,
    /// The answer was HTTP/1.0.
    pub http10: bool,
    /// Identifies the connection; within a thread and slot, numbers rise in the order of opening.
    pub connection: u64,
    /// Identifies one unit of a user's work: a request with its follow-ups, or a session. 0 if users have no state of
    /// their own.
    pub unit: u64,
    /// The connection was opened for this request.
    pub first: bool,
    /// The connection stayed open for another request.
    pub kept: bool,
    pub due: Micros,
    pub sent: Option<Micros>,
    /// When connect() succeeded; only for the first request on a connection.
    pub connected: Option<Micros>,
    /// When the request could be written: after connect and TLS.
    pub ready: Option<Micros>,
    /// When the whole request was written.
    pub written: Option<Micros>,
    pub first_byte: Option<Micros>,
    pub done: Option<Micros>,
    /// Bytes of the request and of the answer, inside TLS.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Bytes of the answer's head, 0 if the head is incomplete; and of its body, without chunk framing.
    pub head_bytes: u64,
    pub body_bytes: u64,
    /// The first 4 MB of the raw answer, if an observer asked for it. Never stored, because it may contain secrets.
    #[serde(skip)]
    pub raw: Option<Box<[u8]>>,
}

impl Exchange {
    /// Returns the microseconds from sent to done; 0 if the request did not reach both.
    #[must_use]
    pub fn service_us(&self) -> Micros {
        self.sent.zip(self.done).map_or(0, |(sent, done)| done.saturating_sub(sent))
    }
}

/// A request that is not in the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetourRequest {
    pub method: String,
    #[serde(serialize_with = "without_secrets")]
    pub path: String,
}

fn without_secrets<S: Serializer>(path: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&secrets::url(path))
}
