//! What a look at a database finds: who is connected, who waits for whom, which statements take the time.
//!
//! Counters are differences since the look before, sessions and statements were seen in samples of the same window. A number
//! that could not be read is absent, and `unread` says why.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a database speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DatabaseService {
    /// MariaDB and MySQL.
    Mysql,
    Postgresql,
}

impl DatabaseService {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DatabaseService::Mysql => "mysql",
            DatabaseService::Postgresql => "postgresql",
        }
    }

    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            DatabaseService::Mysql => 3306,
            DatabaseService::Postgresql => 5432,
        }
    }
}

impl fmt::Display for DatabaseService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionState {
    /// A statement runs.
    Active,
    /// A statement runs, and waits for a lock that another session has.
    LockWait,
    Idle,
    /// No statement runs, and locks may be held.
    IdleInTransaction,
    Other,
}

impl SessionState {
    /// Is somebody waiting for it?
    #[must_use]
    pub fn is_at_work(self) -> bool {
        matches!(self, SessionState::Active | SessionState::LockWait)
    }

    /// In a sentence.
    #[must_use]
    pub fn in_words(self) -> &'static str {
        match self {
            SessionState::Active => "active",
            SessionState::LockWait => "waiting for a lock",
            SessionState::Idle => "idle",
            SessionState::IdleInTransaction => "idle in a transaction",
            SessionState::Other => "other",
        }
    }
}

/// Why a database could not be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TroubleKind {
    /// Nobody listens, or the connection broke.
    Unreachable,
    /// It takes connections and does not answer.
    Silent,
    /// It does not let us in.
    Denied,
    /// All of its connections are taken.
    Full,
    /// It answers, and not as expected.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseTrouble {
    pub kind: TroubleKind,
    /// In its own words, with what to do.
    pub what: String,
}

/// A session that waits for another. A session that waits for several is in the list once for each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockWait {
    /// Session ids as the database has them.
    pub waiter: u64,
    /// Statements have marks in place of their literals.
    pub statement: Option<String>,
    pub waited_s: Option<f64>,
    /// The table, where it is known; else the sort of lock.
    pub on: Option<String>,
    /// None: the database does not tell.
    pub blocker: Option<u64>,
    /// What the blocker runs, or ran last.
    pub blocker_statement: Option<String>,
    pub blocker_state: Option<SessionState>,
    /// How long its transaction is open.
    pub blocker_transaction_s: Option<f64>,
}

/// A statement, its literals folded, as the samples of the window saw it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatementSample {
    pub statement: String,
    /// Sessions that ran it at once, at most.
    pub sessions: u64,
    /// Time that all sessions together spent in it within the window.
    pub seconds: f64,
    /// Its part of the time of all statements, 0 to 1.
    pub share: f64,
    /// The part of its own time in which it waited for locks, 0 to 1.
    pub lock_share: f64,
    /// The longest that one of them had been running.
    pub longest_s: f64,
    /// Rows that one execution had read, at most; where the database tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_read: Option<u64>,
}

/// A table that was read from end to end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableScan {
    pub table: String,
    pub scans: u64,
    /// Rows that these scans read.
    pub rows: u64,
    /// Look-ups by an index of the same table.
    pub index_scans: u64,
}

/// One look at a database; differences cover `span_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatabaseSample {
    /// What it is called, where it is one of the servers that are watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// `mysql` or `postgresql`.
    pub service: String,
    /// `MariaDB 10.11.6`
    pub software: String,
    /// Where it was asked, and as whom: `mysql://user@localhost/?socket=/run/mysqld/mysqld.sock`.
    pub at: String,
    pub span_s: f64,
    /// How often sessions were read in that time.
    pub samples: u32,
    /// Then there is nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<DatabaseTrouble>,
    /// How long it took to answer: the longest of the samples.
    pub answer_us: Option<u64>,
    /// Those that are open, ours among them: the most in a sample.
    pub connections: Option<u64>,
    pub max_connections: Option<u64>,
    /// Of those, kept for administrators.
    pub reserved_connections: Option<u64>,
    /// Sessions by what they do, ours left out, at the last sample.
    pub states: BTreeMap<SessionState, u64>,
    /// Sessions with a statement that runs, and those of them that wait for a lock: means of the samples.
    pub active_mean: Option<f64>,
    pub lock_wait_mean: Option<f64>,
    /// All that were seen in the samples, the longest first.
    pub lock_waits: Vec<LockWait>,
    /// The most time first.
    pub statements: Vec<StatementSample>,
    /// The most rows first.
    pub table_scans: Vec<TableScan>,
    /// Counters of the whole database by its own names, those that are read.
    pub counters: BTreeMap<String, u64>,
    /// What could not be read, and the grant that is missing.
    pub unread: Vec<String>,
}

impl DatabaseSample {
    /// Connections that an application could still open. None where that is not known.
    #[must_use]
    pub fn free_connections(&self) -> Option<u64> {
        let full = self.trouble.as_ref().is_some_and(|t| t.kind == TroubleKind::Full);
        let for_all = self.max_connections?.saturating_sub(self.reserved_connections.unwrap_or(0));
        Some(if full { 0 } else { for_all.saturating_sub(self.connections?) })
    }

    /// Connections that were refused in this time because there were too many, where the database counts them.
    #[must_use]
    pub fn refused_connections(&self) -> Option<u64> {
        self.counters.get("Connection_errors_max_connections").copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_connections_are_those_that_are_not_kept_for_administrators() {
        let look = DatabaseSample {
            connections: Some(90),
            max_connections: Some(100),
            reserved_connections: Some(3),
            ..DatabaseSample::default()
        };
        assert_eq!((look.free_connections(), look.refused_connections()), (Some(7), None));
        let trouble = Some(DatabaseTrouble { kind: TroubleKind::Full, what: "too many clients".into() });
        assert_eq!(DatabaseSample { trouble, ..look.clone() }.free_connections(), Some(0));
        assert_eq!(DatabaseSample { connections: None, ..look }.free_connections(), None);
    }

    #[test]
    fn a_look_is_written_and_read_back() {
        let look = DatabaseSample {
            states: BTreeMap::from([(SessionState::IdleInTransaction, 2)]),
            lock_waits: vec![LockWait { waiter: 7, blocker_state: Some(SessionState::Idle), ..LockWait::default() }],
            ..DatabaseSample::default()
        };
        let text = serde_json::to_string(&look).expect("JSON");
        assert!(text.contains("\"states\":{\"idle-in-transaction\":2}"), "{text}");
        assert_eq!(serde_json::from_str::<DatabaseSample>(&text).expect("the same"), look);
    }
}
