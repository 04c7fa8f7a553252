//! A change of files that lastdrop may not write, as a patch for their owner.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// Pairs of lines that are compared at most until two are equal: directives change a few lines at a place.
const MOST_PAIRS: usize = 10_000;

/// The content of a file now, if it exists, and after the change.
#[derive(Debug, Serialize, Deserialize)]
pub struct Rewrite {
    pub path: PathBuf,
    pub before: Option<String>,
    pub after: String,
}

impl Rewrite {
    /// Why another file cannot replace it, if so.
    pub fn hindrance(&self) -> Option<String> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        // The file may itself be a mount.
        let own = self.before.as_ref().map(|_| self.path.as_path());
        let refused = [Some(folder), own].into_iter().flatten().find_map(|path| access(path, AccessFlags::W_OK).err());
        refused.map(|e| format!("{}: {}", self.path.display(), e.desc()))
    }

    /// The lines that go (`- `) and those that come (`+ `), each with file and line.
    pub fn changed_lines(&self) -> Vec<String> {
        let (before, after) = (lines(self.before.as_deref().unwrap_or("")), lines(&self.after));
        let mut told = Vec::new();
        let (mut old, mut new) = (0, 0);
        while old < before.len() || new < after.len() {
            if before.get(old) == after.get(new) {
                (old, new) = (old + 1, new + 1);
                continue;
            }
            // Up to the next pair of equal lines, the nearest one.
            let (rest_old, rest_new) = (&before[old..], &after[new..]);
            let pairs = (0..rest_old.len() + rest_new.len()).flat_map(|sum| (0..=sum).map(move |i| (i, sum - i)));
            let is_pair = |(i, j): &(usize, usize)| rest_old.get(*i).is_some_and(|line| rest_new.get(*j) == Some(line));
            let near = pairs.take(MOST_PAIRS).find(is_pair).unwrap_or((rest_old.len(), rest_new.len()));
            let mut tell = |mark: char, line: &str, number: usize| {
                if !line.trim().is_empty() {
                    told.push(format!("{}:{number}: {mark} {}", self.path.display(), line.trim()));
                }
            };
            (0..near.0).for_each(|i| tell('-', rest_old[i], old + i + 1));
            (0..near.1).for_each(|i| tell('+', rest_new[i], new + i + 1));
            (old, new) = (old + near.0, new + near.1);
        }
        told
    }

    /// The change in the format of patch(1): one hunk from the first differing line to the last.
    pub fn unified(&self) -> String {
        let (before, after) = (lines(self.before.as_deref().unwrap_or("")), lines(&self.after));
        let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
        let rest = before.len().min(after.len()) - same;
        let tail = before.iter().rev().zip(after.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
        let start = same.saturating_sub(CONTEXT);
        let more = tail.min(CONTEXT);
        let span = |all: &[&str]| {
            let n = all.len() - tail + more - start;
            // An empty hunk begins before its first line.
            format!("{},{n}", if n == 0 { start } else { start + 1 })
        };
        let name = self.path.display();
        let old = self.before.as_ref().map_or_else(|| "/dev/null".to_string(), |_| name.to_string());
        let mut out = format!("--- {old}\n+++ {name}\n@@ -{} +{} @@\n", span(&before), span(&after));
        let mut put = |mark: char, all: &[&str]| {
            for line in all {
                let end = if line.ends_with('\n') { "" } else { "\n\\ No newline at end of file\n" };
                let _ = write!(out, "{mark}{line}{end}");
            }
        };
        put(' ', &before[start..same]);
        put('-', &before[same..before.len() - tail]);
        put('+', &after[same..after.len() - tail]);
        put(' ', &before[before.len() - tail..before.len() - tail + more]);
        out
    }
}

/// Lines with their line ends.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn changed_lines_are_told_where_they_are() {
        let told = |before: &str, after: &str| {
            let path = PathBuf::from("/f");
            Rewrite { path, before: Some(before.into()), after: after.into() }.changed_lines()
        };
        assert_eq!(told("a\n b\nc\nd\n", "a\n B\nc\nd\nnew\n"), ["/f:2: - b", "/f:2: + B", "/f:5: + new"]);
        assert_eq!(told("a\nb\nb\n", "a\nb\n"), ["/f:3: - b"]);
        assert_eq!(told("a\n", "x\na\n"), ["/f:1: + x"]);
        assert!(told("a\nb", "a\nb").is_empty());
    }

    #[test]
    fn patch_makes_of_the_old_file_the_new_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.conf");
        for (before, after) in [
            (Some("a\nb\nc\nd\ne\nf\ng\nh\n"), "a\nb\nc\nd\nE\nnew\nf\ng\nh\n"),
            (Some("a\n"), "a\nb"),
            (Some("a\nb"), "b"),
            (Some("x\nx\nx\n"), "x\nx\n"),
            (None, "first\nsecond\n"),
        ] {
            let _ = fs::remove_file(&path);
            if let Some(text) = before {
                fs::write(&path, text).expect("written");
            }
            let rewrite = Rewrite { path: path.clone(), before: before.map(str::to_string), after: after.into() };
            assert_eq!(rewrite.hindrance(), None);
            let file = dir.path().join("change.patch");
            fs::write(&file, rewrite.unified()).expect("written");
            let done =
                Command::new("patch").args(["-s", "-p0", "-i"]).arg(&file).arg(&path).output().expect("patch runs");
            assert!(done.status.success(), "{}{}", rewrite.unified(), String::from_utf8_lossy(&done.stdout));
            assert_eq!(fs::read_to_string(&path).expect("there"), after, "{}", rewrite.unified());
        }
    }
}
