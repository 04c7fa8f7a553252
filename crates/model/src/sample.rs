//! Samples of a server and its machine: one per second during a run, or in `watch` without load.
//!
//! Counters are differences since the previous sample, never totals since boot. A number that could not be read is
//! absent, and [`ServerTimeline::unread`] says why; zero means zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::timeline::{Timeline, TimelineEntry};

/// One worker process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerSample {
    pub pid: i32,
    /// The letter of the server's scoreboard if that names processes, otherwise the kernel's: R running, S sleeping,
    /// D waiting for a disk.
    pub state: String,
    pub rss_bytes: Option<u64>,
    /// Proportional set size: each shared page divided by the number of processes that map it.
    pub pss_bytes: Option<u64>,
    pub private_bytes: Option<u64>,
    pub shared_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// Age of the private, shared and proportional sizes, which are read in turn.
    pub memory_age_s: Option<f64>,
    /// Processors used since the previous sample; after a run, since the worker was first seen.
    pub cpu_cores: Option<f64>,
    /// CPU time since its start.
    pub cpu_s: f64,
    /// Time waiting for a processor, as a share of the time since the previous sample; may exceed 1 with several
    /// threads.
    pub run_delay: Option<f64>,
    pub age_s: f64,
    /// Requests since its start, if the status page shows them.
    pub requests: Option<u64>,
    /// Time of its present or last request so far, if the status page shows it.
    pub request_s: Option<f64>,
    pub fds: Option<u64>,
    pub fds_limit: Option<u64>,
}

/// A listening socket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ListenQueue {
    /// `127.0.0.1:80`, or `unix:/run/x.sock`.
    pub address: String,
    /// Length of the listen queue: the largest reading since the previous sample.
    pub queue: u64,
    /// Mean of the same readings; absent in samples of older versions, which read once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_mean: Option<f64>,
    /// Limit of the queue: the smaller of the server's backlog and `net.core.somaxconn`.
    pub limit: u64,
    /// The run's URL leads to this socket.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_url: bool,
}

/// A destination whose connections hold local ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsInUse {
    /// Address and port.
    pub to: String,
    /// Connections to it in TIME_WAIT from one local address; each holds its port for a minute.
    pub time_wait: u64,
}

/// A control group on the path from the server's own to the root. Counters are differences since the previous sample.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupSample {
    pub path: String,
    /// `v2`, or the controller of v1.
    pub controller: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_periods: Option<u64>,
    /// CPU limit in cores; `None` if unlimited or unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit_cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Anonymous memory of it and its descendants: v1 `total_rss`, v2 `anon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Times that it was throttled at `memory.high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_high: Option<u64>,
    /// Times that it reached its memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u64>,
    /// Pages that were evicted for lack of memory and soon needed again: `workingset_refault`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refaulted_pages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_kills: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<u64>,
    /// Times that a new process or thread was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_refused: Option<u64>,
    /// Share of the time in which tasks in it waited, by resource: see [`Sample::pressure`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pressure: BTreeMap<String, f64>,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSample {
    /// Busy share of each processor, 0 to 1.
    pub cores: Vec<f64>,
    /// Share of all processor time that the hypervisor stole.
    pub steal: Option<f64>,
    /// Runnable tasks, and tasks waiting for a disk, at this moment.
    pub running: Option<u64>,
    pub blocked: Option<u64>,
    pub memory_available_bytes: Option<u64>,
    pub swap_in_pages: Option<u64>,
    pub swap_out_pages: Option<u64>,
    pub major_faults: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Packets dropped because a processor's backlog was full.
    pub backlog_dropped: Option<u64>,
    /// Open files of the machine, and their limit.
    pub files: Option<u64>,
    pub files_limit: Option<u64>,
}

