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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};
    use std::process::{Command, Stdio};

    use super::*;

    /// The process in which the panic happens has it.
    const PANICS: &str = "LASTDROP_TEST_PANICS";

    /// A terminal: who reads it, and the end that a process has.
    fn terminal() -> (File, File) {
        let (mut master, mut slave) = (-1, -1);
        let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: it writes two descriptors that nobody else has, and may be given nothing else.
        unsafe {
            assert_eq!(libc::openpty(&raw mut master, &raw mut slave, name, settings, size), 0);
            (File::from_raw_fd(master), File::from_raw_fd(slave))
        }
    }

    /// What is set of a terminal: flags, then control characters.
    fn settings(of: &File) -> ([libc::tcflag_t; 4], [libc::cc_t; libc::NCCS]) {
        let mut is = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: read only where it was written.
        let is = unsafe {
            assert_eq!(libc::tcgetattr(of.as_raw_fd(), is.as_mut_ptr()), 0);
            is.assume_init()
        };
        ([is.c_iflag, is.c_oflag, is.c_cflag, is.c_lflag], is.c_cc)
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_tells_why() {
        if std::env::var_os(PANICS).is_some() {
            take().expect("a terminal");
            panic!("on purpose");
        }
        let (mut master, slave) = terminal();
        let before = settings(&slave);
        let name = "view::tty::tests::a_panic_gives_the_terminal_back_before_it_tells_why";
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture"])
            .env(PANICS, "1")
            .stdout(Stdio::null())
            .stderr(slave.try_clone().expect("another of it"))
            .spawn()
            .expect("it starts");
        assert!(!child.wait().expect("it ends").success());
        assert_eq!(settings(&slave), before);
        let mut text = [0; 4096];
        let n = master.read(&mut text).expect("what it wrote");
        let text = String::from_utf8_lossy(&text[..n]).into_owned();
        let leave = String::from_utf8_lossy(LEAVE).into_owned();
        let (whole, rest) = text.split_once(&leave).unwrap_or_else(|| panic!("not given back: {text:?}"));
        assert!(whole.contains("\x1b[?1049h") && rest.contains("on purpose") && !rest.contains("\x1b["), "{text:?}");
    }
}
