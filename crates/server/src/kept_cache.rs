//! A cache of pages that was left to all visitors (`doctor --confirm --keep`), until `lastdrop restore` takes it away.
//!
//! Weeks may lie between. So its journal stands beside those of killed runs, and hinders no other change of the server.
//! It has no environment and starts nothing: a server that does not run stays down. Others may have changed the server's
//! files since; then only the lines that were added go.

use std::path::{Path, PathBuf};

use lastdrop_files::step;

use crate::edited::EditedFile;
use crate::journal::{Journal, Lock, Stage, StateFiles};
use crate::restore::{RestoreReport, ServerPresence, present, put_back_files, reload};
use crate::undo_step::steps_of_cache;
use crate::{ServerError, page_cache};

/// Writes down what a kept cache consists of: the edits in this journal, and a folder.
pub fn remember(journal: &Journal, file: &Path, folder: &Path) -> Result<(), ServerError> {
    let mut kept = Journal {
        stage: Stage::Changed,
        cache_folders: vec![folder.to_path_buf()],
        drop_ins: Vec::new(),
        test_file: None,
        // An override is not of the cache: a later tune may keep one.
        included_file: None,
        included_before: None,
        own_file: PathBuf::new(),
        restarted: false,
        url: None,
        status: None,
        stack: None,
        path: file.to_path_buf(),
        ..journal.clone()
    };
    // It may have passwords, and nothing is started.
    kept.birth.environment.clear();
    step();
    kept.write()
}

/// The folders of a cache that was kept before and is no longer in the server's configuration.
pub fn folders(file: &Path) -> Vec<PathBuf> {
    Journal::read(file).map(|journal| journal.cache_folders).unwrap_or_default()
}

/// Takes all kept caches away, or says what that would be.
///
/// # Errors
/// If the state folder cannot be read. The list contains each server's result.
pub fn restore_all(dry_run: bool) -> Result<Vec<Result<RestoreReport, ServerError>>, ServerError> {
    Ok(Journal::all_of_caches()?.iter().map(|path| restore(path, dry_run)).collect())
}

fn restore(path: &Path, dry_run: bool) -> Result<RestoreReport, ServerError> {
    let mut journal = Journal::read(path)?;
    let files = StateFiles::of(&journal.server)?;
    let _lock = Lock::take(&files.lock)?;
    let report = RestoreReport { was_changed: true, had_cache: true, ..RestoreReport::untouched(&journal.server) };
    let edited = journal.edited.iter().map(EditedFile::of_now).collect::<Result<Vec<_>, _>>()?;
    journal.edited = edited.into_iter().flatten().collect();
    if dry_run {
        return Ok(RestoreReport { steps: steps_of_cache(&journal), ..report });
    }
    // The edits of a killed run may still be in the files.
    if files.journal.exists() {
        return Err(ServerError::Unrestored);
    }
    let master = match present(&journal) {
        Ok(ServerPresence::Known(master)) => Some(master),
        Ok(ServerPresence::Otherwise(adapter)) => Some(adapter.facts().birth.pid),
        Ok(ServerPresence::Nobody) | Err(ServerError::Occupied { .. }) => None,
        Err(e) => return Err(e),
    };
    put_back_files(&journal)?;
    if let Some(master) = master {
        reload(&journal, master)?;
    }
    // Only now does no process of the server know the cache.
    page_cache::remove_all(&journal.cache_folders, &journal.birth)?;
    journal.remove()?;
    Ok(report)
}
