//! Edits a server's own files, for changes that fit nowhere else. The old content is in the journal before the first
//! byte changes. Each file is replaced as a whole and keeps its owner and mode.
//!
//! Such a file may belong to another user, who may replace it or a folder above it by a link at any time. Therefore the
//! folder is held open from the first read to the last write, and only the very file that was read is replaced. Owner
//! and mode are those of that file, never those that a journal names.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lastdrop_files::Folder;
use serde::{Deserialize, Serialize};

use crate::ServerError;
use crate::patch::Rewrite;
use crate::private::{FileAttributes, hold, prepare_in};

/// A larger file is not a configuration.
const MOST_BYTES: u64 = 256 << 20;

/// A file's content before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedFile {
    /// The path with all symbolic links resolved.
    pub path: PathBuf,
    before: Content,
    after: Content,
    /// Device and inode of the file that was read; not stored in the journal.
    #[serde(skip)]
    identity: Option<(u64, u64)>,
}

/// Stored as text if it is valid text, so that a person can read it in the journal.
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

    /// The lines that are not in the other content.
    fn lines_beyond(&self, other: &Content) -> Vec<String> {
        let (own, others) = (String::from_utf8_lossy(self.bytes()), String::from_utf8_lossy(other.bytes()));
        let others: std::collections::HashSet<&str> = others.lines().collect();
        own.lines().filter(|line| !others.contains(line)).map(|line| line.trim().to_string()).collect()
    }

    /// A few of them.
    fn beyond(&self, other: &Content) -> Vec<String> {
        self.lines_beyond(other).into_iter().take(SHOWN).collect()
    }
}

/// Number of changed lines that an error shows.
const SHOWN: usize = 5;

impl EditedFile {
    /// A file that now contains `before`.
    pub fn new(path: PathBuf, before: Vec<u8>, after: Vec<u8>) -> Result<EditedFile, ServerError> {
        let held = HeldFile::open(&path).map_err(ServerError::io(format!("cannot read {}", path.display())))?;
        let is_as_read = held.bytes == before;
        let identity = Some(held.identity());
        let file = EditedFile { path, before: Content::of(before), after: Content::of(after), identity };
        if is_as_read { Ok(file) } else { Err(changed_by_others(&[&file])) }
    }

    /// The same change as a patch for display.
    pub fn rewrite(&self) -> Rewrite {
        let text = |content: &Content| String::from_utf8_lossy(content.bytes()).into_owned();
        Rewrite { path: self.path.clone(), before: Some(text(&self.before)), after: text(&self.after) }
    }

    /// The lines that go and those that come, with the number of the first.
    pub fn changed_lines(&self) -> Vec<String> {
        self.rewrite().changed_lines()
    }

    /// Opens the file if it is the one that was read and has this content.
    fn hold(&self, content: &Content) -> Option<HeldFile> {
        let held = HeldFile::open(&self.path).ok()?;
        let is_the_same = self.identity.is_none_or(|known| known == held.identity());
        (is_the_same && held.bytes == content.bytes()).then_some(held)
    }

    /// Returns the same change of the file as it is now, which others may have changed since; `None` if nothing of it is
    /// there any more. It must have added something and removed nothing.
    ///
    /// # Errors
    /// If only some of its lines are there, or the file cannot be read.
    pub fn of_now(&self) -> Result<Option<EditedFile>, ServerError> {
        let held = match HeldFile::open(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            held => held.map_err(self.cannot("read"))?,
        };
        let now = held.bytes;
        if now == self.after.bytes() {
            return Ok(Some(self.clone()));
        }
        let added = self.added().ok_or_else(|| changed_by_others(&[self]))?;
        // Others may have indented the lines around it anew.
        for text in [added, added.trim_ascii()] {
            let mut found = (0..(now.len() + 1).saturating_sub(text.len())).filter(|at| now[*at..].starts_with(text));
            if let (Some(at), None) = (found.next(), found.next()) {
                let before = Content::of([&now[..at], &now[at + text.len()..]].concat());
                return Ok(Some(EditedFile { before, after: Content::of(now), identity: None, ..self.clone() }));
            }
        }
        let ours = self.after.lines_beyond(&self.before);
        let is_left = Content::of(now).lines_beyond(&self.before).iter().any(|line| ours.contains(line));
        if is_left { Err(changed_by_others(&[self])) } else { Ok(None) }
    }

    /// The text that the change added in one place; `None` if it removed something.
    fn added(&self) -> Option<&[u8]> {
        let (before, after) = (self.before.bytes(), self.after.bytes());
        let begins = before.iter().zip(after).take_while(|(a, b)| a == b).count();
        let rest = &before[begins..];
        let end = after.len().checked_sub(rest.len()).filter(|end| begins < *end)?;
        (after[end..] == *rest).then(|| &after[begins..end])
    }

