//! SIGINT, SIGTERM and SIGHUP ask for an orderly end: lastdrop reports and restores every setting.
//!
//! SIGHUP means that the terminal is gone. The kernel sends it only to the foreground processes of the terminal's session.
//! Other processes notice when they write, and then send themselves the signal, so that both end in the same way. A process
//! that was started with SIGHUP ignored (nohup) goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::view::tty;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::low_level;

/// Set while the command catches SIGHUP and ends by it.
static CATCHES_HANGUP: AtomicBool = AtomicBool::new(false);
static HUNG_UP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn hung_up_flag() -> Arc<AtomicBool> {
    Arc::clone(HUNG_UP.get_or_init(Arc::default))
}

/// Has a SIGHUP come?
pub fn is_hung_up() -> bool {
    HUNG_UP.get().is_some_and(|flag| flag.load(Ordering::SeqCst))
}

/// Sends this process a SIGHUP because the terminal is gone, as the kernel does for a foreground process.
pub fn hang_up() {
    if CATCHES_HANGUP.load(Ordering::SeqCst) {
        let _ = low_level::raise(SIGHUP);
    }
}

/// Makes a write beyond the limit of a file's size (`ulimit -f`) fail as on a full disk. SIGXFSZ is caught, not ignored: the
/// servers that lastdrop starts would inherit an ignored signal.
pub fn survive_large_files() {
    // If it cannot be caught, the signal ends the process as before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// A request to end, set by the first signal.
#[derive(Debug, Clone)]
pub struct Stop {
    pub flag: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Catches the signals. With `leave_at_once`, a second signal ends the process at once. Commands that have changed a
    /// server's settings do not use it, because nothing would restore them.
    ///
    /// # Errors
    /// When the system does not let signals be caught.
    pub fn on_signals(leave_at_once: bool) -> std::io::Result<Stop> {
        let stop = Stop { flag: Arc::default(), signal: Arc::default() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if signal == SIGHUP {
                if tty::is_ignored(SIGHUP) {
                    continue;
                }
                CATCHES_HANGUP.store(true, Ordering::SeqCst);
                signal_hook::flag::register(SIGHUP, hung_up_flag())?;
            // The end of a terminal sends two SIGHUPs, from the shell and from the kernel, so a second one is ignored.
            } else if leave_at_once {
                let flag = Arc::clone(&stop.flag);
                let leave = move || {
                    if flag.load(Ordering::SeqCst) {
                        tty::give_back();
                        low_level::exit(128 + signal);
                    }
                };
                // SAFETY: the handler reads an atomic, restores the terminal and exits; all are safe in a handler.
                // It is registered before the one that sets the flag, so it finds the flag set at the second signal.
                unsafe { low_level::register(signal, leave)? };
            }
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.signal), signal as usize)?;
            signal_hook::flag::register(signal, Arc::clone(&stop.flag))?;
        }
        Ok(stop)
    }

    /// Asks for the end without a signal.
    pub fn end(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Asks for the end as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal.store(SIGINT as usize, Ordering::Relaxed);
        self.end();
    }

    /// True once the end has been asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The signal that asked for the end, if it was one.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.flag.load(Ordering::Relaxed).then(|| self.signal.load(Ordering::Relaxed) as i32).filter(|n| *n > 0)
    }
}
