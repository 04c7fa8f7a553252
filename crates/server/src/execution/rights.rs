//! The rights that a child takes on between fork and exec: exactly those of the process that it stands for.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use lastdrop_probe::identity::Identity;
use lastdrop_probe::process::Birth;

use crate::ServerError;

/// Capabilities that a server needs to test its configuration as root: for files of other users, low ports, other users
/// and limits. A question never gets more, whatever its process has.
const OF_QUESTIONS: u64 = {
    const CHOWN: u32 = 0;
    const DAC_OVERRIDE: u32 = 1;
    const DAC_READ_SEARCH: u32 = 2;
    const FOWNER: u32 = 3;
    const FSETID: u32 = 4;
    const KILL: u32 = 5;
    const SETGID: u32 = 6;
    const SETUID: u32 = 7;
    const NET_BIND_SERVICE: u32 = 10;
    const IPC_LOCK: u32 = 14;
    const SYS_CHROOT: u32 = 18;
    const SYS_NICE: u32 = 23;
    const SYS_RESOURCE: u32 = 24;
    1 << CHOWN
        | 1 << DAC_OVERRIDE
        | 1 << DAC_READ_SEARCH
        | 1 << FOWNER
        | 1 << FSETID
        | 1 << KILL
        | 1 << SETGID
        | 1 << SETUID
        | 1 << NET_BIND_SERVICE
        | 1 << IPC_LOCK
        | 1 << SYS_CHROOT
        | 1 << SYS_NICE
        | 1 << SYS_RESOURCE
};

/// The capability to read the memory of processes that the same user alone may not read.
const READS_PROCESSES: u64 = 1 << 19;

const LAST_CAPABILITY: u32 = 63;
/// Version 3 of the structures of capset(2).
const CAPABILITY_VERSION: u32 = 0x2008_0522;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The rights of a child. All memory is allocated when it is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    pub uid: u32,
    gid: u32,
    /// Supplementary groups; `None` to keep the present ones.
    groups: Option<Vec<libc::gid_t>>,
    /// True if lastdrop is root and can become any user.
    becomes: bool,
    /// Capabilities that it can ever have.
    bounding: u64,
    /// Capabilities that it has when it starts.
    held: u64,
    /// Capabilities that it has as an ordinary user.
    ambient: u64,
    no_new_privs: bool,
}

impl Rights {
    /// Rights for a question: the process's user without capabilities. For a process of root, its capabilities as far
    /// as a question needs them.
    ///
    /// # Errors
    /// If lastdrop may not act for that user.
    pub fn of_question(birth: &Birth) -> Result<Rights, ServerError> {
        let own = own_rights()?;
        let granted = match &birth.identity {
            _ if birth.uid != 0 => 0,
            Some(identity) if !identity.is_of_our_namespace() => 0,
            Some(identity) if identity.user() == 0 => identity.capabilities.permitted,
            Some(identity) => identity.capabilities.bounding,
            None => OF_QUESTIONS,
        };
        let held = granted & OF_QUESTIONS & own.capabilities.permitted;
        Rights::new(birth, &own, held, held, 0, true)
    }

    /// Rights for a tool that reads the memory of processes: the user's, without capabilities. If these do not suffice,
    /// CAP_SYS_PTRACE too, and nothing else. Without processes, the tool reads files of the user's.
    ///
    /// # Errors
    /// If lastdrop may not act for that user.
    pub fn of_reader(birth: &Birth, pids: &[i32]) -> Result<Rights, ServerError> {
        let own = own_rights()?;
        let mut granted = if !pids.is_empty() && is_attaching_restricted() { READS_PROCESSES } else { 0 };
        for pid in pids {
            // Nothing is read of a process that has ended.
            let Ok(identity) = Identity::of(*pid) else { continue };
            if !identity.is_of_our_namespace() {
                return Rights::new(birth, &own, 0, 0, 0, true);
            }
            if !is_read_by(birth, *pid, &identity) {
                granted = READS_PROCESSES;
            }
        }
        let held = granted & own.capabilities.permitted;
        Rights::new(birth, &own, held, held, held, true)
    }

    /// True if a program with these rights can do more than its user can.
    pub fn exceeds_user(&self) -> bool {
        self.uid == 0 || self.held != 0
    }

    /// The rights that a server was started with.
    ///
    /// # Errors
    /// If lastdrop may not act for its user.
    pub fn of_start(birth: &Birth) -> Result<Rights, ServerError> {
        let own = own_rights()?;
        let (bounding, ambient, no_new_privs) = match &birth.identity {
            Some(identity) => {
                let capabilities = identity.capabilities;
                (capabilities.bounding, capabilities.ambient, identity.no_new_privs)
            }
            None => (own.capabilities.bounding, 0, false),
        };
        let held = if birth.uid == 0 { bounding } else { ambient };
        Rights::new(birth, &own, bounding, held & own.capabilities.permitted, ambient, no_new_privs)
    }

    /// Rights of a process in a container, for a process that has entered its user namespace: user and group as
    /// numbered there.
    pub fn within(identity: &Identity, uid: u32, gid: u32) -> Rights {
        // All its capabilities: a process with more than ours may not be inspected. Programs that are asked there get
        // fewer.
        let held = if uid == 0 { identity.capabilities.permitted } else { 0 };
        Rights { uid, gid, groups: None, becomes: true, bounding: held, held, ambient: 0, no_new_privs: true }
    }

