//! What a look at a server and its machine finds: one a second beside the load, or on its own in `watch`.
//!
//! Counters are differences since the look before, never totals since boot. A number that could not be read is absent,
//! and [`ServerTimeline::unread`] says why; zero means zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::timeline::{Timeline, TimelineEntry};

/// One worker process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerSample {
    pub pid: i32,
    /// The letter of the server's scoreboard where it has one that names processes, else the kernel's: R running,
    /// S asleep, D waiting for a disk.
    pub state: String,
    pub rss_bytes: Option<u64>,
    /// Proportional: each shared page divided by the number of processes that map it.
    pub pss_bytes: Option<u64>,
    pub private_bytes: Option<u64>,
    pub shared_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// How old private, shared and proportional sizes are: they are read in turn.
    pub memory_age_s: Option<f64>,
    /// Processors used since the look before; after a run: since the worker was first seen.
    pub cpu_cores: Option<f64>,
    /// CPU time of its whole life.
    pub cpu_s: f64,
    /// Waited for a processor, as a share of the time since the look before; above 1 for several threads.
    pub run_delay: Option<f64>,
    pub age_s: f64,
    /// Requests of its life, where the status page tells.
    pub requests: Option<u64>,
    /// How long it has been at its present or last request, where the status page tells.
    pub request_s: Option<f64>,
    pub fds: Option<u64>,
    pub fds_limit: Option<u64>,
}

/// A listening socket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ListenQueue {
    /// `127.0.0.1:80`, or `unix:/run/x.sock`.
    pub address: String,
    /// Connections that wait to be accepted: the largest of the readings since the look before.
    pub queue: u64,
    /// The mean of the same readings; absent in looks of older versions, which read once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_mean: Option<f64>,
    /// How many may wait: the smaller of what the server asked for and `net.core.somaxconn`.
    pub limit: u64,
    /// It is the one that the run's URL leads to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_url: bool,
}

/// A destination to which connections hold local ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsInUse {
    /// Address and port.
    pub to: String,
    /// Closed connections (TIME_WAIT) to it from one local address: each keeps its port for a minute.
    pub time_wait: u64,
}

/// A control group on the path from the server's own to the root. Counters are differences since the look before.
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
    /// CPU time that it may use, cores; None is unlimited or unread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_limit_cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Anonymous memory of it and those below: v1 `total_rss`, v2 `anon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anonymous_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Times that the high mark slowed it down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_high: Option<u64>,
    /// Times that it ran into its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<u64>,
    /// Pages that had to leave for want of room and were soon wanted again: `workingset_refault`.
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
    /// Times that a process or thread was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_refused: Option<u64>,
    /// Share of the time in which something in it waited, by resource: see [`Sample::pressure`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pressure: BTreeMap<String, f64>,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSample {
    /// Share of each processor that was busy, 0 to 1.
    pub cores: Vec<f64>,
    /// Share of all processor time that the hypervisor gave to others.
    pub steal: Option<f64>,
    /// Tasks that run or could, and those that wait for a disk, at this moment.
    pub running: Option<u64>,
    pub blocked: Option<u64>,
    pub memory_available_bytes: Option<u64>,
    pub swap_in_pages: Option<u64>,
    pub swap_out_pages: Option<u64>,
    pub major_faults: Option<u64>,
    pub oom_kills: Option<u64>,
    /// Packets that a processor's backlog had no room for.
    pub backlog_dropped: Option<u64>,
    /// Open files of the machine, and how many there may be.
    pub files: Option<u64>,
    pub files_limit: Option<u64>,
}

