//! What becomes of an attempt to write.

use std::io;

/// What became of an attempt to write.
pub(crate) enum Written {
    All,
    /// No room now; some bytes may have gone.
    Blocked {
        some: bool,
    },
    /// With a limited bandwidth: no more for now.
    Enough,
    Error(io::Error),
}

pub(crate) fn blocked_or(e: io::Error, some: bool) -> Written {
    if e.kind() == io::ErrorKind::WouldBlock { Written::Blocked { some } } else { Written::Error(e) }
}

pub(crate) fn is_reset(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE))
}
