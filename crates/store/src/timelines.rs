//! Reads and writes the seconds and samples of a run: written one by one, read in pages, with text
//! compressed.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use lastdrop_model::run::Second;
use lastdrop_model::timeline::{Archive, TimelineEntry as _};
use lastdrop_model::{Counts, Histogram, Kind, Sample, Slice};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};

use crate::{Store, StoreError, json};

impl Store {
    /// Stores one second.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn second(&self, id: &str, slice: &Slice) -> Result<(), StoreError> {
        let status: Vec<(usize, u64)> = slice.status.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        let hdr = |kind: Kind| -> Option<Vec<u8>> {
            let h = &slice.latencies[kind as usize];
            (h.count() > 0).then(|| h.encode())
        };
        // The first byte of a small answer arrives with its last, and without queueing the response time
        // equals the service time. A histogram equal to the service time's is stored as an empty value.
        let service = hdr(Kind::Service);
        let beside_service = |kind: Kind| {
            let own = hdr(kind);
            if own.is_some() && own == service { Some(Vec::new()) } else { own }
        };
        self.connection()
            .prepare_cached(
                "INSERT OR REPLACE INTO seconds (run, phase, second, counts, status, response, service, blocked, lateness, connect,
                 tls, first_byte, page, link, queue, server, upstream, transfer)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
            id,
            slice.phase,
            slice.second,
            counts_json(&slice.counts),
            json(&status),
            beside_service(Kind::Response),
            service,
            hdr(Kind::Blocked),
            hdr(Kind::Lateness),
            hdr(Kind::Connect),
            hdr(Kind::Tls),
            beside_service(Kind::FirstByte),
            hdr(Kind::Page),
            hdr(Kind::Link),
            hdr(Kind::Queue),
            hdr(Kind::Server),
            hdr(Kind::Upstream),
            hdr(Kind::Transfer),
        ])?;
        Ok(())
    }

    /// Stores a sample of the server.
    ///
    /// # Errors
    /// If the store cannot be written.
    pub fn look(&self, id: &str, look: &Sample) -> Result<(), StoreError> {
        self.connection()
            .prepare_cached("INSERT OR REPLACE INTO looks (run, t_ms, document) VALUES (?, ?, ?)")?
            .execute(params![id, look.key() as i64, deflate(&json(look))])?;
        Ok(())
    }

    /// Passes all seconds of a run to `show`, in order, one at a time. `show` may read the store.
    pub(crate) fn each_second(&self, id: &str, mut show: impl FnMut(&Slice)) -> Result<(), StoreError> {
        let mut from = (0, 0);
        loop {
            let page = self.seconds_from(id, from)?;
            let Some(last) = page.last() else { return Ok(()) };
            from = (last.phase, last.second + 1);
            page.iter().for_each(&mut show);
        }
    }

    /// Returns a page of the seconds of a run from a phase and second on; empty at the end.
    fn seconds_from(&self, id: &str, from: (u16, u32)) -> Result<Vec<Slice>, StoreError> {
        let connection = self.connection();
        let table = table_of(&connection, id, "seconds", "seconds_0_1")?;
        let mut statement = connection.prepare_cached(&format!(
            "SELECT phase, second, counts, status, {RESPONSE}, service, blocked, lateness, connect, tls, {FIRST_BYTE}, page,
             link, queue, server, upstream, transfer FROM {table} WHERE run = ? AND (phase, second) >= (?, ?)
             ORDER BY phase, second LIMIT {PAGE}"
        ))?;
        let mut page = Vec::new();
        let mut rows = statement.query(params![id, from.0, from.1])?;
        while let Some(row) = rows.next()? {
            let mut slice = Slice::new(row.get(0)?, row.get(1)?);
            slice.counts = read_json(id, &row.get::<_, String>(2)?)?;
            let status: Vec<(usize, u64)> = read_json(id, &row.get::<_, String>(3)?)?;
            for (code, n) in status {
                if let Some(count) = slice.status.get_mut(code) {
                    *count = n;
                }
            }
            for kind in Kind::ALL {
                if let Some(bytes) = row.get::<_, Option<Vec<u8>>>(4 + kind as usize)? {
                    slice.latencies[kind as usize] = read_histogram(id, &bytes)?;
                }
            }
            page.push(slice);
        }
        Ok(page)
    }
}

