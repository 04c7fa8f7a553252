//! A folder that is held open, and operations on its files.
//!
//! Each system call resolves a name such as /srv/site/nginx.conf again. A user who may write /srv can replace `site` by
//! a link between two calls, and root then writes elsewhere. Therefore [`Folder`] resolves the name once, one component
//! at a time, and later operations are relative to its descriptor. `openat2` could refuse all links, but root's links
//! (/var/run, a state folder on another disk) must work.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::owner::{is_trusted, is_trusted_folder};
use crate::step::step;
use crate::trusted::FileError;

/// The kernel's own limit of links in one name.
const MOST_LINKS: u32 = 40;
const HELD: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Which folders and links a name may pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkPolicy {
    /// Only those that nobody but root and the user who runs lastdrop can change.
    Trusted,
    /// All folders; a link of another user only if it leads to a folder of that user.
    OwnLinks,
}

/// A folder that is held open.
#[derive(Debug)]
pub struct Folder {
    file: File,
    path: PathBuf,
}

impl Folder {
    /// Opens a folder if only root and the user who runs lastdrop can change where its name leads.
    ///
    /// # Errors
    /// With the folder or link in the name that another user can change, or when there is no such folder.
    pub fn trusted(path: &Path) -> Result<Folder, FileError> {
        Folder::walk(path, LinkPolicy::Trusted)
    }

    /// Opens a folder that may belong to another user. That user's links may lead only to that user's folders.
    ///
    /// # Errors
    /// With the link that leads elsewhere, or when there is no such folder.
    pub fn of_anybody(path: &Path) -> Result<Folder, FileError> {
        Folder::walk(path, LinkPolicy::OwnLinks)
    }

    fn walk(path: &Path, policy: LinkPolicy) -> Result<Folder, FileError> {
        let io = |at: &Path| FileError::io(at);
        let whole = match path.is_absolute() {
            true => path.to_path_buf(),
            false => std::env::current_dir().map_err(io(path))?.join(path),
        };
        let mut rest = components(&whole);
        let mut folder = Folder::root()?;
        // Owner and name of the other user's link that was followed.
        let mut foreign: Option<(u32, PathBuf)> = None;
        let mut links = 0;
        folder.check(policy)?;
        while let Some(name) = rest.pop_front() {
            let at = folder.path.join(&name);
            let entry = File::from(
                openat(folder.as_fd(), name.as_os_str(), HELD, Mode::empty()).map_err(|e| io(&at)(e.into()))?,
            );
            let about = entry.metadata().map_err(io(&at))?;
            if about.is_symlink() {
                links += 1;
                if links > MOST_LINKS {
                    return Err(io(&at)(nix::errno::Errno::ELOOP.into()));
                }
                if !is_trusted(about.uid()) {
                    let is_first = foreign.as_ref().is_none_or(|(owner, _)| *owner == about.uid());
                    if policy == LinkPolicy::Trusted || !is_first {
                        return Err(FileError::link(&at, &about));
                    }
                    foreign = Some((about.uid(), at.clone()));
                }
                let target = readlinkat(&entry, "").map_err(|e| io(&at)(e.into()))?;
                if Path::new(&target).is_absolute() {
                    folder = Folder::root()?;
                }
                for component in components(Path::new(&target)).into_iter().rev() {
                    rest.push_front(component);
                }
                continue;
            }
            if !about.is_dir() {
                return Err(io(&at)(io::ErrorKind::NotADirectory.into()));
            }
            let path = if name == ".." { folder.path.parent().unwrap_or(Path::new("/")).to_path_buf() } else { at };
            folder = Folder { file: entry, path };
            folder.check(policy)?;
        }
        match foreign {
            Some((owner, link)) if folder.metadata()?.uid() != owner => {
                Err(FileError::Redirected { link, owner, to: folder.path })
            }
            _ => Ok(folder),
        }
    }

    fn root() -> Result<Folder, FileError> {
        let path = PathBuf::from("/");
        let flags = HELD | OFlag::O_DIRECTORY;
        let file = nix::fcntl::open(&path, flags, Mode::empty()).map_err(|e| FileError::io(&path)(e.into()))?;
        Ok(Folder { file: file.into(), path })
    }

    fn check(&self, policy: LinkPolicy) -> Result<(), FileError> {
        let about = self.metadata()?;
        match policy {
            LinkPolicy::Trusted if !is_trusted_folder(&about) => Err(FileError::distrusted(&self.path, &about)),
            LinkPolicy::Trusted | LinkPolicy::OwnLinks => Ok(()),
        }
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

    /// Opens a file in it for reading, without blocking and without following a link. The caller must still check the
    /// file.
    ///
    /// # Errors
    /// When it does not exist, is a link, or may not be read.
    pub fn open(&self, name: &OsStr) -> io::Result<File> {
        self.open_with(name, OFlag::O_RDONLY, 0)
    }

    /// Like [`Folder::open`], with other flags.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn open_with(&self, name: &OsStr, flags: OFlag, mode: u32) -> io::Result<File> {
        let always = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let file = openat(&self.file, name, flags | always, Mode::from_bits_truncate(mode))?;
        Ok(file.into())
    }

