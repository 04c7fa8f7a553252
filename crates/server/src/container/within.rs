//! Asks about a server inside its container, where files, processes and network have their meaning.
//!
//! A freshly executed copy of this program does the reading ([`super::visit`]). Its memory contains nothing of ours.
//! Its executable is sealed in memory, so that a container cannot write to the host's program through it. It takes on
//! the rights of the container's process before it reads or executes anything there. Question and answer go through
//! pipes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use lastdrop_model::ExecutedProgram;
use lastdrop_probe::tool;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::inquiry::{Inquiry, Reply, Visit};
use super::maps::Maps;
use crate::ServerRef;

/// The hidden subcommand that does the reading.
pub const COMMAND: &str = "visit";
/// Longest time for reading a configuration and having the server test it.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for the copy to end: a container may have frozen it.
const END: Duration = Duration::from_secs(1);
/// Longest answer accepted, since a container may send anything.
const MOST_BYTES: usize = 64 << 20;

/// Asks about the server of a process, with the rights of that process, in its namespaces and root.
///
/// # Errors
/// In words: the namespaces may not be entered, the question has no answer, or it took longer than a minute.
pub(super) fn within(pid: i32, server: &ServerRef, inquiry: Inquiry<'_>) -> Result<Reply, String> {
    let (kind, config) = (server.kind.name.into(), server.config.as_deref().map(Into::into));
    let visit = serde_json::to_vec(&Visit { pid, kind, config, inquiry });
    let visit = visit.map_err(|e| format!("the question cannot be written down: {e}"))?;
    let mut child = start().map_err(|e| format!("no copy of lastdrop can be started: {e}"))?;
    let written = child.stdin.take().map(|mut to| to.write_all(&visit));
    let output = child.stdout.take().ok_or("the copy has no output".to_string());
    let bytes = output.and_then(|from| read(File::from(OwnedFd::from(from))));
    end(&mut child);
    if let Some(Err(e)) = written {
        return Err(format!("the question could not be asked: {e}"));
    }
    let (reply, executed): (Result<Reply, String>, Vec<ExecutedProgram>) =
        lastdrop_model::read_json(&bytes?).map_err(|_| "it ended before it had answered".to_string())?;
    log(pid, executed);
    reply
}

/// Logs what was executed in the container, under the user id on this machine.
fn log(pid: i32, executed: Vec<ExecutedProgram>) {
    let maps = Maps::of_users(pid).unwrap_or_default();
    for one in executed {
        let uid = maps.outside(one.uid).unwrap_or(one.uid);
        tool::log(std::path::Path::new(&one.program), uid, &format!("{} (in the container of process {pid})", one.why));
    }
}

/// This program's file, in memory that nobody can write to.
fn sealed_copy() -> io::Result<&'static File> {
    static COPY: OnceLock<File> = OnceLock::new();
    if let Some(copy) = COPY.get() {
        return Ok(copy);
    }
    let mut copy = File::from(memfd_create("lastdrop", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    io::copy(&mut File::open("/proc/self/exe")?, &mut copy)?;
    let seals = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(copy.as_fd(), FcntlArg::F_ADD_SEALS(seals))?;
    Ok(COPY.get_or_init(|| copy))
}

// The executed file is lastdrop's own.
#[allow(clippy::disallowed_methods)]
fn start() -> io::Result<Child> {
    let copy = sealed_copy()?.as_raw_fd();
    let mut command = Command::new(format!("/proc/self/fd/{copy}"));
    command.arg0("lastdrop").arg(COMMAND).env_clear().env("PATH", tool::PATH).env("LANG", "C.UTF-8");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let us = nix::unistd::Pid::this();
    // SAFETY: the closure only makes system calls.
    unsafe {
        command.pre_exec(move || {
            libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            tool::end_with_parent(us, nix::sys::signal::Signal::SIGKILL)
        });
    }
    command.spawn()
}

/// Reads the copy's output until it closes it.
fn read(mut from: File) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + LIMIT;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 65_536]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let mut ready = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => return Err(format!("no answer within {} s", LIMIT.as_secs())),
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.to_string()),
            Ok(_) => {}
        }
        match from.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
        if bytes.len() > MOST_BYTES {
            return Err(format!("its answer is longer than {} MiB", MOST_BYTES >> 20));
        }
    }
}

/// Ends the copy; its child in the container ends with it.
fn end(child: &mut Child) {
    let _ = child.kill();
    let until = Instant::now() + END;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
}
