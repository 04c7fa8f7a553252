//! Readings of a database, independent of its kind.

use std::collections::BTreeMap;

use lastdrop_model::{DatabaseService, LockWait, SessionState};

use crate::access::Access;
use crate::failure::Failure;
use crate::mysql_views::MysqlViews;
use crate::postgres_views::PostgresViews;

/// A session at one moment. Our own is left out.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub id: u64,
    pub state: SessionState,
    /// As it was sent, maybe cut off. For an idle session: its last statement, if known.
    pub statement: Option<String>,
    /// Seconds that the present statement has been running.
    pub running_s: f64,
    pub rows_read: Option<u64>,
}

/// The sessions and lock waits at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub sessions: Vec<Session>,
    /// Open connections, ours included; known even if other users' sessions are hidden.
    pub connections: Option<u64>,
    /// Their statements still contain literals.
    pub lock_waits: Vec<LockWait>,
}

/// Counters since the database was started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub counters: BTreeMap<String, u64>,
    /// For each table: scans, rows read by scans, look-ups by index.
    pub tables: BTreeMap<String, [u64; 3]>,
}

/// Facts that do not change while the database runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Constants {
    pub software: String,
    pub max_connections: Option<u64>,
    pub reserved_connections: Option<u64>,
    /// What may not be read, with the missing grant.
    pub unread: Vec<String>,
}

/// The views of one kind of database, over a connection of its own.
pub(crate) trait Views: Send {
    fn constants(&self) -> &Constants;
    fn sample(&mut self) -> Result<Sample, Failure>;
    fn totals(&mut self) -> Result<Totals, Failure>;
}

/// Connects and finds out which views are readable.
pub(crate) fn open(access: &Access) -> Result<Box<dyn Views>, Failure> {
    Ok(match access.service {
        DatabaseService::Mysql => Box::new(MysqlViews::open(access)?),
        DatabaseService::Postgresql => Box::new(PostgresViews::open(access)?),
    })
}
