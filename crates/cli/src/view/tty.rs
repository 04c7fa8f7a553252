//! Switches the terminal to a whole screen and restores it, also after a panic and from a signal handler.
//!
//! A view needs only a part of raw mode: keys come at once and are not echoed. Ctrl-C stays a signal for all processes of
//! the terminal, so it does the same with and without a view, even if the view hangs.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGABRT, SIGCONT, SIGQUIT, SIGTSTP};
use signal_hook::low_level;

use crate::stdio;

/// The stream that a view draws on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// For a view that is the only output of a command.
    Stdout,
    /// For a view of a command that also prints a report.
    Stderr,
}

impl Stream {
    fn fd(self) -> RawFd {
        match self {
            Stream::Stdout => libc::STDOUT_FILENO,
            Stream::Stderr => libc::STDERR_FILENO,
        }
    }
}

/// The effect of Ctrl-C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySignals {
    /// A signal for all processes of the terminal.
    Signal,
    /// A key.
    Key,
}

/// Alternate screen, cursor off.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// Colours off, cursor on, back to the normal screen. A constant, because a signal handler may not allocate.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";

static TAKEN: AtomicBool = AtomicBool::new(false);
/// The terminal is restored while the process is stopped; the view takes it again afterwards.
static SUSPENDED: AtomicBool = AtomicBool::new(false);
/// The view has to draw all cells again.
static TAKEN_AGAIN: AtomicBool = AtomicBool::new(false);
static FD: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);
static mut BEFORE: MaybeUninit<libc::termios> = MaybeUninit::uninit();
static mut DURING: MaybeUninit<libc::termios> = MaybeUninit::uninit();

fn fd() -> RawFd {
    FD.load(Ordering::SeqCst)
}

/// True if a view may take the terminal. A process in the background may not: the terminal would stop it.
pub fn is_ours(stream: Stream) -> bool {
    is_terminal(stream.fd()) && is_in_foreground(stream.fd())
}

pub fn is_terminal(fd: RawFd) -> bool {
    // SAFETY: a plain call.
    unsafe { libc::isatty(fd) == 1 }
}

fn is_in_foreground(fd: RawFd) -> bool {
    // SAFETY: plain calls, which are safe in handlers.
    unsafe { libc::tcgetpgrp(fd) == libc::getpgrp() }
}

/// Columns and rows of the terminal that is taken.
///
/// # Errors
/// When it is gone.
pub fn size() -> io::Result<(u16, u16)> {
    // SAFETY: all zeros are a valid value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one `winsize`.
    if unsafe { libc::ioctl(fd(), libc::TIOCGWINSZ, &raw mut size) } != 0 {
        return Err(gone(io::Error::last_os_error()));
    }
    Ok((size.ws_col, size.ws_row))
}

/// Records that the terminal is gone.
fn gone(error: io::Error) -> io::Error {
    stdio::lose_terminal();
    error
}

/// Waits for input. Without a descriptor for keys there is none, and the call only notices the end of the terminal.
///
/// # Errors
/// When the terminal is gone.
pub fn wait_for_input(keys: Option<RawFd>, wait: Duration) -> io::Result<bool> {
    let of_keys = libc::pollfd { fd: keys.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    let mut both = [of_keys, libc::pollfd { fd: fd(), events: 0, revents: 0 }];
    let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the array has two descriptors, as the call says.
    if unsafe { libc::poll(both.as_mut_ptr(), 2, wait_ms) } < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
    }
    if both.iter().any(|one| one.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0) {
        return Err(gone(io::Error::from_raw_os_error(libc::EIO)));
    }
    Ok(both[0].revents & libc::POLLIN != 0 && is_in_foreground(both[0].fd))
}

/// Writes to the terminal while a view has it.
#[derive(Debug)]
pub struct Tty;

impl Write for Tty {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Discard a late frame: it would overwrite the normal screen.
        if !TAKEN.load(Ordering::SeqCst) {
            return Ok(bytes.len());
        }
        // SAFETY: the bytes are valid during the call.
        let written = unsafe { libc::write(fd(), bytes.as_ptr().cast(), bytes.len()) };
        usize::try_from(written).map_err(|_| match io::Error::last_os_error() {
            error if stdio::is_hangup(&error) => gone(error),
            error => error,
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes the terminal.
///
/// # Errors
/// When the stream is not a terminal, or the terminal is gone.
pub fn take(stream: Stream, signals: KeySignals) -> io::Result<()> {
    static HOOKS: Once = Once::new();
    let fd = stream.fd();
    FD.store(fd, Ordering::SeqCst);
    // SAFETY: only this function writes `BEFORE` and `DURING`, in one thread because there is one view. They are read only after
    // `TAKEN` is set.
    unsafe {
        let before = &raw mut BEFORE;
        if libc::tcgetattr(fd, (*before).as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut keys = (*before).assume_init();
        keys.c_lflag &= !(libc::ICANON | libc::ECHO | libc::IEXTEN);
        if signals == KeySignals::Key {
            keys.c_lflag &= !libc::ISIG;
        }
        // Ctrl-S would stop the view; Ctrl-Z and Ctrl-\ would leave the terminal in whole-screen mode.
        keys.c_iflag &= !(libc::IXON | libc::ICRNL);
        (keys.c_cc[libc::VSUSP], keys.c_cc[libc::VQUIT]) = (0, 0);
        (keys.c_cc[libc::VMIN], keys.c_cc[libc::VTIME]) = (1, 0);
        let during = &raw mut DURING;
        (*during).write(keys);
    }
    HOOKS.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |what| {
            give_back();
            tell(what);
        }));
        // The view also works without them, but such a signal would leave the terminal in whole-screen mode.
        let _ = give_back_on_signals();
    });
    enter()
}

