//! The process that makes a run, identified uniquely for all time. So a run in progress can be recognised,
//! and a stop signal reaches no other process.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rusqlite::{OptionalExtension, params};

use crate::{Store, StoreError};

/// Identifies a process of this machine. A process id alone is reused, and means another process in another
/// namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOwner {
    /// Contents of `/proc/sys/kernel/random/boot_id`.
    boot: String,
    /// Inode of its PID namespace.
    namespace: u64,
    pub pid: i32,
    /// Start time in clock ticks since boot.
    start_ticks: u64,
}

impl RunOwner {
    /// Returns this process; `None` if /proc cannot be read.
    #[must_use]
    pub fn own() -> Option<RunOwner> {
        RunOwner::of(std::process::id() as i32)
    }

    /// Returns a running process that is not a zombie.
    fn of(pid: i32) -> Option<RunOwner> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // A program's name may contain anything, so parse what follows its last parenthesis.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let start_ticks = fields.get(19)?.parse().ok().filter(|_| !matches!(fields[0], "Z" | "X"))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_string();
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        Some(RunOwner { boot, namespace, pid, start_ticks })
    }

    /// Returns whether this same process is still running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        RunOwner::of(self.pid).as_ref() == Some(self)
    }
}

impl Store {
    /// Stores that this process makes a run.
    pub(crate) fn keep_run_owner(&self, run: &str) -> Result<(), StoreError> {
        let Some(own) = RunOwner::own() else { return Ok(()) };
        self.connection().execute(
            "INSERT OR REPLACE INTO makers VALUES (?, ?, ?, ?, ?, 0)",
            params![run, own.boot, own.namespace as i64, own.pid, own.start_ticks as i64],
        )?;
        Ok(())
    }

    /// Returns the process that makes a run now. `None` if the run has ended, was killed, was abandoned for
    /// another run, or comes from an older version.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn run_owner(&self, run: &str) -> Result<Option<RunOwner>, StoreError> {
        let sql = "SELECT boot, namespace, pid, start_ticks FROM makers JOIN runs ON runs.id = makers.run
             WHERE run = ?1 AND document IS NULL AND makers.rowid = (SELECT max(other.rowid) FROM makers AS other
             WHERE (other.boot, other.namespace, other.pid, other.start_ticks)
                 = (makers.boot, makers.namespace, makers.pid, makers.start_ticks))";
        let maker = self
            .connection()
            .query_row(sql, [run], |r| {
                Ok(RunOwner {
                    boot: r.get(0)?,
                    namespace: r.get::<_, i64>(1)? as u64,
                    pid: r.get(2)?,
                    start_ticks: r.get::<_, i64>(3)? as u64,
                })
            })
            .optional()?;
        Ok(maker.filter(RunOwner::is_alive))
    }

    /// Records that a run was asked to stop; returns false if it was asked before. A second signal would end
    /// the process without a report.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn ask_to_stop(&self, run: &str) -> Result<bool, StoreError> {
        let changed = self
            .connection()
            .execute("UPDATE makers SET asked_to_stop = 1 WHERE run = ? AND asked_to_stop = 0", [run])?;
        Ok(changed == 1)
    }

    /// Returns whether the run was asked to stop.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn was_asked_to_stop(&self, run: &str) -> Result<bool, StoreError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM makers WHERE run = ? AND asked_to_stop)";
        Ok(self.connection().query_row(sql, [run], |r| r.get(0))?)
    }

    /// Returns the run that a process makes now.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn run_of(&self, pid: u32) -> Result<Option<String>, StoreError> {
        let sql = "SELECT run FROM makers WHERE pid = ? ORDER BY rowid DESC LIMIT 1";
        let run: Option<String> = self.connection().query_row(sql, [pid], |r| r.get(0)).optional()?;
        Ok(match run {
            Some(run) if self.run_owner(&run)?.is_some() => Some(run),
            _ => None,
        })
    }

    /// Returns the runs in progress, latest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn under_way(&self) -> Result<Vec<String>, StoreError> {
        let runs: Vec<String> = {
            let connection = self.connection();
            let sql = "SELECT run FROM makers JOIN runs ON runs.id = makers.run WHERE document IS NULL ORDER BY makers.rowid DESC LIMIT 100";
            let mut statement = connection.prepare_cached(sql)?;
            statement.query_map([], |r| r.get(0))?.collect::<Result<_, _>>()?
        };
        let mut alive = Vec::new();
        for run in runs {
            if self.run_owner(&run)?.is_some() {
                alive.push(run);
            }
        }
        Ok(alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::plan;

    #[test]
    fn a_run_is_under_way_while_its_very_process_makes_it() {
        let dir = tempfile::tempdir().expect("temp dir");
        let store = Store::open(&dir.path().join("s")).expect("opens");
        let begin = |id: &str| store.begin(id, 1, "", &plan(), &serde_json::json!({})).expect("writes");
        begin("a");
        assert_eq!(store.run_owner("a").expect("read"), RunOwner::own());
        assert_eq!(store.run_of(std::process::id()).expect("read").as_deref(), Some("a"));
        // A process makes one run at a time, so an earlier run without an end has failed.
        begin("b");
        assert_eq!(store.run_owner("a").expect("read"), None);
        assert_eq!(store.under_way().expect("read"), ["b"]);
        assert!(store.ask_to_stop("b").expect("written") && !store.ask_to_stop("b").expect("written"));
        assert!(store.was_asked_to_stop("b").expect("read") && !store.was_asked_to_stop("a").expect("read"));
        // A reused process id, another boot, another namespace.
        for change in ["start_ticks = start_ticks - 1", "boot = 'before'", "namespace = 7", "pid = 0"] {
            begin(change);
            let sql = format!("UPDATE makers SET {change} WHERE run = ?");
            store.connection().execute(&sql, [change]).expect("changed");
            assert_eq!(store.run_owner(change).expect("read"), None, "{change}");
        }
        store.finish(&store.load("b").expect("killed so far")).expect("written");
        assert_eq!((store.run_owner("b").expect("read"), store.run_owner("none").expect("read")), (None, None));
    }
}
