//! Lists runs and documents page by page, newest first, with the tags and notes that users gave them.

use lastdrop_model::{Run, secrets};
use rusqlite::{Connection, OptionalExtension, ToSql, params};

use crate::run_owner::RunOwner;
use crate::{Store, StoreError};

/// A user's tags and note for a run or a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remark {
    pub tags: Vec<String>,
    pub note: String,
}

impl Remark {
    /// Parses tags separated by commas or white space.
    #[must_use]
    pub fn new(tags: &str, note: &str) -> Remark {
        let mut all: Vec<String> = Vec::new();
        for tag in tags.split([',', ' ', '\t', '\n', '\r']).map(str::trim).filter(|t| !t.is_empty()) {
            let tag: String = tag.chars().take(MOST_TAG_CHARS).collect();
            if all.len() < MOST_TAGS && !all.contains(&tag) {
                all.push(tag);
            }
        }
        Remark { tags: all, note: note.trim().chars().take(MOST_NOTE_CHARS).collect() }
    }
}

pub const MOST_TAGS: usize = 20;
pub const MOST_TAG_CHARS: usize = 40;
pub const MOST_NOTE_CHARS: usize = 4000;

/// A run or a document in a list.
#[derive(Debug, Clone)]
pub struct ListItem {
    pub id: String,
    /// When the run began or the document was stored.
    pub at_unix_ms: u64,
    pub what: ItemKind,
    pub remark: Remark,
    /// The first runs of the experiment that it represents; empty for a single run.
    pub parts: Vec<ExperimentRun>,
    /// Number of runs in the experiment.
    pub part_count: usize,
}

/// A run of an experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExperimentRun {
    pub id: String,
    pub label: String,
    pub url: String,
}

#[derive(Debug, Clone)]
pub enum ItemKind {
    Run { label: String, url: String, state: RunState },
    Document { schema: String },
}

#[derive(Debug, Clone)]
pub enum RunState {
    /// The run, without the requests of its plan, its seconds and its samples.
    Ended(Box<Run>),
    UnderWay(RunOwner),
    /// It was killed, or failed before it had begun.
    Unfinished,
}

/// A page of the list.
#[derive(Debug, Clone)]
pub struct Listing {
    pub entries: Vec<ListItem>,
    /// Number of matching entries in total.
    pub all: usize,
}

/// All runs and documents with their experiment. An index covers all these columns of runs, so that no
/// document is read.
const ALL: &str =
    "SELECT runs.id AS id, ifnull(experiment, runs.id) AS whole, started_unix_ms AS at, label AS label, url AS url,
        NULL AS schema, tags, note
        FROM runs LEFT JOIN remarks ON remarks.id = runs.id
    UNION ALL SELECT documents.id, documents.id, kept_unix_ms, '', '', schema, tags, note
        FROM documents LEFT JOIN remarks ON remarks.id = documents.id";
/// An experiment appears as one row: its document or, until there is one, its latest run. SQLite takes the
/// other columns from the row with the maximum.
const HEADS: &str = "SELECT id, whole, at, label, url, schema, ifnull(tags, '') AS tags, ifnull(note, '') AS note,
    max(at + (schema IS NOT NULL) * 4611686018427387904)";
/// Largest number of runs listed with an experiment.
pub const MOST_PARTS: usize = 200;
/// Largest number of search words.
const MOST_WORDS: usize = 10;

