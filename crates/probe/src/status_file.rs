//! /proc/PID/status: rights, signals and memory of a process, a line each.

use std::fs;

use crate::ProbeError;

/// Content of /proc/PID/status.
#[derive(Debug)]
pub(crate) struct StatusFile {
    pid: i32,
    text: String,
}

impl StatusFile {
    /// Reads the file of a process.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn read(pid: i32) -> Result<StatusFile, ProbeError> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| ProbeError::of(pid, "status", e))?;
        Ok(StatusFile { pid, text })
    }

    /// Returns the text of a line; None if the kernel writes no such line.
    pub fn line(&self, name: &str) -> Option<&str> {
        self.text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    /// Returns the first number of a line.
    pub fn number(&self, name: &str, radix: u32) -> Option<u64> {
        u64::from_str_radix(self.line(name)?.split_ascii_whitespace().next()?, radix).ok()
    }

    /// Returns the numbers of users or groups in a line.
    ///
    /// # Errors
    /// When the line is missing, or has another form.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>, ProbeError> {
        let line = self.line(name).ok_or_else(|| self.without(name))?;
        line.split_ascii_whitespace().map(|id| id.parse().map_err(|_| self.without(name))).collect()
    }

    /// Returns a set of bits, such as capabilities.
    ///
    /// # Errors
    /// As [`StatusFile::ids`].
    pub fn bits(&self, name: &str) -> Result<u64, ProbeError> {
        self.number(name, 16).ok_or_else(|| self.without(name))
    }

    /// The error for a line that cannot be read.
    pub fn without(&self, name: &str) -> ProbeError {
        ProbeError::Format { path: format!("/proc/{}/status", self.pid), what: format!("no {name}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_by_their_names() {
        let text =
            "Name:\tUid: 5\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGroups:\t \nVmHWM:\t  3540 kB\nCapBnd:\t000001ffffffffff\n";
        let file = StatusFile { pid: 1, text: text.into() };
        assert_eq!((file.number("Umask", 8), file.number("VmHWM", 10)), (Some(0o22), Some(3540)));
        assert_eq!(file.ids("Uid").expect("users"), [1, 2, 3, 4]);
        assert!(file.ids("Groups").expect("none").is_empty());
        assert_eq!(file.bits("CapBnd").expect("bits"), 0x1ff_ffff_ffff);
        let told = file.ids("Gid").expect_err("no such line").to_string();
        assert_eq!(told, "/proc/1/status does not look as expected: no Gid");
    }
}