    /// Creates a new file in it that only its owner may read and write.
    ///
    /// # Errors
    /// When the name exists, even as a link, or the file cannot be created.
    pub fn create_new(&self, name: &OsStr) -> io::Result<File> {
        step();
        self.open_with(name, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL, 0o600)
    }

    /// Returns device and inode of an entry itself, not of a link's target; `None` if it does not exist.
    ///
    /// # Errors
    /// When the kernel cannot tell.
    pub fn identity(&self, name: &OsStr) -> io::Result<Option<(u64, u64)>> {
        match fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some((about.st_dev, about.st_ino))),
            Err(nix::errno::Errno::ENOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Renames an entry, replacing another one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        step();
        Ok(renameat(&self.file, from, &self.file, to)?)
    }

    /// Removes an entry if it exists and is not a folder.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_if_there(&self, name: &OsStr) -> io::Result<()> {
        step();
        match unlinkat(&self.file, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Flushes the folder's entries to disk.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn sync(&self) -> io::Result<()> {
        self.open_with(OsStr::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)?.sync_all()
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    const NOBODY: u32 = 65_534;

    #[test]
    fn links_of_root_are_followed_and_those_of_others_only_to_what_is_theirs() {
        if !nix::unistd::geteuid().is_root() {
            // Only root can create files of other users.
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        for name in ["roots", "theirs", "theirs/inner"] {
            fs::create_dir(at(name)).expect("made");
        }
        for (link, to) in [("by-root", "theirs/inner"), ("theirs/own", "inner"), ("theirs/evil", "../roots")] {
            symlink(to, at(link)).expect("linked");
        }
        for name in ["theirs", "theirs/inner", "theirs/own", "theirs/evil"] {
            lchown(at(name), Some(NOBODY), Some(NOBODY)).expect("given away");
        }
        let path =
            |opened: Result<Folder, FileError>| opened.map(|folder| folder.path.clone()).map_err(|e| e.to_string());
        for name in ["by-root", "theirs/own", "theirs/inner", "theirs/../theirs/inner"] {
            assert_eq!(path(Folder::of_anybody(&at(name))), Ok(at("theirs/inner")), "{name}");
        }
        let error = path(Folder::of_anybody(&at("theirs/evil"))).expect_err("leads to root's");
        assert!(error.contains("theirs/evil") && error.contains("65534") && error.contains("roots"), "{error}");
        for name in ["by-root", "theirs", "theirs/own", "theirs/evil"] {
            assert!(path(Folder::trusted(&at(name))).expect_err(name).contains("65534"));
        }
        assert_eq!(path(Folder::trusted(&at("roots"))), Ok(at("roots")));
    }

    #[test]
    fn a_folder_that_others_may_write_is_no_trusted_one_unless_it_is_sticky() {
        let dir = tempfile::tempdir().expect("a folder");
        let inner = dir.path().join("inner");
        fs::create_dir(&inner).expect("made");
        for (mode, is_trusted) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, true)] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("its mode");
            assert_eq!(Folder::trusted(&inner).is_ok(), is_trusted, "{mode:o}");
        }
        if nix::unistd::geteuid().is_root() {
            chown(dir.path(), Some(NOBODY), None).expect("given away");
            assert!(Folder::trusted(&inner).is_err(), "the owner of a sticky folder may replace all that is in it");
        }
    }

    #[test]
    fn a_held_folder_stays_the_same_when_its_name_leads_elsewhere() {
        let dir = tempfile::tempdir().expect("a folder");
        let (conf, moved, other) = (dir.path().join("conf"), dir.path().join("moved"), dir.path().join("other"));
        fs::create_dir(&conf).expect("made");
        fs::create_dir(&other).expect("made");
        let folder = Folder::of_anybody(&conf).expect("held");
        fs::rename(&conf, &moved).expect("moved");
        symlink(&other, &conf).expect("linked");
        folder.create_new(OsStr::new("a.new")).expect("made");
        folder.rename(OsStr::new("a.new"), OsStr::new("a")).expect("renamed");
        folder.sync().expect("on disk");
        assert!(moved.join("a").exists() && fs::read_dir(&other).expect("readable").next().is_none());
        symlink("a", moved.join("link")).expect("linked");
        assert!(folder.open(OsStr::new("link")).is_err() && folder.create_new(OsStr::new("link")).is_err());
        assert!(folder.identity(OsStr::new("none")).expect("looked").is_none());
        folder.remove_if_there(OsStr::new("none")).expect("nothing to do");
    }
}
