//! Small messages that go about unsigned, and the clock they speak of.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::order::Refusal;

/// An agent that wants to be let in: under this name, with a password of its own making.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Join {
    pub name: String,
    pub password: String,
}

/// None: it is in. Otherwise why not.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Joined {
    pub refused: Option<String>,
}

/// What an agent says of an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// Prepared; it waits to be told to go.
    Ready {
        epoch: u64,
    },
    Going,
    Stopping,
    /// A question was taken, whether for the first time or again; or somebody is known to be still there.
    Taken,
    /// There is no such run or conversation here (any more).
    NotHere,
    Refused(Refusal),
}

/// A sign of life, once a second while an agent has a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Beat {
    pub run: String,
    pub epoch: u64,
    /// What is wrong with its disk, or with what it publishes.
    pub trouble: Option<String>,
}

/// An agent's last word of an epoch, as it is published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LastWord {
    pub records: u64,
    pub error: Option<String>,
    /// As in a sign of life, where none was given since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A machine's clock in microseconds since 1970, off by so much: tests skew clocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Clock {
    pub skew_us: i64,
}

impl Clock {
    pub fn now_us(self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64);
        now.saturating_add(self.skew_us)
    }

    /// The instant at which this clock shows `us`, as far as an `Instant` can say it.
    pub fn instant(self, us: i64) -> Instant {
        let now = Instant::now();
        let ahead = us.saturating_sub(self.now_us());
        let distance = std::time::Duration::from_micros(ahead.unsigned_abs());
        if ahead >= 0 { now.checked_add(distance) } else { now.checked_sub(distance) }.unwrap_or(now)
    }
}
