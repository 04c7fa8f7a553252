//! Documents of commands that make several runs, such as `tune`. Each has its own id and is found like a run.

use rusqlite::{OptionalExtension, params};

use crate::timelines::{deflate, inflate};
use crate::{Store, StoreError};

/// The kind of object that an id refers to, with its full id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredId {
    Run(String),
    Document(String),
}

impl Store {
    /// Stores a document (JSON) under an id.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn keep_document(&self, id: &str, kept_unix_ms: u64, schema: &str, document: &str) -> Result<(), StoreError> {
        self.connection().execute(
            "INSERT INTO documents VALUES (?, ?, ?, ?)",
            params![id, kept_unix_ms as i64, schema, deflate(document)],
        )?;
        Ok(())
    }

    /// Returns a document by its full id.
    ///
    /// # Errors
    /// If it does not exist or is damaged.
    pub fn document(&self, id: &str) -> Result<String, StoreError> {
        let packed: Option<Vec<u8>> = self
            .connection()
            .query_row("SELECT document FROM documents WHERE id = ?", [id], |r| r.get(0))
            .optional()?;
        inflate(id, &packed.ok_or_else(|| StoreError::NotFound(id.to_string()))?)
    }

    /// Returns the latest documents, newest first: id, time (milliseconds since 1970), schema.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn documents(&self, limit: usize) -> Result<Vec<(String, u64, String)>, StoreError> {
        let connection = self.connection();
        let mut statement = connection
            .prepare("SELECT id, kept_unix_ms, schema FROM documents ORDER BY kept_unix_ms DESC, rowid DESC LIMIT ?")?;
        let rows = statement.query_map([limit as i64], |r| Ok((r.get(0)?, r.get::<_, i64>(1)? as u64, r.get(2)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Finds the run or document that `text` names: an id, the beginning of one, or `last` for the latest.
    ///
    /// # Errors
    /// If there is none, or more than one.
    pub fn find_any(&self, text: &str) -> Result<StoredId, StoreError> {
        // A document is stored after its runs, so it is the later one at equal times.
        const ALL: &str = "SELECT id, started_unix_ms AS at, 0 AS made, rowid AS place FROM runs
            UNION ALL SELECT id, kept_unix_ms, 1, rowid FROM documents";
        let connection = self.connection();
        let found = |r: &rusqlite::Row<'_>| -> rusqlite::Result<StoredId> {
            let id = r.get(0)?;
            Ok(if r.get::<_, i64>(1)? == 0 { StoredId::Run(id) } else { StoredId::Document(id) })
        };
        if text == "last" {
            let sql = format!("SELECT id, made FROM ({ALL}) ORDER BY at DESC, made DESC, place DESC LIMIT 1");
            let last = connection.query_row(&sql, [], found).optional()?;
            return last.ok_or_else(|| StoreError::NotFound(text.to_string()));
        }
        // A full id takes precedence over ids that begin with it.
        let sql = format!(
            "SELECT id, made, id = ?1 AS whole FROM ({ALL}) WHERE substr(id, 1, length(?1)) = ?1 ORDER BY whole DESC LIMIT 2"
        );
        let mut statement = connection.prepare(&sql)?;
        let all: Vec<(StoredId, bool)> =
            statement.query_map([text], |r| Ok((found(r)?, r.get(2)?)))?.collect::<Result<_, _>>()?;
        match all.as_slice() {
            [] => Err(StoreError::NotFound(text.to_string())),
            [(one, _)] | [(one, true), _] => Ok(one.clone()),
            _ => Err(StoreError::Ambiguous(text.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::plan;

    #[test]
    fn documents_are_found_as_runs_are() {
        let dir = tempfile::tempdir().expect("temp dir");
        let store = Store::open(&dir.path().join("s")).expect("opens");
        assert!(matches!(store.find_any("last"), Err(StoreError::NotFound(_))));
        store.begin("aa1", 5, "", &plan(), &serde_json::json!({})).expect("writes");
        store.keep_document("aa2", 9, "lastdrop.tune/1", "{\"a\":1}").expect("writes");
        store.begin("b", 7, "", &plan(), &serde_json::json!({})).expect("writes");
        assert_eq!(store.find_any("last").expect("one"), StoredId::Document("aa2".into()));
        assert_eq!(store.find_any("b").expect("one"), StoredId::Run("b".into()));
        assert_eq!(store.find_any("aa1").expect("one"), StoredId::Run("aa1".into()));
        assert!(matches!(store.find_any("aa"), Err(StoreError::Ambiguous(_))));
        assert_eq!(store.document("aa2").expect("is there"), "{\"a\":1}");
        assert_eq!(store.documents(5).expect("read"), [("aa2".into(), 9, "lastdrop.tune/1".into())]);
        // A command about runs takes the latest run, not the document.
        assert_eq!(store.find("last").expect("one"), "b");
    }
}
