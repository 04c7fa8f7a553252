//! Reads host and server from outside: /proc, sockets, status pages. It changes nothing and reports what it cannot
//! read: a missing number is never zero.

mod attached;
pub mod cgroup;
pub mod chain;
pub mod database;
pub mod error_log;
pub mod fastcgi;
mod gauges;
pub mod group;
pub mod host;
pub mod identity;
pub mod kernel_log;
pub mod links;
pub mod listeners;
pub mod memory;
pub mod mod_status;
pub mod moments;
pub mod namespace;
pub mod others;
pub mod perf;
pub mod process;
pub mod reader;
pub mod resident;
pub mod sampler;
mod sock_diag;
pub mod socket_names;
mod stat;
pub mod stats_socket;
pub mod status;
mod status_file;
pub mod strace;
pub mod thread_states;
mod thread_waits;
pub mod tool;
pub mod unix;

/// What could not be read, and what to try.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("cannot read {path}: {source}{}", advice(source))]
    Read { path: String, source: std::io::Error },
    #[error("{path} does not look as expected: {what}")]
    Format { path: String, what: String },
    #[error("{tool} does not work here: {what}")]
    Tool { tool: &'static str, what: String },
    #[error("process {0} is gone")]
    Gone(i32),
}

fn advice(e: &std::io::Error) -> &'static str {
    match e.kind() {
        std::io::ErrorKind::PermissionDenied => "; run as root, or as the user of the server",
        _ => "",
    }
}

impl ProbeError {
    /// The error for a file of a process in /proc.
    pub(crate) fn of(pid: i32, file: &str, source: std::io::Error) -> ProbeError {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => ProbeError::Gone(pid),
            _ => ProbeError::Read { path: format!("/proc/{pid}/{file}"), source },
        }
    }
}
