//! What a server writes into its log from some moment on.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lastdrop_files::input;

/// More than that is not read.
const MOST: u64 = 1 << 20;

pub struct Complaints {
    file: PathBuf,
    from: u64,
}

impl Complaints {
    pub fn from_now(file: &Path) -> Complaints {
        Complaints { file: file.into(), from: fs::metadata(file).map_or(0, |m| m.len()) }
    }

    /// What has come since; none where the log is no file that can be read.
    pub fn text(&self) -> Option<String> {
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
        let complaints = Complaints::from_now(&log);
        assert_eq!(complaints.text().as_deref(), Some(""));
        fs::write(&log, "old\nnew\n").expect("written");
        assert_eq!(complaints.text().as_deref(), Some("new\n"));
        assert_eq!(Complaints::from_now(Path::new("/no/such.log")).text(), None);
    }
}
