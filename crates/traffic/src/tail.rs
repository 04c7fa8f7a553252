//! Follows a growing log line by line, through rotation by rename and by copy and truncate.
//!
//! After a rename the server writes to the old file until it is told to open the new one. So both are read until
//! nothing has been added to the old one for a while. A file that is shorter than the part already read, or begins
//! differently, was truncated. A line is returned only when its line end has arrived.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use lastdrop_files::input;

use crate::lines::MOST_LINE_BYTES;

const BUFFER_BYTES: usize = 256 << 10;
/// Length of the beginning by which a file is recognised.
const MARK_BYTES: usize = 256;
/// Number of consecutive calls without new data after which a renamed file is closed, once the new file has data.
const IDLE_LOOKS: u32 = 20;
/// Most old files that are still followed.
const MOST_OLD: usize = 4;

/// The result of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TailResult {
    /// Lines that were dropped because they are too long.
    pub too_long: u64,
    /// Lines that were dropped because their end never came.
    pub torn: u64,
    /// How often the file was replaced or truncated.
    pub rotations: u64,
}

/// One file, as far as it has been read.
#[derive(Debug)]
struct TailedFile {
    file: File,
    identity: (u64, u64),
    offset: u64,
    /// The beginning of the file.
    mark: Vec<u8>,
    /// A line without its end yet.
    begun: Vec<u8>,
    /// The rest of a line that is too long is being skipped.
    skipping: bool,
    idle_looks: u32,
}

