//! The terminal as a whole screen, and as it was before: also after a panic, and from within a signal's handler.
//!
//! Of raw mode only what is needed is taken: keys come at once and are not shown. Ctrl-C stays a signal for all processes of
//! the terminal, so that it does the same with a view as without one, also where the view itself hangs.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::crossterm::cursor::Hide;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::EnterAlternateScreen;

/// The view is drawn on what stderr is: stdout is for the report.
const FD: RawFd = libc::STDERR_FILENO;

/// Colours off, cursor on, back to the normal screen: what leaving takes, for a place where nothing may allocate.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

static TAKEN: AtomicBool = AtomicBool::new(false);
static mut BEFORE: MaybeUninit<libc::termios> = MaybeUninit::uninit();

/// May the terminal be taken? Not by a process in the background: the terminal would stop it.
pub fn is_ours() -> bool {
    // SAFETY: plain calls.
    unsafe { libc::isatty(FD) == 1 && libc::tcgetpgrp(FD) == libc::getpgrp() }
}

/// stderr for the view.
#[derive(Debug)]
pub struct Tty;

impl Write for Tty {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A frame that comes late does not go over what stands on the normal screen.
        if !TAKEN.load(Ordering::SeqCst) {
            return Ok(bytes.len());
        }
        #[allow(clippy::disallowed_methods)]
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes the terminal.
///
/// # Errors
/// When it is none, or gone.
pub fn take() -> io::Result<()> {
    static HOOK: Once = Once::new();
    // SAFETY: `BEFORE` is written here, before `TAKEN` says that it may be read, and by one thread: there is one view.
    unsafe {
        let before = &raw mut BEFORE;
        if libc::tcgetattr(FD, (*before).as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut keys = (*before).assume_init();
        keys.c_lflag &= !(libc::ICANON | libc::ECHO | libc::IEXTEN);
        // Ctrl-S would stop the view, Ctrl-Z and Ctrl-\ would leave the screen behind.
        keys.c_iflag &= !(libc::IXON | libc::ICRNL);
        (keys.c_cc[libc::VSUSP], keys.c_cc[libc::VQUIT]) = (0, 0);
        (keys.c_cc[libc::VMIN], keys.c_cc[libc::VTIME]) = (1, 0);
        if libc::tcsetattr(FD, libc::TCSADRAIN, &raw const keys) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    TAKEN.store(true, Ordering::SeqCst);
    HOOK.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            give_back();
            tell(what);
        }));
    });
    execute!(Tty, EnterAlternateScreen, Hide).inspect_err(|_| give_back())
}

/// Gives the terminal back as it was. Once, whoever calls it first; calls nothing that a handler of signals must not.
pub fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // SAFETY: write and tcsetattr are safe in handlers (POSIX.1-2017, 2.4.3), the bytes are constant, and `BEFORE` was
    // written before `TAKEN` was set.
    unsafe {
        libc::write(FD, LEAVE.as_ptr().cast(), LEAVE.len());
        let before = &raw const BEFORE;
        libc::tcsetattr(FD, libc::TCSADRAIN, (*before).as_ptr());
    }
}
