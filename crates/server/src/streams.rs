//! Gives a restarted server its former standard output and standard error.
//!
//! While the server lives, its descriptors are copied (`pidfd_getfd`), whatever they refer to. Of a server that has
//! ended, only the names are known, and a name may refer to anything by now. Therefore the process that becomes the
//! server opens them itself: as the server's user, without following links, without blocking, and only if the type is
//! the same as before. In all other cases the server gets /dev/null.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use lastdrop_probe::process::{self, Birth};
use serde::{Deserialize, Serialize};

/// The type of file that a standard stream refers to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// Journals of older versions do not contain the type.
    #[default]
    Unknown,
    File,
    Pipe,
    Device,
    Other,
}

impl StreamKind {
    fn of(file: &File) -> StreamKind {
        let Ok(kind) = file.metadata().map(|about| about.file_type()) else { return StreamKind::Unknown };
        match () {
            () if kind.is_file() => StreamKind::File,
            () if kind.is_fifo() => StreamKind::Pipe,
            () if kind.is_char_device() => StreamKind::Device,
            () => StreamKind::Other,
        }
    }

    /// True if a file's mode has this type. Called between fork and exec.
    fn is(self, mode: libc::mode_t) -> bool {
        match mode & libc::S_IFMT {
            libc::S_IFREG => matches!(self, StreamKind::File | StreamKind::Unknown),
            libc::S_IFIFO => self == StreamKind::Pipe,
            libc::S_IFCHR => self == StreamKind::Device,
            _ => false,
        }
    }
}

/// The standard output and standard error of a server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Streams {
    #[serde(default)]
    output: StreamKind,
    #[serde(default)]
    errors: StreamKind,
    /// The descriptors themselves, while lastdrop runs.
    #[serde(skip)]
    held: Option<Arc<[OwnedFd; 2]>>,
}

impl Streams {
    /// Copies those of a living process. If the kernel does not allow that, the names from its start are used.
    pub fn of(birth: &Birth) -> Streams {
        Streams::of_process(birth.pid, birth.start_ticks).unwrap_or_default()
    }

    /// The same streams; if there are no descriptors yet, with those of a living master.
    pub fn or_of(&self, master: Option<i32>) -> Streams {
        let living = || {
            let master = process::look(master?)?;
            Streams::of_process(master.pid, master.start_ticks)
        };
        if self.held.is_some() { self.clone() } else { living().unwrap_or_else(|| self.clone()) }
    }

    fn of_process(pid: i32, start_ticks: u64) -> Option<Streams> {
        // SAFETY: plain system calls; each descriptor that they return is owned here at once.
        let call = |number, a: i32, b: i32| unsafe {
            let fd = libc::syscall(number, a, b, 0);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as RawFd))
        };
        let process = call(libc::SYS_pidfd_open, pid, 0)?;
        // From here on, the pid cannot belong to another process.
        if !process::is_alive(pid, start_ticks) {
            return None;
        }
        let take = |number| call(libc::SYS_pidfd_getfd, process.as_raw_fd(), number).map(File::from);
        let (output, errors) = (take(libc::STDOUT_FILENO)?, take(libc::STDERR_FILENO)?);
        Some(Streams {
            output: StreamKind::of(&output),
            errors: StreamKind::of(&errors),
            held: Some(Arc::new([output.into(), errors.into()])),
        })
    }

    /// Lets a command that becomes the server write to the server's streams; its standard error may come to lastdrop
    /// instead. Call it last, because files must be opened as the server's user.
    pub fn attach(&self, command: &mut Command, birth: &Birth, hear_errors: bool) -> io::Result<()> {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if let Some(held) = &self.held {
            let [output, errors] = held.as_ref();
            command.stdout(output.try_clone()?);
            command.stderr(errors.try_clone()?);
        } else {
            let file = |path: &Option<PathBuf>| path.as_ref().and_then(|p| CString::new(p.as_os_str().as_bytes()).ok());
            let output = file(&birth.output).map(|name| (libc::STDOUT_FILENO, name, self.output));
            let errors = file(&birth.errors).map(|name| (libc::STDERR_FILENO, name, self.errors));
            let streams: Vec<_> = output.into_iter().chain(errors.filter(|_| !hear_errors)).collect();
            // SAFETY: it makes system calls only, and reads memory that was allocated before.
            unsafe {
                command.pre_exec(move || {
                    streams.iter().for_each(|(number, name, kind)| open_as(*number, name, *kind));
                    Ok(())
                });
            }
        }
        if hear_errors {
            command.stderr(Stdio::piped());
        }
        Ok(())
    }
}

