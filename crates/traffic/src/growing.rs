//! Reads a growing log as requests. Its format is given, or recognised as soon as there are lines.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lastdrop_files::input;
use lastdrop_model::documents::LogFile;

use crate::entry::LogEntry;
use crate::format::{Format, LineOutcome, SAMPLE_LINES, recognise};
use crate::line_counts::LineCounts;
use crate::lines::{Lines, MAGIC_BYTES, Packing};
use crate::tail::Tail;

/// A growing log with its counts.
#[derive(Debug)]
pub struct GrowingLog {
    path: PathBuf,
    tail: Tail,
    format: Option<Arc<Format>>,
    entry: LogEntry,
    tally: LineCounts,
    rotations: u64,
    /// Lines read before the format is known.
    unknown: Vec<Vec<u8>>,
}

impl GrowingLog {
    /// Opens a log at its end or its beginning.
    ///
    /// # Errors
    /// It cannot be read, or is packed.
    pub fn open(path: &Path, format: Option<&Format>, from_start: bool) -> io::Result<GrowingLog> {
        let tail = Tail::open(path, from_start)?;
        let mut magic = Vec::new();
        input::open_regular(path)?.take(MAGIC_BYTES).read_to_end(&mut magic)?;
        if Packing::of(&magic) != Packing::Plain {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is packed: it does not grow"));
        }
        let mut lines = Lines::open(path)?;
        let format = match format {
            Some(format) => Some(Arc::new(format.clone()).fitted(lines.sample()?)),
            None => recognise(lines.sample()?).ok(),
        };
        Ok(GrowingLog {
            path: path.into(),
            tail,
            format,
            entry: LogEntry::default(),
            tally: LineCounts::default(),
            rotations: 0,
            unknown: Vec::new(),
        })
    }

    /// Passes the requests written since the last call to `take`, until that returns false.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn look(&mut self, mut take: impl FnMut(&LogEntry) -> bool) -> io::Result<()> {
        let GrowingLog { path, tail, format, entry, tally, unknown, .. } = self;
        let found = tail.look(|line| {
            tally.lines += 1;
            let Some(known) = format.clone() else {
                unknown.push(line.to_vec());
                if unknown.len() >= SAMPLE_LINES {
                    *format = recognise(unknown.iter().map(Vec::as_slice)).ok();
                    read_all(unknown, format.as_ref(), entry, tally, path, &mut take);
                }
                return true;
            };
            read(line, &known, entry, tally, path, &mut take)
        })?;
        tally.lines += found.too_long + found.torn;
        tally.unparsed += found.too_long + found.torn;
        tally.too_long += found.too_long;
        tally.torn += found.torn;
        self.rotations += found.rotations;
        if self.format.is_none() && !self.unknown.is_empty() {
            self.format = recognise(self.unknown.iter().map(Vec::as_slice)).ok();
            if self.format.is_some() {
                let Self { unknown, format, entry, tally, path, .. } = self;
                read_all(unknown, format.as_ref(), entry, tally, path, &mut take);
            }
        }
        Ok(())
    }

    /// The counts of the lines so far.
    #[must_use]
    pub fn tally(&self) -> &LineCounts {
        &self.tally
    }

    /// How often the file was replaced or truncated.
    #[must_use]
    pub fn rotations(&self) -> u64 {
        self.rotations
    }

    /// The format of its lines, once known.
    #[must_use]
    pub fn format(&self) -> Option<&Format> {
        self.format.as_deref()
    }

    /// Its name, and the format of its lines once known.
    #[must_use]
    pub fn file(&self) -> LogFile {
        let format = self.format.as_ref().map_or("", |f| f.name());
        LogFile { file: self.path.display().to_string(), format: format.into() }
    }
}

fn read_all(
    lines: &mut Vec<Vec<u8>>,
    format: Option<&Arc<Format>>,
    entry: &mut LogEntry,
    tally: &mut LineCounts,
    path: &Path,
    take: &mut impl FnMut(&LogEntry) -> bool,
) {
    for line in lines.drain(..) {
        match format {
            Some(format) => drop(read(&line, format, entry, tally, path, take)),
            None => tally.reject(path, tally.lines, &line, 0, || "the format is not recognised".into()),
        }
    }
}

fn read(
    line: &[u8],
    format: &Arc<Format>,
    entry: &mut LogEntry,
    tally: &mut LineCounts,
    path: &Path,
    take: &mut impl FnMut(&LogEntry) -> bool,
) -> bool {
    entry.reset();
    entry.line.extend_from_slice(line);
    match format.read(entry) {
        LineOutcome::Request => {
            tally.requests += 1;
            tally.note_unitless(&entry.unitless);
            return take(entry);
        }
        LineOutcome::Nothing => tally.nothing += 1,
        LineOutcome::Rejected(misread) => {
            tally.reject(path, tally.lines, &entry.line, misread.at(), || format.explain(misread));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;

    #[test]
    fn an_empty_log_is_recognised_when_it_has_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let append = |text: &[u8]| {
            let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("a file");
            file.write_all(text).expect("written");
        };
        append(b"");
        let mut log = GrowingLog::open(&path, None, false).expect("open");
        let mut paths = Vec::new();
        let mut look = |log: &mut GrowingLog| {
            let take = |e: &LogEntry| {
                paths.push(String::from_utf8_lossy(e.path().unwrap_or_default()).into_owned());
                true
            };
            log.look(take).expect("readable");
            paths.len()
        };
        assert_eq!(look(&mut log), 0);
        append(b"h - - [10/Oct/2000:13:00:00 +0000] \"GET /1 HTTP/1.1\" 200 5\nrubbish\nh - - [10/Oct/2000:13:0");
        assert_eq!(look(&mut log), 1);
        append(b"0:00 +0000] \"GET /2 HTTP/1.1\" 200 5\n\n");
        append(&[b'x'; 100_000]);
        append(b"\n");
        assert_eq!(look(&mut log), 2);
        assert_eq!((paths, log.file().format), (vec!["/1".to_string(), "/2".into()], "common".into()));
        let t = log.tally();
        assert_eq!((t.lines, t.requests, t.nothing, t.unparsed, t.too_long), (5, 2, 1, 2, 1));
        assert_eq!((t.rejected[0].line, t.rejected[0].text.as_str()), (2, "rubbish"));
    }
}
