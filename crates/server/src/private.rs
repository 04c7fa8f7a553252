//! Files that only lastdrop's user may read. A journal contains a server's environment including passwords, because
//! restarting the server needs it. Therefore only its owner may read it, and its folder is the owner's alone. Files
//! that an older version left open are closed when they are found.
//!
//! Overrides are different: the server must read them, perhaps as another user.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use lastdrop_files::{Folder, step};
use lastdrop_probe::process::Birth;
use nix::fcntl::OFlag;

/// Who may read a file of lastdrop's.
#[derive(Debug, Clone, Copy)]
pub enum Readers<'a> {
    Us,
    /// Only a server started by this user and group.
    Server {
        uid: u32,
        gid: u32,
    },
    /// The same readers as the existing file, or otherwise as `or_like`: the configuration that includes it.
    AsBefore {
        or_like: Option<&'a Path>,
    },
}

const OURS: u32 = 0o600;
const OURS_FOLDER: u32 = 0o700;
/// A server of another user must be able to reach its override, but no user can list the folder.
const PASSABLE_FOLDER: u32 = 0o711;
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Replaces a file that only lastdrop's user may read. After a crash it has the old or the new content, never a part.
pub fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_durably_for(Readers::Us, path, bytes)
}

/// The same for a file that others may have to read.
pub fn write_durably_for(readers: Readers<'_>, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (folder, name) = hold(path)?;
    let temporary = unfinished_name(&name);
    // A file left by a crash may be readable by others, and another process may have it open.
    let _ = folder.remove_if_there(&temporary);
    let mut file = folder.create_new(&temporary)?;
    // Before it has any content.
    let foreign = give_to(&file, &folder, &name, readers)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    folder.rename(&temporary, &name)?;
    if foreign {
        keep_to_ourselves(folder.path())?;
    }
    folder.sync()
}

/// Opens the folder of a file, and returns the file's name in it. Operations in an open folder cannot be redirected.
pub fn hold(path: &Path) -> io::Result<(Folder, OsString)> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((Folder::of_anybody(folder)?, name.to_os_string()))
}

/// Replaces a file that a server's program reads for a question, with the rights of the server, which may be another
/// user's.
pub fn write_for_question(birth: &Birth, path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_durably_for(Readers::Server { uid: birth.uid, gid: birth.gid }, path, bytes)
}

/// Owner and mode of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAttributes {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl FileAttributes {
    pub fn of(path: &Path) -> io::Result<FileAttributes> {
        Ok(FileAttributes::from(&fs::metadata(path)?))
    }
}

impl From<&Metadata> for FileAttributes {
    /// The set-uid, set-gid and sticky bits are left out: no settings file runs as its owner.
    fn from(metadata: &Metadata) -> FileAttributes {
        FileAttributes { uid: metadata.uid(), gid: metadata.gid(), mode: metadata.mode() & 0o777 }
    }
}

/// Creates a file with this content and these attributes; when this returns, it is on disk and can replace another.
pub fn prepare(path: &Path, like: &FileAttributes, bytes: &[u8]) -> io::Result<()> {
    let (folder, name) = hold(path)?;
    prepare_in(&folder, &name, like, bytes)
}

