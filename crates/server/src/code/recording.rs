//! The place in the folder of a second instance where its workers leave their records.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;

use lastdrop_probe::process::Birth;

use super::Language;
use crate::ServerError;

/// A folder of the workers', lastdrop's code that they load, and the file that makes them begin.
#[derive(Debug)]
pub struct Recording {
    pub language: Language,
    /// The workers' own folder.
    pub folder: PathBuf,
    /// The workers record when this file is there. Not in their folder: there, a link could lead root to write elsewhere.
    pub go: PathBuf,
    /// lastdrop's code in the language.
    pub script: PathBuf,
    /// With whose rights the records are written and read.
    pub user: Birth,
}

fn cannot() -> impl FnOnce(std::io::Error) -> ServerError {
    ServerError::io("cannot make a place for records")
}

impl Recording {
    /// Makes an empty place; `file` returns the path of a name in the instance's folder.
    pub fn new(language: Language, birth: &Birth, file: impl Fn(&str) -> PathBuf) -> Result<Recording, ServerError> {
        let (folder, go) = (file("records"), file("go"));
        let _ = fs::remove_dir_all(&folder);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(cannot())?;
        Ok(Recording { language, folder, go, script: file("profile-code"), user: birth.clone() })
    }

    /// Writes lastdrop's code, which every worker may read.
    pub fn write_script(&self, text: &str) -> Result<(), ServerError> {
        fs::write(&self.script, text).map_err(cannot())?;
        fs::set_permissions(&self.script, fs::Permissions::from_mode(0o644)).map_err(cannot())
    }

    /// Gives the folder to the user of a worker; without a worker, the server's.
    pub fn give_to(&mut self, worker: Option<i32>) -> Result<(), ServerError> {
        self.user = user_of_workers(&self.user, worker);
        chown(&self.folder, Some(self.user.uid), Some(self.user.gid)).map_err(cannot())
    }

    pub fn begin(&self) -> Result<(), ServerError> {
        fs::write(&self.go, "").map_err(ServerError::io(format!("cannot write {}", self.go.display())))
    }
}

/// The rights of a server's worker; if there is none, the server's own.
pub fn user_of_workers(birth: &Birth, worker: Option<i32>) -> Birth {
    let owner = worker.and_then(|pid| fs::metadata(format!("/proc/{pid}")).ok());
    match owner {
        Some(m) if m.uid() != birth.uid => {
            Birth { uid: m.uid(), gid: m.gid(), groups: vec![m.gid()], directory: "/".into(), ..birth.clone() }
        }
        _ => birth.clone(),
    }
}
