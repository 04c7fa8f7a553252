//! Checks who could have written a file. Root executes nothing that other users could have written, and reads no such
//! configuration if it could execute something. The file and every folder above it must belong to root, and nobody else
//! may write to them. The administrator can trust further users by name.
//!
//! Paths are followed component by component, including symbolic links, because a user who can replace one of them
//! chooses the file. A folder above may have the sticky bit, as /tmp does: nobody else can replace root's files in it.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lastdrop_files::owner;
use nix::unistd::{Uid, User};

/// Users whose files the administrator trusts like root's: `--trust USER`.
static TRUSTED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

const MOST_LINKS: usize = 40;

/// Trusts files of a user until this process ends. Only for the command line: nothing from a file, a journal or another
/// machine may be passed here.
///
/// # Errors
/// In words, if there is no such user.
pub fn trust_user(name: &str) -> Result<(), String> {
    let by_number = || name.parse().ok();
    let named = User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    let uid = named.or_else(by_number).ok_or_else(|| format!("--trust {name}: there is no such user"))?;
    TRUSTED.lock().unwrap_or_else(PoisonError::into_inner).push(uid);
    Ok(())
}

/// Users whose files are trusted like root's.
#[must_use]
pub fn trusted_users() -> Vec<u32> {
    TRUSTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A file or folder that users other than root could have written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UntrustedFile {
    pub path: PathBuf,
    pub uid: u32,
    pub mode: u32,
}

impl UntrustedFile {
    /// Name of the owner.
    pub fn owner(&self) -> String {
        let user = User::from_uid(Uid::from_raw(self.uid)).ok().flatten();
        user.map_or_else(|| self.uid.to_string(), |user| user.name)
    }

    /// True if only the owner can write it, so that trusting the owner by name is enough.
    pub fn is_owners_alone(&self) -> bool {
        owner::is_closed_to_others(self.mode)
    }
}

/// Checks paths; each folder is checked once.
#[derive(Debug, Default)]
pub struct Checker {
    folders: HashSet<PathBuf>,
}

impl Checker {
    /// Checks that only root can write a file, or the folder in which it could be created.
    ///
    /// # Errors
    /// With the file or folder that others can write.
    pub fn check(&mut self, path: &Path) -> Result<(), UntrustedFile> {
        let mut rest: VecDeque<OsString> = components(path);
        let mut at = PathBuf::from("/");
        let mut links = 0;
        self.check_folder(&at)?;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let Ok(found) = fs::symlink_metadata(&next) else {
                // Users who can write to the folder can create the file.
                return self.check_whole(&at);
            };
            check_owner(&next, &found)?;
            if found.is_symlink() {
                links += 1;
                let target = fs::read_link(&next).unwrap_or_default();
                if links > MOST_LINKS {
                    return Err(untrusted(&next, &found));
                }
                if target.is_absolute() {
                    at = PathBuf::from("/");
                }
                for component in components(&target).into_iter().rev() {
                    rest.push_front(component);
                }
            } else if rest.is_empty() {
                return check_mode(&next, &found, false);
            } else {
                at = next;
                self.check_folder(&at)?;
            }
        }
        self.check_whole(&at)
    }

    /// Checks a folder above one that is root's.
    fn check_folder(&mut self, folder: &Path) -> Result<(), UntrustedFile> {
        if self.folders.contains(folder) {
            return Ok(());
        }
        if let Ok(found) = fs::symlink_metadata(folder) {
            check_owner(folder, &found)?;
            check_mode(folder, &found, true)?;
        }
        self.folders.insert(folder.to_path_buf());
        Ok(())
    }

    /// Checks a folder whose entries count, including those that do not exist yet.
    fn check_whole(&mut self, folder: &Path) -> Result<(), UntrustedFile> {
        fs::symlink_metadata(folder).map_or(Ok(()), |found| check_mode(folder, &found, false))
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    named.collect()
}

fn untrusted(path: &Path, found: &fs::Metadata) -> UntrustedFile {
    UntrustedFile { path: path.to_path_buf(), uid: found.uid(), mode: found.mode() & 0o7777 }
}

fn check_owner(path: &Path, found: &fs::Metadata) -> Result<(), UntrustedFile> {
    let is_trusted = found.uid() == 0 || trusted_users().contains(&found.uid());
    if is_trusted { Ok(()) } else { Err(untrusted(path, found)) }
}

fn check_mode(path: &Path, found: &fs::Metadata, above: bool) -> Result<(), UntrustedFile> {
    // The kernel's own devices (/dev/null as a configuration) contain nothing that a user could have written.
    let is_kernels = found.file_type().is_char_device();
    let is_closed = if above { owner::keeps_files_of_their_owners } else { owner::is_closed_to_others };
    if is_kernels || is_closed(found.mode()) { Ok(()) } else { Err(untrusted(path, found)) }
}

/// Files whose code a process executes: its program and its libraries.
pub fn mapped_by(pid: i32) -> Vec<PathBuf> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let text = String::from_utf8_lossy(&maps);
    let mut files: Vec<PathBuf> = text.lines().filter_map(mapped_code).map(PathBuf::from).collect();
    files.sort();
    files.dedup();
    files
}

