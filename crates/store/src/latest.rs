//! The stored part of a run in progress, and what was added since the last read.

use lastdrop_model::{Counts, Histogram, KeptPlan, Sample};
use rusqlite::{OptionalExtension, params};

use crate::timelines::{RESPONSE, read_histogram, read_json, read_look};
use crate::{Store, StoreError};

/// One second of a run.
#[derive(Debug, Clone)]
pub struct LatestSecond {
    /// Increases with each second that is stored.
    pub key: i64,
    pub phase: u16,
    /// Counted from the start of the phase.
    pub second: u32,
    pub counts: Counts,
    pub response: Histogram,
}

/// One sample of the server during a run.
#[derive(Debug, Clone)]
pub struct LatestSample {
    /// Increases with each sample that is stored.
    pub key: i64,
    pub look: Sample,
}

/// What is known of a run before it ends.
#[derive(Debug, Clone)]
pub struct Progress {
    pub started_unix_ms: u64,
    pub label: String,
    /// The plan, without its requests.
    pub plan: KeptPlan,
    /// Lengths of the phases that have ended, microseconds.
    pub ended_us: Vec<u64>,
}

/// Seconds that are read at once.
const PAGE: usize = 500;

impl Store {
    /// Returns the seconds of a run that were stored after this key, oldest first, at most some hundred.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn seconds_after(&self, id: &str, key: i64) -> Result<Vec<LatestSecond>, StoreError> {
        let connection = self.connection();
        // Search by rowid: new rows are at the end of the table, whatever else it holds.
        let mut statement = connection.prepare_cached(&format!(
            "SELECT rowid, phase, second, counts, {RESPONSE} FROM seconds WHERE rowid > ? AND +run = ? ORDER BY rowid LIMIT {PAGE}"
        ))?;
        let mut rows = statement.query(params![key, id])?;
        let mut seconds = Vec::new();
        while let Some(row) = rows.next()? {
            let response = row.get::<_, Option<Vec<u8>>>(4)?.map(|bytes| read_histogram(id, &bytes)).transpose()?;
            seconds.push(LatestSecond {
                key: row.get(0)?,
                phase: row.get(1)?,
                second: row.get(2)?,
                counts: read_json(id, &row.get::<_, String>(3)?)?,
                response: response.unwrap_or_default(),
            });
        }
        Ok(seconds)
    }

    /// Returns the samples of a run that were stored after this key, oldest first, at most some hundred.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn looks_after(&self, id: &str, key: i64) -> Result<Vec<LatestSample>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(&format!(
            "SELECT rowid, document FROM looks WHERE rowid > ? AND +run = ? ORDER BY rowid LIMIT {PAGE}"
        ))?;
        let mut rows = statement.query(params![key, id])?;
        let mut looks = Vec::new();
        while let Some(row) = rows.next()? {
            looks.push(LatestSample { key: row.get(0)?, look: read_look(id, row.get_ref(1)?)? });
        }
        Ok(looks)
    }

    /// Returns the key after which the latest seconds of a run follow, at most `most` of them.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn key_before_latest(&self, id: &str, most: usize) -> Result<i64, StoreError> {
        self.before_latest("seconds", id, most)
    }

    /// Returns the key after which the latest samples of a run follow, at most `most` of them.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn look_key_before_latest(&self, id: &str, most: usize) -> Result<i64, StoreError> {
        self.before_latest("looks", id, most)
    }

    fn before_latest(&self, table: &str, id: &str, most: usize) -> Result<i64, StoreError> {
        let sql = format!(
            "SELECT ifnull(min(rowid) - 1, 0) FROM
             (SELECT rowid FROM {table} WHERE run = ?1 ORDER BY rowid DESC LIMIT ?2)"
        );
        Ok(self.connection().query_row(&sql, params![id, most as i64], |r| r.get(0))?)
    }

    /// Returns the number of requests that were answered, and that failed or timed out, in a run up to a key.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn ends_until(&self, id: &str, key: i64) -> Result<(u64, u64), StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached("SELECT counts FROM seconds WHERE run = ? AND rowid <= ?")?;
        let mut rows = statement.query(params![id, key])?;
        let (mut answered, mut failed) = (0, 0);
        while let Some(row) = rows.next()? {
            let counts: Counts = read_json(id, &row.get::<_, String>(0)?)?;
            answered += counts.answered;
            failed += counts.failed.total() + counts.timed_out;
        }
        Ok((answered, failed))
    }

    /// Returns what is known of a run that has begun.
    ///
    /// # Errors
    /// If it does not exist or is damaged.
    pub fn progress(&self, id: &str) -> Result<Progress, StoreError> {
        let (started, label, plan): (i64, String, String) = self
            .connection()
            .query_row("SELECT started_unix_ms, label, plan FROM runs WHERE id = ?", [id], |r| {
                Ok((r.get(0)?, r.get(1)?, r.get(2)?))
            })
            .optional()?
            .ok_or_else(|| StoreError::NotFound(id.to_string()))?;
        let ended_us = self.phase_ends(id)?.into_iter().map(|(_, duration_us, _)| duration_us).collect();
        Ok(Progress { started_unix_ms: started as u64, label, plan: read_json(id, &plan)?, ended_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{plan, second};

    #[test]
    fn what_is_new_is_told_once_and_of_this_run_alone() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("s");
        let store = Store::open(&path).expect("opens");
        for id in ["a", "b"] {
            store.begin(id, 1, "", &plan(), &serde_json::json!({})).expect("writes");
        }
        assert_eq!(store.key_before_latest("a", 5).expect("reads"), 0);
        store.second("b", &second(0)).expect("writes");
        store.second("a", &second(0)).expect("writes");
        store.second("b", &second(1)).expect("writes");
        let reader = Store::open(&path).expect("opens");
        let first = reader.key_before_latest("a", 5).expect("reads");
        let news = reader.seconds_after("a", first).expect("reads");
        assert_eq!(
            news.iter().map(|s| (s.second, s.counts.answered, s.response.count())).collect::<Vec<_>>(),
            [(0, 9, 9)]
        );
        assert!(reader.seconds_after("a", news[0].key).expect("reads").is_empty());
        store.second("a", &second(1)).expect("writes");
        store.phase_end("a", 0, 2_000_000, 3).expect("writes");
        assert_eq!(reader.seconds_after("a", news[0].key).expect("reads")[0].second, 1);
        let latest = reader.key_before_latest("a", 1).expect("reads");
        assert_eq!(reader.seconds_after("a", latest).expect("reads").len(), 1);
        assert_eq!(reader.ends_until("a", latest).expect("reads"), (9, 0));
        assert_eq!(reader.progress("a").expect("reads").ended_us, [2_000_000]);
    }

    #[test]
    fn looks_are_told_as_seconds_are() {
        let store = Store::scratch().expect("opens");
        assert_eq!(store.look_key_before_latest("a", 5).expect("reads"), 0);
        for (id, t_s) in [("a", 1.0), ("b", 1.0), ("a", 2.0), ("a", 3.0)] {
            store.look(id, &Sample { t_s, worker_count: 4, ..Sample::default() }).expect("writes");
        }
        let key = store.look_key_before_latest("a", 2).expect("reads");
        let news = store.looks_after("a", key).expect("reads");
        assert_eq!(news.iter().map(|l| l.look.t_s).collect::<Vec<_>>(), [2.0, 3.0]);
        assert!(store.looks_after("a", news[1].key).expect("reads").is_empty());
    }
}
