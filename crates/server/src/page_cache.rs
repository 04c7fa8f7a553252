//! A cache of pages, on trial or kept, and its folder.
//!
//! On trial it answers and stores only GET and HEAD requests that carry a header of lastdrop's with a random value, and neither
//! Cookie nor Authorization. No visitor is answered from it, and nothing that a visitor gets is stored in it. A cache that is
//! kept is for all visitors without Cookie and Authorization, and has another folder. Each folder is in the journal before it
//! exists, and a restore removes it after the server has forgotten it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use lastdrop_files::{check_folder, step};
use lastdrop_probe::process::Birth;
use serde::{Deserialize, Serialize};

use crate::{ServerError, execution};

/// A cache of pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageCache {
    /// Value of [`PageCache::HEADER`] in the requests that may be answered from it: hexadecimal digits. `None`: it is for
    /// all visitors.
    pub token: Option<String>,
    /// Paths of the pages that may be in it, each with any query.
    pub paths: Vec<String>,
    /// The pages as visitors ask for them: `www.example.com:80/index.php`. A cache for all visitors has no page of another
    /// site at the same path.
    #[serde(default)]
    pub pages: Vec<String>,
    pub lifetime_s: u64,
    /// Where it stores pages; the session chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
}

impl PageCache {
    /// The header that requests of a trial carry.
    pub const HEADER: &str = "X-Lastdrop-Trial";
    /// Fields of Vary with few values in requests that a cache may answer. Some have none at all.
    pub const BOUNDED_FIELDS: [&str; 3] = ["accept-encoding", "cookie", "authorization"];

    /// Returns the token of a cache on trial. It is written into the server's configuration.
    ///
    /// # Errors
    /// If it is no hexadecimal number.
    pub(crate) fn checked_token(&self) -> Result<Option<&str>, String> {
        let is_number = |token: &&str| !token.is_empty() && token.bytes().all(|b| b.is_ascii_hexdigit());
        let token = self.token.as_deref();
        if token.is_none_or(|token| is_number(&token)) {
            Ok(token)
        } else {
            Err("the cache's token is no number".into())
        }
    }

    /// Returns what a configuration names: paths for a cache on trial, pages with their site for one of all visitors.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn named(&self) -> Result<&[String], String> {
        let all = if self.token.is_some() { &self.paths } else { &self.pages };
        if all.is_empty() { Err("no page is named for the cache".into()) } else { Ok(all) }
    }

    /// Describes it as a line of a change.
    pub(crate) fn line(&self) -> String {
        let whom =
            self.token.as_ref().map_or("all visitors".into(), |_| format!("requests with {}", PageCache::HEADER));
        format!("a cache of {} for {whom}", self.paths.join(", "))
    }
}

/// A cache that could be left to all visitors, before they meet it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOffer {
    pub cache: PageCache,
    /// The lines of the server's configuration.
    pub lines: Vec<String>,
}

/// Returns a regular expression that matches this path alone.
///
/// # Errors
/// If a configuration could read more than the path in it.
pub(crate) fn path_pattern(path: &str) -> Result<String, String> {
    if !path.starts_with('/') || !is_plain(path) {
        return Err(format!("the path {path} cannot be quoted"));
    }
    let escaped =
        |c: char| if c.is_ascii_alphanumeric() || "/_-~%:@,=&".contains(c) { c.to_string() } else { format!("[{c}]") };
    Ok(path.chars().map(escaped).collect())
}

/// Splits a page into its site with the port, in small letters, and its path.
///
/// # Errors
/// If a configuration could read more than a name in the site.
pub(crate) fn site_and_path(page: &str) -> Result<(String, &str), String> {
    let (site, path) = page.find('/').map_or((page, ""), |at| page.split_at(at));
    if site.is_empty() || !site.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b)) {
        return Err(format!("the site's name {site} cannot be quoted"));
    }
    Ok((site.to_ascii_lowercase(), path))
}

/// True if nginx and Apache read the text as it is.
pub(crate) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_graphic() && !"\"'\\^$;{}[]#?|".contains(c))
}

/// Line above those of a cache that is kept.
pub(crate) const KEPT: &str = "# A cache that lastdrop keeps; `lastdrop restore` takes it away.";

/// Beginning of the name of each folder of a cache. Nothing with another name is removed.
const NAME: &str = "lastdrop-cache-";
/// The server's workers pass through it to the folder of their own in it; nobody else lists it.
const PASSABLE: u32 = 0o711;
/// The mode of a folder that a worker's user alone writes.
const ALONE: u32 = 0o700;
const OTHERS_PASS: u32 = 0o001;

