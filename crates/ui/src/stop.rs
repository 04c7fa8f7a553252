//! Stops a run as Ctrl-C does: sends a signal to exactly the process that makes it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use lastdrop_store::RunOwner;

/// Sends SIGINT.
///
/// # Errors
/// If the process no longer exists, or belongs to another user.
pub fn interrupt(maker: &RunOwner) -> io::Result<()> {
    // The descriptor refers to one process and never to a successor with the same id. So check the identity
    // after opening it.
    let process = open(maker.pid)?;
    if !maker.is_alive() {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: a plain call with an open descriptor; with a null pointer the kernel fills in the signal's
    // details.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGINT,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: a plain call that returns a descriptor or an error.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