/// An empty histogram stands for that of the service time.
pub(crate) const RESPONSE: &str = "iif(length(response) = 0, service, response)";
const FIRST_BYTE: &str = "iif(length(first_byte) = 0, service, first_byte)";

/// Counts as JSON without zeros, since most are zero.
fn counts_json(counts: &Counts) -> String {
    let mut value = serde_json::to_value(counts).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        if counts.failed.total() == 0 {
            map.remove("failed");
        }
        map.retain(|_, n| n.as_u64() != Some(0));
    }
    value.to_string()
}

/// Returns the table that holds the entries of a run.
fn table_of(
    connection: &Connection,
    run: &str,
    table: &'static str,
    old: &'static str,
) -> Result<&'static str, StoreError> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = '{old}')");
    let has_old: bool = connection.query_row(&sql, [], |r| r.get(0))?;
    if has_old
        && connection.query_row(&format!("SELECT EXISTS (SELECT 1 FROM {old} WHERE run = ?)"), [run], |r| r.get(0))?
    {
        return Ok(old);
    }
    Ok(table)
}

/// Entries that are read at once.
const PAGE: usize = 100;

/// The seconds of one phase of a run.
#[derive(Debug)]
pub(crate) struct Seconds {
    pub store: Store,
    pub run: String,
    pub phase: u16,
}

impl Archive<Second> for Seconds {
    fn page(&self, from: u64) -> Vec<Second> {
        self.store.read(|connection| {
            let table = table_of(connection, &self.run, "seconds", "seconds_0_1")?;
            let mut statement = connection.prepare_cached(&format!(
                "SELECT second, counts, {RESPONSE}, link, queue, server, upstream, transfer FROM {table} WHERE run = ? AND phase = ? AND second >= ? ORDER BY second LIMIT {PAGE}"
            ))?;
            let mut rows = statement.query(params![self.run, self.phase, from as i64])?;
            let mut page = Vec::new();
            while let Some(row) = rows.next()? {
                let mut slice = Slice::new(self.phase, row.get(0)?);
                slice.counts = read_json(&self.run, &row.get::<_, String>(1)?)?;
                if let Some(bytes) = row.get::<_, Option<Vec<u8>>>(2)? {
                    slice.latencies[Kind::Response as usize] = read_histogram(&self.run, &bytes)?;
                }
                for (at, kind) in Kind::PARTS.into_iter().enumerate() {
                    if let Some(bytes) = row.get::<_, Option<Vec<u8>>>(3 + at)? {
                        slice.latencies[kind as usize] = read_histogram(&self.run, &bytes)?;
                    }
                }
                page.push(Second::of(&slice));
            }
            Ok(page)
        })
    }
}

/// The samples of a run.
#[derive(Debug)]
pub(crate) struct StoredSamples {
    pub store: Store,
    pub run: String,
}

impl Archive<Sample> for StoredSamples {
    fn page(&self, from: u64) -> Vec<Sample> {
        self.store.read(|connection| {
            let table = table_of(connection, &self.run, "looks", "looks_0_1")?;
            let mut statement = connection.prepare_cached(&format!(
                "SELECT document FROM {table} WHERE run = ? AND t_ms >= ? ORDER BY t_ms LIMIT {PAGE}"
            ))?;
            let mut rows = statement.query(params![self.run, from as i64])?;
            let mut page = Vec::new();
            while let Some(row) = rows.next()? {
                page.push(read_look(&self.run, row.get_ref(0)?)?);
            }
            Ok(page)
        })
    }
}