/// The file in a line of /proc/PID/maps, if its code is executed.
fn mapped_code(line: &str) -> Option<&str> {
    let mut fields = line.splitn(6, ' ');
    let rights = fields.nth(1)?;
    let path = fields.nth(3)?.trim_start();
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    // Memory without a file has special names; the process itself created the code in it.
    let is_file = path.starts_with('/')
        && !["/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage"].iter().any(|p| path.starts_with(p));
    (rights.contains('x') && is_file).then_some(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn check(path: &Path) -> Result<(), PathBuf> {
        Checker::default().check(path).map_err(|found| found.path)
    }

    /// Runs only as root, because the rule is about what root may execute.
    #[test]
    fn only_what_nobody_but_root_can_write_is_trusted() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let mode =
            |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("own"), "").expect("written");
        assert_eq!(check(&at("own")), Ok(()));
        assert_eq!(check(&at("none")), Ok(()), "only root could make it");
        for bits in [0o664, 0o646, 0o1666] {
            mode(&at("own"), bits);
            assert_eq!(check(&at("own")), Err(at("own")), "{bits:o}");
        }
        mode(&at("own"), 0o644);
        // A file of another user, and another user's link to root's file.
        fs::write(at("theirs"), "").expect("written");
        chown(at("theirs"), Some(65534), None).expect("given away");
        assert_eq!(check(&at("theirs")), Err(at("theirs")));
        symlink(at("theirs"), at("link")).expect("a link");
        assert_eq!(check(&at("link")), Err(at("theirs")));
        symlink(at("own"), at("their-link")).expect("a link");
        std::os::unix::fs::lchown(at("their-link"), Some(65534), None).expect("given away");
        assert_eq!(check(&at("their-link")), Err(at("their-link")));
        // A folder that others may write to. With the sticky bit they can add files but not replace them.
        fs::create_dir(at("open")).expect("a folder");
        fs::write(at("open/own"), "").expect("written");
        mode(&at("open"), 0o777);
        assert_eq!(check(&at("open/own")), Err(at("open")));
        mode(&at("open"), 0o1777);
        assert_eq!(check(&at("open/own")), Ok(()));
        assert_eq!(check(&at("open/none")), Err(at("open")), "anybody could make it");
        assert_eq!(check(&at("open")), Err(at("open")), "anybody could add to it");
        assert_eq!(check(&at("open/../own")), Ok(()));
        // A cycle of links ends.
        symlink(at("b"), at("a")).expect("a link");
        symlink(at("a"), at("b")).expect("a link");
        assert!(check(&at("a")).is_err());
    }

    #[test]
    fn code_is_what_is_mapped_to_be_executed() {
        let code = |rights: &str, path: &str| {
            let line = format!("7f-80 {rights} 00000000 08:01 123                       {path}");
            mapped_code(&line).map(str::to_string)
        };
        assert_eq!(code("r-xp", "/usr/lib/a b.so"), Some("/usr/lib/a b.so".into()));
        assert_eq!(code("r-xp", "/usr/sbin/nginx (deleted)"), Some("/usr/sbin/nginx".into()));
        for (rights, path) in
            [("r--p", "/etc/x"), ("rwxs", "/dev/zero (deleted)"), ("r-xp", "[vdso]"), ("r-xp", "/memfd:x")]
        {
            assert_eq!(code(rights, path), None, "{path}");
        }
        assert!(mapped_by(std::process::id() as i32).contains(&std::env::current_exe().expect("this program")));
    }
}
