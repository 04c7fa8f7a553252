//! The journal: an agent's records, on its disk before they are published.
//!
//! One file per run and epoch, only ever appended to:
//!
//! ```text
//! entry  = length of the body, 4 bytes · CRC-32 of the body, 4 bytes · body
//! body   = kind, 1 byte · sequence, 8 bytes · content
//! ```
//!
//! All numbers are big-endian. The first entry identifies the journal. Each record is flushed to disk
//! (`fdatasync`) before `append` returns, so a published record survives a power cut. Acknowledgements are
//! written without a flush, because a record that is sent twice is recognised. A kill during a write leaves a
//! torn tail; reading stops before it and it is cut off. A fully acknowledged journal is removed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use lastdrop_files::TrustedFile;
use serde::{Deserialize, Serialize};

const HEADER: u8 = b'h';
const ACKNOWLEDGED: u8 = b'a';
/// Kinds of entries that are published; the kind is the first byte of the message.
pub(crate) const RECORD: u8 = b'r';
pub(crate) const END: u8 = b'e';

/// A larger length can only be a torn tail.
const ENTRY_BYTES: u32 = 1 << 30;
const PREFIX: usize = 8;
const BODY_PREFIX: usize = 9;

/// Identifies a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalId {
    pub run: String,
    pub agent: String,
    pub epoch: u64,
}

/// Position of an entry's body in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryLocation {
    offset: u64,
    length: u32,
}

/// A file that is appended to, and read while that goes on.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    id: JournalId,
    /// The end of the last complete entry.
    end: u64,
}

/// The unacknowledged entries of a journal, by sequence number.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalBacklog {
    pub pending: BTreeMap<u64, EntryLocation>,
    /// The sequence number of the next entry.
    pub next: u64,
    /// Whether the journal has its final report.
    pub ended: bool,
}

impl Journal {
    pub fn create(folder: &Path, id: JournalId) -> io::Result<Journal> {
        let path = folder.join(format!("{}.{}.journal", id.run, id.epoch));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let header = serde_json::to_vec(&id)?;
        let mut journal = Journal { file, path, id, end: 0 };
        if let Err(e) = journal.append(HEADER, 0, &header).and_then(|_| File::open(folder)?.sync_all()) {
            let _ = std::fs::remove_file(&journal.path);
            return Err(e);
        }
        Ok(journal)
    }

    /// Opens a journal of an earlier epoch and cuts off a torn tail.
    ///
    /// # Errors
    /// `InvalidData` if not even the header is complete, or an I/O error.
    pub fn open(path: &Path) -> io::Result<(Journal, JournalBacklog)> {
        let file = TrustedFile::create(path)?.into_file();
        let torn = || io::Error::new(ErrorKind::InvalidData, "the journal has no whole header");
        let Some(header) = entry(&file, 0)?.filter(|e| e.kind == HEADER) else { return Err(torn()) };
        let mut end = header.end;
        let id: JournalId = serde_json::from_slice(&header.body[BODY_PREFIX..]).map_err(|_| torn())?;
        let mut left = JournalBacklog::default();
        while let Some(JournalEntry { kind, seq, body, end: next }) = entry(&file, end)? {
            match kind {
                RECORD | END => {
                    left.pending.insert(seq, EntryLocation { offset: end + PREFIX as u64, length: body.len() as u32 });
                    left.next = left.next.max(seq.saturating_add(1));
                    left.ended |= kind == END;
                }
                ACKNOWLEDGED => drop(left.pending.remove(&seq)),
                _ => {}
            }
            end = next;
        }
        file.set_len(end)?;
        Ok((Journal { file, path: path.to_owned(), id, end }, left))
    }

