//! The samples between two looks, with the counters at the beginning.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use lastdrop_model::{DatabaseSample, DatabaseService, LockWait, SessionState, StatementSample, TableScan};

use crate::fold::folded;
use crate::views::{Sample, Totals};

/// Most entries of each list in a look.
const MOST: usize = 20;
/// Most different statements in a window. A site with more of them generates its statements.
const MOST_STATEMENTS: usize = 1000;

#[derive(Debug, Default)]
struct StatementTotals {
    sessions: u64,
    seconds: f64,
    waiting: f64,
    longest_s: f64,
    rows_read: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Window {
    service: DatabaseService,
    began: Instant,
    at_first: Totals,
    last_sample: Instant,
    samples: u32,
    answer: Duration,
    connections: Option<u64>,
    states: BTreeMap<SessionState, u64>,
    active: u64,
    waiting: u64,
    waits: BTreeMap<(u64, Option<u64>), LockWait>,
    statements: HashMap<String, StatementTotals>,
    /// The last statement that each session was seen running: an idle blocker may not show it.
    ran: HashMap<u64, String>,
}

impl Window {
    pub fn new(service: DatabaseService, at_first: Totals) -> Window {
        let now = Instant::now();
        Window {
            service,
            began: now,
            at_first,
            last_sample: now,
            samples: 0,
            answer: Duration::ZERO,
            connections: None,
            states: BTreeMap::new(),
            active: 0,
            waiting: 0,
            waits: BTreeMap::new(),
            statements: HashMap::new(),
            ran: HashMap::new(),
        }
    }

    /// The next window, which begins where this one ends.
    pub fn next(self, totals: Totals) -> Window {
        Window { ran: self.ran, last_sample: self.last_sample, ..Window::new(self.service, totals) }
    }

    pub fn add(&mut self, sample: Sample, took: Duration) {
        let now = Instant::now();
        // A running statement counts for the time since the last sample.
        let span = now.duration_since(self.last_sample).as_secs_f64();
        self.last_sample = now;
        self.samples += 1;
        self.answer = self.answer.max(took);
        self.connections = self.connections.max(sample.connections);
        self.states.clear();
        let mut at_once: HashMap<String, u64> = HashMap::new();
        self.ran.retain(|id, _| sample.sessions.iter().any(|s| s.id == *id));
        for session in sample.sessions {
            *self.states.entry(session.state).or_default() += 1;
            self.active += u64::from(session.state.is_at_work());
            let waits = session.state == SessionState::LockWait;
            self.waiting += u64::from(waits);
            let Some(statement) = session.statement else { continue };
            let statement = folded(&statement, self.service);
            if session.state.is_at_work() {
                if self.statements.len() < MOST_STATEMENTS || self.statements.contains_key(&statement) {
                    let seen = self.statements.entry(statement.clone()).or_default();
                    seen.seconds += span;
                    seen.waiting += if waits { span } else { 0.0 };
                    seen.longest_s = seen.longest_s.max(session.running_s);
                    seen.rows_read = seen.rows_read.max(session.rows_read);
                    let sessions = at_once.entry(statement.clone()).or_default();
                    *sessions += 1;
                    seen.sessions = seen.sessions.max(*sessions);
                }
                self.ran.insert(session.id, statement);
            }
        }
        for mut wait in sample.lock_waits {
            let fold = |text: Option<String>| text.map(|t| folded(&t, self.service));
            wait.statement = fold(wait.statement);
            let last = || wait.blocker.and_then(|id| self.ran.get(&id).cloned());
            wait.blocker_statement = fold(wait.blocker_statement.take()).or_else(last);
            self.waits.insert((wait.waiter, wait.blocker), wait);
        }
    }

