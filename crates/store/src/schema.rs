//! The tables of a store, and the migration of older ones.

use lastdrop_model::Kind;
use rusqlite::{Connection, OptionalExtension};

/// Text and numbers are stored as they are, samples are compressed (zlib), and histograms use the compressed
/// HDR V2 format. The tables have a rowid, because without it a row of 2 KB takes a page of its own.
const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY,
    started_unix_ms INTEGER NOT NULL,
    label TEXT NOT NULL,
    url TEXT NOT NULL,
    plan TEXT NOT NULL,
    environment TEXT NOT NULL,
    document TEXT,             -- lastdrop.run/1, once the run has ended
    requests TEXT,             -- which of the table requests; NULL: they are in the plan and in the document
    experiment TEXT            -- the compare, sweep, tune … that it is a part of, and the id of its document; NULL: none
);
CREATE TABLE IF NOT EXISTS requests (
    hash TEXT PRIMARY KEY,     -- SHA-256 of the list
    list TEXT NOT NULL         -- JSON: the requests of a plan, kept once for all its runs
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seconds (
    run TEXT NOT NULL REFERENCES runs(id),
    phase INTEGER NOT NULL,
    second INTEGER NOT NULL,
    counts TEXT NOT NULL,      -- JSON; what is not there is 0
    status TEXT NOT NULL,      -- JSON: [[status, answers], …]
    response BLOB, service BLOB, blocked BLOB, lateness BLOB, connect BLOB, tls BLOB, first_byte BLOB, page BLOB, -- HDR V2
    link BLOB, queue BLOB, server BLOB, upstream BLOB, transfer BLOB, -- the same, where servers say their own time
    UNIQUE (run, phase, second)
);
CREATE TABLE IF NOT EXISTS phase_ends (
    run TEXT NOT NULL REFERENCES runs(id),
    phase INTEGER NOT NULL,
    duration_us INTEGER NOT NULL,
    peak INTEGER NOT NULL,
    PRIMARY KEY (run, phase)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS classes (
    run TEXT NOT NULL REFERENCES runs(id),
    phase INTEGER NOT NULL,
    document BLOB NOT NULL,    -- JSON, zlib: its requests by class so far; for a run that is killed
    PRIMARY KEY (run, phase)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS looks (
    run TEXT NOT NULL REFERENCES runs(id),
    t_ms INTEGER NOT NULL,     -- since the run began
    document BLOB NOT NULL,    -- JSON, zlib: the server and its machine at that moment
    UNIQUE (run, t_ms)
);
CREATE TABLE IF NOT EXISTS marks (
    run TEXT NOT NULL REFERENCES runs(id),
    t_ms INTEGER NOT NULL,     -- since the run began
    text TEXT NOT NULL         -- for a run that is killed; others have them in their document
);
CREATE TABLE IF NOT EXISTS agents (
    run TEXT NOT NULL,
    position INTEGER NOT NULL, -- in the order of their shares
    name TEXT NOT NULL,
    weight INTEGER NOT NULL,
    offset_us INTEGER NOT NULL,
    error_us INTEGER NOT NULL,
    PRIMARY KEY (run, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agent_records (
    run TEXT NOT NULL,
    agent TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    record BLOB,               -- as it came; NULL: the last word of that life
    last TEXT,                 -- why it did not do all, then
    UNIQUE (run, agent, epoch, seq)
);
CREATE TABLE IF NOT EXISTS documents (
    id TEXT PRIMARY KEY,
    kept_unix_ms INTEGER NOT NULL,
    schema TEXT NOT NULL,      -- lastdrop.tune/1 …
    document BLOB NOT NULL     -- JSON, zlib: what came of a question that takes several runs
);
CREATE TABLE IF NOT EXISTS makers (
    run TEXT PRIMARY KEY REFERENCES runs(id),
    boot TEXT NOT NULL,        -- which boot of the machine, whose namespace of process ids, which process in it since when:
    namespace INTEGER NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL, -- no two processes have all of it
    asked_to_stop INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS makers_by_process ON makers (pid, start_ticks);
CREATE TABLE IF NOT EXISTS remarks (
    id TEXT PRIMARY KEY,       -- of a run or a document
    tags TEXT NOT NULL,        -- by spaces between them
    note TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS noise (
    measured_unix_ms INTEGER NOT NULL,
    url TEXT NOT NULL,
    document TEXT NOT NULL     -- JSON: what the noise of this machine does to each metric
);
";

/// Indexes over columns that older stores get only when they are opened. The first covers everything that is
/// listed and searched.
const RUN_INDEXES: &str = "
DROP INDEX IF EXISTS runs_listed;
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (started_unix_ms, id, label, url, experiment);
CREATE INDEX IF NOT EXISTS runs_by_experiment ON runs (experiment, started_unix_ms) WHERE experiment IS NOT NULL;
";

/// Before 0.1 these tables had no rowid, so most rows took a page of their own. They are kept for their runs.
const OLD_TABLES: [(&str, &str); 2] = [("seconds", "seconds_0_1"), ("looks", "looks_0_1")];

/// Creates the missing tables.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    // In KiB. With the default of 2 MB the generator would grow while it runs, for pages that it never reads
    // again.
    connection.pragma_update(None, "cache_size", -256)?;
    let made_as = |table: &str| {
        let sql = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?";
        connection.query_row(sql, [table], |r| r.get::<_, String>(0)).optional()
    };
    for (table, old) in OLD_TABLES {
        if made_as(table)?.is_some_and(|sql| sql.contains("WITHOUT ROWID")) {
            connection.execute_batch(&format!("ALTER TABLE {table} RENAME TO {old}"))?;
        }
    }
    connection.execute_batch(SCHEMA)?;
    // The first stores have no column for pages.
    if made_as("seconds_0_1")?.is_some() && connection.prepare("SELECT page FROM seconds_0_1 LIMIT 0").is_err() {
        connection.execute_batch("ALTER TABLE seconds_0_1 ADD COLUMN page BLOB")?;
    }
    // Older stores have no columns for the parts of a response.
    for table in ["seconds", "seconds_0_1"] {
        if made_as(table)?.is_some() && connection.prepare(&format!("SELECT transfer FROM {table} LIMIT 0")).is_err() {
            for kind in Kind::PARTS {
                connection.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {} BLOB", kind.name()))?;
            }
        }
    }
    if connection.prepare("SELECT requests FROM runs LIMIT 0").is_err() {
        connection.execute_batch("ALTER TABLE runs ADD COLUMN requests TEXT")?;
    }
    if connection.prepare("SELECT experiment FROM runs LIMIT 0").is_err() {
        connection.execute_batch("ALTER TABLE runs ADD COLUMN experiment TEXT")?;
    }
    connection.execute_batch(RUN_INDEXES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use lastdrop_model::{Kind, Sample};
    use rusqlite::{Connection, params};

    use crate::fixtures::{plan, second};
    use crate::{Store, json};

    #[test]
    fn a_store_of_before_opens_and_has_its_runs() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("s");
        let old = Connection::open(&path).expect("opens");
        old.execute_batch(
            "CREATE TABLE runs (id TEXT PRIMARY KEY, started_unix_ms INTEGER NOT NULL, label TEXT NOT NULL, url TEXT NOT NULL,
             plan TEXT NOT NULL, environment TEXT NOT NULL, document TEXT);
             CREATE TABLE seconds (run TEXT NOT NULL, phase INTEGER NOT NULL, second INTEGER NOT NULL, counts TEXT NOT NULL,
             status TEXT NOT NULL, response BLOB, service BLOB, blocked BLOB, lateness BLOB, connect BLOB, tls BLOB,
             first_byte BLOB, PRIMARY KEY (run, phase, second)) WITHOUT ROWID;",
        )
        .expect("as it was");
        old.execute("INSERT INTO runs VALUES ('old', 1, '', 'http://127.0.0.1/', ?, '{}', NULL)", [json(&plan())])
            .expect("a run");
        drop(old);
        let store = Store::open(&path).expect("opens");
        assert_eq!(store.load("old").expect("is there").plan, plan());
        store.begin("new", 2, "", &plan(), &serde_json::json!({})).expect("writes");
        drop(store);
        let again = Store::open(&path).expect("opens again");
        assert_eq!(
            (again.find("last").expect("one"), again.load("new").expect("is there").plan),
            ("new".into(), plan())
        );
    }

    #[test]
    fn a_store_of_the_first_version_still_opens() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("s");
        let old = Connection::open(&path).expect("opens");
        old.execute_batch(
            "CREATE TABLE runs (id TEXT PRIMARY KEY, started_unix_ms INTEGER NOT NULL, label TEXT NOT NULL, url TEXT NOT NULL,
                plan TEXT NOT NULL, environment TEXT NOT NULL, document TEXT);
             CREATE TABLE seconds (run TEXT NOT NULL, phase INTEGER NOT NULL, second INTEGER NOT NULL, counts TEXT NOT NULL,
                status TEXT NOT NULL, response BLOB, service BLOB, blocked BLOB, lateness BLOB, connect BLOB, tls BLOB,
                first_byte BLOB, PRIMARY KEY (run, phase, second)) WITHOUT ROWID;
             CREATE TABLE looks (run TEXT NOT NULL, t_ms INTEGER NOT NULL, document TEXT NOT NULL, PRIMARY KEY (run, t_ms))
                WITHOUT ROWID;",
        )
        .expect("the schema of then");
        old.execute("INSERT INTO runs VALUES ('0ld00001', 1, '', 'http://127.0.0.1/', ?, '{}', NULL)", [json(&plan())])
            .expect("written");
        let s = second(0);
        let response = s.latencies[Kind::Response as usize].encode();
        old.execute(
            "INSERT INTO seconds (run, phase, second, counts, status, response) VALUES ('0ld00001', 0, 0, ?, '[[200,9]]', ?)",
            params![json(&s.counts), response],
        )
        .expect("written");
        let look = json(&Sample { t_s: 1.0, worker_count: 3, ..Sample::default() });
        old.execute("INSERT INTO looks VALUES ('0ld00001', 1000, ?)", [look]).expect("written");
        drop(old);
        for _ in 0..2 {
            let store = Store::open(&path).expect("opens");
            let run = store.load("0ld00001").expect("the old run");
            assert_eq!(run.phases[0].requests.answered, 9);
            assert_eq!(run.phases[0].seconds.iter().count(), 1);
            assert_eq!(run.server.expect("looks").samples.iter().next().expect("one").worker_count, 3);
            store.begin("1ew00001", 2, "", &plan(), &serde_json::json!({})).ok();
            store.second("1ew00001", &second(0)).expect("written");
            assert_eq!(store.load("1ew00001").expect("the new run").phases[0].requests.answered, 9);
        }
    }
}
