//! Lines of the kernel log that say something about a server.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// What a line has to contain to matter.
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

/// The log from now on.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
}

impl KernelLog {
    /// Opens it at its end.
    ///
    /// # Errors
    /// Where it may not be read: most systems want root for it.
    pub fn open() -> io::Result<KernelLog> {
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(KernelLog { file })
    }

    /// Lines that matter and came since the last call.
    pub fn news(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        // A record is at most this long; a smaller buffer gets an error.
        let mut buffer = [0u8; 8192];
        // Bounded: a kernel that writes faster than we read shall not keep us here.
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
                // Records were overwritten before we came: go on with the next.
                Err(e) if e.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => break,
            }
        }
        lines
    }
}
