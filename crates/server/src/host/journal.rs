//! What is needed to undo a change of the host, written to disk before the change. It is in the state folder with the
//! journals of servers, under a name that no server has.

use std::path::{Path, PathBuf};

use lastdrop_probe::namespace::NamespaceId;
use serde::{Deserialize, Serialize};

use super::kept::KeptFile;
use super::limits::LimitBefore;
use super::namespace_access::Process;
use crate::ServerError;
use crate::journal::{JournalFault, Stage, StateFiles, parse_as, read_bytes};
use crate::private::{remove_if_there, unfinished, write_durably};

pub const SCHEMA: &str = "lastdrop.host-journal/1";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostJournal {
    pub schema: String,
    /// The name from the command line.
    pub server: String,
    pub stage: Stage,
    pub created_unix_s: u64,
    /// Boot id of the machine: after another boot none of our values remain.
    pub boot: String,
    pub namespace: NamespaceId,
    /// A process in the namespace.
    pub process: Process,
    /// True if settings of the whole machine may be changed too.
    pub host_wide: bool,
    pub values: Vec<ValueBefore>,
    /// Processes whose limit of open files is changed, the master first.
    pub limits: Vec<LimitBefore>,
    /// The soft limits that lastdrop may have given them.
    pub our_limits: Vec<u64>,
    pub kept: Option<KeptFile>,
    #[serde(skip)]
    pub path: PathBuf,
}

/// A setting and its former value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ValueBefore {
    pub name: String,
    pub before: String,
    /// Values that lastdrop may have set: those of this change and of the one before.
    pub ours: Vec<String>,
}

/// State files of a namespace. A journal may outlive its namespace, and a new one may get the same inode. Then the
/// journal must be restored first, which detects the difference.
pub fn files_of(inode: u64) -> Result<StateFiles, ServerError> {
    StateFiles::of(&format!("host.{inode}"))
}

/// The lock against changes of machine-wide settings from another namespace.
pub fn lock_of_the_machine() -> Result<PathBuf, ServerError> {
    Ok(StateFiles::of("host.machine")?.lock)
}

/// True if this is the journal of a host.
pub fn is_of_a_host(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let inode = name.strip_prefix("host.").and_then(|n| n.strip_suffix(".journal"));
    inode.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

impl HostJournal {
    /// Writes the journal; when this returns, it is completely on disk.
    pub fn write(&self) -> Result<(), ServerError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| self.error(e.to_string()))?;
        write_durably(&self.path, text.as_bytes()).map_err(|e| self.error(e.to_string()))
    }

    pub fn read(path: &Path) -> Result<HostJournal, ServerError> {
        let bytes = read_bytes(path)?;
        let journal = parse_as::<HostJournal>(&bytes, SCHEMA);
        journal
            .map(|journal| HostJournal { path: path.to_path_buf(), ..journal })
            .map_err(|fault| unusable(path, fault))
    }

    /// Removes the journal: the change is undone or meant to stay.
    pub fn remove(&self) -> Result<(), ServerError> {
        let removed = remove_if_there(&unfinished(&self.path)).and_then(|()| remove_if_there(&self.path));
        removed.map_err(|e| self.error(e.to_string()))
    }

    fn error(&self, what: String) -> ServerError {
        ServerError::Journal { path: self.path.clone(), what }
    }
}

/// The error about a journal that cannot be used.
fn unusable(path: &Path, fault: JournalFault) -> ServerError {
    ServerError::BrokenJournal {
        path: path.to_path_buf(),
        fault,
        about: "settings of the host".into(),
        by_hand: "what they were stands in it as \"before\", as far as that goes: set it with sysctl -w, or start the machine \
                  again"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_of_hosts_are_told_from_those_of_servers() {
        assert!(is_of_a_host(Path::new("/x/host.4026531840.journal")));
        for other in
            ["host.journal", "host..journal", "host.machine.lock", "apache--etc-a.conf.journal", "host.x.journal"]
        {
            assert!(!is_of_a_host(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn one_that_cannot_be_used_says_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("host.7.journal");
        for (text, words) in [("", "it is empty"), ("{\n \"schema\"", "in line 2"), ("{\"schema\":\"x/1\"}", "x/1")] {
            std::fs::write(&path, text).expect("written");
            let error = HostJournal::read(&path).expect_err(text).to_string();
            assert!(error.contains(words) && error.contains("sysctl -w") && error.contains("--forget"), "{error}");
        }
    }
}
