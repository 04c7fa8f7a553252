//! SIGINT, SIGTERM and SIGHUP ask for an orderly end: a report, and every setting put back.
//!
//! SIGHUP says that the terminal has gone. The kernel says so to the processes of its session in the foreground alone; others find out when
//! they write, and send themselves the signal then, so that there is one way of ending. A process that was started with SIGHUP ignored
//! (nohup) goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::view::tty;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::low_level;

/// A SIGHUP is caught by somebody who ends then.
static CATCHES_HANGUP: AtomicBool = AtomicBool::new(false);
static HUNG_UP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

fn hung_up_flag() -> Arc<AtomicBool> {
    Arc::clone(HUNG_UP.get_or_init(Arc::default))
}

/// Has a SIGHUP come?
pub fn is_hung_up() -> bool {
    HUNG_UP.get().is_some_and(|flag| flag.load(Ordering::SeqCst))
}

/// The terminal has gone: asks for the end, as the kernel would have.
pub fn hang_up() {
    if CATCHES_HANGUP.load(Ordering::SeqCst) {
        let _ = low_level::raise(SIGHUP);
    }
}

/// A file that reaches the limit of its size (`ulimit -f`) is an error of the write, as a full disk is. It is caught and not ignored: what
/// is ignored would be so in the servers that are started, too.
pub fn survive_large_files() {
    // Where it cannot be caught, the system ends the process as before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Set by the first signal.
#[derive(Debug, Clone)]
pub struct Stop {
    pub flag: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Catches the signals. With `leave_at_once`, a second one ends the process where it is; commands that hold a
    /// server's settings do not want that, because nothing would put them back.
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
            // A terminal's end comes as two signals, from the shell and from the kernel: a second SIGHUP ends nothing at once.
            } else if leave_at_once {
                let flag = Arc::clone(&stop.flag);
                let leave = move || {
                    if flag.load(Ordering::SeqCst) {
                        tty::give_back();
                        low_level::exit(128 + signal);
                    }
                };
                // SAFETY: giving the terminal back and leaving are safe in a handler; an atomic is read.
                // Registered first: it acts when the flag is up already, that is on the second signal.
                unsafe { low_level::register(signal, leave)? };
            }
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.signal), signal as usize)?;
            signal_hook::flag::register(signal, Arc::clone(&stop.flag))?;
        }
        Ok(stop)
    }

    /// Ends the run without a signal.
    pub fn end(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// Ends the run as Ctrl-C does.
    pub fn interrupt(&self) {
        self.signal.store(SIGINT as usize, Ordering::Relaxed);
        self.end();
    }

    /// Has the end been asked for?
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The signal that came, if one did.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.flag.load(Ordering::Relaxed).then(|| self.signal.load(Ordering::Relaxed) as i32).filter(|n| *n > 0)
    }
}
