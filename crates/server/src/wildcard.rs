//! Finds the files that match a pattern such as `conf.d/*.conf`, with bounded work. Another user's configuration may
//! contain `/*/*/*/*` or a folder with the whole machine below it, and root must not search there forever.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use glob::{MatchOptions, Pattern};

/// Maximum number of folder entries read for one configuration.
const MOST_ENTRIES: usize = 50_000;
const MOST_TIME: Duration = Duration::from_secs(3);
/// Patterns that exceeded the limit. A configuration is read several times, and these are not searched again.
static GIVEN_UP: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Maximum depth of folders, since a link may lead back.
const DEEPEST: usize = 40;

/// Whether a star also matches hidden files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenFiles {
    Taken,
    LeftOut,
}

/// The remaining work allowed for one configuration.
#[derive(Debug, Clone)]
pub struct WalkBudget {
    entries: usize,
    spent: Duration,
}

impl Default for WalkBudget {
    fn default() -> WalkBudget {
        WalkBudget { entries: MOST_ENTRIES, spent: Duration::ZERO }
    }
}

impl WalkBudget {
    /// Files that match a pattern, sorted by name in each folder. A star matches part of one name.
    ///
    /// # Errors
    /// In words: the pattern is invalid, or there is too much to search.
    pub fn files(&mut self, pattern: &Path, hidden: HiddenFiles) -> Result<Vec<PathBuf>, String> {
        check_given_up(pattern)?;
        let is_first = self.entries == MOST_ENTRIES;
        let mut found = vec![PathBuf::new()];
        for component in pattern.components() {
            let Component::Normal(name) = component else {
                found.iter_mut().for_each(|path| path.push(component));
                continue;
            };
            let text = name.to_string_lossy();
            if !text.contains(['*', '?', '[']) {
                found.iter_mut().for_each(|path| path.push(name));
                found.retain(|path| fs::symlink_metadata(path).is_ok());
                continue;
            }
            // In the library, two stars match nested folders; in glob(3) they are the same as one.
            let mut text = text.into_owned();
            while text.contains("**") {
                text = text.replace("**", "*");
            }
            let wanted = Pattern::new(&text).map_err(|e| format!("{}: {e}", pattern.display()))?;
            let options =
                MatchOptions { require_literal_leading_dot: hidden == HiddenFiles::LeftOut, ..MatchOptions::new() };
            let mut next = Vec::new();
            for folder in &found {
                let names = self.names(folder).ok_or_else(|| give_up(pattern, is_first))?;
                let fitting = names.into_iter().filter(|name| wanted.matches_with(&name.to_string_lossy(), options));
                next.extend(fitting.map(|name| folder.join(name)));
            }
            found = next;
        }
        Ok(found)
    }

    /// Everything below a folder, without the folder itself.
    ///
    /// # Errors
    /// In words: there is too much to search.
    pub fn below(&mut self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        check_given_up(folder)?;
        let is_first = self.entries == MOST_ENTRIES;
        let mut found = Vec::new();
        let mut open = vec![(folder.to_path_buf(), 0)];
        while let Some((at, depth)) = open.pop() {
            for name in self.names(&at).ok_or_else(|| give_up(folder, is_first))? {
                let path = at.join(name);
                // A link to a folder is not followed; the pattern library does not follow it either.
                if depth < DEEPEST && fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir()) {
                    open.push((path.clone(), depth + 1));
                }
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Entries of a folder, sorted; empty if it cannot be read. `None` if the limit is exceeded.
    fn names(&mut self, folder: &Path) -> Option<Vec<std::ffi::OsString>> {
        let begun = Instant::now();
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            self.entries = self.entries.checked_sub(1)?;
            names.push(entry.file_name());
        }
        names.sort();
        self.spent += begun.elapsed();
        (self.spent < MOST_TIME).then_some(names)
    }
}

fn check_given_up(pattern: &Path) -> Result<(), String> {
    let is_known = GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|known| known == pattern);
    if is_known { Err(too_much(pattern)) } else { Ok(()) }
}

/// Remembers a pattern only if it used up the whole budget by itself: others may also belong to another server.
fn give_up(pattern: &Path, is_first: bool) -> String {
    const MOST_KNOWN: usize = 100;
    let mut known = GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner);
    if is_first && known.len() < MOST_KNOWN {
        known.push(pattern.into());
    }
    too_much(pattern)
}

fn too_much(pattern: &Path) -> String {
    format!("{} means too many files to look through", pattern.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(pattern: &Path, hidden: HiddenFiles) -> Result<Vec<PathBuf>, String> {
        WalkBudget::default().files(pattern, hidden)
    }

    #[test]
    fn patterns_mean_what_the_library_says() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["a/x.conf", "a/.x.conf", "b/y.conf", "b/deep/z.conf", "c"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, "").expect("written");
        }
        for pattern in ["*/*.conf", "a/x.conf", "?/[xy].conf", "none/*", "*", "a/no*"] {
            let pattern = dir.path().join(pattern);
            let theirs: Vec<PathBuf> =
                glob::glob(&pattern.to_string_lossy()).expect("a pattern").filter_map(Result::ok).collect();
            assert_eq!(files(&pattern, HiddenFiles::Taken), Ok(theirs), "{}", pattern.display());
        }
        let shown = files(&dir.path().join("a/*"), HiddenFiles::LeftOut).expect("few");
        assert_eq!(shown, [dir.path().join("a/x.conf")]);
        let below = WalkBudget::default().below(dir.path()).expect("few");
        let theirs = glob::glob(&format!("{}/**/*", dir.path().display())).expect("a pattern");
        let mut theirs: Vec<PathBuf> = theirs.filter_map(Result::ok).collect();
        theirs.sort();
        assert_eq!(below, theirs);
    }

    #[test]
    fn what_means_the_whole_machine_is_given_up() {
        let begun = Instant::now();
        assert!(files(Path::new("/*/*/*/*/*/*/*/*"), HiddenFiles::Taken).is_err());
        assert!(WalkBudget::default().below(Path::new("/")).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
