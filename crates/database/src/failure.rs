//! Why a database does not tell what it is asked.

use std::io::{self, ErrorKind};

use lastdrop_model::{DatabaseTrouble, TroubleKind};

/// A failure; all but `Query` end the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    Ended {
        kind: TroubleKind,
        what: String,
    },
    /// It refused one question, in its words.
    Query {
        code: String,
        message: String,
    },
}

impl Failure {
    pub fn new(kind: TroubleKind, what: impl Into<String>) -> Failure {
        Failure::Ended { kind, what: what.into() }
    }

    /// What a server sent is not what its protocol says.
    pub fn protocol(what: &str) -> Failure {
        Failure::new(TroubleKind::Other, format!("it does not speak as expected: {what}"))
    }

    pub fn io(e: &io::Error) -> Failure {
        match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                Failure::new(TroubleKind::Silent, "it does not answer in time; is it stopped, or its disk stuck?")
            }
            ErrorKind::UnexpectedEof => Failure::new(TroubleKind::Unreachable, "it has closed the connection"),
            _ => Failure::new(TroubleKind::Unreachable, e.to_string()),
        }
    }

    /// The same as part of a look.
    pub fn trouble(self) -> DatabaseTrouble {
        match self {
            Failure::Ended { kind, what } => DatabaseTrouble { kind, what },
            Failure::Query { code, message } => {
                DatabaseTrouble { kind: TroubleKind::Other, what: format!("{message} ({code})") }
            }
        }
    }
}

/// A row of an answer: texts, None for NULL.
pub(crate) type Row = Vec<Option<String>>;

/// A connection over which questions are asked, one after the other.
pub(crate) trait Ask: Send {
    /// The rows of an answer, in the order of the columns that were asked for.
    fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure>;
}

/// A cell of a row.
pub(crate) fn text(row: &Row, column: usize) -> Option<&str> {
    row.get(column)?.as_deref()
}

/// The same as a number; None where it is none.
pub(crate) fn number<T: std::str::FromStr>(row: &Row, column: usize) -> Option<T> {
    text(row, column)?.parse().ok()
}
