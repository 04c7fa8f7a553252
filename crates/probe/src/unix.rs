//! Connects to a unix socket with a timeout: without one, a listener with a full queue blocks for ever.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

/// Connects to the socket at `path`.
///
/// # Errors
/// When nothing listens there, or the queue stays full.
pub fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let fd: OwnedFd = socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    // Zero would mean no timeout.
    let limit = TimeVal::milliseconds(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX).max(1));
    socket::setsockopt(&fd, sockopt::SendTimeout, &limit)?;
    socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_full_queue_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("socket");
        let fd: OwnedFd =
            socket::socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).expect("a socket");
        socket::bind(fd.as_raw_fd(), &UnixAddr::new(&path).expect("an address")).expect("bound");
        socket::listen(&fd, socket::Backlog::new(1).expect("one")).expect("listens");
        let begun = Instant::now();
        let mut held = Vec::new();
        let full = loop {
            match connect(&path, Duration::from_millis(50)) {
                Ok(stream) => held.push(stream),
                Err(e) => break e,
            }
            assert!(held.len() < 100, "its queue has an end");
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
}
