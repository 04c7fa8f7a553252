//! Reads files that a user or a server names, if they end. `/dev/zero` does not, nor does a named pipe without a
//! writer.
//!
//! Opening never blocks: a named pipe is opened without blocking, and its writer has some seconds to come. A shell's
//! `<(command)` is an already open pipe under a name such as /dev/fd/63.

use std::cell::Cell;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, poll};

use crate::trusted::kind_of;

/// Largest input; a longer one is an error.
pub const MOST_BYTES: u64 = 256 << 20;
/// How long a named pipe may have no writer.
const WRITER_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_MS: u16 = 20;

/// An open regular file, or a pipe with a writer.
#[derive(Debug)]
pub struct Input {
    /// A byte that was read to detect the writer.
    first: Option<u8>,
    file: File,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match (self.first, buffer.first_mut()) {
            (Some(byte), Some(to)) => {
                *to = byte;
                self.first = None;
                Ok(1)
            }
            _ => self.file.read(buffer),
        }
    }
}

/// Opens a regular file, or `/dev/null`, without waiting.
///
/// # Errors
/// When it cannot be opened, or is of another type.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a device may have side effects, so its type is checked first. The open file is checked again, because the
    // name may refer to another file by then.
    check_regular(&std::fs::metadata(path)?)?;
    let file = open_at_once(path)?;
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file, `/dev/null`, or a pipe. A named pipe must get a writer within some seconds.
///
/// # Errors
/// When it cannot be opened, is of another type, or the pipe gets no writer.
pub fn open_stream(path: &Path) -> io::Result<Input> {
    if let Some(file) = handed_over(path)? {
        // A regular file is opened by its name instead, so that it is read from its beginning.
        let about = file.metadata()?;
        if !about.is_file() && !is_null_device(&about) {
            return Ok(Input { first: None, file });
        }
    }
    if !std::fs::metadata(path)?.file_type().is_fifo() {
        return Ok(Input { first: None, file: open_regular(path)? });
    }
    let file = open_at_once(path)?;
    if !file.metadata()?.file_type().is_fifo() {
        check_regular(&file.metadata()?)?;
        return Ok(Input { first: None, file });
    }
    let first = wait_for_writer(&file, WRITER_TIMEOUT)?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(Input { first, file })
}

/// Checks that standard input can be read to an end.
///
/// # Errors
/// When it is a folder or a device other than a terminal.
pub fn check_stdin() -> io::Result<()> {
    let stdin = io::stdin();
    let file = File::from(stdin.as_fd().try_clone_to_owned()?);
    check_stream(&file)
}

/// Reads a regular file, or `/dev/null`.
///
/// # Errors
/// When it cannot be read, is not a regular file, or is larger than [`MOST_BYTES`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let length = file.metadata()?.len();
    read_all(file, length)
}

/// Reads a regular file, or `/dev/null`, as text.
///
/// # Errors
/// As [`read`], and for bytes that are not UTF-8.
pub fn read_regular_text(path: &Path) -> io::Result<String> {
    text(read(path)?)
}

/// Reads the text of a file or pipe, such as a shell's `<(command)`.
///
/// # Errors
/// As [`read`], and for bytes that are not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let input = open_stream(path)?;
    let length = input.file.metadata()?.len();
    text(read_all(input, length)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text in UTF-8"))
}

fn read_all(from: impl Read, length: u64) -> io::Result<Vec<u8>> {
    let too_large = |bytes: &str| {
        let what = format!("it has {bytes}; at most {} MB of a file are read", MOST_BYTES >> 20);
        io::Error::new(io::ErrorKind::FileTooLarge, what)
    };
    if length > MOST_BYTES {
        return Err(too_large(&format!("{} MB", length.div_ceil(1 << 20))));
    }
    // A file may grow while it is read.
    let mut bytes = Vec::with_capacity(length as usize);
    from.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES { Err(too_large("more than that")) } else { Ok(bytes) }
}

thread_local! {
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread refuse to open files, or ends that, and returns the previous state. For a thread that should read
/// with another user's rights but cannot change to them.
pub fn refuse(refuses: bool) -> bool {
    REFUSES.replace(refuses)
}

fn open_at_once(path: &Path) -> io::Result<File> {
    if REFUSES.get() {
        let why = "lastdrop cannot take on the rights of the server's user (CAP_SETUID and CAP_SETGID), and root reads nothing for it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    // The file stays non-blocking, because reading some of the kernel's regular files, such as /proc/kmsg, would block.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Returns true for `/dev/null`, which users name to mean "no file".
fn is_null_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == libc::makedev(1, 3)
}

fn check_regular(about: &Metadata) -> io::Result<()> {
    match about.is_file() || is_null_device(about) {
        true => Ok(()),
        false if about.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, no regular file")),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, no regular file", kind_of(about)))),
    }
}

