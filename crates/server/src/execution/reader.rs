//! Reads files with the rights of a server's user. A configuration of another user may include any name; what that user may not read,
//! root does not read for it.

use lastdrop_probe::process::Birth;

/// The calling thread's rights to files are those of a server's user, as long as this lives. It has no effect where we are not root, or
/// the server is root's.
#[derive(Debug)]
pub struct Reader {
    before: Option<Vec<libc::gid_t>>,
}

impl Reader {
    #[must_use]
    pub fn of(birth: &Birth) -> Reader {
        if birth.uid == 0 || !nix::unistd::geteuid().is_root() {
            return Reader { before: None };
        }
        let own = nix::unistd::getgroups().unwrap_or_default();
        take(birth.uid, birth.gid, &birth.groups);
        Reader { before: Some(own.into_iter().map(nix::unistd::Gid::as_raw).collect()) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(groups) = &self.before {
            take(nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw(), groups);
        }
    }
}

/// Of this thread alone: the functions of the C library would change all threads.
fn take(uid: u32, gid: u32, groups: &[libc::gid_t]) {
    // SAFETY: plain system calls; the list lives for the call.
    unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
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
        }
        assert_eq!(std::fs::read(&secret).expect("read as root again"), b"root's");
    }
}
