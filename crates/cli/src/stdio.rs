//! All output to stdout and stderr goes through this file. It escapes text from outside (see [`Printable`]) and remembers
//! failed writes: a report that could not be written is a failure.
//!
//! The lints forbid `println!` and its like everywhere else.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use lastdrop_model::Printable;

use crate::signals;
use crate::view::tty;

/// Why stdout could not be written.
static OUT_LOST: Mutex<Option<io::Error>> = Mutex::new(None);
/// The reader of stdout has closed its pipe.
static OUT_CLOSED: AtomicBool = AtomicBool::new(false);
static ERR_LOST: AtomicBool = AtomicBool::new(false);
/// Which of stdin, stdout and stderr were terminals at the start. A terminal that is gone no longer reports as one.
static TERMINALS: OnceLock<[bool; 3]> = OnceLock::new();
/// A terminal that we wrote to is gone.
static TERMINAL_LOST: AtomicBool = AtomicBool::new(false);
/// The current user of the whole screen.
static OCCUPANT: Mutex<Option<Box<dyn Occupant>>> = Mutex::new(None);
static OCCUPIED: AtomicBool = AtomicBool::new(false);
/// Text for stderr that waits until the screen is free.
static HELD: Mutex<String> = Mutex::new(String::new());

/// Finds out which of stdin, stdout and stderr are terminals. Call it before anything is written.
pub fn begin() {
    TERMINALS.get_or_init(|| [0, 1, 2].map(tty::is_terminal));
}

fn was_terminal(fd: usize) -> bool {
    TERMINALS.get().is_some_and(|all| all[fd])
}

/// True for the error of a write to a terminal that is gone.
pub fn is_hangup(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::EPIPE | libc::ENXIO | libc::ENODEV))
}

/// Records that the terminal is gone: no output is possible any more, and the command ends as by SIGHUP.
pub fn lose_terminal() {
    if !TERMINAL_LOST.swap(true, Ordering::SeqCst) {
        signals::hang_up();
    }
}

/// True if the terminal is gone.
pub fn has_lost_terminal() -> bool {
    TERMINAL_LOST.load(Ordering::SeqCst)
}

/// A full-screen view that has the terminal until something is written to stdout.
pub trait Occupant: Send {
    /// Restores the terminal.
    fn leave(&self);
}

/// Gives the terminal to a full-screen view. Text for stderr waits meanwhile.
pub fn occupy(by: Box<dyn Occupant>) {
    *OCCUPANT.lock().unwrap_or_else(PoisonError::into_inner) = Some(by);
    OCCUPIED.store(true, Ordering::SeqCst);
}

/// Takes the terminal back from a full-screen view, if there is one, and writes the waiting text.
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

/// Writes a line to stderr, like `eprintln!`.
macro_rules! note {
    ($($words:tt)*) => {
        $crate::stdio::err(format!("{}\n", format_args!($($words)*)))
    };
}
pub(crate) use note;

/// Writes a line to stdout, like `println!`.
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
    // Flush at once: the reader of a pipe waits for it, and an error shows at the text that caused it.
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(e) if was_terminal(1) && is_hangup(&e) => {
            OUT_CLOSED.store(true, Ordering::Relaxed);
            lose_terminal();
        }
        // A closed pipe is not a failure: its reader (head, less) has read enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => OUT_CLOSED.store(true, Ordering::Relaxed),
        Err(e) => *OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner) = Some(e),
    }
}

/// Records the result of another library's write to stdout.
pub fn printed(result: io::Result<()>) {
    match result {
        Err(e) if was_terminal(1) && is_hangup(&e) => lose_terminal(),
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            *OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
        _ => {}
    }
}

/// True while stdout can be written. A command that runs for long ends when nobody reads its output any more.
pub fn is_open() -> bool {
    !OUT_CLOSED.load(Ordering::Relaxed) && OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner).is_none()
}

/// Writes to stdout a document whose format already escapes control characters.
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

/// True if stdout is a terminal.
pub fn out_is_terminal() -> bool {
    #[allow(clippy::disallowed_methods)]
    io::stdout().is_terminal()
}

/// True if stderr is a terminal.
pub fn err_is_terminal() -> bool {
    #[allow(clippy::disallowed_methods)]
    io::stderr().is_terminal()
}

/// True if output was lost; also prints why stdout could not be written. Call it at the end of the program.
pub fn lost_something() -> bool {
    if let Some(e) = OUT_LOST.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        note!("lastdrop: cannot write to stdout: {e}");
        return true;
    }
    ERR_LOST.load(Ordering::Relaxed)
}
