//! Reads files with the rights of a server's user. A configuration of another user may name any file; what that user may not read or
//! write, root does not read or write for it.

use crate::identity::Identity;
use crate::process::Birth;

/// The calling thread's rights to files are those of a server's user, as long as this lives. It has no effect where we are not root, or
/// the server is root's. One may be taken while another lives.
#[derive(Debug)]
pub struct Reader {
    before: Option<Before>,
}

#[derive(Debug)]
struct Before {
    uid: u32,
    gid: u32,
    groups: Vec<libc::gid_t>,
}

impl Reader {
    #[must_use]
    pub fn of(birth: &Birth) -> Reader {
        Reader::new(birth.uid, birth.gid, &birth.groups)
    }

    /// The same of a process. One that has ended has no rights to anything.
    #[must_use]
    pub fn of_process(pid: i32) -> Reader {
        const NOBODY: u32 = 65_534;
        match Identity::of(pid) {
            Ok(identity) => Reader::new(identity.user(), identity.group(), &identity.supplementary_groups),
            Err(_) => Reader::new(NOBODY, NOBODY, &[]),
        }
    }

    fn new(uid: u32, gid: u32, groups: &[libc::gid_t]) -> Reader {
        if uid == 0 || !nix::unistd::geteuid().is_root() {
            return Reader { before: None };
        }
        let own = nix::unistd::getgroups().unwrap_or_default();
        let (before_uid, before_gid) = take(uid, gid, groups);
        let groups = own.into_iter().map(nix::unistd::Gid::as_raw).collect();
        Reader { before: Some(Before { uid: before_uid, gid: before_gid, groups }) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(Before { uid, gid, groups }) = &self.before {
            take(*uid, *gid, groups);
        }
    }
}

/// Of this thread alone: the functions of the C library would change all threads. Gives the user and the group before.
fn take(uid: u32, gid: u32, groups: &[libc::gid_t]) -> (u32, u32) {
    // SAFETY: plain system calls; the list lives for the call.
    unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
        let gid = libc::syscall(libc::SYS_setfsgid, gid);
        let uid = libc::syscall(libc::SYS_setfsuid, uid);
        (uid as u32, gid as u32)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_the_servers_user_may_not_read_is_not_read() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "root's").expect("written");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        let mut birth = Birth::of(std::process::id() as i32).expect("this process");
        (birth.uid, birth.gid, birth.groups) = (65534, 65534, Vec::new());
        {
            let _reader = Reader::of(&birth);
            assert!(std::fs::read(&secret).is_err());
            drop(Reader::of(&birth));
            assert!(std::fs::read(&secret).is_err(), "the outer one is still there");
            drop(Reader::of_process(i32::MAX));
            assert!(std::fs::write(dir.path().join("new"), "").is_err());
        }
        assert_eq!(std::fs::read(&secret).expect("read as root again"), b"root's");
    }
}