/// Chooses a folder that does not exist yet, in the first of these that the server's workers can reach.
///
/// # Errors
/// If there is none.
pub(crate) fn choose(homes: &[PathBuf], birth: &Birth) -> Result<PathBuf, ServerError> {
    let home = homes.iter().find(|home| is_fit(home, birth)).ok_or_else(|| {
        let known: Vec<String> = homes.iter().map(|home| home.display().to_string()).collect();
        ServerError::Setting(format!(
            "no folder for a cache that the server's workers can reach and only its user can change: looked at {}",
            if known.is_empty() { "none".into() } else { known.join(", ") }
        ))
    })?;
    Ok(home.join(format!("{NAME}{:016x}", random())))
}

/// True if nobody but root, the user who runs lastdrop and the server's user can change the folder, and all pass.
fn is_fit(home: &Path, birth: &Birth) -> bool {
    let is_of_server = || fs::symlink_metadata(home).is_ok_and(|about| about.is_dir() && about.uid() == birth.uid);
    let passes = |folder: &Path| fs::metadata(folder).is_ok_and(|about| about.mode() & OTHERS_PASS != 0);
    let is_own = !nix::unistd::geteuid().is_root();
    home.is_absolute()
        && (check_folder(home).is_ok() || is_of_server())
        && (is_own || home.ancestors().all(passes))
        && execution::write_for(birth, || {
            nix::unistd::eaccess(home, nix::unistd::AccessFlags::W_OK)
                .map_err(|e| ServerError::io(format!("cannot write to {}", home.display()))(e.into()))
        })
        .is_ok()
}

fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

/// Makes the folder, with the rights of the server's user. The server makes the folders in it, or `writer` does, to whom it
/// is then given: a user and a group.
pub(crate) fn make(folder: &Path, birth: &Birth, writer: Option<(u32, u32)>) -> Result<(), ServerError> {
    execution::write_for(birth, || {
        step();
        let mode = if writer.is_some() { ALONE } else { PASSABLE };
        let give = |(uid, gid)| std::os::unix::fs::lchown(folder, Some(uid), Some(gid));
        DirBuilder::new()
            .mode(mode)
            .create(folder)
            .and_then(|()| writer.map_or(Ok(()), give))
            .map_err(ServerError::io(format!("cannot make {} for a cache", folder.display())))
    })
}

/// Removes these folders, which no process of the server knows any more.
pub(crate) fn remove_all<'a>(folders: impl IntoIterator<Item = &'a PathBuf>, birth: &Birth) -> Result<(), ServerError> {
    folders.into_iter().try_for_each(|folder| remove(folder, birth))
}

/// Removes the folder with all that is in it. No link in it is followed. Doing it twice does no harm.
pub(crate) fn remove(folder: &Path, birth: &Birth) -> Result<(), ServerError> {
    if !is_ours(folder) {
        return Err(ServerError::Setting(format!("{} is no folder of a cache of lastdrop's", folder.display())));
    }
    execution::write_for(birth, || {
        step();
        match fs::remove_dir_all(folder) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(ServerError::io(format!("cannot remove {}, the folder of a cache", folder.display()))(e))
            }
            _ => Ok(()),
        }
    })
}

fn is_ours(folder: &Path) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let number = name.strip_prefix(NAME).unwrap_or_default();
    folder.is_absolute() && number.len() == 16 && number.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_folder_of_a_cache_is_removed_and_no_link_in_it_is_followed() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        let birth = Birth::of(std::process::id() as i32).expect("this process");
        let folder = choose(&["/no/such".into(), dir.path().into()], &birth).expect("a place");
        make(&folder, &birth, None).expect("made");
        assert!(make(&folder, &birth, None).is_err(), "what is there is not taken");
        let other = dir.path().join("other");
        fs::create_dir(&other).expect("made");
        fs::write(other.join("file"), "theirs").expect("written");
        fs::create_dir(folder.join("pages")).expect("made");
        std::os::unix::fs::symlink(&other, folder.join("pages/link")).expect("linked");
        remove(&folder, &birth).expect("removed");
        remove(&folder, &birth).expect("again");
        assert!(!folder.exists() && other.join("file").exists());
        for wrong in [other, "/".into(), "lastdrop-cache-0123456789abcdef".into(), folder.join("..")] {
            assert!(remove(&wrong, &birth).is_err(), "{}", wrong.display());
        }
        assert!(choose(&["/no/such".into()], &birth).is_err_and(|e| e.to_string().contains("/no/such")));
    }
}
