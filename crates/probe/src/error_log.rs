//! Counts what a server writes to its error log meanwhile, for lines whose meaning is known.
//!
//! The log is a file that the server has open for writing. It is read through the server's own descriptor, so its path
//! does not matter, inside a container or not. Access logs are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use lastdrop_files::input;
use memchr::{memchr, memrchr};

/// Kinds of lines and text that marks them. The first match counts.
#[rustfmt::skip]
const LINES: &[(&str, &str)] = &[
    // nginx closes idle connections to free some; no client is rejected.
    ("reused-connections", "worker_connections are not enough, reusing connections"),
    ("worker-connections", "worker_connections are not enough"),
    ("descriptors", "Too many open files"), ("descriptors", "(24:"),
    ("max-children", "server reached pm.max_children"),
    ("seems-busy", "seems busy (you may need to increase pm.start_servers"),
    ("max-request-workers", "server reached MaxRequestWorkers setting"), ("max-request-workers", "AH00161"), ("max-request-workers", "AH00484"),
    ("server-limit", "AH00513"), ("server-limit", "AH00515"), ("server-limit", "AH00180"),
    ("worker-timeout", "WORKER TIMEOUT"), ("worker-timeout", "execution timed out"), ("worker-timeout", "HARAKIRI"),
    ("killed", "exit signal Killed (9)"), ("killed", "exited on signal 9"), ("killed", "was sent SIGKILL"),
    ("killed", "terminated due to signal 9"),
    ("crash", "exit signal"), ("crash", "exited on signal"), ("crash", "was sent SIG"), ("crash", "DAMN ! worker"),
    // gunicorn 20: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV.
    ("crash", "terminated due to signal 4"), ("crash", "terminated due to signal 6"), ("crash", "terminated due to signal 7"),
    ("crash", "terminated due to signal 8"), ("crash", "terminated due to signal 11"),
    ("fork-failed", "Unable to fork new process"), ("fork-failed", "fork() failed"), ("fork-failed", "Resource temporarily unavailable) while forking"),
    ("upstream-full", "(11: Resource temporarily unavailable) while connecting to upstream"),
    ("upstream-full", "(11)Resource temporarily unavailable: AH0"),
    ("upstream-refused", "(111: Connection refused) while connecting to upstream"), ("upstream-refused", "no live upstreams"),
    ("upstream-refused", "(111)Connection refused"), ("upstream-refused", "(2: No such file or directory) while connecting to upstream"),
    // mod_proxy_fcgi without the socket; mod_proxy within a minute after a refusal; mod_proxy_balancer.
    ("upstream-refused", "AH02454"), ("upstream-refused", "disabled connection for"), ("upstream-refused", "All workers are in error state"),
    ("no-ports", "(99: Cannot assign requested address)"), ("no-ports", "(99)Cannot assign requested address"),
    ("upstream-timeout", "upstream timed out"),
    ("temporary-file", "buffered to a temporary file"),
    // Apache's own authorisation logs with a number, mod_evasive without.
    ("denied", "AH01630: client denied"), ("denied", "AH01797: client denied"),
    ("rate-limited", "limiting requests"), ("rate-limited", "limiting connections"), ("rate-limited", "client denied by server configuration"),
    ("rate-limited", "mod_qos("),
    ("database-connections", "Too many connections"), ("database-connections", "too many clients already"), ("database-connections", "remaining connection slots are reserved"), ("database-connections", "max_user_connections"),
    ("uwsgi-queue", "listen queue of socket"), ("uwsgi-queue", "your server socket listen backlog is limited"),
    ("opcode-cache-full", "opcache"), ("memory", "Allowed memory size"), ("memory", "Cannot allocate memory"),
    ("slow-script", "executing too slow"),
];
/// One automaton for all texts: a failing server writes thousands of lines per second, and searching each line for each
/// text would take a whole processor.
static WORDS: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let words = LINES.iter().map(|(_, words)| words);
    AhoCorasick::builder().kind(Some(AhoCorasickKind::DFA)).build(words).ok()
});
/// Most bytes read from one log at once; the rest is skipped.
const MOST_AT_ONCE: u64 = 4 << 20;
/// Most characters kept of a line.
const MOST_OF_A_LINE: usize = 200;
/// Most logs of one server.
const MOST_LOGS: usize = 16;

/// Lines since the last call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ErrorLogLines {
    pub counts: BTreeMap<String, u64>,
    /// One sample line of each kind.
    pub samples: BTreeMap<String, String>,
}

/// The logs of a server.
#[derive(Debug)]
pub struct ErrorLogs {
    logs: Vec<(File, u64)>,
}

