//! SIGINT, SIGTERM and SIGHUP ask for an orderly end: a report, and every setting put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::view::tty;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level;

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
            if leave_at_once {
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
