//! The other side of [`super::within`]: a copy of this program, executed for one question. It enters the namespaces and
//! root of a container's process, takes on that process's rights, and answers.
//!
//! It reads and executes nothing of the container before it has taken on those rights. The copy has one thread, so that
//! it may fork.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use lastdrop_model::ExecutedProgram;
use lastdrop_probe::identity::Identity;
use lastdrop_probe::process::{self, RememberedProcess};
use lastdrop_probe::tool;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, chdir, chroot, fork};

use super::inquiry::{Reply, Visit, answer};
use super::maps::Maps;
use crate::ServerRef;
use crate::execution::{self, Rights};

/// Longest question.
const MOST_BYTES: u64 = 16 << 20;

type VisitResult = (Result<Reply, String>, Vec<ExecutedProgram>);

/// Reads a question from standard input, prints the answer on standard output, and exits.
pub fn serve() -> ! {
    // No process in the container may inspect this one.
    let hidden = nix::sys::prctl::set_dumpable(false);
    let mut text = Vec::new();
    let read = io::stdin().lock().take(MOST_BYTES).read_to_end(&mut text);
    let said = match (hidden, read, lastdrop_model::read_json::<Visit<'_>>(&text)) {
        (Ok(()), Ok(_), Ok(visit)) => go(&visit),
        _ => Err("the question cannot be read".into()),
    };
    if let Err(why) = said {
        say(&(Err(why), Vec::new()));
    }
    std::process::exit(0);
}

fn say(said: &VisitResult) {
    // The output is a pipe, not a terminal.
    #[allow(clippy::disallowed_methods)]
    let mut out = io::stdout().lock();
    let _ = out.write_all(&serde_json::to_vec(said).unwrap_or_default());
    let _ = out.flush();
}

/// Enters the container and lets a child answer: only a child gets the new pid namespace.
fn go(visit: &Visit<'_>) -> Result<(), String> {
    // A user's own kind is read from its file here, before the container is entered.
    let kind: ServerRef = visit.kind.parse()?;
    let server = ServerRef { config: visit.config.as_deref().map(Into::into), ..kind };
    let cannot = |e: io::Error| format!("process {} cannot be entered: {e}", visit.pid);
    let place = ProcessContext::of(visit.pid).map_err(cannot)?;
    place.join_control_groups(visit.pid)?;
    place.enter().map_err(|e| format!("its namespaces cannot be entered: {e}"))?;
    let us = Pid::this();
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(|e| format!("no process in it: {}", e.desc()))? {
        ForkResult::Parent { child } => {
            drop(place);
            let _ = waitpid(child, None);
        }
        ForkResult::Child => {
            // After that process changes its user, this one may no longer inspect it from inside.
            if let Some(seen) = place.seen() {
                process::remember(seen);
            }
            let said = place.become_it(us).map_err(|e| format!("its rights cannot be taken on: {e}")).and_then(|()| {
                // Close every way out of the container before anything in it is executed.
                drop(place);
                execution::be_contained();
                if fs::read_link("/proc/self").is_err() {
                    return Err("there is no /proc in it that shows its processes".into());
                }
                let answered = catch_unwind(AssertUnwindSafe(|| answer(&server, &visit.inquiry)));
                answered.unwrap_or_else(|_| Err("it could not be read".into()))
            });
            say(&(said, tool::executed()));
        }
    }
    Ok(())
}

/// A process's namespaces, root and rights, held open: inside the container, its /proc is a different one.
struct ProcessContext {
    /// All namespaces except the user namespace.
    namespaces: Vec<File>,
    users: Option<File>,
    root: File,
    rights: Rights,
    /// True if lastdrop is root of this machine.
    as_root: bool,
    /// Supplementary groups, as numbered on this machine.
    groups: Vec<libc::gid_t>,
    /// The process's folder in this machine's /proc, and its pid in its own namespace.
    process: File,
    pid_within: Option<i32>,
}

