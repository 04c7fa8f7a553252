//! Writes exported lines into a file that other programs may read while it grows.

use std::io::Write;

use anyhow::Result;
use lastdrop_model::Printable;

use super::Sink;
use super::thread::Thread;
use crate::outfile::Outfile;

#[derive(Debug)]
pub(super) struct LineFile(Thread);

impl LineFile {
    /// # Errors
    /// When it cannot be written.
    pub fn open(name: &str, private: bool) -> Result<LineFile> {
        let mut file = Outfile::open(name)?.private(private).now()?;
        let thread = Thread::start("export-file", move |from, losses| {
            let mut failed: Option<String> = None;
            for piece in from {
                // Escape control characters: users look at files on terminals.
                let text = Printable::from(String::from_utf8_lossy(&piece).into_owned());
                if failed.is_none() {
                    failed = file.write_all(text.as_str().as_bytes()).err().map(|e| e.to_string());
                }
                if let Some(why) = &failed {
                    losses.add(1, || why.clone());
                }
            }
        })?;
        Ok(LineFile(thread))
    }
}

impl Sink for LineFile {
    fn take(&self, piece: Vec<u8>) {
        self.0.take(piece);
    }

    fn close(&self) -> Option<String> {
        self.0.close()
    }
}
