//! The files that a pattern such as `conf.d/*.conf` means, found with bounded work: a configuration of another user may name `/*/*/*/*`,
//! or a folder with the whole machine below it, and root must not walk there for good.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use glob::{MatchOptions, Pattern};

/// Entries of folders that are looked at for one configuration.
const MOST_ENTRIES: usize = 50_000;
const MOST_TIME: Duration = Duration::from_secs(3);
/// Patterns that meant too much. A configuration is read several times, and these are not looked through again.
static GIVEN_UP: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Folders in folders. A link may lead back.
const DEEPEST: usize = 40;

/// Does a star mean hidden files, too?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hidden {
    Taken,
    LeftOut,
}

/// What is left of the work that one configuration is worth.
#[derive(Debug)]
pub struct Walk {
    entries: usize,
    spent: Duration,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk { entries: MOST_ENTRIES, spent: Duration::ZERO }
    }
}

impl Walk {
    /// What a pattern means, sorted by name in each folder. A star stands for a part of one name.
    ///
    /// # Errors
    /// In words: it is no pattern, or there is too much to look through.
    pub fn files(&mut self, pattern: &Path, hidden: Hidden) -> Result<Vec<PathBuf>, String> {
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
            // To the library two stars mean folders in folders; to glob(3) they are one.
            let mut text = text.into_owned();
            while text.contains("**") {
                text = text.replace("**", "*");
            }
            let wanted = Pattern::new(&text).map_err(|e| format!("{}: {e}", pattern.display()))?;
            let options =
                MatchOptions { require_literal_leading_dot: hidden == Hidden::LeftOut, ..MatchOptions::new() };
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

    /// All that is below a folder, the folder left out.
    ///
    /// # Errors
    /// In words: there is too much to look through.
    pub fn below(&mut self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        check_given_up(folder)?;
        let is_first = self.entries == MOST_ENTRIES;
        let mut found = Vec::new();
        let mut open = vec![(folder.to_path_buf(), 0)];
        while let Some((at, depth)) = open.pop() {
            for name in self.names(&at).ok_or_else(|| give_up(folder, is_first))? {
                let path = at.join(name);
                // A link to a folder is not followed, as the library of patterns does not.
                if depth < DEEPEST && fs::symlink_metadata(&path).is_ok_and(|about| about.is_dir()) {
                    open.push((path.clone(), depth + 1));
                }
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// The entries of a folder, sorted; none of one that cannot be read. None: there is too much.
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

/// Only one that used up all of a walk by itself is remembered: others may be those of another server, too.
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

    fn files(pattern: &Path, hidden: Hidden) -> Result<Vec<PathBuf>, String> {
        Walk::default().files(pattern, hidden)
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
            assert_eq!(files(&pattern, Hidden::Taken), Ok(theirs), "{}", pattern.display());
        }
        let shown = files(&dir.path().join("a/*"), Hidden::LeftOut).expect("few");
        assert_eq!(shown, [dir.path().join("a/x.conf")]);
        let below = Walk::default().below(dir.path()).expect("few");
        let theirs = glob::glob(&format!("{}/**/*", dir.path().display())).expect("a pattern");
        let mut theirs: Vec<PathBuf> = theirs.filter_map(Result::ok).collect();
        theirs.sort();
        assert_eq!(below, theirs);
    }

    #[test]
    fn what_means_the_whole_machine_is_given_up() {
        let begun = Instant::now();
        assert!(files(Path::new("/*/*/*/*/*/*/*/*"), Hidden::Taken).is_err());
        assert!(Walk::default().below(Path::new("/")).is_err());
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