/// One look; differences cover the `span_s` before `t_s`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Seconds since the run began; in `watch` since it began.
    pub t_s: f64,
    pub span_s: f64,
    /// How often the numbers that come and go (listen queues, sockets, workers that run) were read for this look.
    pub readings: u32,
    pub worker_count: u64,
    /// Workers that are at work: by the status page as it answered last; else those that the kernel has running or
    /// waiting for a disk, the largest of the readings that saw all of them.
    pub busy: Option<u64>,
    /// The mean of all readings of the latter. Of a large pool each reading sees a part, and is scaled to the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_mean: Option<f64>,
    /// Processors that master and workers used.
    pub cpu_cores: Option<f64>,
    /// Workers by the kernel's state letter.
    pub states: BTreeMap<String, u64>,
    /// Σ PSS of master, workers and their children, each as it was last read.
    pub real_memory_bytes: Option<u64>,
    pub private_bytes: Option<u64>,
    pub swap_bytes: Option<u64>,
    /// Age of the oldest part of it.
    pub memory_age_s: Option<f64>,
    /// Open files of the worker that is closest to its limit, and that limit.
    pub fds: Option<u64>,
    pub fds_limit: Option<u64>,
    pub scoreboard: Option<String>,
    /// Requests a second by the status page, those that ask for it left out.
    pub requests_rps: Option<f64>,
    /// Requests that wait for one of the servers behind it, by the status of a proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// For how long the status page has been waiting for a worker to answer it, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_waits_s: Option<f64>,
    /// That of the run's URL first.
    pub listen: Vec<ListenQueue>,
    /// Sockets of the server's network namespace by state: `time_wait`, `established`, `close_wait`, … Of those in
    /// `sockets_mean` the largest of the readings, of the others the latest.
    pub sockets: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sockets_mean: BTreeMap<String, f64>,
    /// Counters of the server's network namespace that moved (in a run) or all that are read (in `watch`).
    pub kernel: BTreeMap<String, u64>,
    /// Ports that the namespace has for connections to any one address and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_ports: Option<u64>,
    /// The destination with the most closed connections; only looked for where there are enough of them for a shortage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports_held: Option<PortsInUse>,
    pub conntrack: Option<u64>,
    pub conntrack_limit: Option<u64>,
    pub cgroups: Vec<CgroupSample>,
    /// Share of the time in which tasks of the machine waited: `cpu_some`, `memory_some`, `memory_full`, `io_some`,
    /// `io_full` (pressure stall information).
    pub pressure: BTreeMap<String, f64>,
    pub host: HostSample,
    /// Lines of the kernel log that matter.
    pub log: Vec<String>,
}

impl TimelineEntry for Sample {
    /// Milliseconds since the run began.
    fn key(&self) -> u64 {
        (self.t_s * 1e3) as u64
    }
}

/// What was seen of the server during a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerTimeline {
    /// As it is named on the command line, where its kind is known: `apache:/etc/apache2/apache2.conf`.
    pub name: String,
    pub master: i32,
    /// Workers as they were at the last look of the measured phase.
    pub workers: Vec<WorkerSample>,
    pub looks: Timeline<Sample>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
    /// Processors that looking took.
    pub cost_cores: f64,
}

/// A system call that was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Syscall {
    pub pid: i32,
    pub call: String,
    /// The file, or the connection: `TCP:[127.0.0.1:80->127.0.0.1:9]`; `unix:/run/x.sock` is one that was made to there.
    pub path: String,
    /// What is to be done, where one call can do many things: `FUTEX_WAIT_PRIVATE`, `F_SETLKW`, `LOCK_EX`.
    pub operation: String,
    /// `ENOENT` and so on, where it failed.
    pub error: Option<String>,
    /// From entry to return, with what tracing adds.
    pub seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_of_an_older_version_still_opens() {
        let old = r#"{"t_s":1.0,"span_s":0.95,"worker_count":5,"busy":1,"cpu_cores":0.5,"states":{"S":5},
            "listen":[{"address":"127.0.0.1:80","queue":3,"limit":511}],"sockets":{"time_wait":7},"local_ports":28232}"#;
        let look: Sample = serde_json::from_str(old).expect("opens");
        let queue = &look.listen[0];
        assert_eq!((queue.queue, queue.limit, queue.queue_mean, queue.of_url), (3, 511, None, false));
        assert_eq!((look.busy, look.readings, look.sockets["time_wait"]), (Some(1), 0, 7));
    }
}
