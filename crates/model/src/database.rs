//! Samples of a database: who is connected, which session waits for which, and which statements take the time.
//!
//! Counters are differences since the previous sample; sessions and statements come from readings within the same
//! window. A number that could not be read is absent, and `unread` says why.

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

/// State of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionState {
    /// A statement runs.
    Active,
    /// A statement runs and waits for a lock that another session holds.
    LockWait,
    Idle,
    /// No statement runs, but the session may hold locks.
    IdleInTransaction,
    Other,
}

impl SessionState {
    /// Returns true if a client waits for this session's statement.
    #[must_use]
    pub fn is_at_work(self) -> bool {
        matches!(self, SessionState::Active | SessionState::LockWait)
    }

    /// Returns the words for it in a sentence.
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

/// Why a database could not be sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TroubleKind {
    /// Nothing listens, or the connection broke.
    Unreachable,
    /// The database accepts connections but does not answer.
    Silent,
    /// The database refuses the login.
    Denied,
    /// All its connections are in use.
    Full,
    /// The database answers, but not as expected.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseTrouble {
    pub kind: TroubleKind,
    /// The database's own message, and what to do.
    pub what: String,
}

/// A session that waits for another. A session that waits for several is listed once per blocker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockWait {
    /// Session id of the database, like `blocker`.
    pub waiter: u64,
    /// Statement text with its literals replaced.
    pub statement: Option<String>,
    pub waited_s: Option<f64>,
    /// The table if it is known, otherwise the kind of lock.
    pub on: Option<String>,
    /// `None` if the database does not say.
    pub blocker: Option<u64>,
    /// The statement that the blocker runs, or ran last.
    pub blocker_statement: Option<String>,
    pub blocker_state: Option<SessionState>,
    /// Age of the blocker's transaction.
    pub blocker_transaction_s: Option<f64>,
}

/// One statement, its literals folded, as seen in the readings of the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatementSample {
    pub statement: String,
    /// Most sessions that ran it at once.
    pub sessions: u64,
    /// Total time of all sessions in this statement within the window.
    pub seconds: f64,
    /// Its share of the time of all statements, 0 to 1.
    pub share: f64,
    /// The share of its own time that it waited for locks, 0 to 1.
    pub lock_share: f64,
    /// The longest time that one execution had been running.
    pub longest_s: f64,
    /// Most rows that one execution had read, if the database says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_read: Option<u64>,
}

/// Full scans of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableScan {
    pub table: String,
    pub scans: u64,
    /// Rows that these scans read.
    pub rows: u64,
    /// Index scans of the same table.
    pub index_scans: u64,
}

/// One sample of a database; differences cover `span_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatabaseSample {
    /// Its name if it is one of the watched servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// `mysql` or `postgresql`.
    pub service: String,
    /// `MariaDB 10.11.6`
    pub software: String,
    /// Address and user of our connection: `mysql://user@localhost/?socket=/run/mysqld/mysqld.sock`.
    pub at: String,
    pub span_s: f64,
    /// Readings of the sessions in that time.
    pub samples: u32,
    /// Why the database could not be sampled; all other fields are then empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<DatabaseTrouble>,
    /// The longest time that the database took to answer a reading.
    pub answer_us: Option<u64>,
    /// Most open connections in a reading, ours included.
    pub connections: Option<u64>,
    pub max_connections: Option<u64>,
    /// Of `max_connections`, those reserved for administrators.
    pub reserved_connections: Option<u64>,
    /// Sessions by state at the last reading, without ours.
    pub states: BTreeMap<SessionState, u64>,
    /// Sessions that run a statement, and those of them that wait for a lock: means of the readings.
    pub active_mean: Option<f64>,
    pub lock_wait_mean: Option<f64>,
    /// All lock waits of the readings, the longest first.
    pub lock_waits: Vec<LockWait>,
    /// The statement with the most time first.
    pub statements: Vec<StatementSample>,
    /// The table with the most rows read first.
    pub table_scans: Vec<TableScan>,
    /// Counters of the whole database under its own names, as far as lastdrop reads them.
    pub counters: BTreeMap<String, u64>,
    /// What could not be read, with the missing grant.
    pub unread: Vec<String>,
}

impl DatabaseSample {
    /// Returns the connections that an application could still open; `None` if that is unknown.
    #[must_use]
    pub fn free_connections(&self) -> Option<u64> {
        let full = self.trouble.as_ref().is_some_and(|t| t.kind == TroubleKind::Full);
        let for_all = self.max_connections?.saturating_sub(self.reserved_connections.unwrap_or(0));
        Some(if full { 0 } else { for_all.saturating_sub(self.connections?) })
    }

    /// Returns the connections refused in this window because the limit was reached, if the database counts them.
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
        assert_eq!(crate::read_json::<DatabaseSample>(&text).expect("the same"), look);
    }
}
