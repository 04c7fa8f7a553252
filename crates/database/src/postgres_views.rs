//! The views of PostgreSQL: pg_stat_activity, pg_locks, the counters of databases and tables.

use lastdrop_model::{LockWait, SessionState};

use crate::access::Access;
use crate::failure::{Failure, QueryConnection, ResultRow, number, text};
use crate::postgresql::Postgres;
use crate::views::{Constants, Sample, Session, Totals, Views};

/// Counters of pg_stat_database, summed over all databases.
const COUNTERS: [&str; 10] = [
    "xact_commit",
    "xact_rollback",
    "blks_read",
    "blks_hit",
    "tup_returned",
    "tup_fetched",
    "temp_files",
    "temp_bytes",
    "deadlocks",
    "sessions",
];

pub(crate) struct PostgresViews {
    server: Postgres,
    /// Other users' sessions are visible.
    sees_all: bool,
    /// The ones of `COUNTERS` that this version has.
    counters: Vec<&'static str>,
    /// pg_locks has `waitstart` (version 14 and later).
    has_wait_start: bool,
    constants: Constants,
}

impl PostgresViews {
    pub fn open(access: &Access) -> Result<PostgresViews, Failure> {
        let mut server = Postgres::connect(access)?;
        let rows = server.rows(
            "SELECT current_setting('server_version'), current_setting('server_version_num'), current_setting('max_connections'), \
             current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0), \
             pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), quote_ident(current_user), current_database()",
        )?;
        let row = rows.into_iter().next().ok_or_else(|| Failure::protocol("its settings"))?;
        let version = text(&row, 0).and_then(|v| v.split(' ').next()).unwrap_or_default();
        let has_wait_start = number::<u64>(&row, 1).is_some_and(|n| n >= 140_000);
        let mut constants = Constants {
            software: format!("PostgreSQL {version}"),
            max_connections: number(&row, 2),
            reserved_connections: number(&row, 3),
            unread: Vec::new(),
        };
        let sees_all = text(&row, 4) == Some("t");
        if !sees_all {
            constants.unread.push(format!(
                "sessions, statements and locks of others: as an administrator: GRANT pg_monitor TO {}",
                text(&row, 5).unwrap_or(&access.user)
            ));
        }
        let columns = server.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'pg_catalog.pg_stat_database'::regclass AND attnum > 0",
        )?;
        let has = |name: &&str| columns.iter().any(|row| text(row, 0) == Some(name));
        let counters = COUNTERS.into_iter().filter(has).collect();
        if access.database.is_none() {
            let name = text(&row, 6).unwrap_or("postgres");
            constants.unread.push(format!(
                "tables: only those of the database '{name}' can be seen from there; name the site's: --db {}…",
                Access { database: None, ..access.clone() }.to_string().split('?').next().unwrap_or_default()
            ));
        }
        Ok(PostgresViews { server, sees_all, counters, has_wait_start, constants })
    }

    fn lock_waits(&mut self) -> Result<Vec<LockWait>, Failure> {
        let since = if self.has_wait_start { "coalesce(l.waitstart, w.query_start)" } else { "w.query_start" };
        // A session that waits for a row waits for the transaction of the row's owner. It also holds a tuple lock on
        // that row, which names the table.
        let rows = self.server.rows(&format!(
            "SELECT w.pid, left(w.query, 2000), extract(epoch FROM clock_timestamp() - {since}), \
             coalesce((SELECT r.relation::regclass::text FROM pg_locks r WHERE r.pid = w.pid AND r.relation IS NOT NULL \
               AND (r.locktype = 'tuple' OR NOT r.granted) AND r.database = (SELECT oid FROM pg_database WHERE datname = \
               current_database()) LIMIT 1), l.locktype), \
             b.pid, left(b.query, 2000), extract(epoch FROM clock_timestamp() - b.xact_start), b.state, b.wait_event_type \
             FROM pg_stat_activity w LEFT JOIN LATERAL (SELECT * FROM pg_locks x WHERE x.pid = w.pid AND NOT x.granted LIMIT 1) l \
             ON true CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) blocking(pid) \
             LEFT JOIN pg_stat_activity b ON b.pid = blocking.pid WHERE w.wait_event_type = 'Lock' LIMIT 200"
        ))?;
        Ok(rows.iter().filter_map(lock_wait).collect())
    }
}