impl ErrorLogs {
    /// Opens the logs that a process has open now, from their present end on.
    #[must_use]
    pub fn of(pid: i32) -> ErrorLogs {
        let mut seen = BTreeSet::new();
        let mut logs = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok) {
            let number = entry.file_name();
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let name = link.to_string_lossy();
            if !name.starts_with('/') || name.contains("access") || logs.len() >= MOST_LOGS {
                continue;
            }
            let flags = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.to_string_lossy()));
            let writes = flags.is_ok_and(|f| is_for_writing(&f));
            let Ok(file) = input::open_regular(&entry.path()) else { continue };
            let Ok(about) = file.metadata().map(|m| (m.is_file(), m.dev(), m.ino(), m.len())) else { continue };
            let is_log = name.contains("log") || name.contains("err") || number == "2" || number == "1";
            if writes && is_log && about.0 && seen.insert((about.1, about.2)) {
                logs.push((file, about.3));
            }
        }
        ErrorLogs { logs }
    }

    /// Returns the lines written since the last call.
    pub fn news(&mut self) -> ErrorLogLines {
        let mut news = ErrorLogLines::default();
        for (file, at) in &mut self.logs {
            let end = file.metadata().map_or(*at, |m| m.len());
            // The file was truncated: read it from its beginning.
            let from = if end < *at { 0 } else { *at };
            let mut bytes = Vec::new();
            let read = file.seek(SeekFrom::Start(from)).and_then(|_| file.take(MOST_AT_ONCE).read_to_end(&mut bytes));
            *at = end;
            if read.is_ok() {
                news.add_all(&bytes);
            }
        }
        news
    }
}

/// Returns true if a descriptor is open for writing, by its `fdinfo`. The access mode is in the last octal digit of the
/// flags: 1 writes, 2 reads and writes.
#[must_use]
pub fn is_for_writing(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|l| l.strip_prefix("flags:")).map(str::trim);
    flags.and_then(|f| u32::from_str_radix(f, 8).ok()).is_some_and(|f| f & 3 != 0)
}

impl ErrorLogLines {
    /// Counts the known lines of a text. Most lines match nothing and are never split off.
    fn add_all(&mut self, text: &[u8]) {
        let Some(words) = WORDS.as_ref() else { return };
        // The line of the previous match, and its lowest index in `LINES`.
        let mut line: Option<(Range<usize>, usize)> = None;
        for found in words.find_overlapping_iter(text) {
            let entry = found.pattern().as_usize();
            match &mut line {
                Some((within, first)) if within.contains(&found.start()) => *first = entry.min(*first),
                _ => {
                    let begin = memrchr(b'\n', &text[..found.start()]).map_or(0, |at| at + 1);
                    let end = memchr(b'\n', &text[found.end()..]).map_or(text.len(), |at| found.end() + at);
                    if let Some((before, entry)) = line.replace((begin..end, entry)) {
                        self.add(&text[before], entry);
                    }
                }
            }
        }
        if let Some((last, entry)) = line {
            self.add(&text[last], entry);
        }
    }

    fn add(&mut self, line: &[u8], entry: usize) {
        let Some((what, _)) = LINES.get(entry) else { return };
        *self.counts.entry((*what).to_string()).or_default() += 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let sample = || String::from_utf8_lossy(line).chars().take(MOST_OF_A_LINE).collect();
        self.samples.entry((*what).to_string()).or_insert_with(sample);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_that_come_while_it_looks_are_counted_by_what_they_say() {
        let path = std::env::temp_dir().join(format!("lastdrop-error-log-{}.log", std::process::id()));
        let mut log = File::create(&path).expect("a log");
        writeln!(log, "2026 [alert] 512 worker_connections are not enough").expect("written");
        let mut logs = ErrorLogs::of(std::process::id() as i32);
        writeln!(log, "x\n[alert] 20 worker_connections are not enough\n[alert] 20 worker_connections are not enough")
            .expect("written");
        writeln!(log, "[notice] child pid 7 exit signal Killed (9)\nchild pid 8 exit signal Segmentation fault (11)")
            .expect("written");
        writeln!(
            log,
            "Worker with pid 9 was terminated due to signal 11\nWorker with pid 9 was terminated due to signal 9"
        )
        .expect("written");
        let news = logs.news();
        let count = |what: &str| news.counts.get(what).copied().unwrap_or(0);
        assert_eq!((count("worker-connections"), count("killed"), count("crash")), (2, 2, 2), "{news:?}");
        assert!(logs.news().counts.is_empty());
        // Of a line with two matches, the first entry of the table counts. A line without an end counts too.
        write!(log, "gone: exit signal Killed (9), Too many open files\r\n\nnothing\nserver reached pm.max_children")
            .expect("written");
        let news = logs.news();
        assert_eq!(news.counts, [("descriptors".to_string(), 1), ("max-children".to_string(), 1)].into(), "{news:?}");
        assert_eq!(news.samples["max-children"], "server reached pm.max_children");
        fs::remove_file(path).expect("removed");
    }

    #[test]
    fn files_that_are_only_read_are_no_logs() {
        assert!(is_for_writing("pos:\t0\nflags:\t0102001\n") && is_for_writing("flags:\t02"));
        assert!(!is_for_writing("pos:\t0\nflags:\t0100000\n") && !is_for_writing(""));
    }
}
