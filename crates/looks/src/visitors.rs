//! What the visitors of a server see, as the server tells: by its access log, or by its status page where that has the times of
//! requests.
//!
//! The log is the better witness: it has each request with its status and, where its format says so, how long it took. It is found as
//! the file that the server has open for writing and of which the lines are recognised; nothing has to be said. A format of somebody's
//! own is named. The server's own time of a request is not what a visitor waits, but a change of the settings shows in it, apart from
//! what waits in the kernel's queue before the server sees it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lastdrop_model::Experience;
use lastdrop_probe::error_log::is_for_writing;
use lastdrop_server::{ServerRef, find};
use lastdrop_traffic::{Entry, Format, GrowingLog};

use crate::requests::Requests;

/// A server has a few logs.
const MOST_LOGS: usize = 64;
/// Lines of a log that are asked whether they have times.
const SAMPLE: u32 = 100;

/// How visitors are seen.
#[derive(Debug)]
enum Source {
    Logs(Vec<GrowingLog>),
    Page(Box<Requests>),
}

/// The visitors of a server.
#[derive(Debug)]
pub struct Visitors {
    source: Source,
    by: String,
}

impl Visitors {
    /// Those in a log that the user names, from now on.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn in_log(file: &Path, format: Option<&Format>) -> io::Result<Visitors> {
        let log = GrowingLog::open(file, format, false)?;
        Ok(Visitors { source: Source::Logs(vec![log]), by: format!("access log {}", file.display()) })
    }

    /// Those of the first of servers that tells of its visitors with their times, from now on; None where none does.
    #[must_use]
    pub fn of(servers: &[ServerRef]) -> Option<Visitors> {
        let here = || servers.iter().filter(|server| !server.kind.is_host());
        let logs = here().find_map(|server| {
            let logs = logs_of(find(server).ok()?.master);
            let names = logs.iter().map(|log| log.file().file).collect::<Vec<_>>().join(", ");
            (!logs.is_empty()).then(|| Visitors { source: Source::Logs(logs), by: format!("access log {names}") })
        });
        logs.or_else(|| {
            here().find_map(|server| {
                let page = Requests::start(server).ok().filter(Requests::tells_times)?;
                let by = format!("status page of {}", page.name);
                Some(Visitors { source: Source::Page(Box::new(page)), by })
            })
        })
    }

    /// How they are seen, in words.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// What has come since the last look. What cannot be read now is part of the next one.
    pub fn look(&mut self) -> Experience {
        let mut seen = Experience::default();
        match &mut self.source {
            Source::Logs(logs) => {
                for log in logs {
                    let _ = log.look(|entry| {
                        take(&mut seen, entry);
                        true
                    });
                }
            }
            Source::Page(page) => {
                let _ = page.look(|told| {
                    seen.requests += told.count;
                    if let Some(us) = told.server_us {
                        seen.latency.record(us);
                    }
                });
            }
        }
        seen
    }
}

/// Who was gone before the answer is nginx's 499, or 0.
fn is_error(status: u16) -> bool {
    status >= 500 || matches!(status, 0 | 499)
}

fn take(seen: &mut Experience, entry: &Entry) {
    seen.requests += 1;
    seen.errors += u64::from(is_error(entry.status));
    if let Some(us) = entry.server_us {
        seen.latency.record(us);
    }
}

/// Access logs that a process has open, with the time that requests took in their lines; one without any lines yet is no such log.
fn logs_of(pid: i32) -> Vec<GrowingLog> {
    let mut seen = BTreeSet::new();
    let mut logs = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok) {
        let flags = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy()));
        let Some(path) = fs::read_link(entry.path()).ok().filter(|_| flags.is_ok_and(|f| is_for_writing(&f))) else {
            continue;
        };
        // Not opened: a named pipe would wait.
        let about = fs::metadata(entry.path());
        let Ok(about) = about.map(|m| (m.is_file(), m.dev(), m.ino())) else { continue };
        if !about.0 || !seen.insert((about.1, about.2)) || logs.len() >= MOST_LOGS {
            continue;
        }
        let path = from_here(pid, &path, (about.1, about.2));
        let log = path.and_then(|path| GrowingLog::open(&path, None, false).ok());
        logs.extend(log.filter(|log| log.format().is_some_and(Format::has_server_time) && has_times(log)));
    }
    logs
}

/// The same file by its name here: one in a container has another.
fn from_here(pid: i32, path: &Path, id: (u64, u64)) -> Option<PathBuf> {
    let inside = PathBuf::from(format!("/proc/{pid}/root{}", path.display()));
    let is_it = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| (m.dev(), m.ino()) == id);
    [path.to_path_buf(), inside].into_iter().find(is_it)
}

/// Do the lines that are there say how long requests took? JSON may have it or not.
fn has_times(log: &GrowingLog) -> bool {
    let file = log.file().file;
    let Ok(mut old) = GrowingLog::open(Path::new(&file), log.format(), true) else { return false };
    let (mut found, mut looked_at) = (false, 0);
    let _ = old.look(|entry| {
        (found, looked_at) = (entry.server_us.is_some(), looked_at + 1);
        !found && looked_at < SAMPLE
    });
    found
}