impl Store {
    /// Returns entries that contain every word in id, label, URL, tags or note, latest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn list(&self, words: &[&str], from: usize, most: usize) -> Result<Listing, StoreError> {
        let words: Vec<&str> = words.iter().copied().take(MOST_WORDS).collect();
        let (rows, all) = self.rows(&words, from, most)?;
        let mut entries = Vec::new();
        for row in rows {
            entries.push(self.listed(row)?);
        }
        Ok(Listing { entries, all })
    }

    /// Returns a run or a document by its id, including runs of an experiment.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn listed_one(&self, id: &str) -> Result<Option<ListItem>, StoreError> {
        let sql = format!(
            "SELECT id, id, at, label, url, schema, ifnull(tags, ''), ifnull(note, '') FROM ({ALL}) WHERE id = ?"
        );
        let row = self.connection().query_row(&sql, [id], ListRow::of).optional()?;
        row.map(|row| self.listed(row)).transpose()
    }

    fn listed(&self, row: ListRow) -> Result<ListItem, StoreError> {
        let (parts, part_count) = self.parts(&row.whole)?;
        let what = match row.schema {
            Some(schema) => ItemKind::Document { schema },
            None => ItemKind::Run {
                label: row.label,
                url: secrets::url(&row.url).into_owned(),
                state: self.state(&row.id)?,
            },
        };
        Ok(ListItem { id: row.id, at_unix_ms: row.at, what, remark: row.remark, parts, part_count })
    }

    /// Returns the first runs of an experiment, and their total number.
    fn parts(&self, experiment: &str) -> Result<(Vec<ExperimentRun>, usize), StoreError> {
        let connection = self.connection();
        let sql = "SELECT count(*) FROM runs WHERE experiment = ?";
        let count: i64 = connection.prepare_cached(sql)?.query_row([experiment], |r| r.get(0))?;
        let sql = format!(
            "SELECT id, label, url FROM runs WHERE experiment = ? ORDER BY started_unix_ms, rowid LIMIT {MOST_PARTS}"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let part = |r: &rusqlite::Row<'_>| {
            let url: String = r.get(2)?;
            Ok(ExperimentRun { id: r.get(0)?, label: r.get(1)?, url: secrets::url(&url).into_owned() })
        };
        let parts = statement.query_map([experiment], part)?.collect::<Result<_, _>>()?;
        Ok((parts, count as usize))
    }

    /// Returns the number of stored runs and documents.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn how_many(&self) -> Result<usize, StoreError> {
        count(&self.connection())
    }

    fn rows(&self, words: &[&str], from: usize, most: usize) -> Result<(Vec<ListRow>, usize), StoreError> {
        let connection = self.connection();
        let condition: Vec<String> = (1..=words.len())
            .map(|i| format!("instr(lower(id || ' ' || label || ' ' || url || ' ' || ifnull(schema, '') || ' ' || ifnull(tags, '') || ' ' || ifnull(note, '')), ?{i}) > 0"))
            .collect();
        let words: Vec<String> = words.iter().map(|w| w.to_ascii_lowercase()).collect();
        let values: Vec<&dyn ToSql> = words.iter().map(|w| w as &dyn ToSql).collect();
        // A match in any run of an experiment finds the experiment.
        let found = match condition.join(" AND ").as_str() {
            "" => String::new(),
            condition => format!("WHERE whole IN (SELECT whole FROM ({ALL}) WHERE {condition})"),
        };
        let sql = format!("SELECT count(DISTINCT whole) FROM ({ALL}) {found}");
        let all: i64 = connection.query_row(&sql, values.as_slice(), |r| r.get(0))?;
        let sql =
            format!("{HEADS} FROM ({ALL}) {found} GROUP BY whole ORDER BY at DESC, id LIMIT {most} OFFSET {from}");
        let mut statement = connection.prepare(&sql)?;
        let rows = statement.query_map(values.as_slice(), ListRow::of)?.collect::<Result<_, _>>()?;
        Ok((rows, all as usize))
    }

    /// Returns the state of a run.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn state(&self, id: &str) -> Result<RunState, StoreError> {
        let document: Option<Option<String>> =
            self.connection().query_row("SELECT document FROM runs WHERE id = ?", [id], |r| r.get(0)).optional()?;
        Ok(match document.ok_or_else(|| StoreError::NotFound(id.to_string()))? {
            // A damaged document is reported when the run is shown.
            Some(document) => {
                lastdrop_model::read_json(&document).map_or(RunState::Unfinished, |run| RunState::Ended(Box::new(run)))
            }
            None => self.run_owner(id)?.map_or(RunState::Unfinished, RunState::UnderWay),
        })
    }

    /// Returns the tags and note of a run or a document.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn remark(&self, id: &str) -> Result<Remark, StoreError> {
        let found = self
            .connection()
            .query_row("SELECT tags, note FROM remarks WHERE id = ?", [id], |r| Ok((r.get(0)?, r.get(1)?)))
            .optional()?;
        Ok(found.map_or_else(Remark::default, |(tags, note): (String, String)| Remark::new(&tags, &note)))
    }

    /// Replaces the tags and note of a run or a document.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_remark(&self, id: &str, remark: &Remark) -> Result<(), StoreError> {
        let connection = self.connection();
        if *remark == Remark::default() {
            connection.execute("DELETE FROM remarks WHERE id = ?", [id])?;
        } else {
            let sql = "INSERT OR REPLACE INTO remarks VALUES (?, ?, ?)";
            connection.execute(sql, params![id, remark.tags.join(" "), remark.note])?;
        }
        Ok(())
    }
}

fn count(connection: &Connection) -> Result<usize, StoreError> {
    let sql = "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM documents)";
    Ok(connection.query_row(sql, [], |r| r.get::<_, i64>(0))? as usize)
}

struct ListRow {
    id: String,
    /// The id of its experiment, or its own id if it has none.
    whole: String,
    at: u64,
    label: String,
    url: String,
    schema: Option<String>,
    remark: Remark,
}

