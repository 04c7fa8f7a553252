//! The trace of a run: as a number for comparing two runs, and as lines to read.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use lastdrop_load::world::{PEER_CLOSED, READABLE, WRITABLE};
use lastdrop_model::Micros;

use crate::peer::ConnectOutcome;

#[derive(Debug, Hash)]
pub enum TraceStep {
    NoSocket,
    Connect {
        socket: usize,
        to: String,
        meeting: ConnectOutcome,
    },
    Watch {
        socket: usize,
        token: u64,
    },
    Sent {
        socket: usize,
        bytes: usize,
        of: usize,
    },
    /// -1 is an error.
    Received {
        socket: usize,
        bytes: i64,
    },
    Event {
        socket: usize,
        mask: u32,
    },
    Close {
        socket: usize,
    },
    Violation(String),
}

impl fmt::Display for TraceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceStep::NoSocket => f.write_str("no descriptor for another socket"),
            TraceStep::Connect { socket, to, meeting } => write!(f, "socket {socket}: connect to {to}, {meeting:?}"),
            TraceStep::Watch { socket, token } => {
                write!(f, "socket {socket}: watched for slot {} (generation {})", *token as u32, token >> 32)
            }
            TraceStep::Sent { socket, bytes, of } => write!(f, "socket {socket}: sent {bytes} of {of} bytes"),
            TraceStep::Received { socket, bytes: 0 } => write!(f, "socket {socket}: received the end"),
            TraceStep::Received { socket, bytes: -1 } => write!(f, "socket {socket}: received a reset"),
            TraceStep::Received { socket, bytes } => write!(f, "socket {socket}: received {bytes} bytes"),
            TraceStep::Event { socket, mask } => {
                let names = [(READABLE, " readable"), (WRITABLE, " writable"), (PEER_CLOSED, " closed")];
                let names: String = names.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| *name).collect();
                write!(f, "socket {socket}: event{names}")
            }
            TraceStep::Close { socket } => write!(f, "socket {socket}: closed"),
            TraceStep::Violation(what) => write!(f, "VIOLATION: {what}"),
        }
    }
}

/// The steps of one shard.
#[derive(Debug, Default)]
pub struct Trace {
    hasher: DefaultHasher,
    /// The steps as text, with their times; `None` if nobody reads them.
    pub lines: Option<Vec<(Micros, String)>>,
}

impl Trace {
    #[must_use]
    pub fn new(is_read: bool) -> Trace {
        Trace { hasher: DefaultHasher::new(), lines: is_read.then(Vec::new) }
    }

    pub fn step(&mut self, at: Micros, step: &TraceStep) {
        (at, step).hash(&mut self.hasher);
        if let Some(lines) = &mut self.lines {
            lines.push((at, step.to_string()));
        }
    }

    #[must_use]
    pub fn number(&self) -> u64 {
        self.hasher.finish()
    }
}
