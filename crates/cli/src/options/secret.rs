//! Secrets in files: a token, a password. No other user may be able to write the file: whoever sets an agent's token
//! decides whose orders it obeys.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use lastdrop_files::{TrustedFile, input};

/// Limit of a secret's length, so that a large file named by mistake is not read.
const MOST_BYTES: u64 = 4096;

/// The first line of a file, or of the pipe that a shell makes of `<(command)`.
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
