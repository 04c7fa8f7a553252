//! The views of MariaDB and MySQL: the process list, InnoDB's transactions and lock waits, status variables.

use std::collections::BTreeMap;

use lastdrop_model::{LockWait, SessionState, TroubleKind};

use crate::access::Access;
use crate::failure::{Failure, QueryConnection, ResultRow, number, text};
use crate::mysql::Mysql;
use crate::postgresql::PASSWORD_ADVICE;
use crate::views::{Constants, Sample, Session, Totals, Views};

/// https://mariadb.com/kb/en/server-status-variables/; a server leaves out the ones that it does not have.
const COUNTERS: &str = "'Aborted_clients','Aborted_connects','Bytes_sent','Connection_errors_max_connections','Connections',\
    'Created_tmp_disk_tables','Handler_read_key','Handler_read_next','Handler_read_rnd','Handler_read_rnd_next',\
    'Innodb_buffer_pool_reads','Innodb_deadlocks','Innodb_row_lock_time','Innodb_row_lock_waits','Innodb_rows_read',\
    'Questions','Select_full_join','Select_scan','Slow_queries','Sort_merge_passes','Table_locks_waited'";

pub(crate) struct MysqlViews {
    server: Mysql,
    is_mariadb: bool,
    /// PROCESS is granted, so other users' sessions are visible.
    sees_all: bool,
    constants: Constants,
}

impl MysqlViews {
    pub fn open(access: &Access) -> Result<MysqlViews, Failure> {
        let mut server = Mysql::connect(access).map_err(|e| match e {
            Failure::Ended { kind: TroubleKind::Denied, what } if access.password.is_none() => {
                Failure::new(TroubleKind::Denied, format!("{what}; if it wants a password, {PASSWORD_ADVICE}"))
            }
            other => other,
        })?;
        let is_mariadb = server.version.contains("MariaDB");
        // MariaDB puts a version that old replicas understand before its own.
        let version = server.version.trim_start_matches("5.5.5-");
        let number_only = version.split('-').next().unwrap_or_default();
        let name = if is_mariadb { "MariaDB" } else { "MySQL" };
        let mut constants = Constants { software: format!("{name} {number_only}"), ..Constants::default() };
        let bounded = if is_mariadb { "max_statement_time = 2" } else { "max_execution_time = 2000" };
        server.rows(&format!("SET SESSION {bounded}, SESSION lock_wait_timeout = 1, SESSION transaction_isolation = 'READ-UNCOMMITTED'"))
            .or_else(|e| match e {
                Failure::Query { .. } => server.rows(&format!("SET SESSION {bounded}")),
                ended => Err(ended),
            })?;
        server.rows("SET SESSION TRANSACTION READ ONLY")?;
        let limit = server.rows("SELECT @@max_connections")?;
        constants.max_connections = limit.first().and_then(|row| number(row, 0));
        let sees_all = match server.rows("SELECT COUNT(*) FROM information_schema.INNODB_TRX") {
            Ok(_) => true,
            Err(Failure::Query { message, .. }) => {
                constants.unread.push(format!(
                    "sessions, statements and locks of others: {message}; as an administrator: GRANT PROCESS ON *.* TO {}",
                    who(&mut server, access)
                ));
                false
            }
            Err(ended) => return Err(ended),
        };
        let mut views = MysqlViews { server, is_mariadb, sees_all, constants };
        if sees_all
            && !is_mariadb
            && let Err(Failure::Query { message, .. }) = views.lock_waits()
        {
            let who = who(&mut views.server, access);
            let grant = format!("as an administrator: GRANT SELECT ON performance_schema.* TO {who}");
            views.constants.unread.push(format!("who waits for whom: {message}; {grant}"));
        }
        Ok(views)
    }

    /// Returns which session waits for which. MariaDB has this in InnoDB's own tables, MySQL 8 in performance_schema.
    fn lock_waits(&mut self) -> Result<Vec<LockWait>, Failure> {
        let (waits, lock) = if self.is_mariadb {
            (
                "information_schema.INNODB_LOCK_WAITS w JOIN information_schema.INNODB_TRX r ON r.trx_id = w.requesting_trx_id \
                 JOIN information_schema.INNODB_TRX b ON b.trx_id = w.blocking_trx_id \
                 LEFT JOIN information_schema.INNODB_LOCKS l ON l.lock_id = w.requested_lock_id",
                "l.lock_table",
            )
        } else {
            (
                "performance_schema.data_lock_waits w \
                 JOIN information_schema.INNODB_TRX r ON r.trx_id = w.REQUESTING_ENGINE_TRANSACTION_ID \
                 JOIN information_schema.INNODB_TRX b ON b.trx_id = w.BLOCKING_ENGINE_TRANSACTION_ID \
                 LEFT JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = w.REQUESTING_ENGINE_LOCK_ID",
                "CONCAT(l.OBJECT_SCHEMA, '.', l.OBJECT_NAME)",
            )
        };
        let rows = self.server.rows(&format!(
            "SELECT r.trx_mysql_thread_id, LEFT(r.trx_query, 2000), TIMESTAMPDIFF(MICROSECOND, r.trx_wait_started, NOW(6)) / 1e6, \
             {lock}, b.trx_mysql_thread_id, LEFT(b.trx_query, 2000), TIMESTAMPDIFF(MICROSECOND, b.trx_started, NOW(6)) / 1e6, \
             b.trx_state FROM {waits} LIMIT 200"
        ))?;
        let mut waits: Vec<LockWait> = rows.iter().filter_map(lock_wait).collect();
        self.name_resting_blockers(&mut waits);
        Ok(waits)
    }