fn damaged(run: &str, what: impl ToString) -> StoreError {
    StoreError::Damaged { id: run.to_string(), what: what.to_string() }
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(run: &str, text: &str) -> Result<T, StoreError> {
    lastdrop_model::read_json(text).map_err(|e| damaged(run, e))
}

pub(crate) fn read_histogram(run: &str, bytes: &[u8]) -> Result<Histogram, StoreError> {
    Histogram::decode(bytes).map_err(|e| damaged(run, e))
}

/// The first stores have samples as plain text.
pub(crate) fn read_look(run: &str, document: ValueRef<'_>) -> Result<Sample, StoreError> {
    match document {
        ValueRef::Blob(bytes) => read_json(run, &inflate(run, bytes)?),
        text => read_json(run, text.as_str().map_err(|e| damaged(run, e))?),
    }
}

/// A sample takes some KB; a damaged one must not fill the memory.
const MOST_LOOK_BYTES: u64 = 16 << 20;

pub(crate) fn inflate(run: &str, bytes: &[u8]) -> Result<String, StoreError> {
    let mut text = String::new();
    ZlibDecoder::new(bytes).take(MOST_LOOK_BYTES).read_to_string(&mut text).map_err(|e| damaged(run, e))?;
    Ok(text)
}

pub(crate) fn deflate(text: &str) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory cannot fail.
    let _ = encoder.write_all(text.as_bytes());
    encoder.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lastdrop_model::run::RunBuilder;
    use lastdrop_model::timeline::Timeline;

    use super::*;
    use crate::fixtures::{plan, second};

    /// A second with 2,000 requests, as a quiet server answers them.
    fn busy_second(n: u32) -> Slice {
        let mut s = Slice::new(0, n);
        s.counts = Counts { due: 2000, sent: 2000, answered: 2000, answered_in_time: 2000, ..Counts::default() };
        s.counts.bytes_sent = 160_000;
        s.counts.bytes_received = 480_000;
        s.status[200] = 2000;
        let mut state = u64::from(n) + 1;
        for _ in 0..2000 {
            // Exponential service times above 60 µs; xorshift is random enough.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let service = 60 - ((state % 10_000 + 1) as f64 / 10_001.0 * 40.0).ln() as i64 * 5;
            for kind in [Kind::Response, Kind::Service, Kind::FirstByte] {
                s.record(kind, service as u64 + state % 40);
            }
            s.record(Kind::Lateness, state % 30);
            s.record(Kind::Blocked, 0);
        }
        s
    }

    #[test]
    fn a_long_run_is_whole_on_disk_and_small_in_memory() {
        let dir = tempfile::tempdir().expect("temp dir");
        let path = dir.path().join("s");
        let store = Store::open(&path).expect("opens");
        store.begin("cafe0001", 1, "", &plan(), &serde_json::json!({})).expect("begins");
        let mut builder = RunBuilder::archived(&plan(), |phase| store.seconds("cafe0001", phase));
        for n in 0..1000 {
            builder.add(&busy_second(n));
            store.second("cafe0001", &busy_second(n)).expect("written");
            let look = Sample { t_s: f64::from(n), span_s: 1.0, worker_count: 8, ..Sample::default() };
            store.look("cafe0001", &look).expect("written");
        }
        let phases = builder.into_reports();
        let seconds: Vec<Second> = phases[0].seconds.iter().collect();
        assert!(seconds.iter().map(|s| s.t).eq(0..1000), "each second once");
        // Histograms equal to the service time's are stored once, and read back in full.
        let mut n = 0;
        store
            .each_second("cafe0001", |slice| {
                let whole = busy_second(n);
                assert!(
                    Kind::ALL
                        .iter()
                        .all(|k| { slice.latencies[*k as usize].encode() == whole.latencies[*k as usize].encode() })
                );
                n += 1;
            })
            .expect("read");
        assert_eq!(n, 1000);
        assert_eq!(seconds[3], Second::of(&busy_second(3)), "one that was on disk is what it was");
        assert_eq!(seconds[999], Second::of(&busy_second(999)));
        let killed = store.load("cafe0001").expect("its seconds");
        assert_eq!(killed.phases[0].seconds, phases[0].seconds);
        assert_eq!(killed.server.expect("looks").samples.iter().count(), 1000);
        store.check_reads().expect("all was read");
        drop(store);
        let bytes = std::fs::metadata(&path).expect("a file").len();
        assert!(bytes < 1000 * 3000, "{} bytes a second", bytes / 1000);
    }

    #[test]
    fn a_scratch_store_keeps_what_a_run_needs() {
        let store = Store::scratch().expect("a scratch store");
        let mut builder = RunBuilder::archived(&plan(), |phase| store.seconds("r", phase));
        for n in 0..300 {
            builder.add(&second(n));
            store.second("r", &second(n)).expect("written");
        }
        assert_eq!(builder.into_reports()[0].seconds.iter().count(), 300);
    }

    #[test]
    fn damage_in_the_middle_of_a_run_is_told() {
        let store = Store::scratch().expect("a scratch store");
        store.second("r", &second(0)).expect("written");
        store.connection().execute("UPDATE seconds SET response = x'00'", []).expect("damaged");
        let seconds = Timeline::archived(store.seconds("r", 0));
        assert_eq!(seconds.iter().count(), 0);
        assert!(store.check_reads().expect_err("damage").to_string().contains("could not be read"));
    }
}
