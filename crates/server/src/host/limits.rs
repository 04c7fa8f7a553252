//! The soft limit of open files of a server's processes, while they run.
//!
//! A newly forked process has its parent's limit. Therefore the master is changed first, and an unknown process gets
//! the master's former limit at a restore.

use std::fs;
use std::io;

use lastdrop_files::step;
use lastdrop_probe::process;
use serde::{Deserialize, Serialize};

use super::namespace_access::{Process, denied};
use crate::ServerError;

/// A process and its former soft limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitBefore {
    pub process: Process,
    pub soft: u64,
}

/// The processes of a server, master first, with their present limits; empty if it has ended.
pub fn family(master: Process) -> Result<Vec<LimitBefore>, ServerError> {
    let children = process::children(master.0).into_iter().map(|p| (p.pid, p.start_ticks));
    let mut all = Vec::new();
    for process in std::iter::once(master).chain(children) {
        match limit(process.0, None) {
            Ok(now) => all.push(LimitBefore { process, soft: now.rlim_cur }),
            // It has ended in the meantime.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            Err(e) => return Err(denied(about(process.0))(e)),
        }
    }
    // The pid may belong to another process by now, and then the children are another's too.
    Ok(if process::is_alive(master.0, master.1) { all } else { Vec::new() })
}

fn about(pid: i32) -> String {
    format!("cannot set the limits of process {pid} (of another user's it wants CAP_SYS_RESOURCE)")
}

/// Soft and hard limit of a process, from a file that every user may read.
pub fn shown(pid: i32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let mut values = text.lines().find_map(|l| l.strip_prefix("Max open files"))?.split_whitespace();
    let mut next = || values.next()?.parse().ok();
    Some((next()?, next()?))
}

/// Checks that a server's processes may have this soft limit.
pub fn check(master: Process, soft: u64) -> Result<(), ServerError> {
    let family = family(master)?;
    if family.is_empty() {
        return Err(ServerError::Setting(format!(
            "process {}, whose limit is meant, has ended; a server that is started afresh has the limits that it is started \
             with, so that nofile is for one that runs on or is reloaded",
            master.0
        )));
    }
    for (pid, _) in family.iter().map(|of| of.process) {
        let Some((_, hard)) = shown(pid).filter(|(_, hard)| soft > *hard) else { continue };
        return Err(ServerError::Setting(format!(
            "nofile {soft} is above the hard limit of process {pid}, {hard}, which only whoever starts it can raise (systemd: \
             LimitNOFILE=)"
        )));
    }
    Ok(())
}

/// Sets the soft limit of a process; does nothing if it has ended.
pub fn set(process: Process, soft: u64) -> Result<(), ServerError> {
    let (pid, start) = process;
    if !process::is_alive(pid, start) {
        return Ok(());
    }
    step();
    let set = limit(pid, None).and_then(|now| limit(pid, Some(libc::rlimit64 { rlim_cur: soft, ..now })));
    match set {
        Err(e) if e.raw_os_error() != Some(libc::ESRCH) => Err(denied(about(pid))(e)),
        _ => Ok(()),
    }
}

/// Gives every process of the server its former limit if it still has one of `ours`. Returns notes about the others.
pub fn put_back(before: &[LimitBefore], ours: &[u64]) -> Result<Vec<String>, ServerError> {
    let Some(master) = before.first() else { return Ok(Vec::new()) };
    let mut others = Vec::new();
    // Processes forked while the master still has our limit are found afterwards.
    for of in before {
        others.extend(put_back_one(*of, ours)?);
    }
    let unknown = |child: &LimitBefore| !before.iter().any(|of| of.process == child.process);
    // A process that has set its own limit since then is left alone.
    for child in family(master.process)?.into_iter().filter(|child| unknown(child) && ours.contains(&child.soft)) {
        set(child.process, master.soft)?;
    }
    Ok(others)
}

fn put_back_one(of: LimitBefore, ours: &[u64]) -> Result<Option<String>, ServerError> {
    let (pid, start) = of.process;
    if !process::is_alive(pid, start) {
        return Ok(None);
    }
    match limit(pid, None) {
        Ok(now) if now.rlim_cur == of.soft => Ok(None),
        Ok(now) if ours.contains(&now.rlim_cur) => set(of.process, of.soft).map(|()| None),
        Ok(now) => Ok(Some(format!(
            "nofile of process {pid}: was {}, is {}: somebody else has set it, and it is left",
            of.soft, now.rlim_cur
        ))),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(denied(about(pid))(e)),
    }
}

/// Reads the limits of a process, and sets new ones if given.
fn limit(pid: i32, new: Option<libc::rlimit64>) -> io::Result<libc::rlimit64> {
    let mut old = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let new = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both structures live for the call.
    let result = unsafe { libc::prlimit64(pid, libc::RLIMIT_NOFILE, new, &raw mut old) };
    if result == 0 { Ok(old) } else { Err(io::Error::last_os_error()) }
}
