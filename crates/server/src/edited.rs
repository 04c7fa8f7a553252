//! A server's own files, where there is no other place for a change: what stood in them is in the journal before the
//! first byte is changed, and each is replaced whole, with the owner and mode that it had.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::ServerError;
use crate::patch::Rewrite;
use crate::private::{Like, prepare, remove_if_there};

/// A file as it was and as a change makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedFile {
    /// Behind all symbolic links.
    pub path: PathBuf,
    like: Like,
    before: Content,
    after: Content,
}

/// Text where it is text, so that a person can read it in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Bytes(Vec<u8>),
}

impl Content {
    fn of(bytes: Vec<u8>) -> Content {
        String::from_utf8(bytes).map_or_else(|e| Content::Bytes(e.into_bytes()), Content::Text)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Content::Text(text) => text.as_bytes(),
            Content::Bytes(bytes) => bytes,
        }
    }

    /// Lines of this that are not in another, a few of them.
    fn beyond(&self, other: &Content) -> Vec<String> {
        let (own, others) = (String::from_utf8_lossy(self.bytes()), String::from_utf8_lossy(other.bytes()));
        let others: std::collections::HashSet<&str> = others.lines().collect();
        own.lines().filter(|line| !others.contains(line)).take(SHOWN).map(|line| line.trim().to_string()).collect()
    }
}

/// Lines of a file that an error shows.
const SHOWN: usize = 5;

impl EditedFile {
    /// A file that holds `before` now.
    pub fn new(path: PathBuf, before: Vec<u8>, after: Vec<u8>) -> Result<EditedFile, ServerError> {
        let like = Like::of(&path).map_err(ServerError::io(format!("cannot read {}", path.display())))?;
        Ok(EditedFile { path, like, before: Content::of(before), after: Content::of(after) })
    }

    /// The same for people.
    pub fn rewrite(&self) -> Rewrite {
        let text = |content: &Content| String::from_utf8_lossy(content.bytes()).into_owned();
        Rewrite { path: self.path.clone(), before: Some(text(&self.before)), after: text(&self.after) }
    }

    /// Where its new content is until it is whole. Hidden: a server that includes all files of a folder takes no hidden
    /// ones.
    fn unfinished(&self) -> PathBuf {
        beside(&self.path, "new")
    }

    fn holds(&self, content: &Content) -> io::Result<bool> {
        Ok(fs::read(&self.path)? == content.bytes())
    }

    fn cannot(&self, what: &str) -> impl FnOnce(io::Error) -> ServerError {
        ServerError::io(format!("cannot {what} {}", self.path.display()))
    }
}

/// A hidden file beside another, of ours.
pub fn beside(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.lastdrop-{what}"))
}

/// Makes the change. Where a file cannot be written, or is not as it was, none is changed.
pub fn change(files: &[EditedFile]) -> Result<(), ServerError> {
    let made = files
        .iter()
        .try_for_each(|file| prepare(&file.unfinished(), &file.like, file.after.bytes()).map_err(file.cannot("write")));
    let as_before = made.and_then(|()| {
        let other = files.iter().find(|file| !file.holds(&file.before).unwrap_or(false));
        other.map_or(Ok(()), |file| Err(changed_by_others(&[file])))
    });
    if let Err(e) = as_before {
        for file in files {
            let _ = remove_if_there(&file.unfinished());
        }
        return Err(e);
    }
    files.iter().try_for_each(|file| put_in_place(file).map_err(file.cannot("replace")))
}

/// Puts back what stood there before. True when something of ours was there. What somebody else has changed since is
/// left as it is, and an error.
pub fn put_back(files: &[EditedFile]) -> Result<bool, ServerError> {
    let (mut ours, mut others) = (false, Vec::new());
    for file in files {
        remove_if_there(&file.unfinished()).map_err(file.cannot("put back"))?;
        if file.holds(&file.before).unwrap_or(false) {
            continue;
        }
        if !file.holds(&file.after).unwrap_or(false) {
            others.push(file);
            continue;
        }
        ours = true;
        let written = prepare(&file.unfinished(), &file.like, file.before.bytes()).and_then(|()| put_in_place(file));
        written.map_err(file.cannot("put back"))?;
    }
    if others.is_empty() { Ok(ours) } else { Err(changed_by_others(&others)) }
}

fn put_in_place(file: &EditedFile) -> io::Result<()> {
    fs::rename(file.unfinished(), &file.path)?;
    fs::File::open(file.path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn changed_by_others(files: &[&EditedFile]) -> ServerError {
    let told = files.iter().map(|file| {
        let (ours, theirs) = (file.after.beyond(&file.before), file.before.beyond(&file.after));
        format!("{} (lastdrop's '{}' was '{}')", file.path.display(), ours.join(" "), theirs.join(" "))
    });
    ServerError::ChangedByOthers { files: told.collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn files_come_back_byte_for_byte_and_what_others_wrote_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        let befores = [b"one\r\n\xff".to_vec(), b"two\n".to_vec()];
        let files: Vec<EditedFile> = paths
            .iter()
            .zip(&befores)
            .map(|(path, before)| {
                fs::write(path, before).expect("written");
                fs::set_permissions(path, fs::Permissions::from_mode(0o750)).expect("its mode");
                EditedFile::new(path.clone(), before.clone(), [b"new ", before.as_slice()].concat()).expect("read")
            })
            .collect();
        let read = || paths.each_ref().map(|path| fs::read(path).expect("there"));
        // As from a journal.
        let text = serde_json::to_string(&files).expect("JSON");
        let files: Vec<EditedFile> = serde_json::from_str(&text).expect("the same");
        change(&files).expect("changed");
        assert_eq!(read()[1], b"new two\n");
        fs::write(beside(&paths[0], "new"), "of a kill").expect("written");
        assert!(put_back(&files).expect("put back"));
        assert_eq!(read(), befores);
        assert_eq!(fs::metadata(&paths[0]).expect("there").mode() & 0o7777, 0o750);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 2, "nothing else is left");
        assert!(!put_back(&files).expect("again"), "nothing of ours was there");

        change(&files).expect("changed");
        fs::write(&paths[1], "theirs").expect("written");
        let error = put_back(&files).expect_err("theirs").to_string();
        assert!(error.contains("/b") && error.contains("new two"), "{error}");
        assert_eq!(read(), [befores[0].clone(), b"theirs".to_vec()]);
        assert!(change(&files).is_err());
        assert_eq!((read()[0].clone(), fs::read_dir(dir.path()).expect("readable").count()), (befores[0].clone(), 2));
    }
}
