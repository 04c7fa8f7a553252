//! Exit codes. The manual and `--help` show this table.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// The command failed, or the server answered nothing.
    Failed,
    /// Wrong usage or plan.
    Usage,
    /// An objective was missed.
    Missed,
    /// The measurement is invalid.
    Invalid,
    /// Ended by a signal, with its report: 128 + its number, as in shells (Ctrl-C is 130).
    Signal(i32),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Missed => 3,
            Exit::Invalid => 4,
            Exit::Signal(n) => 128 + n as u8,
        })
    }
}

pub const HELP: &str = "\
Exit codes:
  0    done
  1    it could not be done, or nothing was answered
  2    wrong usage or plan
  3    an objective was missed
  4    the measurement is invalid
  129  the terminal has gone; the report is kept
  130  ended by Ctrl-C, with its report";

/// Wrong use of the program: exit 2 instead of 1.
#[derive(Debug)]
pub struct UsageError(pub String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
