//! Who can have written a file, by its owner and mode. lastdrop obeys files of root and of the user who runs it. The
//! same checks, with other owners, decide what root executes for a server.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

const OTHERS_WRITE: u32 = 0o022;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;
/// The owner that a user namespace shows for users outside its map.
const OVERFLOW_UID: u32 = 65_534;

pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

/// Returns true if the mode lets only the owner write.
#[must_use]
pub fn is_closed_to_others(mode: u32) -> bool {
    mode & OTHERS_WRITE == 0
}

/// Returns true if the folder's mode lets only the owner of a file in it rename or remove that file. In a sticky
/// folder, such as /tmp, others may only add files.
#[must_use]
pub fn keeps_files_of_their_owners(mode: u32) -> bool {
    is_closed_to_others(mode) || mode & STICKY != 0
}

/// Returns true if only the owner may write the file. A group that contains only the user (as with umask 002) counts as
/// the owner.
pub(crate) fn is_written_by_its_owner_alone(metadata: &Metadata) -> bool {
    match metadata.mode() & OTHERS_WRITE {
        0 => true,
        GROUP_WRITES => is_trusted(metadata.uid()) && is_our_own_group(metadata.gid()),
        _ => false,
    }
}

fn is_our_own_group(group: u32) -> bool {
    static OWN: OnceLock<Option<u32>> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        own_group(nix::unistd::geteuid().as_raw(), &read("/etc/passwd"), &read("/etc/group"))
    });
    *own == Some(group)
}

/// Returns the user's group if nobody else is in it, by /etc/passwd and /etc/group; root has none.
fn own_group(user: u32, passwd: &str, groups: &str) -> Option<u32> {
    let users: Vec<(&str, u32, u32)> = passwd
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            Some((name, fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
        })
        .collect();
    let (name, _, group) = users.iter().find(|(_, id, _)| *id == user && user != 0)?;
    let is_first_group_of_others = users.iter().any(|(_, id, first)| first == group && *id != user);
    let mut lines = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let has_no_others = lines.any(|fields| {
        matches!(fields[..], [named, _, id, members] if named == *name && id.parse() == Ok(*group)
            && members.split(',').all(|member| member.is_empty() || member == *name))
    });
    (has_no_others && !is_first_group_of_others).then_some(*group)
}

/// Returns true if only root and the user who runs lastdrop can rename or remove their files in this folder.
pub(crate) fn is_trusted_folder(metadata: &Metadata) -> bool {
    let is_closed = is_written_by_its_owner_alone(metadata) || keeps_files_of_their_owners(metadata.mode());
    is_closed && (is_trusted(metadata.uid()) || is_outside_of_our_users(metadata.uid()))
}

/// Returns true if the owner is the one that a user namespace shows for unknown users. The machine's folders belong to
/// it there, so a name may pass through them. A file that lastdrop obeys must still belong to a known user.
fn is_outside_of_our_users(uid: u32) -> bool {
    static UNKNOWN_IS_SHOWN_AS: OnceLock<Option<u32>> = OnceLock::new();
    let unknown = UNKNOWN_IS_SHOWN_AS.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        unknown_user(&map, overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_UID))
    });
    *unknown == Some(uid)
}

/// Returns the uid that unknown users are shown as under a uid map; `None` if the map assigns that uid to a user.
fn unknown_user(map: &str, overflow: u32) -> Option<u32> {
    let is_known = map.lines().any(|line| {
        let mut numbers = line.split_whitespace().filter_map(|n| n.parse::<u64>().ok());
        let (first, _, count) = (numbers.next(), numbers.next(), numbers.next());
        matches!((first, count), (Some(first), Some(count)) if (first..first + count).contains(&u64::from(overflow)))
    });
    (!is_known && !map.trim().is_empty()).then_some(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_ones_own_where_nobody_else_is_in_it() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";
        let groups = |ann: &str| format!("root:x:0:\nann:x:1000:{ann}\nbob:x:1001:\n");
        let of = |user, ann: &str, more: &str| own_group(user, &format!("{passwd}{more}"), &groups(ann));
        assert_eq!((of(1000, "", ""), of(1000, "ann", ""), of(1001, "", "")), (Some(1000), Some(1000), Some(1001)));
        assert_eq!(of(1000, "bob", ""), None, "bob is in it");
        assert_eq!(of(1000, "", "eve:x:1002:1000::/:/bin/sh\n"), None, "it is eve's first group");
        assert_eq!((of(0, "", ""), of(7, "", "")), (None, None));
        assert_eq!(own_group(1000, passwd, "staff:x:1000:\n"), None, "a group of another name");
    }

    #[test]
    fn unknown_users_exist_only_where_the_map_leaves_them_out() {
        assert_eq!(unknown_user("         0          0 4294967295\n", 65_534), None);
        assert_eq!(unknown_user("0 1000 1\n1 100000 65536\n", 65_534), None);
        assert_eq!(unknown_user("0 1000 1\n", 65_534), Some(65_534));
        assert_eq!(unknown_user("", 65_534), None);
    }
}
