//! Secrets in files: a token, a password. The file is its owner's and nobody else may write it, for whoever writes a token decides
//! whose orders are obeyed.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use lastdrop_files::{TrustedFile, input};

/// A secret is not longer, and a file that is named by mistake is not read.
const MOST_BYTES: u64 = 4096;

/// The first line of a file, or of what a shell makes of `<(command)`.
///
/// # Errors
/// When the file is another user's, is larger than a secret, or cannot be read.
pub fn first_line(path: &Path) -> io::Result<String> {
    let bytes = match input::handed_over(path)? {
        Some(file) => from_descriptor(file)?,
        None => TrustedFile::open(path)?.read(MOST_BYTES)?,
    };
    let text =
        String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn from_descriptor(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
