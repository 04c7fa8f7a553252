//! How other load generators react to a misbehaving server: they give up part of the plan, or send a request again.
//! lastdrop's own plans continue and send everything once.

use serde::{Deserialize, Serialize};

use crate::counts::Failure;

/// What ends a session, or the whole run, early.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AbandonRules {
    /// A session ends when its connection is closed.
    pub session_with_connection: bool,
    /// A session ends with an answer of this status.
    pub session_with_status: Option<u16>,
    /// A session's request that was lost on a reused connection is sent again on a new one.
    pub lost_is_sent_again: bool,
    pub run: Option<GiveUpRule>,
}

/// When a thread gives up the run: after `after` requests that ended in one of these ways.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveUpRule {
    pub after: u64,
    pub failures: Vec<Failure>,
    pub timeouts: bool,
    /// One timeout is enough if no request has ended for half the timeout.
    pub silence: bool,
    pub statuses: Vec<u16>,
}
