//! Reads files with the rights of a server's user. A configuration of another user may name any file. Root must not
//! read or write for that user what the user may not.

use lastdrop_files::input;

use crate::identity::Identity;
use crate::process::Birth;

/// While this lives, the calling thread has the file rights of a server's user. It has no effect if we are not root, or
/// the server is root's. They may be nested.
#[derive(Debug)]
pub struct Reader {
    before: Option<OwnRights>,
}

#[derive(Debug)]
struct OwnRights {
    uid: u32,
    gid: u32,
    groups: Vec<libc::gid_t>,
    refused: bool,
}

impl Reader {
    #[must_use]
    pub fn of(birth: &Birth) -> Reader {
        Reader::new(birth.uid, birth.gid, &birth.groups)
    }

    /// Like `of`, for a process. For a process that has ended, the thread gets no rights.
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
        let (before_uid, before_gid, is_whole) = take(uid, gid, groups);
        let groups = own.into_iter().map(nix::unistd::Gid::as_raw).collect();
        // Root in a unit with few capabilities may not be able to change its rights: then nothing is read.
        let refused = input::refuse(!is_whole);
        Reader { before: Some(OwnRights { uid: before_uid, gid: before_gid, groups, refused }) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(OwnRights { uid, gid, groups, refused }) = &self.before {
            take(*uid, *gid, groups);
            input::refuse(*refused);
        }
    }
}

/// Changes the rights of this thread alone: the functions of the C library would change all threads. Returns the
/// previous user and group, and whether every change was allowed.
fn take(uid: u32, gid: u32, groups: &[libc::gid_t]) -> (u32, u32, bool) {
    // SAFETY: plain system calls; the list lives for the call. A call with an invalid number returns the present value.
    unsafe {
        // If no groups may be set (in some user namespaces), having none is enough.
        let has_groups = libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
            || libc::getgroups(0, std::ptr::null_mut()) == 0;
        let before_gid = libc::syscall(libc::SYS_setfsgid, gid) as u32;
        let before_uid = libc::syscall(libc::SYS_setfsuid, uid) as u32;
        let now = |call| libc::syscall(call, u32::MAX) as u32;
        let is_whole = has_groups && now(libc::SYS_setfsgid) == gid && now(libc::SYS_setfsuid) == uid;
        (before_uid, before_gid, is_whole)
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

    /// Removes a capability from this thread.
    fn without(capability: u32) {
        let header = [0x2008_0522_u32, 0];
        let mut words = [0_u32; 6];
        // SAFETY: both structures have the layout of version 3, and live for the calls.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_capget, header.as_ptr(), words.as_mut_ptr()), 0);
            words[0] &= !(1 << capability);
            assert_eq!(libc::syscall(libc::SYS_capset, header.as_ptr(), words.as_ptr()), 0);
        }
    }

    #[test]
    fn root_that_cannot_become_the_servers_user_reads_nothing_for_it() {
        const SETGID: u32 = 6;
        const SETUID: u32 = 7;
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        for capability in [SETUID, SETGID] {
            let path = file.path().to_path_buf();
            let thread = std::thread::spawn(move || {
                without(capability);
                let mut birth = Birth::of(std::process::id() as i32).expect("this process");
                (birth.uid, birth.gid, birth.groups) = (65534, 65534, Vec::new());
                let refused = {
                    let _reader = Reader::of(&birth);
                    input::read(&path).expect_err("root's rights").to_string()
                };
                assert!(refused.contains("CAP_SETUID"), "{refused}");
                assert!(input::read(&path).is_ok(), "root reads for itself again");
            });
            thread.join().expect("it passed");
        }
    }
}
