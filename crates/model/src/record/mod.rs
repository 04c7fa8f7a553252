//! Binary records in which an agent of a fleet reports its part of a run: seconds, ends of phases, and its end.
//!
//! The reader trusts nothing, because the bytes come from other machines, perhaps of another version, truncated or
//! forged. It compares each length with the bytes that are left before it allocates anything.
//!
//! Seconds are binary, because each agent sends one per second. Counts and histogram buckets are variable-length
//! numbers without the zeros: a few bytes for an idle second, some thousand for a busy one. The end is JSON.

mod bytes;
mod second;

use serde::{Deserialize, Serialize};

use crate::run::{End, Generator};
use crate::{Micros, Reason, Slice};

use bytes::{Reader, write_number};

/// Version of the format; a record of another version is refused.
pub const VERSION: u8 = 3;

const MAGIC: [u8; 2] = *b"ld";

/// Longest allowed record. One second of an agent with a million answers by class is shorter.
pub const MOST_BYTES: usize = 64 << 20;

/// One record of an agent.
#[derive(Debug, Clone)]
pub enum Record {
    /// One second of all its threads. Seconds of a phase come in order.
    Second(Box<Slice>),
    /// A phase has ended on this agent.
    PhaseEnd { phase: u16, duration_us: Micros, peak: u64 },
    /// The agent's part has ended; nothing follows.
    Ended(Box<AgentEnd>),
}

/// The summary that an agent sends when its part of a run has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEnd {
    pub end: End,
    /// Resources that its generator used, and shortages.
    pub generator: Generator,
    /// Reasons of its own machine to doubt the measurement.
    pub reasons: Vec<Reason>,
    /// Why no load could be generated at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Replays: every request of its share up to this number was sent, and the next was not. `None`: all were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub played_up_to: Option<u64>,
}

/// The error for bytes that are not a valid record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("it is no record of a run")]
    NoRecord,
    #[error(
        "it is a record of version {0}, and this lastdrop reads version {VERSION}: let all of a fleet have the same"
    )]
    Version(u8),
    #[error("it ends before it is whole")]
    Torn,
    #[error("{0}")]
    Wrong(String),
}

impl Record {
    /// Encodes the record as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        out.extend(MAGIC);
        out.push(VERSION);
        match self {
            Record::Second(slice) => {
                out.push(1);
                second::write(slice, &mut out);
            }
            Record::PhaseEnd { phase, duration_us, peak } => {
                out.push(2);
                [u64::from(*phase), *duration_us, *peak].into_iter().for_each(|n| write_number(n, &mut out));
            }
            Record::Ended(end) => {
                out.push(3);
                // Serialising cannot fail: `AgentEnd` has only numbers, text and maps with text keys.
                out.extend(serde_json::to_vec(end).unwrap_or_default());
            }
        }
        out
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// For all other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        if bytes.len() > MOST_BYTES {
            return Err(RecordError::Wrong(format!("it has {} bytes, and at most {MOST_BYTES} are read", bytes.len())));
        }
        let (version, kind, rest) = match bytes {
            [m0, m1, version, kind, rest @ ..] if [*m0, *m1] == MAGIC => (*version, *kind, rest),
            _ => return Err(RecordError::NoRecord),
        };
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let mut reader = Reader::new(rest);
        let record = match kind {
            1 => Record::Second(Box::new(second::read(&mut reader)?)),
            2 => {
                let phase = reader.number_below(u64::from(u16::MAX), "phase")? as u16;
                let duration_us = reader.number_below(bytes::MOST_US, "duration")?;
                Record::PhaseEnd { phase, duration_us, peak: reader.number_below(u64::from(u32::MAX), "connections")? }
            }
            3 => {
                let end = crate::read_json(rest).map_err(|e| RecordError::Wrong(e.to_string()))?;
                return Ok(Record::Ended(Box::new(end)));
            }
            other => return Err(RecordError::Wrong(format!("there is no record of kind {other}"))),
        };
        reader.end()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests;
