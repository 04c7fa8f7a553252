//! Temporary folders of second instances. Each is named after the process that made it, so that a later lastdrop
//! removes what a killed one left.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lastdrop_probe::identity::Identity;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};
use tempfile::TempDir;

use crate::code;

/// What the folders are for, as in their names.
pub const FOR_MODULES: &str = "modules";
pub const FOR_EXTENSIONS: &str = "extensions";
pub const FOR_CODE: &str = "code";
/// Where systemd keeps the /tmp of services.
const SERVICES: &str = "/tmp";

/// Creates a folder of this process's. It is removed when the returned value is dropped.
pub fn create(for_what: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(&prefix(for_what)).tempdir()
}

/// Creates one that a process sees too, if it does not see another one: systemd gives services a /tmp of their own.
pub fn create_for(for_what: &str, pid: i32, other: &Path) -> io::Result<Option<TempDir>> {
    let id = |path: &Path| path.metadata().ok().map(|m| (m.dev(), m.ino()));
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    if id(other).is_some_and(|own| id(&root.join(other.strip_prefix("/").unwrap_or(other))) == Some(own)) {
        return Ok(None);
    }
    // A user could have mounted any folder there only in a namespace of users.
    if !Identity::of(pid).is_ok_and(|identity| identity.is_of_our_namespace()) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    tempfile::Builder::new().prefix(&prefix(for_what)).tempdir_in(root.join("tmp")).map(Some)
}

fn prefix(for_what: &str) -> String {
    format!("lastdrop-{for_what}-{}-", std::process::id())
}

/// Removes folders of processes that are gone. Returns the removed ones.
pub fn remove() -> Vec<PathBuf> {
    let services = fs::read_dir(SERVICES).into_iter().flatten().filter_map(Result::ok);
    let of_services = services.filter(|entry| entry.file_name().to_string_lossy().starts_with("systemd-private-"));
    let folders = of_services.map(|entry| entry.path().join("tmp")).chain([std::env::temp_dir()]);
    folders.flat_map(|folder| remove_in(&folder)).collect()
}

fn remove_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let left = entries.filter(|entry| {
        let is_ours = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == geteuid().as_raw());
        is_ours && entry.file_name().to_str().and_then(maker).is_some_and(has_gone)
    });
    let left = left.map(|entry| entry.path()).inspect(|path| code::end_left(path));
    left.filter(|path| fs::remove_dir_all(path).is_ok()).collect()
}

/// The process that made a folder of this name.
fn maker(name: &str) -> Option<i32> {
    let (what, rest) = name.strip_prefix("lastdrop-")?.split_once('-')?;
    let (pid, _) = rest.split_once('-')?;
    [FOR_MODULES, FOR_EXTENSIONS, FOR_CODE].contains(&what).then(|| pid.parse().ok()).flatten()
}

fn has_gone(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_processes_go_and_all_others_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let own = format!("lastdrop-code-{}-abc", std::process::id());
        let stay = [own.as_str(), "lastdrop-code-x-abc", "lastdrop-other-2147483646-abc", "lastdrop-code-2147483646"];
        for name in stay.into_iter().chain(["lastdrop-code-2147483646-abc"]) {
            fs::create_dir_all(dir.path().join(name).join("inner")).expect("made");
        }
        assert_eq!(remove_in(dir.path()), [dir.path().join("lastdrop-code-2147483646-abc")]);
        assert!(stay.iter().all(|name| dir.path().join(name).is_dir()));
    }
}
