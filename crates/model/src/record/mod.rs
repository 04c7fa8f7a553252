//! What an agent of a fleet tells of its part of a run, as bytes: seconds as they pass, phases as they end, and what it was like at the
//! end. Whoever reads it believes nothing: bytes come from other machines, in other versions, torn or made up. What they say of lengths is
//! compared with what is there before anything is made for it.
//!
//! Seconds are binary, since there is one a second and agent: counts and histogram buckets as variable-length numbers, most of which are
//! 0 and left out: a few bytes for an idle second, some thousand for a busy one. What is told once is JSON.

mod bytes;
mod second;

use serde::{Deserialize, Serialize};

use crate::run::{End, Generator};
use crate::{Micros, Reason, Slice};

use bytes::{Reader, write_number};

/// The form of what is written down here; another one is refused.
pub const VERSION: u8 = 2;

const MAGIC: [u8; 2] = *b"ld";

/// No record is longer: one second of an agent that tells each of a million answers by class has fewer.
pub const MOST_BYTES: usize = 64 << 20;

/// What an agent tells.
#[derive(Debug, Clone)]
pub enum Record {
    /// A second of all of its threads has passed. Those of a phase come in order.
    Second(Box<Slice>),
    /// A phase is over for it.
    PhaseEnd { phase: u16, duration_us: Micros, peak: u64 },
    /// Its part is done. Nothing comes after it.
    Ended(Box<AgentEnd>),
}

/// What an agent says once its part of a run is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEnd {
    pub end: End,
    /// What its generator used and ran out of.
    pub generator: Generator,
    /// What its own machine has to say against what it measured.
    pub reasons: Vec<Reason>,
    /// No load could be put on at all, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Of a log that was played: all requests of its share up to this number were sent, and the one after it was not. None: all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub played_up_to: Option<u64>,
}

/// Bytes that are no record.
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
    /// As bytes.
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
                // Numbers, text and maps with names: nothing that JSON does not have.
                out.extend(serde_json::to_vec(end).unwrap_or_default());
            }
        }
        out
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// For everything else.
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
                let end = serde_json::from_slice(rest).map_err(|e| RecordError::Wrong(e.to_string()))?;
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