/// Opens a file for appending as this standard stream. If that is not allowed, the stream stays as it is. Called
/// between fork and exec.
fn open_as(number: RawFd, name: &CStr, kind: StreamKind) {
    const FLAGS: i32 = libc::O_WRONLY
        | libc::O_APPEND
        | libc::O_NOFOLLOW
        // A pipe without a reader returns an error instead of blocking.
        | libc::O_NONBLOCK
        | libc::O_NOCTTY
        | libc::O_CLOEXEC;
    // SAFETY: system calls with pointers to what lives for the call.
    unsafe {
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = FLAGS as u64;
        // The name comes from the kernel, so it contained no link.
        how.resolve = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
        let size = size_of::<libc::open_how>();
        let mut fd = libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, name.as_ptr(), &raw const how, size) as RawFd;
        if fd < 0 && *libc::__errno_location() == libc::ENOSYS && libc::geteuid() != 0 {
            // Before Linux 5.6. A link can only lead the user to files that this user may write anyway.
            fd = libc::open(name.as_ptr(), FLAGS);
        }
        if fd < 0 {
            return;
        }
        let mut about: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut about) == 0 && kind.is(about.st_mode) {
            libc::fcntl(fd, libc::F_SETFL, libc::O_APPEND);
            libc::dup2(fd, number);
        }
        libc::close(fd);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use nix::sys::stat::Mode;

    use super::*;

    const NOBODY: u32 = 65_534;

    fn speaker(user: Option<u32>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2"]).stdin(Stdio::null());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command
    }

    fn birth(folder: &Path) -> Birth {
        let own = Birth::of(std::process::id() as i32).expect("this process");
        Birth { output: Some(folder.join("out")), errors: Some(folder.join("err")), ..own }
    }

    /// Starts a program with the streams of a server that has ended.
    fn speak(streams: &Streams, birth: &Birth, user: Option<u32>) {
        let mut command = speaker(user);
        streams.attach(&mut command, birth, false).expect("attached");
        let since = Instant::now();
        assert!(command.status().expect("it runs").success());
        assert!(since.elapsed() < Duration::from_secs(10), "it waited for a reader");
    }

    #[test]
    fn a_server_started_again_appends_to_its_files_and_follows_no_link() {
        let dir = tempfile::tempdir().expect("a folder");
        let birth = birth(dir.path());
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let read = |path: &Path| fs::read_to_string(path).expect("there");
        let streams = Streams { output: StreamKind::File, ..Streams::default() };
        fs::write(&out, "before\n").expect("written");
        fs::write(&err, "").expect("written");
        speak(&streams, &birth, None);
        assert_eq!((read(&out).as_str(), read(&err).as_str()), ("before\nout\n", "err\n"));
        let secret = dir.path().join("secret");
        fs::write(&secret, "").expect("written");
        fs::remove_file(&out).expect("removed");
        symlink(&secret, &out).expect("linked");
        fs::remove_file(&err).expect("removed");
        nix::unistd::mkfifo(&err, Mode::from_bits_truncate(0o600)).expect("made");
        speak(&streams, &birth, None);
        assert_eq!(read(&secret), "");
        // A link in place of a folder above.
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::create_dir(&real).expect("made");
        fs::write(real.join("out"), "").expect("written");
        symlink(&real, &link).expect("linked");
        speak(&streams, &Birth { output: Some(link.join("out")), errors: None, ..birth.clone() }, None);
        assert_eq!(read(&real.join("out")), "");
        // It was a pipe before and has no reader now.
        speak(&Streams { errors: StreamKind::Pipe, ..streams }, &birth, None);
    }

    #[test]
    fn a_file_is_opened_with_the_rights_of_the_servers_user() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("its mode");
        let birth = birth(dir.path());
        for (name, owner) in [("out", 0), ("err", NOBODY)] {
            let path = dir.path().join(name);
            fs::write(&path, "").expect("written");
            std::os::unix::fs::chown(&path, Some(owner), None).expect("its owner");
        }
        speak(&Streams::default(), &birth, Some(NOBODY));
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("there");
        assert_eq!((read("out").as_str(), read("err").as_str()), ("", "err\n"));
    }

    #[test]
    fn the_streams_of_a_living_server_are_taken_as_they_are() {
        let dir = tempfile::tempdir().expect("a folder");
        let out = dir.path().join("out");
        let mut server = Command::new("sleep");
        server.arg("600").stdin(Stdio::null()).stdout(File::create(&out).expect("made")).stderr(Stdio::null());
        let mut server = server.spawn().expect("it runs");
        let birth = Birth::of(server.id() as i32);
        let streams = birth.map(|birth| (Streams::of(&birth), birth));
        server.kill().expect("killed");
        server.wait().expect("ended");
        let (streams, birth) = streams.expect("a birth");
        // Where a security policy forbids copying, they are opened by name.
        let is_taken = streams.held.is_some();
        fs::rename(&out, dir.path().join("rotated")).expect("renamed");
        speak(&streams, &birth, None);
        if is_taken {
            assert_eq!((streams.output, streams.errors), (StreamKind::File, StreamKind::Device));
            assert_eq!(fs::read_to_string(dir.path().join("rotated")).expect("there"), "out\n");
        }
        assert!(!out.exists());
    }
}
