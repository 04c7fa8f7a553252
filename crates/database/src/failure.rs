//! Why a question to a database failed.

use std::io::{self, ErrorKind};

use lastdrop_model::{DatabaseTrouble, TroubleKind};

/// A failure; every kind but `Query` ends the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    Ended {
        kind: TroubleKind,
        what: String,
    },
    /// The server refused one question; the message is the server's.
    Query {
        code: String,
        message: String,
    },
}

impl Failure {
    pub fn new(kind: TroubleKind, what: impl Into<String>) -> Failure {
        Failure::Ended { kind, what: what.into() }
    }

    /// The server asks for the password in a form that would reveal it to an impostor.
    pub fn not_sent(method: &str, distrust: &str, advice: &str) -> Failure {
        let what = format!("it asks for {method}, which is not sent because {distrust}; {advice}");
        Failure::new(TroubleKind::Denied, what)
    }

    /// The server's bytes do not follow its protocol.
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

    /// The failure as a sample reports it.
    pub fn trouble(self) -> DatabaseTrouble {
        match self {
            Failure::Ended { kind, what } => DatabaseTrouble { kind, what },
            Failure::Query { code, message } => {
                DatabaseTrouble { kind: TroubleKind::Other, what: format!("{message} ({code})") }
            }
        }
    }
}

/// The most rows, and the most cells of a row, that are read of one result.
pub(crate) const MOST_ROWS: usize = 20_000;
pub(crate) const MOST_COLUMNS: usize = 64;

/// A row of a result: texts, None for NULL.
pub(crate) type ResultRow = Vec<Option<String>>;

/// A connection that answers one query after the other.
pub(crate) trait QueryConnection: Send {
    /// Returns the rows of a query, in the order of the columns that it selects.
    fn rows(&mut self, sql: &str) -> Result<Vec<ResultRow>, Failure>;
}

/// A cell of a row.
pub(crate) fn text(row: &ResultRow, column: usize) -> Option<&str> {
    row.get(column)?.as_deref()
}

/// A cell as a number; None if it is not one.
pub(crate) fn number<T: std::str::FromStr>(row: &ResultRow, column: usize) -> Option<T> {
    text(row, column)?.parse().ok()
}

/// The beginning of a text that a server sent, long enough to recognise it.
pub(crate) fn beginning(text: &[u8]) -> String {
    const MOST_BYTES: usize = 400;
    let end = text.len().min(MOST_BYTES);
    let dots = if end < text.len() { "…" } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(&text[..end]))
}
