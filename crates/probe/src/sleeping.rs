//! What one thread that sleeps waits for: the system call that it is in (`/proc/PID/task/TID/syscall`), the descriptor that
//! this is about, and who is at the other end of it. Wants root, or the user of the process.

use std::collections::HashMap;
use std::fs;
use std::io::IoSliceMut;
use std::net::SocketAddr;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::chain::Network;
use crate::stat::read_into;

/// Descriptors of one call that are looked at.
const MOST_DESCRIPTORS: usize = 16;
/// `fcntl` operations that wait for a lock.
const SETLKW: [u64; 2] = [libc::F_SETLKW as u64, 38];

/// What a system call does to the thread that is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Accept,
    /// Its descriptors: an array of `pollfd` of this length.
    Poll,
    Select,
    Events,
    Read,
    Write,
    Connect,
    Futex,
    Sleep,
    Flock,
    Fcntl,
    Child,
    Semaphore,
    Sync,
    Open,
}

#[rustfmt::skip]
const CALLS: &[(libc::c_long, Does)] = &[
    (libc::SYS_accept, Does::Accept), (libc::SYS_accept4, Does::Accept),
    (libc::SYS_ppoll, Does::Poll), (libc::SYS_pselect6, Does::Select),
    (libc::SYS_epoll_pwait, Does::Events), (libc::SYS_epoll_pwait2, Does::Events),
    (libc::SYS_read, Does::Read), (libc::SYS_readv, Does::Read), (libc::SYS_pread64, Does::Read),
    (libc::SYS_recvfrom, Does::Read), (libc::SYS_recvmsg, Does::Read),
    (libc::SYS_write, Does::Write), (libc::SYS_writev, Does::Write), (libc::SYS_pwrite64, Does::Write),
    (libc::SYS_sendto, Does::Write), (libc::SYS_sendmsg, Does::Write), (libc::SYS_sendfile, Does::Write),
    (libc::SYS_connect, Does::Connect), (libc::SYS_futex, Does::Futex),
    (libc::SYS_nanosleep, Does::Sleep), (libc::SYS_clock_nanosleep, Does::Sleep),
    (libc::SYS_flock, Does::Flock), (libc::SYS_fcntl, Does::Fcntl),
    (libc::SYS_wait4, Does::Child), (libc::SYS_waitid, Does::Child),
    (libc::SYS_semop, Does::Semaphore), (libc::SYS_semtimedop, Does::Semaphore),
    (libc::SYS_fsync, Does::Sync), (libc::SYS_fdatasync, Does::Sync),
    (libc::SYS_openat, Does::Open),
];

/// Those that newer architectures have not got.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_CALLS: &[(libc::c_long, Does)] = &[
    (libc::SYS_poll, Does::Poll), (libc::SYS_select, Does::Select), (libc::SYS_epoll_wait, Does::Events),
    (libc::SYS_pause, Does::Sleep), (libc::SYS_open, Does::Open),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[(libc::c_long, Does)] = &[];

/// What is behind a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Object {
    Listener,
    Client,
    /// `127.0.0.1:3306`, `unix:/run/x.sock`, `udp:127.0.0.1:53`.
    Peer(String),
    File(String),
    Pipe,
    Other,
}

/// The sockets of a namespace, as they were when they were read last.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    network: Option<Network>,
    udp: HashMap<u64, SocketAddr>,
    /// A process of the namespace.
    pid: i32,
    /// The tables are of this reading.
    is_fresh: bool,
}

impl Sockets {
    /// Another reading begins: who is met that the tables do not know has them read again, once.
    pub fn begin(&mut self, pid: i32) {
        (self.pid, self.is_fresh) = (pid, false);
    }

    /// Reads the tables again: connections come and go.
    pub fn refresh(&mut self, pid: i32) {
        (self.pid, self.is_fresh) = (pid, true);
        self.network = Network::read(pid);
        let process = procfs::process::Process::new(pid);
        let udp = |p: &procfs::process::Process| {
            let all = p.udp().into_iter().chain(p.udp6()).flatten();
            all.map(|s| (s.inode, s.remote_address)).collect()
        };
        self.udp = process.as_ref().map(udp).unwrap_or_default();
    }

    fn object(&mut self, inode: u64) -> Object {
        match self.known(inode) {
            Some(object) => object,
            None if self.is_fresh => Object::Other,
            None => {
                self.refresh(self.pid);
                self.known(inode).unwrap_or(Object::Other)
            }
        }
    }