/// Returns an inherited descriptor (a pipe, terminal or file) if the path names one.
///
/// # Errors
/// When it is a folder, or a device other than a terminal.
pub fn handed_over(path: &Path) -> io::Result<Option<File>> {
    let number = match path.to_str() {
        Some("/dev/stdin") => Some(0),
        Some(name) => {
            let number = ["/dev/fd/", "/proc/self/fd/"].iter().find_map(|folder| name.strip_prefix(folder));
            number.and_then(|n| n.parse::<i32>().ok()).filter(|n| *n >= 0)
        }
        None => None,
    };
    let Some(number) = number else { return Ok(None) };
    // SAFETY: the descriptor is only duplicated, and duplicating a number that is no descriptor returns an error.
    let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()?;
    let file = File::from(copy);
    check_stream(&file)?;
    Ok(Some(file))
}

fn check_stream(file: &File) -> io::Result<()> {
    use std::io::IsTerminal;
    let about = file.metadata()?;
    let kind = about.file_type();
    if kind.is_fifo() || kind.is_socket() || file.is_terminal() { Ok(()) } else { check_regular(&about) }
}

/// Waits until a process has opened a named pipe for writing. Returns the first byte if detecting the writer read it.
fn wait_for_writer(pipe: &File, limit: Duration) -> io::Result<Option<u8>> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        let mut events = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut events, POLL_MS) {
            Ok(0) => {}
            Ok(_) => return Ok(None),
            Err(nix::errno::Errno::EINTR) => continue,
            Err(e) => return Err(e.into()),
        }
        let mut byte = [0];
        let mut reader: &File = pipe;
        match reader.read(&mut byte) {
            // No writer yet.
            Ok(0) => {}
            Ok(_) => return Ok(Some(byte[0])),
            // A writer that has written nothing yet.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) => return Err(e),
        }
    }
    let seconds = limit.as_secs_f64();
    let what = format!("it is a named pipe, and nobody has opened it for writing within {seconds} s");
    Err(io::Error::new(io::ErrorKind::TimedOut, what))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn only_what_has_an_end_is_read() {
        assert!(read(Path::new("/dev/zero")).expect_err("no end").to_string().contains("a device, no regular file"));
        assert!(read_text(Path::new("/dev/zero")).is_err() && read(Path::new("/")).is_err());
        assert_eq!(read(Path::new("/dev/null")).expect("nothing"), b"");
        assert!(read_text(Path::new("Cargo.toml")).is_ok_and(|t| t.contains("lastdrop-files")));
        let folder = tempfile::tempdir().expect("a folder");
        let large = folder.path().join("large");
        File::create(&large).and_then(|f| f.set_len(MOST_BYTES + 1)).expect("a sparse file");
        let error = read(&large).expect_err("too large").to_string();
        assert!(error.contains("it has 257 MB; at most 256 MB"), "{error}");
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).expect("made");
        assert!(read_text(&socket).expect_err("a socket").to_string().contains("a socket"));
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).expect("made");
        assert!(read(&pipe).expect_err("a pipe").to_string().contains("a named pipe, no regular file"));
    }

    #[test]
    fn a_pipe_is_read_once_somebody_writes_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).expect("made");
        let writer = {
            let pipe = pipe.clone();
            thread::spawn(move || {
                let mut to = OpenOptions::new().write(true).open(pipe).expect("a reader comes");
                // The reader now finds a writer that has written nothing yet.
                thread::sleep(Duration::from_millis(60));
                to.write_all(b"late").expect("written");
            })
        };
        assert_eq!(read_text(&pipe).expect("written"), "late");
        writer.join().expect("ended");
        let (reader, mut to) = io::pipe().expect("a pipe");
        to.write_all(b"handed over").expect("written");
        drop(to);
        for folder in ["/dev/fd", "/proc/self/fd"] {
            let name = format!("{folder}/{}", reader.as_raw_fd());
            let expected = if folder == "/dev/fd" { "handed over" } else { "" };
            assert_eq!(read_text(Path::new(&name)).expect("readable"), expected);
        }
    }

    #[test]
    fn a_pipe_without_a_writer_is_an_error_and_no_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).expect("made");
        let pipe = open_at_once(&pipe).expect("opened without waiting");
        let error = wait_for_writer(&pipe, Duration::from_millis(100)).expect_err("nobody writes").to_string();
        assert!(error.contains("nobody has opened it for writing"), "{error}");
    }
}
