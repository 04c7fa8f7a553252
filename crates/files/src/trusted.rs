//! Files that lastdrop obeys: a journal (what to restore), a described kind of server (what to execute), a token.
//!
//! The file and every folder above it must belong to root or to the user who runs lastdrop, and nobody else may write
//! them. A folder that others may write is accepted if it is sticky, such as /tmp; a file never is. The file is opened
//! once, without following a link and without blocking. Owner, mode and type are checked on that descriptor.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::folder::Folder;
use crate::owner::{is_trusted, is_written_by_its_owner_alone};
use crate::step::step;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{} cannot be read: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "it is not read, because somebody else may write {} (owner {owner}, mode {mode:o}); it has to be root's or yours, and \
         writable for its owner alone (chown, chmod go-w), or name another file",
        path.display()
    )]
    Distrusted { path: PathBuf, owner: u32, mode: u32 },
    #[error(
        "{} is a symbolic link (owner {owner}, mode {mode:o}), and links are not followed here; name the file itself",
        path.display()
    )]
    Link { path: PathBuf, owner: u32, mode: u32 },
    #[error(
        "{} is {kind} (owner {owner}, mode {mode:o}) and no regular file; name a regular file, or take it away",
        path.display()
    )]
    Irregular { path: PathBuf, kind: &'static str, owner: u32, mode: u32 },
    #[error(
        "{} has {links} names, some of which may be in folders of others (owner {owner}, mode {mode:o}); copy it to a file of \
         its own",
        path.display()
    )]
    ManyNames { path: PathBuf, links: u64, owner: u32, mode: u32 },
    #[error(
        "{} is a symbolic link of user {owner} to {}, which is not that user's: it is not followed; name the folder itself",
        link.display(),
        to.display()
    )]
    Redirected { link: PathBuf, owner: u32, to: PathBuf },
    #[error("{} has {bytes} bytes; at most {most} are read", path.display())]
    TooLarge { path: PathBuf, bytes: u64, most: u64 },
}

impl FileError {
    pub(crate) fn io(path: &Path) -> impl Fn(io::Error) -> FileError + use<> {
        let path = path.to_path_buf();
        move |source| FileError::Io { path: path.clone(), source }
    }

    pub(crate) fn distrusted(path: &Path, about: &Metadata) -> FileError {
        FileError::Distrusted { path: path.into(), owner: about.uid(), mode: about.mode() & 0o7777 }
    }

    pub(crate) fn link(path: &Path, about: &Metadata) -> FileError {
        FileError::Link { path: path.into(), owner: about.uid(), mode: about.mode() & 0o7777 }
    }

    /// Returns true if the file does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, FileError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        let kind = match &error {
            FileError::Io { source, .. } => source.kind(),
            FileError::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            FileError::Irregular { .. } => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::PermissionDenied,
        };
        io::Error::new(kind, error)
    }
}

/// Names the type of a file that is not regular.
pub(crate) fn kind_of(about: &Metadata) -> &'static str {
    let file = about.file_type();
    match () {
        () if file.is_dir() => "a folder",
        () if file.is_fifo() => "a named pipe",
        () if file.is_socket() => "a socket",
        () if file.is_symlink() => "a symbolic link",
        () if file.is_char_device() || file.is_block_device() => "a device",
        () => "a file",
    }
}

/// An open regular file that only root and the user who runs lastdrop can have written.
#[derive(Debug)]
pub struct TrustedFile {
    file: File,
    path: PathBuf,
}

impl TrustedFile {
    /// Opens a trusted file for reading.
    ///
    /// # Errors
    /// With its name, owner and mode if it is not trusted; when it does not exist.
    pub fn open(path: &Path) -> Result<TrustedFile, FileError> {
        let (folder, name) = held(path)?;
        let path = folder.path().join(&name);
        let opened = folder.open(&name);
        TrustedFile::checked(&folder, path, opened)
    }

    /// Opens a trusted file for reading and writing, and creates it if it does not exist. Its content stays.
    ///
    /// # Errors
    /// As [`TrustedFile::open`]; also when the file has other names (hard links).
    pub fn create(path: &Path) -> Result<TrustedFile, FileError> {
        let (folder, name) = held(path)?;
        let path = folder.path().join(&name);
        step();
        let opened = folder.open_with(&name, OFlag::O_RDWR | OFlag::O_CREAT, 0o600);
        let opened = TrustedFile::checked(&folder, path, opened)?;
        let about = opened.metadata()?;
        // A caller may truncate the file; another name may be a file that an attacker wants to have emptied.
        if about.nlink() > 1 {
            return Err(opened.many_names(&about));
        }
        Ok(opened)
    }

    fn checked(folder: &Folder, path: PathBuf, opened: io::Result<File>) -> Result<TrustedFile, FileError> {
        let file = opened.map_err(|e| refusal(folder, &path, e))?;
        let file = TrustedFile { file, path };
        let about = file.metadata()?;
        let path = file.path.as_path();
        if !about.is_file() {
            let (owner, mode) = (about.uid(), about.mode() & 0o7777);
            return Err(FileError::Irregular { path: path.into(), kind: kind_of(&about), owner, mode });
        }
        if !is_trusted(about.uid()) || !is_written_by_its_owner_alone(&about) {
            return Err(FileError::distrusted(path, &about));
        }
        // In a folder that everybody may write, another user may have hard-linked one of our files.
        if about.nlink() > 1 && !is_written_by_its_owner_alone(&folder.metadata()?) {
            return Err(file.many_names(&about));
        }
        Ok(file)
    }

