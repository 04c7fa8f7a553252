//! Counts the open files of a group's processes, a few processes per sample, and reads how many each may have.

use std::fs;

use super::{ProcessGroup, SETTLED};
use crate::stat::read_into;

/// Processes whose open files are counted in one sample.
const FILES_COUNTED: usize = 20;

impl ProcessGroup {
    /// Counts the open files of the next few processes.
    pub(super) fn count_files(&mut self) {
        let after = self.files_counted_to;
        let next = self.members.range(after.saturating_add(1)..).chain(self.members.range(..=after));
        let pids: Vec<i32> = next.map(|(pid, _)| *pid).take(FILES_COUNTED).collect();
        for pid in pids {
            if let Some(member) = self.members.get_mut(&pid) {
                member.fds = count_fds(pid);
                // A server sets its workers' limit right after it has forked them.
                if member.fds_limit.is_none() || member.first.1.elapsed() < SETTLED {
                    member.fds_limit = fds_limit(pid);
                }
            }
            self.files_counted_to = pid;
        }
    }
}

/// Returns the number of open files of a process.
#[must_use]
pub fn count_fds(pid: i32) -> Option<u64> {
    let path = format!("/proc/{pid}/fd");
    // Since Linux 6.2 the size of the folder is the number of files.
    let size = fs::metadata(&path).ok()?.len();
    if size > 0 { Some(size) } else { Some(fs::read_dir(path).ok()?.count() as u64) }
}

/// Returns how many files a process may have open.
#[must_use]
pub fn fds_limit(pid: i32) -> Option<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: asks for a limit and sets none; the structure lives for the call.
    let result = unsafe { libc::prlimit64(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit) };
    if result == 0 {
        return Some(limit.rlim_cur);
    }
    // For another user's process the call needs CAP_SYS_RESOURCE, which root in a container may lack. The file does
    // not.
    let mut buffer = [0u8; 4096];
    let text = read_into(&format!("/proc/{pid}/limits"), &mut buffer)?;
    text.lines().find_map(|l| l.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}
