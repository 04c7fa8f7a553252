//! Small unsigned messages, and the clock that their times refer to.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::order::Refusal;

/// A join request: the agent's name, and a password that it made itself.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    pub name: String,
    pub password: String,
}

/// The answer to a join request: `None` if admitted, otherwise the reason.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JoinReply {
    pub refused: Option<String>,
}

/// An agent's reply to an order or a question.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// Prepared, and waiting for `Go`.
    Ready {
        epoch: u64,
    },
    Going,
    Stopping,
    /// A question (new or repeated) was taken, or a keep-alive message was noted.
    Taken,
    /// This run or conversation does not exist here (any more).
    NotHere,
    Refused(Refusal),
}

/// A heartbeat, sent once per second while an agent has a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub run: String,
    pub epoch: u64,
    /// A problem with its disk or with publishing.
    pub trouble: Option<String>,
}

/// The last message of an agent's epoch, as it is published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FinalReport {
    pub records: u64,
    pub error: Option<String>,
    /// A problem that no heartbeat has reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A machine's clock in microseconds since 1970, with an artificial skew for tests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    pub skew_us: i64,
}

impl Clock {
    pub fn now_us(self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        now.saturating_add(self.skew_us)
    }

    /// Converts `us` of this clock to an `Instant`, as far as one can represent it.
    pub fn instant(self, us: i64) -> Instant {
        let now = Instant::now();
        let ahead = us.saturating_sub(self.now_us());
        let distance = std::time::Duration::from_micros(ahead.unsigned_abs());
        if ahead >= 0 { now.checked_add(distance) } else { now.checked_sub(distance) }.unwrap_or(now)
    }
}
