//! Servers in containers. They are found and read from outside: their processes are visible, and their files are below
//! `/proc/PID/root`. A child process enters the container to read their settings, because file names, commands and
//! process ids have their meaning only there ([`ContainedServer`]). A change is printed as a patch, because the
//! container's files belong to its owner.

mod contained;
mod inquiry;
mod maps;
mod visit;
mod within;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub use contained::ContainedServer;
pub use visit::serve;
pub use within::COMMAND;

/// Returns the root of a process's files as seen from here, if it is in a container: it has another root or its own pid
/// namespace. A mount namespace alone does not count, because systemd gives one to each service with a private /tmp.
/// `None` also if the process belongs to another user and is hidden.
#[must_use]
pub fn root_of(pid: i32) -> Option<PathBuf> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let is_other_root = !is_same_file(&root, Path::new("/"))? && has_its_program(pid, &root);
    let ids = |of: &str| fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    let has_other_ids = ids(&pid.to_string()).is_some_and(|theirs| ids("self") != Some(theirs));
    (is_other_root || has_other_ids).then_some(root)
}

/// True if a process's program is below its root. A process that used chroot was started outside, by files that mean
/// what they say.
fn has_its_program(pid: i32, root: &Path) -> bool {
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    let Ok(named) = fs::read_link(&exe) else { return true };
    let within = root.join(named.strip_prefix("/").unwrap_or(&named));
    is_same_file(&within, &exe) == Some(true) || fs::read_link(root).is_ok_and(|root| named.starts_with(root))
}

/// The path from here to a file of a process.
#[must_use]
pub fn seen_from_here(pid: i32, file: &Path) -> PathBuf {
    let inside = file.strip_prefix("/").unwrap_or(file);
    root_of(pid).map_or_else(|| file.to_path_buf(), |root| root.join(inside))
}

/// True if two paths are the same file, by device and inode: the link that leads into a container reads as if it led
/// nowhere.
#[must_use]
pub fn is_same_file(a: &Path, b: &Path) -> Option<bool> {
    let id = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    Some(id(a)? == id(b)?)
}

/// Says why a server in a container is not read or changed from outside, and what to run instead.
fn refusal(server: &str, master: i32, why: &str) -> String {
    format!(
        "{server} runs in a container (process {master}): from here it can be looked at (lastdrop watch {server}), and not more: \
         {why}. It is changed where its files and processes are: cp \"$(command -v lastdrop)\" /proc/{master}/root/tmp/ && \
         nsenter -t {master} -a /tmp/lastdrop … with the name that it has there"
    )
}
