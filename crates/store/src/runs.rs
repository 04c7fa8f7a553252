//! Stores, lists, finds and loads runs.

use std::collections::VecDeque;

use lastdrop_model::request::RequestSpec;
use lastdrop_model::run::{ClassReport, End, Mark, PhaseReport, RunBuilder};
use lastdrop_model::timeline::Timeline;
use lastdrop_model::{Generator, KeptPlan, Run, ServerTimeline, Validity, secrets};
use rusqlite::{OptionalExtension, params};
use sha2::{Digest, Sha256};

use crate::timelines::{deflate, inflate, read_json};
use crate::{Store, StoreError, json};

/// A row of the history.
#[derive(Debug, Clone)]
pub struct HistoryEntry {
    pub id: String,
    pub started_unix_ms: u64,
    pub label: String,
    pub url: String,
    /// `None` for a run that was killed or is still running.
    pub run: Option<Run>,
}

impl Store {
    /// Stores the beginning of a run.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn begin(
        &self,
        id: &str,
        started_unix_ms: u64,
        label: &str,
        plan: &KeptPlan,
        environment: &serde_json::Value,
    ) -> Result<(), StoreError> {
        let list = json(&plan.requests);
        let hash: String = Sha256::digest(&list).iter().map(|b| format!("{b:02x}")).collect();
        let connection = self.connection();
        connection.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", params![hash, list])?;
        connection.execute(
            "INSERT INTO runs (id, started_unix_ms, label, url, plan, environment, requests) VALUES (?, ?, ?, ?, ?, ?, ?)",
            params![
                id,
                started_unix_ms as i64,
                label,
                plan.url.to_string(),
                json(&plan.without_requests()),
                environment.to_string(),
                hash
            ],
        )?;
        drop(connection);
        self.keep_run_owner(id)
    }

    /// Returns the id of the experiment that this store's runs belong to: the same for all clones of this
    /// store.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn experiment(&self) -> Result<String, StoreError> {
        if let Some(id) = self.experiment.get() {
            return Ok(id.clone());
        }
        let id = self.connection().query_row("SELECT lower(hex(randomblob(4)))", [], |r| r.get(0))?;
        Ok(self.experiment.get_or_init(|| id).clone())
    }

    /// Marks a run as part of this store's experiment.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_as_part(&self, id: &str) -> Result<(), StoreError> {
        let experiment = self.experiment()?;
        self.connection().execute("UPDATE runs SET experiment = ? WHERE id = ?", params![experiment, id])?;
        Ok(())
    }

    /// Returns the requests of a run if they are stored outside its plan.
    fn requests(&self, id: &str) -> Result<Option<Vec<RequestSpec>>, StoreError> {
        let damaged = |what: String| StoreError::Damaged { id: id.to_string(), what };
        let connection = self.connection();
        let hash: Option<String> =
            connection.query_row("SELECT requests FROM runs WHERE id = ?", [id], |r| r.get(0))?;
        let Some(hash) = hash else { return Ok(None) };
        let list: Option<String> =
            connection.query_row("SELECT list FROM requests WHERE hash = ?", [&hash], |r| r.get(0)).optional()?;
        let list = list.ok_or_else(|| damaged("its requests are not there".into()))?;
        lastdrop_model::read_json(&list).map(Some).map_err(|e| damaged(e.to_string()))
    }

    /// Stores the length of a phase.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn phase_end(&self, id: &str, phase: usize, duration_us: u64, peak: u64) -> Result<(), StoreError> {
        self.connection().execute(
            "INSERT OR REPLACE INTO phase_ends VALUES (?, ?, ?, ?)",
            params![id, phase as i64, duration_us as i64, peak as i64],
        )?;
        Ok(())
    }

    /// Stores the results of a phase so far, by class.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn classes(&self, id: &str, phase: usize, classes: &[ClassReport]) -> Result<(), StoreError> {
        self.connection().execute(
            "INSERT OR REPLACE INTO classes VALUES (?, ?, ?)",
            params![id, phase as i64, deflate(&json(&classes))],
        )?;
        Ok(())
    }

    /// Stores a mark.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn mark(&self, id: &str, mark: &Mark) -> Result<(), StoreError> {
        let t_ms = (mark.t_s * 1e3).round() as i64;
        self.connection().execute("INSERT INTO marks VALUES (?, ?, ?)", params![id, t_ms, mark.text])?;
        Ok(())
    }

    /// Returns the marks of a run in order.
    fn marks(&self, id: &str) -> Result<Vec<Mark>, StoreError> {
        let connection = self.connection();
        let mut marks = connection.prepare("SELECT t_ms, text FROM marks WHERE run = ? ORDER BY t_ms, rowid")?;
        let rows = marks.query_map([id], |r| Ok(Mark { t_s: r.get::<_, i64>(0)? as f64 / 1e3, text: r.get(1)? }))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Adds the last stored results by class to a run that did not end normally.
    fn put_classes(&self, id: &str, phases: &mut [PhaseReport]) -> Result<(), StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare("SELECT phase, document FROM classes WHERE run = ?")?;
        let mut rows = statement.query([id])?;
        while let Some(row) = rows.next()? {
            let document: Vec<u8> = row.get(1)?;
            if let Some(phase) = phases.get_mut(row.get::<_, u32>(0)? as usize) {
                phase.classes = read_json(id, &inflate(id, &document)?)?;
            }
        }
        Ok(())
    }

    /// Stores the document of a run that has ended.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn finish(&self, run: &Run) -> Result<(), StoreError> {
        let document = json(&run.without_lists());
        self.connection().execute("UPDATE runs SET document = ? WHERE id = ?", params![document, run.id])?;
        Ok(())
    }

    /// Returns the latest runs, newest first, without the requests of their plans, their seconds and samples.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn history(&self, limit: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare(
            "SELECT id, started_unix_ms, label, url, document FROM runs ORDER BY started_unix_ms DESC, rowid DESC LIMIT ?",
        )?;
        let rows = statement.query_map([limit as i64], |row| {
            let document: Option<String> = row.get(4)?;
            Ok(HistoryEntry {
                id: row.get(0)?,
                started_unix_ms: row.get::<_, i64>(1)? as u64,
                label: row.get(2)?,
                // An older version stored the URL with its secrets.
                url: secrets::url(&row.get::<_, String>(3)?).into_owned(),
                run: document.and_then(|d| lastdrop_model::read_json(&d).ok()),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the full id of the run that `text` names: an id, the beginning of one, or `last`.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn find(&self, text: &str) -> Result<String, StoreError> {
        if text == "last" {
            let id = self
                .connection()
                .query_row("SELECT id FROM runs ORDER BY started_unix_ms DESC, rowid DESC LIMIT 1", [], |r| r.get(0))
                .optional()?;
            return id.ok_or_else(|| StoreError::NotFound(text.to_string()));
        }
        let connection = self.connection();
        let mut statement = connection.prepare("SELECT id FROM runs WHERE substr(id, 1, length(?1)) = ?1 LIMIT 2")?;
        let ids: Vec<String> = statement.query_map([text], |r| r.get(0))?.collect::<Result<_, _>>()?;
        match ids.as_slice() {
            [] => Err(StoreError::NotFound(text.to_string())),
            [id] => Ok(id.clone()),
            _ if ids.iter().any(|i| i == text) => Ok(text.to_string()),
            _ => Err(StoreError::Ambiguous(text.to_string())),
        }
    }

    /// Loads a run by its full id. A killed run is rebuilt from its seconds.
    ///
    /// # Errors
    /// If it does not exist or is damaged.
    pub fn load(&self, id: &str) -> Result<Run, StoreError> {
        let (started, label, plan, environment, document): (i64, String, String, String, Option<String>) = self
            .connection()
            .query_row("SELECT started_unix_ms, label, plan, environment, document FROM runs WHERE id = ?", [id], |r| {
                Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?))
            })
            .optional()?
            .ok_or_else(|| StoreError::NotFound(id.to_string()))?;
        if let Some(document) = document {
            let mut run: Run = read_json(id, &document)?;
            // Documents of version 0.1 contain their seconds.
            if run.phases.iter().all(|p| p.seconds.is_empty()) {
                for (i, phase) in run.phases.iter_mut().enumerate() {
                    phase.seconds = Timeline::archived(self.seconds(id, i as u16));
                }
            }
            if let Some(server) = &mut run.server {
                server.samples = Timeline::archived(self.looks(id));
            }
            if let Some(requests) = self.requests(id)? {
                run.plan.put_requests(requests);
            }
            return Ok(run);
        }
        let mut plan: KeptPlan = read_json(id, &plan)?;
        if let Some(requests) = self.requests(id)? {
            plan.put_requests(requests);
        }
        let seed = plan.seed;
        let mut builder = RunBuilder::archived(&plan, |phase| self.seconds(id, phase));
        let mut ends = self.phase_ends(id)?;
        // Seconds come phase by phase, so the histograms of a finished phase can be freed.
        self.each_second(id, |slice| {
            let behind = ends.partition_point(|(phase, ..)| *phase < usize::from(slice.phase));
            ends.drain(..behind).for_each(|(phase, duration_us, peak)| builder.end_phase(phase, duration_us, peak));
            builder.add(slice);
        })?;
        ends.into_iter().for_each(|(phase, duration_us, peak)| builder.end_phase(phase, duration_us, peak));
        let mut phases = builder.into_reports();
        self.put_classes(id, &mut phases)?;
        Ok(Run {
            schema: lastdrop_model::run::RUN_SCHEMA.into(),
            id: id.to_string(),
            seed,
            started_unix_ms: started as u64,
            label,
            end: End::Killed,
            environment: lastdrop_model::read_json(&environment).unwrap_or_default(),
            phases,
            generator: Generator { threads: plan.threads, ..Generator::default() },
            plan,
            pool: None,
            server: Some(Timeline::archived(self.looks(id)))
                .filter(|looks| !looks.is_empty())
                .map(|samples| ServerTimeline { samples, ..ServerTimeline::default() }),
            validity: Validity::default(),
            replay: None,
            joined_log: None,
            anatomy: None,
            agents: Vec::new(),
            marks: self.marks(id)?,
            objectives: Vec::new(),
        })
    }

    /// Returns the phases that ended, in order: index, duration in microseconds, most connections.
    pub(crate) fn phase_ends(&self, id: &str) -> Result<VecDeque<(usize, u64, u64)>, StoreError> {
        let connection = self.connection();
        let mut ends =
            connection.prepare("SELECT phase, duration_us, peak FROM phase_ends WHERE run = ? ORDER BY phase")?;
        let number = |n: rusqlite::Result<i64>| n.map(|n| n as u64);
        let rows = ends.query_map([id], |r| Ok((number(r.get(0))? as usize, number(r.get(1))?, number(r.get(2))?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

#[cfg(test)]
mod tests {
    use lastdrop_model::Kind;

    use super::*;
    use crate::fixtures::{plan, second, some_plan};

    #[test]
    fn a_killed_run_is_its_seconds() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("sub/runs.sqlite");
        let store = Store::open(&path).expect("opens");
        store.begin("abc1", 5, "", &plan(), &serde_json::json!({})).expect("writes");
        store.second("abc1", &second(0)).expect("writes");
        store.second("abc1", &second(1)).expect("writes");
        let mark = Mark { t_s: 1.25, text: "the cache was emptied".into() };
        store.mark("abc1", &mark).expect("writes");
        drop(store);
        let run = Store::open(&path).expect("opens again").load("abc1").expect("is there");
        assert_eq!((run.end, run.marks.as_slice()), (End::Killed, [mark].as_slice()));
        let p = run.measured().expect("one phase");
        assert_eq!((p.requests.sent, p.requests.answered, p.requests.censored), (20, 18, 2));
        assert_eq!(p.latency(Kind::Response, "count"), Some(18.0));
        assert_eq!((p.duration_s, p.seconds.iter().count()), (2.0, 2));
    }

    #[test]
    fn a_killed_run_has_its_classes_as_they_were_written_last() {
        let dir = tempfile::tempdir().expect("temp dir");
        let store = Store::open(&dir.path().join("s")).expect("opens");
        let mut plan = some_plan();
        plan.requests = vec![plan.requests[0].clone(); 2];
        plan.requests[1].name = "checkout".into();
        store.begin("x", 1, "", &KeptPlan::from(&plan), &serde_json::json!({})).expect("writes");
        let mut builder = RunBuilder::new(&plan);
        for n in 0..2 {
            let mut slice = second(n);
            slice.by_class.counts = vec![lastdrop_model::Counts::default(); 2];
            slice.count_sent(1);
            builder.add(&slice);
            store.second("x", &slice).expect("writes");
            store.classes("x", 0, &builder.classes(0)).expect("writes");
        }
        let killed = store.load("x").expect("is there").phases.remove(0);
        let seen: Vec<_> = killed.classes.iter().map(|c| (c.name.as_str(), c.requests.sent)).collect();
        assert_eq!(seen, [("GET /", 0), ("checkout", 2)]);
        assert_eq!(killed.classes, builder.into_reports()[0].classes);
    }

    #[test]
    fn requests_are_kept_once_for_all_runs_of_a_plan() {
        let dir = tempfile::tempdir().expect("temp dir");
        let store = Store::open(&dir.path().join("s")).expect("opens");
        let mut plan = some_plan();
        plan.requests = (0..1000).map(|i| RequestSpec::get(plan.url.with_path(&format!("/{i}")))).collect();
        for (id, seed) in [("a", 1), ("b", 2)] {
            plan.seed = seed;
            let plan = KeptPlan::from(&plan);
            store.begin(id, 1, "", &plan, &serde_json::json!({})).expect("writes");
            let run = store.load(id).expect("killed so far");
            assert_eq!(run.plan, plan);
            store.finish(&run).expect("writes");
            assert_eq!((&run.plan, &store.load(id).expect("ended").plan), (&plan, &plan));
        }
        let number = |sql: &str| store.connection().query_row(sql, [], |r| r.get::<_, i64>(0)).expect("a number");
        let bytes = number("SELECT sum(length(plan) + length(document)) FROM runs");
        let lists = number("SELECT count(*) FROM requests");
        assert!(lists == 1 && bytes < 20_000, "{lists} lists, {bytes} bytes");
    }

    #[test]
    fn a_killed_run_of_many_phases_has_each_of_them() {
        let dir = tempfile::tempdir().expect("temp dir");
        let store = Store::open(&dir.path().join("s")).expect("opens");
        let mut plan = some_plan();
        plan.phases = vec![plan.phases[0].clone(); 3];
        store.begin("x", 1, "", &plan.into(), &serde_json::json!({})).expect("writes");
        // The second phase began nothing, and the last one was in progress.
        for (phase, seconds) in [(0, 2), (2, 1)] {
            for n in 0..seconds {
                let mut slice = second(n);
                slice.phase = phase;
                store.second("x", &slice).expect("writes");
            }
        }
        store.phase_end("x", 0, 1_500_000, 7).expect("writes");
        store.phase_end("x", 1, 10, 0).expect("writes");
        let phases = store.load("x").expect("is there").phases;
        let seen: Vec<_> = phases.iter().map(|p| (p.requests.answered, p.duration_s, p.connections.peak)).collect();
        assert_eq!(seen, [(18, 1.5, 7), (0, 0.000_01, 0), (9, 1.0, 0)]);
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
}
