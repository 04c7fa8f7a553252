//! What killed runs left: servers that may be stopped, and journals to be forgotten.

use std::path::{Path, PathBuf};

use lastdrop_model::Url;

use crate::host::{HostJournal, is_of_a_host};
use crate::journal::{Journal, Lock, StateFiles};
use crate::private::remove_if_there;
use crate::{ServerError, ServerRef};

/// Removes journals and changes nothing else: the one with this file or server name, or otherwise all that cannot be
/// used. Returns their files.
///
/// # Errors
/// If there is no such journal, or another process is at work on its server.
pub fn forget(named: Option<&str>) -> Result<Vec<PathBuf>, ServerError> {
    let mut all = Journal::all()?;
    all.extend(Journal::all_of_caches()?);
    match named {
        Some(name) => all.retain(|path| {
            path == Path::new(name)
                || path.file_name().is_some_and(|n| n == name)
                || server_of(path).is_ok_and(|server| server == name)
        }),
        None => all.retain(|path| matches!(server_of(path), Err(ServerError::BrokenJournal { .. }))),
    }
    if let (Some(name), true) = (named, all.is_empty()) {
        return Err(ServerError::NotFound {
            what: format!("no journal is called '{name}'"),
            advice: "lastdrop restore --dry-run lists them".into(),
        });
    }
    for path in &all {
        let files = StateFiles::beside(path);
        let _lock = Lock::take(&files.lock)?;
        remove_if_there(path).map_err(ServerError::io(format!("cannot take {} away", path.display())))?;
        files.tidy();
    }
    Ok(all)
}

/// The server that a journal is about.
fn server_of(path: &Path) -> Result<String, ServerError> {
    match is_of_a_host(path) {
        true => HostJournal::read(path).map(|j| j.server),
        false => Journal::read(path).map(|j| j.server),
    }
}

/// If a killed run may have left the missing server stopped, makes the error advise to restore it.
pub fn or_restore(error: ServerError, server: &ServerRef) -> ServerError {
    let ServerError::NotFound { what, advice } = error else { return error };
    match left_by_a_killed_run(|path, journal| is_about(path, journal, server)) {
        Some(name) => ServerError::NotFound {
            what,
            advice: format!(
                "a run on {name} was killed and may have left it stopped: lastdrop restore (if that is not the one: {advice})"
            ),
        },
        None => ServerError::NotFound { what, advice },
    }
}

/// The server at a URL that a killed run may have left stopped.
#[must_use]
pub fn left_at(url: &Url) -> Option<String> {
    left_by_a_killed_run(|_, journal| {
        let own = journal.and_then(|j| j.url.as_ref());
        own.is_some_and(|u| (&u.host, u.port) == (&url.host, url.port))
    })
}

fn left_by_a_killed_run(is_meant: impl Fn(&Path, Option<&Journal>) -> bool) -> Option<String> {
    Journal::all().ok()?.into_iter().find_map(|path| {
        if Lock::is_held(&StateFiles::beside(&path).lock) {
            return None;
        }
        let journal = Journal::read(&path).ok();
        let name = journal.as_ref().map_or_else(|| path.display().to_string(), |j| j.server.clone());
        is_meant(&path, journal.as_ref()).then_some(name)
    })
}

fn is_about(path: &Path, journal: Option<&Journal>, wanted: &ServerRef) -> bool {
    let Some(journal) = journal else {
        // If a journal cannot be read, its file name still shows the kind.
        return path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(wanted.kind.name));
    };
    if let Some(pid) = wanted.pid {
        return journal.birth.pid == pid;
    }
    let Ok(server) = journal.server.parse::<ServerRef>() else { return false };
    let real = |p: &PathBuf| std::fs::canonicalize(p).unwrap_or_else(|_| p.clone());
    let config = match (&wanted.config, &server.config) {
        (Some(wanted), Some(own)) => real(wanted) == real(own),
        (wanted, _) => wanted.is_none(),
    };
    let port = wanted.url.as_ref().map(|u| u.port);
    let ports = [&journal.url, &server.url].map(|u| u.as_ref().map(|u| u.port));
    server.kind == wanted.kind && config && (port.is_none() || ports.contains(&port))
}