    fn many_names(&self, about: &Metadata) -> FileError {
        let (path, links) = (self.path.clone(), about.nlink());
        FileError::ManyNames { path, links, owner: about.uid(), mode: about.mode() & 0o7777 }
    }

    /// Returns its name without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// # Errors
    /// When the kernel cannot tell.
    pub fn metadata(&self) -> Result<Metadata, FileError> {
        self.file.metadata().map_err(FileError::io(&self.path))
    }

    /// Returns all its bytes, at most `most`.
    ///
    /// # Errors
    /// When it is larger, or cannot be read.
    pub fn read(&self, most: u64) -> Result<Vec<u8>, FileError> {
        let mut bytes = Vec::new();
        (&self.file).take(most + 1).read_to_end(&mut bytes).map_err(FileError::io(&self.path))?;
        if bytes.len() as u64 > most {
            let length = self.metadata()?.len().max(bytes.len() as u64);
            return Err(FileError::TooLarge { path: self.path.clone(), bytes: length, most });
        }
        Ok(bytes)
    }

    #[must_use]
    pub fn into_file(self) -> File {
        self.file
    }
}

/// Checks that a folder and all folders above it are trusted.
///
/// # Errors
/// With the folder that another user can change; when the folder does not exist.
pub fn check_folder(path: &Path) -> Result<(), FileError> {
    Folder::trusted(path).map(drop)
}

fn held(path: &Path) -> Result<(Folder, std::ffi::OsString), FileError> {
    let name = path.file_name().ok_or_else(|| FileError::io(path)(io::ErrorKind::IsADirectory.into()))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((Folder::trusted(folder)?, name.to_os_string()))
}

/// Finds out why a file could not be opened; it may be a link or a socket.
fn refusal(folder: &Folder, path: &Path, error: io::Error) -> FileError {
    let name = path.file_name().unwrap_or_default();
    let about = folder.open_with(name, OFlag::O_PATH, 0).and_then(|entry| entry.metadata());
    match about {
        Ok(about) if about.is_symlink() => FileError::link(path, &about),
        Ok(about) if !about.is_file() => {
            let (owner, mode) = (about.uid(), about.mode() & 0o7777);
            FileError::Irregular { path: path.into(), kind: kind_of(&about), owner, mode }
        }
        _ => FileError::io(path)(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;

    use super::*;

    const NOBODY: u32 = 65_534;

    #[test]
    fn every_file_that_another_user_had_a_hand_in_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        let write = |name: &str, mode: u32| {
            fs::write(at(name), "text").expect("written");
            fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("its mode");
        };
        write("good", 0o644);
        write("of-the-group", 0o664);
        write("of-all", 0o646);
        symlink("good", at("link")).expect("linked");
        nix::unistd::mkfifo(&at("pipe"), Mode::from_bits_truncate(0o600)).expect("made");
        let _socket = UnixListener::bind(at("socket")).expect("made");
        fs::create_dir(at("folder")).expect("made");
        let told = |name: &str| TrustedFile::open(&at(name)).and_then(|f| f.read(100)).map_err(|e| e.to_string());
        assert_eq!(told("good"), Ok(b"text".to_vec()));
        for (name, words) in [
            ("of-the-group", "mode 664"),
            ("of-all", "mode 646"),
            ("link", "a symbolic link"),
            ("pipe", "a named pipe"),
            ("socket", "a socket"),
            ("folder", "a folder"),
            ("none", "No such file"),
        ] {
            let error = told(name).expect_err(name);
            assert!(error.contains(words) && error.contains(name), "{error}");
        }
        assert!(TrustedFile::open(Path::new("/dev/zero")).expect_err("a device").to_string().contains("a device"));
        assert!(
            TrustedFile::open(&at("good")).is_ok_and(|f| f.read(3).is_err_and(|e| e.to_string().contains("4 bytes")))
        );
        if nix::unistd::geteuid().is_root() {
            write("theirs", 0o600);
            chown(at("theirs"), Some(NOBODY), None).expect("given away");
            assert!(told("theirs").expect_err("another user's").contains("owner 65534, mode 600"));
        }
    }

    #[test]
    fn what_may_be_emptied_is_neither_a_link_nor_a_second_name() {
        let dir = tempfile::tempdir().expect("a folder");
        let (victim, lock) = (dir.path().join("victim"), dir.path().join("a.lock"));
        fs::write(&victim, "text").expect("written");
        symlink(&victim, &lock).expect("linked");
        assert!(TrustedFile::create(&lock).is_err());
        fs::remove_file(&lock).expect("removed");
        fs::hard_link(&victim, &lock).expect("linked");
        assert!(TrustedFile::create(&lock).expect_err("two names").to_string().contains("2 names"));
        fs::remove_file(&lock).expect("removed");
        TrustedFile::create(&lock).expect("a new one");
        assert_eq!(fs::metadata(&lock).expect("there").mode() & 0o7777, 0o600);
        assert_eq!(fs::read_to_string(&victim).expect("there"), "text");
    }
}
