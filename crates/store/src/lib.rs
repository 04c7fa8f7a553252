//! Keeps runs on disk, in one SQLite file that anyone can read.
//!
//! A run is written as it happens: its plan when it begins, every second as it passes, its document when it ends.
//! After a kill the seconds are there, and [`Store::load`] makes the run from them in the same way as from a run that
//! ended by itself. The write-ahead log makes each second one atomic transaction that readers do not wait for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lastdrop_model::documents::NoiseFloor;
use lastdrop_model::run::{End, RunBuilder, Second};
use lastdrop_model::{Counts, Generator, Histogram, Kind, Look, Observed, Plan, Run, Slice, Validity};
use rusqlite::{Connection, OptionalExtension, params};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the store of runs {} cannot be opened: {source}; choose another with --store FILE or LASTDROP_STORE, or go \
         without it: --no-store", path.display()
    )]
    Open { path: PathBuf, source: rusqlite::Error },
    #[error(
        "the store of runs {} cannot be made: {source}; choose another with --store FILE or LASTDROP_STORE, or go \
         without it: --no-store", path.display()
    )]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("the store of runs: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("no run '{0}' in the store; `lastdrop history` lists them")]
    NotFound(String),
    #[error("'{0}' could be more than one run; write more of its id")]
    Ambiguous(String),
    #[error("run {id} is damaged in the store: {what}")]
    Damaged { id: String, what: String },
}

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY,
    started_unix_ms INTEGER NOT NULL,
    label TEXT NOT NULL,
    url TEXT NOT NULL,
    plan TEXT NOT NULL,
    environment TEXT NOT NULL,
    document TEXT              -- lastdrop.run/1, once the run has ended
);
CREATE TABLE IF NOT EXISTS seconds (
    run TEXT NOT NULL REFERENCES runs(id),
    phase INTEGER NOT NULL,
    second INTEGER NOT NULL,
    counts TEXT NOT NULL,      -- JSON
    status TEXT NOT NULL,      -- JSON: [[status, answers], …]
    response BLOB, service BLOB, blocked BLOB, lateness BLOB, connect BLOB, tls BLOB, first_byte BLOB, page BLOB, -- HDR V2
    PRIMARY KEY (run, phase, second)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS phase_ends (
    run TEXT NOT NULL REFERENCES runs(id),
    phase INTEGER NOT NULL,
    duration_us INTEGER NOT NULL,
    peak INTEGER NOT NULL,
    PRIMARY KEY (run, phase)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS looks (
    run TEXT NOT NULL REFERENCES runs(id),
    t_ms INTEGER NOT NULL,     -- since the run began
    document TEXT NOT NULL,    -- JSON: the server and its machine at that moment
    PRIMARY KEY (run, t_ms)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS noise (
    measured_unix_ms INTEGER NOT NULL,
    url TEXT NOT NULL,
    document TEXT NOT NULL     -- JSON: what the noise of this machine does to each metric
);
";

/// A line of the history.
#[derive(Debug, Clone)]
pub struct Entry {
    pub id: String,
    pub started_unix_ms: u64,
    pub label: String,
    pub url: String,
    /// None for a run that was killed, or is still running.
    pub run: Option<Run>,
}

#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

impl Store {
    /// Opens the store, making it and its folder where there is none.
    ///
    /// # Errors
    /// When it cannot be made, read or written.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder)
                .map_err(|source| StoreError::Folder { path: path.to_path_buf(), source })?;
        }
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(path)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            // KiB. The default of 2 MB would make the generator grow while it runs, for pages it never reads again.
            connection.pragma_update(None, "cache_size", -256)?;
            connection.execute_batch(SCHEMA)?;
            // Stores of version 0.1 know no pages.
            if connection.prepare("SELECT page FROM seconds LIMIT 0").is_err() {
                connection.execute_batch("ALTER TABLE seconds ADD COLUMN page BLOB")?;
            }
            Ok(connection)
        };
        let connection = open().map_err(|source| StoreError::Open { path: path.to_path_buf(), source })?;
        Ok(Store { connection })
    }

    /// Writes down that a run begins.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn begin(
        &self,
        id: &str,
        started_unix_ms: u64,
        label: &str,
        plan: &Plan,
        environment: &serde_json::Value,
    ) -> Result<(), StoreError> {
        self.connection.execute(
            "INSERT INTO runs (id, started_unix_ms, label, url, plan, environment) VALUES (?, ?, ?, ?, ?, ?)",
            params![id, started_unix_ms as i64, label, plan.url.to_string(), json(plan), environment.to_string(),],
        )?;
        Ok(())
    }

    /// Writes one second.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn second(&self, id: &str, slice: &Slice) -> Result<(), StoreError> {
        let status: Vec<(usize, u64)> = slice.status.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        let hdr = |kind: Kind| -> Option<Vec<u8>> {
            let h = &slice.latencies[kind as usize];
            (h.count() > 0).then(|| h.encode())
        };
        self.connection
            .prepare_cached(
                "INSERT OR REPLACE INTO seconds (run, phase, second, counts, status, response, service, blocked, lateness, connect,
                 tls, first_byte, page) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
            id,
            slice.phase,
            slice.second,
            json(&slice.counts),
            json(&status),
            hdr(Kind::Response),
            hdr(Kind::Service),
            hdr(Kind::Blocked),
            hdr(Kind::Lateness),
            hdr(Kind::Connect),
            hdr(Kind::Tls),
            hdr(Kind::FirstByte),
            hdr(Kind::Page),
        ])?;
        Ok(())
    }

    /// Writes a look at the server.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn look(&self, id: &str, look: &Look) -> Result<(), StoreError> {
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO looks (run, t_ms, document) VALUES (?, ?, ?)")?
            .execute(params![id, (look.t_s * 1e3) as i64, json(look)])?;
        Ok(())
    }

    fn looks(&self, id: &str) -> Result<Vec<Look>, StoreError> {
        let mut statement = self.connection.prepare("SELECT document FROM looks WHERE run = ? ORDER BY t_ms")?;
        let rows = statement.query_map([id], |r| r.get::<_, String>(0))?;
        let mut looks = Vec::new();
        for row in rows {
            let look = serde_json::from_str(&row?);
            looks.push(look.map_err(|e| StoreError::Damaged { id: id.to_string(), what: e.to_string() })?);
        }
        Ok(looks)
    }

    /// Writes how long a phase lasted.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn phase_end(&self, id: &str, phase: usize, duration_us: u64, peak: u64) -> Result<(), StoreError> {
        self.connection.execute(
            "INSERT OR REPLACE INTO phase_ends VALUES (?, ?, ?, ?)",
            params![id, phase as i64, duration_us as i64, peak as i64],
        )?;
        Ok(())
    }

    /// Writes the document of a run that has ended. The run is as it was afterwards.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn finish(&self, run: &mut Run) -> Result<(), StoreError> {
        // The seconds are in a table of their own already; a long run has many.
        let seconds: Vec<Vec<Second>> = run.phases.iter_mut().map(|p| std::mem::take(&mut p.seconds)).collect();
        let looks = run.server.as_mut().map(|s| std::mem::take(&mut s.looks));
        let written = self.connection.execute("UPDATE runs SET document = ? WHERE id = ?", params![json(run), run.id]);
        if let (Some(server), Some(looks)) = (&mut run.server, looks) {
            server.looks = looks;
        }
        for (phase, seconds) in run.phases.iter_mut().zip(seconds) {
            phase.seconds = seconds;
        }
        written?;
        Ok(())
    }

    /// Keeps what the noise of this machine was found to be.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn keep_noise(&self, noise: &NoiseFloor) -> Result<(), StoreError> {
        self.connection.execute(
            "INSERT INTO noise (measured_unix_ms, url, document) VALUES (?, ?, ?)",
            params![noise.measured_unix_ms.unwrap_or(0) as i64, noise.url, json(noise)],
        )?;
        Ok(())
    }

    /// The noise that was found last: with this URL where there is one, else with any.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn noise(&self, url: &str) -> Result<Option<NoiseFloor>, StoreError> {
        let document: Option<String> = self
            .connection
            .query_row("SELECT document FROM noise ORDER BY url = ? DESC, measured_unix_ms DESC LIMIT 1", [url], |r| {
                r.get(0)
            })
            .optional()?;
        Ok(document.and_then(|d| serde_json::from_str(&d).ok()))
    }

    /// The latest runs, newest first.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn history(&self, limit: usize) -> Result<Vec<Entry>, StoreError> {
        let mut statement = self.connection.prepare(
            "SELECT id, started_unix_ms, label, url, document FROM runs ORDER BY started_unix_ms DESC, rowid DESC LIMIT ?",
        )?;
        let rows = statement.query_map([limit as i64], |row| {
            let document: Option<String> = row.get(4)?;
            Ok(Entry {
                id: row.get(0)?,
                started_unix_ms: row.get::<_, i64>(1)? as u64,
                label: row.get(2)?,
                url: row.get(3)?,
                run: document.and_then(|d| serde_json::from_str(&d).ok()),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// The whole id of the run that `text` names: an id, the beginning of one, or `last`.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn find(&self, text: &str) -> Result<String, StoreError> {
        if text == "last" {
            let id = self
                .connection
                .query_row("SELECT id FROM runs ORDER BY started_unix_ms DESC, rowid DESC LIMIT 1", [], |r| r.get(0))
                .optional()?;
            return id.ok_or_else(|| StoreError::NotFound(text.to_string()));
        }
        let mut statement =
            self.connection.prepare("SELECT id FROM runs WHERE substr(id, 1, length(?1)) = ?1 LIMIT 2")?;
        let ids: Vec<String> = statement.query_map([text], |r| r.get(0))?.collect::<Result<_, _>>()?;
        match ids.as_slice() {
            [] => Err(StoreError::NotFound(text.to_string())),
            [id] => Ok(id.clone()),
            _ if ids.iter().any(|i| i == text) => Ok(text.to_string()),
            _ => Err(StoreError::Ambiguous(text.to_string())),
        }
    }

    /// A run by its whole id. One that was killed is made from its seconds.
    ///
    /// # Errors
    /// When it is not there or damaged.
    pub fn load(&self, id: &str) -> Result<Run, StoreError> {
        let damaged = |what: String| StoreError::Damaged { id: id.to_string(), what };
        let (started, label, plan, environment, document): (i64, String, String, String, Option<String>) = self
            .connection
            .query_row("SELECT started_unix_ms, label, plan, environment, document FROM runs WHERE id = ?", [id], |r| {
                Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?))
            })
            .optional()?
            .ok_or_else(|| StoreError::NotFound(id.to_string()))?;
        if let Some(document) = document {
            let mut run: Run = serde_json::from_str(&document).map_err(|e| damaged(e.to_string()))?;
            // Documents of version 0.1 have their seconds in them.
            if run.phases.iter().all(|p| p.seconds.is_empty()) {
                self.each_second(id, |slice| {
                    if let Some(phase) = run.phases.get_mut(usize::from(slice.phase)) {
                        phase.seconds.push(Second::of(slice));
                    }
                })?;
            }
            if let Some(server) = &mut run.server {
                server.looks = self.looks(id)?;
            }
            return Ok(run);
        }
        let plan: Plan = serde_json::from_str(&plan).map_err(|e| damaged(e.to_string()))?;
        let seed = plan.seed;
        let mut builder = RunBuilder::new(plan.clone());
        self.each_second(id, |slice| builder.add(slice))?;
        let mut ends = self.connection.prepare("SELECT phase, duration_us, peak FROM phase_ends WHERE run = ?")?;
        let rows = ends.query_map([id], |r| Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?, r.get::<_, i64>(2)?)))?;
        for row in rows {
            let (phase, duration_us, peak) = row?;
            builder.end_phase(phase as usize, duration_us as u64, peak as u64);
        }
        Ok(Run {
            schema: lastdrop_model::run::RUN_SCHEMA.into(),
            id: id.to_string(),
            seed,
            started_unix_ms: started as u64,
            label,
            end: End::Killed,
            environment: serde_json::from_str(&environment).unwrap_or_default(),
            phases: builder.into_reports(),
            generator: Generator { threads: plan.threads, ..Generator::default() },
            plan,
            pool: None,
            server: Some(self.looks(id)?)
                .filter(|looks| !looks.is_empty())
                .map(|looks| Observed { looks, ..Observed::default() }),
            validity: Validity::default(),
            objectives: Vec::new(),
        })
    }

    /// Shows all seconds of a run, in order, one at a time.
    fn each_second(&self, id: &str, mut show: impl FnMut(&Slice)) -> Result<(), StoreError> {
        let damaged = |what: String| StoreError::Damaged { id: id.to_string(), what };
        let mut statement = self.connection.prepare(
            "SELECT phase, second, counts, status, response, service, blocked, lateness, connect, tls, first_byte, page
             FROM seconds WHERE run = ? ORDER BY phase, second",
        )?;
        let mut rows = statement.query([id])?;
        while let Some(row) = rows.next()? {
            let mut slice = Slice::new(row.get(0)?, row.get(1)?);
            slice.counts =
                serde_json::from_str::<Counts>(&row.get::<_, String>(2)?).map_err(|e| damaged(e.to_string()))?;
            let status: Vec<(usize, u64)> =
                serde_json::from_str(&row.get::<_, String>(3)?).map_err(|e| damaged(e.to_string()))?;
            for (code, n) in status {
                if let Some(count) = slice.status.get_mut(code) {
                    *count = n;
                }
            }
            for kind in Kind::ALL {
                if let Some(bytes) = row.get::<_, Option<Vec<u8>>>(4 + kind as usize)? {
                    slice.latencies[kind as usize] = Histogram::decode(&bytes).map_err(|e| damaged(e.to_string()))?;
                }
            }
            show(&slice);
        }
        Ok(())
    }
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types have only string keys and finite numbers or null")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan::new("http://127.0.0.1/".parse().expect("valid"), 7)
    }

    fn second(n: u32) -> Slice {
        let mut s = Slice::new(0, n);
        s.counts = Counts { due: 10, sent: 10, answered: 9, ..Counts::default() };
        s.status[200] = 9;
        for i in 0..9 {
            s.record(Kind::Response, 100 + i);
        }
        s
    }

    #[test]
    fn a_killed_run_is_its_seconds() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("sub/runs.sqlite");
        let store = Store::open(&path).expect("opens");
        store.begin("abc1", 5, "", &plan(), &serde_json::json!({})).expect("writes");
        store.second("abc1", &second(0)).expect("writes");
        store.second("abc1", &second(1)).expect("writes");
        drop(store);
        let run = Store::open(&path).expect("opens again").load("abc1").expect("is there");
        assert_eq!(run.end, End::Killed);
        let p = run.measured().expect("one phase");
        assert_eq!((p.requests.sent, p.requests.answered, p.requests.censored), (20, 18, 2));
        assert_eq!(p.latency(Kind::Response, "count"), Some(18.0));
        assert_eq!((p.duration_s, p.seconds.len()), (2.0, 2));
    }

    #[test]
    fn runs_are_found_by_the_beginning_of_their_id() {
        let dir = tempfile::tempdir().expect("temp dir");
        let store = Store::open(&dir.path().join("s")).expect("opens");
        for id in ["aa1", "aa2", "b%c"] {
            store.begin(id, 1, "", &plan(), &serde_json::json!({})).expect("writes");
        }
        assert_eq!(store.find("b").expect("one"), "b%c");
        assert!(matches!(store.find("aa"), Err(StoreError::Ambiguous(_))));
        assert!(matches!(store.find("%"), Err(StoreError::NotFound(_))));
        assert_eq!(store.find("last").expect("one"), "b%c");
    }

    #[test]
    fn a_file_that_is_no_store_is_an_error_that_says_so() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("s");
        std::fs::write(&path, "not a database, but long enough to look at ".repeat(100)).expect("writes");
        let message = Store::open(&path).expect_err("no database").to_string();
        assert!(message.contains("--no-store"), "{message}");
    }
}
