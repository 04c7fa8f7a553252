//! Temporary folders of second instances. Each is named after the process that made it, so that a later lastdrop
//! removes what a killed one left.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::{Pid, geteuid};
use tempfile::TempDir;

/// What the folders are for, as in their names.
pub const FOR_MODULES: &str = "modules";
pub const FOR_EXTENSIONS: &str = "extensions";
pub const FOR_CODE: &str = "code";

/// Creates a folder of this process's. It is removed when the returned value is dropped.
pub fn create(for_what: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(&format!("lastdrop-{for_what}-{}-", std::process::id())).tempdir()
}

/// Removes folders of processes that are gone. Returns the removed ones.
pub fn remove() -> Vec<PathBuf> {
    remove_in(&std::env::temp_dir())
}

fn remove_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let left = entries.filter(|entry| {
        let is_ours = entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == geteuid().as_raw());
        is_ours && entry.file_name().to_str().and_then(maker).is_some_and(has_gone)
    });
    left.map(|entry| entry.path()).filter(|path| fs::remove_dir_all(path).is_ok()).collect()
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
