//! Files that a plan names: on disk, or sent along with the plan.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use lastdrop_files::input::{MOST_BYTES, read, read_text};

/// Where the files of a plan are.
#[derive(Debug, Clone, Default)]
pub enum Files {
    /// On disk, where the plan says.
    #[default]
    Disk,
    /// Sent along with the plan, each under the name that it has there. Nothing else is read.
    Sent(Arc<BTreeMap<PathBuf, Vec<u8>>>),
}

impl Files {
    /// Reads a file.
    ///
    /// # Errors
    /// As [`read`], or the file was not sent along.
    pub fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self {
            Files::Disk => read(path),
            Files::Sent(files) => files
                .get(path)
                .cloned()
                .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it did not come along with the plan")),
        }
    }
}
