//! The one way to stdout and stderr. What comes from elsewhere is escaped on it (see [`Printable`]), and what could not be
//! written is remembered: a report that nobody got is no success.
//!
//! The lints forbid `println!` and its like everywhere else.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use lastdrop_model::Printable;

use crate::signals;
use crate::view::tty;

/// Why stdout could not be written, the first time.
static OUT_LOST: Mutex<Option<io::Error>> = Mutex::new(None);
/// Its reader has gone.
static OUT_CLOSED: AtomicBool = AtomicBool::new(false);
static ERR_LOST: AtomicBool = AtomicBool::new(false);
/// Which of stdin, stdout and stderr were terminals at the start: one that has gone is none any more.
static TERMINALS: OnceLock<[bool; 3]> = OnceLock::new();
/// A terminal that we wrote to has gone.
static TERMINAL_LOST: AtomicBool = AtomicBool::new(false);
/// Who has the whole terminal.
static OCCUPANT: Mutex<Option<Box<dyn Occupant>>> = Mutex::new(None);
static OCCUPIED: AtomicBool = AtomicBool::new(false);
/// What was to go to stderr meanwhile.
static HELD: Mutex<String> = Mutex::new(String::new());

/// Looks at what stdout and stderr are. To be called before anything is written.
pub fn begin() {
    TERMINALS.get_or_init(|| [0, 1, 2].map(tty::is_terminal));
}

fn was_terminal(fd: usize) -> bool {
    TERMINALS.get().is_some_and(|all| all[fd])
}

/// What writing to a terminal that has gone says.
pub fn is_hangup(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EPIPE | libc::ENXIO | libc::ENODEV))
}

/// The terminal has gone: nobody can be told anything any more, and the command ends as by SIGHUP.
pub fn lose_terminal() {
    if !TERMINAL_LOST.swap(true, Ordering::SeqCst) {
        signals::hang_up();
    }
}

/// Has the terminal gone?
pub fn has_lost_terminal() -> bool {
    TERMINAL_LOST.load(Ordering::SeqCst)
}

/// Somebody who draws on the whole terminal, until there is something to say on stdout.
pub trait Occupant: Send {
    /// Gives the terminal back as it was.
    fn leave(&self);
}

/// Gives somebody the terminal. What is written to stderr meanwhile waits.
pub fn occupy(by: Box<dyn Occupant>) {
    *OCCUPANT.lock().unwrap_or_else(PoisonError::into_inner) = Some(by);
    OCCUPIED.store(true, Ordering::SeqCst);
}

/// Takes the terminal back, if anybody has it, and writes what has waited.
pub fn vacate() {
    if !OCCUPIED.load(Ordering::SeqCst) {
        return;
    }
    let occupant = OCCUPANT.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(occupant) = occupant {
        occupant.leave();
        OCCUPIED.store(false, Ordering::SeqCst);
        let held = std::mem::take(&mut *HELD.lock().unwrap_or_else(PoisonError::into_inner));
        write_err(held.as_bytes());
    }
}

/// Writes text to stdout.
pub fn out(text: impl Into<Printable>) {
    write_out(text.into().as_str().as_bytes());
}

/// Writes text to stderr.
pub fn err(text: impl Into<Printable>) {
    let text = text.into();
    if OCCUPIED.load(Ordering::SeqCst) {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push_str(text.as_str());
        return;
    }
    write_err(text.as_str().as_bytes());
}

fn write_err(bytes: &[u8]) {
    #[allow(clippy::disallowed_methods)]
    let result = io::stderr().lock().write_all(bytes);
    match result {
        Err(e) if was_terminal(2) && is_hangup(&e) => lose_terminal(),
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => ERR_LOST.store(true, Ordering::Relaxed),
        _ => {}
    }
}

/// Writes a line to stderr, in the way of `eprintln!`.
macro_rules! note {
    ($($words:tt)*) => {
        $crate::stdio::err(format!("{}\n", format_args!($($words)*)))
    };
}
pub(crate) use note;

/// Writes a line to stdout, in the way of `println!`.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::stdio::out(format!("{}\n", format_args!($($words)*)))
    };
}
pub(crate) use say;

fn write_out(bytes: &[u8]) {
    vacate();
    if !is_open() {
        return;
    }
    #[allow(clippy::disallowed_methods)]
    let mut stdout = io::stdout().lock();
    // At once: whoever reads a pipe waits for it, and an error belongs to the text that it is about.
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(e) if was_terminal(1) && is_hangup(&e) => {
            OUT_CLOSED.store(true, Ordering::Relaxed);
            lose_terminal();
        }
        // A reader that has gone (head, less) has seen what it wanted.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => OUT_CLOSED.store(true, Ordering::Relaxed),
        Err(e) => *OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner) = Some(e),
    }
}

/// Somebody else has written to stdout.
pub fn printed(result: io::Result<()>) {
    match result {
        Err(e) if was_terminal(1) && is_hangup(&e) => lose_terminal(),
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            *OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
        _ => {}
    }
}

/// Can stdout still be written? Who goes on for long ends where nobody reads any more.
pub fn is_open() -> bool {
    !OUT_CLOSED.load(Ordering::Relaxed) && OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

/// stdout for a document that is safe by its own format.
#[derive(Debug)]
pub struct Document;

impl Write for Document {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_out(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Is stdout a terminal?
pub fn out_is_terminal() -> bool {
    #[allow(clippy::disallowed_methods)]
    io::stdout().is_terminal()
}

/// Is stderr a terminal?
pub fn err_is_terminal() -> bool {
    #[allow(clippy::disallowed_methods)]
    io::stderr().is_terminal()
}

/// At the end of the program: was something not written that should have been? Says so, where that can be said.
pub fn lost_something() -> bool {
    if let Some(e) = OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        note!("lastdrop: cannot write to stdout: {e}");
        return true;
    }
    ERR_LOST.load(Ordering::Relaxed)
}
