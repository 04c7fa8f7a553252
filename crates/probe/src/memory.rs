//! Memory of a group of processes, without counting shared pages twice.

use procfs::process::Process;
use serde::{Deserialize, Serialize};

use crate::ProbeError;

/// Memory of one process, bytes, from smaps_rollup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    pub pid: i32,
    pub rss: u64,
    /// Proportional: each shared page divided by the number of its users. Sums are true.
    pub pss: u64,
    /// Pages that no other process maps.
    pub private: u64,
    pub shared: u64,
    pub swap: u64,
}

/// Reads /proc/PID/smaps_rollup.
///
/// # Errors
/// When the process is gone or belongs to another user.
pub fn of_process(pid: i32) -> Result<ProcessMemory, ProbeError> {
    let e = |e| ProbeError::of(pid, "smaps_rollup", e);
    let rollup = Process::new(pid).map_err(e)?.smaps_rollup().map_err(e)?;
    let map = rollup
        .memory_map_rollup
        .0
        .first()
        .ok_or_else(|| ProbeError::Format { path: format!("/proc/{pid}/smaps_rollup"), what: "it is empty".into() })?;
    let get = |name: &str| map.extension.map.get(name).copied().unwrap_or(0);
    Ok(ProcessMemory {
        pid,
        rss: get("Rss"),
        pss: get("Pss"),
        private: get("Private_Clean") + get("Private_Dirty"),
        shared: get("Shared_Clean") + get("Shared_Dirty"),
        swap: get("Swap"),
    })
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