    /// Fills in the last statement of idle blockers, from performance_schema where that is enabled and readable.
    fn name_resting_blockers(&mut self, waits: &mut [LockWait]) {
        let unknown = waits.iter().filter(|w| w.blocker_statement.is_none()).filter_map(|w| w.blocker);
        let ids: Vec<String> = unknown.map(|id| id.to_string()).collect();
        if ids.is_empty() {
            return;
        }
        let rows = self.server.rows(&format!(
            "SELECT t.PROCESSLIST_ID, LEFT(s.SQL_TEXT, 2000) FROM performance_schema.events_statements_current s \
             JOIN performance_schema.threads t ON t.THREAD_ID = s.THREAD_ID WHERE t.PROCESSLIST_ID IN ({})",
            ids.join(",")
        ));
        let last: BTreeMap<u64, String> = rows
            .unwrap_or_default()
            .iter()
            .filter_map(|row| Some((number(row, 0)?, text(row, 1)?.to_string())))
            .collect();
        for wait in waits.iter_mut().filter(|w| w.blocker_statement.is_none()) {
            wait.blocker_statement = wait.blocker.and_then(|id| last.get(&id).cloned());
        }
    }
}

fn lock_wait(row: &ResultRow) -> Option<LockWait> {
    let runs = text(row, 5).is_some();
    let state = match text(row, 7) {
        Some("LOCK WAIT") => SessionState::LockWait,
        _ if runs => SessionState::Active,
        _ => SessionState::IdleInTransaction,
    };
    Some(LockWait {
        waiter: number(row, 0)?,
        statement: text(row, 1).map(str::to_string),
        waited_s: number(row, 2),
        on: text(row, 3).map(|table| table.replace('`', "")),
        blocker: number(row, 4),
        blocker_statement: text(row, 5).map(str::to_string),
        blocker_state: Some(state),
        blocker_transaction_s: number(row, 6),
    })
}

/// The account that the server accepted us as, quoted for GRANT.
fn who(server: &mut Mysql, access: &Access) -> String {
    let rows = server.rows("SELECT CURRENT_USER()").unwrap_or_default();
    let account = rows.first().and_then(|row| text(row, 0)?.rsplit_once('@').map(|(u, h)| format!("'{u}'@'{h}'")));
    account.unwrap_or_else(|| format!("'{}'", access.user))
}

fn session(row: &ResultRow) -> Option<Session> {
    let (command, doing) = (text(row, 1)?, text(row, 2).unwrap_or_default());
    let transaction = text(row, 6);
    let state = match command {
        "Sleep" if transaction.is_some() => SessionState::IdleInTransaction,
        "Sleep" => SessionState::Idle,
        // Threads of the server itself, not clients.
        "Daemon" | "Binlog Dump" | "Binlog Dump GTID" | "Slave_IO" | "Slave_SQL" | "Slave_worker" => return None,
        "Query" | "Execute" | "Fetch" | "Prepare" | "Init DB" => {
            // Metadata locks, table locks, and GET_LOCK().
            let no_row = doing.starts_with("Waiting for") && doing.ends_with("lock") || doing == "User lock";
            let waits = transaction == Some("LOCK WAIT") || no_row;
            if waits { SessionState::LockWait } else { SessionState::Active }
        }
        _ => SessionState::Other,
    };
    Some(Session {
        id: number(row, 0)?,
        state,
        statement: text(row, 3).map(str::to_string),
        running_s: number::<f64>(row, 4).unwrap_or(0.0),
        // Most plans set the count only at their end; 0 means "unknown" until then.
        rows_read: number(row, 5).filter(|n| *n > 0),
    })
}

impl Views for MysqlViews {
    fn constants(&self) -> &Constants {
        &self.constants
    }

    fn sample(&mut self) -> Result<Sample, Failure> {
        let (seconds, rows) = if self.is_mariadb { ("p.TIME_MS / 1e3", "p.EXAMINED_ROWS") } else { ("p.TIME", "NULL") };
        let (state, join) = if self.sees_all {
            ("MAX(t.trx_state)", "LEFT JOIN information_schema.INNODB_TRX t ON t.trx_mysql_thread_id = p.ID")
        } else {
            ("NULL", "")
        };
        let answer = self.server.rows(&format!(
            "SELECT p.ID, p.COMMAND, p.STATE, LEFT(p.INFO, 2000), {seconds}, {rows}, {state} FROM information_schema.PROCESSLIST p \
             {join} WHERE p.ID <> CONNECTION_ID() GROUP BY p.ID"
        ))?;
        let sessions: Vec<Session> = answer.iter().filter_map(session).collect();
        let open = self.server.rows("SHOW GLOBAL STATUS LIKE 'Threads_connected'")?;
        let waits = sessions.iter().any(|s| s.state == SessionState::LockWait);
        let lock_waits = match waits.then(|| self.lock_waits()) {
            Some(Err(ended @ Failure::Ended { .. })) => return Err(ended),
            // `open` has already reported what may not be read, with the missing grant.
            Some(Err(Failure::Query { .. })) | None => Vec::new(),
            Some(Ok(waits)) => waits,
        };
        Ok(Sample { sessions, connections: open.first().and_then(|row| number(row, 1)), lock_waits })
    }

    fn totals(&mut self) -> Result<Totals, Failure> {
        let rows = self.server.rows(&format!("SHOW GLOBAL STATUS WHERE Variable_name IN ({COUNTERS})"))?;
        let counters = rows.iter().filter_map(|row| Some((text(row, 0)?.to_string(), number(row, 1)?))).collect();
        Ok(Totals { counters, tables: BTreeMap::new() })
    }
}
