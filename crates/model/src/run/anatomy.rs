//! Where requests of a run spent their time, and what the slow ones have that typical ones have not.

use serde::{Deserialize, Serialize};

/// The anatomy of the measured phase's requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Anatomy {
    /// Moments at which the servers were read, and the part of the machine that reading used.
    pub moments: u64,
    pub cost: f64,
    pub typical: RequestGroup,
    /// None if no requests stand out as slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow: Option<RequestGroup>,
    /// Where the time went: parts of fronts and pools, whose sum and the rest are the time in flight, then those of
    /// servers behind them.
    pub parts: Vec<AnatomyPart>,
    /// Statements and locks of databases, and what could not be seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Requests that are looked at together. All times are means in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestGroup {
    pub requests: u64,
    /// The shortest and the longest time in flight.
    pub from_us: f64,
    pub to_us: f64,
    /// From due to sent.
    pub before_us: f64,
    /// From sent to the end of the answer.
    pub in_flight_us: f64,
    /// Of that, until the request could be written.
    pub connect_us: f64,
    /// Of that, from the first byte of the answer to the last one.
    pub transfer_us: f64,
    /// Of that, in no part below.
    pub rest_us: f64,
}

/// Time of a request in one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AnatomyPart {
    pub server: String,
    /// What its thread did or waited for, in the words of `examination`; or `queue`, `network`.
    pub what: String,
    /// The server at the other end of a `peer`, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The server is behind the pool: this time is within a wait of the pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
    /// Of a typical and of a slow request.
    pub typical: PartTime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow: Option<PartTime>,
}

/// Mean time of a request in a part, with its standard error, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PartTime {
    pub us: f64,
    pub error_us: f64,
}

impl AnatomyPart {
    /// How much longer a slow request is in this part than a typical one, in microseconds.
    #[must_use]
    pub fn excess_us(&self) -> f64 {
        self.slow.map_or(0.0, |slow| slow.us - self.typical.us)
    }
}

impl Anatomy {
    /// Returns the place in which the slow requests lose most compared with the typical ones, and the time lost in it. None
    /// is the rest, which no thread, queue or socket shows.
    #[must_use]
    pub fn most_lost(&self) -> Option<(Option<&AnatomyPart>, f64)> {
        let slow = self.slow.as_ref()?;
        let part = self.parts.iter().filter(|p| !p.behind).max_by(|a, b| a.excess_us().total_cmp(&b.excess_us()));
        let rest = slow.rest_us - self.typical.rest_us;
        let lost = part.map_or(0.0, AnatomyPart::excess_us);
        Some(if lost >= rest { (part, lost) } else { (None, rest) })
    }
}
