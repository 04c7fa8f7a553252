//! What other programs do where a server misbehaves: they send less than the plan has, or something again. lastdrop's own
//! plans go on, and send everything once.

use serde::{Deserialize, Serialize};

use crate::counts::Failure;

/// What ends a session, or all of a run, before its time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AbandonRules {
    /// A session is over when its connection is closed.
    pub session_with_connection: bool,
    /// A session is over with an answer of this status.
    pub session_with_status: Option<u16>,
    /// A request of a session that was lost on a connection which had served another one is sent again, on a new one.
    pub lost_is_sent_again: bool,
    pub run: Option<GiveUpRule>,
}

/// When a thread gives up a run: after so many requests that came to one of these ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveUpRule {
    pub after: u64,
    pub failures: Vec<Failure>,
    pub timeouts: bool,
    /// A timeout is enough by itself where no request has ended for half of its time.
    pub silence: bool,
    pub statuses: Vec<u16>,
}