impl ListRow {
    fn of(r: &rusqlite::Row<'_>) -> rusqlite::Result<ListRow> {
        Ok(ListRow {
            id: r.get(0)?,
            whole: r.get(1)?,
            at: r.get::<_, i64>(2)? as u64,
            label: r.get(3)?,
            url: r.get(4)?,
            schema: r.get(5)?,
            remark: Remark::new(&r.get::<_, String>(6)?, &r.get::<_, String>(7)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::plan;

    #[test]
    fn runs_and_documents_are_listed_by_time_and_found_by_their_words() {
        let dir = tempfile::tempdir().expect("temp dir");
        let store = Store::open(&dir.path().join("s")).expect("opens");
        store.begin("aa1", 5, "first", &plan(), &serde_json::json!({})).expect("writes");
        store.keep_document("dd1", 6, "lastdrop.tune/1", "{}").expect("writes");
        store.begin("aa2", 7, "100%_sure", &plan(), &serde_json::json!({})).expect("writes");
        store.keep_remark("aa1", &Remark::new("nightly,slow  slow", " <b>disk</b> was full ")).expect("writes");
        let ids = |words: &[&str], from, most| {
            let listing = store.list(words, from, most).expect("reads");
            (listing.entries.into_iter().map(|e| e.id).collect::<Vec<_>>().join(" "), listing.all)
        };
        assert_eq!(ids(&[], 0, 9), ("aa2 dd1 aa1".into(), 3));
        assert_eq!((ids(&[], 1, 1), ids(&[], 9, 1)), (("dd1".into(), 3), (String::new(), 3)));
        for (words, found) in [
            (vec!["nightly"], "aa1"),
            (vec!["SLOW", "<b>disk"], "aa1"),
            (vec!["tune"], "dd1"),
            (vec!["100%_"], "aa2"),
            (vec!["%"], "aa2"),
            (vec!["'; DROP TABLE runs; --"], ""),
            (vec!["aa", "first", "tune"], ""),
        ] {
            assert_eq!(ids(&words, 0, 9), (found.to_string(), found.split_whitespace().count()), "{words:?}");
        }
        let listed = store.list(&["nightly"], 0, 9).expect("reads").entries.remove(0);
        assert_eq!(
            listed.remark,
            Remark { tags: vec!["nightly".into(), "slow".into()], note: "<b>disk</b> was full".into() }
        );
        // This process has started another run since.
        assert!(matches!(listed.what, ItemKind::Run { state: RunState::Unfinished, .. }));
        assert!(matches!(store.state("aa2").expect("reads"), RunState::UnderWay(_)));
        store.finish(&store.load("aa2").expect("loads")).expect("writes");
        assert!(matches!(store.state("aa2").expect("reads"), RunState::Ended(_)));
        store.keep_remark("aa1", &Remark::default()).expect("writes");
        assert_eq!(store.remark("aa1").expect("reads"), Remark::default());
    }

    #[test]
    fn an_experiment_is_one_row_with_its_runs_in_it() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("s");
        let begin = |store: &Store, id: &str, at: u64, label: &str| {
            store.begin(id, at, label, &plan(), &serde_json::json!({})).expect("writes");
        };
        let before = Store::open(&path).expect("opens");
        begin(&before, "alone", 5, "");
        let store = Store::open(&path).expect("opens");
        for block in 1..=2 {
            for side in ["a", "b"] {
                let id = format!("{side}{block}");
                begin(&store, &id, 5 + block, &format!("compare {side} {block}"));
                store.clone().keep_as_part(&id).expect("writes");
            }
        }
        let rows = |words: &[&str]| -> Vec<(String, Vec<String>)> {
            let listing = store.list(words, 0, 9).expect("reads");
            assert_eq!(listing.all, listing.entries.len());
            let ids = |parts: &[ExperimentRun]| parts.iter().map(|p| p.id.clone()).collect();
            listing.entries.into_iter().map(|e| (e.id, ids(&e.parts))).collect()
        };
        let four: Vec<String> = ["a1", "b1", "a2", "b2"].map(String::from).into();
        // An experiment that has not ended is represented by its latest run.
        let under_way = rows(&[]);
        assert_eq!((under_way.len(), &under_way[0].1), (2, &four), "{under_way:?}");
        assert!(["a2", "b2"].contains(&under_way[0].0.as_str()) && under_way[1] == ("alone".into(), Vec::new()));
        let experiment = store.experiment().expect("reads");
        store.keep_document(&experiment, 9, "lastdrop.compare/1", "{}").expect("writes");
        assert_eq!(rows(&[]), [(experiment.clone(), four.clone()), ("alone".into(), Vec::new())]);
        for words in [&["compare b 2"][..], &["b2"], &["lastdrop.compare"]] {
            assert_eq!(rows(words), [(experiment.clone(), four.clone())], "{words:?}");
        }
        let one = store.listed_one("b2").expect("reads").expect("is there");
        assert!(one.id == "b2" && one.parts.is_empty() && matches!(one.what, ItemKind::Run { .. }));
        assert!(store.listed_one("b3").expect("reads").is_none());
        // Another process has another experiment.
        assert_ne!(Store::open(&path).expect("opens").experiment().expect("reads"), experiment);
    }

    #[test]
    fn remarks_have_bounds() {
        let many: Vec<String> = (0..50).map(|i| format!("{i}{}", "ä".repeat(100))).collect();
        let remark = Remark::new(&many.join(","), &"ö".repeat(9000));
        assert_eq!((remark.tags.len(), remark.note.chars().count()), (MOST_TAGS, MOST_NOTE_CHARS));
        assert!(remark.tags.iter().all(|t| t.chars().count() == MOST_TAG_CHARS));
    }
}