/// The end of a growing file.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    current: Option<TailedFile>,
    old: Vec<TailedFile>,
    buffer: Vec<u8>,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl Tail {
    /// Opens a file at its end or its beginning.
    ///
    /// # Errors
    /// It cannot be read, or is not a regular file.
    pub fn open(path: &Path, from_start: bool) -> io::Result<Tail> {
        let mut part = TailedFile::open(path)?;
        if !from_start {
            part.offset = part.file.metadata()?.len();
            // If reading starts within a line, its rest is skipped.
            let mut last = [b'\n'];
            if part.offset > 0 {
                part.file.read_exact_at(&mut last, part.offset - 1)?;
            }
            part.skipping = last != *b"\n";
            part.look_at_mark()?;
        }
        Ok(Tail { path: path.into(), current: Some(part), old: Vec::new(), buffer: vec![0; BUFFER_BYTES] })
    }

    /// Passes the lines written since the last call, without their line ends, to `take` until that returns false.
    ///
    /// # Errors
    /// The file cannot be read. A file that is missing for a moment is no error.
    pub fn look(&mut self, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<TailResult> {
        let mut found = TailResult::default();
        for part in &mut self.old {
            part.read(&mut self.buffer, &mut found, &mut take)?;
        }
        if let Some(part) = &mut self.current {
            part.read(&mut self.buffer, &mut found, &mut take)?;
        }
        let now = fs::metadata(&self.path).ok().filter(Metadata::is_file);
        let is_other =
            now.as_ref().is_some_and(|now| self.current.as_ref().is_none_or(|p| p.identity != identity(now)));
        if is_other && let Ok(part) = TailedFile::open(&self.path) {
            found.rotations += 1;
            self.old.extend(self.current.replace(part));
            if let Some(part) = &mut self.current {
                part.read(&mut self.buffer, &mut found, &mut take)?;
            }
        }
        let has_begun = self.current.as_ref().is_some_and(|p| p.offset > 0);
        let excess = self.old.len().saturating_sub(MOST_OLD);
        for (at, part) in self.old.iter_mut().enumerate() {
            if at < excess || (has_begun && part.idle_looks >= IDLE_LOOKS) {
                found.torn += u64::from(!part.begun.is_empty());
                part.idle_looks = u32::MAX;
            }
        }
        self.old.retain(|p| p.idle_looks < u32::MAX);
        Ok(found)
    }
}

impl TailedFile {
    fn open(path: &Path) -> io::Result<TailedFile> {
        let file = input::open_regular(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file that grows"));
        }
        Ok(TailedFile {
            file,
            identity: identity(&metadata),
            offset: 0,
            mark: Vec::new(),
            begun: Vec::new(),
            skipping: false,
            idle_looks: 0,
        })
    }

    /// Remembers the beginning of the file, as far as it has been read.
    fn look_at_mark(&mut self) -> io::Result<()> {
        let length = (self.offset as usize).min(MARK_BYTES);
        if length > self.mark.len() {
            self.mark.resize(length, 0);
            self.file.read_exact_at(&mut self.mark, 0)?;
        }
        Ok(())
    }

    fn was_truncated(&self) -> io::Result<bool> {
        if self.file.metadata()?.len() < self.offset {
            return Ok(true);
        }
        let mut begins = [0; MARK_BYTES];
        let begins = &mut begins[..self.mark.len()];
        match self.file.read_exact_at(begins, 0) {
            Ok(()) => Ok(begins != self.mark),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(e) => Err(e),
        }
    }

    fn read(
        &mut self,
        buffer: &mut [u8],
        found: &mut TailResult,
        take: &mut impl FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        if self.was_truncated()? {
            found.rotations += 1;
            found.torn += u64::from(!self.begun.is_empty());
            (self.offset, self.skipping) = (0, false);
            self.mark.clear();
            self.begun.clear();
        }
        self.idle_looks = self.idle_looks.saturating_add(1).min(u32::MAX - 1);
        let mut wanted = true;
        while wanted {
            let n = match self.file.read_at(buffer, self.offset) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.offset += n as u64;
            self.idle_looks = 0;
            wanted = self.split(&buffer[..n], found, take);
        }
        self.look_at_mark().or_else(|e| if e.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(e) })
    }

    fn split(&mut self, bytes: &[u8], found: &mut TailResult, take: &mut impl FnMut(&[u8]) -> bool) -> bool {
        let mut wanted = true;
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.begun.len() + line.len() > MOST_LINE_BYTES {
                self.begun.clear();
                found.too_long += 1;
                continue;
            }
            let line = if self.begun.is_empty() {
                line
            } else {
                self.begun.extend_from_slice(line);
                &self.begun
            };
            wanted = take(line.strip_suffix(b"\r").unwrap_or(line));
            self.begun.clear();
        }
        if !self.skipping {
            self.begun.extend_from_slice(rest);
        }
        if self.begun.len() > MOST_LINE_BYTES {
            found.too_long += 1;
            self.begun.clear();
            self.skipping = true;
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    fn look(tail: &mut Tail) -> (Vec<String>, TailResult) {
        let mut lines = Vec::new();
        let found = tail.look(|line| {
            lines.push(String::from_utf8_lossy(line).into_owned());
            true
        });
        (lines, found.expect("readable"))
    }

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
        file.write_all(text.as_bytes()).expect("written");
    }

    #[test]
    fn lines_come_when_they_are_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        append(&path, "old\nhalf of");
        let mut tail = Tail::open(&path, false).expect("open");
        append(&path, " a line\none\r\ntw");
        assert_eq!(look(&mut tail).0, ["one"]);
        append(&path, "o\n\nthree\n");
        assert_eq!(look(&mut tail).0, ["two", "", "three"]);
        assert_eq!(look(&mut tail), (vec![], TailResult::default()));
        let mut all = Tail::open(&path, true).expect("open");
        assert_eq!(look(&mut all).0, ["old", "half of a line", "one", "two", "", "three"]);
    }

    #[test]
    fn nothing_is_lost_or_counted_twice_over_a_rename() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("log"), folder.path().join("log.1"));
        append(&path, "1\n");
        let mut tail = Tail::open(&path, true).expect("open");
        assert_eq!(look(&mut tail).0, ["1"]);
        fs::rename(&path, &old).expect("renamed");
        append(&old, "2\n3");
        assert_eq!(look(&mut tail).0, ["2"]);
        append(&path, "4\n");
        // Some of the server's processes have not opened the new file yet.
        append(&old, "\n");
        let (lines, found) = look(&mut tail);
        assert_eq!((lines, found.rotations), (vec!["3".to_string(), "4".into()], 1));
        append(&old, "5\n");
        append(&path, "6\n");
        assert_eq!(look(&mut tail).0, ["5", "6"]);
        (0..=IDLE_LOOKS).for_each(|_| drop(look(&mut tail)));
        assert!(tail.old.is_empty());
    }

    #[test]
    fn a_file_that_was_truncated_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        append(&path, "first line\nand a torn");
        let mut tail = Tail::open(&path, true).expect("open");
        assert_eq!(look(&mut tail).0, ["first line"]);
        File::create(&path).expect("truncated");
        // It is longer than before by now.
        append(&path, "another line, longer than all before it\nnext\n");
        let (lines, found) = look(&mut tail);
        assert_eq!((lines.len(), found.rotations, found.torn), (2, 1, 1));
        assert_eq!(lines[1], "next");
    }

    #[test]
    fn a_line_of_a_megabyte_is_counted_and_not_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        append(&path, &"x".repeat(1 << 20));
        let mut tail = Tail::open(&path, true).expect("open");
        assert_eq!(look(&mut tail).1, TailResult { too_long: 1, ..TailResult::default() });
        assert!(tail.current.as_ref().is_some_and(|p| p.begun.is_empty()));
        append(&path, "yyy\nnext\n");
        assert_eq!(look(&mut tail).0, ["next"]);
    }
}