/// Switches to the settings and the screen of the view.
fn enter() -> io::Result<()> {
    // SAFETY: `take` has written `DURING`; the calls are safe in handlers, and the bytes are constant.
    unsafe {
        let during = &raw const DURING;
        if libc::tcsetattr(fd(), libc::TCSANOW, (*during).as_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        TAKEN.store(true, Ordering::SeqCst);
        libc::write(fd(), ENTER.as_ptr().cast(), ENTER.len());
    }
    Ok(())
}

/// Restores the terminal, at the first call only. Safe in a signal handler.
pub fn give_back() {
    SUSPENDED.store(false, Ordering::SeqCst);
    leave();
}

fn leave() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // SAFETY: write and tcsetattr are safe in handlers (POSIX.1-2017, 2.4.3), the bytes are constant, and `BEFORE` was
    // written before `TAKEN` was set. TCSANOW does not wait: a terminal that blocks must not keep us from ending.
    unsafe {
        libc::write(fd(), LEAVE.as_ptr().cast(), LEAVE.len());
        let before = &raw const BEFORE;
        libc::tcsetattr(fd(), libc::TCSANOW, (*before).as_ptr());
    }
}

/// True if the view got the terminal back since the last frame.
pub fn is_to_be_drawn_again() -> bool {
    TAKEN_AGAIN.load(Ordering::SeqCst)
}

/// True if the view got the terminal back since the last call.
pub fn was_taken_again() -> bool {
    TAKEN_AGAIN.swap(false, Ordering::SeqCst)
}

/// Restores the terminal before a signal ends or stops the process.
fn give_back_on_signals() -> io::Result<()> {
    // SAFETY: giving back and the default action are safe in handlers.
    unsafe {
        for signal in [SIGQUIT, SIGABRT].into_iter().filter(|signal| !is_ignored(*signal)) {
            low_level::register(signal, move || {
                give_back();
                let _ = low_level::emulate_default_handler(signal);
            })?;
        }
        if !is_ignored(SIGTSTP) {
            low_level::register(SIGTSTP, || {
                SUSPENDED.store(TAKEN.load(Ordering::SeqCst), Ordering::SeqCst);
                leave();
                let _ = low_level::emulate_default_handler(SIGTSTP);
            })?;
        }
        low_level::register(SIGCONT, || {
            // In the background the terminal belongs to others; coming to the foreground sends another SIGCONT.
            if is_in_foreground(fd()) && SUSPENDED.swap(false, Ordering::SeqCst) && enter().is_ok() {
                TAKEN_AGAIN.store(true, Ordering::SeqCst);
            }
        })?;
    }
    Ok(())
}

/// True if this process ignores a signal, as it may from its start (nohup).
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeros are a valid value, and a null pointer makes the call only read.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};
    use std::process::{Command, Stdio};

    use super::*;

    /// Environment variable of the child process that panics.
    const PANICS: &str = "LASTDROP_TEST_PANICS";

    /// A pseudo-terminal: the end that reads it, and the end for a process.
    fn terminal() -> (File, File) {
        let (mut master, mut slave) = (-1, -1);
        let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the call writes two new descriptors; its other arguments may be null.
        unsafe {
            assert_eq!(libc::openpty(&raw mut master, &raw mut slave, name, settings, size), 0);
            (File::from_raw_fd(master), File::from_raw_fd(slave))
        }
    }

    /// The settings of a terminal: flags, then control characters.
    fn settings(of: &File) -> ([libc::tcflag_t; 4], [libc::cc_t; libc::NCCS]) {
        let mut is = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: it is read only after the call has written it.
        let is = unsafe {
            assert_eq!(libc::tcgetattr(of.as_raw_fd(), is.as_mut_ptr()), 0);
            is.assume_init()
        };
        ([is.c_iflag, is.c_oflag, is.c_cflag, is.c_lflag], is.c_cc)
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_tells_why() {
        if std::env::var_os(PANICS).is_some() {
            take(Stream::Stderr, KeySignals::Signal).expect("a terminal");
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
