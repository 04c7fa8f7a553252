//! Files that the user asks for: reports, tables, logs.
//!
//! lastdrop checks that a file can be written before the work begins, not when its result would be lost. An older file
//! stays until the new one is complete, so neither a killed run nor a full disk destroys an older report.
//!
//! lastdrop writes a temporary file in the same folder and renames it. Where that is impossible (a folder without write
//! permission, a mounted file), it writes in place. It opens pipes and devices at once and writes directly to them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lastdrop_model::{Printable, printable};

use crate::stdio;

/// Destination of a document, checked to be writable.
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
    /// A file that is moved to this path once it is complete.
    Whole(PathBuf),
    /// A file, pipe or device that is written directly.
    InPlace(File),
}

impl Outfile {
    /// Checks that a file can be written, without changing it; `-` is stdout.
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

    /// Like [`Outfile::open`], for an option that may be missing.
    ///
    /// # Errors
    /// As [`Outfile::open`].
    pub fn wanted(name: Option<&str>) -> Result<Option<Outfile>> {
        name.map(Outfile::open).transpose()
    }

    /// Makes the file readable by its owner alone.
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
    /// When it cannot be written. A closed pipe at stdout is not an error.
    pub fn json(self, document: &impl serde::Serialize) -> Result<()> {
        self.write(|out| {
            // Without a string in between: the document of a long run is large.
            let mut out = BufWriter::new(out);
            serde_json::to_writer_pretty(TerminalSafe(&mut out), document)?;
            out.write_all(b"\n")?;
            out.flush()
        })
    }

    /// Writes text and escapes its control characters, because users look at files on terminals.
    ///
    /// # Errors
    /// As [`Outfile::json`].
    pub fn text(self, text: &str) -> Result<()> {
        self.write(|out| out.write_all(Printable::from(text).as_str().as_bytes()))
    }

    /// Writes piece by piece what `fill` produces. `fill` has to make its text [`Printable`].
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

    /// Opens the file itself and empties it, for other programs that read it while it grows.
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

    /// Opens the file for lines that come one by one. Until [`PartialFile::finish`] they are in `FILE.PID.partial`; a killed run
    /// leaves that file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn grow(self) -> Result<(File, PartialFile)> {
        let (file, path) = match self.to {
            Destination::InPlace(file) => (emptied(&file).map(|()| file), None),
            Destination::Stdout => (Err(io::Error::other("stdout is for the report; name a file")), None),
            Destination::Whole(path) => {
                let partial = beside(&path, "partial");
                (create(&partial, self.private), Some((partial, path)))
            }
        };
        let file = file.with_context(|| cannot(&self.name))?;
        Ok((file, PartialFile { name: self.name, path, private: self.private }))
    }
}

/// A file that is being written line by line.
#[derive(Debug)]
pub struct PartialFile {
    name: String,
    /// The path of the partial file and the final path; None once it is there.
    path: Option<(PathBuf, PathBuf)>,
    private: bool,
}

impl PartialFile {
    /// Moves the complete file to its final path.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn finish(mut self) -> Result<()> {
        match self.path.take() {
            Some((partial, path)) => place(&partial, &path, self.private).with_context(|| cannot(&self.name)),
            None => Ok(()),
        }
    }
}

impl PartialFile {
    /// Leaves the incomplete file where it is and returns its path.
    pub fn leave(mut self) -> Option<PathBuf> {
        self.path.take().map(|(partial, _)| partial)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Neither finished nor left: the run failed.
        if let Some((partial, _)) = &self.path {
            let _ = fs::remove_file(partial);
        }
    }
}

fn cannot(name: &str) -> String {
    if name == "-" { "cannot write to stdout".into() } else { format!("cannot write {name}") }
}

/// How to write a file; tries as much as it can without a change.
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
        // Fails for a folder, too.
        OpenOptions::new().write(true).open(name)?;
    }
    // Replace the target of a symbolic link, not the link.
    let path = match existing {
        Some(_) => fs::canonicalize(name)?,
        None if fs::symlink_metadata(name).is_ok() => return open().map(Destination::InPlace),
        None => name.to_path_buf(),
    };
    // /dev/stdout and /dev/fd/5 may lead to a file that has been deleted.
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

/// Does `name` lead to another file than the one at `path`?
fn existing_elsewhere(path: &Path, name: &Path) -> bool {
    match (fs::metadata(path), fs::metadata(name)) {
        (Ok(a), Ok(b)) => {
            (a.dev(), a.ino()) != (b.dev(), b.ino()) || name.starts_with("/dev") || name.starts_with("/proc")
        }
        (Err(_), Ok(_)) => true,
        _ => false,
    }
}

/// `report.json.1234.tmp` for `report.json`: a name that no other process uses.
fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.{what}", std::process::id()));
    path.with_file_name(name)
}

fn create(path: &Path, private: bool) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(if private { 0o600 } else { 0o666 }).open(path)
}

/// Empties a file; a pipe or a device stays as it is.
fn emptied(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// Moves a complete file to its path, with the mode and owner of the file that it replaces.
fn place(whole: &Path, path: &Path, private: bool) -> io::Result<()> {
    if let Ok(before) = fs::metadata(path) {
        let mode = if private { 0o600 } else { before.permissions().mode() & 0o7777 };
        // Keep the owner if we have the rights to.
        let _ = std::os::unix::fs::chown(whole, Some(before.uid()), Some(before.gid()));
        fs::set_permissions(whole, fs::Permissions::from_mode(mode))?;
    }
    fs::rename(whole, path).or_else(|e| {
        // A mounted file cannot be replaced by a rename.
        if !path.is_file() {
            return Err(e);
        }
        fs::copy(whole, path)?;
        fs::remove_file(whole)
    })
}

/// A document as one line of JSON, without control characters.
///
/// # Errors
/// When it cannot be serialized.
pub fn json_line(document: &impl serde::Serialize) -> Result<String> {
    let mut line = printable::json(&serde_json::to_string(document)?).into_owned();
    line.push('\n');
    Ok(line)
}

/// Escapes control characters in a JSON document for terminals. serde_json writes whole characters at a time.
struct TerminalSafe<W>(W);

impl<W: Write> Write for TerminalSafe<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.write_all(printable::json(text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