    fn new(
        birth: &Birth,
        own: &Identity,
        bounding: u64,
        held: u64,
        ambient: u64,
        no_new_privs: bool,
    ) -> Result<Rights, ServerError> {
        let becomes = own.users[1] == 0;
        if !becomes && birth.uid != own.users[1] {
            return Err(ServerError::Permission { what: format!("process {} is another user's", birth.pid) });
        }
        let (uid, gid, groups) = (birth.uid, birth.gid, Some(birth.groups.clone()));
        let ambient = if becomes && uid != 0 { ambient & held } else { 0 };
        Ok(Rights { uid, gid, groups, becomes, bounding, held, ambient, no_new_privs })
    }

    /// Takes the rights on. For the child only, between fork and exec: makes only system calls.
    ///
    /// # Errors
    /// If the kernel refuses. The program must not be executed then.
    pub fn take(&self) -> io::Result<()> {
        if self.becomes {
            self.bound();
            self.become_user()?;
        }
        let _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0);
        self.set_capabilities()?;
        for capability in bits(self.ambient) {
            prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong, capability)?;
        }
        if self.no_new_privs {
            prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
        }
        // SAFETY: these calls only return numbers.
        if unsafe { libc::getuid() != self.uid || libc::geteuid() != self.uid } {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        Ok(())
    }

    /// Gives up for good what the process does not have. If that is not allowed, no_new_privs and the permitted set
    /// have the same effect for a question.
    fn bound(&self) {
        for capability in 0..=LAST_CAPABILITY {
            if self.bounding >> capability & 1 == 0 {
                // The kernel refuses capabilities that it does not know.
                let _ = prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0);
            }
        }
    }

    fn become_user(&self) -> io::Result<()> {
        if self.ambient != 0 {
            prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
        }
        // SAFETY: plain calls; the list of groups lives as long as self.
        unsafe {
            if let Some(groups) = &self.groups {
                let set = libc::setgroups(groups.len(), groups.as_ptr());
                // Root that may not set its groups (in a container, for example) keeps its own. No other user may get
                // root's groups.
                if self.uid != 0 {
                    check(set)?;
                }
            }
            check(libc::setresgid(self.gid, self.gid, self.gid))?;
            check(libc::setresuid(self.uid, self.uid, self.uid))
        }
    }

    fn set_capabilities(&self) -> io::Result<()> {
        let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
        let word = |shift: u32| CapabilityWord {
            effective: (self.held >> shift) as u32,
            permitted: (self.held >> shift) as u32,
            inheritable: (self.ambient >> shift) as u32,
        };
        let words = [word(0), word(32)];
        // SAFETY: both structures live for the call, and have the layout of version 3.
        let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) };
        check(i32::try_from(result).unwrap_or(-1))
    }
}

/// True if a user without capabilities may read the memory of a process: see ptrace(2), "access mode checking".
fn is_read_by(birth: &Birth, pid: i32, identity: &Identity) -> bool {
    // The files of a process that has changed its user belong to root, because others may not inspect it.
    let owner = fs::metadata(format!("/proc/{pid}")).map(|m| m.uid());
    identity.users == [birth.uid; 3]
        && identity.groups == [birth.gid; 3]
        && identity.capabilities.permitted == 0
        && owner.is_ok_and(|uid| uid == birth.uid)
}

/// True if the kernel lets a process attach only to its own children (Yama).
fn is_attaching_restricted() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    !matches!(scope.trim(), "" | "0")
}

fn own_rights() -> Result<Identity, ServerError> {
    Ok(Identity::of(std::process::id() as i32)?)
}

fn bits(set: u64) -> impl Iterator<Item = libc::c_ulong> {
    (0..=LAST_CAPABILITY).filter(move |n| set >> n & 1 == 1).map(libc::c_ulong::from)
}

fn prctl(option: i32, argument: libc::c_ulong, second: libc::c_ulong) -> io::Result<()> {
    const NONE: libc::c_ulong = 0;
    // SAFETY: of these options all arguments are numbers.
    check(unsafe { libc::prctl(option, argument, second, NONE, NONE) })
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct TestProcess(Child);

    impl Drop for TestProcess {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[allow(clippy::disallowed_methods)]
    fn asleep(as_user: &[&str]) -> TestProcess {
        let words = [as_user, &["sleep", "60"]].concat();
        let child = Command::new(words[0]).args(&words[1..]).spawn().expect("started");
        let is_asleep = || fs::read_to_string(format!("/proc/{}/comm", child.id())).is_ok_and(|name| name == "sleep\n");
        while !is_asleep() {
            std::thread::yield_now();
        }
        TestProcess(child)
    }

    /// Runs only as root, who can become each user.
    #[test]
    fn a_reader_has_its_users_rights_and_ptrace_only_for_processes_that_these_do_not_open() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let (root, other) = (asleep(&["env"]), asleep(&["setpriv", "--reuid=33", "--regid=33", "--clear-groups"]));
        let (root, other) = (root.0.id() as i32, other.0.id() as i32);
        let of = |birth: &Birth, pids: &[i32]| Rights::of_reader(birth, pids).expect("possible");
        let (as_root, as_other) = (Birth::of(root).expect("there"), Birth::of(other).expect("there"));
        let ptrace = READS_PROCESSES & own_rights().expect("ours").capabilities.permitted;
        let alone = if is_attaching_restricted() { ptrace } else { 0 };
        let rights = of(&as_other, &[other]);
        assert_eq!((rights.uid, rights.held, rights.ambient, rights.bounding), (33, alone, alone, alone));
        let rights = of(&as_other, &[root, other]);
        assert_eq!((rights.uid, rights.held, rights.ambient, rights.bounding), (33, ptrace, ptrace, ptrace));
        let rights = of(&as_root, &[root]);
        assert_eq!((rights.uid, rights.held, rights.ambient, rights.bounding), (0, ptrace, 0, ptrace));
        assert!(rights.exceeds_user() && rights.no_new_privs);
    }
}
