//! The sample of a database, as text.

use std::fmt::Write as _;

use lastdrop_model::printable::line as one_line;
use lastdrop_model::units::show_us;
use lastdrop_model::{DatabaseSample, LockWait, SessionState};

use crate::table::aligned;

/// At most this many statements, waits and tables are listed.
const MOST: usize = 8;

/// Returns the database's name and its main numbers in one line. The flag says whether one of them is
/// alarming.
#[must_use]
pub fn database_summary(d: &DatabaseSample) -> (String, bool) {
    let name = one_line(d.server.as_deref().unwrap_or(&d.service));
    if let Some(trouble) = &d.trouble {
        return (format!("{name}: {}", one_line(&trouble.what)), true);
    }
    let dash = || "-".to_string();
    let count = |n: Option<u64>| n.map_or_else(dash, |n| n.to_string());
    let kept = d.reserved_connections.filter(|n| *n > 0).map_or_else(String::new, |n| format!(" ({n} kept)"));
    let mut text = format!("{name}: connections {} of {}{kept}", count(d.connections), count(d.max_connections));
    for (label, mean) in [("active", d.active_mean), ("waiting for a lock", d.lock_wait_mean)] {
        if let Some(mean) = mean {
            let _ = write!(text, "   {label} {mean:.1}");
        }
    }
    let at_rest = d.states.iter().filter(|(state, _)| !state.is_at_work());
    for (state, n) in at_rest {
        let _ = write!(text, "   {} {n}", state.in_words());
    }
    if let Some(refused) = d.refused_connections().filter(|n| *n > 0) {
        let _ = write!(text, "   refused {refused}");
    }
    let is_full = d.free_connections() == Some(0) || d.refused_connections().is_some_and(|n| n > 0);
    (text, is_full || !d.lock_waits.is_empty())
}

fn seconds(s: f64) -> String {
    show_us(s * 1e6)
}

fn wait_line(wait: &LockWait) -> String {
    let mut text = format!("{} waits", wait.waiter);
    if let Some(waited) = wait.waited_s {
        let _ = write!(text, " since {}", seconds(waited));
    }
    if let Some(on) = &wait.on {
        let _ = write!(text, " ({})", one_line(on));
    }
    if let Some(statement) = &wait.statement {
        let _ = write!(text, ": {}", one_line(statement));
    }
    let Some(blocker) = wait.blocker else { return text };
    let _ = write!(text, " <- {blocker}");
    if let Some(state) = wait.blocker_state {
        let _ = write!(text, ", {}", state.in_words());
        if let Some(open) = wait.blocker_transaction_s.filter(|_| state != SessionState::Idle) {
            let _ = write!(text, ", its transaction open for {}", seconds(open));
        }
    }
    if let Some(statement) = &wait.blocker_statement {
        let _ = write!(text, ": {}", one_line(statement));
    }
    text
}

/// Returns the summary of each database with its longest lock wait and heaviest statement, as far as a screen
/// has room.
#[must_use]
pub fn database_lines(databases: &[DatabaseSample]) -> Vec<(String, bool)> {
    let lines = |d: &DatabaseSample| {
        let wait = d.lock_waits.first().map(|wait| (format!("  lock: {}", wait_line(wait)), true));
        let of_time = |s: &lastdrop_model::StatementSample| {
            format!("  {:.0} % of its time: {}", s.share * 100.0, one_line(&s.statement))
        };
        let statement = d.statements.first().map(|s| (of_time(s), false));
        [Some(database_summary(d)), wait, statement].into_iter().flatten().collect::<Vec<_>>()
    };
    databases.iter().flat_map(lines).collect()
}

/// Renders one sample as text.
#[must_use]
pub fn database_text(d: &DatabaseSample) -> String {
    let mut out = format!("database {}   {}", one_line(&d.at), one_line(&d.software)).trim_end().to_string() + "\n";
    let _ = writeln!(out, "{}", database_summary(d).0);
    for wait in d.lock_waits.iter().take(MOST) {
        let _ = writeln!(out, "lock: {}", wait_line(wait));
    }
    if !d.statements.is_empty() {
        let percent = |part: f64| format!("{:.0}", part * 100.0);
        let row = |s: &lastdrop_model::StatementSample| {
            vec![
                percent(s.share),
                format!("{:.1}", s.seconds),
                s.sessions.to_string(),
                format!("{:.1}", s.longest_s),
                percent(s.lock_share),
                s.rows_read.map_or_else(|| "-".into(), |n| n.to_string()),
                s.statement.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = d.statements.iter().take(MOST).map(row).collect();
        out.push_str(&aligned(
            &["% of time", "s", "at once", "longest s", "% locked", "rows read", "statement"],
            &rows,
        ));
    }
    for scan in d.table_scans.iter().take(MOST) {
        let (table, rows, n, by_index) = (one_line(&scan.table), scan.rows, scan.scans, scan.index_scans);
        let _ = writeln!(out, "whole table: {table}: {rows} rows in {n} scans; {by_index} look-ups by index");
    }
    let moved: Vec<String> =
        d.counters.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{} {n}", one_line(name))).collect();
    if !moved.is_empty() {
        let _ = writeln!(out, "counted in {}: {}", seconds(d.span_s), moved.join("  "));
    }
    for what in &d.unread {
        let _ = writeln!(out, "not read: {}", one_line(what));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lastdrop_model::{DatabaseTrouble, StatementSample, TableScan, TroubleKind};

    use super::*;

    #[test]
    fn a_database_is_told_in_lines_that_nobody_else_steers() {
        let evil = "\x1b]0;x\x07\nforged";
        let look = DatabaseSample {
            server: Some("db".into()),
            at: format!("mysql://u@h:1/{evil}"),
            connections: Some(7),
            max_connections: Some(7),
            states: BTreeMap::from([(SessionState::Idle, 3), (SessionState::LockWait, 1)]),
            active_mean: Some(1.5),
            lock_waits: vec![LockWait {
                waiter: 9,
                waited_s: Some(1.25),
                on: Some(evil.into()),
                statement: Some(evil.into()),
                blocker: Some(4),
                blocker_state: Some(SessionState::IdleInTransaction),
                blocker_transaction_s: Some(70.0),
                blocker_statement: Some("UPDATE t SET a = ?".into()),
            }],
            statements: vec![StatementSample { statement: evil.into(), share: 1.0, ..StatementSample::default() }],
            table_scans: vec![TableScan { table: evil.into(), scans: 2, rows: 1000, index_scans: 0 }],
            counters: BTreeMap::from([("Questions".into(), 5), ("Slow_queries".into(), 0)]),
            unread: vec![evil.into()],
            ..DatabaseSample::default()
        };
        let text = database_text(&look);
        assert!(!text.contains('\x1b') && text.lines().all(|l| !l.starts_with("forged")), "{text}");
        for wanted in [
            "db: connections 7 of 7",
            "active 1.5",
            "idle 3",
            "9 waits",
            "<- 4, idle in a transaction",
            "1000 rows",
            "Questions 5",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(!text.contains("Slow_queries") && database_summary(&look).1);
        let trouble = Some(DatabaseTrouble { kind: TroubleKind::Silent, what: evil.into() });
        let (line, alarming) = database_summary(&DatabaseSample { trouble, ..DatabaseSample::default() });
        assert!(alarming && !line.contains('\n'), "{line}");
    }
}
