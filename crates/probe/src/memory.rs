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

/// Memory of the mappings with one name, bytes. Swapped pages count as resident.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MappingMemory {
    /// Pages of its own: anonymous ones and written copies of a file's. Of memory that processes share, the process's
    /// part (PSS).
    pub private: u64,
    pub resident: u64,
}

/// Returns the memory of a process by mapping: `[heap]`, `anonymous`, `[stack]`, `shared memory`, or the path of a file.
/// Clean pages of files are in the page cache and do not count.
///
/// # Errors
/// When the process has ended or belongs to another user.
pub fn of_mappings(pid: i32) -> Result<BTreeMap<String, MappingMemory>, ProbeError> {
    let path = format!("/proc/{pid}/smaps");
    let text = fs::read_to_string(&path).map_err(|source| match (source.kind(), source.raw_os_error()) {
        (io::ErrorKind::NotFound, _) | (_, Some(libc::ESRCH)) => ProbeError::Gone(pid),
        _ => ProbeError::Read { path, source },
    })?;
    // A process that is ending has no memory any more.
    if text.is_empty() { Err(ProbeError::Gone(pid)) } else { Ok(by_mapping(&text)) }
}

fn by_mapping(smaps: &str) -> BTreeMap<String, MappingMemory> {
    let mut all: BTreeMap<String, MappingMemory> = BTreeMap::new();
    let (mut name, mut is_shared, mut is_file) = (String::new(), false, false);
    for line in smaps.lines() {
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let Some(field) = first.strip_suffix(':') else {
            // The header of a mapping: addresses, rights, offset, device, inode and perhaps a path.
            is_shared = rest.split_whitespace().next().is_some_and(|rights| rights.ends_with('s'));
            name = mapping_name(line, is_shared);
            is_file = name.starts_with('/');
            continue;
        };
        let Some(kb) = rest.trim().strip_suffix(" kB").and_then(|n| n.parse::<u64>().ok()) else { continue };
        let (is_private, is_resident) = match field {
            "Pss" => (is_shared, false),
            "Private_Dirty" => (!is_shared, true),
            "Private_Clean" => (!is_shared && !is_file, !is_file || is_shared),
            "Shared_Dirty" => (false, true),
            "Shared_Clean" => (false, !is_file || is_shared),
            "Swap" => (!is_shared, true),
            _ => continue,
        };
        if kb > 0 && (is_private || is_resident) {
            let memory = all.entry(name.clone()).or_default();
            memory.private += if is_private { kb * 1024 } else { 0 };
            memory.resident += if is_resident { kb * 1024 } else { 0 };
        }
    }
    all
}

/// The name that a reader knows a mapping by.
fn mapping_name(header: &str, is_shared: bool) -> String {
    // Paths may hold blanks.
    let mut rest = header;
    for _ in 0..5 {
        rest = rest.trim_start().split_once(char::is_whitespace).map_or("", |(_, rest)| rest);
    }
    let path = rest.trim();
    let is_memory = path.ends_with(" (deleted)") || path.starts_with("/dev/") || path.starts_with("[anon_shmem");
    if is_shared && (path.is_empty() || is_memory) {
        return "shared memory".into();
    }
    if path.is_empty() { "anonymous".into() } else { path.into() }
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

    #[test]
    fn own_pages_are_counted_by_mapping_and_the_page_cache_is_not() {
        let mapping = |header: &str, fields: &str| format!("{header}\n{fields}VmFlags: rd wr\n");
        let text = [
            mapping(
                "5500-5600 rw-p 00000000 00:00 0                    [heap]",
                "Private_Dirty:  8 kB\nShared_Dirty: 4 kB\nSwap: 4 kB\n",
            ),
            mapping("7000-7001 rw-p 00000000 00:00 0 ", "Private_Dirty:  12 kB\nPrivate_Clean: 4 kB\nPss: 99 kB\n"),
            mapping("7001-7002 rw-p 00000000 00:00 0 ", "Private_Dirty:  4 kB\n"),
            mapping(
                "7100-7101 rw-p 00001000 08:01 12   /usr/lib/mod a.so",
                "Private_Dirty:  4 kB\nPrivate_Clean: 40 kB\n",
            ),
            mapping("7200-7201 rw-s 00000000 00:01 77   /dev/zero (deleted)", "Pss:  6 kB\nShared_Dirty: 12 kB\n"),
            mapping("7300-7301 r-xp 00000000 08:01 13   /usr/bin/x", "Private_Clean:  12 kB\n"),
        ]
        .concat();
        let kb = |private: u64, resident: u64| MappingMemory { private: private * 1024, resident: resident * 1024 };
        let expected: BTreeMap<String, MappingMemory> = [
            ("[heap]", kb(12, 16)),
            ("anonymous", kb(20, 20)),
            ("/usr/lib/mod a.so", kb(4, 4)),
            ("shared memory", kb(6, 12)),
        ]
        .into_iter()
        .map(|(name, memory)| (name.to_string(), memory))
        .collect();
        assert_eq!(by_mapping(&text), expected);
        assert!(of_mappings(std::process::id() as i32).is_ok_and(|all| all["[stack]"].private > 0));
    }
}
