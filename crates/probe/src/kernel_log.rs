//! Lines of the kernel log that concern a server.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// A line matters if it contains one of these.
const MATTERS: &[&str] = &[
    "SYN flooding",
    "table full, dropping packet",
    "time wait bucket table overflow",
    "Out of memory",
    "out of memory",
    "oom-kill",
    "Killed process",
    "too many orphaned sockets",
    "file-max limit",
    "segfault at",
    "blocked for more than",
    "fork rejected by pids controller",
    "neighbour table overflow",
];

/// The kernel log from now on.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Opens the log at its end.
    ///
    /// # Errors
    /// When it may not be read: most systems require root.
    pub fn open() -> io::Result<KernelLog> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(KernelLog { file })
    }

    /// Returns the lines that matter and were written since the last call.
    pub fn news(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        // A record is at most this long; a smaller buffer gets an error.
        let mut buffer = [0u8; 8192];
        // Bounded, in case the kernel writes faster than we read.
        for _ in 0..1000 {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    let text = String::from_utf8_lossy(&buffer[..n]);
                    if let Some(line) = text.lines().next().and_then(|l| l.split_once(';')).map(|(_, line)| line)
                        && MATTERS.iter().any(|m| line.contains(m))
                    {
                        lines.push(line.to_string());
                    }
                }
                // Records were overwritten before we read them: continue with the next.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        lines
    }
}