    /// What a restore would do with the file.
    pub fn undo_action(&self) -> &'static str {
        if self.hold(&self.before).is_some() {
            "leave as it is: it holds what stood in it"
        } else if self.hold(&self.after).is_some() {
            "bring back what stood in it"
        } else {
            "leave as it is: somebody else has changed it"
        }
    }

    fn cannot(&self, what: &str) -> impl FnOnce(io::Error) -> ServerError {
        ServerError::io(format!("cannot {what} {}", self.path.display()))
    }
}

/// A regular file whose folder is held open.
#[derive(Debug)]
struct HeldFile {
    folder: Folder,
    name: OsString,
    about: Metadata,
    bytes: Vec<u8>,
}

impl HeldFile {
    /// Opens and reads the file, without following links and without blocking.
    fn open(path: &Path) -> io::Result<HeldFile> {
        let (folder, name) = hold(path)?;
        let file = folder.open(&name)?;
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(HeldFile { folder, name, about, bytes })
    }

    fn identity(&self) -> (u64, u64) {
        (self.about.dev(), self.about.ino())
    }

    /// Name of the new content until it is complete. It is hidden, because a server that includes a whole folder
    /// ignores hidden files.
    fn unfinished(&self) -> OsString {
        beside(Path::new(&self.name), "new").into_os_string()
    }

    /// Writes the new content next to the file, with the same owner and mode.
    fn prepare(&self, content: &Content) -> io::Result<()> {
        prepare_in(&self.folder, &self.unfinished(), &FileAttributes::from(&self.about), content.bytes())
    }

    /// Moves the new content into place if the name still refers to the same file.
    fn replace(&self) -> io::Result<()> {
        if self.folder.identity(&self.name)? != Some(self.identity()) {
            let _ = self.folder.remove_if_there(&self.unfinished());
            return Err(io::Error::other("another file has its name now"));
        }
        self.folder.rename(&self.unfinished(), &self.name)?;
        self.folder.sync()
    }
}

/// Path of a hidden file of lastdrop's next to another file.
pub fn beside(path: &Path, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.lastdrop-{what}"))
}

/// Makes the change. If one file cannot be written or is not as it was, none is changed.
pub fn change(files: &[EditedFile]) -> Result<(), ServerError> {
    let as_before = |file: &EditedFile| file.hold(&file.before).ok_or_else(|| changed_by_others(&[file]));
    let held = files.iter().map(as_before).collect::<Result<Vec<HeldFile>, ServerError>>()?;
    let mut both = files.iter().zip(&held);
    let made = both.try_for_each(|(file, held)| held.prepare(&file.after).map_err(file.cannot("write")));
    // Another process may have written to a file in the meantime.
    let still = made.and_then(|()| files.iter().try_for_each(|file| as_before(file).map(drop)));
    if let Err(e) = still {
        for held in &held {
            let _ = held.folder.remove_if_there(&held.unfinished());
        }
        return Err(e);
    }
    files.iter().zip(&held).try_for_each(|(file, held)| held.replace().map_err(file.cannot("replace")))
}