/// One sample; differences cover the `span_s` before `t_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Seconds since the run or the watch began.
    pub t_s: f64,
    pub span_s: f64,
    /// Readings of the fast-changing numbers (listen queues, sockets, running workers) in this sample.
    pub readings: u32,
    pub worker_count: u64,
    /// Busy workers by the latest answer of the status page. Without one, workers that the kernel shows running or
    /// waiting for a disk: the largest of the readings that covered all workers.
    pub busy: Option<u64>,
    /// Mean of all readings of the kernel's states. In a large pool each reading covers a part and is scaled to the
    /// whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_mean: Option<f64>,
    /// Processors used by master and workers.
    pub cpu_cores: Option<f64>,
    /// Workers by the kernel's state letter.
    pub states: BTreeMap<String, u64>,
    /// Σ PSS of master, workers and their children, each at its latest reading.
    pub real_memory_bytes: Option<u64>,
    pub private_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// Age of the oldest reading in it.
    pub memory_age_s: Option<f64>,
    /// Open files of the worker closest to its limit, and that limit.
    pub fds: Option<u64>,
    pub fds_limit: Option<u64>,
    pub scoreboard: Option<String>,
    /// Requests per second by the status page, without lastdrop's own requests of that page.
    pub requests_rps: Option<f64>,
    /// Requests queued for a backend, by the status of a proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// Seconds that the request of the status page has been waiting for a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_waits_s: Option<f64>,
    /// The socket of the run's URL comes first.
    pub listen: Vec<ListenQueue>,
    /// Sockets of the server's network namespace by state: `time_wait`, `established`, `close_wait`, … A state that is
    /// also in `sockets_mean` has its largest reading, others the latest.
    pub sockets: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sockets_mean: BTreeMap<String, f64>,
    /// Counters of the server's network namespace: in a run those that changed, in `watch` all that are read.
    pub kernel: BTreeMap<String, u64>,
    /// Local ports of the namespace for connections to one address and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_ports: Option<u64>,
    /// The destination with the most connections in TIME_WAIT; only read if there are enough of them for a shortage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports_held: Option<PortsInUse>,
    pub conntrack: Option<u64>,
    pub conntrack_limit: Option<u64>,
    pub cgroups: Vec<CgroupSample>,
    /// Share of the time in which tasks of the machine waited (pressure stall information): `cpu_some`, `memory_some`,
    /// `memory_full`, `io_some`, `io_full`.
    pub pressure: BTreeMap<String, f64>,
    pub host: HostSample,
    /// Relevant lines of the kernel log.
    pub log: Vec<String>,
}

impl TimelineEntry for Sample {
    /// Milliseconds since the run began.
    fn key(&self) -> u64 {
        (self.t_s * 1e3) as u64
    }
}

/// Samples of the server during a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerTimeline {
    /// Its name on the command line if its kind is known: `apache:/etc/apache2/apache2.conf`.
    pub name: String,
    pub master: i32,
    /// Workers at the last sample of the measured phase.
    pub workers: Vec<WorkerSample>,
    #[serde(rename = "looks")]
    pub samples: Timeline<Sample>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
    /// Processors that sampling used.
    pub cost_cores: f64,
}

/// A traced system call.
#[derive(Debug, Clone, PartialEq)]
pub struct Syscall {
    pub pid: i32,
    pub call: String,
    /// The file, or the connection: `TCP:[127.0.0.1:80->127.0.0.1:9]`, or `unix:/run/x.sock` for one made to that
    /// socket.
    pub path: String,
    /// The operation of a call with several: `FUTEX_WAIT_PRIVATE`, `F_SETLKW`, `LOCK_EX`.
    pub operation: String,
    /// The error if the call failed, such as `ENOENT`.
    pub error: Option<String>,
    /// Time from entry to return, including the overhead of tracing.
    pub seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_of_an_older_version_still_opens() {
        let old = r#"{"t_s":1.0,"span_s":0.95,"worker_count":5,"busy":1,"cpu_cores":0.5,"states":{"S":5},
            "listen":[{"address":"127.0.0.1:80","queue":3,"limit":511}],"sockets":{"time_wait":7},"local_ports":28232}"#;
        let look: Sample = crate::read_json(old).expect("opens");
        let queue = &look.listen[0];
        assert_eq!((queue.queue, queue.limit, queue.queue_mean, queue.of_url), (3, 511, None, false));
        assert_eq!((look.busy, look.readings, look.sockets["time_wait"]), (Some(1), 0, 7));
    }
}
