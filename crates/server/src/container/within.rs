//! Work that is done where a container's files, processes and network mean what they say.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, chdir, chroot, fork, pipe2};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Reading a configuration and having the server test it take no longer.
const LIMIT: Duration = Duration::from_secs(60);

/// What comes back over the pipe.
#[derive(Serialize, Deserialize)]
enum Said<T> {
    Done(T),
    Refused(String),
}

/// Does `work` in the namespaces and the root of a process, in a child of its own: this process stays where it is.
///
/// # Errors
/// In words: the process's namespaces may not be entered, the work failed, or took longer than a minute.
pub(super) fn within<T>(pid: i32, work: impl FnOnce() -> Result<T, String>) -> Result<T, String>
where
    T: Serialize + DeserializeOwned,
{
    let place = Place::of(pid).map_err(|e| format!("process {pid} cannot be entered: {e}"))?;
    let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(|e| format!("no pipe: {e}"))?;
    // SAFETY: the child does only what is below, and leaves by _exit. The allocator is whole after a fork; nothing else of
    // this program's holds a lock that the work takes.
    match unsafe { fork() }.map_err(|e| format!("no process: {e}"))? {
        ForkResult::Parent { child } => {
            drop(write);
            let bytes = read_within(File::from(read), child);
            let _ = waitpid(child, None);
            match serde_json::from_slice(&bytes?) {
                Ok(Said::Done(done)) => Ok(done),
                Ok(Said::Refused(why)) => Err(why),
                Err(_) => Err("it ended before it had answered".into()),
            }
        }
        ForkResult::Child => {
            drop(read);
            let done = catch_unwind(AssertUnwindSafe(|| place.child(File::from(write), work)));
            // SAFETY: what the parent would do at its end is not done twice.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
    }
}

/// All that a child says, until it has ended.
fn read_within(mut from: File, child: Pid) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + LIMIT;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 65_536]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let mut ready = [PollFd::new(from.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => {
                let _ = kill(child, Signal::SIGKILL);
                return Err(format!("no answer within {} s", LIMIT.as_secs()));
            }
            Err(Errno::EINTR) => continue,
            Err(e) => return Err(e.to_string()),
            Ok(_) => {}
        }
        match from.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
    }
}

/// A process's namespaces and root, held open: its /proc is another one inside.
struct Place {
    processes: File,
    network: File,
    mounts: File,
    root: File,
}

impl Place {
    fn of(pid: i32) -> io::Result<Place> {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
        Ok(Place { processes: open("ns/pid")?, network: open("ns/net")?, mounts: open("ns/mnt")?, root: open("root")? })
    }

    fn enter(&self) -> nix::Result<()> {
        setns(&self.processes, CloneFlags::CLONE_NEWPID)?;
        setns(&self.network, CloneFlags::CLONE_NEWNET)?;
        setns(&self.mounts, CloneFlags::CLONE_NEWNS)?;
        nix::unistd::fchdir(&self.root)?;
        chroot(".")?;
        chdir("/")
    }

    /// In the child: enters, and has a child of its own work, for process ids are those of whoever is born there.
    fn child<T: Serialize>(&self, mut write: File, work: impl FnOnce() -> Result<T, String>) {
        let mut say = |said: &Said<T>| {
            let _ = write.write_all(&serde_json::to_vec(said).unwrap_or_default());
        };
        end_with_parent();
        if let Err(e) = self.enter() {
            return say(&Said::Refused(format!("its namespaces cannot be entered: {}", e.desc())));
        }
        // SAFETY: as in `within`; there is one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { child }) => {
                let _ = waitpid(child, None);
            }
            Ok(ForkResult::Child) => {
                end_with_parent();
                let said = match fs::read_link("/proc/self") {
                    Ok(_) => work().map_or_else(Said::Refused, Said::Done),
                    Err(_) => Said::Refused("there is no /proc in it that shows its processes".into()),
                };
                say(&said);
            }
            Err(e) => say(&Said::Refused(format!("no process in it: {}", e.desc()))),
        }
    }
}

fn end_with_parent() {
    // SAFETY: prctl takes no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
