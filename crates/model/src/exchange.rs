//! One request and what came of it, for those who want each: the log of requests, reports of other programs.

use serde::{Deserialize, Serialize, Serializer};

use crate::counts::Failure;
use crate::{Micros, secrets};

/// How much is wanted of each request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaptureLevel {
    /// Only their sums.
    #[default]
    Nothing,
    Exchanges,
    /// And what came, byte by byte.
    Answers,
}

/// The end that a request met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestOutcome {
    Answered,
    Failed(Failure),
    TimedOut,
    /// Still in flight when the run was over.
    Censored,
    /// It came due and was never sent.
    Unsent,
}

impl RequestOutcome {
    /// The word for it in the log of requests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestOutcome::Answered => "answered",
            RequestOutcome::Failed(Failure::Connect) => "connect",
            RequestOutcome::Failed(Failure::Reset) => "reset",
            RequestOutcome::Failed(Failure::Closed) => "closed",
            RequestOutcome::Failed(Failure::Protocol) => "protocol",
            RequestOutcome::TimedOut => "timed_out",
            RequestOutcome::Censored => "censored",
            RequestOutcome::Unsent => "unsent",
        }
    }
}

/// A request that is over. Times are microseconds since 1970 by the run's monotonic clock; None where it did not come
/// to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    pub phase: u16,
    /// Which request of the plan.
    pub request: u32,
    /// What was sent instead: the target of a redirect, a part of a page.
    pub detour: Option<Box<DetourRequest>>,
    pub fate: RequestOutcome,
    /// Why no connection could be made, as the system says it; with [`Failure::Connect`] alone.
    pub error: Option<Box<str>>,
    /// 0 without an answer.
    pub status: u16,
    /// The answer was one of HTTP/1.0.
    pub http10: bool,
    /// Names the connection, among those of its thread and slot in the order of their opening.
    pub connection: u64,
    /// Names what one user did in one go: a request with what followed from it, a session. 0 where users have nothing of
    /// their own.
    pub unit: u64,
    /// The first on its connection, which was opened for it.
    pub first: bool,
    /// The connection was kept for another one.
    pub kept: bool,
    pub due: Micros,
    pub sent: Option<Micros>,
    /// connect() succeeded; only for the first on a connection.
    pub connected: Option<Micros>,
    /// The request could be written: after connect and TLS.
    pub ready: Option<Micros>,
    /// All of it was written.
    pub written: Option<Micros>,
    pub first_byte: Option<Micros>,
    pub done: Option<Micros>,
    /// Bytes of the request that were written, and of the answer: all inside TLS, and its body without its coding.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Of its head; 0 where that is not complete.
    pub head_bytes: u64,
    pub body_bytes: u64,
    /// The answer as it came, where that was asked for: its first 4 MB. Not written down: nobody knows what is secret in it.
    #[serde(skip)]
    pub raw: Option<Box<[u8]>>,
}

impl Exchange {
    /// From sent to done, microseconds; 0 where it did not come to both.
    #[must_use]
    pub fn service_us(&self) -> Micros {
        self.sent.zip(self.done).map_or(0, |(sent, done)| done.saturating_sub(sent))
    }
}

/// A request that the plan does not name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetourRequest {
    pub method: String,
    #[serde(serialize_with = "without_secrets")]
    pub path: String,
}

fn without_secrets<S: Serializer>(path: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&secrets::url(path))
}
