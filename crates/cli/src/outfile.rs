//! Files that the user asks for: reports, tables, logs. Whether one can be written is found out before the work begins,
//! not when its result would be lost. What stood there stays until the new one is whole, so that a run that is killed, or a
//! disk that is full, takes no older report with it.
//!
//! A file is written beside its place and renamed. Where that cannot be (a folder that nothing may be added to, a file
//! that is mounted) it is written in place; pipes and devices are opened at once and take what comes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lastdrop_model::{Printable, printable};

use crate::stdio;

/// Where a document goes, found writable.
#[derive(Debug)]
pub struct Outfile {
    /// As the user wrote it.
    name: String,
    to: Destination,
    /// Only its owner may read it.
    private: bool,
}

#[derive(Debug)]
enum Destination {
    Stdout,
    /// A file that is put in this place once it is whole.
    Whole(PathBuf),
    /// Something that is written where it is.
    InPlace(File),
}

impl Outfile {
    /// Finds out whether a file can be written; `-` is stdout. Leaves it as it is.
    ///
    /// # Errors
    /// When it cannot.
    pub fn open(name: &str) -> Result<Outfile> {
        let to = if name == "-" {
            Destination::Stdout
        } else {
            destination(Path::new(name)).with_context(|| cannot(name))?
        };
        Ok(Outfile { name: name.to_string(), to, private: false })
    }

    /// The same for an option that may be missing.
    ///
    /// # Errors
    /// As [`Outfile::open`].
    pub fn wanted(name: Option<&str>) -> Result<Option<Outfile>> {
        name.map(Outfile::open).transpose()
    }

    /// Lets nobody but its owner read the file.
    #[must_use]
    pub fn private(self, private: bool) -> Outfile {
        Outfile { private, ..self }
    }

    /// Does it go to stdout?
    pub fn is_stdout(&self) -> bool {
        matches!(self.to, Destination::Stdout)
    }

    /// Writes a JSON document.
    ///
    /// # Errors
    /// When it cannot be written. A reader of stdout who has gone is none.
    pub fn json(self, document: &impl serde::Serialize) -> Result<()> {
        self.write(|out| {
            // Not by way of a string: the document of a long run is large.
            let mut out = BufWriter::new(out);
            serde_json::to_writer_pretty(Harmless(&mut out), document)?;
            out.write_all(b"\n")?;
            out.flush()
        })
    }

    /// Writes text. What steers a terminal is escaped in it: files are looked at on terminals.
    ///
    /// # Errors
    /// As [`Outfile::json`].
    pub fn text(self, text: &str) -> Result<()> {
        self.write(|out| out.write_all(Printable::from(text).as_str().as_bytes()))
    }

    /// Writes what is given piece by piece. Whoever gives text makes it [`Printable`].
    ///
    /// # Errors
    /// As [`Outfile::json`].
    pub fn pieces(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        self.write(|out| {
            let mut out = BufWriter::new(out);
            fill(&mut out)?;
            out.flush()
        })
    }

    /// Opens it in its place, emptied: others read it while it is written.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn now(self) -> Result<File> {
        let file = match self.to {
            Destination::InPlace(file) => emptied(&file).map(|()| file),
            Destination::Stdout => Err(io::Error::other("stdout is for the report; name a file")),
            Destination::Whole(path) => OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(if self.private { 0o600 } else { 0o666 })
                .open(path),
        };
        file.with_context(|| cannot(&self.name))
    }

    fn write(self, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        let Outfile { name, to, private } = self;
        match to {
            Destination::Stdout => fill(&mut stdio::Document),
            Destination::InPlace(mut file) => emptied(&file).and_then(|()| fill(&mut file)),
            Destination::Whole(path) => {
                let partial = beside(&path, "tmp");
                let written =
                    create(&partial, private).and_then(|mut file| fill(&mut file).and_then(|()| file.sync_all()));
                let placed = written.and_then(|()| place(&partial, &path, private));
                if placed.is_err() {
                    let _ = fs::remove_file(&partial);
                }
                placed
            }
        }
        .with_context(|| cannot(&name))
    }

    /// Opens it for lines that come one by one. Until [`Growing::finish`] they are in a file beside, `FILE.PID.partial`: that
    /// is what a killed run leaves.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn grow(self) -> Result<(File, Growing)> {
        let (file, path) = match self.to {
            Destination::InPlace(file) => (emptied(&file).map(|()| file), None),
            Destination::Stdout => (Err(io::Error::other("stdout is for the report; name a file")), None),
            Destination::Whole(path) => {
                let partial = beside(&path, "partial");
                (create(&partial, self.private), Some((partial, path)))
            }
        };
        let file = file.with_context(|| cannot(&self.name))?;
        Ok((file, Growing { name: self.name, path, private: self.private }))
    }
}

