//! What the administrator of a machine allows lastdrop to do on it: `/etc/lastdrop.toml`. An ability is on unless the
//! file turns it off.
//!
//! The file binds every user of the machine, so it counts only if root alone can write it. Anything else at that path
//! is an error, and lastdrop does not start.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use lastdrop_files::input;
use serde::Deserialize;

use crate::ServerError;
use crate::execution::check_roots;

/// Path of the file.
pub const FILE: &str = "/etc/lastdrop.toml";

static ABILITIES: OnceLock<Abilities> = OnceLock::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Abilities {
    /// Changing settings of servers and of the host, and replacing workers. What was changed can always be restored.
    pub changes: bool,
    /// `--trust USER`.
    pub trust: bool,
    /// Agents of a fleet, and brokers for them.
    pub agents: bool,
    /// Asking databases about themselves.
    pub databases: bool,
}

impl Default for Abilities {
    fn default() -> Abilities {
        Abilities { changes: true, trust: true, agents: true, databases: true }
    }
}

impl Abilities {
    /// Reads the file and stores the result for [`abilities`].
    ///
    /// # Errors
    /// In words: users other than root can change the file, it cannot be read, or it contains an unknown key.
    pub fn load() -> Result<Abilities, String> {
        let read = Abilities::read(Path::new(FILE))?;
        Ok(*ABILITIES.get_or_init(|| read))
    }

    fn read(path: &Path) -> Result<Abilities, String> {
        if let Err(e) = std::fs::symlink_metadata(path)
            && e.kind() == io::ErrorKind::NotFound
        {
            return Ok(Abilities::default());
        }
        let name = path.display();
        check_roots(path).map_err(|why| {
            format!("{name} does not count: {why}; make it root's alone: chown root {name}; chmod 644 {name}")
        })?;
        let text = input::read_regular_text(path).map_err(|e| format!("{name} cannot be read: {e}"))?;
        toml::from_str(&text).map_err(|e| format!("{name}: {e}"))
    }
}

/// Returns what is allowed on this machine.
#[must_use]
pub fn abilities() -> Abilities {
    ABILITIES.get().copied().unwrap_or_default()
}

/// Checks that settings may be changed on this machine.
///
/// # Errors
/// If the administrator has turned that off.
pub fn check_changes() -> Result<(), ServerError> {
    if abilities().changes {
        return Ok(());
    }
    Err(ServerError::Setting(format!(
        "changes are turned off on this machine ({FILE}: changes = false); lastdrop only looks here"
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn abilities_are_on_unless_roots_own_file_turns_them_off() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("lastdrop.toml");
        assert_eq!(Abilities::read(&file), Ok(Abilities::default()));
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        std::fs::write(&file, "changes = false\ndatabases = false\n").expect("written");
        let read = Abilities::read(&file).expect("valid");
        assert_eq!(read, Abilities { changes: false, databases: false, ..Abilities::default() });
        std::fs::write(&file, "chnages = false\n").expect("written");
        assert!(Abilities::read(&file).expect_err("unknown").contains("chnages"));
        std::fs::write(&file, "").expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("its mode");
        assert!(Abilities::read(&file).expect_err("everybody's").contains("0666"));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("its mode");
        std::os::unix::fs::chown(&file, Some(65534), None).expect("given away");
        assert!(Abilities::read(&file).expect_err("another user's").contains("does not count"));
    }
}
