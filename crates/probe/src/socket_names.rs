//! Names of the peers of traced processes' sockets: from the kernel's tables when tracing began, and from the traced
//! calls since.
//!
//! strace could look this up itself (`-yy`), but then the kernel walks its whole table for each new socket, and the
//! traced worker stands still for milliseconds.

use std::collections::HashMap;

/// Names of sockets by inode.
///
/// * `TCP:[127.0.0.1:80->127.0.0.1:9]` for a connection; `TCP:[->127.0.0.1:3306]` if its own address is unknown.
/// * `TCP:[127.0.0.1:80]` and `UNIX-STREAM:[3,"/run/x.sock"]` for listeners.
/// * `UNIX-STREAM:[4->5,"/run/x.sock"]` for an accepted end, `unix:/run/x.sock` for the end that connected.
#[derive(Debug, Clone, Default)]
pub struct SocketNames {
    by_inode: HashMap<u64, String>,
    /// Kinds of sockets created since tracing began: `TCP`, `TCPv6`, `UDP`, `UNIX-STREAM` …
    kinds: HashMap<u64, String>,
}

const BEFORE: &str = "<socket:[";

impl SocketNames {
    pub(crate) fn insert(&mut self, inode: u64, name: String) {
        self.by_inode.insert(inode, name);
    }

    /// Returns the connected UDP sockets in the network of a process, such as those to name servers.
    #[must_use]
    pub fn of_udp(pid: i32) -> SocketNames {
        let connected = crate::stat::udp_sockets(pid).filter(|s| s.remote.port() > 0);
        SocketNames {
            by_inode: connected.map(|s| (s.inode, format!("UDP:[->{}]", s.remote))).collect(),
            ..SocketNames::default()
        }
    }

    /// Adds the names that `others` has.
    pub fn extend(&mut self, others: SocketNames) {
        self.by_inode.extend(others.by_inode);
    }

    /// Learns from a complete call, `name(arguments) = result`, which sockets it has created or connected.
    pub(crate) fn learn(&mut self, call: &str) {
        let Some((name, rest)) = call.split_once('(') else { return };
        match name {
            "socket" => {
                let Some(inode) = inodes(rest).next() else { return };
                let words = rest.split(')').next().unwrap_or_default();
                let is = |what: &str| words.contains(what);
                let kind = match () {
                    () if is("AF_UNIX") => "UNIX-STREAM",
                    () if is("SOCK_DGRAM") => "UDP",
                    () if is("AF_INET6") => "TCPv6",
                    () if is("AF_INET") => "TCP",
                    () => return,
                };
                self.kinds.insert(inode, kind.into());
                self.by_inode.insert(inode, format!("{kind}:[{inode}]"));
            }
            "connect" => {
                let Some(inode) = inodes(rest).next() else { return };
                let kind = self.kinds.get(&inode).map_or("TCP", String::as_str);
                let to = super::strace::peer(rest);
                let name = if to.starts_with("unix:") { to } else { format!("{kind}:[->{to}]") };
                self.by_inode.insert(inode, name);
            }
            "accept" | "accept4" => {
                let mut all = inodes(rest);
                let (Some(listener), Some(inode)) = (all.next(), all.next()) else { return };
                let Some(own) = self.by_inode.get(&listener).cloned() else { return };
                let Some(own) = own.strip_suffix(']') else { return };
                // Each accepted connection gets its own name, even if the call does not show the peer.
                let name = match own.split_once(',') {
                    Some((_, path)) => format!("UNIX-STREAM:[{inode}->,{path}]"),
                    None if rest.contains("sa_family=") => format!("{own}->{}]", super::strace::peer(rest)),
                    None => format!("{own}->?{inode}]"),
                };
                self.by_inode.insert(inode, name);
            }
            _ => {}
        }
    }

    /// Returns the call with names of sockets in place of their inodes.
    pub(crate) fn tell(&self, call: &str) -> String {
        let mut told = String::with_capacity(call.len());
        let mut rest = call;
        while let Some((before, after)) = rest.split_once(BEFORE) {
            told.push_str(before);
            let named = inode(after).and_then(|(inode, end)| Some((self.by_inode.get(&inode)?, end)));
            match named {
                Some((name, end)) => {
                    told.push('<');
                    told.push_str(name);
                    rest = &after[end + 1..];
                }
                None => {
                    told.push_str(BEFORE);
                    rest = after;
                }
            }
        }
        told.push_str(rest);
        told
    }
}

/// Returns the number before a closing bracket, and the position of the bracket.
fn inode(text: &str) -> Option<(u64, usize)> {
    let end = text.find(']')?;
    Some((text[..end].parse().ok()?, end))
}

/// Returns the inodes of the sockets in a call, in order.
fn inodes(call: &str) -> impl Iterator<Item = u64> {
    call.split(BEFORE).skip(1).filter_map(|part| inode(part).map(|(inode, _)| inode))
}
