//! The rights of a process: its users, groups, capabilities and user namespace, as the kernel knows them. What a
//! process claims about itself does not count.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::ProbeError;
use crate::status_file::StatusFile;

/// The rights of a process. User and group ids are those of our own user namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Real, effective and saved user.
    pub users: [u32; 3],
    /// Real, effective and saved group.
    pub groups: [u32; 3],
    pub supplementary_groups: Vec<u32>,
    /// Inode of its user namespace; None if it may not be read.
    pub user_namespace: Option<u64>,
    pub no_new_privs: bool,
    pub capabilities: Capabilities,
}

/// Sets of capabilities, one bit each, numbered as in capabilities(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    pub permitted: u64,
    pub bounding: u64,
    pub ambient: u64,
}

impl Identity {
    /// Reads the rights of a running process.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn of(pid: i32) -> Result<Identity, ProbeError> {
        let status = StatusFile::read(pid)?;
        let three = |name: &str| status.ids(name)?.first_chunk().copied().ok_or_else(|| status.without(name));
        Ok(Identity {
            users: three("Uid")?,
            groups: three("Gid")?,
            supplementary_groups: status.ids("Groups")?,
            user_namespace: user_namespace(&pid.to_string()),
            no_new_privs: status.number("NoNewPrivs", 10) == Some(1),
            capabilities: Capabilities {
                permitted: status.bits("CapPrm")?,
                bounding: status.bits("CapBnd").unwrap_or(0),
                ambient: status.bits("CapAmb").unwrap_or(0),
            },
        })
    }

    /// Returns the user to whom the process belongs. A program that became root by its set-user-ID bit still belongs to
    /// its caller: a process is root's only if both its real and its saved user are root.
    #[must_use]
    pub fn user(&self) -> u32 {
        let [real, effective, saved] = self.users;
        if real == 0 && saved == 0 {
            return 0;
        }
        [real, effective, saved].into_iter().find(|id| *id != 0).unwrap_or(0)
    }

    /// Returns the group that goes with [`Identity::user`].
    #[must_use]
    pub fn group(&self) -> u32 {
        let [real, effective, saved] = self.groups;
        if real == effective || self.user() == 0 {
            return effective;
        }
        [real, effective, saved].into_iter().find(|id| *id != 0).unwrap_or(0)
    }

    /// Returns true if the process shares our user namespace; otherwise its capabilities mean nothing here.
    #[must_use]
    pub fn is_of_our_namespace(&self) -> bool {
        self.user_namespace.is_some() && self.user_namespace == user_namespace("self")
    }
}

fn user_namespace(pid: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/user")).ok().map(|namespace| namespace.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(users: [u32; 3], groups: [u32; 3]) -> Identity {
        Identity {
            users,
            groups,
            supplementary_groups: Vec::new(),
            user_namespace: None,
            no_new_privs: false,
            capabilities: Capabilities { permitted: 0, bounding: 0, ambient: 0 },
        }
    }

    #[test]
    fn a_process_is_roots_only_where_real_and_saved_user_are() {
        assert_eq!(of([0, 0, 0], [0; 3]).user(), 0);
        // The process has changed only its effective user for a moment.
        assert_eq!(of([0, 33, 0], [0; 3]).user(), 0);
        // A set-user-ID program started by a user.
        assert_eq!(of([1000, 0, 0], [1000, 0, 0]).user(), 1000);
        assert_eq!(of([1000, 0, 0], [1000, 42, 42]).group(), 1000);
        assert_eq!(of([0, 1000, 1000], [0; 3]).user(), 1000);
        assert_eq!(of([33, 33, 33], [33; 3]).group(), 33);
    }

    #[test]
    fn our_own_rights_are_read() {
        let own = Identity::of(std::process::id() as i32).expect("this process");
        assert_eq!(own.user(), nix::unistd::getuid().as_raw());
        assert!(own.is_of_our_namespace());
    }
}
