//! Counts the steps that change something: creating, replacing or removing a file, a signal, the start of a program.
//!
//! lastdrop may be killed before any of them. A test kills it before each in turn: with `LASTDROP_END_AT=N` the program
//! sends itself SIGKILL before its N-th step. Only its journal can then restore what it has changed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;

/// Environment variable: the number of the step before which this process kills itself.
const END_AT: &str = "LASTDROP_END_AT";

/// Marks the place before a step that changes something.
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
