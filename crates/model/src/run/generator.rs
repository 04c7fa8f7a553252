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
    /// Requests that the plan expects nothing of, and how many of their answers were looked at; and why some of these look as if the
    /// work was not done: `GET /mine/ redirects to /login?next`. Each begins with the request's name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub looked_at: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub doubts: BTreeMap<String, u64>,
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

impl Generator {
    /// Says of each request what most of its answers that were looked at have in common, where that is not the work that was asked
    /// for; what was seen most often comes first.
    #[must_use]
    pub fn doubted(&self) -> Vec<&str> {
        let of = |name: &str, doubt: &str| doubt.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
        let name = |doubt: &str| self.looked_at.keys().filter(|name| of(name, doubt)).max_by_key(|name| name.len());
        let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
        for (doubt, n) in &self.doubts {
            *seen.entry(name(doubt).map_or("", String::as_str)).or_insert(0) += n;
        }
        let is_most = |doubt: &str| {
            name(doubt).is_some_and(|name| seen.get(name.as_str()).copied().unwrap_or(0) * 2 > self.looked_at[name])
        };
        let mut most: Vec<(&str, u64)> =
            self.doubts.iter().map(|(doubt, n)| (doubt.as_str(), *n)).filter(|(doubt, _)| is_most(doubt)).collect();
        most.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        most.into_iter().map(|(doubt, _)| doubt).collect()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_in_doubt_where_most_of_its_answers_are() {
        let map = |all: &[(&str, u64)]| all.iter().map(|(what, n)| (what.to_string(), *n)).collect();
        let generator = Generator {
            looked_at: map(&[("GET /", 5), ("GET /a", 5), ("GET /a b", 5), ("POST /a", 4)]),
            doubts: map(&[
                ("GET / redirects to /login", 2),
                ("GET /a b redirects to /login", 2),
                ("GET /a b redirects to /other", 3),
                ("GET /a redirects to /login", 4),
                ("POST /a redirects to /login", 2),
            ]),
            ..Generator::default()
        };
        let doubted = generator.doubted();
        assert_eq!(
            doubted,
            ["GET /a redirects to /login", "GET /a b redirects to /other", "GET /a b redirects to /login"]
        );
        assert!(Generator::default().doubted().is_empty());
    }
}