    pub fn id(&self) -> &JournalId {
        &self.id
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes an entry and waits until it is on the disk.
    ///
    /// # Errors
    /// An I/O error such as ENOSPC; the file then keeps its previous end.
    pub fn append(&mut self, kind: u8, seq: u64, content: &[u8]) -> io::Result<EntryLocation> {
        let place = self.write(kind, seq, content)?;
        if let Err(e) = self.file.sync_data() {
            // An entry that is not on the disk is not part of the journal.
            self.end = place.offset - PREFIX as u64;
            let _ = self.file.set_len(self.end);
            return Err(e);
        }
        Ok(place)
    }

    /// Notes that the broker has the record.
    pub fn acknowledged(&mut self, seq: u64) -> io::Result<()> {
        self.write(ACKNOWLEDGED, seq, &[]).map(drop)
    }

    fn write(&mut self, kind: u8, seq: u64, content: &[u8]) -> io::Result<EntryLocation> {
        let length = u32::try_from(BODY_PREFIX + content.len()).ok().filter(|l| *l <= ENTRY_BYTES);
        let length = length.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a record of more than 1 GiB"))?;
        let mut bytes = Vec::with_capacity(PREFIX + length as usize);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.push(kind);
        bytes.extend_from_slice(&seq.to_be_bytes());
        bytes.extend_from_slice(content);
        let crc = crc32fast::hash(&bytes[PREFIX..]);
        bytes[4..PREFIX].copy_from_slice(&crc.to_be_bytes());
        if let Err(e) = self.file.write_all_at(&bytes, self.end) {
            let _ = self.file.set_len(self.end);
            return Err(e);
        }
        let place = EntryLocation { offset: self.end + PREFIX as u64, length };
        self.end += bytes.len() as u64;
        Ok(place)
    }

    /// Returns kind and content of an entry.
    ///
    /// # Errors
    /// `InvalidData` if the file does not hold what was written.
    pub fn read(&self, place: EntryLocation) -> io::Result<(u8, Vec<u8>)> {
        match entry(&self.file, place.offset - PREFIX as u64)? {
            Some(mut entry) if entry.body.len() == place.length as usize => {
                entry.body.drain(..BODY_PREFIX);
                Ok((entry.kind, entry.body))
            }
            _ => {
                Err(io::Error::new(ErrorKind::InvalidData, format!("{} has changed on the disk", self.path.display())))
            }
        }
    }

    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// An entry as stored in the file.
struct JournalEntry {
    kind: u8,
    seq: u64,
    /// The content, without kind and sequence number.
    body: Vec<u8>,
    /// Offset of the next entry.
    end: u64,
}

/// Reads the entry at `offset`; `None` if no complete entry is there.
fn entry(file: &File, offset: u64) -> io::Result<Option<JournalEntry>> {
    let mut prefix = [0; PREFIX];
    if !filled(file, &mut prefix, offset)? {
        return Ok(None);
    }
    let [l0, l1, l2, l3, c0, c1, c2, c3] = prefix;
    let length = u32::from_be_bytes([l0, l1, l2, l3]);
    let begins = offset + PREFIX as u64;
    // A length from a torn tail must not become an allocation.
    if (length as usize) < BODY_PREFIX || length > ENTRY_BYTES || begins + u64::from(length) > file.metadata()?.len() {
        return Ok(None);
    }
    let mut body = vec![0; length as usize];
    if !filled(file, &mut body, begins)? || crc32fast::hash(&body) != u32::from_be_bytes([c0, c1, c2, c3]) {
        return Ok(None);
    }
    let mut seq = [0; 8];
    seq.copy_from_slice(&body[1..BODY_PREFIX]);
    Ok(Some(JournalEntry { kind: body[0], seq: u64::from_be_bytes(seq), body, end: begins + u64::from(length) }))
}

/// Fills the buffer; returns false if the file ends before.
fn filled(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> JournalId {
        JournalId { run: "r".into(), agent: "a".into(), epoch: 4 }
    }

    fn written(folder: &Path) -> PathBuf {
        let mut journal = Journal::create(folder, id()).expect("created");
        for seq in 0..5 {
            journal.append(RECORD, seq, &vec![seq as u8; 10 * seq as usize]).expect("written");
        }
        journal.acknowledged(1).expect("noted");
        journal.acknowledged(3).expect("noted");
        journal.path().to_owned()
    }

    #[test]
    fn what_was_not_acknowledged_is_there_in_the_next_life() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut journal, left) = Journal::open(&written(folder.path())).expect("opened");
        assert_eq!(journal.id(), &id());
        assert_eq!(left.pending.keys().copied().collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!((left.next, left.ended), (5, false));
        assert_eq!(journal.read(left.pending[&4]).expect("read"), (RECORD, vec![4; 40]));
        journal.append(END, 5, b"{}").expect("written");
        let (_, left) = Journal::open(journal.path()).expect("opened");
        assert_eq!((left.next, left.ended, left.pending.len()), (6, true, 4));
    }

    #[test]
    fn a_journal_cut_anywhere_gives_all_that_is_whole_and_goes_on_from_there() {
        let folder = tempfile::tempdir().expect("folder");
        let path = written(folder.path());
        let whole = std::fs::read(&path).expect("read");
        let mut most = 0;
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("cut");
            match Journal::open(&path) {
                Err(e) => assert!(e.kind() == ErrorKind::InvalidData && most == 0, "{cut}: {e}"),
                Ok((mut journal, left)) => {
                    assert!(left.next >= most, "a longer journal has no less: {cut}");
                    most = left.next;
                    journal.append(RECORD, left.next, b"next").expect("written");
                    assert_eq!(Journal::open(&path).expect("opened").1.next, left.next + 1);
                }
            }
        }
        assert_eq!(most, 5);
    }

    #[test]
    fn a_byte_that_has_changed_is_no_record() {
        let folder = tempfile::tempdir().expect("folder");
        let path = written(folder.path());
        let whole = std::fs::read(&path).expect("read");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x40;
            std::fs::write(&path, &changed).expect("written");
            if let Ok((journal, left)) = Journal::open(&path) {
                for (seq, place) in left.pending {
                    assert_eq!(journal.read(place).expect("read").1, vec![seq as u8; 10 * seq as usize], "byte {at}");
                }
            }
        }
    }
}
