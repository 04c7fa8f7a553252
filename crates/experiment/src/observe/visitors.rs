//! Measures what the visitors of a server experience, from its access log, or from a status page that shows the times
//! of requests.
//!
//! The log is preferred: it has each request with its status and, depending on its format, its time. It is found
//! automatically, as a file that the server has open for writing and whose lines are recognised; a custom format has to
//! be named. The server's own time of a request is not the visitor's waiting time. It does show the effect of a
//! settings change, except for the time in the kernel's queue before the server accepts.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lastdrop_model::Experience;
use lastdrop_probe::error_log::is_for_writing;
use lastdrop_server::{ServerRef, find};
use lastdrop_traffic::{Format, GrowingLog, LogEntry};

use crate::observe::requests::Requests;

/// A server has only a few logs.
const MOST_LOGS: usize = 64;
/// Most lines of a log that are checked for times.
const SAMPLE: u32 = 100;

/// Where the visitors' requests are read.
pub trait VisitorSource: Debug {
    /// Returns what has come since the last call. What cannot be read now is part of the next one.
    fn look(&mut self) -> Experience;
}

/// The visitors of a server.
#[derive(Debug)]
pub struct Visitors {
    source: Box<dyn VisitorSource>,
    by: String,
}

impl Visitors {
    /// Reads the visitors in a source that is described by these words.
    #[must_use]
    pub fn new(source: Box<dyn VisitorSource>, by: String) -> Visitors {
        Visitors { source, by }
    }

    /// Reads the visitors in a log that the user names, from now on.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn in_log(file: &Path, format: Option<&Format>) -> io::Result<Visitors> {
        let log = GrowingLog::open(file, format, false)?;
        Ok(Visitors::new(Box::new(vec![log]), format!("access log {}", file.display())))
    }

    /// Reads the visitors, from now on, of the first server that shows their times; None if none does.
    #[must_use]
    pub fn of(servers: &[ServerRef]) -> Option<Visitors> {
        let here = || servers.iter().filter(|server| !server.kind.is_host());
        let logs = here().find_map(|server| {
            let logs = logs_of(find(server).ok()?.master);
            let names = logs.iter().map(|log| log.file().file).collect::<Vec<_>>().join(", ");
            (!logs.is_empty()).then(|| Visitors::new(Box::new(logs), format!("access log {names}")))
        });
        logs.or_else(|| {
            here().find_map(|server| {
                let page = Requests::start(server).ok().filter(Requests::tells_times)?;
                let by = format!("status page of {}", page.name);
                Some(Visitors::new(Box::new(page), by))
            })
        })
    }

    /// Describes the source in words.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Returns what has come since the last call. What cannot be read now is part of the next one.
    pub fn look(&mut self) -> Experience {
        self.source.look()
    }
}

impl VisitorSource for Vec<GrowingLog> {
    fn look(&mut self) -> Experience {
        let mut seen = Experience::default();
        for log in self {
            let _ = log.look(|entry| {
                take(&mut seen, entry);
                true
            });
        }
        seen
    }
}

impl VisitorSource for Requests {
    fn look(&mut self) -> Experience {
        let mut seen = Experience::default();
        let _ = Requests::look(self, |told| {
            seen.requests += told.count;
            if let Some(us) = told.server_us {
                seen.latency.record(us);
            }
        });
        seen
    }
}

/// A client that left before the response is logged as 499 by nginx, or as 0.
fn is_error(status: u16) -> bool {
    status >= 500 || matches!(status, 0 | 499)
}

fn take(seen: &mut Experience, entry: &LogEntry) {
    seen.requests += 1;
    seen.errors += u64::from(is_error(entry.status));
    if let Some(us) = entry.server_us {
        seen.latency.record(us);
    }
}

/// Returns the access logs that a process has open and whose lines have the times of requests. A log without lines does
/// not count.
fn logs_of(pid: i32) -> Vec<GrowingLog> {
    let mut seen = BTreeSet::new();
    let mut logs = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok) {
        let flags = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", entry.file_name().to_string_lossy()));
        let Some(path) = fs::read_link(entry.path()).ok().filter(|_| flags.is_ok_and(|f| is_for_writing(&f))) else {
            continue;
        };
        // Not opened: opening a named pipe would block.
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

/// Returns the path of the same file in our mount namespace: a file of a container has another path here.
fn from_here(pid: i32, path: &Path, id: (u64, u64)) -> Option<PathBuf> {
    let inside = PathBuf::from(format!("/proc/{pid}/root{}", path.display()));
    let is_it = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| (m.dev(), m.ino()) == id);
    [path.to_path_buf(), inside].into_iter().find(is_it)
}

/// Returns true if the existing lines have the times of requests. JSON may have them or not.
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