/// The same in an open folder.
pub fn prepare_in(folder: &Folder, name: &OsStr, like: &FileAttributes, bytes: &[u8]) -> io::Result<()> {
    let _ = folder.remove_if_there(name);
    let mut file = folder.create_new(name)?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (like.uid, like.gid) {
        fchown(&file, Some(like.uid), Some(like.gid))?;
    }
    file.set_permissions(fs::Permissions::from_mode(like.mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

pub fn remove_if_there(path: &Path) -> std::io::Result<()> {
    step();
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Path of a file's new content until it is complete.
pub fn unfinished(path: &Path) -> PathBuf {
    PathBuf::from(unfinished_name(path.as_os_str()))
}

fn unfinished_name(name: &OsStr) -> OsString {
    let mut name = name.to_os_string();
    name.push(".new");
    name
}

/// Sets the owner and mode for the readers. Returns true if the file now belongs to another user.
fn give_to(file: &File, folder: &Folder, name: &OsStr, readers: Readers<'_>) -> io::Result<bool> {
    match readers {
        Readers::Us => Ok(false),
        Readers::Server { uid, gid } => {
            let other = uid != own_uid();
            if other {
                fchown(file, Some(uid), Some(gid))?;
            }
            Ok(other)
        }
        Readers::AsBefore { or_like } => {
            let entry = folder.open_with(name, OFlag::O_PATH, 0).and_then(|entry| entry.metadata());
            let like = entry.ok().filter(Metadata::is_file).or_else(|| fs::metadata(or_like?).ok());
            if let Some(like) = &like
                && (like.uid(), like.gid()) != (own_uid(), nix::unistd::getegid().as_raw())
            {
                // Only root may do that; for other users the file stays their own.
                let _ = fchown(file, Some(like.uid()), Some(like.gid()));
            }
            // A settings file is never executable.
            let mode = like.map_or(0o644, |m| m.permissions().mode() & 0o666);
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            Ok(false)
        }
    }
}

fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Creates the folder of journals, or closes an open one together with its journals.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        DirBuilder::new().recursive(true).mode(OURS_FOLDER).create(folder)?;
    }
    keep_to_ourselves(folder)
}

/// Closes an existing folder of journals, and the journals and locks in it.
pub fn keep_to_ourselves(folder: &Path) -> io::Result<()> {
    let mut mode = OURS_FOLDER;
    let mut all_ours = true;
    for entry in fs::read_dir(folder)?.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = name.trim_end_matches(".new");
        let Ok(metadata) = entry.metadata() else { continue };
        let secret = name.ends_with(".journal") || name.ends_with(".lock");
        let settings = is_settings_file(name);
        all_ours &= (secret || settings) && metadata.is_file();
        if secret {
            close(&entry.path(), &metadata, OURS)?;
        } else if settings && (metadata.uid() != own_uid() || metadata.permissions().mode() & OTHERS != 0) {
            mode = PASSABLE_FOLDER;
        }
    }
    let metadata = fs::metadata(folder)?;
    // LASTDROP_STATE may name a shared folder such as /tmp, which must not be closed.
    let named_for_us = folder.file_name().is_some_and(|name| name == "lastdrop");
    if (all_ours || named_for_us) && metadata.permissions().mode() & STICKY == 0 {
        close(folder, &metadata, mode)?;
    }
    Ok(())
}

/// True if lastdrop creates settings files with such a name.
pub fn is_settings_file(name: &str) -> bool {
    [".trial.conf", ".test.conf", ".kept.conf", ".kept.2.conf"].iter().any(|end| name.ends_with(end))
}

/// Takes away other users' read permission on a file of lastdrop's. A file that others may write is left alone: another
/// user may have written it, and the reader must notice.
fn close(path: &Path, metadata: &Metadata, mode: u32) -> io::Result<()> {
    let now = metadata.permissions().mode() & 0o7777;
    if now & OTHERS_WRITE != 0 {
        return Ok(());
    }
    if metadata.uid() != own_uid() || metadata.is_symlink() || now & OTHERS == mode & OTHERS {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    fn open_up(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    #[test]
    fn what_was_left_open_is_closed() {
        let dir = tempfile::tempdir().expect("a folder");
        let state = dir.path().join("state");
        make_folder(&state).expect("made");
        assert_eq!(mode(&state), 0o700);
        let journal = state.join("apache-x.journal");
        write_durably(&journal, b"{}").expect("written");
        assert_eq!(mode(&journal), 0o600);
        open_up(&state, 0o755);
        open_up(&journal, 0o644);
        make_folder(&state).expect("mended");
        assert_eq!((mode(&state), mode(&journal)), (0o700, 0o600));
        // A file that others could write is not made to look like ours.
        open_up(&journal, 0o620);
        make_folder(&state).expect("looked at");
        assert_eq!(mode(&journal), 0o620);
    }

    #[test]
    fn a_folder_that_is_not_ours_alone_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("a folder");
        open_up(dir.path(), 0o755);
        fs::write(dir.path().join("of-others"), "").expect("written");
        make_folder(dir.path()).expect("looked at");
        assert_eq!(mode(dir.path()), 0o755);
        let sticky = dir.path().join("tmp");
        fs::create_dir(&sticky).expect("made");
        open_up(&sticky, 0o1777);
        make_folder(&sticky).expect("looked at");
        assert_eq!(mode(&sticky), 0o1777);
    }

    #[test]
    fn an_included_override_is_as_readable_as_the_configuration() {
        let dir = tempfile::tempdir().expect("a folder");
        let (config, file) = (dir.path().join("main.conf"), dir.path().join("zz.conf"));
        fs::write(&config, "").expect("written");
        for want in [0o640, 0o604] {
            open_up(&config, want);
            let _ = fs::remove_file(&file);
            write_durably_for(Readers::AsBefore { or_like: Some(&config) }, &file, b"x").expect("written");
            assert_eq!(mode(&file), want);
        }
        open_up(&file, 0o660);
        write_durably_for(Readers::AsBefore { or_like: Some(&config) }, &file, b"y").expect("written");
        assert_eq!(mode(&file), 0o660, "what stood there decides");
    }

    #[test]
    fn a_server_of_another_user_can_read_its_override_and_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            // Without root, no other user can own one of our files.
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let state = dir.path().join("state");
        make_folder(&state).expect("made");
        let file = state.join("a.trial.conf");
        write_durably_for(Readers::Server { uid: 65_534, gid: 65_534 }, &file, b"x").expect("written");
        assert_eq!((mode(&state), mode(&file), fs::metadata(&file).expect("there").uid()), (0o711, 0o600, 65_534));
        fs::remove_file(&file).expect("removed");
        keep_to_ourselves(&state).expect("closed");
        assert_eq!(mode(&state), 0o700);
    }
}