/// A file that is being written line by line.
#[derive(Debug)]
pub struct Growing {
    name: String,
    /// Where it is, and where it is to be; None once it is there.
    path: Option<(PathBuf, PathBuf)>,
    private: bool,
}

impl Growing {
    /// It is whole.
    ///
    /// # Errors
    /// When it cannot be put in its place.
    pub fn finish(mut self) -> Result<()> {
        match self.path.take() {
            Some((partial, path)) => place(&partial, &path, self.private).with_context(|| cannot(&self.name)),
            None => Ok(()),
        }
    }
}

impl Growing {
    /// It will not be whole: leaves what there is where it is, and says where.
    pub fn leave(mut self) -> Option<PathBuf> {
        self.path.take().map(|(partial, _)| partial)
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        // Nothing came of it.
        if let Some((partial, _)) = &self.path {
            let _ = fs::remove_file(partial);
        }
    }
}

fn cannot(name: &str) -> String {
    if name == "-" { "cannot write to stdout".into() } else { format!("cannot write {name}") }
}

/// How a file is to be written, tried out as far as that changes nothing.
fn destination(name: &Path) -> io::Result<Destination> {
    let existing = match fs::metadata(name) {
        Ok(metadata) => Some(metadata),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    let open = || OpenOptions::new().write(true).create(true).truncate(false).open(name);
    let kind = existing.as_ref().map(fs::Metadata::file_type);
    if kind.is_some_and(|k| k.is_fifo() || k.is_char_device() || k.is_block_device() || k.is_socket()) {
        return open().map(Destination::InPlace);
    }
    if existing.is_some() {
        // Also says that a folder is no file.
        OpenOptions::new().write(true).open(name)?;
    }
    // The file that a link points to is replaced, not the link.
    let path = match existing {
        Some(_) => fs::canonicalize(name)?,
        None if fs::symlink_metadata(name).is_ok() => return open().map(Destination::InPlace),
        None => name.to_path_buf(),
    };
    // What /dev/stdout and /dev/fd/5 lead to may have a name and no place any more.
    if existing_elsewhere(&path, name) {
        return open().map(Destination::InPlace);
    }
    if path.file_name().is_none() || name.as_os_str().as_encoded_bytes().ends_with(b"/") {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let attempt = beside(&path, "tmp");
    match create(&attempt, true).and_then(|_| fs::remove_file(&attempt)) {
        Ok(()) => Ok(Destination::Whole(path)),
        Err(_) if path.exists() => open().map(Destination::InPlace),
        Err(e) => Err(e),
    }
}

/// Is the file that was named not the one at the place that it leads to?
fn existing_elsewhere(path: &Path, name: &Path) -> bool {
    match (fs::metadata(path), fs::metadata(name)) {
        (Ok(a), Ok(b)) => {
            (a.dev(), a.ino()) != (b.dev(), b.ino()) || name.starts_with("/dev") || name.starts_with("/proc")
        }
        (Err(_), Ok(_)) => true,
        _ => false,
    }
}

/// `report.json.1234.tmp` beside `report.json`: nobody else's.
fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.{what}", std::process::id()));
    path.with_file_name(name)
}

fn create(path: &Path, private: bool) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(if private { 0o600 } else { 0o666 }).open(path)
}

/// Forgets what stood in a file; a pipe or a device has nothing to forget.
fn emptied(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// Puts a whole file in its place, with the mode and the owner of what stood there.
fn place(whole: &Path, path: &Path, private: bool) -> io::Result<()> {
    if let Ok(before) = fs::metadata(path) {
        let mode = if private { 0o600 } else { before.permissions().mode() & 0o7777 };
        // A file of somebody else's stays theirs where we may do that.
        let _ = std::os::unix::fs::chown(whole, Some(before.uid()), Some(before.gid()));
        fs::set_permissions(whole, fs::Permissions::from_mode(mode))?;
    }
    fs::rename(whole, path).or_else(|e| {
        // One that is mounted cannot be replaced.
        if !path.is_file() {
            return Err(e);
        }
        fs::copy(whole, path)?;
        fs::remove_file(whole)
    })
}

/// A document in one line, harmless on a terminal.
///
/// # Errors
/// When it is no document.
pub fn json_line(document: &impl serde::Serialize) -> Result<String> {
    let mut line = printable::json(&serde_json::to_string(document)?).into_owned();
    line.push('\n');
    Ok(line)
}

/// Takes the text of a JSON document, in whole characters as serde_json writes it, so that it does nothing to a terminal.
struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.write_all(printable::json(text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
