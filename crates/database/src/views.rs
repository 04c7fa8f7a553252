//! What is read of a database, whichever it is.

use std::collections::BTreeMap;

use lastdrop_model::{DatabaseService, LockWait, SessionState};

use crate::access::Access;
use crate::failure::Failure;
use crate::mysql_views::MysqlViews;
use crate::postgres_views::PostgresViews;

/// A session at one moment, ours left out.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub id: u64,
    pub state: SessionState,
    /// As it was sent, maybe cut off; of one that rests what it ran last, where that is known.
    pub statement: Option<String>,
    /// How long the present statement runs.
    pub running_s: f64,
    pub rows_read: Option<u64>,
}

/// One reading of who does what.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub sessions: Vec<Session>,
    /// Open connections, ours among them; where the sessions of others are hidden it is known all the same.
    pub connections: Option<u64>,
    /// Statements in it are as they were sent.
    pub lock_waits: Vec<LockWait>,
}

/// What is counted since the database was started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub counters: BTreeMap<String, u64>,
    /// By table: scans, rows that they read, look-ups by index.
    pub tables: BTreeMap<String, [u64; 3]>,
}

/// What does not change while it runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Constants {
    pub software: String,
    pub max_connections: Option<u64>,
    pub reserved_connections: Option<u64>,
    /// What may not be read, and the grant that is missing.
    pub unread: Vec<String>,
}

/// The views of one sort of database, over a connection of its own.
pub(crate) trait Views: Send {
    fn constants(&self) -> &Constants;
    fn sample(&mut self) -> Result<Sample, Failure>;
    fn totals(&mut self) -> Result<Totals, Failure>;
}

/// Connects and finds out what may be read.
pub(crate) fn open(access: &Access) -> Result<Box<dyn Views>, Failure> {
    Ok(match access.service {
        DatabaseService::Mysql => Box::new(MysqlViews::open(access)?),
        DatabaseService::Postgresql => Box::new(PostgresViews::open(access)?),
    })
}
