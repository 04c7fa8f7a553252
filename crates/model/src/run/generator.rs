//! What the generator itself used and ran out of during a run, and who else used the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the generator did not have enough of, by the kernel's word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shortage {
    /// Requests that had to wait because this process could not have another descriptor (EMFILE, ENFILE).
    pub descriptors: u64,
    /// Connections that failed because no local port was free (EADDRNOTAVAIL).
    pub ports: u64,
}

impl Shortage {
    pub fn add(&mut self, other: Shortage) {
        self.descriptors += other.descriptors;
        self.ports += other.ports;
    }
}

/// What the generator itself used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generator {
    pub cpu_s: f64,
    pub cpu_us_per_request: f64,
    pub peak_rss_bytes: u64,
    pub threads: u32,
    pub saturated: bool,
    /// CPU of the busiest load thread, cores (0 to 1).
    pub busiest_thread_cores: f64,
    /// CPU of each load thread, cores (0 to 1).
    pub thread_cores: Vec<f64>,
    /// Why connections failed, TLS handshakes and proxies included.
    pub connect_errors: BTreeMap<String, u64>,
    /// What was wrong with answers that are not HTTP.
    pub protocol_errors: BTreeMap<String, u64>,
    /// What is weak about the server's certificate, which was not verified (`--insecure`); None where it was, or there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unverified: Option<Vec<String>>,
    /// Parts of measured pages that got no good answer: what came instead, and their URLs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub page_errors: BTreeMap<String, u64>,
    /// What the generator itself ran out of.
    pub shortage: Shortage,
    /// Open files that this process may have.
    pub descriptor_limit: u64,
    /// Local ports that connections to one address can use, and closed connections that held one at the end
    /// (TIME_WAIT): those to the server, of several to the one that has the most.
    pub local_ports: u64,
    pub time_wait: u64,
    /// Time for which our own cgroup was throttled while the run lasted.
    pub throttled_s: Option<f64>,
    /// By how much the clock of the day was set forward (or, negative, back) during the run, seconds.
    pub clock_step_s: f64,
    /// For how long the machine was suspended during the run, seconds.
    pub suspended_s: f64,
    /// Share of host CPU time stolen by the hypervisor while the run lasted; None where it cannot be read.
    pub steal: Option<f64>,
    /// Is the server on this machine?
    pub co_located: bool,
    /// Processors of this machine.
    pub processors: u64,
    /// Processors that programs of this machine used in the measured phase that have nothing to do with the run: neither
    /// this process nor the server nor what that talks to. None where they cannot be told apart.
    pub others_cores: Option<f64>,
    /// Those of them that used most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherProgram>,
}

/// Why nothing was answered, as a user reads it: errors of TLS come from a server that is there, and say what helps.
#[must_use]
pub fn with_question(why: &str) -> String {
    if why.starts_with("TLS: ") { why.into() } else { format!("{why}; is the server running, and is that its port?") }
}

/// A program that has nothing to do with a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherProgram {
    pub name: String,
    /// The one of its processes that used most.
    pub pid: i32,
    pub cores: f64,
}