fn state(name: Option<&str>, waits_for: Option<&str>) -> SessionState {
    match name {
        Some("active" | "fastpath function call") if waits_for == Some("Lock") => SessionState::LockWait,
        Some("active" | "fastpath function call") => SessionState::Active,
        Some("idle") => SessionState::Idle,
        Some(name) if name.starts_with("idle in transaction") => SessionState::IdleInTransaction,
        _ => SessionState::Other,
    }
}

fn lock_wait(row: &ResultRow) -> Option<LockWait> {
    Some(LockWait {
        waiter: number(row, 0)?,
        statement: text(row, 1).map(str::to_string),
        waited_s: number(row, 2),
        on: text(row, 3).map(str::to_string),
        blocker: number(row, 4),
        blocker_statement: text(row, 5).filter(|t| !t.is_empty()).map(str::to_string),
        blocker_state: text(row, 7).map(|name| state(Some(name), text(row, 8))),
        blocker_transaction_s: number(row, 6),
    })
}

impl Views for PostgresViews {
    fn constants(&self) -> &Constants {
        &self.constants
    }

    fn sample(&mut self) -> Result<Sample, Failure> {
        let rows = self.server.rows(
            "SELECT pid, state, wait_event_type, left(query, 2000), extract(epoch FROM clock_timestamp() - query_start), \
             backend_type FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND coalesce(backend_type, 'client backend') = 'client backend'",
        )?;
        let session = |row: &ResultRow| {
            Some(Session {
                id: number(row, 0)?,
                state: state(text(row, 1), text(row, 2)),
                statement: text(row, 3).filter(|t| !t.is_empty() && self.sees_all).map(str::to_string),
                running_s: number::<f64>(row, 4).unwrap_or(0.0),
                rows_read: None,
            })
        };
        let sessions: Vec<Session> = rows.iter().filter_map(session).collect();
        let connections = if self.sees_all {
            Some(sessions.len() as u64 + 1)
        } else {
            let open = self.server.rows("SELECT sum(numbackends) FROM pg_stat_database")?;
            open.first().and_then(|row| number(row, 0))
        };
        let waits = sessions.iter().any(|s| s.state == SessionState::LockWait);
        let lock_waits = if waits { self.lock_waits()? } else { Vec::new() };
        // Rows of hidden sessions contain nothing useful.
        let sessions = if self.sees_all { sessions } else { Vec::new() };
        Ok(Sample { sessions, connections, lock_waits })
    }

    fn totals(&mut self) -> Result<Totals, Failure> {
        let sums: Vec<String> = self.counters.iter().map(|name| format!("sum({name})::bigint")).collect();
        let rows = self.server.rows(&format!("SELECT {} FROM pg_stat_database", sums.join(", ")))?;
        let mut totals = Totals::default();
        if let Some(row) = rows.first() {
            let counted = self.counters.iter().enumerate();
            totals.counters = counted.filter_map(|(i, name)| Some(((*name).to_string(), number(row, i)?))).collect();
        }
        let tables = self.server.rows(
            "SELECT schemaname || '.' || relname, seq_scan, seq_tup_read, coalesce(idx_scan, 0) FROM pg_stat_user_tables \
             WHERE seq_tup_read > 0 ORDER BY seq_tup_read DESC LIMIT 1000",
        )?;
        let table =
            |row: &ResultRow| Some((text(row, 0)?.to_string(), [number(row, 1)?, number(row, 2)?, number(row, 3)?]));
        totals.tables = tables.iter().filter_map(table).collect();
        Ok(totals)
    }
}
