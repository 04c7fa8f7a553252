//! Reads what a server appends to its log from some moment on.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lastdrop_files::input;
use lastdrop_probe::process::Birth;
use lastdrop_probe::reader::Reader;

/// At most this much is read.
const MOST: u64 = 1 << 20;

pub struct Complaints<'a> {
    file: PathBuf,
    from: u64,
    /// The server whose configuration names the log.
    birth: &'a Birth,
}

impl Complaints<'_> {
    pub fn from_now<'a>(file: &Path, birth: &'a Birth) -> Complaints<'a> {
        let _reader = Reader::of(birth);
        Complaints { file: file.into(), from: fs::metadata(file).map_or(0, |m| m.len()), birth }
    }

    /// Returns the text written since; `None` if the log is not a readable file.
    pub fn text(&self) -> Option<String> {
        let _reader = Reader::of(self.birth);
        let mut file = input::open_regular(&self.file).ok()?;
        file.seek(SeekFrom::Start(self.from)).ok()?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = dir.path().join("error.log");
        fs::write(&log, "old\n").expect("written");
        let birth = Birth::of(std::process::id() as i32).expect("this process");
        let complaints = Complaints::from_now(&log, &birth);
        assert_eq!(complaints.text().as_deref(), Some(""));
        fs::write(&log, "old\nnew\n").expect("written");
        assert_eq!(complaints.text().as_deref(), Some("new\n"));
        assert_eq!(Complaints::from_now(Path::new("/no/such.log"), &birth).text(), None);
    }
}
