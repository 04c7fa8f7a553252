//! Restricts a store to its owner: nobody else may see which servers were tested with what.

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates the folder and an empty file if missing, readable by the owner only, and restricts those that an
/// older version left open. SQLite gives its other files the mode of this one.
pub fn prepare(store: &Path) -> io::Result<()> {
    if let Some(folder) = store.parent().filter(|f| !f.as_os_str().is_empty()) {
        if !folder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        } else if folder.file_name().is_some_and(|name| name == "lastdrop") {
            // Only lastdrop's own folder: --store may name a file in a folder that others use.
            close(folder, Metadata::is_dir, 0o700)?;
        }
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(store) {
        // A folder, or a file without write permission: SQLite reports that itself.
        Err(e) if !matches!(e.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::PermissionDenied) => Err(e),
        Err(_) => ["", "-wal", "-shm"].iter().try_for_each(|end| {
            let mut name = store.as_os_str().to_os_string();
            name.push(end);
            close(Path::new(&name), Metadata::is_file, 0o600)
        }),
        Ok(_) => Ok(()),
    }
}

/// Removes other users' permissions from a file or folder that we own.
fn close(path: &Path, is_ours_by_kind: fn(&Metadata) -> bool, mode: u32) -> io::Result<()> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    let ours = metadata.uid() == nix::unistd::geteuid().as_raw();
    if ours && is_ours_by_kind(&metadata) && metadata.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}