/// Restores the former content. Returns true if a change of lastdrop's was there. Files that others have changed since
/// are left alone and reported as an error.
pub fn put_back(files: &[EditedFile]) -> Result<bool, ServerError> {
    let (mut ours, mut others) = (false, Vec::new());
    for file in files {
        let Ok(held) = HeldFile::open(&file.path) else {
            others.push(file);
            continue;
        };
        held.folder.remove_if_there(&held.unfinished()).map_err(file.cannot("put back"))?;
        if held.bytes == file.before.bytes() {
            continue;
        }
        if held.bytes != file.after.bytes() {
            others.push(file);
            continue;
        }
        ours = true;
        held.prepare(&file.before).and_then(|()| held.replace()).map_err(file.cannot("put back"))?;
    }
    if others.is_empty() { Ok(ours) } else { Err(changed_by_others(&others)) }
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
    use std::fs;
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
        // As read from a journal.
        let text = serde_json::to_string(&files).expect("JSON");
        let files: Vec<EditedFile> = lastdrop_model::read_json(&text).expect("the same");
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

    #[test]
    fn what_was_added_is_found_in_a_file_that_others_have_changed_since() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.conf");
        let (before, after) = ("http {\n  a;\n}\n", "http {\n  a;\n  # ours\n  b;\n}\n");
        fs::write(&path, before).expect("written");
        let file = EditedFile::new(path.clone(), before.into(), after.into()).expect("read");
        let now = |text: &str| {
            fs::write(&path, text).expect("written");
            file.of_now()
        };
        let put_back_to = |text: &str| {
            let found = now(text).expect("readable")?;
            assert!(put_back(&[found]).expect("put back"));
            fs::read_to_string(&path).ok()
        };
        assert_eq!(put_back_to(after).as_deref(), Some(before));
        let changed = after.replace("  a;", "  a2;\n  c;").replace("}", "} # end");
        let wanted = before.replace("  a;", "  a2;\n  c;").replace("}", "} # end");
        assert_eq!(put_back_to(&changed), Some(wanted));
        assert_eq!(put_back_to(before), None);
        assert_eq!(put_back_to(""), None);
        assert!(now("http {\n  b;\n}\n").is_err_and(|e| e.to_string().contains("# ours")));
        fs::remove_file(&path).expect("removed");
        assert_eq!(file.of_now().expect("not there"), None);
    }

    #[test]
    fn a_change_follows_no_link_that_was_put_in_its_way() {
        if !nix::unistd::geteuid().is_root() {
            // Only root can create files of other users.
            return;
        }
        const NOBODY: u32 = 65_534;
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        let give = |name: &str| std::os::unix::fs::lchown(at(name), Some(NOBODY), Some(NOBODY)).expect("given away");
        let file = || EditedFile::new(at("theirs/site.conf"), b"theirs\n".to_vec(), b"changed\n".to_vec());
        let begin = || {
            for name in ["theirs", "moved", "roots"] {
                let _ = fs::remove_dir_all(at(name)).or_else(|_| fs::remove_file(at(name)));
            }
            for name in ["theirs", "roots"] {
                fs::create_dir(at(name)).expect("made");
                fs::write(at(name).join("site.conf"), "theirs\n").expect("written");
            }
            give("theirs");
            give("theirs/site.conf");
        };
        let roots = || {
            let about = fs::metadata(at("roots/site.conf")).expect("there");
            let names = fs::read_dir(at("roots")).expect("readable").count();
            (fs::read_to_string(at("roots/site.conf")).expect("there"), about.uid(), names)
        };
        let as_it_was = ("theirs\n".to_string(), 0, 1);
        // The folder is replaced by a link between reading and writing.
        begin();
        let read = file().expect("read");
        fs::rename(at("theirs"), at("moved")).expect("moved");
        std::os::unix::fs::symlink("roots", at("theirs")).expect("linked");
        give("theirs");
        assert!(change(std::slice::from_ref(&read)).is_err() && put_back(std::slice::from_ref(&read)).is_err());
        assert!(file().is_err());
        assert_eq!(roots(), as_it_was);
        // The file is replaced by a link.
        begin();
        let read = file().expect("read");
        fs::remove_file(at("theirs/site.conf")).expect("removed");
        std::os::unix::fs::symlink("../roots/site.conf", at("theirs/site.conf")).expect("linked");
        give("theirs/site.conf");
        assert!(change(std::slice::from_ref(&read)).is_err() && file().is_err());
        assert_eq!(roots(), as_it_was);
        // A hard link to root's file is a different file from the one that was read.
        begin();
        let read = file().expect("read");
        fs::remove_file(at("theirs/site.conf")).expect("removed");
        fs::hard_link(at("roots/site.conf"), at("theirs/site.conf")).expect("linked");
        assert!(change(std::slice::from_ref(&read)).is_err());
        assert_eq!(roots(), as_it_was);
        // Without interference, another user's file is changed, keeps its owner, and is restored.
        begin();
        let read = file().expect("read");
        change(std::slice::from_ref(&read)).expect("changed");
        assert_eq!(fs::read_to_string(at("theirs/site.conf")).expect("there"), "changed\n");
        assert_eq!(fs::metadata(at("theirs/site.conf")).expect("there").uid(), NOBODY);
        assert!(put_back(&[read]).expect("put back"));
    }

    #[test]
    fn owner_and_mode_are_those_of_the_file_and_not_those_of_a_journal() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("a.conf");
        fs::write(&path, "after").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        // A journal as an older lastdrop wrote it, or an attacker.
        let journal = serde_json::json!({
            "path": path,
            "like": { "uid": 65_534, "gid": 65_534, "mode": 0o4755 },
            "before": "before",
            "after": "after",
        });
        let file: EditedFile = serde_json::from_value(journal).expect("an older journal's");
        assert!(put_back(&[file]).expect("put back"));
        let about = fs::metadata(&path).expect("there");
        assert_eq!((about.mode() & 0o7777, about.uid()), (0o600, nix::unistd::geteuid().as_raw()));
        assert_eq!(fs::read_to_string(&path).expect("there"), "before");
    }
}
