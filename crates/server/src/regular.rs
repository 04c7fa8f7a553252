//! Reads a server's files: regular ones, of a size that a configuration can have. A pipe or a device in such a place would keep a reader
//! for good, and root must not wait for what another user has put there.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// No configuration and no script of a server is longer.
const MOST_BYTES: u64 = 64 << 20;

/// All of a regular file.
///
/// # Errors
/// When it cannot be read, is no regular file, or is too long.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    // An empty device is a configuration to some servers.
    let is_empty_device = found.is_file() || is_null(&file);
    if !is_empty_device {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it is longer than {} MiB", MOST_BYTES >> 20)));
    }
    Ok(bytes)
}

/// The same of a file of text.
///
/// # Errors
/// As [`read`]; when it is no UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

fn is_null(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: std::fs::Metadata| found.rdev();
    let null = std::fs::metadata("/dev/null").map(id);
    file.metadata().map(id).is_ok_and(|own| own != 0 && null.is_ok_and(|null| null == own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_or_a_device_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        for path in [pipe.as_path(), Path::new("/dev/zero"), dir.path()] {
            assert!(read(path).is_err(), "{}", path.display());
        }
        assert_eq!(read(Path::new("/dev/null")).expect("empty"), b"");
        let file = dir.path().join("file");
        std::fs::write(&file, "text").expect("written");
        assert_eq!(read_to_string(&file).expect("read"), "text");
    }
}
