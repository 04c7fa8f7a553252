//! Servers in containers. They are found and looked at from outside: their processes are seen, their files are below
//! `/proc/PID/root`. Their settings are read by a child that has gone to where files, commands and process ids mean what they
//! say ([`Contained`]); a change of them is told as a patch, for a container's files are its owner's.

mod contained;
mod inquiry;
mod maps;
mod visit;
mod within;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use contained::Contained;
pub use visit::serve;
pub use within::COMMAND;

/// The root of a process's files as seen from here, if it is in a container: it has another root, or process ids of its own.
/// A mount namespace alone is none: systemd gives one to each service with a private /tmp. None, too, where another user's
/// process hides it.
#[must_use]
pub fn root_of(pid: i32) -> Option<PathBuf> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let is_other_root = !is_same_file(&root, Path::new("/"))? && has_its_program(pid, &root);
    let ids = |of: &str| fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    let has_other_ids = ids(&pid.to_string()).is_some_and(|theirs| ids("self") != Some(theirs));
    (is_other_root || has_other_ids).then_some(root)
}

/// Is the program of a process below its root? One that has locked itself up (chroot) was started outside, by files that
/// mean what they say.
fn has_its_program(pid: i32, root: &Path) -> bool {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let Ok(named) = fs::read_link(&exe) else { return true };
    let within = root.join(named.strip_prefix("/").unwrap_or(&named));
    is_same_file(&within, &exe) == Some(true) || fs::read_link(root).is_ok_and(|root| named.starts_with(root))
}

/// A file of a process's as seen from here.
#[must_use]
pub fn seen_from_here(pid: i32, file: &Path) -> PathBuf {
    let inside = file.strip_prefix("/").unwrap_or(file);
    root_of(pid).map_or_else(|| file.to_path_buf(), |root| root.join(inside))
}

/// Are they one file? By what the kernel knows it by: the link that leads into a container reads as if it led nowhere.
#[must_use]
pub fn is_same_file(a: &Path, b: &Path) -> Option<bool> {
    let id = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    Some(id(a)? == id(b)?)
}

/// Why a server in a container is not read or changed from outside, and what to run.
fn refusal(server: &str, master: i32, why: &str) -> String {
    format!(
        "{server} runs in a container (process {master}): from here it can be looked at (lastdrop watch {server}), and not more: \
         {why}. It is changed where its files and processes are: cp \"$(command -v lastdrop)\" /proc/{master}/root/tmp/ && \
         nsenter -t {master} -a /tmp/lastdrop … with the name that it has there"
    )
}
