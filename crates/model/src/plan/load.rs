//! The phases of a plan: how much load, and for how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::serde_seconds_option;

/// Distribution of the gaps between arrivals of an open loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    Uniform,
    Poisson,
    /// Gaps are uniformly distributed within this many thousandths of the mean around it.
    Jitter(u16),
}

impl FromStr for Arrival {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uniform" => Ok(Arrival::Uniform),
            "poisson" => Ok(Arrival::Poisson),
            "jitter" => Ok(Arrival::Jitter(100)),
            other => other
                .strip_prefix("jitter ")
                .and_then(|share| share.trim().strip_suffix('%')?.trim().parse::<f64>().ok())
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(|percent| Arrival::Jitter((percent * 10.0).round() as u16))
                .ok_or_else(|| format!("'{text}' is not uniform, poisson, jitter or 'jitter 25%' (at most 100%)")),
        }
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arrival::Uniform => f.write_str("uniform"),
            Arrival::Poisson => f.write_str("poisson"),
            Arrival::Jitter(thousandths) => write!(f, "jitter {}%", f64::from(*thousandths) / 10.0),
        }
    }
}

/// What makes requests come due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "loop", rename_all = "lowercase")]
pub enum Load {
    /// Closed loop: each of `users` sends the next request when the last one is answered.
    Closed {
        users: u32,
        /// Users at the end of the phase; the number changes linearly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_users: Option<u32>,
        /// Most connections open at once, shared by all users; a user who finds none free queues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        connections: Option<u32>,
    },
    /// Open loop: requests arrive at `rate_rps` whatever the server does, over at most `connections` at once.
    Open {
        rate_rps: f64,
        /// Rate at the end of the phase; it changes linearly, or in `steps`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_rps: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steps: Option<u32>,
        arrivals: Arrival,
        /// Requests that arrive together.
        #[serde(default = "one")]
        burst: u32,
        connections: u32,
    },
}

fn one() -> u32 {
    1
}

impl Load {
    #[must_use]
    pub fn closed(users: u32) -> Load {
        Load::Closed { users, to_users: None, connections: None }
    }

    /// Limits the connections open at once.
    pub fn limit_connections(&mut self, most: u32) {
        match self {
            Load::Closed { connections, .. } => *connections = Some(most),
            Load::Open { connections, .. } => *connections = most,
        }
    }

    /// Returns the connections that users share in a closed loop.
    #[must_use]
    pub fn shared_connections(&self) -> Option<u32> {
        match self {
            Load::Closed { connections, .. } => *connections,
            Load::Open { .. } => None,
        }
    }

    #[must_use]
    pub fn open(rate_rps: f64, arrivals: Arrival, connections: u32) -> Load {
        Load::Open { rate_rps, to_rps: None, steps: None, arrivals, burst: 1, connections }
    }

    /// Returns true if the load at the end of the phase differs from that at the beginning.
    #[must_use]
    pub fn changes(&self) -> bool {
        match self {
            Load::Closed { to_users, .. } => to_users.is_some(),
            Load::Open { to_rps, .. } => to_rps.is_some(),
        }
    }

    /// Returns the most users, or the most connections of an open loop.
    #[must_use]
    pub fn most_concurrent(&self) -> u32 {
        match self {
            Load::Closed { users, to_users, .. } => to_users.unwrap_or(*users).max(*users),
            Load::Open { connections, .. } => *connections,
        }
    }
}

/// The most users that begin at the same moment; further users begin over the first second. Most servers' listen queues
/// are 511 long, so tens of thousands of simultaneous connections would measure little but their overflow.
pub const BEGIN_TOGETHER: u32 = 1_000;

/// One stretch of a run with one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    /// False for a warm-up, which is recorded but not part of the result.
    pub measured: bool,
    pub load: Load,
    /// Requests after which nothing more comes due.
    pub requests: Option<u64>,
    /// Time after which nothing more comes due.
    #[serde(with = "serde_seconds_option", default)]
    pub duration: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_read_what_they_print() {
        for text in ["uniform", "poisson", "jitter 10%", "jitter 2.5%"] {
            assert_eq!(text.parse::<Arrival>().expect("valid").to_string(), text);
        }
        assert!("jitter 101%".parse::<Arrival>().is_err() && "jitter nan%".parse::<Arrival>().is_err());
    }
}
