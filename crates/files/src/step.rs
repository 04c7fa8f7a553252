//! Steps that leave something changed: a file that is made, replaced or removed, a signal, a program that is started.
//!
//! A kill may come before any of them. A test has one come before each in turn: with `LASTDROP_END_AT=N` the program ends itself by
//! SIGKILL before its N-th step, and nothing but its journal can put back what it has changed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;

/// The number of the step before which this process ends.
const END_AT: &str = "LASTDROP_END_AT";

/// The next step that changes something comes now.
pub fn step() {
    static END: OnceLock<Option<u64>> = OnceLock::new();
    static STEPS: AtomicU64 = AtomicU64::new(0);
    let end = END.get_or_init(|| std::env::var(END_AT).ok()?.parse().ok());
    if let Some(end) = end
        && STEPS.fetch_add(1, Ordering::Relaxed) + 1 == *end
    {
        let _ = kill(getpid(), Signal::SIGKILL);
    }
}
