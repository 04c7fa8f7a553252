//! Files that a user names: read whole, and only where they have an end. `/dev/zero` has none, and a pipe that nobody
//! writes to none either.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lastdrop_model::units::show_bytes;

/// More than this is not read of one file.
pub const MOST_BYTES: u64 = 256 << 20;

/// Where the files of a plan are.
#[derive(Debug, Clone, Default)]
pub enum Files {
    /// Where the plan says.
    #[default]
    Disk,
    /// They came along with the plan, each under the name that it has there. Nothing else is read.
    Sent(Arc<BTreeMap<PathBuf, Vec<u8>>>),
}

impl Files {
    /// The bytes of one.
    ///
    /// # Errors
    /// As [`read`]; and where it did not come along.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self {
            Files::Disk => read(path),
            Files::Sent(files) => files
                .get(path)
                .cloned()
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it did not come along with the plan")),
        }
    }
}

/// The device with nothing in it, which stands for "none" where a file has to be named.
fn is_null_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == libc::makedev(1, 3)
}

/// Reads a regular file, or `/dev/null`.
///
/// # Errors
/// When it cannot be read, is no regular file, or is larger than [`MOST_BYTES`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Before it is opened: opening a pipe waits for a writer.
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() && !is_null_device(&metadata) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    read_open(File::open(path)?)
}

/// Reads the text of a file, or of a pipe: what a shell makes of `<(command)`.
///
/// # Errors
/// As [`read`], and for bytes that are not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes =
        if std::fs::metadata(path)?.file_type().is_fifo() { read_open(File::open(path)?)? } else { read(path)? };
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

fn read_open(file: File) -> io::Result<Vec<u8>> {
    let too_large = |bytes: &str| {
        let most = show_bytes(MOST_BYTES);
        io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {bytes}; at most {most} of a file are read"))
    };
    let length = file.metadata()?.len();
    if length > MOST_BYTES {
        return Err(too_large(&show_bytes(length)));
    }
    // A file may grow while it is read.
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES { Err(too_large("more than that")) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_an_end_is_read() {
        assert!(read(Path::new("/dev/zero")).expect_err("no end").to_string().contains("no regular file"));
        assert!(read_text(Path::new("/dev/zero")).is_err() && read(Path::new("/")).is_err());
        assert_eq!(read(Path::new("/dev/null")).expect("nothing"), b"");
        assert!(read_text(Path::new("Cargo.toml")).is_ok_and(|t| t.contains("lastdrop-load")));
        let folder = tempfile::tempdir().expect("a folder");
        let large = folder.path().join("large");
        File::create(&large).and_then(|f| f.set_len(MOST_BYTES + 1)).expect("a sparse file");
        let error = read(&large).expect_err("too large").to_string();
        assert!(error.contains("256.0 MB"), "{error}");
    }
}