impl ProcessContext {
    fn of(pid: i32) -> io::Result<ProcessContext> {
        let own = |name: &str| fs::read_link(format!("/proc/self/ns/{name}"));
        let open = |name: &str| -> io::Result<Option<File>> {
            let path = format!("/proc/{pid}/ns/{name}");
            match (fs::read_link(&path), own(name)) {
                (Ok(theirs), Ok(own)) if theirs == own => Ok(None),
                // The kernel lacks this kind of namespace.
                (Err(e), Err(_)) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                _ => File::open(path).map(Some),
            }
        };
        let identity = Identity::of(pid).map_err(io::Error::other)?;
        let users = open("user")?;
        let mut namespaces = Vec::new();
        for name in ["ipc", "uts", "cgroup", "net", "pid", "time", "mnt"] {
            namespaces.extend(open(name)?);
        }
        let rights = ProcessContext::rights_of(pid, &identity, users.is_some())?;
        let root = File::open(format!("/proc/{pid}/root"))?;
        let as_root = nix::unistd::geteuid().is_root();
        let process = File::open(format!("/proc/{pid}"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let pid_within = ids.and_then(|ids| ids.split_whitespace().next_back()?.parse().ok());
        let groups = identity.supplementary_groups;
        Ok(ProcessContext { namespaces, users, root, rights, as_root, groups, process, pid_within })
    }

    /// What the kernel shows of the process, with paths as they are below the entered root. Reads nothing of the
    /// container.
    fn seen(&self) -> Option<RememberedProcess> {
        let link = |name: &str| readlinkat(&self.process, name).ok().map(PathBuf::from);
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.process, "environ", flags, Mode::empty()).ok()?);
        let mut environment = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut environment).ok()?;
        Some(RememberedProcess { pid: self.pid_within?, exe: link("exe")?, directory: link("cwd")?, environment })
    }

    fn rights_of(pid: i32, identity: &Identity, other_users: bool) -> io::Result<Rights> {
        if !other_users {
            return Ok(Rights::within(identity, identity.user(), identity.group()));
        }
        let unknown = || io::Error::other("its user has no id in its user namespace");
        let uid = Maps::of_users(pid).and_then(|maps| maps.inside(identity.user())).ok_or_else(unknown)?;
        let gid = Maps::of_groups(pid).and_then(|maps| maps.inside(identity.group())).ok_or_else(unknown)?;
        Ok(Rights::within(identity, uid, gid))
    }

    /// Joins the process's control groups: its limits and device permissions are bound to them.
    fn join_control_groups(&self, pid: i32) -> Result<(), String> {
        let groups = |of: &str| fs::read_to_string(format!("/proc/{of}/cgroup")).unwrap_or_default();
        let theirs = groups(&pid.to_string());
        if !self.as_root || theirs == groups("self") {
            return Ok(());
        }
        for line in theirs.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            if let (Some(controllers), Some(path)) = (fields.next(), fields.next())
                && let Some(file) = execution::cgroup_file(controllers, path)
            {
                let _ = fs::write(file, "0");
            }
        }
        let own = groups("self");
        let decides =
            |line: &&str| line.starts_with("0::") || line.split(':').nth(1).is_some_and(|c| c.contains("devices"));
        match theirs.lines().filter(decides).find(|line| !own.lines().any(|own| own == *line)) {
            None => Ok(()),
            Some(line) => Err(format!("its control group cannot be entered ({line})")),
        }
    }

    /// Enters the container. Root enters the host's namespaces first and gives that right up with the user namespace.
    /// An ordinary user may only enter namespaces that belong to a user namespace of theirs.
    fn enter(&self) -> io::Result<()> {
        if !self.as_root {
            self.enter_users()?;
        }
        for namespace in &self.namespaces {
            setns(namespace.as_fd(), CloneFlags::empty())?;
        }
        nix::unistd::fchdir(self.root.as_fd())?;
        chroot(".")?;
        chdir("/")?;
        if self.as_root {
            let groups: Vec<nix::unistd::Gid> = self.groups.iter().map(|group| (*group).into()).collect();
            nix::unistd::setgroups(&groups)?;
        }
        Ok(())
    }

    fn enter_users(&self) -> io::Result<()> {
        match &self.users {
            Some(users) => Ok(setns(users.as_fd(), CloneFlags::CLONE_NEWUSER)?),
            None => Ok(()),
        }
    }

    /// In the child of `parent`: takes on the user, groups and rights of the process.
    fn become_it(&self, parent: Pid) -> io::Result<()> {
        if self.as_root {
            self.enter_users()?;
        }
        self.rights.take()?;
        nix::sys::prctl::set_dumpable(false)?;
        tool::end_with_parent(parent, Signal::SIGKILL)
    }
}
