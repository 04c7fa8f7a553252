//! A folder for secrets that live as long as a recording.
//!
//! It is locked while its owner lives. The kernel releases the lock of a killed owner, and the next recording removes
//! folders without a lock.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg, OFlag};
use tempfile::TempDir;

const PREFIX: &str = "lastdrop-record-";

/// A private folder, removed with its content when dropped.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: TempDir,
    _lock: Flock<File>,
}

impl PrivateFolder {
    /// Creates a folder among the temporary files, and removes leftovers of this user's killed recordings.
    ///
    /// # Errors
    /// No folder can be created.
    pub fn new() -> io::Result<PrivateFolder> {
        let temporary = std::env::temp_dir();
        remove_those_in(&temporary);
        loop {
            let folder = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(&temporary)?;
            // Until it is locked it looks like a leftover, and another recording may have removed it.
            let opened = match File::open(folder.path()) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let lock = Flock::lock(opened, FlockArg::LockShared).map_err(|(_, e)| e)?;
            if folder.path().exists() {
                return Ok(PrivateFolder { folder, _lock: lock });
            }
        }
    }

    /// Writes a file that only its owner may read.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.folder.path().join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

/// Removes leftovers of this user's killed recordings among the temporary files.
pub fn remove_leftovers() {
    remove_those_in(&std::env::temp_dir());
}

fn remove_those_in(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Some(_lock) = lock_leftover(&entry.path())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a folder of this user, unless it is locked.
fn lock_leftover(path: &Path) -> Option<Flock<File>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY;
    let folder = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).ok()?;
    let is_ours = folder.metadata().ok()?.uid() == nix::unistd::geteuid().as_raw();
    is_ours.then(|| Flock::lock(folder, FlockArg::LockExclusiveNonblock).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_use_stays_and_what_was_left_goes() {
        let one = PrivateFolder::new().expect("a folder");
        let key = one.write("key", "secret").expect("written");
        assert_eq!(fs::metadata(&key).expect("there").mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(one.folder.path()).expect("there").mode() & 0o777, 0o700);
        let left = tempfile::Builder::new().prefix(PREFIX).tempdir().expect("a folder").keep();
        let another = PrivateFolder::new().expect("a folder");
        assert!(key.exists() && !left.exists() && another.folder.path() != one.folder.path());
        drop(one);
        assert!(!key.exists());
    }

    #[test]
    fn those_that_begin_at_once_do_not_take_each_others() {
        let make = || {
            for _ in 0..50 {
                let folder = PrivateFolder::new().expect("a folder");
                assert!(folder.write("key", "secret").expect("written").exists());
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(make);
            }
        });
    }
}
