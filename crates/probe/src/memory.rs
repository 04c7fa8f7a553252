//! Memory of a group of processes, without counting shared pages twice.

use std::collections::BTreeMap;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::ProbeError;

/// Memory of one process, bytes, from smaps_rollup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    pub pid: i32,
    pub rss: u64,
    /// Proportional set size (PSS): each shared page is divided by the number of its users, so sums over processes are
    /// exact.
    pub pss: u64,
    /// Pages that no other process maps.
    pub private: u64,
    pub shared: u64,
    /// The anonymous part of the PSS; 0 before Linux 5.9, which does not report it.
    #[serde(default)]
    pub pss_anonymous: u64,
    pub swap: u64,
}

/// Reads /proc/PID/smaps_rollup.
///
/// # Errors
/// When the process has ended or belongs to another user.
pub fn of_process(pid: i32) -> Result<ProcessMemory, ProbeError> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|source| match (source.kind(), source.raw_os_error()) {
        (io::ErrorKind::NotFound, _) | (_, Some(libc::ESRCH)) => ProbeError::Gone(pid),
        _ => ProbeError::Read { path: path.clone(), source },
    })?;
    let mut memory = ProcessMemory { pid, ..ProcessMemory::default() };
    let mut fields = 0;
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let to = match name {
            "Rss" => &mut memory.rss,
            "Pss" => &mut memory.pss,
            "Private_Clean" | "Private_Dirty" => &mut memory.private,
            "Shared_Clean" | "Shared_Dirty" => &mut memory.shared,
            "Pss_Anon" => &mut memory.pss_anonymous,
            "Swap" => &mut memory.swap,
            _ => continue,
        };
        let kb = rest.trim().strip_suffix(" kB").and_then(|n| n.parse::<u64>().ok());
        *to += kb.ok_or_else(|| ProbeError::Format { path: path.clone(), what: line.to_string() })? * 1024;
        fields += 1;
    }
    // A process that is ending has no memory any more.
    if fields == 0 { Err(ProbeError::Gone(pid)) } else { Ok(memory) }
}

/// Reads many processes; those that end meanwhile are left out.
///
/// # Errors
/// When a process may not be read.
pub fn of_group(pids: &[i32]) -> Result<Vec<ProcessMemory>, ProbeError> {
    let mut all = Vec::with_capacity(pids.len());
    for pid in pids {
        match of_process(*pid) {
            Ok(m) => all.push(m),
            Err(ProbeError::Gone(_)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// Returns the PSS of what a process has mapped of each file, in bytes by path.
///
/// # Errors
/// When the process has ended or belongs to another user.
pub fn of_files(pid: i32) -> Result<BTreeMap<String, u64>, ProbeError> {
    let path = format!("/proc/{pid}/smaps");
    let text = fs::read_to_string(&path).map_err(|source| ProbeError::Read { path, source })?;
    Ok(by_file(&text))
}

fn by_file(smaps: &str) -> BTreeMap<String, u64> {
    let (mut all, mut file) = (BTreeMap::new(), None);
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some(kb) = line.strip_prefix("Pss:") {
            let kb: u64 = kb.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            if let Some(file) = &file {
                *all.entry(String::clone(file)).or_default() += kb * 1024;
            }
        } else if !first.ends_with(':') {
            // The header of a mapping: addresses, rights, offset, device, inode and perhaps a path.
            file = line.find('/').map(|at| line[at..].to_string());
        }
    }
    all
}

/// Estimates the kernel memory of a process in bytes: its page tables from /proc, 36 KB for stacks and task structures,
/// and 200 bytes per mapping. The last two come from what control groups are charged on Linux 6.18 for Apache and for a
/// small program.
#[must_use]
pub fn kernel_part(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tables = status.lines().find_map(|l| l.strip_prefix("VmPTE:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_or(0, |t| t.lines().count() as u64);
    tables.unwrap_or(0) * 1024 + 36 * 1024 + 200 * maps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_a_file_are_added_up_and_others_are_not() {
        let text = "7f00-7f01 r-xp 00000000 08:01 12  /usr/lib/mod a.so\nRss:   8 kB\nPss:   4 kB\nPss_Anon:   4 kB\n\
                    7f01-7f02 rw-p 00001000 08:01 12  /usr/lib/mod a.so\nPss:   3 kB\nVmFlags: rd\n\
                    7f02-7f03 rw-p 00000000 00:00 0 \nPss:   9 kB\n";
        assert_eq!(by_file(text), [("/usr/lib/mod a.so".to_string(), 7 * 1024)].into());
    }
}
