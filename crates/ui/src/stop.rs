//! Asks a run to stop, as Ctrl-C does: a signal to the very process that makes it, and to nobody else.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use lastdrop_store::Maker;

/// Sends SIGINT.
///
/// # Errors
/// When the process is not there any more, or belongs to somebody else.
pub fn interrupt(maker: &Maker) -> io::Result<()> {
    // The descriptor stands for whoever has the number now, and never for another one: it is looked at after it is held.
    let process = open(maker.pid)?;
    if !maker.is_alive() {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: a plain call with a descriptor that is open; the kernel makes the rest of the signal itself where none is given.
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
    // SAFETY: a plain call; what comes back is a descriptor of ours or an error.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was opened just now, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