    fn known(&self, inode: u64) -> Option<Object> {
        let network = self.network.as_ref()?;
        let listens = |i: &u64| *i == inode;
        if network.tcp_listeners.iter().any(|(_, i)| listens(i)) || network.unix_listeners.values().any(listens) {
            return Some(Object::Listener);
        }
        if let Some(socket) = network.by_inode.get(&inode) {
            let is_client = network.listeners.contains_key(&socket.local.port());
            return Some(if is_client { Object::Client } else { Object::Peer(socket.remote.to_string()) });
        }
        if let Some(socket) = network.unix.get(&inode) {
            if socket.path.is_some() {
                return Some(Object::Client);
            }
            let other = socket.peer.and_then(|peer| network.unix.get(&peer)).and_then(|s| s.path.clone());
            return Some(other.map_or(Object::Pipe, |path| Object::Peer(format!("unix:{path}"))));
        }
        let to = self.udp.get(&inode).filter(|to| to.port() > 0)?;
        Some(Object::Peer(format!("udp:{to}")))
    }
}

/// What a thread that sleeps waits for, in the words of `model::examination`. None where it may not be seen, or runs.
pub(crate) fn waits_for(pid: i32, tid: i32, sockets: &mut Sockets) -> Option<String> {
    let mut buffer = [0u8; 256];
    let line = read_into(&format!("/proc/{pid}/task/{tid}/syscall"), &mut buffer)?;
    let mut words = line.split_ascii_whitespace();
    // "running" is no number.
    let number: libc::c_long = words.next()?.parse().ok()?;
    let arguments: Vec<u64> =
        words.map_while(|w| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok()).take(6).collect();
    if number < 0 {
        return Some("other".into());
    }
    let argument = |i: usize| arguments.get(i).copied().unwrap_or(0);
    let Some((_, does)) = CALLS.iter().chain(OLD_CALLS).find(|(n, _)| *n == number) else {
        return Some("other".into());
    };
    let mut first = || object(pid, argument(0), sockets);
    Some(match does {
        Does::Accept => "idle".into(),
        Does::Events => "events".into(),
        Does::Futex => "futex".into(),
        Does::Sleep => "sleep".into(),
        Does::Child => "child".into(),
        Does::Semaphore => "semaphore".into(),
        Does::Sync | Does::Open => "disk".into(),
        Does::Flock => named("lock", &first()),
        Does::Fcntl if SETLKW.contains(&argument(1)) => named("lock", &first()),
        Does::Fcntl => "other".into(),
        Does::Connect => match first() {
            Object::Peer(peer) => format!("peer {peer}"),
            _ => "connect".into(),
        },
        Does::Read => told(&first(), false),
        Does::Write => told(&first(), true),
        Does::Poll => of_any(&polled(pid, argument(0), argument(1)), pid, sockets),
        Does::Select => of_any(&selected(pid, argument(0), &arguments), pid, sockets),
    })
}

fn named(what: &str, object: &Object) -> String {
    match object {
        Object::File(path) => format!("{what} {path}"),
        _ => what.into(),
    }
}

fn told(object: &Object, writes: bool) -> String {
    match object {
        Object::Listener => "idle".into(),
        Object::Client => if writes { "client-write" } else { "client" }.into(),
        Object::Peer(peer) => format!("peer {peer}"),
        Object::File(path) => format!("{} {path}", if writes { "write" } else { "read" }),
        Object::Pipe => if writes { "pipe-write" } else { "pipe" }.into(),
        Object::Other => "other".into(),
    }
}

/// Of several the one that says most: a listener before all else, then a peer, a client, the rest.
fn of_any(descriptors: &[u64], pid: i32, sockets: &mut Sockets) -> String {
    if descriptors.is_empty() {
        return "sleep".into();
    }
    let objects: Vec<Object> = descriptors.iter().map(|fd| object(pid, *fd, sockets)).collect();
    let rank = |o: &&Object| match o {
        Object::Listener => 0,
        Object::Peer(_) => 1,
        Object::Client => 2,
        Object::Pipe => 3,
        Object::File(_) => 4,
        Object::Other => 5,
    };
    objects.iter().min_by_key(rank).map_or_else(|| "other".into(), |o| told(o, false))
}