    /// Summarises the window.
    pub fn look(&self, totals: &Totals) -> DatabaseSample {
        let mean = |sum: u64| (self.samples > 0).then(|| sum as f64 / f64::from(self.samples));
        let all: f64 = self.statements.values().map(|s| s.seconds).sum();
        let share = |of: f64, all: f64| if all > 0.0 { of / all } else { 0.0 };
        let mut statements: Vec<StatementSample> = self
            .statements
            .iter()
            .map(|(statement, seen)| StatementSample {
                statement: statement.clone(),
                sessions: seen.sessions,
                seconds: seen.seconds,
                share: share(seen.seconds, all),
                lock_share: share(seen.waiting, seen.seconds),
                longest_s: seen.longest_s,
                rows_read: seen.rows_read,
            })
            .collect();
        statements.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then(a.statement.cmp(&b.statement)));
        statements.truncate(MOST);
        let mut lock_waits: Vec<LockWait> = self.waits.values().cloned().collect();
        lock_waits.sort_by(|a, b| b.waited_s.unwrap_or(0.0).total_cmp(&a.waited_s.unwrap_or(0.0)));
        lock_waits.truncate(MOST);
        DatabaseSample {
            span_s: self.began.elapsed().as_secs_f64(),
            samples: self.samples,
            answer_us: (self.samples > 0).then_some(self.answer.as_micros() as u64),
            connections: self.connections,
            states: self.states.clone(),
            active_mean: mean(self.active),
            lock_wait_mean: mean(self.waiting),
            lock_waits,
            statements,
            table_scans: table_scans(&self.at_first, totals),
            counters: differences(&self.at_first, totals),
            ..DatabaseSample::default()
        }
    }
}

/// Returns the increase of each counter. A counter that decreased was reset and is left out.
fn differences(before: &Totals, after: &Totals) -> BTreeMap<String, u64> {
    let of = |(name, n): (&String, &u64)| Some((name.clone(), n.checked_sub(*before.counters.get(name)?)?));
    after.counters.iter().filter_map(of).collect()
}

fn table_scans(before: &Totals, after: &Totals) -> Vec<TableScan> {
    let of = |(table, now): (&String, &[u64; 3])| {
        let then = before.tables.get(table).copied().unwrap_or_default();
        let since = |i: usize| now[i].checked_sub(then[i]);
        let scan = TableScan { table: table.clone(), scans: since(0)?, rows: since(1)?, index_scans: since(2)? };
        (scan.scans > 0 || scan.rows > 0).then_some(scan)
    };
    let mut scans: Vec<TableScan> = after.tables.iter().filter_map(of).collect();
    scans.sort_by_key(|scan| std::cmp::Reverse(scan.rows));
    scans.truncate(MOST);
    scans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::Session;

    #[test]
    fn samples_become_time_of_folded_statements_and_waits_with_their_blockers() {
        let totals = |n: u64| Totals {
            counters: BTreeMap::from([("Questions".to_string(), n)]),
            tables: BTreeMap::from([("t".to_string(), [n, 100 * n, 0])]),
        };
        let mut window = Window::new(DatabaseService::Mysql, totals(5));
        let session = |id, state, statement: &str| Session {
            id,
            state,
            statement: Some(statement.into()),
            running_s: 1.5,
            rows_read: Some(10 * id),
        };
        let wait = LockWait {
            waiter: 2,
            blocker: Some(1),
            statement: Some("UPDATE t SET a = 1".into()),
            ..LockWait::default()
        };
        let first =
            vec![session(1, SessionState::Active, "SELECT 'x'"), session(2, SessionState::Active, "SELECT 'y'")];
        window.add(Sample { sessions: first, connections: Some(4), ..Sample::default() }, Duration::from_millis(3));
        let second = vec![
            Session { statement: None, ..session(1, SessionState::IdleInTransaction, "") },
            session(2, SessionState::LockWait, "UPDATE t SET a = 1"),
        ];
        window.add(Sample { sessions: second, connections: Some(3), lock_waits: vec![wait] }, Duration::from_millis(1));
        let look = window.look(&totals(12));
        assert_eq!((look.samples, look.connections, look.answer_us), (2, Some(4), Some(3000)));
        assert_eq!((look.active_mean, look.lock_wait_mean), (Some(1.5), Some(0.5)));
        assert_eq!(look.states, BTreeMap::from([(SessionState::LockWait, 1), (SessionState::IdleInTransaction, 1)]));
        let select = look.statements.iter().find(|s| s.statement == "SELECT ?").expect("folded");
        assert_eq!((select.sessions, select.rows_read, select.lock_share), (2, Some(20), 0.0));
        let update = look.statements.iter().find(|s| s.statement == "UPDATE t SET a = ?").expect("folded");
        assert_eq!((update.lock_share, update.longest_s), (1.0, 1.5));
        assert!((look.statements.iter().map(|s| s.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(look.lock_waits[0].blocker_statement.as_deref(), Some("SELECT ?"));
        assert_eq!(look.counters["Questions"], 7);
        assert_eq!((look.table_scans[0].scans, look.table_scans[0].rows), (7, 700));
        let next = window.next(totals(12)).look(&totals(3));
        assert_eq!((next.samples, next.answer_us), (0, None));
        assert!(next.counters.is_empty() && next.table_scans.is_empty() && next.statements.is_empty(), "{next:?}");
    }
}
