//! What the sockets of traced processes are connected to: as the kernel's tables had it when tracing began, and by the calls
//! that have made them since.
//!
//! strace could look it up itself (`-yy`), and has the kernel walk its whole table for each new socket: milliseconds in which
//! the traced worker stands still.

use std::collections::HashMap;

/// Names of sockets by inode: `TCP:[127.0.0.1:80->127.0.0.1:9]`, `TCP:[->127.0.0.1:3306]` of one whose own end is not known,
/// `TCP:[127.0.0.1:80]` and `UNIX-STREAM:[3,"/run/x.sock"]` of listeners, `UNIX-STREAM:[4->5,"/run/x.sock"]` of an end that was accepted,
/// `unix:/run/x.sock` of one that was connected to there.
#[derive(Debug, Clone, Default)]
pub struct SocketNames {
    by_inode: HashMap<u64, String>,
    /// Of those that were made meanwhile: `TCP`, `TCPv6`, `UDP`, `UNIX-STREAM` …
    kinds: HashMap<u64, String>,
}

const BEFORE: &str = "<socket:[";

impl SocketNames {
    pub(crate) fn insert(&mut self, inode: u64, name: String) {
        self.by_inode.insert(inode, name);
    }

    /// Those of UDP that are connected, of the network of a process: name servers are asked by them.
    #[must_use]
    pub fn of_udp(pid: i32) -> SocketNames {
        let process = procfs::process::Process::new(pid);
        let all =
            process.map(|p| p.udp().into_iter().chain(p.udp6()).flatten().collect::<Vec<_>>()).unwrap_or_default();
        let connected = all.into_iter().filter(|s| s.remote_address.port() > 0);
        SocketNames {
            by_inode: connected.map(|s| (s.inode, format!("UDP:[->{}]", s.remote_address))).collect(),
            ..SocketNames::default()
        }
    }

    /// Those that others know, too.
    pub fn extend(&mut self, others: SocketNames) {
        self.by_inode.extend(others.by_inode);
    }

    /// Learns from a whole call, `name(arguments) = result`, which sockets it has made or connected.
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
                // Each has a name of its own, also where nobody says who it is.
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

    /// The call with the names of its sockets in place of their inodes.
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

/// The number before a bracket that closes, and where that is.
fn inode(text: &str) -> Option<(u64, usize)> {
    let end = text.find(']')?;
    Some((text[..end].parse().ok()?, end))
}

/// Inodes of the sockets in a call, in their order.
fn inodes(call: &str) -> impl Iterator<Item = u64> {
    call.split(BEFORE).skip(1).filter_map(|part| inode(part).map(|(inode, _)| inode))
}