fn object(pid: i32, descriptor: u64, sockets: &mut Sockets) -> Object {
    let Ok(link) = fs::read_link(format!("/proc/{pid}/fd/{descriptor}")) else { return Object::Other };
    let link = link.to_string_lossy();
    if let Some(inode) = link.strip_prefix("socket:[").and_then(|l| l.strip_suffix(']')) {
        return inode.parse().map_or(Object::Other, |inode| sockets.object(inode));
    }
    if link.starts_with("pipe:") {
        return Object::Pipe;
    }
    if link.starts_with('/') { Object::File(link.into_owned()) } else { Object::Other }
}

/// Memory of another process.
fn memory(pid: i32, at: u64, buffer: &mut [u8]) -> usize {
    let remote = [RemoteIoVec { base: at as usize, len: buffer.len() }];
    process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(buffer)], &remote).unwrap_or(0)
}

/// Descriptors in an array of `struct pollfd`: a number of 32 bits and two of 16 each.
fn polled(pid: i32, at: u64, length: u64) -> Vec<u64> {
    let mut buffer = [0u8; 8 * MOST_DESCRIPTORS];
    let want = 8 * (length as usize).min(MOST_DESCRIPTORS);
    let n = memory(pid, at, &mut buffer[..want]);
    let each = buffer[..n].as_chunks::<8>().0.iter();
    let numbers = each.filter_map(|entry| u64::try_from(i32::from_ne_bytes(*entry.first_chunk()?)).ok());
    numbers.collect()
}

/// Descriptors in the sets of `select`: those for reading, else those for writing.
fn selected(pid: i32, count: u64, arguments: &[u64]) -> Vec<u64> {
    let mut buffer = [0u8; 128];
    let want = (count as usize).min(1024).div_ceil(8);
    for at in arguments.iter().skip(1).take(2).filter(|at| **at != 0) {
        let n = memory(pid, *at, &mut buffer[..want]);
        let set = |fd: &u64| buffer[..n].get(*fd as usize / 8).is_some_and(|byte| byte >> (fd % 8) & 1 == 1);
        let found: Vec<u64> = (0..count.min(1024)).filter(set).take(MOST_DESCRIPTORS).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// What a script that says a line and then sleeps is seen to wait for.
    fn seen(script: &str, wanted: &str) {
        let script = format!("$| = 1; {script}");
        let modules = ["-MIO::Socket::INET", "-MIO::Select", "-MFcntl=:flock"];
        let mut child = Command::new("perl")
            .args(modules)
            .args(["-e", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("perl");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("it says a line");
        let pid = child.id() as i32;
        let wanted = wanted.replace("PORT", line.trim());
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut sockets = Sockets::default();
        loop {
            sockets.refresh(pid);
            let now = waits_for(pid, pid, &mut sockets);
            if now.as_deref() == Some(wanted.as_str()) {
                break;
            }
            assert!(Instant::now() < deadline, "{now:?}, not {wanted}");
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().expect("ours");
        let _ = child.wait();
    }

    #[test]
    fn a_thread_that_sleeps_says_for_what() {
        let listener = "$l = IO::Socket::INET->new(Listen => 9, LocalAddr => '127.0.0.1') or die; $p = $l->sockport;";
        let connected = format!("{listener} $c = IO::Socket::INET->new(\"127.0.0.1:$p\") or die; $a = $l->accept;");
        let say = "print \"$p\\n\";";
        seen(&format!("{listener} {say} $l->accept;"), "idle");
        seen(&format!("{listener} {say} IO::Select->new($l)->can_read;"), "idle");
        seen(&format!("{connected} {say} sysread($c, $x, 1);"), "peer 127.0.0.1:PORT");
        seen(&format!("{connected} {say} IO::Select->new($c)->can_read;"), "peer 127.0.0.1:PORT");
        seen(&format!("{connected} {say} sysread($a, $x, 1);"), "client");
        seen("print \"x\\n\"; sleep 60;", "sleep");
        seen("print \"x\\n\"; select(undef, undef, undef, 60);", "sleep");
        seen("print \"x\\n\"; <STDIN>;", "pipe");
        let file = tempfile("lock");
        let lock = format!(
            "open F, '>', '{file}'; flock F, LOCK_EX; if (!fork) {{ sleep 1 while getppid() == $parent; exit }} \
             open G, '>', '{file}'; print \"x\\n\"; flock G, LOCK_EX;"
        );
        seen(&format!("$parent = $$; {lock}"), &format!("lock {file}"));
        let _ = fs::remove_file(file);
    }

    fn tempfile(name: &str) -> String {
        std::env::temp_dir().join(format!("lastdrop-sleeping-{}-{name}", std::process::id())).display().to_string()
    }
}
