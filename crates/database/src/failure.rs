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

    /// It asks for the password in a way that would tell it to somebody who may not be the database.
    pub fn not_sent(method: &str, distrust: &str, advice: &str) -> Failure {
        let what = format!("it asks for {method}, which is not sent because {distrust}; {advice}");
        Failure::new(TroubleKind::Denied, what)
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
            ErrorKind::FileTooLarge => Failure::protocol("an answer without an end"),
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

/// Rows of an answer that are read, and their cells.
pub(crate) const MOST_ROWS: usize = 20_000;
pub(crate) const MOST_COLUMNS: usize = 64;

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

/// The beginning of a text that a server has sent: enough to know what it is about.
pub(crate) fn beginning(text: &[u8]) -> String {
    const MOST_BYTES: usize = 400;
    let end = text.len().min(MOST_BYTES);
    let dots = if end < text.len() { "…" } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(&text[..end]))
}
