//! The other side of [`super::within`]: a copy of this program, executed for one question, goes to where a process's files, processes and
//! network are, becomes what that process is, and answers.
//!
//! Nothing of the container is read or executed before the rights are taken on. The copy has one thread, so that it may fork.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use lastdrop_model::Executed;
use lastdrop_probe::identity::Identity;
use lastdrop_probe::process::{self, Seen};
use lastdrop_probe::tool;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::Mode;
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, chdir, chroot, fork};

use super::inquiry::{Reply, Visit, answer};
use super::maps::Maps;
use crate::ServerRef;
use crate::execution::{self, Rights};

/// A question is not longer.
const MOST_BYTES: u64 = 16 << 20;

type Said = (Result<Reply, String>, Vec<Executed>);

/// Reads a question from standard input, answers it on standard output, and ends.
pub fn serve() -> ! {
    // Nobody in a container may look into this process.
    let hidden = nix::sys::prctl::set_dumpable(false);
    let mut text = Vec::new();
    let read = io::stdin().lock().take(MOST_BYTES).read_to_end(&mut text);
    let said = match (hidden, read, serde_json::from_slice::<Visit<'_>>(&text)) {
        (Ok(()), Ok(_), Ok(visit)) => go(&visit),
        _ => Err("the question cannot be read".into()),
    };
    if let Err(why) = said {
        say(&(Err(why), Vec::new()));
    }
    std::process::exit(0);
}

fn say(said: &Said) {
    // It is a pipe, and no text for a terminal.
    #[allow(clippy::disallowed_methods)]
    let mut out = io::stdout().lock();
    let _ = out.write_all(&serde_json::to_vec(said).unwrap_or_default());
    let _ = out.flush();
}

/// Goes there and has a child answer: process ids are those of whoever is born there.
fn go(visit: &Visit<'_>) -> Result<(), String> {
    // A kind of the user's own is read from its file here.
    let kind: ServerRef = visit.kind.parse()?;
    let server = ServerRef { config: visit.config.as_deref().map(Into::into), ..kind };
    let cannot = |e: io::Error| format!("process {} cannot be entered: {e}", visit.pid);
    let place = Place::of(visit.pid).map_err(cannot)?;
    place.join_control_groups(visit.pid)?;
    place.enter().map_err(|e| format!("its namespaces cannot be entered: {e}"))?;
    // SAFETY: this process has one thread.
    match unsafe { fork() }.map_err(|e| format!("no process in it: {}", e.desc()))? {
        ForkResult::Parent { child } => {
            drop(place);
            let _ = waitpid(child, None);
        }
        ForkResult::Child => {
            // What it is itself may not look into a process that has changed its user.
            if let Some(seen) = place.seen() {
                process::remember(seen);
            }
            let said = place.become_it().map_err(|e| format!("its rights cannot be taken on: {e}")).and_then(|()| {
                // What leads out of the container is closed before anything in it is executed.
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

/// A process's namespaces, root and rights, held open: its /proc is another one inside.
struct Place {
    /// All but that of users.
    namespaces: Vec<File>,
    users: Option<File>,
    root: File,
    rights: Rights,
    /// We are root of this machine.
    as_root: bool,
    /// Groups as they are called here.
    groups: Vec<libc::gid_t>,
    /// Its folder in this machine's /proc, and its id in its own namespace.
    process: File,
    pid_within: Option<i32>,
}

impl Place {
    fn of(pid: i32) -> io::Result<Place> {
        let own = |name: &str| fs::read_link(format!("/proc/self/ns/{name}"));
        let open = |name: &str| -> io::Result<Option<File>> {
            let path = format!("/proc/{pid}/ns/{name}");
            match (fs::read_link(&path), own(name)) {
                (Ok(theirs), Ok(own)) if theirs == own => Ok(None),
                // A kernel without this sort of namespace.
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
        let rights = Place::rights_of(pid, &identity, users.is_some())?;
        let root = File::open(format!("/proc/{pid}/root"))?;
        let as_root = nix::unistd::geteuid().is_root();
        let process = File::open(format!("/proc/{pid}"))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let pid_within = ids.and_then(|ids| ids.split_whitespace().next_back()?.parse().ok());
        let groups = identity.supplementary_groups;
        Ok(Place { namespaces, users, root, rights, as_root, groups, process, pid_within })
    }

    /// What the kernel shows of the process, with paths as they are in the root that was entered. Nothing of the container is read.
    fn seen(&self) -> Option<Seen> {
        let link = |name: &str| readlinkat(&self.process, name).ok().map(PathBuf::from);
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.process, "environ", flags, Mode::empty()).ok()?);
        let mut environment = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut environment).ok()?;
        Some(Seen { pid: self.pid_within?, exe: link("exe")?, directory: link("cwd")?, environment })
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

    /// Its limits and the devices that it may use are bound to its control groups.
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

    /// Root enters what belongs to the host first, and gives that up with the user namespace; an ordinary user may only enter what
    /// belongs to a user namespace of theirs.
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

    /// In the child: becomes what the process is.
    fn become_it(&self) -> io::Result<()> {
        if self.as_root {
            self.enter_users()?;
        }
        self.rights.take()?;
        nix::sys::prctl::set_dumpable(false)?;
        // Forgotten by the kernel where rights change: this comes last.
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
        Ok(())
    }
}
