//! Who listens where, and whether a listener has visitors.

use std::collections::HashSet;
use std::net::SocketAddr;

use procfs::net::{TcpNetEntry, TcpState};
use procfs::process::{FDTarget, Process};

use crate::ProbeError;

/// TCP sockets in the network namespace of a process.
fn sockets(pid: i32) -> Result<Vec<TcpNetEntry>, ProbeError> {
    let e = |what: &'static str| move |e| ProbeError::of(pid, what, e);
    let p = Process::new(pid).map_err(e("stat"))?;
    let mut all = p.tcp().map_err(e("net/tcp"))?;
    // No IPv6 is no error.
    all.extend(p.tcp6().unwrap_or_default());
    Ok(all)
}

/// Inodes of the sockets that a process holds.
///
/// # Errors
/// When its descriptors may not be read.
pub fn inodes(pid: i32) -> std::io::Result<std::collections::BTreeSet<u64>> {
    let mut all = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(Result::ok) {
        let inode = std::fs::read_link(entry.path())
            .ok()
            .and_then(|l| l.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok());
        all.extend(inode);
    }
    Ok(all)
}

/// Addresses on which a process listens.
///
/// # Errors
/// When its descriptors may not be read.
pub fn of_process(pid: i32) -> Result<Vec<SocketAddr>, ProbeError> {
    let e = |e| ProbeError::of(pid, "fd", e);
    let inodes: HashSet<u64> = Process::new(pid)
        .and_then(|p| p.fd())
        .map_err(e)?
        .filter_map(Result::ok)
        .filter_map(|fd| match fd.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        })
        .collect();
    Ok(sockets(pid)?
        .into_iter()
        .filter(|s| s.state == TcpState::Listen && inodes.contains(&s.inode))
        .map(|s| s.local_address)
        .collect())
}

/// The process that owns the listener at a local address: of several that share it, the one whose parent does not. None
/// where nobody listens, or where its descriptors may not be read.
#[must_use]
pub fn owner(address: &SocketAddr) -> Option<i32> {
    let own = i32::try_from(std::process::id()).ok()?;
    let inodes: HashSet<u64> = sockets(own)
        .ok()?
        .into_iter()
        .filter(|s| s.state == TcpState::Listen && s.local_address.port() == address.port())
        .filter(|s| s.local_address.ip() == address.ip() || s.local_address.ip().is_unspecified())
        .map(|s| s.inode)
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let holds = |p: &Process| {
        p.fd().is_ok_and(|fds| {
            fds.filter_map(Result::ok).any(|fd| matches!(fd.target, FDTarget::Socket(i) if inodes.contains(&i)))
        })
    };
    let holders: Vec<(i32, i32)> = procfs::process::all_processes()
        .ok()?
        .filter_map(Result::ok)
        .filter(holds)
        .filter_map(|p| Some((p.pid, p.stat().ok()?.ppid)))
        .collect();
    holders.iter().find(|(_, parent)| !holders.iter().any(|(pid, _)| pid == parent)).map(|(pid, _)| *pid)
}

/// Peers of connections to the given ports as the namespace of `pid` sees them: open ones and those that ended within
/// the last minute.
///
/// # Errors
/// When the socket table cannot be read.
pub fn visitors(pid: i32, ports: &[u16]) -> Result<HashSet<SocketAddr>, ProbeError> {
    peers(pid, ports, |state| state != TcpState::Listen)
}

/// Peers of open connections to the given ports.
///
/// # Errors
/// When the socket table cannot be read.
pub fn established(pid: i32, ports: &[u16]) -> Result<HashSet<SocketAddr>, ProbeError> {
    peers(pid, ports, |state| state == TcpState::Established)
}

fn peers(pid: i32, ports: &[u16], wanted: fn(TcpState) -> bool) -> Result<HashSet<SocketAddr>, ProbeError> {
    Ok(sockets(pid)?
        .into_iter()
        .filter(|s| wanted(s.state.clone()) && ports.contains(&s.local_address.port()))
        .map(|s| s.remote_address)
        .collect())
}
